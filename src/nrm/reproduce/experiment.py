"""An experiment: units of work that are kept, and what is made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nrm.reproduce.store import ExperimentFolder, Unit
from nrm.reproduce.tables import TableRow


@dataclass(frozen=True)
class Setting:
    """What the user asked for. ``embedded`` uses small networks and the digits of scikit-learn instead of data.

    ``third`` is the number of samples for tables of third order, which are large; ``tasks`` are names of tasks, where
    an experiment has several.
    """

    data: Path | None
    samples: int | None
    embedded: bool
    store: ExperimentFolder
    third: int | None = None
    tasks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """Rows of the results, facts about the run, and figures by the name of their file."""

    rows: list[TableRow]
    facts: dict[str, Any] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)


UnitPlan = tuple[Sequence[Unit], Callable[[], Outcome]]
"""Units of work, and what is made of them once all are finished."""
Tracking = Callable[[Sequence[Unit]], Iterator[Unit]]


@dataclass(frozen=True)
class Experiment:
    """One experiment of the paper: its name, title, the figures it corresponds to, and its plan."""

    name: str
    title: str
    paper: str
    plan: Callable[[Setting], UnitPlan]


def ranges(count: int, size: int) -> list[range]:
    """Samples in batches."""
    return [range(begin, min(count, begin + size)) for begin in range(0, count, size)]
