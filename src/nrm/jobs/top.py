"""The best samples of every block, in bounded memory, whatever the order in which samples come."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nrm.largest import Floats, IntegerArray, among_largest, best_first, largest_of_groups, reaching


@dataclass(frozen=True, eq=False)
class BlockRows:
    """Blocks, samples, their scores and places, in any order."""

    block: IntegerArray
    sample: IntegerArray
    score: Floats
    place: IntegerArray

    @property
    def columns(self) -> tuple[Any, ...]:
        """All columns."""
        return self.block, self.sample, self.score, self.place

    def at(self, index: slice | IntegerArray | npt.NDArray[np.bool_]) -> BlockRows:
        """Some of the rows."""
        return BlockRows(*(column[index] for column in self.columns))

    def __len__(self) -> int:
        return len(self.block)


@dataclass(frozen=True, eq=False)
class Top:
    """For every block the ``k`` samples with the largest scores, and at most ``bound`` of these rows in all.

    Of equal scores the sample with the smaller number comes first. Rows are sorted by block, best first; ``place`` is
    the neuron where the block has its peak, -1 if that is not known. Merging is associative, commutative and
    idempotent: in whatever order and parts the samples come, the rows are the same.

    Where the bound is reached, the rows with the largest scores of all blocks are kept: among those that are missing
    none is larger than :attr:`cut`, so that a block's list is complete down to there. Rows that could not be among the
    best of all samples may be missing before: ``left`` bounds them.
    """

    k: int
    bound: int
    block: IntegerArray
    sample: IntegerArray
    score: Floats
    place: IntegerArray
    left: float = -math.inf

    @classmethod
    def empty(cls, k: int, bound: int) -> Top:
        """No samples yet."""
        none = np.zeros(0, np.int64)
        return cls(k, bound, none, none, np.zeros(0), none)

    @property
    def rows(self) -> BlockRows:
        """The rows as they are."""
        return BlockRows(self.block, self.sample, self.score, self.place)

    @cached_property
    def cut(self) -> float:
        """No row that is missing for want of room has a larger score."""
        return _cut(self.score, self.bound, self.left)

    def of_block(self, block: int) -> Top:
        """The rows of one block, best first."""
        begin, end = np.searchsorted(self.block, [block, block + 1])
        return Top(self.k, self.bound, *self.rows.at(slice(int(begin), int(end))).columns)

    def __len__(self) -> int:
        return len(self.block)


class BestSamples:
    """Gathers the best samples of every block, batch by batch.

    Rows wait until there are as many as may be kept, so that few of them are ever compared; what cannot be among the
    best any more does not even wait. What is ``known`` of samples that were counted elsewhere tells so from the start:
    the longer a job runs, the fewer rows its shards have.
    """

    def __init__(self, k: int, bound: int, known: BestSamples | None = None) -> None:
        self.k, self.bound = k, bound
        self.left, self._known = -math.inf, None if known is None else known.settled()
        if self._known is not None and known is not None:
            self.left = _cut(self._known.score, bound, known.left)
        self._parts: list[BlockRows] = []
        self._waiting = 0
        self._floors: Tensor | None = None
        self._top: Top | None = None

    def add(self, samples: IntegerArray, scores: Tensor, places: Tensor | None) -> None:
        """Counts a batch in: ``samples (batch,)``, ``scores (batch, blocks)``, ``places`` like scores or None.

        If there are more blocks than may be kept, only positive scores count.
        """
        if self._known is not None:
            self._raise_floors(self._known, scores)
            self._known = None
        # Where room is short, of more than k samples some would be left out for their own block alone.
        short = crowded(self.k, self.bound, scores.shape[1])
        many = self.k if short else max(1, len(samples))
        for begin in range(0, len(samples), many):
            part = slice(begin, begin + many)
            self._wait(self._choose(samples[part], scores[part], None if places is None else places[part], short))
            if self._waiting > min(self.bound, self.k * scores.shape[1]):
                self._narrow(scores)

    def take(self, *parts: BlockRows) -> None:
        """Counts rows in."""
        for rows in parts:
            self._wait(rows)
            if self._waiting > self.bound:
                self._narrow(None)

    def absorb(self, other: BestSamples) -> None:
        """Counts in what another one has gathered."""
        self.left = max(self.left, other.left)
        self.take(*other._parts)

    def top(self) -> Top:
        """The best of all that came."""
        if self._top is None:
            rows = self.rows()
            rows = rows.at(best_first(rows.score, rows.sample, rows.block))
            self._top = Top(self.k, self.bound, rows.block, rows.sample, rows.score, rows.place, self.left)
            self._parts = [rows]
        return self._top

    def rows(self) -> BlockRows:
        """All rows, in no order."""
        if not self._parts:
            return Top.empty(0, 0).rows
        self._narrow(None)
        return self._parts[0]

    def settled(self) -> BlockRows:
        """Nearly the same, cheaper: rows that came last may be missing, and others still be there."""
        if self._parts and self._waiting <= len(self._parts[0]):
            return self._parts[0]
        return self.rows()

    @property
    def cut(self) -> float:
        """No row that is missing for want of room has a larger score than this, among all that came so far."""
        return _cut(self.rows().score, self.bound, self.left)

    def _wait(self, rows: BlockRows) -> None:
        self._parts.append(rows)
        self._waiting += len(rows)
        self._top = None

    def _choose(self, samples: IntegerArray, scores: Tensor, places: Tensor | None, short: bool) -> BlockRows:
        keep = scores >= (-torch.inf if self._floors is None else self._floors)
        if short:
            keep &= scores > 0
            keep = keep.masked_scatter(keep, reaching(scores[keep], self.bound))
        found = keep.flatten().nonzero()[:, 0]
        row, block = (found // scores.shape[1]).cpu().numpy(), (found % scores.shape[1]).cpu().numpy()
        score = scores.flatten()[found].double().cpu().numpy()
        place = np.full(len(row), -1, np.int64) if places is None else places.flatten()[found].cpu().numpy()
        return BlockRows(block, samples[row], score, place)

    def _narrow(self, like: Tensor | None) -> None:
        rows = narrowed(self._parts, self.k, self.bound) if self._waiting else self._parts[0]
        self._parts, self._waiting = [rows], 0
        if like is not None:
            self._raise_floors(rows, like)

    def _raise_floors(self, rows: BlockRows, like: Tensor) -> None:
        floors = torch.from_numpy(_floors(rows, self.k, self.bound, like.shape[1])).to(like)
        self._floors = floors if self._floors is None else torch.maximum(self._floors, floors)


def _cut(score: Floats, bound: int, left: float) -> float:
    return max(left, float(score.min())) if len(score) >= bound else left


def crowded(k: int, bound: int, blocks: int) -> bool:
    """Whether so many blocks may have more rows than there is room for."""
    return blocks * k > bound


def merge(tops: Sequence[Top]) -> Top:
    """The best rows of all of them.

    >>> one = Top(2, 10, *(np.array(column) for column in ([0, 0], [7, 4], [2.0, 0.5], [-1, -1])))
    >>> two = Top(2, 10, *(np.array(column) for column in ([0, 0], [1, 2], [0.5, 0.1], [-1, -1])))
    >>> merge([one, two]).sample.tolist()
    [7, 1]
    """
    best = BestSamples(tops[0].k, tops[0].bound)
    for top in tops:
        best.take(top.rows)
    return best.top()


def narrowed(parts: Sequence[BlockRows], k: int, bound: int) -> BlockRows:
    """The best rows of all parts, in no order: ``k`` of every block, then ``bound`` of these."""
    rows = BlockRows(*(np.concatenate(columns) for columns in zip(*(part.columns for part in parts), strict=True)))
    if not _apart(parts):
        order = np.lexsort((rows.sample, rows.block))
        block, sample = rows.block[order], rows.sample[order]
        again = (block[1:] == block[:-1]) & (sample[1:] == sample[:-1])
        rows = rows.at(order[np.r_[True, ~again]])
    rows = rows.at(largest_of_groups(rows.score, rows.sample, rows.block, k))
    return rows.at(among_largest(rows.score, bound, rows.block, rows.sample))


def _apart(parts: Sequence[BlockRows]) -> bool:
    """Whether no sample can be in two parts, as their smallest and largest numbers tell."""
    ends = sorted((int(part.sample.min()), int(part.sample.max())) for part in parts if len(part))
    return all(before[1] < after[0] for before, after in itertools.pairwise(ends))


def _floors(rows: BlockRows, k: int, bound: int, blocks: int) -> Floats:
    """For every block the score below which a row cannot be among the best any more."""
    block, score = torch.from_numpy(rows.block), torch.from_numpy(rows.score)
    worst = torch.full((blocks,), math.inf, dtype=score.dtype).scatter_reduce_(0, block, score, "amin").numpy()
    worst[np.bincount(rows.block, minlength=blocks) < k] = -math.inf
    return np.maximum(worst, rows.score.min()) if len(rows) >= bound else worst
