"""What a network computes without some of its neurons: the tape replayed from the removed blocks on.

Blocks of several layers are removed in every combination, one of each layer or none. Layers are worked off in the order
of the forward pass; the variants of a tensor lie on one stack axis, those of earlier layers first. What does not depend
on a removed block is never computed again; blocks that stay apart are removed together (see ``regions``); the first
linear step in which they meet adds each block's own change to the value without removal (see ``parts``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from nrm.capture import Linear, Node, Tape, reads, replay
from nrm.evaluate.parts import Parts
from nrm.evaluate.regions import carried_labels
from nrm.memory import ALIVE
from nrm.questions import Frame, Site

LARGEST = 2**25
"""Entries of all variants of one tensor that are computed at a time, also where there is more memory."""

Spot = int | tuple[int, int]
"""A tensor, or its copy on the way to one consumer."""
BlockRanges = tuple[range, ...]
"""Some blocks of every layer."""


@dataclass(frozen=True, eq=False)
class Cutout:
    """The blocks of one layer that are removed one by one: every entry's block (-1: none), and what replaces it."""

    site: Site
    labels: Tensor
    count: int
    value: Tensor

    @property
    def key(self) -> Spot:
        """The tensor or edge that is changed."""
        return self.site.node if self.site.consumer is None else (self.site.node, self.site.consumer)


@dataclass(frozen=True, eq=False)
class Variants:
    """A tensor for every combination of removed blocks of the layers up to ``level``: ``(variants, *shape)``."""

    stack: Tensor
    level: int


@dataclass(frozen=True, eq=False)
class Apart:
    """A tensor in which the blocks of the present layer are still apart: as it was, and with each block removed."""

    whole: Tensor
    removed: Tensor
    labels: Tensor


ReplayState = dict[Spot, Variants | Apart]


