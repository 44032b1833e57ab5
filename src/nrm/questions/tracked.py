"""Questions about formulas and weights: their plan, and the sweeps that answer them.

Everything fixed is an event of a track; layers and partitions are free. Messages in all states are carried from the
output through the free layers, the blocks of all but the lowest spelled out on the stack. There they meet the outlook
of what lies below, and its blocks are read. Without a free layer, every state is followed until its answer is certain.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from nrm.errors import MemoryLimitError
from nrm.memory import ALIVE
from nrm.numbers import size_text
from nrm.questions.answer import Answerer, blocks_in_chunks, grid, ordered
from nrm.questions.course import Course, Size, StateTurn
from nrm.questions.outlook import Outlook
from nrm.questions.plan import (
    Line,
    Meeting,
    Plan,
    base_lines,
    downward,
    result_axes,
)
from nrm.questions.stops import Stop, axes_of, frame_at
from nrm.questions.sweep import Base, Site
from nrm.questions.track import Track
from nrm.steps import Arrivals, Network


class Journey:
    """The way of messages for one track: through the free stops to the lowest one, and the course below it."""

    def __init__(self, track: Track, stops: Sequence[Stop]) -> None:
        site, states = Site(track.network.tape.output), [track.start]
        self.legs: list[Course | None] = []
        for stop in stops:
            leg = None if stop.site == site else Course(track, site, states, stop.site)
            self.legs.append(leg)
            site, states = stop.site, states if leg is None else leg.end
        self.last = Course(track, site, states, settle=not stops)
        self.pushed = Outlook(self.last).steps() if stops else []
        """The nodes of the last course whose values are computed, if messages are read in front of it."""
        sizes = [leg.size() for leg in self.legs if leg is not None]
        sizes.append(self.last.size([site.node, *self.pushed] if stops else None))
        self.size = Size(max(size.messages for size in sizes), max(size.entries for size in sizes))
        """How much runs side by side, blocks left aside."""


class TrackedRoute:
    """A question about formulas or weights on one network: its track, and its free stops from the output down.

    ``answers`` is how many a question without stops has.
    """

    def __init__(self, track: Track, stops: Sequence[Stop], answers: int = 1) -> None:
        self.track = track
        self.stops = downward(stops)
        self.answers = answers
        self._journeys: dict[int, tuple[Journey, ...]] = {}

    def journeys(self, room: int) -> tuple[Journey, ...]:
        """As few journeys as have no more than so many entries side by side."""
        if room not in self._journeys:
            self._journeys[room] = tuple(_journeys(self.track, self.stops, room, 0))
        return self._journeys[room]

    def plan(self, *, memory: int, base: Base | None, absolute: bool = False) -> Plan:
        """As few sweeps as fit into the memory bound; absolute relevances cost no more."""
        kept = base is not None
        network, free = self.track.network, self.stops
        element = network.tape.nodes[network.tape.output].value.element_size()
        room = memory // (ALIVE * element)
        journeys = self.journeys(room)
        lines = base_lines(network, kept)
        blocks = 1
        for n, stop in enumerate(free):
            lines.append(_line(f"pull to {stop.frame.label}", [j.legs[n] for j in journeys], blocks))
            blocks *= stop.count if n < len(free) - 1 else 1
        lines += _last_lines(network, free, journeys, blocks)
        shape, axes = result_axes(free, network.tape.batch)
        if self.answers > 1:
            shape, axes = [*shape, self.answers], [*axes, "combination"]
        entries = max(journey.size.entries for journey in journeys)
        messages = max(journey.size.messages for journey in journeys)
        chunk = max(1, room // max(1, entries))
        where = f"; read at {free[-1].frame.label}" if free else ""
        return Plan(
            f"at most {messages} messages side by side{where}", tuple(lines), tuple(shape), tuple(axes),
            network.tape.forward, element, kept, (chunk, 1), len(journeys) * math.ceil(blocks / chunk),
            first=max(0, len(free) - 1), messages=messages, room=room, peak=ALIVE * entries * element,
        )  # fmt: skip

    def answer(self, answerer: Answerer, plan: Plan, absolute: bool = False) -> Tensor:
        """``(batch, *axes)``, or ``(batch, answers)`` if nothing is free and there are several.

        ``absolute`` sums the absolute relevances of the neurons where messages are read or settled.
        """
        answerer.guard(plan.nbytes)
        if plan.messages > 1 and plan.peak > answerer.memory:
            raise MemoryLimitError(
                "the formula needs more messages side by side than the memory bound allows",
                got=f"{plan.messages} messages, about {size_text(plan.peak)}",
                expected=f"at most {size_text(answerer.memory)}",
                hint="fewer events, or events in fewer layers; memory= in nrm.measure; R.plan(formula) shows the cost",
            )  # fmt: skip
        journeys = self.journeys(plan.room)
        if not self.stops:
            return _settle_all(answerer, journeys, self.answers, absolute)
        meeting = Meeting.of(plan, self.stops)
        hub = meeting.hubs[0]
        table = answerer.like.new_zeros(*(s.count for s in meeting.above), hub.frame.batch, *axes_of(hub))
        top = Site(answerer.network.tape.output)
        live = [answerer.live(stop, top) for stop in meeting.above]
        jobs = [(journey, rows) for journey in journeys for rows in blocks_in_chunks(live, plan.chunk[0])]
        outlook: tuple[Journey, Outlook] | None = None
        for journey, rows in answerer.progress(iter(jobs), len(jobs)):
            if outlook is None or outlook[0] is not journey:
                outlook = (journey, Outlook(journey.last).rise())
            part = _read(answerer, meeting, journey, rows, outlook[1], absolute)
            if part is not None:
                at = grid(rows, table.device)
                table[at] += part.reshape(*(len(r) for r in rows), *table.shape[len(rows) :])
        return ordered(table, meeting.above, meeting.hubs)


def _last_lines(network: Network, free: Sequence[Stop], journeys: Sequence[Journey], blocks: int) -> list[Line]:
    """Where a question is read, with what rises to meet it; without a free stop, where every state is settled."""
    if not free:
        return [_line("pull until settled", [j.last for j in journeys], 1)]
    pushed = sum(len(j.last.inner[i]) * network.tape.flops[i] for j in journeys for i in j.pushed)
    most = max((len(j.last.inner[i]) for j in journeys for i in j.pushed), default=0)
    label = free[-1].frame.label
    lines = [Line(f"push to {label}", most, pushed)] if pushed else []
    return [*lines, Line(f"read {label}", blocks, blocks * 2.0 * free[-1].frame.shape.numel())]


def _journeys(track: Track, stops: Sequence[Stop], entries: int, event: int) -> Iterator[Journey]:
    """One journey, or several that tell events apart one by one, so that fewer messages run side by side."""
    whole = Journey(track, stops)
    if whole.size.entries <= entries or whole.size.messages <= 1 or 2**event >= len(track.labels):
        yield whole
        return
    for side in track.split(event):
        if bool((side.labels >= 0).any()):
            yield from _journeys(side, stops, entries, event + 1)


def _line(what: str, courses: Sequence[Course | None], blocks: int) -> Line:
    flops, most = 0.0, 0
    for course in courses:
        if course is not None:
            network = course.track.network
            flops += sum(len(rows) * network.tape.flops[i] for i, rows in course.inner.items())
            most = max(most, course.size().messages)
    return Line(what, blocks * most, blocks * flops)


def _read(
    answerer: Answerer, meeting: Meeting, journey: Journey, rows: tuple[list[int], ...], outlook: Outlook,
    absolute: bool,
) -> Tensor | None:  # fmt: skip
    """The table of the lowest stop for some blocks of the others: ``(stack, batch, *axes)``; None is 0."""
    hub = meeting.hubs[0]
    arrivals: Arrivals | None = answerer.output
    for stop, leg, blocks in zip(meeting.stops, journey.legs, (*rows, None), strict=True):
        arrivals = arrivals if leg is None or arrivals is None else leg.carry(arrivals, _never)
        if arrivals is None:
            return None
        if blocks is not None:
            arrivals = arrivals.masked(stop.block_masks(blocks).to(answerer.like.dtype))
    assert arrivals is not None
    site, course = hub.site, journey.last
    if site.port:
        turn = course.turn(site)
        parts = [] if not turn.after else turn.down(arrivals).tensors
        found = [p.reshape(turn.after, -1, *p.shape[1:]).sum(0) for p in parts]
    else:
        if not course.inner.get(site.node):
            return None
        if site.consumer is not None:
            arrivals = course.turn(site).down(arrivals)
        found = outlook.ahead(course.turn(Site(site.node)).down(arrivals), site.node)
    if not found:
        return None
    relevance, mask = sum(found[1:], found[0]), hub.mask()
    relevance = relevance if mask is None else relevance * mask
    return hub.read(relevance.expand(relevance.shape[0], *hub.frame.shape).abs() if absolute else relevance)


def _settle_all(answerer: Answerer, journeys: Sequence[Journey], answers: int, absolute: bool) -> Tensor:
    """The answers without a free layer: ``(batch, answers)``, or ``(batch,)`` if it is one."""
    network, result = answerer.network, answerer.like.new_zeros(answers, answerer.network.tape.batch)

    def add(site: Site, turn: StateTurn, arrivals: Arrivals) -> None:
        here = Stop(site, frame_at(network, site))
        for mask, sources, numbers in turn.settled:
            picked = arrivals.each(partial(_picked, sources=sources, mask=mask))
            relevance = network.relevance(picked)
            if relevance is not None:
                sums = here.read(relevance.abs() if absolute else relevance)
                result.index_add_(0, torch.tensor(numbers, device=result.device), sums)

    for journey in answerer.progress(iter(journeys), len(journeys)):
        journey.last.carry(answerer.output, add)
    return result[0] if answers == 1 else result.T


def _picked(stack: Tensor, sources: list[int], mask: Tensor | None) -> Tensor:
    return stack[sources] if mask is None else stack[sources] * mask


def _never(site: Site, turn: StateTurn, arrivals: Arrivals) -> None:
    raise AssertionError("nothing is settled above a free layer")
