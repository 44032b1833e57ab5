"""What a search has found: one list per sample, best first, readable as text, as a table and as a sequence."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar, overload

from nrm.errors import QuestionError
from nrm.tables import Records, cell, html_table


def read_count(k: Any, what: str, name: str = "k") -> int:
    """How many of something are wanted."""
    try:
        count = operator.index(k)
    except TypeError:
        count = 0
    if count < 1 or isinstance(k, bool):
        raise QuestionError(f"not a number of {what}", got=f"{name}={k!r}", expected="an integer from 1")
    return count


class Finding(Protocol):
    """One line of a list: its ``str`` is the line, ``record`` the same as columns of a table."""

    def record(self) -> dict[str, Any]: ...


T = TypeVar("T", bound=Finding)


class Found(Records, Sequence[tuple[T, ...]], Generic[T]):
    """One tuple of findings per sample of the measure, best first: ``found[0][3]`` is sample 0's fourth.

    >>> class Line(str):
    ...     def record(self):
    ...         return {"text": str(self)}
    >>> print(Found("lines", [[Line("first"), Line("second")]]))
    lines of sample 0
      1  first
      2  second
    """

    def __init__(self, what: str, samples: Sequence[Sequence[T]], numbers: Sequence[int] | None = None) -> None:
        self._what = what
        self._samples = tuple(tuple(found) for found in samples)
        self._numbers = tuple(range(len(self._samples)) if numbers is None else numbers)

    @overload
    def __getitem__(self, sample: int) -> tuple[T, ...]: ...

    @overload
    def __getitem__(self, sample: slice) -> tuple[tuple[T, ...], ...]: ...

    def __getitem__(self, sample: int | slice) -> tuple[T, ...] | tuple[tuple[T, ...], ...]:
        if isinstance(sample, int) and not -len(self) <= sample < len(self):
            raise IndexError(f"no sample {sample}: there are {len(self)}")
        return self._samples[sample]

    def __len__(self) -> int:
        return len(self._samples)

    def __iter__(self) -> Iterator[tuple[T, ...]]:
        return iter(self._samples)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Found) and self._samples == other._samples

    __hash__ = None  # type: ignore[assignment]

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of the samples in the measure's batch."""
        return self._numbers

    @property
    def only(self) -> tuple[T, ...]:
        """The list of the only sample."""
        if len(self) != 1:
            raise QuestionError("there is more than one sample", got=f"{len(self)} samples", hint="found[0]")
        return self._samples[0]

    def records(self) -> list[dict[str, Any]]:
        """Every finding as plain data, with its sample and rank."""
        return [
            {"sample": number, "rank": rank, **finding.record()}
            for number, found in zip(self._numbers, self._samples, strict=True)
            for rank, finding in enumerate(found, 1)
        ]

    def _keys(self) -> Sequence[str]:
        return ("sample", "rank")

    def _notes(self) -> list[str]:
        """What is to be said below the lists."""
        return []

    def __str__(self) -> str:
        blocks = []
        for number, found in zip(self._numbers, self._samples, strict=True):
            wide = len(str(len(found)))
            lines = [f"  {rank:>{wide}}  {finding}" for rank, finding in enumerate(found, 1)] or ["  none"]
            blocks.append("\n".join([f"{self._what} of sample {number}", *lines]))
        return "\n".join([*blocks, *self._notes()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        records = self.records()
        heads = list(dict.fromkeys(key for record in records for key in record))
        rows = [[cell(record.get(head)) for head in heads] for record in records]
        few = ", ".join(map(str, self.numbers[:4])) + (" ..." if len(self.numbers) > 4 else "")
        many = "sample" if len(self.numbers) == 1 else "samples"
        return html_table(f"{self._what} of {many} {few}", heads, rows, self._notes())


class Certified(Found[T]):
    """What a search has found that may have been stopped: per sample, how complete its list is.

    ``gap`` is how much more relevance than the last one listed something that was not found can have: 0 if certified.
    """

    def __init__(
        self, what: str, samples: Sequence[Sequence[T]], numbers: Sequence[int], gaps: Sequence[float]
    ) -> None:  # fmt: skip
        super().__init__(what, samples, numbers)
        self.gap = tuple(gaps)

    def _notes(self) -> list[str]:
        notes = []
        for number, gap in zip(self._numbers, self.gap, strict=True):
            if gap:
                more = "no bound is known" if math.isinf(gap) else f"one may have up to {gap:.3g} more than the last"
                notes.append(f"sample {number}: not certified, {self._what} may be missing; {more}")
        return notes

    @property
    def certified(self) -> tuple[bool, ...]:
        """Per sample, whether its list is exactly the best there is."""
        return tuple(gap == 0 for gap in self.gap)
