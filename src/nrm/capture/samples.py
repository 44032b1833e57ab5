"""Whose entries are whose: the sample of every entry of every tensor, followed through every op.

Mostly samples lie along one axis, and an op moves that axis. Where samples and other things are merged (windows
folded into the batch, two images of a pair stacked), a tensor has an *owner* map instead: the sample of every entry,
with -1 for entries that mix several samples and -2 for those of nobody. As soon as an axis of samples appears again,
it is used again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nrm.capture.axes import through
from nrm.capture.op import Maps, Op
from nrm.capture.ops import Combine, Source
from nrm.capture.tape import Node
from nrm.operators import (
    ByType,
    Centering,
    Composed,
    Convolution,
    Dense,
    Function,
    Gather,
    Grouped,
    LinearMap,
    Matmul,
    Movement,
    Reduce,
    Scatter,
    convolution_in,
)

_NOBODY, _MIXED, _FIRST = 0, 1, 2
"""Codes of entries: no sample, several samples, sample k as ``_FIRST + k``. Movement carries them like values."""


@dataclass(frozen=True, eq=False)
class Whose:
    """Where samples lie in a tensor: along an axis, or by an owner map, or (neither) nothing is known."""

    axis: int | None = None
    owner: Tensor | None = None


def follow(op: Op, parents: list[Node], shape: torch.Size, batch: int) -> Whose:
    """Where samples lie in an op's result."""
    maps = op.maps(len(parents))
    if maps is None:
        return _through_unknown(parents, shape, batch)
    if len(parents) == 1 and parents[0].sample is not None:  # most ops read one tensor
        axis = axis_through(maps[0], parents[0].sample)
        if axis is not None:
            return Whose(axis) if shape[axis] == batch else Whose()
    found = [axis_through(m, p.sample) for m, p in zip(maps, parents, strict=True)]
    if all((a is not None) if p.sample is not None else p.owner is None for a, p in zip(found, parents, strict=True)):
        axes = {a for a in found if a is not None}
        if len(axes) == 1:
            axis = axes.pop()
            return Whose(axis) if shape[axis] == batch else Whose()
        if not axes:
            return Whose()
    if batch == 1:
        return _only(shape, _new_axes(op, maps, parents, shape), parents[0].device)
    return _by_entry(op, maps, parents, shape, batch)


def settle(node: Node, nodes: Sequence[Node], batch: int) -> None:
    """Constants that meet samples belong to the samples of the entries they enter, also if they were moved before."""
    if not node.has_samples or all(nodes[i].has_samples for i in node.inputs):
        return
    maps = node.op.maps(len(node.inputs)) if node.op.is_local and not node.op.scales else None
    if maps is None:
        return
    for map, i in zip(maps, node.inputs, strict=True):
        parent = nodes[i]
        if parent.has_samples or not isinstance(parent.op, Source | Combine):
            continue
        if map is None:
            parent.sample, parent.owner = node.sample, node.owner
        else:
            found = _sources(map, node, batch)
            parent.sample, parent.owner = found.axis, found.owner
        settle(parent, nodes, batch)


def complete(nodes: Sequence[Node]) -> None:
    """Gives entries without a sample, such as new zeros, the samples of the entries that they enter later.

    Rows of a buffer that is filled piece by piece are such entries: some belong to a sample from the second piece on.
    """
    lost = [node for node in nodes if node.owner is not None and bool((node.owner == _NOBODY - _FIRST).any())]
    for node in reversed(lost):
        code, readers = codes_of(node), [reader for reader in nodes[node.index :] if node.index in reader.inputs]
        for reader in readers:
            if reader.has_samples and (rows := _by_rows(reader, node)) is not None:
                code = torch.where(code == _NOBODY, rows, code)
            if not isinstance(reader.op, Combine) or not reader.has_samples:
                continue
            for term, i in zip(reader.op.terms, reader.inputs, strict=True):
                if i == node.index:
                    later, used = (codes_of(reader), True) if term.move is None else _entered(term.move, reader)
                    code = torch.where((code == _NOBODY) & used, later, code)
        known = code[code != _NOBODY]
        if len(known) and known.min() == known.max():
            code = torch.full_like(code, int(known[0]))
        elif all(isinstance(reader.op, Combine) for reader in readers):
            code = torch.where(code == _NOBODY, _FIRST, code)
        node.owner = code - _FIRST


