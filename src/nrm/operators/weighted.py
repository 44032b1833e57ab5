"""Sums over axes in which every entry has a weight of its own: lengths, deviations and products, held."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from nrm.operators.maps import Reduce, WeightChange


@dataclass(frozen=True, eq=False)
class WeightedSum(Reduce):
    """A sum over the axes ``dims`` of every entry times its own weight; ``weights`` has the shape of the input.

    >>> import torch
    >>> weights = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> WeightedSum(torch.Size([2, 2]), torch.Size([2]), (1,), weights=weights).apply(torch.ones(1, 2, 2)).tolist()
    [[3.0, 7.0]]
    """

    weights: Tensor | None = None

    @property
    def own(self) -> Tensor:
        """The weights."""
        assert self.weights is not None, "a weighted sum has weights"
        return self.weights

    def apply(self, x: Tensor) -> Tensor:
        return super().apply(x * self.own)

    def transpose(self, y: Tensor) -> Tensor:
        return super().transpose(y) * self.own

    def reweight(self, change: WeightChange) -> WeightedSum:
        return replace(self, weight=1.0, weights=change(self.own * self.weight))

    @property
    def nonnegative(self) -> bool:
        return False
