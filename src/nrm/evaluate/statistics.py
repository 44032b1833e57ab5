"""How well scores agree with contributions, sample by sample: correlation and sums over the highest scores.

Contributions ``C`` and scores ``S`` have the same shape ``(batch, ...)``. Tables that are too large to be kept are
handed over part by part to :class:`Correlation` and :class:`TopSums`, with the same results.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nrm.errors import QuestionError

PIECE = 2**20
"""Entries of a table that are summed at a time: what fits into a processor's memory is fast."""

DRAWS = 2000
"""How often a mean is drawn anew for its confidence interval."""


def pearson(C: Tensor, S: Tensor) -> Tensor:
    """The Pearson correlation of contributions and scores in every sample: ``(batch,)``; NaN where one is constant.

    >>> C = torch.tensor([[1.0, 2.0, 3.0]])
    >>> round(float(pearson(C, 5 * C - 1)[0]), 6)
    1.0
    """
    total = Correlation()
    total.update(C, S)
    return total.value


def sc_k(C: Tensor, S: Tensor, k: Sequence[int] | Tensor | None = None) -> Tensor:
    """SC_k, the sum of the contributions with the k highest scores, for every sample: ``(batch, len(k))``.

    ``k`` are the numbers asked for, None for all from 1 on. Equal scores are taken in all orders: each counts with the
    mean contribution of its equals.

    >>> sc_k(torch.tensor([[1.0, 4.0, 2.0]]), torch.tensor([[0.1, 0.2, 0.9]])).tolist()
    [[2.0, 6.0, 7.0]]
    """
    top = TopSums(_rows(C, S)[0].shape[1])
    top.update(C, S)
    return top.curve(k)


def merge_means(mean: Tensor, new: Tensor, count: Any, more: Any) -> tuple[Tensor, Tensor, Any]:
    """The mean of two groups of ``count`` and ``more`` samples; the distance of their means, and its weight.

    The sum of squared deviations of both is that of each plus the weight times the squared distance, and likewise for
    products (Chan, Golub, LeVeque): so samples that come one group after the other need not be kept.

    >>> merge_means(torch.tensor(1.5), torch.tensor(6.0), 2, 1)
    (tensor(3.), tensor(4.5000), 0.6666666666666666)
    """
    step = new - mean
    return mean + step * (more / (count + more)), step, count * more / (count + more)


class Correlation:
    """The Pearson correlation of contributions and scores that come in parts."""

    def __init__(self) -> None:
        self.count = 0
        self._mean: Tensor | None = None
        self._moments: Any = 0.0

    def __repr__(self) -> str:
        return f"the correlation of contributions and scores of {self.count} combinations so far"

    def update(self, C: Tensor, S: Tensor) -> None:
        """Takes in some of the table, ``(batch, ...)``; parts may come in any order."""
        rows = _rows(C, S)
        for begin in range(0, rows[0].shape[1], PIECE):
            self._take(*(t[:, begin : begin + PIECE].double() for t in rows))

    def _take(self, c: Tensor, s: Tensor) -> None:
        count, mean = c.shape[1], torch.stack([c.mean(1), s.mean(1)])
        c, s = c - mean[0, :, None], s - mean[1, :, None]
        moments = torch.stack([torch.linalg.vecdot(x, y) for x, y in ((c, c), (s, s), (c, s))])
        before = torch.zeros_like(mean) if self._mean is None else self._mean
        if mean.shape != before.shape:
            raise QuestionError(
                "a part of another batch", got=f"{mean.shape[1]} samples", expected=f"{before.shape[1]} samples"
            )
        self._mean, step, weight = merge_means(before, mean, self.count, count)
        self._moments = self._moments + moments + weight * torch.stack([step[0] ** 2, step[1] ** 2, step[0] * step[1]])
        self.count += count

    @property
    def value(self) -> Tensor:
        """The correlation in every sample."""
        if self._mean is None:
            raise QuestionError("no contributions yet", hint="update(C, S)")
        x, y, both = self._moments.unbind()
        correlation: Tensor = both / (x * y).sqrt()
        return correlation


