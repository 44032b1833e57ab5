"""The best samples of every block, in bounded memory, whatever the order in which samples come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Top:
    """For every block the ``k`` samples with the largest scores, and at most ``bound`` of these rows in all.

    Of equal scores the sample with the smaller number comes first. Rows are sorted by block, best first; ``place`` is
    the neuron where the block has its peak, -1 if that is not known. Merging is associative, commutative and
    idempotent: in whatever order and parts the samples come, the rows are the same.

    Where the bound is reached, the rows with the largest scores of all blocks are kept: among those that are missing
    none is larger than :attr:`cut`, so that a block's list is complete down to there.
    """

    k: int
    bound: int
    block: Integers
    sample: Integers
    score: Floats
    place: Integers

    @classmethod
    def empty(cls, k: int, bound: int) -> Top:
        """No samples yet."""
        none = np.zeros(0, np.int64)
        return cls(k, bound, none, none, np.zeros(0), none)

    @classmethod
    def of(
        cls, k: int, bound: int, samples: Integers, scores: Floats, places: Integers | None, floor: float = -np.inf
    ) -> Top:
        """The rows of a batch: ``samples (batch,)``, ``scores (batch, blocks)``, ``places`` like scores or None.

        If there are more blocks than may be kept, only positive scores count. Scores below ``floor`` are left out.
        """
        found = cls.empty(k, bound)
        # Where room is short, of more than k samples some would be left out for their own block alone.
        many = k if crowded(k, bound, scores.shape[1]) else max(1, len(samples))
        for begin in range(0, len(samples), many):
            part = slice(begin, begin + many)
            found = merge([found, cls._some(k, bound, samples[part], scores[part], places, part, floor)])
        return found

    @classmethod
    def _some(
        cls, k: int, bound: int, samples: Integers, scores: Floats, places: Integers | None, part: slice, floor: float
    ) -> Top:
        keep = scores >= floor
        if crowded(k, bound, scores.shape[1]):
            keep &= scores > 0
            if int(keep.sum()) > bound:
                found = scores[keep]
                keep &= scores >= np.partition(found, len(found) - bound)[len(found) - bound]
        row, block = np.nonzero(keep)
        at = np.full(len(row), -1, np.int64) if places is None else places[part][row, block]
        return cls(k, bound, block.astype(np.int64), samples[row], scores[row, block], at)

    @cached_property
    def cut(self) -> float:
        """No row that is missing for want of room has a larger score."""
        return float(self.score.min()) if len(self.score) >= self.bound else float("-inf")

    def of_block(self, block: int) -> Top:
        """The rows of one block, best first."""
        begin, end = np.searchsorted(self.block, [block, block + 1])
        return self._rows(slice(int(begin), int(end)))

    def _rows(self, rows: slice | Integers) -> Top:
        return Top(self.k, self.bound, self.block[rows], self.sample[rows], self.score[rows], self.place[rows])

    def __len__(self) -> int:
        return len(self.block)


def crowded(k: int, bound: int, blocks: int) -> bool:
    """Whether so many blocks may have more rows than there is room for."""
    return blocks * k > bound


def merge(tops: Sequence[Top]) -> Top:
    """The best rows of all of them.

    >>> one = Top.of(2, 10, np.array([4, 7]), np.array([[0.5], [2.0]]), None)
    >>> two = Top.of(2, 10, np.array([1, 2]), np.array([[0.5], [0.1]]), None)
    >>> merge([one, two]).sample.tolist()
    [7, 1]
    """
    k, bound = tops[0].k, tops[0].bound
    block, sample, place = (np.concatenate([getattr(t, name) for t in tops]) for name in ("block", "sample", "place"))
    score = np.concatenate([t.score for t in tops])
    whole = Top(k, bound, block, sample, score, place)._rows(np.lexsort((sample, -score, block)))
    fresh = np.ones(len(whole), bool)
    fresh[1:] = (whole.block[1:] != whole.block[:-1]) | (whole.sample[1:] != whole.sample[:-1])
    whole = whole._rows(np.flatnonzero(fresh))
    rank = np.arange(len(whole)) - np.searchsorted(whole.block, whole.block)
    whole = whole._rows(np.flatnonzero(rank < k))
    if len(whole) > bound:
        best = np.lexsort((whole.sample, whole.block, -whole.score))[:bound]
        whole = whole._rows(np.sort(best))
    return whole
