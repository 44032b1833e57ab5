"""Planning: how a question is answered, and what that costs, before anything is computed.

The stops of a question lie on a chain from the output to the input. Somewhere on it messages from above meet values
from below. They can meet at one stop, whose blocks are then read off at once, or between two stops with a single linear
step between them, whose blocks are tabulated by one contraction. Blocks of all other stops are spelled out as masks,
carried along on the stack axis. The planner compares every meeting place by its arithmetic.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nrm.errors import RuleError
from nrm.memory import ALIVE
from nrm.numbers import size_text
from nrm.questions.adjacent import contractible
from nrm.questions.channels import keeps_channels, mixes_channels
from nrm.questions.stops import Stop
from nrm.questions.sweep import Base, Site, arrivals_at, between, pull_to
from nrm.steps import Arrivals, Network
from nrm.tables import Records, cell, html_table

BASE = "base sweep"
"""The line of a plan that all questions to one measure share."""


@dataclass(frozen=True)
class Line:
    """One line of a plan: what is done, how often, and the arithmetic of doing it that often."""

    what: str
    times: int
    flops: float


@dataclass(frozen=True, repr=False)
class Plan(Records):
    """How a question will be answered: a value without tensors, which the executor follows and never asks back.

    Printing it shows how densities and amounts meet, what every step costs, memory, and the axes of the result.
    ``first`` is the stop where they meet, counted from the output down, ``mixing`` the steps that contract it with the
    next one, ``chunk`` how many blocks from above and from below are carried at once. ``messages`` densities run side
    by side for one block, in ``room`` entries at most; ``kept`` says that the base sweep has been made before.
    """

    how: str
    lines: tuple[Line, ...]
    shape: tuple[int, ...]
    axes: tuple[str, ...]
    forward: float
    element: int
    kept: bool
    chunk: tuple[int, int] = (1, 1)
    chunks: int = 1
    first: int = 0
    mixing: tuple[int, ...] = ()
    messages: int = 1
    room: int = 0
    peak: int = 0
    note: str = ""

    @property
    def strategy(self) -> str:
        """``"contract"`` if two stops meet in one linear step, else ``"read"``."""
        return "contract" if self.mixing else "read"

    @property
    def flops(self) -> float:
        """The arithmetic of the whole plan."""
        return sum(line.flops for line in self.lines)

    @property
    def passes(self) -> float:
        """The arithmetic in forward passes of the model."""
        return self.flops / max(self.forward, 1.0)

    @property
    def nbytes(self) -> int:
        """The size of the result."""
        return math.prod(self.shape) * self.element

    def records(self) -> list[dict[str, Any]]:
        """What every line of the plan costs."""
        return [
            {"step": x.what, "times": x.times, "flops": x.flops, "forward passes": x.flops / self.forward}
            for x in self.lines
        ]

    def __repr__(self) -> str:
        text = f"{self._head()}\n{cost_table(self.lines, self.forward)}\n  {self._result()}"
        return f"{text}\n  {self.note}" if self.note else text

    def _repr_html_(self) -> str:
        rows = [[cell(value) for value in record.values()] for record in self.records()]
        rows.append(["total", "", cell(self.flops), cell(self.flops / self.forward)])
        return html_table(self._head(), ("step", "times", "flops", "forward passes"), rows, [self._result()])

    def _head(self) -> str:
        return f"plan: {self.how}; base sweep {'kept from before' if self.kept else 'computed once and kept'}"

    def _result(self) -> str:
        sweeps = f"{self.chunks} sweep{'s' * (self.chunks != 1)} of about {size_text(self.peak)}"
        parts = sweeps if self.peak else f"{self.chunks} chunk{'s' * (self.chunks != 1)}"
        return f"result: {axes_text(self.axes, self.shape)}; {size_text(self.nbytes)} in {parts}"


@dataclass(frozen=True, eq=False)
class Meeting:
    """The stops of a question, from the output down, as a plan divides them."""

    stops: tuple[Stop, ...]
    first: int
    mixing: tuple[int, ...] = ()
    chunk: tuple[int, int] = (1, 1)

    @classmethod
    def of(cls, plan: Plan, stops: Sequence[Stop]) -> Meeting:
        """Where these stops meet, as the plan says."""
        return cls(downward(stops), plan.first, plan.mixing, plan.chunk)

    @property
    def above(self) -> tuple[Stop, ...]:
        """The stops above the meeting place, from the output down."""
        return self.stops[: self.first]

    @property
    def hubs(self) -> tuple[Stop, ...]:
        """The one or two stops where densities and amounts meet."""
        return self.stops[self.first : self.first + (2 if self.mixing else 1)]

    @property
    def below(self) -> tuple[Stop, ...]:
        """The stops below the meeting place, toward the input."""
        return self.stops[self.first + len(self.hubs) :]


def downward(stops: Sequence[Stop]) -> tuple[Stop, ...]:
    """Stops from the output down."""
    return tuple(sorted(stops, key=lambda stop: stop.site.order, reverse=True))


def cost_table(lines: Sequence[Line], forward: float) -> str:
    """What every line of a plan costs, and all of them."""
    total = sum(line.flops for line in lines)
    rows = [("step", "times", "flops", "forward passes")]
    rows += [(x.what, str(x.times), f"{x.flops:.2e}", f"{x.flops / forward:.2f}") for x in lines]
    rows.append(("total", "", f"{total:.2e}", f"{total / forward:.2f}"))
    wide = [max(len(row[k]) for row in rows) for k in range(4)]
    return "\n".join("  " + "  ".join(f"{cell:<{w}}" for cell, w in zip(row, wide, strict=True)) for row in rows)


def axes_text(axes: Sequence[str], shape: Sequence[int]) -> str:
    """The axes of a result with their sizes."""
    return ", ".join(f"{name} {n}" for name, n in zip(axes, shape, strict=True))


def plan_stops(
    network: Network, stops: Sequence[Stop], *, memory: int, base: Base | None, strategy: str | None = None
) -> Plan:
    """The cheapest plan; ``strategy`` forces ``"read"`` or ``"contract"``, or one meeting place: ``"read 0"``.

    ``base`` is the base sweep, where it has been made: blocks of the highest stop without any density cost nothing.
    """
    ordered = downward(stops)
    counts = {stop: stop.count for stop in ordered}
    if base is not None and len(ordered) > 1:  # nothing is carried for a single one
        counts[ordered[0]] = len(live_blocks(network, base, ordered[0], ordered[0].site))
    meetings = [Meeting(ordered, k) for k in range(len(ordered))]
    for k in range(len(ordered) - 1):
        mixing = contractible(network, ordered[k], ordered[k + 1])
        if mixing:
            meetings.append(Meeting(ordered, k, tuple(mixing)))
    candidates = [_plan(network, meeting, memory, base is not None, counts) for meeting in meetings]
    if strategy is not None:
        candidates = [c for c in candidates if strategy in (c.strategy, f"{c.strategy} {c.first}")]
        assert candidates, f"no plan with strategy {strategy!r}"
    return min(candidates, key=lambda plan: (plan.flops, -plan.first))


def _plan(network: Network, meeting: Meeting, memory: int, kept: bool, counts: Mapping[Stop, int]) -> Plan:
    above, hubs, below = meeting.above, meeting.hubs, meeting.below
    lines = base_lines(network, kept)
    pulls, pushes = 1, 1
    for upper, lower in itertools.pairwise((*above, hubs[0])):
        lines.append(_pull_line(network, upper, lower, pulls, counts[upper]))
        pulls *= counts[upper]
    for upper, lower in itertools.pairwise((hubs[-1], *below)[::-1]):
        lines.append(_push_line(network, upper, lower, pushes, counts[upper]))
        pushes *= counts[upper]
    stack = pulls * pushes
    labels = [hub.frame.label for hub in hubs]
    if meeting.mixing:
        each = route_flops(network, hubs[1].site, hubs[0].site)
        lines.append(Line(f"contract {' x '.join(labels)}", stack, stack * each))
    else:
        lines.append(Line(f"read {labels[0]}", stack, stack * 2.0 * hubs[0].frame.shape.numel()))
    element = network.tape.nodes[network.tape.output].value.element_size()
    shape, names = result_axes(meeting.stops, hubs[0].frame.batch)
    chunk = _chunk(network, above, hubs, below, memory // element)
    sides = (math.prod(stop.count for stop in side) for side in (above, below))
    return Plan(
        f"{'contract' if meeting.mixing else 'read'} at {' and '.join(labels)}", tuple(lines), tuple(shape),
        tuple(names), network.tape.forward, element, kept, chunk, first=meeting.first, mixing=meeting.mixing,
        chunks=math.prod(math.ceil(n / fits) for n, fits in zip(sides, chunk, strict=True)),
    )  # fmt: skip


def base_lines(network: Network, kept: bool) -> list[Line]:
    """The base sweep, where it has not been made yet: column sums and transposes of all that relevance reaches."""
    reached = (2 * network.tape.flops[i] for i, reached in enumerate(network.rules.reached) if reached)
    return [] if kept else [Line(BASE, 1, sum(reached))]


def result_axes(stops: Sequence[Stop], batch: int) -> tuple[list[int], list[str]]:
    """The sizes and names of the axes of a result: samples first, then in the order of the arguments."""
    owners = sorted((a, n, b.text) for s in stops for a, b in zip(s.axes, s.blocks, strict=True) for n in [b.shape])
    sizes = [batch] + [n for _, sizes, _ in owners for n in sizes]
    return sizes, ["sample"] + [text for _, sizes, text in owners for _ in sizes]


def _chunk(
    network: Network, above: Sequence[Stop], meeting: Sequence[Stop], below: Sequence[Stop], entries: int
) -> tuple[int, int]:
    """How many blocks from above and from below are carried at once, so that so many entries are enough."""
    up = entries // (ALIVE * widest(network, (*above, meeting[0])) * (2 if below else 1))
    down = entries // (ALIVE * widest(network, (meeting[-1], *below)) * (2 if above else 1))
    up, down = (max(1, min(n, math.prod(s.count for s in side))) for n, side in ((up, above), (down, below)))
    inner = meeting[0].frame.batch * math.prod(s.count for s in meeting)
    spelled = len(meeting) > 1 or len(meeting[0].blocks) > 1
    each = 4 * max(inner, max(s.frame.shape.numel() for s in meeting) if spelled else 0)
    if up * down * each > entries:
        up = max(1, entries // (down * each))
        down = max(1, min(down, entries // (up * each)))
    return up, down


def _pull_line(network: Network, upper: Stop, lower: Stop, times: int, count: int) -> Line:
    """Densities of some blocks of the upper stop, carried down: channels travel together at first, then each apart."""
    what, high, low = f"pull {upper.frame.label} -> {lower.frame.label}", upper.site, lower.site
    if not upper.channels:
        return Line(what, times * count, times * count * route_flops(network, low, high))
    nodes, route = network.tape.nodes, between(network, low.node, high.node)
    together, apart = {high.node}, set[int]()
    once = each = 0.0
    for i in sorted(route - {low.node}, reverse=True):
        inputs = {j for j in nodes[i].inputs if j in route}
        if i in together:
            if mixes_channels(network, nodes[i]):
                once += network.tape.flops[i]
                apart |= inputs
            elif all(keeps_channels(network, nodes[i], p) for p, j in enumerate(nodes[i].inputs) if j in inputs):
                once += network.tape.flops[i]
                together |= inputs
            else:
                apart.add(i)
        if i in apart:
            each += network.tape.flops[i]
            apart |= inputs
    return Line(what, times * count, times * (once + count * each))


def _push_line(network: Network, lower: Stop, upper: Stop, times: int, count: int) -> Line:
    """Amounts of some blocks of the lower stop that rise: channels travel together at first, then each apart."""
    what, high, low = f"push {lower.frame.label} -> {upper.frame.label}", upper.site, lower.site
    if not lower.channels:
        return Line(what, times * count, times * count * route_flops(network, low, high))
    nodes, route = network.tape.nodes, between(network, low.node, high.node)
    together = {low.node}
    once = each = 0.0
    for i in sorted(route - {low.node}):
        live = [(p, j) for p, j in enumerate(nodes[i].inputs) if j in route]
        if all(j in together and keeps_channels(network, nodes[i], p) for p, j in live):
            once += network.tape.flops[i]
            together.add(i)
        elif mixes_channels(network, nodes[i]) and nodes[i].inputs[0] in together:
            once += network.tape.flops[i]
        else:
            each += network.tape.flops[i]
    return Line(what, times * count, times * (once + count * each))


def route_flops(network: Network, low: Site, high: Site) -> float:
    """The arithmetic of carrying one message between two sites."""
    route = between(network, low.node, high.node) - {low.node}
    return sum(network.tape.flops[i] for i in route if network.rules.reached[i])


def widest(network: Network, stops: Sequence[Stop]) -> int:
    """The largest tensor that messages of this question pass."""
    nodes = network.tape.nodes
    low, high = min(s.site.node for s in stops), max(s.site.node for s in stops)
    route = between(network, low, high) | {s.site.node for s in stops}
    return max(1, *(nodes[i].value.numel() for i in route))


def live_blocks(network: Network, base: Base, stop: Stop, top: Site) -> list[int]:
    """The blocks at which any density may arrive from ``top``, the highest site where a question chooses walks.

    Densities of both signs may add up to 0, and are not nothing: an event above can tell them apart.
    """
    if stop.count == 1:
        return [0]
    try:
        arrivals = arrivals_at(network, base, top) if stop.site == top else _bound(network, base, top, stop.site)
    except RuleError:  # of a step whose single weights are not known, nothing is known to be left out
        return list(range(stop.count))
    if arrivals is None:
        return []
    size: Tensor | float = 0.0
    for node, rho in arrivals.items():
        reach = network.reach(node)
        size = size + (rho.abs() if reach is None else rho.abs() * reach).expand(rho.shape[0], *stop.frame.shape)
    found: list[int] = stop.read(torch.as_tensor(size)).flatten(2).amax((0, 1)).nonzero()[:, 0].tolist()
    return found


def _bound(network: Network, base: Base, top: Site, goal: Site) -> Arrivals | None:
    """What arrives at a site if nothing cancels on the way from a higher one."""
    arrivals = arrivals_at(network, base, top)
    if arrivals is None:
        return None
    end = goal.node if goal.consumer is None else goal.consumer
    absolute = network.absolute(between(network, end, top.node))
    return pull_to(absolute, top, absolute.magnitudes(arrivals), goal)