def _by_rows(reader: Node, node: Node) -> Tensor | None:
    """The codes that a dense step's rows give to those of what it reads; None of other steps."""
    maps = () if reader.op.is_local else reader.op.maps(len(reader.inputs)) or ()
    for map, i in zip(maps, reader.inputs, strict=False):
        if i == node.index and isinstance(map, Dense) and reader.shape[:-1] == node.shape[:-1]:
            return codes_of(reader).amax(-1, keepdim=True).expand(node.shape)
    return None


def release(nodes: Sequence[Node], output: int) -> None:
    """Entries that mix samples and are not read on the way to the output carry nothing: the first sample may have them.

    A fill value computed from the whole batch, which a later assignment replaces, leaves such entries behind.
    """
    used = {output: torch.ones(nodes[output].shape, dtype=torch.bool, device=nodes[output].device)}
    for node in reversed(nodes[: output + 1]):
        if node.index not in used:
            continue
        mine = used.pop(node.index)
        if node.owner is not None:
            node.owner = torch.where((node.owner < 0) & ~mine, 0, node.owner)
        maps = node.op.maps(len(node.inputs)) if node.op.is_local else None
        for position, i in enumerate(node.inputs):
            if maps is None:
                back = torch.ones_like(nodes[i].value, dtype=torch.bool)
            else:
                map = maps[position]
                back = mine if map is None else map.transpose(mine.to(torch.float64)[None])[0] != 0
            used[i] = used[i] | back if i in used else back


def _entered(map: LinearMap, node: Node) -> tuple[Tensor, Tensor]:
    """For every entry that a map moves into a node: the code of the entries it enters, and whether there are any."""
    code = codes_of(node).to(torch.float64)[None]
    back, uses = map.transpose(code)[0], map.transpose(torch.ones_like(code))[0]
    mean = back / uses.clamp(min=1)
    return torch.where(mean == mean.round(), mean, torch.full_like(mean, _MIXED)).long(), uses > 0


def _sources(move: LinearMap, node: Node, batch: int) -> Whose:
    """Where the samples of a node's entries lie in what was moved there."""
    if batch == 1:
        return _only(move.inside, range(len(move.inside)), node.device)
    code, used = _entered(move, node)
    return _named(torch.where(used, code, _FIRST), batch, range(code.ndim))


def _only(shape: torch.Size, axes: Sequence[int], device: torch.device) -> Whose:
    """Where everything is the only sample's: along an axis of size 1 if there is one."""
    axis = next((d for d in axes if shape[d] == 1), None)
    owner = torch.zeros((), dtype=torch.long, device=device).expand(shape) if axis is None else None
    return Whose(axis, owner)


def codes_of(node: Node) -> Tensor:
    """The code of every entry of a node's tensor."""
    if node.owner is not None:
        return node.owner + _FIRST
    if node.sample is None:
        return torch.full(node.shape, _NOBODY, dtype=torch.long, device=node.device)
    count = node.shape[node.sample]
    shape = [count if axis == node.sample else 1 for axis in range(node.ndim)]
    return (torch.arange(count, device=node.device) + _FIRST).view(shape).expand(node.shape)


def _through_unknown(parents: list[Node], shape: torch.Size, batch: int) -> Whose:
    for parent in parents:
        if parent.sample is not None and parent.sample < len(shape) and shape[parent.sample] == batch:
            return Whose(parent.sample)
        if parent.owner is not None and parent.shape == shape:
            return Whose(owner=parent.owner)
    return Whose()


def axis_through(map: LinearMap | None, axis: int | None) -> int | None:
    """The axis that the samples lie along after a map, if it leaves every sample where it was."""
    if map is None or axis is None:
        return axis
    return _THROUGH[type(map)](map, axis)


def _through_movement(map: LinearMap, axis: int) -> int | None:
    after = through(map, axis)
    return after if after is not None and map.outside[after] == map.inside[axis] else None


def _through_step(map: LinearMap, axis: int) -> int | None:
    free = _free_axes(map)
    if free is None:
        return _through_movement(map, axis)
    return axis if axis in free and _keeps(map, axis) else None


def _through_function(map: Function, axis: int) -> int | None:
    return dict(map.kept).get(axis) if map.kept else _through_step(map, axis)


def _through_scatter(map: Scatter, axis: int) -> int | None:
    return axis if _keeps(map, axis) and map.keeps(axis, axis) else None


