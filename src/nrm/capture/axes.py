"""Which axis of a tensor holds its channels, and where an axis goes through data movement."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from nrm.operators import (
    ByType,
    Expand,
    Gather,
    LinearMap,
    Masking,
    Permute,
    Place,
    Reduce,
    Reshape,
    Scatter,
    Slice,
)


def through(move: LinearMap | None, axis: int | None) -> int | None:
    """The output axis that an input axis becomes, or None where it does not survive as one axis."""
    return axis if move is None or axis is None else _THROUGH[type(move)](move, axis)


def _through_any(move: LinearMap, axis: int) -> int | None:
    inside, outside = move.inside, move.outside
    return axis if len(inside) == len(outside) and inside[axis] == outside[axis] else None


def _through_reshape(move: Reshape, axis: int) -> int | None:
    inside, outside = move.inside, move.outside
    if inside[: axis + 1] == outside[: axis + 1]:
        return axis
    before, size = math.prod(inside[:axis]), inside[axis]
    candidates = [d for d, n in enumerate(outside) if n == size and math.prod(outside[:d]) == before]
    if not candidates:
        return None
    return axis if axis in candidates else candidates[0]


def _through_place(move: Place, axis: int) -> int | None:
    slots = _through_index(move.index, len(move.outside))
    return next((outer for outer, inner in slots.items() if inner == axis), None)


def _part(inside: torch.Size, outside: torch.Size, axis: int) -> int | None:
    """Where the channels go whose axis a reshape splits or merges: the last axis, or else the largest part."""
    below, above = ([math.prod(shape[:d]) for d in range(len(shape) + 1)] for shape in (inside, outside))
    common = set(below) & set(above) - {0}
    begin = max((n for n in common if n <= below[axis]), default=0)
    end = min((n for n in common if n >= below[axis + 1]), default=0)
    parts = [d for d, n in enumerate(outside) if n > 1 and above[d] >= begin and above[d + 1] <= end]
    return None if not parts or len(outside) - 1 in parts else max(parts, key=lambda d: (outside[d], d))


def _through_index(index: tuple[Any, ...], ndim: int) -> dict[int, int]:
    """Basic indexing as a mapping from the axes of the indexed tensor to the axes of the result."""
    used = sum(1 for i in index if i is not None and i is not Ellipsis)
    expanded: list[Any] = []
    for i in index:
        expanded += [slice(None)] * (ndim - used) if i is Ellipsis else [i]
    kept, inner, outer = {}, 0, 0
    for i in expanded + [slice(None)] * ndim:
        if inner == ndim and i is not None:
            break
        if i is None:
            outer += 1
        elif isinstance(i, slice):
            kept[inner] = outer
            inner, outer = inner + 1, outer + 1
        else:
            inner += 1
    return kept


def _through_reduction(move: Reduce, axis: int) -> int | None:
    if axis in move.dims:
        return None
    if len(move.outside) == len(move.inside):
        return axis
    return axis - sum(1 for d in move.dims if d < axis)


_THROUGH: ByType[Callable[[Any, int], int | None]] = ByType(
    {
        LinearMap: _through_any,
        Permute: lambda move, axis: move.dims.index(axis),
        Reshape: _through_reshape,
        Expand: lambda move, axis: axis + len(move.outside) - len(move.inside),
        Slice: lambda move, axis: _through_index(move.index, len(move.inside)).get(axis),
        Place: _through_place,
        Reduce: _through_reduction,
    }
)


def followed(move: LinearMap | None, axis: int | None) -> int | None:
    """As :func:`through`, and channels that are split into groups or put together again are followed as well."""
    found = through(move, axis)
    if found is None and axis is not None and isinstance(move, Reshape):
        return _part(move.inside, move.outside, axis)
    return found


def moves_within(move: LinearMap | None, below: int | None, here: int | None) -> bool:
    """Whether data movement leaves every entry in its channel, which lie along these axes."""
    if below is None or here is None:
        return False
    if isinstance(move, Gather | Scatter):
        return move.keeps(below, here)
    known = move is None or isinstance(move, Permute | Reshape | Expand | Slice | Place | Masking)
    return known and through(move, below) == here


def moves_by_index(move: LinearMap | None) -> bool:
    """Whether where a movement takes entries is said by numbers, which may have been computed."""
    return isinstance(move, Gather | Scatter)
