"""What is kept of many samples: the best of every block, statistics, and one line per sample. Tallies merge."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nrm.jobs.answers import Answers, Failure
from nrm.jobs.leading import Leading
from nrm.jobs.moments import ByClass
from nrm.jobs.top import BestSamples, Top

COLUMNS = ("sample", "label", "target", "prediction", "value", "weight", "error")
"""What is known of every sample; a failed one has only its number and its error."""

RANKS = ("relevance", "activation")

GROUP = 16
"""Shards that are folded into one before groups are."""


KnownBest = dict[tuple[int, str], BestSamples]
"""The best samples of every question by every ranking, as far as a worker has seen."""


@dataclass(frozen=True)
class Limits:
    """How much is kept: ``k`` samples of every block, ``rows`` of a question.

    ``per_class`` says of which questions statistics of every class are kept, ``leading`` of how many blocks of a class
    the sums alone are.
    """

    k: int
    rows: int
    per_class: tuple[bool, ...]
    leading: tuple[int, ...]


@dataclass(eq=False)
class Tally:
    """The samples of one shard, or of several that were merged."""

    limits: Limits
    samples: dict[str, list[Any]] = field(default_factory=lambda: {name: [] for name in COLUMNS})
    best: KnownBest = field(default_factory=dict)
    moments: list[ByClass] = field(default_factory=list)
    leading: dict[int, Leading] = field(default_factory=dict)
    notes: dict[str, int] = field(default_factory=dict)
    known: KnownBest = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.moments = self.moments or [ByClass() for _ in self.limits.per_class]
        self.leading = self.leading or {q: Leading(room) for q, room in enumerate(self.limits.leading) if room}

    def add(self, answers: Answers) -> None:
        """Counts a batch in."""
        numbers = [sample.number for sample in answers.samples]
        labels = [sample.label for sample in answers.samples]
        columns: tuple[list[Any], ...] = (
            numbers, labels, answers.target, answers.prediction, answers.value, answers.weight,
            [None] * len(labels),
        )  # fmt: skip
        for name, values in zip(COLUMNS, columns, strict=True):
            self.samples[name] += values
        classes = [class_of(*pair) for pair in zip(labels, answers.target, strict=True)]
        for number, table in enumerate(answers.tables):
            own = classes if self.limits.per_class[number] else [-1] * len(classes)
            self.moments[number].add(table.relevance, own)
            if number in self.leading:
                self.leading[number].add(numbers, table.relevance, classes)
            samples = np.array(numbers, np.int64)
            self.gather(number, "relevance").add(samples, table.scores, table.places)
            if table.activation is not None:
                self.gather(number, "activation").add(samples, table.activation, table.active)
        for note in answers.notes:
            self.notes[note] = self.notes.get(note, 0) + 1

    @property
    def tops(self) -> dict[tuple[int, str], Top]:
        """The best samples of every question, by relevance and by activation."""
        return {key: best.top() for key, best in self.best.items()}

    def gather(self, question: int, by: str) -> BestSamples:
        """Where the best samples of a question are gathered."""
        key = question, by
        if key not in self.best:
            self.best[key] = BestSamples(self.limits.k, self.limits.rows, self.known.get(key))
        return self.best[key]

    def fail(self, failure: Failure) -> None:
        """Counts a sample in that could not be explained."""
        for name in COLUMNS:
            known = {"sample": failure.number, "error": failure.text}
            self.samples[name].append(known.get(name))
        for leading in self.leading.values():
            leading.skip(failure.number)

    def absorb(self, other: Tally) -> None:
        """Counts in what another one has counted."""
        for name in COLUMNS:
            self.samples[name] += other.samples[name]
        for mine, theirs in zip(self.moments, other.moments, strict=True):
            mine.merge(theirs)
        for question, leading in self.leading.items():
            leading.absorb(other.leading[question])
        for note, count in other.notes.items():
            self.notes[note] = self.notes.get(note, 0) + count
        for key, best in other.best.items():
            self.gather(*key).absorb(best)

    @property
    def errors(self) -> list[tuple[int, str]]:
        """The samples that failed, and why."""
        pairs = zip(self.samples["sample"], self.samples["error"], strict=True)
        return [(number, text) for number, text in pairs if text is not None]

    @property
    def count(self) -> int:
        """How many samples have been explained."""
        return len(self.samples["sample"]) - len(self.errors)


def class_of(label: int | None, target: int | None) -> int:
    """The class that a sample is counted to: its target, its label where there is none, else -1."""
    return target if target is not None and target >= 0 else -1 if label is None else label


def fold(tallies: Iterable[Tally]) -> Tally | None:
    """Several tallies as one, in their order; the best samples do not depend on it, the last bits of means do."""
    whole: Tally | None = None
    for tally in tallies:
        whole = whole or Tally(tally.limits)
        whole.absorb(tally)
    return whole


def fold_shards(tallies: Iterable[Tally]) -> Tally | None:
    """All shards of a job, given in their order, as one: the same groups of shards are folded wherever it is done."""
    groups = (group for _, group in itertools.groupby(enumerate(tallies), lambda pair: pair[0] // GROUP))
    folded = (fold(tally for _, tally in group) for group in groups)
    return fold(tally for tally in folded if tally is not None)
