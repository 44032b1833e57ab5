"""Carrying out a plan: messages from above, values from below, and the table where they meet."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from nrm.memory import fitting, refuse_larger
from nrm.questions.adjacent import adjacent_table
from nrm.questions.kept import Messages
from nrm.questions.plan import Meeting, Plan, downward, live_blocks, plan_stops, widest
from nrm.questions.rise import Pushed, products_at
from nrm.questions.stops import Stop, axes_of
from nrm.questions.sweep import Base, Site, arrivals_at, pull_each, pull_to
from nrm.questions.values import Set
from nrm.steps import Arrivals, Network, total_of

BlockNumbers = tuple[list[int], ...]
"""Some blocks of every one of several stops, by number."""
Progress = Callable[[Iterator[Any], int | None], Iterator[Any]]
"""Shows how far an iteration is; None if nobody knows how long it will be."""


class Answerer:
    """Carries out plans on one network with one kept base sweep."""

    def __init__(
        self, network: Network, base: Base, *, memory: int, progress: Progress, messages: Messages | None = None
    ) -> None:
        self.network = network
        self._base = base
        self._messages = Messages(0) if messages is None else messages
        self.memory = memory
        self.progress = progress
        self.like = network.tape.nodes[network.tape.output].value
        self.output = base.arrivals[network.tape.output]

    def table(self, stops: Sequence[Stop], plan: Plan, absolute: bool = False) -> Tensor:
        """``(batch, *axes)`` with the axes of all blocks in the order of the arguments.

        ``absolute`` sums the absolute relevances of the meeting place's neurons: the total variation inside the event.
        """
        self.guard(plan.nbytes)
        meeting = Meeting.of(plan, stops)
        outer = (*meeting.above, *meeting.below)
        inner = [n for stop in meeting.hubs for n in axes_of(stop)]
        table = self.like.new_zeros(*(s.count for s in outer), meeting.stops[0].frame.batch, *inner)
        live = [self.live(stop, meeting.stops[0].site) for stop in outer]
        for rows, part in self.chunks(meeting, live, absolute):
            if part is not None:
                table[grid(rows, table.device)] = part.reshape(*(len(r) for r in rows), *table.shape[len(outer) :])
        return ordered(table, outer, meeting.hubs)

    def guard(self, nbytes: int) -> None:
        """Refuses results that are larger than the memory bound."""
        refuse_larger(
            "the table is larger", nbytes, self.memory,
            "fewer blocks (a.channels[[3, 7]]), coarser groups, R.each(...) block by block, "
            "R.flows(...) for the largest entries, or memory= in nrm.measure",
        )  # fmt: skip

    def chunks(
        self, meeting: Meeting, live: Sequence[list[int]], absolute: bool = False
    ) -> Iterator[tuple[BlockNumbers, Tensor | None]]:
        """The table chunk by chunk: the blocks of the outer stops, and ``(stack, batch, *axes of the meeting)``.

        ``live`` are the blocks of every outer stop that are carried; a chunk that is None is 0 everywhere.
        """
        sides = (live[: len(meeting.above)], live[len(meeting.above) :])
        ups, downs = (list(blocks_in_chunks(side, fits)) for side, fits in zip(sides, meeting.chunk, strict=True))
        lower, pushed = None, None  # amounts from below rise once, and meet the densities of all chunks from above
        for down, up in self.progress(itertools.product(downs, ups), len(ups) * len(downs)):
            if down is not pushed:
                lower, pushed = self._push(meeting.below, down), down
            part = self._part(meeting, up, lower, absolute)
            stack = math.prod(len(r) for r in (*up, *down))
            yield (*up, *down), None if part is None else part.expand(stack, *part.shape[1:])
        self._messages.trim()

    def live(self, stop: Stop, top: Site) -> list[int]:
        """The blocks of a stop at which any density may arrive from ``top``."""
        return live_blocks(self.network, self._base, stop, top)

    def _part(self, meeting: Meeting, up: BlockNumbers, lower: Pushed | None, absolute: bool) -> Tensor | None:
        """The table for one chunk of outer blocks, ``(stack, batch, *axes of the meeting)``; None is 0."""
        hub = meeting.hubs[0]
        arrivals = self._arrive(meeting.above, hub, up)
        if arrivals is None:
            return None
        if meeting.mixing:
            return self.contract(hub, meeting.hubs[1], meeting.mixing, arrivals, lower)
        parts = products_at(self.network, hub.site, arrivals, lower)
        if not absolute:
            return hub.read_parts(parts)
        relevance, mask = total_of(parts), hub.mask()
        if relevance is None:
            return None
        return hub.read((relevance if mask is None else relevance * mask).abs())

    def contract(
        self, high: Stop, low: Stop, mixing: Sequence[int], arrivals: Arrivals, lower: Pushed | None
    ) -> Tensor | None:
        """All pairs of blocks of two stops with a mixing step between them: ``(stack, batch, high, low)``."""
        mask = high.mask()
        if mask is not None:
            arrivals = arrivals.masked(mask)
        values = self._pushed(low, low.mask(), lower)
        table = adjacent_table(self.network, high.site, arrivals, low.site, values, lower, mixing)
        if table is None:
            return None
        table = table.transpose(2, 3)
        for axis, stop in ((2, high), (3, low)):
            table = stop.blocks[0].gather_channels(table, axis)
        return table

    def arrivals_at(self, stop: Stop) -> Arrivals | None:
        """What arrives at a stop without any event above it."""
        return arrivals_at(self.network, self._base, stop.site)

    def read(self, stop: Stop, arrivals: Arrivals) -> Tensor | None:
        """The relevance of every block of a stop, ``(stack, batch, *axes)``; None is 0."""
        return stop.read_parts(self.network.products(arrivals))

    def carry_down(self, start: Stop, goals: Sequence[Stop]) -> Iterator[tuple[list[int], Site, Arrivals]]:
        """Carries every block of a stop to many lower ones in one sweep: which blocks, where, and what arrives."""
        sites = list(dict.fromkeys(goal.site for goal in goals))
        wide = widest(self.network, [start, *goals])
        fits = fitting(self.memory, wide * self.like.element_size())
        chunks = list(blocks_in_chunks([self.live(start, start.site)], fits))
        for (rows,) in self.progress(iter(chunks), len(chunks)):
            arrivals = self.arrivals_at(start)
            if arrivals is None:
                return
            mask = start.mask() if start.channels else _mask(start, rows)
            if mask is not None:
                arrivals = arrivals.masked(mask)
            channels = start.numbers(rows) if start.channels else None
            for site, found in pull_each(self.network, start.site, arrivals, sites, channels):
                yield rows, site, found

    def push_all(self, stops: Sequence[Stop], network: Network | None = None) -> list[Pushed | None]:
        """For each of the stops, the values of all stops below it as fixed events, whatever their blocks."""
        below: list[Pushed | None] = [None]
        for stop in reversed(stops[1:]):
            below.insert(0, self._pushed(stop, stop.mask(), below[0], network=network))
        return below

    def _arrive(self, above: Sequence[Stop], goal: Stop, up: BlockNumbers) -> Arrivals | None:
        sites = [s.site for s in above] + [goal.site]
        arrivals = arrivals_at(self.network, self._base, sites[0])
        # Events above the first partition are the same in every chunk, and often in the next question.
        fixed = next((n for n, stop in enumerate(above) if stop.blocks), len(above))
        if fixed:
            key = ("pull", *_key(above[:fixed]), sites[fixed])
            arrivals = self._messages.get(key, lambda: self._arrive_fixed(above[:fixed], sites, arrivals))
        for k in range(fixed, len(above)):
            if arrivals is None:
                return None
            stop, rows = above[k], up[k]
            mask = stop.mask() if stop.channels else _mask(stop, rows)
            if mask is not None:
                arrivals = arrivals.masked(mask)
            channels = stop.numbers(rows) if stop.channels else None
            arrivals = pull_to(self.network, sites[k], arrivals, sites[k + 1], channels)
        return arrivals

    def _arrive_fixed(self, stops: Sequence[Stop], sites: list[Site], arrivals: Arrivals | None) -> Arrivals | None:
        """What arrives through events without blocks, which questions have in common."""
        for k, stop in enumerate(stops):
            if arrivals is None:
                return None
            mask = stop.mask()
            arrivals = arrivals if mask is None else arrivals.masked(mask)
            arrivals = pull_to(self.network, sites[k], arrivals, sites[k + 1])
        return arrivals

    def _push(self, below: Sequence[Stop], down: BlockNumbers) -> Pushed | None:
        fixed = next((n for n, stop in enumerate(reversed(below)) if stop.blocks), len(below))
        lowest = below[len(below) - fixed :]
        lower: Pushed | None = None
        if fixed:
            lower = self._messages.get(("push", *_key(lowest)), lambda: self._push_fixed(lowest))
        for stop, rows in reversed(list(zip(below, down, strict=True))[: len(below) - fixed]):
            if stop.channels:
                lower = self._pushed(stop, stop.mask(), lower, stop.numbers(rows))
            else:
                lower = self._pushed(stop, _mask(stop, rows), lower)
        return lower

    def _push_fixed(self, stops: Sequence[Stop]) -> Pushed | None:
        lower: Pushed | None = None
        for stop in reversed(stops):
            lower = self._pushed(stop, stop.mask(), lower)
        return lower

    def _pushed(
        self, stop: Stop, mask: Tensor | None, lower: Pushed | None, channels: Sequence[int] | None = None,
        network: Network | None = None,
    ) -> Pushed:  # fmt: skip
        if mask is None:
            mask = torch.ones((1, *(1,) * len(stop.frame.shape)), dtype=torch.bool, device=self.like.device)
        wide = mask.to(self.like.dtype).expand(mask.shape[0], *stop.frame.shape)
        return Pushed(network or self.network, stop.site, wide, lower, channels)


class PlainRoute:
    """A question about sets and partitions, each of one tensor, on one network: its stops from the output down."""

    def __init__(self, network: Network, stops: Sequence[Stop]) -> None:
        self.network = network
        self.stops = downward(stops)

    def plan(self, *, memory: int, base: Base | None, absolute: bool = False) -> Plan:
        """The cheapest plan. ``base`` is the base sweep, where it is known; ``absolute`` relevances have to be read."""
        strategy = "read" if absolute else None
        return plan_stops(self.network, self.stops, memory=memory, base=base, strategy=strategy)

    def answer(self, answerer: Answerer, plan: Plan, absolute: bool = False) -> Tensor:
        """``(batch, *axes)``, as the plan says."""
        return answerer.table(self.stops, plan, absolute)


def _key(stops: Sequence[Stop]) -> tuple[tuple[Site, tuple[Set, ...]], ...]:
    """What tells the messages of fixed events apart."""
    return tuple((stop.site, tuple(stop.sets)) for stop in stops)


def grid(rows: BlockNumbers, device: torch.device) -> tuple[Any, ...]:
    """The index of all combinations of these rows."""
    if all(r == list(range(r[0], r[0] + len(r))) for r in rows):
        return tuple(slice(r[0], r[0] + len(r)) for r in rows) or (...,)
    at = [torch.tensor(r, device=device) for r in rows]
    return torch.meshgrid(*at, indexing="ij")


def _mask(stop: Stop, rows: Sequence[int]) -> Tensor | None:
    return stop.block_masks(rows) if stop.blocks else stop.mask()


def blocks_in_chunks(rows: Sequence[list[int]], fits: int) -> Iterator[BlockNumbers]:
    """The blocks of several stops in chunks of so many combinations."""
    lengths: list[int] = []
    for live in reversed(rows):
        lengths.insert(0, max(1, min(len(live), fits)))
        fits = max(1, fits // lengths[0])
    pieces = [[live[b : b + n] for b in range(0, len(live), n)] for live, n in zip(rows, lengths, strict=True)]
    yield from itertools.product(*pieces)


def ordered(table: Tensor, outer: Sequence[Stop], hubs: Sequence[Stop] = ()) -> Tensor:
    """One flat axis per outer stop, the batch, the axes of hubs, and more, in the order of a result.

    That is the batch, the axes of all blocks in the order of their arguments, and what more there is.
    """
    shape = [n for stop in outer for n in axes_of(stop)]
    table = table.reshape(*shape, *table.shape[len(outer) :])
    own, inner = (
        [a for s in stops for a, b in zip(s.axes, s.blocks, strict=True) for _ in b.shape] for stops in (outer, hubs)
    )
    owners = [*own, -1, *inner]
    order = sorted(range(len(owners)), key=lambda k: (owners[k], k))
    return table.permute(*order, *range(len(owners), table.ndim))
