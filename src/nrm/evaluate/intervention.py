"""Removal and joint contribution: what the network itself says about an interaction."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from nrm.capture import Linear, plain_execution
from nrm.errors import NrmError, QuestionError
from nrm.evaluate.removal import Cutout, Removal, orders
from nrm.evaluate.replacing import replacement
from nrm.measure import Measure
from nrm.memory import fitting, refuse_larger
from nrm.questions import (
    Argument,
    Blocks,
    Formula,
    Layer,
    Partition,
    Question,
    Set,
    Stack,
    Stop,
    axes_of,
    ordered,
    read_partitions,
    spans_steps,
    steps_of,
    stops_for,
)

Finish = Callable[[Tensor, int], Tensor]
"""What is made of the outputs with and without removal, ``(1 + blocks of each layer, ..., batch, ...)``."""

Left = tuple[int, ...] | None
"""The shape of what is left of the explained output; None stands for the network's whole output."""


def contribution(R: Measure, *arguments: Argument, value: Any = "zero", seed: int = 0) -> Tensor:
    """The joint contribution of sets of neurons to the explained output, in the shape of ``R(*arguments)``.

    For sets ``S1, ..., Sm`` of m layers it is ``sum over subsets B of (-1)^|B| f(without the sets of B)``: what the
    output owes to all of them together, found by intervention. Layers and partitions become axes. A contribution is
    on the scale of the output: compare it with ``R.value`` times the relevance (:func:`scores`). Arguments of one layer
    stand for the neurons that they have in common, as in ``R(...)``; without any they are refused.

    Removed neurons become 0, or ``value``: ``"mean"`` over the batch, ``"resample"``: those of another sample
    (chosen by ``seed``), a number, a tensor of the layer's shape, or a mapping from layers to any of these. The network
    is replayed from the tape; statistics, attention and maxima are computed anew, the user's model is not touched.

    >>> import nrm
    >>> from torch import nn
    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(4, 8, bias=False), nn.Identity(), nn.Linear(8, 2, bias=False))
    >>> R = nrm.measure(model, torch.ones(1, 4), rules="lrp-0")
    >>> C = nrm.evaluate.contribution(R, R.input, R["1"].channels)
    >>> torch.allclose(C, R.value * R(R.input, R["1"].channels), atol=1e-6)  # a linear network
    True
    """
    return _intervene("nrm.evaluate.contribution", R, arguments, value, seed, _differences, ())


def remove(R: Measure, *arguments: Argument, value: Any = "zero", seed: int = 0) -> Tensor:
    """The network's outputs without some neurons, all sets removed at once: ``(batch, *axes, *output shape)``.

    Layers and partitions become axes as in ``R(...)``: one removal for each of their blocks. Of several sets of one
    layer all are removed, ``a.channel(3), a.channel(5)`` as ``a.channel(3) | a.channel(5)``; a partition and more of
    its layer stand for what they have in common.

    >>> import nrm
    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> R = nrm.measure(model, torch.ones(1, 4))
    >>> nrm.evaluate.remove(R, R["1"].channels[[3, 5]], R.input[0]).shape
    torch.Size([1, 2, 2])
    """
    return _intervene("nrm.evaluate.remove", R, _united(arguments), value, seed, _all_removed, None)


def _united(arguments: Sequence[Argument]) -> list[Argument]:
    """The sets of every layer as one set, in the place of the first."""
    found: list[Argument] = []
    places: dict[Layer, int] = {}
    for argument in arguments:
        if not isinstance(argument, Set):
            found.append(argument)
        elif argument.layer in places:
            found[places[argument.layer]] |= argument  # type: ignore[operator]
        else:
            places[argument.layer] = len(found)
            found.append(argument)
    return found


def occlusion(R: Measure, *arguments: Argument, value: Any = "zero", seed: int = 0) -> Tensor:
    """How much the explained output loses without the sets, all removed at once; in the shape of ``R(*arguments)``.

    Arguments of one layer stand for the neurons that they have in common, as in :func:`contribution`.
    """
    return _intervene("nrm.evaluate.occlusion", R, arguments, value, seed, _losses, ())


