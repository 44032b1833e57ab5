"""Where attention heads lie: after a product of attention weights with values, and through data movement from there."""

from __future__ import annotations

from nrm.capture.axes import through
from nrm.capture.ops import Combine, Linear, Multiply, Op, Pointwise
from nrm.capture.tape import Node
from nrm.operators import Function, LinearMap, Reshape

Heads = tuple[int, int]
"""An axis, and how many heads lie along it, one after the other."""


def heads_of(op: Op, parents: list[Node], nodes: list[Node], node: Node) -> Heads | None:
    """The heads of an op's result."""
    if isinstance(op, Combine) and op.kind == "matmul":
        return _attended(parents, nodes, node)
    if isinstance(op, Combine):
        return _through(op.terms[0].move, parents[0].heads) if len(op.terms) == 1 else None
    if isinstance(op, Multiply):
        moved = (_through(move, parent.heads) for move, parent in zip(op.moves, parents, strict=True))
        return next((heads for heads in moved if heads is not None), None)
    return parents[0].heads if isinstance(op, Pointwise) else None


def _attended(halves: list[Node], nodes: list[Node], node: Node) -> Heads | None:
    """A product is attention if one factor is a softmax; the heads are on the axis before positions and channels."""
    factors = [nodes[half.inputs[0]] for half in halves]
    ndim = node.value.ndim
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
