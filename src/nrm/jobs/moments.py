"""Means and variances of any number of samples, one batch at a time, class by class."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Moments:
    """Statistics of some samples, exact to float64: they merge (Chan, Golub, LeVeque), so that no sample is kept.

    ``mean`` and ``squares`` (the sum of squared deviations from the mean) have the shape of one sample's table;
    ``positive`` and ``negative`` count the samples with that sign, ``absolute`` is the sum of absolute values.

    >>> both = Moments.of(torch.tensor([1.0, 2.0])).merge(Moments.of(torch.tensor([6.0])))
    >>> both.count, float(both.mean), float(both.variance())
    (3, 3.0, 7.0)
    """

    count: int
    mean: Tensor
    squares: Tensor
    positive: Tensor
    negative: Tensor
    absolute: Tensor

    @classmethod
    def of(cls, values: Tensor) -> Moments:
        """The moments of a batch, ``(batch, ...)``."""
        wide = values.detach().cpu().double()
        mean = wide.mean(0)
        return cls(
            len(wide), mean, (wide - mean).square_().sum(0), (wide > 0).sum(0), (wide < 0).sum(0), wide.abs().sum(0)
        )

    def merge(self, other: Moments) -> Moments:
        """The moments of both groups of samples together."""
        count = self.count + other.count
        apart = other.mean - self.mean
        return Moments(
            count,
            self.mean + apart * (other.count / count),
            self.squares + other.squares + apart.square() * (self.count * other.count / count),
            self.positive + other.positive,
            self.negative + other.negative,
            self.absolute + other.absolute,
        )

    def variance(self, correction: int = 1) -> Tensor:
        """The variance over samples; 0 where there are not more samples than the correction takes away."""
        return self.squares / max(self.count - correction, 1)


class ByClass:
    """Moments of every class of samples. Class -1 is that of samples without one."""

    def __init__(self) -> None:
        self.classes: dict[int, Moments] = {}

    def add(self, values: Tensor, classes: Sequence[int]) -> None:
        """Counts a batch ``(batch, ...)`` in, each sample to its class."""
        for label in sorted(set(classes)):
            mine = [i for i, c in enumerate(classes) if c == label]
            self._count(label, Moments.of(values if len(mine) == len(classes) else values[torch.tensor(mine)]))

    def merge(self, other: ByClass) -> None:
        """Counts what another one has counted in."""
        for label, moments in sorted(other.classes.items()):
            self._count(label, moments)

    def _count(self, label: int, moments: Moments) -> None:
        known = self.classes.get(label)
        self.classes[label] = moments if known is None else known.merge(moments)

    def total(self) -> Moments | None:
        """The moments of all classes together, None before any sample has come."""
        return merged(self.classes[label] for label in sorted(self.classes))


def merged(parts: Iterable[Moments]) -> Moments | None:
    """Several moments as one, in their order."""
    total: Moments | None = None
    for part in parts:
        total = part if total is None else total.merge(part)
    return total
