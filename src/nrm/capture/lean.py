"""Lean tapes: the values inside a block of the network are dropped, and computed again when they are read.

A block is a module in a list or sequence of modules, such as a layer of a transformer. What enters and leaves it is
kept. When a value inside is read, the block is run again from what entered it, by the calls that were recorded, and its
values stay until those of another block are read: a sweep from the output down runs every block once more.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from nrm.capture.anatomy import Anatomy
from nrm.capture.guard import plain_execution
from nrm.capture.op import Op
from nrm.capture.ops import Combine, Linear, Pointwise, Source
from nrm.capture.recall import Recall
from nrm.capture.tape import Node
from nrm.operators import LateMatmul, Matmul

if TYPE_CHECKING:
    from nrm.capture.recorder import Recorder


class Rerun:
    """The values of the block that was run again last; one for all blocks of a tape."""

    def __init__(self) -> None:
        self.block = 0
        self.values: dict[int, Tensor] = {}
        self.count = 0
        """How many times a block was run again."""


class LeanBlock:
    """A part of the tape whose values are computed again from those that are kept."""

    def __init__(self, part: range, rerun: Rerun) -> None:
        self.part = part
        self._calls: list[tuple[int, Op, tuple[int, ...], Recall | None]] = []
        self._kept: Mapping[int, Node] = {}
        self.rerun = rerun

    def fill(self, nodes: Sequence[Node], kept: Mapping[int, Node]) -> None:
        """Takes over how some nodes are computed from others, and from nodes whose values are kept."""
        self._calls = [(node.index, node.op, node.inputs, node.recall) for node in nodes]
        self._kept = kept

    def value(self, i: int) -> Tensor:
        """The value of one of its nodes."""
        if self.rerun.block != id(self):
            self.rerun.block, self.rerun.values = 0, {}
            self.rerun.values, self.rerun.block = self._computed(), id(self)
            self.rerun.count += 1
        return self.rerun.values[i]

    def _computed(self) -> dict[int, Tensor]:
        found: dict[int, Tensor] = {}

        def value(i: int) -> Tensor:
            return found[i] if i in found else self._kept[i].value

        with plain_execution():
            for i, op, inputs, recall in self._calls:
                if _is_half(op):
                    continue  # it is the product, which follows
                if recall is not None:
                    found[i] = recall.run({j: value(j) for j in recall.reads})
                else:
                    computed = op.compute([value(j)[None] for j in inputs])
                    assert computed is not None, "what cannot be computed again is kept"
                    found[i] = computed[0]
                if op.kind == "matmul":
                    found.update((j, found[i]) for j in inputs)
        return found


class LeanNode(Node):
    """A tensor of a lean tape, whose value is computed again when it is read."""

    __slots__ = ("_block",)

    def __init__(self, node: Node, block: LeanBlock, op: Op, inputs: tuple[int, ...]) -> None:
        self._block = block
        self.index, self.op, self.inputs = node.index, op, inputs
        self.name, self.module, self.function = node.name, node.module, node.function
        self.sample, self.channel, self.owner, self.heads = node.sample, node.channel, node.owner, node.heads
        self.recall = node.recall
        self.shape, self.ndim, self.dtype, self.device = node.shape, node.ndim, node.dtype, node.device

    @property
    def value(self) -> Tensor:  # type: ignore[override]
        """The value that the forward pass computed, again."""
        return self._block.value(self.index)

    @property
    def held(self) -> Tensor | None:
        """Nothing is kept."""
        return None

    @property
    def rerun(self) -> Rerun:
        """What was run again last, and how often."""
        return self._block.rerun

    @property
    def block(self) -> range:
        """The nodes of its block."""
        return self._block.part

    def reading(self) -> Callable[[], Tensor]:
        """Reads the value without keeping the block alive."""
        block, i = weakref.ref(self._block), self.index

        def read() -> Tensor:
            there = block()
            assert there is not None, "the tape is gone"
            return there.value(i)

        return read

    def with_op(self, op: Op, inputs: tuple[int, ...]) -> Node:
        """The tensor as the result of another op."""
        return LeanNode(self, self._block, op, inputs)


class LeanBlocks:
    """The blocks of a recorded pass, which become lean once more than ``bound`` bytes of values are held."""

    def __init__(self, anatomy: Anatomy, bound: int | None) -> None:
        self._bound = bound
        self._inside: str | None = None
        self._rng = torch.get_rng_state()
        self._waiting: list[range] = []
        self.rerun = Rerun()
        lists = {path for path, module in anatomy.modules if isinstance(module, nn.ModuleList | nn.Sequential)}
        self._paths = set[str]()
        if bound is not None:
            self._paths = {
                path for path, _ in anatomy.modules if path.rpartition(".")[0] in lists and path not in lists
            }

    def enter(self, path: str) -> None:
        """A module begins; the outermost of a list is a block."""
        if self._inside is None and path in self._paths:
            self._inside = path

    def leave(self, r: Recorder, path: str, begin: int) -> None:
        """A module has ended; what nobody else holds of a block's values is dropped, if there is too much."""
        if path != self._inside:
            return
        self._inside = None
        self._waiting.append(range(begin, len(r.nodes)))
        assert self._bound is not None
        if r.nbytes > self._bound and torch.equal(self._rng, torch.get_rng_state()):  # a draw cannot be repeated
            for part in self._waiting:
                _make_lean(r, part, self.rerun)
            self._waiting.clear()


