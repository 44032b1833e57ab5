"""How a question is answered and planned on the inside of a measure."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from nrm.capture import plain_execution
from nrm.errors import CostWarning, PrecisionError, QuestionError, warn
from nrm.measure.events import make_track, neurons, read_track
from nrm.measure.inner import Inner
from nrm.measure.places import edge_shape
from nrm.measure.show import outputs_text
from nrm.measure.target import excluded
from nrm.measure.weighing import weights_of
from nrm.questions import (
    EDGES,
    Argument,
    AttentionRoute,
    Blocks,
    Formula,
    Layer,
    Partition,
    PlainRoute,
    Plan,
    Question,
    Set,
    Site,
    Stack,
    Stop,
    TrackedRoute,
    interaction_graph,
    needs_track,
    pair_table,
    spans_steps,
    steps_of,
    stops_for,
    visited_sets,
)

PASSES = 50.0
"""More forward passes than this are announced,"""
NOTICED = 2e10
"""if they are more floating-point operations than this, which take about a second: nobody waits for small networks."""

Route = PlainRoute | TrackedRoute | AttentionRoute
"""A question on one network: it plans itself, and answers by a plan."""


def ask(inner: Inner, question: Question) -> Tensor:
    """The answer to a question, ``(samples, *axes)``: everything that is asked of a measure comes through here."""
    inner = inner.about(question)
    if question.stacks:
        return _over_stack(inner, question)
    if question.spread is not None:
        return _over_steps(inner, question, question.spread)
    inner.origin.check_fresh()
    with plain_execution():
        refuse_excluded(inner, question)
        inner.be_loud()
        table = answer(inner, question.joint)
        if question.given:
            table = conditioned(table, answer_condition(inner, question.condition))
        return inner.mine(_unfolded(table, len(question.events)) if question.apart else table)


def ask_in_units(inner: Inner, question: Question) -> Tensor:
    """The answer in units of the output. Shares of an output of 0 are not defined, and then none are formed."""
    inner = inner.about(question)
    if bool((inner.target.value == 0).any()):
        return ask(inner.without_shares(), question)
    shares = ask(inner.in_units(), question)
    return shares * inner.mine(inner.target.value).reshape(-1, *(1,) * (shares.ndim - 1))


def answer(inner: Inner, question: Question, absolute: bool = False) -> Tensor:
    """The table of a question without conditions, for the whole batch.

    ``absolute`` sums absolute relevances where it is read: the total variation inside the events.
    """
    known = inner.kept.known  # the check has made the base sweep already: a plan need not pay for it
    route = route_of(inner, question)
    plan = route.plan(memory=inner.memory, base=known, absolute=absolute)
    _warn_of_cost(plan)
    return route.answer(inner.answerer(), plan, absolute)


def route_of(inner: Inner, question: Question) -> Route:
    """A question on the network of a measure: its stops, or its track."""
    if question.apart:
        places = [[spot for one in some for spot in neurons(inner.places, one)] for some in visited_sets(question)]
        many = 2 ** len(places)
        numbers = np.arange(many)  # every combination of events is an answer of its own; -1 would be none
        return TrackedRoute(make_track(inner.kept, places, numbers), [], answers=many)
    if question.is_tracked:
        return TrackedRoute(*read_track(inner.kept, inner.places, question.asked, weights_of(inner, question)))
    first = getattr(question.asked[0], "layer", question.asked[0]) if question.asked else None
    along = _along_edges(inner, question, first) if isinstance(first, Layer) and first.consumer == EDGES else None
    return PlainRoute(inner.network, stops_for(question.asked, inner.resolve)) if along is None else along


def _along_edges(inner: Inner, question: Question, layer: Layer) -> AttentionRoute | None:
    """A question about the edges of one attention step and nothing else."""
    step = inner.places.attention(layer)
    if step is None or any(getattr(a, "layer", a) != layer for a in question.asked):
        return None
    place = Site(step.product), inner.places.frame_of(layer)
    return AttentionRoute(inner.network, step, stops_for(question.asked, lambda _: place))


def count_axes(inner: Inner, argument: Argument) -> int:
    """How many axes an argument gives to a result."""
    if isinstance(argument, Set | Formula):
        return 0
    if isinstance(argument, Stack):
        return 1 + len(edge_shape(inner.places, argument.partitions) or ())
    if spans_steps(argument):
        return 1
    partition = Partition(argument) if isinstance(argument, Layer) else argument
    return len(Blocks.of(inner.places.frame_of(partition.layer), partition).shape)


def _unfolded(table: Tensor, events: int) -> Tensor:
    """An axis of combinations as one axis per event, avoided and visited; the first event is the lowest digit."""
    return table.reshape(-1, *(2,) * events).permute(0, *range(events, 0, -1))


# ---- axes of several tensors -----------------------------------------------------------------------------------------


def _over_stack(inner: Inner, question: Question) -> Tensor:
    """An axis of parts of several layers, as questions about each of them."""
    place, partitions = stack_in(question)
    if len(question.asked) == 2 and all(isinstance(a, Stack) for a in question.asked):
        inner.origin.check_fresh()
        with plain_execution():
            inner.be_loud()
            return inner.mine(interaction_graph(inner.answerer(), *graph_stops(inner, question)))
    before = sum(count_axes(inner, a) for a in question.arguments[:place]) + 1
    if edge_shape(inner.places, partitions) is not None:
        return torch.stack([ask(inner, question.replaced(place, partition)) for partition in partitions], before)
    parts = []
    for partition in partitions:
        table = ask(inner, question.replaced(place, partition))
        wide = count_axes(inner, partition)
        parts.append(table.flatten(before, before + wide - 1) if wide else table.unsqueeze(before))
    return torch.cat(parts, before)


def stack_in(question: Question) -> tuple[int, tuple[Partition, ...]]:
    """The place of a question's first stack, and its partitions."""
    if any(isinstance(c, Stack) for c in question.given):
        raise QuestionError(
            "a stack is no condition", got=", ".join(str(c) for c in question.given),
            hint="given=s.partitions[0], one layer at a time: its blocks are alternatives",
        )  # fmt: skip
    return next((n, a.partitions) for n, a in enumerate(question.arguments) if isinstance(a, Stack))