class Removal:
    """All combinations of removed blocks of several layers.

    ``weights`` are those of the outputs whose sum is asked for, in the shape of the output; without them it is the
    output itself. ``frame`` gives the geometry of a node.
    """

    def __init__(
        self, tape: Tape, cutouts: Sequence[Cutout], frame: Callable[[Node], Frame], *, weights: Tensor | None,
        memory: int,
    ) -> None:  # fmt: skip
        self._tape = tape
        self._cutouts = cutouts
        self._frame = frame
        self._weights = weights
        self._nodes = _needed(tape)
        self._reached = [_cone(self._nodes, cut) for cut in cutouts]
        self._ends = [*(cut.site.node for cut in cutouts[1:]), tape.output]
        self._last = _last_readers(self._nodes)
        self._labels = [self._plan(m) for m in range(len(cutouts))]
        self._parts: dict[int, Parts] = {}
        self._fits = self._chunk_sizes(memory)

    def __len__(self) -> int:
        """In how many chunks the combinations are worked off."""
        return math.prod(-(-cut.count // fits) for cut, fits in zip(self._cutouts, self._fits, strict=True))

    def chunks(self) -> Iterator[tuple[BlockRanges, Tensor]]:
        """Some blocks of every layer, and the outputs without them: ``(1 + blocks of each layer, ..., batch, ...)``.

        The first entry along every axis is without removal in that layer.
        """
        yield from self._stage({}, ())

    # ---- planning --------------------------------------------------------------------------------------------

    def _plan(self, m: int) -> dict[Spot, Tensor]:
        """Labels of all tensors in which the blocks of a layer are apart, as far as the next layer."""
        cut = self._cutouts[m]
        labels: dict[Spot, Tensor] = {cut.key: cut.labels}
        for node in self._between(m):
            if node.index not in self._reached[m]:
                continue
            keys = {i: self._key(i, node.index, m) for i in reads(node)}
            touched = {i: k for i, k in keys.items() if isinstance(k, tuple) or i in self._reached[m] or i == cut.key}
            if all(key in labels for key in touched.values()):
                found = carried_labels(node, {i: labels[key] for i, key in touched.items()})
                if found is not None:
                    labels[node.index] = found
        return labels

    def _between(self, m: int) -> list[Node]:
        """The nodes after a layer, up to the next one."""
        begin, end = self._cutouts[m].site.node, self._ends[m]
        return [node for node in self._nodes if begin < node.index <= end]

    def _key(self, i: int, consumer: int, m: int) -> Spot:
        """What a consumer reads: the tensor, or its own copy of it if that was changed."""
        edges = {cut.key for cut in self._cutouts[: m + 1] if cut.site.consumer is not None}
        return (i, consumer) if (i, consumer) in edges else i

    def _chunk_sizes(self, memory: int) -> list[int]:
        """How many blocks of each layer are removed at a time, so that all variants fit into memory."""
        like = self._tape.nodes[self._tape.output].value
        budget = min(memory // (ALIVE * like.element_size()), LARGEST)
        wide = [float(max(1, like.numel()))] * len(self._cutouts)
        for m, cut in enumerate(self._cutouts):
            sizes = [(node.index in self._labels[m], node.shape.numel()) for node in self._between(m)]
            apart = [cut.labels.numel(), *(n for local, n in sizes if local)]
            wide[m] = max(wide[m], *(n for local, n in sizes if not local), 1)
            if m:
                wide[m - 1] = max(wide[m - 1], max(apart))
        fits: list[int] = []
        for m in reversed(range(len(self._cutouts))):
            later = [math.prod(1 + n for n in fits[:k]) for k in range(len(fits) + 1)]
            room = min(budget / (wide[m + k] * many) for k, many in enumerate(later))
            fits.insert(0, int(min(self._cutouts[m].count, max(1.0, room - 1))))
        return fits

    # ---- running ---------------------------------------------------------------------------------------------

    def _stage(self, state: ReplayState, taken: BlockRanges) -> Iterator[tuple[BlockRanges, Tensor]]:
        m = len(taken)
        if m == len(self._cutouts):
            yield taken, self._read(state, taken)
            return
        cut = self._cutouts[m]
        whole = self._value(state, cut.site.node, m - 1, taken)
        contexts = math.prod(1 + len(rows) for rows in taken)
        whole = whole.expand(contexts, *whole.shape[1:])
        start = Apart(whole, torch.where(cut.labels >= 0, cut.value.to(whole), whole), cut.labels)
        for begin in range(0, cut.count, self._fits[m]):
            rows = range(begin, min(cut.count, begin + self._fits[m]))
            mine: ReplayState = {**state, cut.key: start}
            self._run(mine, m, (*taken, rows))
            yield from self._stage(mine, (*taken, rows))

    def _run(self, state: ReplayState, m: int, taken: BlockRanges) -> None:
        """Computes everything that depends on removed blocks, up to the next layer."""
        last_stage = m == len(self._cutouts) - 1
        for node in self._between(m):
            if last_stage and node.index == self._tape.output and self._reads_linearly(node):
                break
            if any(node.index in reached for reached in self._reached[: m + 1]):
                state[node.index] = self._next(state, node, m, taken)
            for i in self._last.get(node.index, ()):
                state.pop(i, None)
        for key, found in state.items():
            if isinstance(found, Apart) and not last_stage:
                state[key] = Variants(_spelled_out(found, taken[m]), m)

    def _next(self, state: ReplayState, node: Node, m: int, taken: BlockRanges) -> Variants | Apart:
        if node.index in self._labels[m] and node.index in self._reached[m]:
            whole, removed = (self._replay(state, node, m, taken, removed=r) for r in (False, True))
            return Apart(whole, removed, self._labels[m][node.index])
        below = state.get(self._key(node.inputs[0], node.index, m)) if node.inputs else None
        if isinstance(node.op, Linear) and node.recall is None and isinstance(below, Apart):
            whole = self._replay(state, node, m, taken, removed=False)
            return Variants(self._met(node, node.op, below, whole, taken[m]), m)
        level = m if node.index in self._reached[m] else self._level(node.index, m)
        values = {i: self._value(state, self._key(i, node.index, m), level, taken) for i in reads(node)}
        return Variants(replay(node, values), level)

    def _level(self, i: int, m: int) -> int:
        return max((k for k in range(m + 1) if i in self._reached[k]), default=-1)

    def _replay(self, state: ReplayState, node: Node, m: int, taken: BlockRanges, removed: bool) -> Tensor:
        """A node while blocks are apart: with none removed, or with each entry's own block removed."""
        values = {}
        for i in reads(node):
            key = self._key(i, node.index, m)
            found = state.get(key)
            if isinstance(found, Apart):
                values[i] = found.removed if removed else found.whole
            else:
                values[i] = self._value(state, key, m - 1, taken)
        return replay(node, values)

    def _met(self, node: Node, op: Linear, below: Apart, whole: Tensor, rows: range) -> Tensor:
        """A linear step of every block's removal: the step without removal, and the change of that block."""
        parts = self._parts.setdefault(node.index, Parts(op.map, below.labels))
        change = parts.apply(below.removed - below.whole, rows)
        stack = whole.new_empty(whole.shape[0], 1 + len(rows), *whole.shape[1:])
        stack[:, 0] = whole
        torch.add(whole[:, None], change, out=stack[:, 1:])
        return stack.flatten(0, 1)

    def _value(self, state: ReplayState, key: Spot, level: int, taken: BlockRanges) -> Tensor:
        """A tensor for every variant up to a level; one that no removed block reaches stays alone on its axis."""
        found = state.get(key)
        if found is None:
            return self._tape.nodes[key if isinstance(key, int) else key[0]].value[None]
        if isinstance(found, Apart):
            return _spelled_out(found, taken[len(taken) - 1])
        more = math.prod(1 + len(rows) for rows in taken[found.level + 1 : level + 1])
        return found.stack if more == 1 else found.stack.repeat_interleave(more, 0)

    # ---- reading ---------------------------------------------------------------------------------------------

    def _reads_linearly(self, node: Node) -> bool:
        return self._weights is not None and isinstance(node.op, Linear) and node.recall is None

    def _read(self, state: ReplayState, taken: BlockRanges) -> Tensor:
        node, m = self._tape.nodes[self._tape.output], len(taken) - 1
        sizes = [1 + len(rows) for rows in taken]
        linear = self._reads_linearly(node) and node.index not in state
        if linear and any(node.index in reached for reached in self._reached):
            flat = self._read_below(state, node, m, taken)
        else:
            output = self._value(state, node.index, m, taken)
            if self._weights is None:
                flat = self._frame(node).to_samples(output)
            else:
                flat = self._sums(node, output * self._weights)
        flat = flat.expand(math.prod(sizes), *flat.shape[1:])
        return flat.reshape(*sizes, *flat.shape[1:])

    def _read_below(self, state: ReplayState, node: Node, m: int, taken: BlockRanges) -> Tensor:
        """The weighted sum of outputs that are linear in the tensor below: ``(variants, batch)``."""
        assert isinstance(node.op, Linear)
        assert self._weights is not None
        below = self._tape.nodes[node.inputs[0]]
        gradient = node.op.map.transpose(self._weights[None])
        found = state.get(self._key(below.index, node.index, m))
        if not isinstance(found, Apart):
            total = self._sums(below, self._value(state, self._key(below.index, node.index, m), m, taken) * gradient)
        else:
            whole = self._sums(below, found.whole * gradient)
            change = self._sums_by_label(below, (found.removed - found.whole) * gradient, found.labels)
            change = change[..., taken[m].start : taken[m].stop].movedim(-1, 1)
            total = torch.cat([whole[:, None], whole[:, None] + change], 1).flatten(0, 1)
        if node.op.bias is not None:
            total = total + self._sums(node, (node.op.bias * self._weights)[None])
        return total

    def _sums(self, node: Node, stack: Tensor) -> Tensor:
        """Every sample's sum: ``(K, batch)``."""
        rows = self._frame(node).to_samples(stack.expand(stack.shape[0], *node.shape))
        return rows.reshape(*rows.shape[:2], -1).sum(2)

    def _sums_by_label(self, node: Node, stack: Tensor, labels: Tensor) -> Tensor:
        """Every sample's sums over the blocks of the present layer: ``(K, batch, blocks)``."""
        frame, count = self._frame(node), self._cutouts[-1].count
        rows, at = (frame.to_samples(t.expand(t.shape[0], *node.shape)) for t in (stack, labels[None] + 1))
        rows, at = (t.reshape(*t.shape[:2], -1) for t in (rows, at))
        at = at.expand_as(rows)
        if rows.shape[2] == count and bool((at[0] == torch.arange(1, count + 1, device=at.device)).all()):
            return rows
        return rows.new_zeros(*rows.shape[:2], count + 1).scatter_add(2, at, rows)[..., 1:]


def _spelled_out(found: Apart, rows: range) -> Tensor:
    """The variants of a tensor: as it was, and without each of some blocks."""
    wanted = torch.tensor([-2, *rows], device=found.labels.device).view(-1, *(1,) * found.labels.ndim)
    return torch.where(found.labels == wanted, found.removed[:, None], found.whole[:, None]).flatten(0, 1)


def _needed(tape: Tape) -> list[Node]:
    """The nodes from which the output is computed."""
    needed = {tape.output}
    for node in reversed(tape.nodes[: tape.output + 1]):
        if node.index in needed:
            needed.update(reads(node))
    return [node for node in tape.nodes if node.index in needed]


def _cone(nodes: Sequence[Node], cut: Cutout) -> set[int]:
    """The nodes that depend on a removed block."""
    reached: set[int] = set()
    for node in nodes:
        first = cut.site.node in reads(node) and cut.site.consumer in (None, node.index)
        if first or any(i in reached for i in reads(node)):
            reached.add(node.index)
    return reached


def _last_readers(nodes: Sequence[Node]) -> dict[int, list[int]]:
    """For every node, those that nobody reads after it."""
    last = {i: node.index for node in nodes for i in reads(node)}
    found: dict[int, list[int]] = {}
    for i, reader in last.items():
        found.setdefault(reader, []).append(i)
    return found


def orders(cutouts: Sequence[Cutout]) -> list[int]:
    """The places of the layers in the order of the forward pass."""
    found = sorted(range(len(cutouts)), key=lambda k: (cutouts[k].site.node, cutouts[k].site.consumer or -1))
    for first, second in pairwise(found):
        assert cutouts[first].key != cutouts[second].key
    return found