def contribution_and_occlusion(
    R: Measure, *arguments: Argument, value: Any = "zero", seed: int = 0
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Both from one replay of the network."""

    def both(found: Tensor, order: int) -> Tensor:
        return torch.stack([_differences(found, order), _losses(found, order)], -1)

    one, other = _intervene("nrm.evaluate", R, arguments, value, seed, both, (2,)).unbind(-1)
    return one, other


def each(
    R: Measure, partition: Partition | Layer, *arguments: Argument, value: Any = "zero", seed: int = 0
) -> Iterator[tuple[Set, Tensor]]:
    """The joint contributions of every block of a partition, one after the other: for tables that are too large.

    Walks along with :meth:`Measure.each`, which gives the relevances of the same blocks.
    """
    try:
        (whole,) = read_partitions([partition])
    except NrmError as error:
        raise error.at("nrm.evaluate.each") from None
    shape = Blocks.of(R.resolve(whole.layer)[1], whole).shape
    places = [at[0] if len(at) == 1 else at for at in itertools.product(*map(range, shape))]
    axes = [n for stop in stops_for(arguments, R.resolve) for n in axes_of(stop)]
    one = torch.Size((R.inner.tape.batch, *axes)).numel() * R.value.element_size()
    fits = fitting(R.inner.memory, one)
    for begin in range(0, len(places), fits):
        some = places[begin : begin + fits]
        table = contribution(R, whole[some], *arguments, value=value, seed=seed)
        yield from zip((whole[at] for at in some), table.unbind(1), strict=True)


def _intervene(
    where: str,
    R: Measure,
    arguments: Sequence[Argument],
    value: Any,
    seed: int,
    finish: Finish,
    left: tuple[int, ...] | None,
) -> Tensor:
    """The table of a question about removals: ``(batch, *axes)`` and what ``finish`` leaves of the outputs."""
    try:
        if not isinstance(R, Measure):
            raise QuestionError("not a measure", got=type(R).__name__, hint="R = nrm.measure(model, inputs)")
        if not arguments:
            raise QuestionError("nothing is removed", hint=f"{where}(R, a.channels, b.channels)")
        R = Measure(R.inner.about(Question.read(arguments)))
        R.inner.origin.check_fresh()
        with plain_execution():
            return R.inner.mine(_table(R, arguments, value, seed, finish, left))
    except NrmError as error:
        raise error.at(where) from None


def _table(R: Measure, arguments: Sequence[Argument], value: Any, seed: int, finish: Finish, left: Left) -> Tensor:
    spread = next((k for k, a in enumerate(arguments) if spans_steps(a)), None)
    if spread is not None:
        before = stops_for(arguments[:spread], R.resolve)
        tables = [_table(R, [*arguments[:spread], step, *arguments[spread + 1 :]], value, seed, finish, left)
                  for step in _steps(R, arguments[spread])]  # fmt: skip
        return torch.stack(tables, 1 + sum(len(axes_of(stop)) for stop in before))
    stops = _stops(R, arguments)
    cutouts = [_cutout(R, stop, value, seed) for stop in stops]
    order = orders(cutouts)
    output = R.inner.tape.here.nodes[R.inner.tape.output]
    weights = None if left is None else output_weights(R)
    removal = Removal(
        R.inner.tape.here, [cutouts[k] for k in order], R.inner.places.frame, weights=weights, memory=R.inner.memory
    )  # fmt: skip
    left = R.inner.places.frame(output).layer_shape if left is None else left
    shape = torch.Size((*(cutouts[k].count for k in order), R.inner.tape.batch, *left))
    refuse_larger(
        "the table of removals is larger", shape.numel() * output.value.element_size(), R.inner.memory,
        "fewer blocks (a.channels[[3, 7]]), nrm.evaluate.each(...) block by block, "
        "nrm.evaluate.compare(...) for statistics only, or memory= in nrm.measure",
    )  # fmt: skip
    table = output.value.new_empty(shape)
    for rows, found in R.inner.progress("removals")(removal.chunks(), len(removal)):
        table[tuple(slice(r.start, r.stop) for r in rows)] = finish(found, len(rows))
    return ordered(table, [stops[k] for k in order])


def _steps(R: Measure, argument: Argument) -> list[Set]:
    if not isinstance(argument, Partition):
        raise QuestionError("several steps are removed one by one only", got=str(argument), hint="layer.steps")
    return [argument.layer.step(t) for t in steps_of(argument, len(R.inner.places.steps(argument.layer))).tolist()]


def _stops(R: Measure, arguments: Sequence[Argument]) -> list[Stop]:
    """The layers of the question, all of which can be removed."""
    for argument in arguments:
        if isinstance(argument, Stack | Formula):
            kind = "stack is evaluated one partition at a time" if isinstance(argument, Stack) else "formula is no set"
            raise QuestionError(f"a {kind}", got=str(argument), hint="sets and partitions of layers can be removed")
    if any(node.op.kind == "block" for node in R.inner.tape.nodes):
        raise QuestionError(
            "a measure between chosen layers does not have the network between them", got=R.rules,
            expected="a measure of the whole network",
            hint="nrm.evaluate.compare(nrm.measure(model, inputs), ..., scores={'mine': R.value * R(...)})",
        )  # fmt: skip
    stops = stops_for(arguments, R.resolve)
    for stop in stops:
        op = R.inner.tape.nodes[stop.site.node].op
        half = isinstance(op, Linear) and op.kind == "matmul"
        if stop.site.port or half:
            raise QuestionError(
                "only tensors of the network can be removed",
                got=f"{stop.frame.label!r}, {'half of a product' if half else f'a {stop.site.port}'}",
                expected="a layer, an input, or an edge",
            )  # fmt: skip
    return stops


def _cutout(R: Measure, stop: Stop, value: Any, seed: int) -> Cutout:
    frame, node, runs = stop.frame, R.inner.tape.here.nodes[stop.site.node], R.inner.tape.runs
    numbers = torch.zeros((1, *(1,) * len(frame.layer_shape)), dtype=torch.long, device=frame.device)
    outside = torch.zeros_like(numbers, dtype=torch.bool)
    for blocks in stop.blocks:
        blocks.refuse_repeats()
        own = blocks.numbering()
        numbers, outside = numbers * blocks.count + own, outside | (own < 0)
    if stop.sets:
        outside = outside | ~stop.set_mask()[0]
    numbers = torch.where(outside, -1, numbers)
    _refuse_disjoint(stop, numbers)
    labels = frame.from_samples(numbers[None])[0].expand(node.shape)
    there = None if runs is None else runs[1].nodes[stop.site.node].value
    return Cutout(stop.site, labels, stop.count, replacement(value, frame, node.value, seed, there))


def _refuse_disjoint(stop: Stop, numbers: Tensor) -> None:
    """Refuses arguments of one layer without common neurons: nothing would be removed, and the answer would be 0."""
    if len(stop.blocks) + len(stop.sets) < 2:
        return
    found = torch.unique(numbers[numbers >= 0]).numel()
    if found < stop.count:
        none = "no neuron in common" if stop.count == 1 else f"no neuron in common in {stop.count - found} of them"
        raise QuestionError(
            "arguments of one layer have nothing in common", where=stop.frame.label,
            got=f"{len(stop.blocks) + len(stop.sets)} arguments, {stop.count} combinations: {none}",
            expected="sets of different layers, or sets of one layer that overlap: they stand for what they share",
            hint="A | B removes both; occlusion(R, A) + occlusion(R, B) - occlusion(R, A | B) is what they owe to "
                 "each other",
        )  # fmt: skip


def output_weights(R: Measure) -> Tensor:
    """The weights with which outputs enter the explained value, in the tensor's own axes."""
    target, node = R.inner.target, R.inner.tape.here.nodes[R.inner.tape.output]
    frame = R.inner.places.frame(node)
    if target.spread == "softmax":
        scores = frame.to_samples(node.value[None])[0]
        weights = torch.softmax(scores.flatten(1), 1).view(scores.shape)
    else:
        weights = target.allowed.to(node.value)
    return frame.from_samples(weights[None])[0]


def _differences(found: Tensor, order: int) -> Tensor:
    """Without removal minus with removal, along the axis of every layer: inclusion and exclusion at once."""
    for axis in range(order):
        found = found.narrow(axis, 0, 1) - found.narrow(axis, 1, found.shape[axis] - 1)
    return found


def _all_removed(found: Tensor, order: int) -> Tensor:
    return found[(slice(1, None),) * order]


def _losses(found: Tensor, order: int) -> Tensor:
    return found[(slice(0, 1),) * order] - found[(slice(1, None),) * order]
