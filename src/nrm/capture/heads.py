"""Where attention heads lie: after a product of attention weights with values, and through data movement from there."""

from __future__ import annotations

from typing import NamedTuple

from nrm.capture.axes import through
from nrm.capture.op import Op
from nrm.capture.ops import Combine, Linear, Multiply, Pointwise
from nrm.capture.tape import Node, Tape
from nrm.operators import Function, LinearMap, Matmul, Permute, Reshape

Heads = tuple[int, int]
"""An axis, and how many heads lie along it, one after the other."""


class AttentionStep(NamedTuple):
    """A product of attention weights with values: its node, and those of its halves.

    ``weights`` is the half that is linear in the attention weights, ``values`` the one that is linear in the values;
    ``turned`` says that values come first, so that keys are before queries in the weights.
    """

    product: int
    weights: int
    values: int
    turned: bool


def heads_of(op: Op, parents: list[Node], nodes: list[Node], node: Node) -> Heads | None:
    """The heads of an op's result."""
    if isinstance(op, Combine) and op.kind == "matmul":
        return _attended(parents, nodes, node)
    if all(parent.heads is None for parent in parents):
        return None
    if isinstance(op, Combine):
        return _through(op.terms[0].move, parents[0].heads) if len(op.terms) == 1 else None
    if isinstance(op, Multiply):
        moved = (_through(move, parent.heads) for move, parent in zip(op.moves, parents, strict=True))
        return next((heads for heads in moved if heads is not None), None)
    return next((p.heads for p in parents if p.heads is not None), None) if op.is_one_to_one(0) else None


def _attended(halves: list[Node], nodes: list[Node], node: Node) -> Heads | None:
    """A product is attention if one factor is a softmax; the heads are on the axis before positions and channels."""
    factors = [nodes[half.inputs[0]] for half in halves]
    ndim = node.ndim
    if any(isinstance(h.op, Linear) and isinstance(h.op.map, Function) for h in halves):
        return None
    if not any(is_attention(f, nodes) for f in factors):
        return None
    if ndim >= 4:
        return ndim - 3, node.shape[ndim - 3]
    return (ndim - 1, 1) if ndim == 3 and node.sample is not None else None


def is_attention(node: Node, nodes: list[Node]) -> bool:
    """Whether a tensor is a softmax, but for scaling and data movement."""
    for _ in range(8):
        if node.function == "softmax":
            return True
        if not isinstance(node.op, Combine) or len(node.inputs) != 1:
            return False
        node = nodes[node.inputs[0]]
    return False


def _through(move: LinearMap | None, heads: Heads | None) -> Heads | None:
    """Where the heads are after data movement: heads that are merged with the channels behind them stay together."""
    if move is None or heads is None:
        return heads
    axis, count = heads
    if not isinstance(move, Reshape):
        after = through(move, axis)
        return None if after is None or move.outside[after] != move.inside[axis] else (after, count)
    before = move.inside[:axis].numel()
    for d, n in enumerate(move.outside):
        if move.outside[:d].numel() == before and n > 1 and n % count == 0:
            return d, count
    return None


# ---- attention as a step ---------------------------------------------------------------------------------------------


def attention_step(tape: Tape, i: int) -> AttentionStep | None:
    """A node of a run as a product of attention weights with values, if it is one and both depend on the input."""
    nodes, halves = tape.nodes, _halves_of(tape, tape.nodes[i])
    if halves is None:
        return None
    turned = not is_attention(nodes[halves[0].inputs[0]], nodes)
    weights, values = halves[::-1] if turned else halves
    if not is_attention(nodes[weights.inputs[0]], nodes):
        return None
    return AttentionStep(i, weights.index, values.index, turned)


def _halves_of(tape: Tape, node: Node) -> list[Node] | None:
    if not isinstance(node.op, Combine) or node.op.kind != "matmul":
        return None
    halves = [tape.nodes[i] for i in node.inputs]
    return halves if all(isinstance(h.op, Linear) and isinstance(h.op.map, Matmul) for h in halves) else None


class ReadBy(NamedTuple):
    """A tensor as one of its readers reads it, and whether its positions are on the last axis, after its channels."""

    tensor: int
    reader: int
    turned: bool


def attention_reads(tape: Tape, step: AttentionStep) -> dict[str, ReadBy]:
    """The queries, keys and values of an attention step: values always, the others where one product has both."""
    found = {"v": _unturned(tape, tape.nodes[step.values], step.turned)}
    scores, swapped = _scores(tape, tape.nodes[tape.nodes[step.weights].inputs[0]])
    if scores is not None:
        names = ("k", "q") if step.turned != swapped else ("q", "k")
        for second, (name, half) in enumerate(zip(names, scores, strict=True)):
            found[name] = _unturned(tape, half, bool(second))
    return found


def _scores(tape: Tape, weights: Node) -> tuple[list[Node] | None, bool]:
    """The halves of the only product that attention weights are computed from, and whether it has keys before queries.

    Disentangled attention adds up several products: then none of them has the queries.
    """
    found: list[tuple[list[Node], bool]] = []
    waiting = [(weights, False)]
    while waiting:
        node, swapped = waiting.pop()
        halves = _halves_of(tape, node)
        if halves is not None:
            found.append((halves, swapped))
        elif isinstance(node.op, Combine | Pointwise | Multiply):
            swaps = isinstance(node.op, Combine) and len(node.inputs) == 1 and _swaps(node.op.terms[0].move)
            waiting += [(tape.nodes[i], swapped != swaps) for i in node.inputs]
    return found[0] if len(found) == 1 else (None, False)


def _swaps(move: LinearMap | None) -> bool:
    """Whether a movement exchanges the last two axes, and nothing else."""
    if not isinstance(move, Permute):
        return False
    axes = list(range(len(move.dims)))
    return len(axes) > 1 and list(move.dims) == [*axes[:-2], axes[-1], axes[-2]]


def _unturned(tape: Tape, half: Node, turned: bool) -> ReadBy:
    """What half a product reads, before it was scaled and turned for it; what others read as well stays as it is."""
    read = ReadBy(half.inputs[0], half.index, turned)
    while True:
        node = tape.nodes[read.tensor]
        if not isinstance(node.op, Combine) or len(node.inputs) != 1 or len(tape.consumers[node.index]) != 1:
            return read
        move = node.op.terms[0].move
        if move is not None and not (read.turned and _swaps(move)):
            return read
        read = ReadBy(node.inputs[0], node.index, read.turned and move is None)
