"""Questions about formulas and weights: their plan, and the sweeps that answer them.

Everything fixed is an event of a track; layers and partitions are free. Messages in all states are carried from the
output through the free layers, the blocks of all but the lowest spelled out on the stack. There they meet the outlook
of what lies below, and its blocks are read. Without a free layer, every state is followed until its answer is certain.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from nrm.errors import MemoryLimitError
from nrm.memory import ALIVE, size_text
from nrm.questions.answer import Answerer, blocks_in_chunks, grid, ordered
from nrm.questions.course import Course, Size, Turn
from nrm.questions.outlook import Outlook
from nrm.questions.plan import (
    Costs,
    Line,
    axes_text,
    base_lines,
    cost_table,
    model_flops,
    result_axes,
    step_flops,
)
from nrm.questions.stops import Stop, axes_of, frame_at
from nrm.questions.sweep import Site
from nrm.questions.track import Track
from nrm.steps import Arrivals


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


@dataclass(frozen=True, eq=False, repr=False)
class TrackedPlan(Costs):
    """How a question about formulas or weights will be answered. Printing it shows the cost before anything is done."""

    journeys: tuple[Journey, ...]
    stops: tuple[Stop, ...]
    answers: int
    lines: tuple[Line, ...]
    shape: tuple[int, ...]
    axes: tuple[str, ...]
    forward: float
    element: int
    chunk: int
    kept: bool

    @property
    def above(self) -> tuple[Stop, ...]:
        """The free stops whose blocks are spelled out."""
        return self.stops[:-1]

    @property
    def meeting(self) -> tuple[Stop, ...]:
        """The lowest free stop, if there is any."""
        return self.stops[-1:]

    @property
    def below(self) -> tuple[Stop, ...]:
        """No stops: what lies below is an outlook."""
        return ()

    @property
    def flops(self) -> float:
        """The arithmetic of the whole plan."""
        return sum(line.flops for line in self.lines)

    @property
    def nbytes(self) -> int:
        """The size of the result."""
        return math.prod(self.shape) * self.element

    @property
    def messages(self) -> int:
        """The largest number of messages that are carried side by side for one block."""
        return max(journey.size.messages for journey in self.journeys)

    @property
    def peak(self) -> int:
        """About how many bytes are needed at once."""
        return ALIVE * max(journey.size.entries for journey in self.journeys) * self.element

    @property
    def chunks(self) -> int:
        """In how many sweeps the question is worked off."""
        return len(self.journeys) * math.ceil(math.prod(s.count for s in self.above) / self.chunk)

    def __repr__(self) -> str:
        where = f"; read at {self.meeting[0].frame.label}" if self.meeting else ""
        base = "kept from before" if self.kept else "computed once and kept"
        return (
            f"plan: at most {self.messages} messages side by side{where}; base sweep {base}\n"
            f"{cost_table(self.lines, self.forward)}\n"
            f"  result: {axes_text(self.axes, self.shape)}; {self.nbytes / 2**20:.2f} MiB in {self.chunks} "
            f"sweep{'s' * (self.chunks != 1)} of about {size_text(self.peak)}"
        )


def plan_tracked(track: Track, stops: Sequence[Stop], *, answers: int, memory: int, kept: bool) -> TrackedPlan:
    """The plan: as few sweeps as fit into the memory bound. ``answers`` is how many a question without stops has."""
    network = track.network
    free = tuple(sorted(stops, key=lambda s: s.site.order, reverse=True))
    element = network.tape.nodes[network.tape.output].value.element_size()
    entries = memory // (ALIVE * element)
    journeys = tuple(_journeys(track, free, entries, 0))
    lines = base_lines(network, kept)
    blocks = 1
    for n, stop in enumerate(free):
        lines.append(_line(f"pull to {stop.frame.label}", [j.legs[n] for j in journeys], blocks))
        blocks *= stop.count if n < len(free) - 1 else 1
    if free:
        pushed = sum(len(j.last.inner[i]) * step_flops(network, i) for j in journeys for i in j.pushed)
        most = max((len(j.last.inner[i]) for j in journeys for i in j.pushed), default=0)
        lines += [Line(f"push to {free[-1].frame.label}", most, pushed)] if pushed else []
        lines.append(Line(f"read {free[-1].frame.label}", blocks, blocks * 2.0 * free[-1].frame.shape.numel()))
    else:
        lines.append(_line("pull until settled", [j.last for j in journeys], 1))
    shape, axes = result_axes(free, network.tape.batch)
    if answers > 1:
        shape, axes = [*shape, answers], [*axes, "combination"]
    chunk = max(1, entries // max(1, *(j.size.entries for j in journeys)))
    return TrackedPlan(
        journeys, free, answers, tuple(lines), tuple(shape), tuple(axes), model_flops(network), element, chunk, kept
    )  # fmt: skip


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
            flops += sum(len(rows) * step_flops(network, i) for i, rows in course.inner.items())
            most = max(most, course.size().messages)
    return Line(what, blocks * most, blocks * flops)


def answer_tracked(answerer: Answerer, plan: TrackedPlan, absolute: bool = False) -> Tensor:
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
    if not plan.stops:
        return _settle_all(answerer, plan, absolute)
    hub = plan.meeting[0]
    table = answerer.like.new_zeros(*(s.count for s in plan.above), hub.frame.batch, *axes_of(hub))
    top = Site(answerer.network.tape.output)
    live = [answerer.live(stop, top) for stop in plan.above]
    jobs = [(journey, rows) for journey in plan.journeys for rows in blocks_in_chunks(live, plan.chunk)]
    outlook: tuple[Journey, Outlook] | None = None
    for journey, rows in answerer.progress(iter(jobs), len(jobs)):
        if outlook is None or outlook[0] is not journey:
            outlook = (journey, Outlook(journey.last).rise())
        part = _read(answerer, plan, journey, rows, outlook[1], absolute)
        if part is not None:
            at = grid(rows, table.device)
            table[at] += part.reshape(*(len(r) for r in rows), *table.shape[len(rows) :])
    return ordered(table, plan)


def _read(
    answerer: Answerer, plan: TrackedPlan, journey: Journey, rows: tuple[list[int], ...], outlook: Outlook,
    absolute: bool,
) -> Tensor | None:  # fmt: skip
    """The table of the lowest stop for some blocks of the others: ``(stack, batch, *axes)``; None is 0."""
    hub = plan.meeting[0]
    arrivals: Arrivals | None = answerer.output
    for stop, leg, blocks in zip(plan.stops, journey.legs, (*rows, None), strict=True):
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


def _settle_all(answerer: Answerer, plan: TrackedPlan, absolute: bool) -> Tensor:
    """The answers without a free layer: ``(batch, answers)``, or ``(batch,)`` if it is one."""
    network, result = answerer.network, answerer.like.new_zeros(plan.answers, answerer.network.tape.batch)

    def add(site: Site, turn: Turn, arrivals: Arrivals) -> None:
        here = Stop(site, frame_at(network, site))
        for mask, sources, numbers in turn.settled:
            picked = arrivals.each(partial(_picked, sources=sources, mask=mask))
            relevance = network.relevance(picked)
            if relevance is not None:
                sums = here.read(relevance.abs() if absolute else relevance)
                result.index_add_(0, torch.tensor(numbers, device=result.device), sums)

    for journey in answerer.progress(iter(plan.journeys), len(plan.journeys)):
        journey.last.carry(answerer.output, add)
    return result[0] if plan.answers == 1 else result.T


def _picked(stack: Tensor, sources: list[int], mask: Tensor | None) -> Tensor:
    return stack[sources] if mask is None else stack[sources] * mask


def _never(site: Site, turn: Turn, arrivals: Arrivals) -> None:
    raise AssertionError("nothing is settled above a free layer")
