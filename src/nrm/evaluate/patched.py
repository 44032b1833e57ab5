"""What patching finds: how much of a difference comes back with a circuit, with circuits of every size, with a node."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nrm.errors import QuestionError
from nrm.evaluate.statistics import Correlation
from nrm.tables import Results, Tabled

SIZES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""The shares of all edges at which the MIB benchmark's circuit track judges."""


def area(sizes: Sequence[float], heights: Sequence[float], log: bool = False) -> float:
    """The area under a curve by trapezoids, over a linear or logarithmic axis; of the latter, over its length.

    >>> area([0.5, 1.0], [1.0, 0.0]), round(area([0.01, 0.1, 1.0], [1.0, 0.0, 0.0], log=True), 6)
    (0.25, 0.25)
    """
    x = torch.tensor(sizes, dtype=torch.float64)
    x = x.log() / math.log(max(sizes) / min(sizes)) if log else x
    return float(torch.trapezoid(torch.tensor(heights, dtype=torch.float64), x))


@dataclass(frozen=True, eq=False)
class Patched(Tabled):
    """What the network computes with a circuit alone, for every sample.

    ``values`` are the explained outputs with everything else as it is outside, ``clean`` and ``corrupted`` those with
    everything and with nothing inside. ``masses`` are the relevances of the walks inside, which predict ``shares``.
    """

    values: Tensor
    clean: Tensor
    corrupted: Tensor
    masses: Tensor
    size: int
    outside: str = "reference"

    @property
    def shares(self) -> Tensor:
        """How much of its difference comes back in every sample, ``(samples,)``."""
        return (self.values - self.corrupted) / (self.clean - self.corrupted)

    @property
    def f(self) -> float:
        """How much of the mean difference comes back: ``(circuit - corrupted) / (clean - corrupted)``."""
        return float((self.values - self.corrupted).sum() / (self.clean - self.corrupted).sum())

    @property
    def mass(self) -> float:
        """The predicted ``f``: the mass inside, as a share of the mean difference."""
        gap = self.clean - self.corrupted
        return float((self.masses * gap).sum() / gap.sum())

    def table(self) -> Results:
        """A row for every sample."""
        columns = {"value": self.values, "clean": self.clean, "corrupted": self.corrupted, "share": self.shares,
                   "mass": self.masses}  # fmt: skip
        return Results(columns, dict.fromkeys(columns, ("sample",)))

    def __repr__(self) -> str:
        return (
            f"{self.size} edges bring back {self.f:.4f} of the difference (predicted {self.mass:.4f}), "
            f"everything else from {_FROM[self.outside]}; {len(self.values)} samples"
        )


_FROM = {"reference": "the reference", "zero": "zero", "mean": "the mean"}


@dataclass(frozen=True, eq=False)
class CircuitCurve(Tabled):
    """What comes back with circuits of growing size, each patched on the same inputs.

    ``sizes`` are shares of all edges. ``cpr`` is the area under f, ``cmd`` that of ``|1 - f|``, both over a linear axis
    as the MIB benchmark has them; half of that axis are circuits of more than 50 %. ``log_cmd`` is ``cmd`` over a
    logarithmic axis, as a share of its length.
    """

    circuits: tuple[Patched, ...]
    sizes: tuple[float, ...]

    @classmethod
    def of(cls, circuits: Sequence[Patched], possible: int) -> CircuitCurve:
        """The curve of some patched circuits of a network with so many edges, the smallest first."""
        order = sorted(circuits, key=lambda c: c.size)
        return cls(tuple(order), tuple(c.size / possible for c in order))

    @property
    def f(self) -> tuple[float, ...]:
        """How much of the mean difference comes back at every size."""
        return tuple(c.f for c in self.circuits)

    @property
    def mass(self) -> tuple[float, ...]:
        """The predicted mass at every size."""
        return tuple(c.mass for c in self.circuits)

    @property
    def cpr(self) -> float:
        """The area under f; above 1 where circuits leave out what argues against the difference."""
        return area(self._spread, self.f)

    @property
    def cmd(self) -> float:
        """The area of ``|1 - f|``: 0 where circuits of all sizes bring back the whole difference, and no more."""
        return area(self._spread, [abs(1 - f) for f in self.f])

    @property
    def log_cmd(self) -> float:
        """The area of ``|1 - f|`` over a logarithmic axis, so that small circuits count."""
        return area(self._spread, [abs(1 - f) for f in self.f], log=True)

    @property
    def _spread(self) -> tuple[float, ...]:
        if len(set(self.sizes)) < 2:
            raise QuestionError("an area needs circuits of two sizes", got=f"sizes {', '.join(map(str, self.sizes))}")
        return self.sizes

    def table(self) -> Results:
        """A row for every size."""
        columns: dict[str, Tensor] = {
            "size": torch.tensor(self.sizes), "f": torch.tensor(self.f), "mass": torch.tensor(self.mass)
        }  # fmt: skip
        return Results(columns, dict.fromkeys(columns, ("circuit",)))

    def __len__(self) -> int:
        return len(self.circuits)

    def __repr__(self) -> str:
        lines = ["  edges        %       f  predicted"]
        for c, size in zip(self.circuits, self.sizes, strict=True):
            lines.append(f"{c.size:7d}  {100 * size:7.3g}  {c.f:6.3f}  {c.mass:9.3f}")
        if len(set(self.sizes)) > 1:
            lines.append(f"CPR {self.cpr:.3f}, CMD {self.cmd:.3f}, log-CMD {self.log_cmd:.3f}")
        return "\n".join(lines)


@dataclass(frozen=True, eq=False)
class PatchedNodes(Tabled):
    """What single nodes do: the share of the mean difference that is lost (or comes back) with each of them.

    ``relevance`` is the share of each node in the measure, which predicts it.
    """

    nodes: tuple[str, ...]
    effect: Tensor
    relevance: Tensor
    direction: str

    @property
    def correlation(self) -> float:
        """The Pearson correlation of relevance and effect over nodes."""
        total = Correlation()
        total.update(self.effect[None], self.relevance[None])
        return float(total.value[0])

    @property
    def slope(self) -> float:
        """The slope of the effects' regression on the relevances, through the origin."""
        return float((self.effect * self.relevance).sum() / self.relevance.square().sum())

    def table(self) -> Results:
        """A row for every node."""
        columns = {"effect": self.effect, "relevance": self.relevance}
        return Results(columns, dict.fromkeys(columns, ("node",)), labels={"node": self.nodes})

    def __getitem__(self, node: str) -> float:
        if node not in self.nodes:
            raise QuestionError("no node of this name was patched", got=repr(node), expected=", ".join(self.nodes[:4]))
        return float(self.effect[self.nodes.index(node)])

    def __len__(self) -> int:
        return len(self.nodes)

    def __repr__(self) -> str:
        what = "lost without" if self.direction == "noise" else "back with"
        order = self.effect.abs().argsort(descending=True, stable=True).tolist()[:8]
        lines = [f"{len(self)} nodes, the share of the difference that is {what} each (predicted)"]
        lines += [f"  {self.effect[n]:8.4f} ({self.relevance[n]:8.4f})  {self.nodes[n]}" for n in order]
        return "\n".join(lines)


__all__ = ["SIZES", "CircuitCurve", "Patched", "PatchedNodes", "area"]
