"""Single columns of linear maps: which inputs a neuron reads, and with which weights.

Sums over columns need no column by itself; a maximum does. A **field** sees a map as a table of windows times a table
of rows: output neuron o reads the inputs ``taps(p)`` with the weights ``rows(c)``, where ``(p, c) = locate(o)``.
Neurons of one position share their window, neurons of one channel their row, so both tables are small.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from nrm.errors import RuleError
from nrm.operators.convolution import Convolution
from nrm.operators.dense import Dense
from nrm.operators.maps import (
    Centering,
    Composed,
    Function,
    GroupSum,
    LinearMap,
    Matmul,
    Reduce,
    WeightChange,
)
from nrm.operators.movement import Gather, Masking, Place, Scatter
from nrm.operators.weighted import WeightedSum


class Field(ABC):
    """The columns of a linear map. Indices are flat; -1 is a tap outside the tensor."""

    width: int
    """How many inputs a column has."""
    sparse: bool = False
    """Whether a weight of 0 means that there is no connection."""

    @abstractmethod
    def locate(self, o: Tensor) -> tuple[Tensor, Tensor]:
        """The window and the row of output neurons."""

    @abstractmethod
    def taps(self, p: Tensor) -> Tensor:
        """The inputs of windows: ``(len(p), width)``."""

    @abstractmethod
    def rows(self, c: Tensor) -> Tensor:
        """The weights of rows: ``(len(c), width)``."""


@dataclass(frozen=True, eq=False)
class WeightRows(LinearMap):
    """Some rows of weights in the place of a map, so that a rule can change them; it is never applied."""

    inside: torch.Size
    outside: torch.Size
    weight: Tensor
    sparse: bool

    def apply(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def transpose(self, y: Tensor) -> Tensor:
        raise NotImplementedError

    def reweight(self, change: WeightChange) -> WeightRows:
        changed = change(self.weight)
        if self.sparse:
            changed = torch.where(self.weight != 0, changed, torch.zeros_like(changed))
        return WeightRows(self.inside, self.outside, changed, self.sparse)


def field_of(map: LinearMap, dtype: torch.dtype) -> Field:
    """The columns of a map as it was captured; it works in this precision."""
    if isinstance(map, Convolution):
        return _Convolved(map)
    if isinstance(map, Dense):
        return _Shared(map.weight, dtype=map.dtype)
    if isinstance(map, Matmul):
        return _Multiplied(map)
    if isinstance(map, WeightedSum):
        return _Weighted(map)
    if isinstance(map, Reduce):
        return _Reduced(map)
    if isinstance(map, Centering):
        return _Centred(map)
    if isinstance(map, GroupSum):
        return _GroupTotal(map)
    if isinstance(map, Composed):
        return _MovedMap(map.first, field_of(map.then, dtype))
    if isinstance(map, Function):
        try:
            return _Shared(map.window().T.contiguous(), sparse=True)
        except RuleError:  # no such window: the columns are found one by one
            return _Probed(map, dtype)
    return _Probed(map, dtype)


def pick(values: Tensor, shape: torch.Size, neurons: Tensor) -> Tensor:
    """The entries of a tensor that broadcasts to a shape, at flat indices of that shape."""
    if values.shape == shape and values.is_contiguous():
        return values.view(-1)[neurons]
    if not shape:
        return values.expand(neurons.shape)
    return values.expand(shape)[torch.unravel_index(neurons, shape)]


def sources(move: LinearMap | None, o: Tensor) -> list[Tensor]:
    """The input entries that reach output entries by data movement, -1 where none does.

    One list for copies; a sum at places brings several entries together, in rounds of one each.
    """
    return move.rounds(o) if isinstance(move, Scatter) else [_source(move, o)]


def _source(move: LinearMap | None, o: Tensor) -> Tensor:
    if move is None:
        return o
    if isinstance(move, Masking):
        chosen = pick(move.mask, move.outside, o.clamp(min=0))
        return torch.where(chosen != move.turned, o, -1)
    if isinstance(move, Gather):
        return torch.where(o < 0, -1, move.index[o.clamp(min=0)])
    if isinstance(move, Place):
        return torch.where(o < 0, -1, _unplaced(move, o.clamp(min=0)))
    view = move.apply(torch.empty((1, *move.inside), device="meta"))[0]  # a view: its strides tell what lies where
    found = torch.full_like(o, int(view.storage_offset()))
    for at, stride in zip(_unravel(o.clamp(min=0), move.outside), view.stride(), strict=True):
        found += at * stride
    return torch.where(o < 0, -1, found)


def _unplaced(move: Place, o: Tensor) -> Tensor:
    items: list[Any] = list(move.index)
    missing = len(move.outside) - sum(i is not Ellipsis for i in items)
    where = items.index(Ellipsis) if Ellipsis in items else len(items)
    items[where : where + 1] = [slice(None)] * missing
    inner: list[Tensor] = []
    valid = torch.ones_like(o, dtype=torch.bool)
    for at, n, item in zip(_unravel(o, move.outside), move.outside, items, strict=True):
        if isinstance(item, slice):
            span = range(n)[item]
            valid &= (at >= span.start) & (at < span.stop) & ((at - span.start) % span.step == 0)
            inner.append((at - span.start) // span.step)
        else:
            valid &= at == item % n
    return torch.where(valid, _ravel(inner, move.inside, o), -1)


def _unravel(o: Tensor, shape: tuple[int, ...]) -> list[Tensor]:
    """The index along every axis; an axis of -1 takes what is left."""
    found: list[Tensor] = []
    for n in reversed(shape):
        found.append(o if n == -1 else o % n)
        o = o // n
    return found[::-1]


def _ravel(at: list[Tensor], shape: tuple[int, ...], like: Tensor) -> Tensor:
    total = torch.zeros_like(like)
    for a, n in zip(at, shape, strict=True):
        total = total * n + a
    return total


@dataclass(frozen=True, eq=False)
class _Shared(Field):
    """One matrix ``(outputs, inputs)`` on the trailing entries, the same for all leading ones."""

    weight: Tensor
    sparse: bool = False
    dtype: torch.dtype | None = None

    @property
    def width(self) -> int:  # type: ignore[override]
        return self.weight.shape[1]

    def locate(self, o: Tensor) -> tuple[Tensor, Tensor]:
        return o // self.weight.shape[0], o % self.weight.shape[0]

    def taps(self, p: Tensor) -> Tensor:
        return p[:, None] * self.width + torch.arange(self.width, device=p.device)

    def rows(self, c: Tensor) -> Tensor:
        rows = self.weight.index_select(0, c)
        return rows if self.dtype is None else rows.to(self.dtype)


@dataclass(frozen=True, eq=False)
class _Convolved(Field):
    """A convolution: a window per sample, group and position, a row per output channel."""

    map: Convolution

    @property
    def width(self) -> int:  # type: ignore[override]
        return self._inputs * math.prod(self.map.weight.shape[2:])

    @property
    def _space(self) -> int:
        return self.map.weight.ndim - 2

    @property
    def _inputs(self) -> int:
        return self.map.inside[-self._space - 1] // self.map.groups

    @property
    def _windows(self) -> tuple[int, ...]:
        return (self.map.outside[: -self._space - 1].numel(), self.map.groups, *self.map.outside[-self._space :])

    @cached_property
    def _weight(self) -> Tensor:
        weight, groups = self.map.weight, self.map.groups
        if not self.map.transposed:
            return weight.reshape(weight.shape[0], -1)
        split = weight.reshape(groups, self._inputs, *weight.shape[1:]).transpose(1, 2)
        return split.reshape(groups * weight.shape[1], -1)

    def locate(self, o: Tensor) -> tuple[Tensor, Tensor]:
        channels = self.map.outside[-self._space - 1]
        sample, c, *at = _unravel(o, (-1, channels, *self.map.outside[-self._space :]))
        return _ravel([sample, c // (channels // self.map.groups), *at], self._windows, o), c

    def taps(self, p: Tensor) -> Tensor:
        sample, group, *at = _unravel(p, self._windows)
        first = (sample * self.map.groups + group) * self._inputs
        index = first[:, None] + torch.arange(self._inputs, device=p.device)
        outside = torch.zeros((len(p), *(1,) * (self._space + 1)), dtype=torch.bool, device=p.device)
        for d, where in enumerate(at):
            table = self._line(d, p.device)[where]
            table = table.reshape(len(p), *(1,) * (d + 1), -1)
            index = index[..., None] * self.map.inside[d - self._space] + table.clamp(min=0)
            outside = outside | (table < 0).reshape(len(p), *(1,) * (d + 1), -1, *(1,) * (self._space - d - 1))
        return index.masked_fill_(outside, -1).flatten(1)

    def _line(self, d: int, device: torch.device) -> Tensor:
        """Along one axis: the entry that each output position reads for each offset of the kernel."""
        map, size = self.map, self.map.inside[d - self._space]
        o = torch.arange(map.outside[d - self._space], device=device)[:, None]
        k = torch.arange(map.weight.shape[2 + d], device=device) * map.dilation[d]
        if map.transposed:
            i = o + map.padding[d] - k
            valid = i % map.stride[d] == 0
            i = i // map.stride[d]
        else:
            i = o * map.stride[d] - map.padding[d] + k
            valid = torch.ones_like(i, dtype=torch.bool)
        return torch.where(valid & (i >= 0) & (i < size), i, -1)

    def rows(self, c: Tensor) -> Tensor:
        return self._weight.index_select(0, c)


@dataclass(frozen=True, eq=False)
class _Multiplied(Field):
    """A product with a constant matrix, or with one matrix for each entry of the leading axes."""

    map: Matmul

    @property
    def _weight(self) -> Tensor:
        """``(..., outputs, inputs)``."""
        return self.map.constant if self.map.left else self.map.constant.mT

    @property
    def width(self) -> int:  # type: ignore[override]
        return self._weight.shape[-1]

    @property
    def _vector(self) -> bool:
        return len(self.map.inside) == 1

    @property
    def _lead(self) -> torch.Size:
        """The leading axes of the product, those of both factors broadcast."""
        shapes = [torch.empty(s, device="meta") for s in (self.map.inside[:-2], self._weight.shape[:-2])]
        return (shapes[0] + shapes[1]).shape

    @property
    def _vectors(self) -> int:
        """How many vectors each matrix is multiplied with."""
        return 1 if self._vector else self.map.inside[-1 if self.map.left else -2]

    def locate(self, o: Tensor) -> tuple[Tensor, Tensor]:
        outputs, many = self._weight.shape[-2], self._vectors
        if self.map.left:
            lead, c, v = _unravel(o, (-1, outputs, many))
        else:
            lead, v, c = _unravel(o, (-1, many, outputs))
        return lead * many + v, self._narrow(lead, self._weight.shape[:-2]) * outputs + c

    def taps(self, p: Tensor) -> Tensor:
        lead, v = p // self._vectors, p % self._vectors
        n = torch.arange(self.width, device=p.device)
        base = (self._narrow(lead, self.map.inside[:-2]) * (self.width * self._vectors))[:, None]
        if self.map.left:
            return base + n * self._vectors + v[:, None]
        return base + v[:, None] * self.width + n

    def rows(self, c: Tensor) -> Tensor:
        outputs = self._weight.shape[-2]
        return self._weight.reshape(-1, outputs, self.width)[c // outputs, c % outputs]

    def _narrow(self, lead: Tensor, shape: torch.Size) -> Tensor:
        """The entry of one factor's leading axes that is broadcast to an entry of the product's."""
        wide = _unravel(lead, tuple(self._lead))[len(self._lead) - len(shape) :]
        return _ravel([at % n for at, n in zip(wide, shape, strict=True)], tuple(shape), lead)


@dataclass(frozen=True, eq=False)
class _Reduced(Field):
    """A sum over axes: every column has the same weights."""

    map: Reduce

    @property
    def _kept(self) -> list[int]:
        return [d for d in range(len(self.map.inside)) if d not in self.map.dims]

    @property
    def width(self) -> int:  # type: ignore[override]
        return math.prod(self.map.inside[d] for d in self.map.dims)

    def locate(self, o: Tensor) -> tuple[Tensor, Tensor]:
        return o, torch.zeros_like(o)

    def taps(self, p: Tensor) -> Tensor:
        own = _steps(self.map.inside, self._kept, p)
        inner = torch.arange(self.width, device=p.device)
        return own[:, None] + _steps(self.map.inside, list(self.map.dims), inner)

    def rows(self, c: Tensor) -> Tensor:
        return torch.full((len(c), self.width), self.map.weight, dtype=torch.float64, device=c.device)


@dataclass(frozen=True, eq=False)
class _Weighted(_Reduced):
    """A sum over axes: every column has weights of its own."""

    map: WeightedSum

    def locate(self, o: Tensor) -> tuple[Tensor, Tensor]:
        return o, o

    def rows(self, c: Tensor) -> Tensor:
        return self.map.own.flatten()[self.taps(c)].double() * self.map.weight


def _steps(shape: tuple[int, ...], axes: list[int], index: Tensor) -> Tensor:
    """Where an index along some axes of a tensor lies in its memory."""
    total = torch.zeros_like(index)
    for axis, at in zip(axes, _unravel(index, tuple(shape[a] for a in axes)), strict=True):
        total = total + at * math.prod(shape[axis + 1 :])
    return total


@dataclass(frozen=True, eq=False)
class _GroupWindows(Field):
    """Windows that are groups of entries, which differ along some axes of a view."""

    map: Centering | GroupSum

    @property
    def _groups(self) -> list[int]:
        return [d for d in range(len(self.map.view)) if d not in self.map.dims]

    @property
    def width(self) -> int:  # type: ignore[override]
        return math.prod(self.map.view[d] for d in self.map.dims)

    def taps(self, p: Tensor) -> Tensor:
        own = _steps(self.map.view, self._groups, p)
        inner = torch.arange(self.width, device=p.device)
        return own[:, None] + _steps(self.map.view, list(self.map.dims), inner)

    def _along(self, axes: Sequence[int], o: Tensor) -> Tensor:
        """The place of entries along some axes of the view."""
        at = _unravel(o, self.map.view)
        return _ravel([at[d] for d in axes], tuple(self.map.view[d] for d in axes), o)


@dataclass(frozen=True, eq=False)
class _Centred(_GroupWindows):
    """A normalization: a window per group of entries, a row per neuron."""

    map: Centering

    def locate(self, o: Tensor) -> tuple[Tensor, Tensor]:
        return self._along(self._groups, o), o

    def rows(self, c: Tensor) -> Tensor:
        rows = self.map.other.reshape(-1)[c][:, None].repeat(1, self.width)
        rows[torch.arange(len(c), device=c.device), self._along(self.map.dims, c)] = self.map.diagonal.reshape(-1)[c]
        return rows


@dataclass(frozen=True, eq=False)
class _GroupTotal(_GroupWindows):
    """Sums of groups, given to every entry of the group: a window per group, one row of ones."""

    map: GroupSum

    def locate(self, o: Tensor) -> tuple[Tensor, Tensor]:
        return self._along(self._groups, o), torch.zeros_like(o)

    def rows(self, c: Tensor) -> Tensor:
        return torch.ones(len(c), self.width, dtype=torch.float64, device=c.device)


@dataclass(frozen=True, eq=False)
class _MovedMap(Field):
    """A map that reads a moved tensor."""

    move: LinearMap
    inner: Field

    @property
    def width(self) -> int:  # type: ignore[override]
        return self.inner.width

    def locate(self, o: Tensor) -> tuple[Tensor, Tensor]:
        return self.inner.locate(o)

    def taps(self, p: Tensor) -> Tensor:
        return _source(self.move, self.inner.taps(p))

    def rows(self, c: Tensor) -> Tensor:
        return self.inner.rows(c)


@dataclass(frozen=True, eq=False)
class _Probed(Field):
    """A map that is known as a whole only: its columns are the transposes of unit vectors, over all inputs."""

    map: LinearMap
    dtype: torch.dtype
    sparse: bool = True

    @property
    def width(self) -> int:  # type: ignore[override]
        return self.map.inside.numel()

    def locate(self, o: Tensor) -> tuple[Tensor, Tensor]:
        return torch.zeros_like(o), o

    def taps(self, p: Tensor) -> Tensor:
        return torch.arange(self.width, device=p.device).expand(len(p), -1)

    def rows(self, c: Tensor) -> Tensor:
        if not len(c):
            return torch.zeros(0, self.width, dtype=self.dtype, device=c.device)
        units = torch.zeros(len(c), self.map.outside.numel(), dtype=self.dtype, device=c.device)
        units[torch.arange(len(c), device=c.device), c] = 1
        return self.map.transpose(units.reshape(len(c), *self.map.outside)).reshape(len(c), -1)
