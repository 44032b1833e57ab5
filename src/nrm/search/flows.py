"""Flows: the combinations of blocks, one of every partition, that carry most of the relevance. Exact.

Small questions are answered by their whole table, chunk by chunk, large ones by a best-first search from the output
down (:mod:`nrm.search.prefixes`).
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from nrm.errors import NrmWarning
from nrm.questions import Answerer, BlockNumbers, Layer, Meeting, Partition, Plan, Progress, Set, Stop, plan_stops
from nrm.search.found import Certified
from nrm.search.pairs import PairSearch
from nrm.search.prefixes import Prefixes, UnboundedError
from nrm.search.ranking import BestFlows, Queue, Request
from nrm.search.sides import Side

AFFORDABLE = 40.0
"""Whole tables up to so many forward passes of arithmetic are not searched but computed."""
SMALL = 2.5e7
"""Networks with fewer operations than these are counted as if they had so many."""


@dataclass(frozen=True)
class Flow:
    """One combination of blocks: its relevance, its share of the condition's, and its sets in the order asked for.

    It iterates as these sets, fixed ones and conditions included, so that ``R(x, *flow)`` is its heat map. ``blocks``
    are the numbers of its blocks, by partition. ``certified`` says that no other combination can come before it.
    ``labels`` are the names of its sets, where the measure has some; ``ranked`` is what it was ranked by, and how much
    it has of it, where that is not its relevance.
    """

    sample: int
    relevance: float
    share: float
    certified: bool
    sets: tuple[Set, ...]
    blocks: tuple[tuple[str, Any], ...]
    labels: tuple[str | None, ...] = ()
    ranked: tuple[str, float] | None = None

    def __iter__(self) -> Iterator[Set]:
        return iter(self.sets)

    def __str__(self) -> str:
        mark = "" if self.certified else "  (not certified)"
        ranked = "" if self.ranked is None else f"  {self.ranked[0]} {self.ranked[1]:.4g}"
        return f"{self.relevance:.4g}{ranked}  {' & '.join(self.texts)}{mark}"

    @property
    def texts(self) -> tuple[str, ...]:
        """Its sets in words, with their labels: ``output.channel(1) 'tench'``."""
        labels = self.labels or (None,) * len(self.sets)
        return tuple(str(s) if label is None else f"{s} {label!r}" for s, label in zip(self.sets, labels, strict=True))

    def record(self) -> dict[str, Any]:
        """The columns of a table: its blocks, their labels, and what they carry."""
        labels = dict(zip(self.sets, self.labels, strict=False))
        columns: dict[str, Any] = {}
        for text, at in self.blocks:
            columns[text] = at
            mine = next((s for s in self.sets if s.expression[0] == "part" and str(s.expression[1]) == text), None)
            if mine is not None and labels.get(mine) is not None:
                columns[f"{text} label"] = labels[mine]
        if self.ranked is not None:
            columns[self.ranked[0]] = self.ranked[1]
        return {**columns, "relevance": self.relevance, "share": self.share, "certified": self.certified}


class Flows(Certified[Flow]):
    """One list of flows per sample, best first. ``certified`` and ``gap`` say, per sample, how complete it is."""

    def __init__(self, samples: Sequence[Sequence[Flow]], numbers: Sequence[int], gaps: Sequence[float]) -> None:
        super().__init__("flows", samples, numbers, gaps)


def find_flows(
    sides: Sequence[Side], arguments: Sequence[Any], conditions: Sequence[float], numbers: Sequence[int],
    request: Request, *, memory: int, progress: Progress,
) -> Flows:  # fmt: skip
    """The best flows of every sample: their numbers, and the relevances that shares are taken of, sample by sample."""
    search = FlowSearch(sides, memory=memory, progress=progress)
    best, rest = search.run(request)
    lists, gaps = [], []
    for s, (sample, whole) in enumerate(zip(numbers, conditions, strict=True)):
        found = []
        for score, blocks, relevance in best[s].found:
            sets, places = _sets(sides[0].stops, blocks, arguments, sample)
            share = relevance / whole if whole else 0.0
            found.append(Flow(sample, relevance, share, -score >= rest[s], sets, places))
        lists.append(found)
        gaps.append(max(0.0, rest[s] - best[s].threshold))
    return Flows(lists, numbers, gaps)


def _sets(
    stops: Sequence[Stop], rows: Sequence[int], arguments: Sequence[Any], sample: int
) -> tuple[tuple[Set, ...], tuple[tuple[str, Any], ...]]:
    """The sets of a combination, and the numbers of its blocks by partition, in the order of the arguments."""
    sets = {n: argument.of_sample(sample) for n, argument in enumerate(arguments) if isinstance(argument, Set)}
    numbers: dict[int, tuple[str, Any]] = {}
    for stop, row in zip(stops, rows, strict=True):
        left = stop.count
        for position, blocks in zip(stop.axes, stop.blocks, strict=True):
            left //= blocks.count
            argument = arguments[position]
            whole = Partition(argument) if isinstance(argument, Layer) else argument
            partition, at = replace(whole, chosen=()), blocks.place((row // left) % blocks.count)
            numbers[position] = (str(partition), at)
            chosen = partition.layer.all if at is None else partition[at]
            sets[position] = chosen.of_sample(sample)
    return tuple(sets[n] for n in sorted(sets)), tuple(numbers[n] for n in sorted(numbers))


class FlowSearch:
    """The search for the flows of one question. Stops without blocks are fixed events; samples count from 0."""

    def __init__(self, sides: Sequence[Side], *, memory: int, progress: Progress) -> None:
        self._sides = sides
        self._samples = range(len(sides[0].samples))
        self._progress = progress
        self._plans = _alike(sides, memory)
        self._meetings = [Meeting.of(plan, side.stops) for plan, side in zip(self._plans, sides, strict=True)]
        self._memory = memory

    def run(self, request: Request) -> tuple[dict[int, BestFlows], dict[int, float]]:
        """Per sample: the best combinations, and the bound of all that were not looked at."""
        if request.method == "greedy":
            return self._greedy(request), dict.fromkeys(self._samples, math.inf)
        table = sum(table_cost(plan) for plan in self._plans)
        if table <= min(AFFORDABLE, request.effort):
            return self._enumerate(request), dict.fromkeys(self._samples, 0.0)
        try:  # where the table can be had as well, the search may take half as long
            best, rest = self._search(request, min(request.effort, table / 2))
        except UnboundedError as error:
            if table <= request.effort:
                return self._enumerate(request), dict.fromkeys(self._samples, 0.0)
            warnings.warn(
                f"flows have no bound here, so that they are not certified: {error}", NrmWarning, stacklevel=5
            )
            best, rest = self._greedy(request), dict.fromkeys(self._samples, math.inf)
        if any(rest.values()) and table <= request.effort:
            return self._enumerate(request), dict.fromkeys(self._samples, 0.0)
        return best, rest

    def _enumerate(self, request: Request) -> dict[int, BestFlows]:
        """The best entries of the whole table, chunk by chunk."""
        meeting, best = self._meetings[0], {s: BestFlows(request.k) for s in self._samples}
        order = [meeting.stops.index(stop) for stop in (*meeting.above, *meeting.below, *meeting.hubs)]
        for rows, part in self._table():
            rows = (*rows, *(list(range(stop.count)) for stop in meeting.hubs))
            blocks = _BlockNumbering(rows, order)
            for s in self._samples:
                best[s].add(request, part[:, s].flatten(), blocks)
        return best

    def _table(self) -> Iterator[tuple[BlockNumbers, Tensor]]:
        """The table of all sides together, chunk by chunk: ``(stack, samples, *axes of the meeting)``."""
        answerers = [
            Answerer(side.network, side.base, memory=self._memory, progress=_silent if n else self._progress)
            for n, side in enumerate(self._sides)
        ]
        known = [
            [answerer.live(stop, meeting.stops[0].site) for stop in (*meeting.above, *meeting.below)]
            for answerer, meeting in zip(answerers, self._meetings, strict=True)
        ]
        live = [sorted(set().union(*blocks)) for blocks in zip(*known, strict=True)]
        tables = [answerer.chunks(at, live) for answerer, at in zip(answerers, self._meetings, strict=True)]
        for chunks in zip(*tables, strict=True):
            parts = [
                side.weighed(part) for side, (_, part) in zip(self._sides, chunks, strict=True) if part is not None
            ]
            if parts:
                yield chunks[0][0], sum(parts[1:], parts[0])

    def _prefixes(self, bounded: bool) -> Prefixes:
        return Prefixes(self._sides, memory=self._memory, progress=self._progress, bounded=bounded)

    def _search(self, request: Request, effort: float) -> tuple[dict[int, BestFlows], dict[int, float]]:
        """Best-first: the prefix that can reach farthest is extended, until nothing left can reach the list."""
        prefixes = self._prefixes(bounded=True)
        best, queues = self._greedy(request), {s: Queue() for s in self._samples}
        if prefixes.are_pairs:
            with prefixes.keeping(self._memory // 4):
                return best, PairSearch(prefixes, request, best, self._progress).run(effort)
        for queue in queues.values():
            queue.push(math.inf, prefixes.root)
        left, width = max(1, int(effort / prefixes.cost)), 4
        for _ in self._progress(itertools.count(), None):
            batch = {s: queues[s].pop(best[s].threshold, min(width, left)) for s in self._samples}
            if left <= 0 or not any(batch.values()):
                break
            left -= max(map(len, batch.values()))
            width = min(2 * width, prefixes.width)
            for s, extension in prefixes.extend(batch):
                extension.rank(request, best[s], queues[s])
        return best, {s: queues[s].reach(best[s].threshold) for s in self._samples}

    def _greedy(self, request: Request) -> dict[int, BestFlows]:
        """Layer by layer, keeping the k prefixes of the largest relevance."""
        prefixes = self._prefixes(bounded=False)
        best, beam = {s: BestFlows(request.k) for s in self._samples}, {s: [prefixes.root] for s in self._samples}
        while any(beam.values()):
            queues = {s: Queue() for s in self._samples}
            for s, extension in prefixes.extend(beam):
                extension.rank(request, best[s], queues[s])
            beam = {s: queues[s].pop(0.0, request.k) for s in self._samples}
        return best


class _BlockNumbering:
    """Which blocks the entries of a chunk of a table are, in the order of the stops."""

    def __init__(self, rows: Sequence[list[int]], order: Sequence[int]) -> None:
        self._rows = rows
        self._order = order

    def __call__(self, at: Tensor) -> list[tuple[int, ...]]:
        places = torch.unravel_index(at, [len(r) for r in self._rows])
        numbers = {stop: [r[i] for i in p.tolist()] for stop, r, p in zip(self._order, self._rows, places, strict=True)}
        return list(zip(*(numbers[stop] for stop in sorted(numbers)), strict=True))


def _alike(sides: Sequence[Side], memory: int) -> list[Plan]:
    """Plans of one form for one question to several networks, so that their chunks fit together."""
    plans = [plan_stops(side.network, side.stops, memory=memory, base=side.base) for side in sides]
    first = plans[0]
    if any((plan.first, plan.strategy) != (first.first, first.strategy) for plan in plans):
        read = f"read {first.first}"
        plans = [plan_stops(s.network, s.stops, memory=memory, base=s.base, strategy=read) for s in sides]
    return [replace(plan, chunk=plans[0].chunk) for plan in plans]


def _silent(chunks: Iterator[Any], total: int | None) -> Iterator[Any]:
    return chunks


def table_cost(plan: Plan) -> float:
    """What the whole table of a question costs, in forward passes of arithmetic."""
    return (plan.flops + 8.0 * math.prod(plan.shape)) / max(plan.forward, SMALL)
