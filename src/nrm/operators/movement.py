"""Data movement as linear maps with entries 0 and 1: views, permutations, slices, placements, copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from nrm.operators.maps import LinearMap, WeightChange


class Movement(LinearMap):
    """A map in which every output entry is a copy of one input entry (or of none)."""

    def reweight(self, change: WeightChange) -> LinearMap:
        return self

    @property
    def nonnegative(self) -> bool:
        return True


@dataclass(frozen=True, eq=False)
class Reshape(Movement):
    """All entries in their order, seen with another shape."""

    inside: torch.Size
    outside: torch.Size

    def apply(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], *self.outside)

    def transpose(self, y: Tensor) -> Tensor:
        return y.reshape(y.shape[0], *self.inside)


@dataclass(frozen=True, eq=False)
class Permute(Movement):
    """The axes in another order: output axis i is input axis ``dims[i]``."""

    inside: torch.Size
    dims: tuple[int, ...]

    @property
    def outside(self) -> torch.Size:  # type: ignore[override]
        return torch.Size([self.inside[d] for d in self.dims])

    def apply(self, x: Tensor) -> Tensor:
        return x.permute(0, *(d + 1 for d in self.dims))

    def transpose(self, y: Tensor) -> Tensor:
        back = sorted(range(len(self.dims)), key=self.dims.__getitem__)
        return y.permute(0, *(d + 1 for d in back))


@dataclass(frozen=True, eq=False)
class Slice(Movement):
    """``x[index]`` with basic indexing (integers, slices, None, Ellipsis)."""

    inside: torch.Size
    outside: torch.Size
    index: tuple[Any, ...]

    def apply(self, x: Tensor) -> Tensor:
        return x[(slice(None), *self.index)]

    def transpose(self, y: Tensor) -> Tensor:
        x = y.new_zeros(y.shape[0], *self.inside)
        x[(slice(None), *self.index)] = y
        return x


@dataclass(frozen=True, eq=False)
class Place(Movement):
    """The tensor put at ``index`` of a larger one that is 0 elsewhere: a piece of a concatenation."""

    inside: torch.Size
    outside: torch.Size
    index: tuple[Any, ...]

    def apply(self, x: Tensor) -> Tensor:
        return Slice(self.outside, self.inside, self.index).transpose(x)

    def transpose(self, y: Tensor) -> Tensor:
        return y[(slice(None), *self.index)]


def place_all(pieces: Sequence[tuple[Place, Tensor]]) -> Tensor:
    """The sum of several tensors, each put at its place of the same larger one, in one tensor of that size."""
    stack = max(piece.shape[0] for _, piece in pieces)
    whole = pieces[0][1].new_zeros(stack, *pieces[0][0].outside)
    for place, piece in pieces:
        whole[(slice(None), *place.index)].add_(piece)
    return whole


@dataclass(frozen=True, eq=False)
class Expand(Movement):
    """Broadcasting: copies along axes of size 1 and along new leading axes."""

    inside: torch.Size
    outside: torch.Size

    def apply(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], *self._aligned).expand(x.shape[0], *self.outside)

    def transpose(self, y: Tensor) -> Tensor:
        return y.sum_to_size(y.shape[0], *self._aligned).reshape(y.shape[0], *self.inside)

    @property
    def _aligned(self) -> tuple[int, ...]:
        return (1,) * (len(self.outside) - len(self.inside)) + tuple(self.inside)


@dataclass(frozen=True, eq=False)
class Masking(Movement):
    """Every entry stays where it is, or is dropped where ``mask`` (which broadcasts) is not true.

    ``turned`` around, it is dropped where the mask is true: both sides of a choice hold one mask.
    """

    inside: torch.Size
    mask: Tensor
    turned: bool = False

    @property
    def outside(self) -> torch.Size:  # type: ignore[override]
        return self.inside

    def apply(self, x: Tensor) -> Tensor:
        return x.masked_fill(self.mask if self.turned else ~self.mask, 0.0)

    def transpose(self, y: Tensor) -> Tensor:
        return self.apply(y)


@dataclass(frozen=True, eq=False)
class Gather(Movement):
    """Any movement at all: output entry j is input entry ``index[j]`` (flat), or nothing where it is -1."""

    inside: torch.Size
    outside: torch.Size
    index: Tensor

    def keeps(self, inner: int, outer: int) -> bool:
        """Whether every entry keeps its place along an axis, ``inner`` before and ``outer`` after the movement."""
        if (inner, outer) not in self._kept:
            places = []
            for shape, axis, flat in (
                (self.inside, inner, self.index),
                (self.outside, outer, torch.arange(self.outside.numel(), device=self.index.device)),
            ):
                stride, size = max(shape[axis + 1 :].numel(), 1), max(shape[axis], 1)  # of an empty tensor, too
                places.append(flat // stride % size)
            self._kept[inner, outer] = bool(((places[0] == places[1]) | (self.index < 0)).all())
        return self._kept[inner, outer]

    @cached_property
    def _kept(self) -> dict[tuple[int, int], bool]:
        return {}

    @cached_property
    def _holes(self) -> bool:
        return bool((self.index < 0).any())

    def apply(self, x: Tensor) -> Tensor:
        if not self.inside.numel():  # there is no entry that a hole could point at meanwhile
            return x.new_zeros(x.shape[0], *self.outside)
        index = self.index.clamp(min=0) if self._holes else self.index
        taken = x.reshape(x.shape[0], self.inside.numel()).index_select(1, index)
        if self._holes:
            taken = taken * (self.index >= 0)
        return taken.reshape(x.shape[0], *self.outside)

    def transpose(self, y: Tensor) -> Tensor:
        if not self.inside.numel():
            return y.new_zeros(y.shape[0], *self.inside)
        flat, index = y.reshape(y.shape[0], self.outside.numel()), self.index
        if self._holes:
            flat, index = flat * (index >= 0), index.clamp(min=0)
        x = flat.new_zeros(y.shape[0], self.inside.numel())
        return x.scatter_add_(1, index.expand_as(flat), flat).reshape(y.shape[0], *self.inside)


@dataclass(frozen=True, eq=False)
class Scatter(LinearMap):
    """A sum at given places: input entry i is added, times ``weight``, to output entry ``index[i]`` (flat).

    The messages of a graph's edges summed at their target nodes; with weight 1, the transpose of a :class:`Gather`.

    >>> along = Scatter(torch.Size([3]), torch.Size([2]), torch.tensor([0, 1, 0]))
    >>> along.apply(torch.tensor([[1.0, 2.0, 4.0]]))
    tensor([[5., 2.]])
    """

    inside: torch.Size
    outside: torch.Size
    index: Tensor
    weight: float = 1.0

    @cached_property
    def _copies(self) -> Gather:
        return Gather(self.outside, self.inside, self.index)

    def keeps(self, inner: int, outer: int) -> bool:
        """Whether every entry keeps its place along an axis, ``inner`` before and ``outer`` after the sum."""
        return self._copies.keeps(outer, inner)

    def apply(self, x: Tensor) -> Tensor:
        summed = self._copies.transpose(x)
        return summed if self.weight == 1.0 else summed * self.weight

    def transpose(self, y: Tensor) -> Tensor:
        copied = self._copies.apply(y)
        return copied if self.weight == 1.0 else copied * self.weight

    def reweight(self, change: WeightChange) -> Scatter:
        weight = float(change(torch.tensor(self.weight, dtype=torch.float64)))
        return Scatter(self.inside, self.outside, self.index, weight)

    @property
    def nonnegative(self) -> bool:
        return self.weight >= 0

    def rounds(self, entries: Tensor) -> list[Tensor]:
        """The input entries that are added up in output entries, in rounds of one each; -1 where there are no more."""
        order = self.index.argsort(stable=True)
        count = torch.bincount(self.index, minlength=self.outside.numel())
        begin, mine = (count.cumsum(0) - count)[entries], count[entries]
        most = int(mine.amax()) if len(entries) else 0
        last = len(order) - 1
        return [torch.where(mine > k, order[(begin + k).clamp(max=last)], -1) for k in range(most)]