def graph_stops(inner: Inner, question: Question) -> list[list[Stop]]:
    """The layers of two stacks."""
    stacks = [a for a in question.arguments if isinstance(a, Stack)]
    return [[stops_for([p], inner.resolve)[0] for p in stack.partitions] for stack in stacks]


def steps_in(inner: Inner, question: Question, position: int) -> tuple[Layer, list[int]]:
    """The layer and the steps of an axis of steps."""
    partition = question.asked[position]
    assert isinstance(partition, Partition)
    return partition.layer, steps_of(partition, len(inner.places.steps(partition.layer))).tolist()


def step_pairs(inner: Inner, question: Question) -> list[list[int]] | None:
    """The nodes of two axes of steps, if a question is about nothing else."""
    if question.given or len(question.arguments) != 2 or not all(map(spans_steps, question.arguments)):
        return None
    if not all(isinstance(a, Partition) for a in question.arguments):
        return None
    found = [steps_in(inner, question, k) for k in (0, 1)]
    return [[inner.places.steps(layer)[t] for t in steps] for layer, steps in found]


def _over_steps(inner: Inner, question: Question, position: int) -> Tensor:
    """An axis of steps, as questions about single ones; two of them share their sweeps."""
    pairs = step_pairs(inner, question)
    if pairs is not None:
        inner.origin.check_fresh()
        with plain_execution():
            inner.be_loud()
            return inner.mine(pair_table(inner.network, inner.base, pairs[0], pairs[1], inner.memory))
    layer, steps = steps_in(inner, question, position)
    axis = 1 + sum(count_axes(inner, before) for before in question.asked[:position])
    return torch.stack([ask(inner, question.replaced(position, layer.step(t))) for t in steps], axis)