def _keeps(map: LinearMap, axis: int) -> bool:
    inside, outside = map.inside, map.outside
    return len(inside) == len(outside) and inside[axis] == outside[axis]


def _free_axes(map: LinearMap) -> range | tuple[int, ...] | None:
    """The axes along which a linear step works independently; None for maps that move or remove axes."""
    return _FREE[type(map)](map)


def _free_in_convolution(map: LinearMap) -> range | None:
    convolution = convolution_in(map)
    return None if convolution is None else range(len(map.inside) - convolution.weight.ndim + 1)


def _free_in_product(map: Matmul) -> range | tuple[int, ...]:
    ndim = len(map.inside)
    return (*range(ndim - 2), ndim - 1) if map.left else range(ndim - 1)


def _free_in_norm(map: Centering) -> tuple[int, ...]:
    return tuple(d for d in range(len(map.inside)) if d not in map.dims) if tuple(map.view) == map.inside else (0,)


_FREE: ByType[Callable[[Any], range | tuple[int, ...] | None]] = ByType(
    {
        LinearMap: lambda map: None,
        Dense: lambda map: range(len(map.inside) - 1),
        Grouped: lambda map: range(len(map.inside) - 1),
        Convolution: _free_in_convolution,
        Composed: _free_in_convolution,
        Matmul: _free_in_product,
        Centering: _free_in_norm,
        Function: lambda map: range(1) if map.batched else (),
    }
)


def _through_gather(map: Gather, axis: int) -> int | None:
    """The output axis whose coordinate is, for every entry, the coordinate of its source along ``axis``."""
    index = map.index.view(map.outside)
    stride, size = max(map.inside[axis + 1 :].numel(), 1), max(map.inside[axis], 1)  # of an empty tensor, too
    source = index.div(stride, rounding_mode="floor") % size
    filled = index >= 0
    order = sorted(range(len(map.outside)), key=lambda d: d != axis)
    for d in order:
        if map.outside[d] != map.inside[axis]:
            continue
        own = torch.arange(map.outside[d], device=index.device).view(-1, *(1,) * (len(map.outside) - d - 1))
        if bool(((source == own) | ~filled).all()):
            return d
    return None


_THROUGH: ByType[Callable[[Any, int], int | None]] = ByType(
    {
        LinearMap: _through_step,
        Movement: _through_movement,
        Gather: _through_gather,
        Scatter: _through_scatter,
        Function: _through_function,
    }
)


def _by_entry(op: Op, maps: Maps, parents: list[Node], shape: torch.Size, batch: int) -> Whose:
    """Entry by entry: where contributions of several samples meet, the entry is mixed."""
    if not any(parent.has_samples for parent in parents):
        return Whose()
    if not shape.numel():
        return _only(shape, (), parents[0].device)
    total: Tensor | None = None
    for map, parent in zip(maps, parents, strict=True):
        if not parent.has_samples:
            continue
        code = _moved(op, map, codes_of(parent), shape, batch, parent.dtype)
        if op.scales and total is not None and bool((code == _MIXED).any()):
            continue  # a factor that mixes samples scales the other one; relevance follows the other one
        total = code if total is None else _merged(total, code)
    assert total is not None
    return _named(_filled(total), batch, _new_axes(op, maps, parents, shape))


def _new_axes(op: Op, maps: Maps, parents: list[Node], shape: torch.Size) -> list[int]:
    """The axes along which samples may appear: not those of channels, of which a batch of one may have as many."""
    free = None if op.is_local or maps[0] is None else _free_axes(maps[0])
    alike = [parent.shape for parent in parents if parent.owner is not None and len(parent.shape) == len(shape)]
    before = {d for other in alike for d in range(1, len(shape)) if other[d] == shape[d] == 1}
    return [d for d in (range(len(shape)) if free is None else free) if d not in before]


def _merged(a: Tensor, b: Tensor) -> Tensor:
    one = torch.where(a == _NOBODY, b, a)
    return torch.where((a != _NOBODY) & (b != _NOBODY) & (a != b), torch.full_like(one, _MIXED), one)


