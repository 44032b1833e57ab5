"""What flows are searched in: one measure, or several with a weight each, as a difference of two."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from nrm.questions import Base, Stop
from nrm.steps import Network


@dataclass(frozen=True, eq=False)
class Side:
    """One measure: its network and base sweep, and the stops of the question there, from the output down.

    ``samples`` are the places of the question's samples in the measure's batch, ``weights`` what their relevances count
    (None: as they are). All sides have the same stops and as many samples.
    """

    network: Network
    base: Base
    stops: tuple[Stop, ...]
    samples: Sequence[int]
    weights: Tensor | None = None

    @property
    def batch(self) -> int:
        """The samples of the measure's batch."""
        return self.stops[0].frame.batch

    def weighed(self, table: Tensor, absolute: bool = False) -> Tensor:
        """``(stack, batch, *axes)`` as the question's samples, ``(stack, samples, *axes)``, times the weights."""
        mine = table if list(self.samples) == list(range(self.batch)) else table[:, list(self.samples)]
        if self.weights is None:
            return mine
        weights = self.weights.abs() if absolute else self.weights
        return mine * weights.to(mine).view(-1, *(1,) * (mine.ndim - 2))


def total_of(tables: Iterable[Tensor]) -> Tensor:
    """The sum of what all sides have to say."""
    first, *rest = tables
    return sum(rest, first)
