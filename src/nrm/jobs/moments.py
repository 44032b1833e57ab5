"""Means and variances of any number of samples, one batch at a time, class by class."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nrm.errors import QuestionError
from nrm.evaluate import merge_means

COLUMNS = 2**15
"""Columns that are counted in together: so many stay in the caches between one step and the next."""


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
        one = ByClass()
        one.add(values, [-1] * len(values))
        return one.classes[-1]

    def merge(self, other: Moments) -> Moments:
        """The moments of both groups of samples together."""
        both = ByClass()
        for moments in (self, other):
            both.count(-1, moments)
        return both.classes[-1]

    def variance(self, correction: int = 1) -> Tensor:
        """The variance over samples; 0 where there are not more samples than the correction takes away."""
        return self.squares / max(self.count - correction, 1)


class ByClass:
    """Moments of every class of samples. Class -1 is that of samples without one.

    All classes are rows of the same tensors, so that a batch is counted in at once, however many classes it has.
    """

    def __init__(self) -> None:
        self._rows: dict[int, int] = {}
        self._shape: tuple[int, ...] = ()
        self._counts: list[int] = []
        self._tables: tuple[Tensor, ...] = ()

    @property
    def classes(self) -> dict[int, Moments]:
        """The moments of every class."""
        return {
            label: Moments(self._counts[row], *(table[row].view(self._shape) for table in self._tables))
            for label, row in self._rows.items()
        }

    @classmethod
    def of(cls, labels: Sequence[int], counts: Sequence[int], tables: Sequence[Tensor]) -> ByClass:
        """Moments that are known: one row of each table for every class."""
        found = cls()
        found._rows = {label: row for row, label in enumerate(labels)}
        found._counts, found._tables = list(counts), tuple(tables)
        found._shape = tuple(tables[0].shape[1:])
        return found

    def sorted(self) -> tuple[list[int], list[int], list[Tensor]]:
        """All classes in their order: labels, counts, and mean, squares, positive, negative, absolute by class."""
        labels = sorted(self._rows)
        rows = [self._rows[label] for label in labels]
        return labels, [self._counts[row] for row in rows], [table[rows].cpu() for table in self._tables]

    def add(self, values: Tensor, classes: Sequence[int]) -> None:
        """Counts a batch ``(batch, ...)`` in, each sample to its class."""
        labels = sorted(set(classes))
        flat, counts = values.detach().reshape(len(values), -1), [classes.count(label) for label in labels]
        group = torch.tensor([labels.index(c) for c in classes], device=values.device)
        rows = self._reserve(labels, tuple(values.shape[1:]), values.device)
        step = COLUMNS if values.device.type == "cpu" else max(1, flat.shape[1])
        for begin in range(0, flat.shape[1], step):
            part = slice(begin, begin + step)
            self._join(rows, part, counts, _group(flat[:, part], group, counts))
        self._add_counts(rows, counts)

    def nbytes(self, values: Tensor, classes: Sequence[int]) -> int:
        """What all tables will take when this batch has been counted in."""
        return 8 * 5 * len({*self._rows, *classes}) * values[0].numel()

    def count(self, label: int, moments: Moments) -> None:
        """Counts samples of one class in."""
        tables = (moments.mean, moments.squares, moments.positive, moments.negative, moments.absolute)
        rows = self._reserve([label], tuple(moments.mean.shape), moments.mean.device)
        self._join(rows, slice(None), [moments.count], tuple(table.reshape(1, -1) for table in tables))
        self._add_counts(rows, [moments.count])

    def merge(self, other: ByClass) -> None:
        """Counts what another one has counted in."""
        labels, counts, tables = other.sorted()
        if labels:
            rows = self._reserve(labels, other._shape, tables[0].device)
            self._join(rows, slice(None), counts, tables)
            self._add_counts(rows, counts)

    def total(self) -> Moments | None:
        """The moments of all classes together, None before any sample has come."""
        classes = self.classes
        return merged(classes[label] for label in sorted(classes))

    def _reserve(self, labels: Sequence[int], shape: tuple[int, ...], device: torch.device) -> list[int]:
        """The rows of some classes, new ones empty."""
        for label in labels:
            if label not in self._rows:
                self._rows[label] = len(self._rows)
                self._counts.append(0)
        size = len(self._tables[0]) if self._tables else 0
        if size and shape != self._shape:
            raise QuestionError(
                "the samples give answers of different shapes", got=f"axes {shape}",
                expected=f"{self._shape}, as before",
                hint="a.channels has the same axis for inputs of every size",
            )  # fmt: skip
        if len(self._rows) > size:
            self._shape = shape
            more, width = max(len(self._rows), 2 * size) - size, torch.Size(shape).numel()
            kinds = (torch.float64, torch.float64, torch.int64, torch.int64, torch.float64)
            new = [torch.zeros(more, width, dtype=kind, device=device) for kind in kinds]
            self._tables = (
                tuple(torch.cat(pair) for pair in zip(self._tables, new, strict=True)) if size else tuple(new)
            )
        return [self._rows[label] for label in labels]

    def _join(self, rows: list[int], part: slice, counts: Sequence[int], new: Sequence[Tensor]) -> None:
        mean, squares, *sums = (table[:, part] for table in self._tables)
        before, more = (torch.tensor(c, dtype=mean.dtype, device=mean.device)[:, None]
                        for c in ([self._counts[row] for row in rows], counts))  # fmt: skip
        at: Any = slice(rows[0], rows[0] + 1) if len(rows) == 1 else rows
        mean[at], apart, weight = merge_means(mean[at], new[0], before, more)
        squares[at] += apart.square_().mul_(weight).add_(new[1])
        for table, added in zip(sums, new[2:], strict=True):
            table[at] += added

    def _add_counts(self, rows: list[int], counts: Sequence[int]) -> None:
        for row, count in zip(rows, counts, strict=True):
            self._counts[row] += count


def _group(values: Tensor, group: Tensor, counts: Sequence[int]) -> tuple[Tensor, ...]:
    """Mean, squares, positive, negative and absolute of every group of a batch ``(batch, columns)``."""
    wide = values.double()

    def total(t: Tensor) -> Tensor:
        if len(counts) == 1:
            return t.sum(0, keepdim=True)
        return t.new_zeros(len(counts), t.shape[1]).index_add_(0, group, t)

    mean = total(wide) / torch.tensor(counts, dtype=wide.dtype, device=wide.device)[:, None]
    apart = wide - (mean if len(counts) == 1 else mean[group])
    signs = (total((values > 0).int()), total((values < 0).int()))
    return mean, total(apart.square_()), *signs, total(wide.abs())


def merged(parts: Iterable[Moments]) -> Moments | None:
    """Several moments as one, in their order."""
    total: Moments | None = None
    for part in parts:
        total = part if total is None else total.merge(part)
    return total