def _moved(op: Op, map: LinearMap | None, code: Tensor, shape: torch.Size, batch: int, dtype: torch.dtype) -> Tensor:
    if not code.numel():  # nothing comes from an empty tensor
        return torch.full(shape, _NOBODY, dtype=torch.long, device=code.device)
    if map is None:
        if code.shape == shape:
            return code
        return _kept(code, shape, range(code.ndim))
    if isinstance(map, Scatter):
        return _scattered(map, code, shape)
    if not op.is_local:
        free = _free_axes(map)
        if isinstance(map, Reduce):
            return _reduced(map, code, shape)
        return _kept(code, shape, free or (), map, batch, dtype)
    return map.apply(code.to(torch.float64)[None])[0].round().long()


def _reduced(map: Reduce, code: Tensor, shape: torch.Size) -> Tensor:
    if not map.dims:
        return code.reshape(shape)
    high = code.amax(map.dims, keepdim=True)
    low = torch.where(code == _NOBODY, high, code).amin(map.dims, keepdim=True)
    return torch.where(low == high, low, torch.full_like(low, _MIXED)).reshape(shape)


def _scattered(map: Scatter, code: Tensor, shape: torch.Size) -> Tensor:
    """The sample of every place that entries are added at: none where none arrives, mixed where several do."""
    flat, nobody = code.reshape(-1), torch.full((shape.numel(),), _NOBODY, dtype=torch.long, device=code.device)
    high = nobody.scatter_reduce(0, map.index, flat, "amax", include_self=False)
    low = nobody.scatter_reduce(
        0, map.index, torch.where(flat == _NOBODY, high[map.index], flat), "amin", include_self=False
    )
    return torch.where(low == high, low, torch.full_like(low, _MIXED)).reshape(shape)


def _kept(
    code: Tensor,
    shape: torch.Size,
    free: range | tuple[int, ...],
    map: LinearMap | None = None,
    batch: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Codes that vary along untouched axes only stay as they are; otherwise every sample is tried by itself."""
    same = code.ndim == len(shape)
    narrow = code
    for d in range(code.ndim):
        first = narrow.narrow(d, 0, 1)
        if bool((narrow == first).all()):
            narrow = first
        elif not (same and d in free and code.shape[d] == shape[d]):
            return _tried(code, shape, map, batch, dtype)
    if not same:
        return narrow.reshape(()).expand(shape) if narrow.numel() == 1 else _tried(code, shape, map, batch, dtype)
    return narrow.expand(shape)


def _tried(code: Tensor, shape: torch.Size, map: LinearMap | None, batch: int, dtype: torch.dtype) -> Tensor:
    total = torch.full(shape, _NOBODY, dtype=torch.long, device=code.device)
    if map is None:
        return torch.full_like(total, _MIXED)
    generator = torch.Generator().manual_seed(0)
    probe = torch.rand(code.shape, generator=generator, dtype=dtype).to(code.device) + 0.5
    for k in [_MIXED, *range(_FIRST, _FIRST + batch)]:
        reached = map.apply((probe * (code == k))[None])[0] != 0
        total = _merged(total, torch.where(reached, k, _NOBODY))
    return total


def _filled(code: Tensor) -> Tensor:
    """Entries of nobody (constants, holes) take the sample of their slice, along the axis that tells samples apart.

    Where no axis does, they stay nobody's, until ``complete`` knows what has become of them.
    """
    known = code[code != _NOBODY]
    if known.numel() in (0, code.numel()) or known.max() == known.min():  # no axis tells one sample apart
        return code
    for d in range(code.ndim):
        lines = code.movedim(d, 0).reshape(code.shape[d], -1)
        high = lines.amax(1)
        low = torch.where(lines == _NOBODY, high[:, None], lines).amin(1)
        if bool((low == high).all()) and bool((high != _NOBODY).all()):
            return high.view(-1, *(1,) * (code.ndim - d - 1)).expand(code.shape)
    return code


def named(owner: Tensor, batch: int) -> Whose:
    """Where samples lie, from the sample of every entry of a tensor whose last axis is that of channels."""
    return _named(owner + _FIRST, batch, range(owner.ndim - 1))


def _named(code: Tensor, batch: int, axes: Sequence[int]) -> Whose:
    """The one of these axes along which the samples lie in order, if there is one; else the owner map."""
    for d in axes:
        if code.shape[d] == batch:
            own = torch.arange(_FIRST, _FIRST + batch, device=code.device).view(-1, *(1,) * (code.ndim - d - 1))
            if bool((code == own).all()):
                return Whose(d)
    return Whose(owner=code - _FIRST)