# ---- conditions ------------------------------------------------------------------------------------------------------


def conditioned(joint: Tensor, condition: Tensor) -> Tensor:
    """Joint relevances as shares of a condition's; 0 where that has none. The condition's axes are the last ones."""
    gap = joint.ndim - condition.ndim
    shaped = condition.reshape(condition.shape[0], *(1,) * gap, *condition.shape[1:])
    safe = torch.where(shaped == 0, torch.ones_like(shaped), shaped)
    return torch.where(shaped == 0, torch.zeros_like(joint), joint / safe)


def answer_condition(inner: Inner, question: Question) -> Tensor:
    """The relevance of a condition, which must not be lost in rounding."""
    condition, inside = answer(inner, question), answer(inner, question, absolute=True)
    _judge_condition(inner.mine(condition), inner.mine(inside))
    return condition


def _judge_condition(condition: Tensor, inside: Tensor) -> None:
    """A condition whose relevances cancel says little, or nothing at all."""
    relative = condition.abs() / torch.where(inside == 0, torch.ones_like(inside), inside)
    lost = (condition != 0) & (relative < 100 * torch.finfo(condition.dtype).eps)
    if bool(lost.any()):
        raise PrecisionError(
            "the condition's relevance is lost in rounding", got=f"{int(lost.sum())} conditions near 0",
            expected="a condition whose relevance does not cancel", hint="dtype=torch.float64, or a larger set",
        )  # fmt: skip
    near = (condition != 0) & (relative < 1e-3)
    if bool(near.any()):
        warn(f"{int(near.sum())} conditions have a relevance below 0.1 % of the total variation inside them")


def refuse_excluded(inner: Inner, question: Question) -> None:
    """Asking for an output that the target excludes would always give 0, which nobody means.

    Inside a formula it is an event like any other, whose measure is 0.
    """
    if question.apart:
        return
    # No output is an edge, and edges of attention are no tensor whose masks could be asked for.
    sets = [a for a in question.asked if isinstance(a, Set) and not needs_track(a) and a.layer.consumer != EDGES]
    free = [c for c in question.given if isinstance(c, Layer) or (isinstance(c, Partition) and c.kind != "edges")]
    output = Site(inner.tape.output)
    fixed = [stop for stop in stops_for(sets, inner.resolve) if stop.site == output]
    blocks = [b for stop in stops_for(free, inner.resolve) if stop.site == output for b in stop.blocks]
    masks = [(str(stop.sets[0]), stop.set_mask()) for stop in fixed]
    masks += [(f"given={b.text}", b.masks(list(range(b.count)))) for b in blocks]
    for text, mask in masks:
        sample = excluded(inner.target, mask, inner.samples)
        if sample is not None:
            raise QuestionError(
                "the target excludes these outputs", where=f"sample {sample}", got=text,
                expected=f"outputs of the target: {outputs_text(inner.target, inner.names, [sample])}",
                hint="nrm.measure(..., target='softmax') spreads relevance over all outputs",
            )  # fmt: skip


def _warn_of_cost(plan: Plan) -> None:
    """Says what a long table will cost, and what to ask instead, before anything of it is computed."""
    if plan.passes <= PASSES or plan.flops <= NOTICED:
        return
    text = (
        f"this table costs about {plan.passes:.0f} forward passes.\n{plan}\n"
        "Cheaper: R.flows(..., k=10) searches for the largest entries alone; some blocks (a.channels[:64]) or groups of"
        " them (a.groups(labels), nrm.cluster) make the table smaller; neighbouring layers take one contraction."
        " R.plan(...) tells the cost beforehand, R.each(...) answers block by block."
    )
    warn(text, CostWarning)
