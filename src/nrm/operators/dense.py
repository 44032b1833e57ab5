"""Dense layers, whose weights may be kept in another precision than the one they work in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from nrm.operators.late import loaded
from nrm.operators.maps import LinearMap, WeightChange, along
from nrm.operators.products import product
from nrm.shapes import is_shape

PIECE = 2**18
"""So many weights of another precision are cast at a time."""

WORK = 2**26
"""From so many multiplications on, rows of zeros are looked for before a product."""

FEW = 8
"""Where weights are shapes alone, so many pieces stand for all."""

GLANCE = 4
"""A row that is not 0 in its first so many entries needs no closer look."""


@dataclass(frozen=True, eq=False)
class Dense(LinearMap):
    """``y = x W^T`` on the last axis, as ``torch.nn.functional.linear`` has it: ``Dense(x.shape, weight)``.

    Weights of a lower precision than that of x, those of a bfloat16 model, stay as they are: they are cast a piece at a
    time where they are used, and dropped, so that a large model is never there twice.

    >>> half = torch.ones(3, 2, dtype=torch.bfloat16)
    >>> Dense(torch.Size([2]), half, torch.float32).apply(torch.tensor([[0.1, 0.2]])).dtype
    torch.float32
    """

    inside: torch.Size
    """The shape of x, batch included."""
    weight: Tensor
    """The weights, (out, in), as they are kept."""
    dtype: torch.dtype | None = None
    """The precision of x, if the weights are kept in another one."""

    @property
    def outside(self) -> torch.Size:  # type: ignore[override]
        """The shape of y."""
        return torch.Size((*self.inside[:-1], self.weight.shape[0]))

    @property
    def flops(self) -> float:
        return 2.0 * self.outside.numel() * self.weight.shape[1]

    @property
    def full(self) -> Tensor:
        """All weights in the precision of x; those that are kept in another one are cast for this use alone."""
        return self.weight if self.dtype is None else self.weight.to(self.dtype)

    def apply(self, x: Tensor) -> Tensor:
        if self.dtype is None:
            return product(x, self.weight.T)
        y = x.new_empty(*x.shape[:-1], self.weight.shape[0])
        for rows, piece in self._pieces():
            y[..., rows] = product(x, piece.T)
        return y

    def transpose(self, y: Tensor) -> Tensor:
        if y.numel() * self.weight.shape[1] >= WORK and y.ndim > 2:
            return self._transpose_live(y)
        return product(y, self.weight) if self.dtype is None else self._transpose_cast(y)

    def _transpose_live(self, y: Tensor) -> Tensor:
        """Only where y is not 0: nothing that a text predicts at a position comes from positions behind it."""
        flat = y.reshape(-1, y.shape[-1])
        few = 8 * int(torch.count_nonzero(flat[:, :GLANCE].any(1))) <= 7 * len(flat)
        live = flat.any(1).nonzero()[:, 0] if few else flat
        given = flat.index_select(0, live) if few else flat
        found = product(given, self.weight) if self.dtype is None else self._transpose_cast(given)
        if few:
            found = found.new_zeros(len(flat), found.shape[1]).index_copy_(0, live, found)
        return found.view(*y.shape[:-1], -1)

    def _transpose_cast(self, y: Tensor) -> Tensor:
        flat = y.reshape(-1, self.weight.shape[0])
        x = y.new_zeros(flat.shape[0], self.weight.shape[1])
        for rows, piece in self._pieces():
            x += product(flat[:, rows], piece)
        return x.view(*y.shape[:-1], self.weight.shape[1])

    def _pieces(self) -> Iterator[tuple[slice, Tensor]]:
        """Some rows of the weights at a time, cast."""
        weight = loaded(self.weight)
        many, count = max(1, PIECE // max(1, weight.shape[1])), weight.shape[0]
        if is_shape(weight) and many < count:  # one cast is like the next, in the same place
            first = weight[:many].to(self.dtype)
            for begin in range(0, count, -(-count // FEW)):
                rows = slice(begin, min(count, begin + -(-count // FEW)))
                yield rows, first[:1].expand(rows.stop - rows.start, -1)
            return
        for begin in range(0, count, many):
            rows = slice(begin, begin + many)
            yield rows, weight[rows].to(self.dtype)

    def bound(self, x: Tensor) -> Tensor:
        lengths: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        rows: Tensor = torch.linalg.vector_norm(self.weight, dim=1, dtype=self.dtype)
        return lengths * rows  # Cauchy and Schwarz

    def reweight(self, change: WeightChange) -> Dense:
        return Dense(self.inside, change(self.full))

    def rows(self, scale: Tensor) -> Tensor | None:
        return along(scale, 1, self.weight)

    def support(self) -> Dense:
        one = torch.ones((), dtype=self.dtype or self.weight.dtype, device=self.weight.device)
        return FlatDense(self.inside, one.expand(self.weight.shape))


@dataclass(frozen=True, eq=False)
class FlatDense(Dense):
    """A dense layer whose weights are one number: inputs are summed, and every output has the sum.

    Its weights are an expanded number, which takes no memory, and nothing is multiplied with them.
    """

    def apply(self, x: Tensor) -> Tensor:
        return self._summed(x, self.weight.shape[0])

    def transpose(self, y: Tensor) -> Tensor:
        return self._summed(y, self.weight.shape[1])

    def reweight(self, change: WeightChange) -> FlatDense:
        return FlatDense(self.inside, change(self._number).expand(self.weight.shape))

    @property
    def nonnegative(self) -> bool:
        return float(self._number) >= 0

    @property
    def flops(self) -> float:
        return float(self.inside.numel() + self.outside.numel())

    def _summed(self, x: Tensor, copies: int) -> Tensor:
        total = x.sum(-1, keepdim=True) * self._number
        return total.expand(*x.shape[:-1], copies).contiguous()

    @property
    def _number(self) -> Tensor:
        return self.weight[0, 0] if self.weight.numel() else self.weight.new_ones(())