def _make_lean(r: Recorder, part: range, rerun: Rerun) -> None:
    """Drops the values of a block that nobody but the recorder holds, and that can be computed again."""
    pointers = {r.seals[id(t)].pointer for t, i in r.live.values() if i in part}
    if any(p in r.memory.histories or p in r.memory.exposed for p in pointers):
        return  # memory that was written by others or in pieces is followed by what it holds
    kept = {i for i in part if not _comes_again(r.nodes[i])} | _held_by_others(r, part)
    kept |= {j for node in r.nodes[part.stop :] for j in _reads(node) if j in part}  # by blocks that have run since
    kept |= {h for i in kept if r.nodes[i].op.kind == "matmul" for h in r.nodes[i].inputs}
    dropped = [r.nodes[i] for i in part if i not in kept]
    if not dropped:
        return
    inside = {node.index for node in dropped}
    read = {j for node in dropped for j in _reads(node)} - inside
    block = LeanBlock(part, rerun)
    lean = [LeanNode(node, block, node.op, node.inputs) for node in dropped]
    for node in lean:
        r.nodes[node.index] = node
    for node in lean:
        _let_go(r, node)
    block.fill(lean, {j: r.nodes[j] for j in read})


def _reads(node: Node) -> tuple[int, ...]:
    """All nodes that a node is computed from, or has its relevance from."""
    return node.inputs if node.recall is None else (*node.inputs, *node.recall.reads)


def _let_go(r: Recorder, product: Node) -> None:
    """The halves of a product of matrices hold each other's factor: from now on by the node that it is."""
    if product.op.kind != "matmul" or not isinstance(product.op, Combine):
        return
    halves = [r.nodes[i] for i in product.inputs]
    for half, other in zip(halves, reversed(halves), strict=True):
        op, (factor,) = half.op, other.inputs
        if isinstance(op, Linear) and isinstance(op.map, Matmul):
            map = LateMatmul(op.map.inside, _reading(r.nodes[factor]), op.map.left, op.map.outside, op.map.flops)
            half.op = replace(op, map=map)


def _reading(node: Node) -> Callable[[], Tensor]:
    """Reads the value of a node; what a block is made of must not keep the block alive."""
    return node.reading() if isinstance(node, LeanNode) else lambda: node.value


def _comes_again(node: Node) -> bool:
    """Whether a value can be computed again from those that the node reads."""
    op = node.op
    if isinstance(op, Source):
        return False
    if node.recall is not None or _is_half(op):
        return True
    return type(op).compute is not Op.compute and not (isinstance(op, Pointwise) and op.function is None)


def _is_half(op: Op) -> bool:
    return isinstance(op, Linear) and op.kind == "matmul"


def _held_by_others(r: Recorder, part: range) -> set[int]:
    """The nodes of a block whose tensors the model, or the user, holds; the recorder lets go of all others."""
    mine = [(weakref.ref(t), i) for t, i in r.live.values() if i in part]
    for tensor, i in list(r.live.values()):
        if i in part:
            r.forget(tensor)
    tensor = None  # type: ignore[assignment]  # the loop's own
    alive = [(found, i) for ref, i in mine if (found := ref()) is not None]
    for found, i in alive:
        r.follow(found, i)
    return {i for _, i in alive}
