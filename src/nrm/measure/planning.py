"""Plans of every question that can be asked, before anything is computed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from nrm.measure.asking import count_axes, graph_stops, route_of, stack_in, step_pairs, steps_in
from nrm.measure.direct import Ends
from nrm.measure.inner import Inner
from nrm.measure.layers import Cut
from nrm.measure.places import edge_shape
from nrm.numbers import size_text
from nrm.questions import (
    BASE,
    Argument,
    Formula,
    Layer,
    Line,
    Partition,
    Plan,
    Question,
    Set,
    Site,
    Stack,
    Stop,
    base_lines,
    result_axes,
    route_flops,
)

Additive = Callable[..., Question]
"""Reads the arguments of ``R.additive``."""
Direct = Callable[[Ends, Ends, bool], Plan]
"""Plans ``R.direct``."""


class Planner:
    """``R.plan``: how questions would be answered, and what they would cost; nothing is computed.

    ``R.plan(...)`` takes what ``R(...)`` takes, and its methods what the measure's methods of these names do.

    >>> import nrm, torch
    >>> from torch import nn
    >>> R = nrm.measure(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.ones(1, 4))
    >>> R.plan(R["1"].channels, R.input).shape, R.plan.dividends(R["1"].channel(3), R.input[0]).shape
    ((1, 8, 4), (1, 2, 2))
    """

    def __init__(self, plan: Callable[[Question], Plan], additive: Additive, direct: Direct) -> None:
        self._plan = plan
        self._additive = additive
        self._direct = direct

    def __call__(self, *arguments: Argument, given: Argument | Sequence[Argument] | None = None) -> Plan:
        """The plan of ``R(*arguments, given=given)``."""
        return self._plan(Question.read(arguments, given))

    def dividends(self, *events: Set | Formula) -> Plan:
        """The plan of ``R.dividends(*events)``."""
        return self._plan(Question.combinations(events))

    def expect(
        self, weights: Mapping[Layer | Set, Any], *arguments: Argument,
        given: Argument | Sequence[Argument] | None = None,
    ) -> Plan:  # fmt: skip
        """The plan of ``R.expect(weights, *arguments, given=given)``."""
        return self._plan(Question.weighted(weights, arguments, given))

    def additive(
        self, *parts: Set | Layer | Partition, at: Argument | Sequence[Argument] | None = None,
        layers: Sequence[Cut | Layer | str] | None = None,
    ) -> Plan:  # fmt: skip
        """The plan of ``R.additive(*parts, at=at, layers=layers)``."""
        return self._plan(self._additive(parts, at, layers))

    def direct(self, writers: Ends = None, readers: Ends = None, *, positions: bool = False) -> Plan:
        """The plan of ``R.direct(writers, readers, positions=positions)``, once the measure has been asked anything."""
        return self._direct(writers, readers, positions)


def plan_of(inner: Inner, question: Question) -> Plan:
    """The plan of a question, its condition included."""
    inner = inner.about(question)
    if question.stacks:
        return _stacked(inner, question)
    if question.spread is not None:
        return _over_steps(inner, question, question.spread)
    known = inner.kept.known
    plan = route_of(inner, question.joint).plan(memory=inner.memory, base=known)
    messages = inner.kept.messages
    held, bound = size_text(messages.nbytes), size_text(messages.bound)
    plan = replace(plan, note=f"kept messages of fixed events: {len(messages)}, {held} of at most {bound}")
    if question.apart:
        events = len(question.events)
        plan = replace(plan, shape=(plan.shape[0], *(2,) * events), axes=("sample", *map(str, question.events)))
    for absolute in (False, True) if question.given else ():
        condition = route_of(inner, question.condition).plan(memory=inner.memory, base=known, absolute=absolute)
        lines = [replace(line, what=f"condition: {line.what}") for line in condition.lines if line.what != BASE]
        plan = replace(plan, lines=(*plan.lines, *lines))
    return plan


def together(plans: Sequence[Plan], how: str, shape: Sequence[int], axes: Sequence[str]) -> Plan:
    """Several plans that are followed one after the other, with what they have in common once."""
    lines: dict[str, Line] = {}
    for line in (line for plan in plans for line in plan.lines):
        old = lines.get(line.what)
        if old is None or line.what == BASE:
            lines[line.what] = line
        else:
            lines[line.what] = Line(line.what, old.times + line.times, old.flops + line.flops)
    chunks, peak = sum(plan.chunks for plan in plans), max(plan.peak for plan in plans)
    return replace(
        plans[0], how=how, lines=tuple(lines.values()), shape=tuple(shape), axes=tuple(axes), chunks=chunks, peak=peak
    )


def _stacked(inner: Inner, question: Question) -> Plan:
    place, partitions = stack_in(question)
    stacks = [a for a in question.arguments if isinstance(a, Stack)]
    if len(question.asked) == len(stacks) == 2:
        return _graph(inner, question)
    plans = [plan_of(inner, question.replaced(place, partition)) for partition in partitions]
    if edge_shape(inner.places, partitions) is not None:
        shape, more = plans[0].shape, ("edges",) * (len(plans[0].shape) - 1)
        text = str(question.arguments[place])
        how = f"{len(plans)} attention steps, one product each"
        return together(plans, how, (shape[0], len(plans), *shape[1:]), ("sample", text, *more))
    before = 1 + sum(count_axes(inner, a) for a in question.arguments[:place])
    ends = [before + count_axes(inner, partition) for partition in partitions]
    blocks = sum(math.prod(plan.shape[before:end]) for plan, end in zip(plans, ends, strict=True))
    first = plans[0]
    return together(
        plans, f"{len(plans)} partitions, one after the other",
        (*first.shape[:before], blocks, *first.shape[ends[0] :]),
        (*first.axes[:before], str(question.arguments[place]), *first.axes[ends[0] :]),
    )  # fmt: skip


def _graph(inner: Inner, question: Question) -> Plan:
    """Every block is carried down once to the lowest layer of the other stack."""
    network, known = inner.network, inner.kept.known
    sides = graph_stops(inner, question)
    lines = base_lines(network, known is not None)
    for up, down in (sides, sides[::-1]):
        lowest = min(down, key=lambda stop: stop.site.order)
        lines += [_carried(inner, stop, lowest.site) for stop in up if stop.site.order > lowest.site.order]
    like = inner.tape.nodes[inner.tape.output].value
    shape = (inner.tape.batch, *(sum(stop.count for stop in side) for side in sides))
    return Plan(
        "every block of every layer is carried down once", tuple(lines), shape,
        ("sample", *map(str, question.arguments)), network.tape.forward, like.element_size(), known is not None,
    )  # fmt: skip


def _carried(inner: Inner, stop: Stop, goal: Site) -> Line:
    label = inner.tape.nodes[goal.node].name
    flops = route_flops(inner.network, goal, stop.site)
    return Line(f"pull {stop.frame.label} -> {label}", stop.count, stop.count * flops)


def _over_steps(inner: Inner, question: Question, position: int) -> Plan:
    pairs = step_pairs(inner, question)
    if pairs is not None:
        return _pairs_of_steps(inner, question, pairs)
    layer, steps = steps_in(inner, question, position)
    plans = [plan_of(inner, question.replaced(position, layer.step(t))) for t in steps]
    before = 1 + sum(count_axes(inner, a) for a in question.asked[:position])
    shape, axes = [*plans[0].shape], [*plans[0].axes]
    shape.insert(before, len(steps))
    axes.insert(before, str(question.asked[position]))
    return together(plans, f"{len(steps)} steps, one after the other", shape, axes)


def _pairs_of_steps(inner: Inner, question: Question, pairs: Sequence[Sequence[int]]) -> Plan:
    network, known = inner.network, inner.kept.known
    lines = base_lines(network, known is not None)
    for upper, lower in (pairs, pairs[::-1]):
        above = [i for i in upper if i >= min(lower)]
        flops = sum(route_flops(network, Site(min(lower)), Site(i)) for i in above)
        lines.append(Line(f"pull to {network.tape.nodes[min(lower)].name}", len(above), flops))
    element = inner.tape.nodes[inner.tape.output].value.element_size()
    shape, axes = result_axes([], inner.tape.batch)
    return Plan(
        "the restarts of all steps share one sweep", tuple(lines), (*shape, *map(len, pairs)),
        (*axes, *map(str, question.arguments)), network.tape.forward, element, known is not None,
    )  # fmt: skip
