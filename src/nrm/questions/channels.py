"""Which steps keep channels apart, and which mix them.

Messages of many channels of one tensor travel together, as one message, through steps that keep channels apart. They
need to be spelled out only behind the first step that mixes them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nrm.capture import Combine, Exact, Linear, Multiply, Node, OwnOp, Pointwise, Select, through
from nrm.operators import (
    Expand,
    Gather,
    LinearMap,
    Masking,
    Matmul,
    Permute,
    Place,
    Reshape,
    Scatter,
    Slice,
    has_table,
)
from nrm.rules import Pass
from nrm.steps import Network


def mixes_channels(network: Network, node: Node) -> bool:
    """Whether a step mixes channels by one linear map that knows them apart."""
    if not isinstance(node.op, Linear) or not has_table(node.op.map):
        return False
    passes = isinstance(network.rules.leaf_rule(node.index), Pass)
    return not passes and _standard_axes(node, network.tape.nodes[node.inputs[0]])


def _standard_axes(node: Node, source: Node) -> bool:
    """Whether the step's batch and channel axes are the ones that its channel table assumes."""
    assert isinstance(node.op, Linear)
    if node.op.kind == "linear":
        axes = (node.value.ndim - 1, source.value.ndim - 1)
        sample = 0 if node.value.ndim > 1 else None
    else:
        weight = node.op.map.weight  # type: ignore[attr-defined]
        axes = (node.value.ndim - weight.ndim + 1,) * 2
        sample = 0 if node.value.ndim == weight.ndim else None
    return (node.channel, source.channel) == axes and node.sample == source.sample == sample


def keeps_channels(network: Network, node: Node, position: int) -> bool:
    """Whether channel c of the input reaches channel c of the output only."""
    source = network.tape.nodes[node.inputs[position]]
    if source.channel is None or node.channel is None or source.sample != node.sample:
        return False
    if source.shape[source.channel] != node.shape[node.channel]:
        return False
    op = node.op
    move: LinearMap | None = None
    if isinstance(op, Combine):
        move = op.terms[position].move
    elif isinstance(op, Multiply):
        move = op.moves[position]
    elif isinstance(op, Exact):
        if op.moves is None:
            return False
        move = op.moves[position]
    elif isinstance(op, Linear):
        alone = op.kind == "pool" or (
            isinstance(op.map, Matmul) and op.map.left and node.channel == node.value.ndim - 1
        )
        return alone and node.channel == source.channel
    elif isinstance(op, Select):
        return op.reduce is None and node.channel == source.channel and _moves_within(op.map, source, node)
    elif not isinstance(op, Pointwise) and not (isinstance(op, OwnOp) and op.entrywise):
        return False
    return _moves_within(move, source, node)


def _moves_within(move: LinearMap | None, source: Node, node: Node) -> bool:
    """Whether a movement leaves every entry in its channel."""
    assert source.channel is not None
    assert node.channel is not None
    if isinstance(move, Gather | Scatter):
        return move.keeps(source.channel, node.channel)
    known = move is None or isinstance(move, Permute | Reshape | Expand | Slice | Place | Masking)
    return known and through(move, source.channel) == node.channel


def one_hot(node: Node, rows: Sequence[int]) -> Tensor:
    """The masks of some channels of a tensor, ``(len(rows), *shape or 1s)``."""
    assert node.channel is not None
    device = node.value.device
    at = torch.arange(node.shape[node.channel], device=device) == torch.tensor(list(rows), device=device)[:, None]
    shape = [1] * node.value.ndim
    shape[node.channel] = -1
    return at.to(node.value.dtype).view(len(rows), *shape)
