"""The softmax rule as an operator: its columns, applied in both directions without being written out."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class SoftmaxColumns(NamedTuple):
    """``R(i | j) = x_i (delta_ij - s_i)`` along ``dim``, and the ``remainder`` of every column.

    An entry is ``diagonal_i`` if i = j, else ``other_i``.
    """

    diagonal: Tensor
    other: Tensor
    remainder: Tensor
    dim: int

    @classmethod
    def of(cls, logits: Tensor, s: Tensor, dim: int, absolute: bool = False) -> SoftmaxColumns:
        """The columns of a softmax s of these logits. Entries that are 0 are masked, or as good as."""
        masked = s == 0
        x = (logits - logits.amax(dim, keepdim=True)).masked_fill(masked, 0.0)
        diagonal, other = x * (1 - s), -x * s
        remainder = 1 - diagonal + other - other.sum(dim, keepdim=True)
        if absolute:
            return cls(diagonal.abs(), other.abs(), remainder.abs(), dim)
        return cls(diagonal, other, remainder, dim)

    def pull(self, m: Tensor) -> Tensor:
        """The relevance of the logits, for every message of the stack."""
        return (self.diagonal - self.other) * m + self.other * m.sum(self.dim + 1, keepdim=True)

    def push(self, v: Tensor) -> Tensor:
        """The adjoint."""
        return (self.diagonal - self.other) * v + torch.sum(self.other * v, self.dim + 1, keepdim=True)
