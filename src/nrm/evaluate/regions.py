"""How far removed blocks stay apart.

Removing a block changes some entries of the tensors above it. As long as every entry depends on one block at most, all
blocks can be removed at once and each entry is read as its own block left it: a ReLU, a pooling of channels or a
reshape costs the same for five hundred removals as for one. A map of labels says which block an entry depends on.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from nrm.capture import Linear, Node, Select, reads
from nrm.operators import Function, LinearMap, Movement, Reduce

LARGEST = 2**24
"""Entries of the largest table of windows that is looked through."""


def carried_labels(node: Node, below: Mapping[int, Tensor]) -> Tensor | None:
    """The labels of a node's entries, -1 for none, from those of the nodes it reads; None if blocks meet in it."""
    op = node.op
    if op.entrywise:
        return _same(node, below)
    if isinstance(op, Select):
        return _chosen(node, op, below)
    if node.recall is not None:
        return None
    if isinstance(op, Linear):
        return _pooled(op.map, below[node.inputs[0]])
    maps = op.maps(len(node.inputs)) if op.is_local else None
    if maps is None:
        return None
    pairs = [(map, below[i]) for map, i in zip(maps, node.inputs, strict=True) if i in below]
    if not all(map is None or isinstance(map, Movement) for map, _ in pairs):
        return None
    return _merged([_moved(map, labels) for map, labels in pairs], node.shape)


def _moved(move: LinearMap | None, labels: Tensor) -> Tensor:
    if move is None:
        return labels
    return move.apply((labels + 1).double()[None])[0].round().long() - 1


def _merged(labels: list[Tensor], shape: torch.Size) -> Tensor | None:
    """Labels of tensors that meet entry by entry; None if two of them differ somewhere."""
    top = labels[0].expand(shape)
    for other in labels[1:]:
        other = other.expand(shape)
        if bool(((top >= 0) & (other >= 0) & (top != other)).any()):
            return None
        top = torch.maximum(top, other)
    return top


def _same(node: Node, below: Mapping[int, Tensor]) -> Tensor | None:
    if any(labels.shape != node.shape for labels in below.values()) or not set(below) <= set(reads(node)):
        return None
    return _merged(list(below.values()), node.shape)


def _chosen(node: Node, op: Select, below: Mapping[int, Tensor]) -> Tensor | None:
    """A maximum keeps blocks apart if none of its windows sees two of them."""
    if node.function.startswith("fractional") or set(below) != {node.inputs[0]}:
        return None
    labels = below[node.inputs[0]].double()
    high, low = (op.choose(sign * labels).apply(labels[None])[0] for sign in (1, -1))
    return high.long() if torch.equal(high, low) else None


def _pooled(map: LinearMap, labels: Tensor) -> Tensor | None:
    if isinstance(map, Reduce):
        if any(bool((labels != labels.narrow(d, 0, 1)).any()) for d in map.dims):
            return None
        for d in map.dims:
            labels = labels.narrow(d, 0, 1)
        return labels.reshape(map.outside)
    if not isinstance(map, Function) or not map.space:
        return None
    rows = labels.flatten(-map.space)
    if bool((rows == rows[..., :1]).all()):
        first = rows[..., :1].reshape(*labels.shape[: -map.space], *(1,) * map.space)
        return first.expand(map.outside)
    outside = map.outside[-map.space :].numel()
    if rows.numel() * outside > LARGEST:
        return None
    seen = (map.window() != 0).to(labels.device)
    lines = rows.reshape(-1, rows.shape[-1], 1)
    high = torch.where(seen, lines, -2).amax(1)
    low = torch.where(seen, lines, torch.iinfo(lines.dtype).max).amin(1)
    return high.reshape(map.outside) if torch.equal(high, low) else None