class TopSums:
    """SC_k for k up to ``keep``, of contributions and scores that come in parts: only the highest are kept."""

    def __init__(self, keep: int) -> None:
        if keep < 1:
            raise QuestionError("not a number of scores to keep", got=repr(keep), expected="at least 1")
        self.keep = keep
        self.count = 0
        self._scores: list[Tensor] = []
        self._sums: list[Tensor] = []
        self._equals: list[tuple[float, int, float]] = []

    def __repr__(self) -> str:
        return f"SC_k for k up to {self.keep}, of {self.count} combinations so far"

    def update(self, C: Tensor, S: Tensor) -> None:
        """Takes in some of the table, ``(batch, ...)``; parts may come in any order."""
        contributions, scores = _rows(C, S)
        if not self._scores:
            self._scores, self._sums = [[t.new_empty(0) for _ in scores] for t in (scores, contributions.double())]
            self._equals = [(-torch.inf, 0, 0.0)] * len(scores)
        if len(scores) != len(self._scores):
            raise QuestionError(
                "a part of another batch", got=f"{len(scores)} samples", expected=f"{len(self._scores)} samples"
            )
        self.count += scores.shape[1]
        for sample, (s, c) in enumerate(zip(scores, contributions, strict=True)):
            self._take(sample, s, c.double())

    def _take(self, sample: int, s: Tensor, c: Tensor) -> None:
        """Keeps the highest scores; of those that equal the lowest kept one, how many were left and their sum."""
        if len(self._scores[sample]) >= self.keep:
            reach = s >= self._scores[sample][-1]
            s, c = s[reach], c[reach]
        if len(self._scores[sample]):
            s, c = torch.cat([self._scores[sample], s]), torch.cat([self._sums[sample], c])
        if len(s) >= max(2 * self.keep, PIECE):
            s, c = self._narrowed(sample, s, c)
        s, order = s.sort(descending=True)
        c = c[order]
        if len(s) > self.keep:
            more = s[self.keep :] == s[self.keep - 1]
            self._leave(sample, float(s[self.keep - 1]), int(more.sum()), float(c[self.keep :][more].sum()))
        self._scores[sample], self._sums[sample] = s[: self.keep], c[: self.keep]

    def _leave(self, sample: int, lowest: float, count: int, amount: float) -> None:
        """Counts entries that are not kept and equal the lowest one that is."""
        edge, before, sum_before = self._equals[sample]
        same = edge == lowest
        self._equals[sample] = (lowest, count + before * same, amount + sum_before * same)

    def _narrowed(self, sample: int, s: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """Fewer entries that have the highest among them, so that not all need be sorted."""
        drawn = torch.randint(len(s), (2**16,), generator=torch.Generator().manual_seed(0))
        some = s[drawn.to(s.device)].sort(descending=True).values
        edge = some[min(len(some) - 1, int(1.2 * self.keep / len(s) * len(some)) + 16)]
        above = s > edge
        room = self.keep - int(above.sum())
        if room <= 0:
            return s[above], c[above]
        equal = s == edge
        count = int(equal.sum())
        if count < room:
            return s, c
        mean = c[equal].mean()
        self._leave(sample, float(edge), count - room, float(mean) * (count - room))
        return torch.cat([s[above], edge.expand(room)]), torch.cat([c[above], mean.expand(room)])

    def curve(self, k: Sequence[int] | Tensor | None = None) -> Tensor:
        """``(batch, len(k))``: the sums for these k, or for all that were kept."""
        if not self._scores:
            raise QuestionError("no contributions yet", hint="update(C, S)")
        most = min(self.keep, self.count)
        wanted = torch.arange(1, most + 1) if k is None else torch.as_tensor(k).flatten()
        if wanted.is_floating_point() or bool(((wanted < 1) | (wanted > most)).any()):
            raise QuestionError(
                "not a number of combinations", got=f"k from {wanted.min()} to {wanted.max()}",
                expected=f"integers from 1 to {most}",
            )  # fmt: skip
        sums = [self._levelled(sample).cumsum(0) for sample in range(len(self._scores))]
        return torch.stack([one[wanted.to(one.device) - 1] for one in sums])

    def _levelled(self, sample: int) -> Tensor:
        """Contributions in the order of their scores, those with equal scores replaced by their mean."""
        edge, left, amount = self._equals[sample]
        s, c = self._scores[sample], self._sums[sample]
        left = left if edge == float(s[-1]) else 0
        if not bool((s[1:] == s[:-1]).any()) and not left:
            return c
        _, place, count = torch.unique_consecutive(s, return_inverse=True, return_counts=True)
        sums, numbers = c.new_zeros(len(count)).index_add(0, place, c), count.double()
        if left:
            sums[-1] += amount
            numbers[-1] += left
        level: Tensor = (sums / numbers)[place]
        return level


def interval(values: Tensor | Sequence[float], level: float = 0.95, seed: int = 0) -> tuple[float, float]:
    """A confidence interval for the mean over samples, by drawing the samples anew (bootstrap, percentiles).

    >>> low, high = interval(torch.arange(100.0))
    >>> low < 49.5 < high
    True
    """
    given = torch.as_tensor(values, dtype=torch.float64).flatten().cpu()
    if not given.numel() or not bool(torch.isfinite(given).all()):
        raise QuestionError("no mean to be sure about", got=f"{given.numel()} values", expected="finite numbers")
    if not 0 < level < 1:
        raise QuestionError("not a level of confidence", got=repr(level), expected="between 0 and 1")
    random = torch.Generator().manual_seed(seed)
    size = max(1, 2**24 // len(given))
    means = [given[torch.randint(len(given), (min(size, DRAWS - begin), len(given)), generator=random)].mean(1)
             for begin in range(0, DRAWS, size)]  # fmt: skip
    low, high = torch.cat(means).quantile(torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64))
    return float(low), float(high)


def _rows(C: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """Both as ``(batch, entries)``, finite and of one shape."""
    for name, t in (("contributions", C), ("scores", S)):
        if not getattr(t, "ndim", 0) or not t.numel():
            raise QuestionError(f"{name} are a tensor (batch, ...)", got=repr(t)[:80])
        if not bool(torch.isfinite(t.sum())) and not bool(torch.isfinite(t).all()):
            raise QuestionError(f"{name} are not finite", got=f"{int((~torch.isfinite(t)).sum())} of {t.numel()}")
    if C.shape != S.shape:
        raise QuestionError(
            "contributions and scores do not fit", got=f"shapes {tuple(C.shape)} and {tuple(S.shape)}",
            expected="one shape: (batch, *axes)",
        )  # fmt: skip
    return C.reshape(len(C), -1), S.to(C.device).reshape(len(S), -1)
