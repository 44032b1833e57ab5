"""How well a model does a task, before anybody looks for its circuit."""

from __future__ import annotations

from dataclasses import dataclass

ENOUGH = 0.75
"""The accuracy below which a task is taken as failed."""


@dataclass(frozen=True)
class Accuracy:
    """The share of pairs that a model gets right, and its mean log-odds on clean and on corrupted inputs.

    >>> Accuracy(0.9, 70, 5.6, -5.3, "ioi.csv")
    accuracy 0.90 on 70 pairs of ioi.csv, mean log-odds +5.60 clean, -5.30 corrupted
    """

    share: float
    count: int
    clean: float
    corrupted: float
    name: str = ""

    @property
    def is_enough(self) -> bool:
        """Whether the model does the task, so that there is something to be explained."""
        return self.share >= ENOUGH

    def __float__(self) -> float:
        return self.share

    def __repr__(self) -> str:
        of = f" of {self.name}" if self.name else ""
        odds = f"mean log-odds {self.clean:+.2f} clean, {self.corrupted:+.2f} corrupted"
        return f"accuracy {self.share:.2f} on {self.count} pairs{of}, {odds}"
