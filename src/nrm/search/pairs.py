"""The largest pairs of blocks of two far layers: bounds of whole groups first, which are divided where mass is.

One density carries what passes a group of upper blocks down to all lower blocks: the sums of absolute relevances that
arrive there bound every pair of the group. A group that stays below the list is done with; any other one is divided,
and a half costs one density, the other half being the rest. What is left are single blocks, whose pairs are exact. A
lower block that keeps several groups open is told apart: one amount finds all of its pairs.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from nrm.questions import Progress
from nrm.search.prefixes import Prefixes
from nrm.search.ranking import BestFlows, Queue, Request

GROUP = 16
"""So many upper blocks are in a group at first."""
OPEN = 3.0
"""A lower block that keeps so many groups open is told apart. One of several that keep a group open counts in part."""
DIVIDED = 16
"""So many groups are divided at once; the list and what keeps groups open may change with every one."""
APART = 8
"""So many lower blocks are told apart at once."""


@dataclass(order=True)
class Group:
    """Upper blocks that wait together: how far a pair of theirs can reach, and the bound with every lower block."""

    key: tuple[float, tuple[int, ...]]
    bounds: Tensor = field(compare=False)
    slack: float = field(compare=False)

    @property
    def reach(self) -> float:
        """The largest relevance that one of its pairs can have."""
        return -self.key[0]

    @property
    def blocks(self) -> tuple[int, ...]:
        """Its upper blocks."""
        return self.key[1]


class PairSearch:
    """Finds the largest pairs of every sample, from the best ones that are known to begin with."""

    def __init__(
        self, prefixes: Prefixes, request: Request, best: Mapping[int, BestFlows], progress: Progress
    ) -> None:  # fmt: skip
        self._prefixes = prefixes
        self._request = request
        self._best = best
        self._progress = progress
        self._heaps: dict[int, list[Group]] = {s: [] for s in best}
        self._known: dict[int, list[int]] = {s: [] for s in best}
        self._untold: dict[int, float] = dict.fromkeys(best, 0.0)

    def run(self, effort: float) -> dict[int, float]:
        """Searches for so many forward passes of arithmetic; per sample, what a pair that was left out can have."""
        # A prefix is priced as two densities, one with absolute entries; of a group that one alone is carried.
        left = max(1, int(2 * effort / self._prefixes.cost))
        for _ in self._progress(self._steps(left), None):
            pass
        return {
            s: max([g.reach for g in heap] + [self._untold[s]]) if self._is_open(s) else 0.0
            for s, heap in self._heaps.items()
        }

    def _steps(self, left: int) -> Iterator[None]:
        """The search itself, which rests after every stack of densities."""
        width = self._prefixes.width
        waiting = self._first_groups()
        while left > 0 and (stacks := self._next(waiting, min(width, left))):
            left -= max(map(len, stacks.values()))
            self._bound(stacks)
            yield
        for s, groups in waiting.items():
            self._untold[s] = max((group.reach for group, _ in groups), default=0.0)
        while left > 0:
            lower = {s: self._keeping_open(s)[:left] for s in self._heaps}
            most = 0 if any(lower.values()) else min(DIVIDED, width, left)
            stacks = {s: self._halves(s, most) for s in self._heaps}
            self._tell_apart(lower)
            self._bound(stacks)
            many = max(map(len, lower.values())) + max(map(len, stacks.values()))
            if not many:
                return
            left -= many
            yield

    # ---- lower blocks that are asked for by themselves ---------------------------------------------------------

    def _keeping_open(self, s: int) -> list[int]:
        """The lower blocks without which several groups would be done with."""
        least = self._least(s)
        self._heaps[s] = heap = [g for g in self._heaps[s] if g.reach >= least]
        heapq.heapify(heap)
        if not heap:
            return []
        keeping = (torch.stack([g.bounds for g in heap]) >= least).double()
        counts, rows = (keeping / keeping.sum(1, keepdim=True).clamp(min=1)).sum(0).topk(min(APART, keeping.shape[1]))
        return [int(row) for row, count in zip(rows, counts, strict=True) if count >= OPEN]

    def _tell_apart(self, lower: Mapping[int, list[int]]) -> None:
        """The pairs of each sample's lower blocks, exactly; groups bound those with the other ones from then on."""
        stack = max(map(len, lower.values()))
        if not stack:
            return
        rows = torch.tensor([[*lower[s], *[-1] * (stack - len(lower[s]))] for s in lower]).T
        found = self._prefixes.of_lower(rows)
        for s, mine in lower.items():
            table = found[: len(mine), s]
            if mine:
                self._best[s].add(self._request, table.flatten(), _Numbering(mine, table.shape[1]))
            self._known[s] += mine
            self._heaps[s] = [self._group(s, g.blocks, g.bounds, g.slack) for g in self._heaps[s]]
            heapq.heapify(self._heaps[s])

    # ---- groups of upper blocks ----------------------------------------------------------------------------------

    def _first_groups(self) -> dict[int, list[tuple[Group, Group | None]]]:
        """Blocks of about the same mass together; one that cannot reach the list by itself is left out."""
        found: dict[int, list[tuple[Group, Group | None]]] = {}
        none = torch.empty(0)
        for s, reach in self._prefixes.upper_reach(self._request).items():
            order = reach.argsort(descending=True, stable=True)
            live = order[reach[order] >= max(self._best[s].threshold, torch.finfo(reach.dtype).tiny)].tolist()
            groups = [live[a : a + GROUP] for a in range(0, len(live), GROUP)]
            found[s] = [(Group((-float(reach[g].sum()), tuple(g)), none, 0.0), None) for g in groups]
        return found

    def _is_open(self, s: int) -> bool:
        top = max([g.reach for g in self._heaps[s]] + [self._untold[s]])
        return top >= self._least(s)

    @staticmethod
    def _next(
        waiting: Mapping[int, list[tuple[Group, Group | None]]], width: int
    ) -> dict[int, list[tuple[Group, Group | None]]]:
        """The next groups of every sample to be carried down, with the one that each is a half of; none: nothing."""
        taken = {s: groups[:width] for s, groups in waiting.items() if groups}
        for s, groups in taken.items():
            del waiting[s][: len(groups)]
        return taken

    def _halves(self, s: int, width: int) -> list[tuple[Group, Group | None]]:
        """The groups that reach farthest, each by its first half; single blocks are asked for their pairs."""
        halves: list[tuple[Group, Group | None]] = []
        heap = self._heaps[s]
        least = self._least(s)
        while heap and len(halves) < width and heap[0].reach >= least:
            group = heapq.heappop(heap)
            half = group.blocks[: -(-len(group.blocks) // 2)]
            halves.append((Group((group.key[0], half), group.bounds, group.slack), group))
        return halves

    def _bound(self, stacks: Mapping[int, list[tuple[Group, Group | None]]]) -> None:
        """Carries groups down: single blocks of known groups exactly, others for their bounds."""
        given = {s: stacks.get(s, ()) for s in self._heaps}
        single = {s: [g.blocks for g, w in groups if w and len(w.blocks) == 1] for s, groups in given.items()}
        for s, extension in self._prefixes.extend(single):
            extension.rank(self._request, self._best[s], Queue())
        others = {s: [(g, w) for g, w in groups if not (w and len(w.blocks) == 1)] for s, groups in given.items()}
        totals = self._prefixes.of_groups({s: [g.blocks for g, _ in groups] for s, groups in others.items()})
        for s, bounds in totals:
            for (group, whole), row in zip(others[s], bounds, strict=True):
                if whole is None:
                    slack = 64 * torch.finfo(row.dtype).eps * float(row.amax())
                    heapq.heappush(self._heaps[s], self._group(s, group.blocks, row, slack))
                    continue
                row = torch.minimum(row, whole.bounds)
                for blocks, bounds in ((group.blocks, row), (whole.blocks[len(group.blocks) :], whole.bounds - row)):
                    heapq.heappush(self._heaps[s], self._group(s, blocks, bounds, whole.slack))

    def _group(self, s: int, blocks: tuple[int, ...], bounds: Tensor, slack: float) -> Group:
        """A group, with the bounds of its pairs that are not known."""
        bounds = bounds.index_fill(0, torch.tensor(self._known[s], dtype=torch.long, device=bounds.device), 0.0)
        return Group((-(float(bounds.amax()) + slack), blocks), bounds, slack)

    def _least(self, s: int) -> float:
        """What a pair must have to get onto the list of a sample."""
        return max(self._best[s].threshold, torch.finfo(torch.float64).tiny)


class _Numbering:
    """Which pairs the entries of a table are, whose rows are lower blocks and whose columns are upper ones."""

    def __init__(self, lower: Sequence[int], width: int) -> None:
        self._lower = lower
        self._width = width

    def __call__(self, at: Tensor) -> list[tuple[int, ...]]:
        return [(n % self._width, self._lower[n // self._width]) for n in at.tolist()]
