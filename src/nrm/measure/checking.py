"""How a certificate is made: does mass hold, where did it go, and how far may the numbers be trusted.

The masses of the cuts come from one sweep, what rounding costs from a second one with every rounded number changed in
its last digit; both are judged beside fixed bounds, sample by sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from nrm.capture import Deviation, Select, Source, Tape, find_deviation
from nrm.measure.check import Check
from nrm.measure.layers import narrow_mass, sample_sums
from nrm.measure.target import Target, predict
from nrm.measure.verdict import DIFFERENCE, OUTPUT, SHARED_ZERO, blame_output, deviations
from nrm.numbers import percent
from nrm.questions import Base, Frame, Site, base_sweep, sweep
from nrm.rules import EXACT, Gamma
from nrm.steps import Arrivals, Network

SINK_WARN, SINK_RAISE = 1e-3, 0.1
"""Shares of the mass that may be lost in sinks before a caution, and before an error."""
PRECISION_WARN, PRECISION_RAISE = 1e-4, 1e-2
"""Shares of the relevance that rounding may change, likewise."""
VARIATION_WARN = 1e3
"""A total variation above this is a caution: three digits of every relevance are cancelled by others."""


def check_measure(
    network: Network, target: Target, base: Base, *, full: bool, moved: OutputShift | None = None, units: bool = False
) -> Check:
    """The light form looks at the input cut; the full form at every cut, every column, and measures precision.

    ``moved`` compares the outputs with those in the model's own precision, where that is not the measure's. With
    ``units`` relevance in units of the output is judged: beside its parts, which may be much larger than their sum.
    """
    tape, batch = network.tape, network.tape.batch
    sums = _CutMasses(network, base, batch)
    variation = sums.variation(full)
    eps = torch.finfo(tape.dtype).eps
    cuts: dict[str, tuple[float, ...]] = {}
    reached, negative, zero, ties = 0, (0, 0.0), (0, 0.0), (0, 0)
    if full:
        cuts = _cut_masses(network, base, batch)
        reached, negative, zero = _column_facts(network, base)
        ties = _count_ties(network, base)
        precision = _measure_precision(network, base, batch)
    else:
        largest = torch.stack([torch.tensor(v) for v in variation.values()]).amax(0) if variation else torch.ones(batch)
        precision = tuple((largest * eps).tolist())
    if target.runs is not None:
        precision = _with_differences(precision, target, cuts, eps)
    normalized = network.normalize is True
    broken = normalized and not bool(((sums.mass - 1).abs() <= PRECISION_RAISE).all())
    if broken and not full:  # what is at fault is said only if it was measured
        precision = _measure_precision(network, base, batch)
    differs = _find_deviation(tape) if full or broken else None
    rounding = _lost_to_rounding(sums, precision)
    condition = (1.0,) * batch
    errors, cautions = _judge(sums, precision, variation, normalized, condition, rounding)
    if (errors or cautions) and normalized:
        condition = tuple((_output_condition(network, base) * _beside(target).clamp(min=1)).tolist())
        if units:
            errors, cautions = _judge(
                sums, precision, variation, normalized, [max(1.0, c) for c in condition], rounding
            )
            condition = tuple(min(1.0, c) for c in condition)
        value = target.value.tolist()
        what = OUTPUT if tape.runs is None else DIFFERENCE
        errors, cautions = (
            blame_output(errors, condition, value, what),
            blame_output(cautions, condition, value, what),
        )
    cautions += [(None, SHARED_ZERO) for i in (target.value == 0).nonzero()[:, 0].tolist()
                 if normalized and i not in {sample for sample, _ in errors}]  # fmt: skip
    errors = [*(() if differs is None else deviations(differs, batch)), *errors]
    cautions += [(None, text) for text in tape.doubts]
    for i in () if moved is None else moved.other:
        cautions.append((i, f"In the model's own precision the top class of sample {i} is another."))
    return Check(
        tuple(sums.mass.tolist()), cuts, {k: tuple(v.tolist()) for k, v in sums.sinks.items()},
        tuple(sums.biases.tolist()), tuple(sums.offsets.tolist()), variation, reached, negative, zero, ties,
        tuple(precision), full, None if moved is None else moved.share, tuple(target.value.tolist()),
        _notes(network), tuple(errors), tuple(cautions), _remedies(network), condition,
        None if differs is None else (differs.node.name, differs.share), rounding,
        {k: tuple(v.tolist()) for k, v in sums.constants.items()},
    )  # fmt: skip


def _beside(target: Target) -> Tensor:
    """How many times larger than the explained difference the outputs are that it is the difference of; else 1."""
    if target.runs is None:
        return torch.ones_like(target.value)
    size, gap = torch.maximum(*(run.abs() for run in target.runs)), target.value.abs()
    return torch.where(gap == 0, 1.0, size / torch.where(gap == 0, 1.0, gap))


def _with_differences(
    precision: Sequence[float], target: Target, cuts: dict[str, tuple[float, ...]], eps: float
) -> tuple[float, ...]:
    """What rounding costs a contrast: the last digits of two outputs are in their difference, and in masses of cuts."""
    worst = [max((abs(masses[i] - 1) for masses in cuts.values()), default=0.0) for i in range(len(precision))]
    beside = (eps * _beside(target)).tolist()
    return tuple(max(parts) for parts in zip(precision, worst, beside, strict=True))


def check_units(network: Network, target: Target, base: Base) -> Check:
    """The light form for a sweep in units of the output: everything together is the output, also where it is 0."""
    found = check_measure(network, target, base, full=False, units=True)
    errors = []
    for i, (mass, value) in enumerate(zip(found.mass, found.value, strict=True)):
        size = max((row[i] for row in found.variation.values()), default=0.0)
        if not abs(mass - value) <= PRECISION_RAISE * max(size, abs(value)):
            errors.append((i, f"The input cut has {mass:.4g} of an output of {value:.4g}."))
    return replace(found, errors=tuple(errors), cautions=())


def _find_deviation(tape: Tape) -> Deviation | None:
    """The first node that does not come out again, of a contrast in either run."""
    runs = tape.runs or (tape.behind or tape,)
    return next((found for run in runs if (found := find_deviation(run)) is not None), None)


class OutputShift(NamedTuple):
    """How far each sample's outputs are from the model's own, beside the largest, and whose top class is another."""

    share: tuple[float, ...]
    other: tuple[int, ...]


def compare_outputs(ours: Tensor, theirs: Tensor, frame: Frame, ends: Tensor | None) -> OutputShift:
    """The output in the measure's precision against the model's own."""
    (scores, top), (own_scores, own_top) = (predict(output, frame, ends) for output in (ours, theirs))
    gap, largest = (t.reshape(len(t), -1).abs().amax(1) for t in (scores - own_scores, own_scores))
    other = (top != own_top).nonzero()[:, 0].tolist()
    return OutputShift(tuple((gap / largest.clamp(min=1e-30)).tolist()), tuple(other))


def _count_ties(network: Network, base: Base) -> tuple[int, int]:
    """Reached maxima that had several equal inputs to choose from, and all reached ones."""
    tied, reached = 0, 0
    for node in network.tape.nodes:
        arrived = base.arrivals.get(node.index)
        if not isinstance(node.op, Select) or arrived is None:
            continue
        relevance = network.relevance(arrived)
        if relevance is not None:
            live = relevance[0] != 0
            reached += int(live.sum())
            tied += int((node.op.ties(network.tape.nodes[node.inputs[0]].value) & live).sum())
    return tied, reached


def _notes(network: Network) -> tuple[str, ...]:
    """What the capture has to say, and where a softmax is passed as if it were elementwise."""
    passed = [
        f"{node.name}: relevance of a softmax goes to the logit of the same class, its normalizer is held constant"
        for node in network.tape.nodes
        if network.tape.runs is None
        and network.rules.reached[node.index]
        and node.op.kind == "softmax"
        and not network.rules.softmax(node.index)
    ]
    return (*network.tape.notes, *passed)


class _CutMasses:
    """The masses of the input cut, by kind."""

    def __init__(self, network: Network, base: Base, batch: int) -> None:
        self._network, self._base = network, base
        self.zero = network.zero
        like = network.tape.nodes[network.tape.output].value
        self.mass = like.new_zeros(batch)
        self.biases, self.offsets = like.new_zeros(batch), like.new_zeros(batch)
        self.sinks: dict[str, Tensor] = {}
        self.constants: dict[str, Tensor] = {}
        for node in network.tape.sources:
            arrived = base.arrivals.get(node.index)
            relevance = None if arrived is None else network.relevance(arrived)
            if relevance is not None:
                self.mass += sample_sums(node, relevance, batch)
                if isinstance(node.op, Source) and node.op.made and bool(relevance.any()):
                    self.constants[node.name] = sample_sums(node, relevance.abs(), batch).expand(batch)
        for (i, port), message in base.drains.items():
            node = network.tape.nodes[i]
            if port == "sink":
                share = sample_sums(node, message, batch)
                if bool(message.any()):  # what leaks with both signs leaks all the same
                    self.sinks[node.name] = sample_sums(node, message.abs(), batch)
            else:
                share = narrow_mass(node, message, batch)
                if port == "bias":
                    self.biases += share
                else:
                    self.offsets += share
            self.mass += share

    def variation(self, full: bool) -> dict[str, tuple[float, ...]]:
        network = self._network
        nodes = network.tape.nodes if full else network.tape.sources
        found = {}
        for node in nodes:
            arrived = self._base.arrivals.get(node.index)
            relevance = None if arrived is None else network.relevance(arrived)
            if relevance is not None:
                shared = sample_sums(node, relevance.abs(), network.tape.batch)
                found[node.name] = tuple(shared.expand(network.tape.batch).tolist())  # what is nobody's has one entry
        return found


def _judge(
    sums: _CutMasses, precision: Sequence[float], variation: dict[str, tuple[float, ...]], normalized: bool,
    scale: Sequence[float], lost: frozenset[int],
) -> tuple[list[tuple[int, str]], list[tuple[int | None, str]]]:  # fmt: skip
    """Errors and cautions by sample; ``scale`` is what relevance is judged beside: 1 for shares.

    ``lost`` are the samples that rounding makes unusable, as was measured.
    """
    errors: list[tuple[int, str]] = []
    cautions: list[tuple[int | None, str]] = []
    if not normalized:
        text = "This is the unnormalized counterpart: masses are not 1 and layers are not comparable."
        return errors, [(None, text)]
    for i, whole in enumerate(scale):
        mass = float(sums.mass[i])
        leak = sum(abs(float(s[i])) for s in sums.sinks.values()) / whole
        largest = max((v[i] for v in variation.values()), default=1.0) / whole
        rounding = precision[i] / whole
        if not abs(mass - 1) / whole <= PRECISION_RAISE:
            cause = "rounding has eaten the result" if i in lost else "rounding is not the cause"
            errors.append((i, f"The input cut has mass {mass:.4g} instead of 1: {cause}, as was measured."))
        elif not rounding <= PRECISION_RAISE:
            errors.append((i, f"Rounding changes {percent(rounding, 1)} of the relevance."))
        elif rounding > PRECISION_WARN:
            more = "; try dtype=torch.float64" if sums.mass.dtype != torch.float64 else ""
            cautions.append((i, f"Rounding changes {percent(rounding, 2)} of the relevance{more}."))
        elif largest > VARIATION_WARN:
            cautions.append((i, f"Total variation reaches {largest:.3g}: large relevances of both signs cancel."))
        if leak > SINK_RAISE:
            worst = max(sums.sinks, key=lambda k: abs(float(sums.sinks[k][i])))
            more = ", zero='uniform' spreads it" if sums.zero == "sink" else ""
            size = " (in absolute values)" * (leak > 1)
            errors.append((i, f"{percent(leak, 1)} of the mass{size} is in sinks, most of it at {worst!r}, whose"
                              f" columns have no sum: another rule there shares it{more}."))  # fmt: skip
        elif leak > SINK_WARN:
            cautions.append((i, f"{percent(leak, 2)} of the mass is in sinks at {', '.join(list(sums.sinks)[:3])}."))
        leak = sum(float(mass[i]) for mass in sums.constants.values()) / whole
        if leak > SINK_RAISE:
            worst = max((float(mass[i]), name) for name, mass in sums.constants.items())[1]
            errors.append((i, f"{percent(leak, 1)} of the mass is in constants made from the input, most of it at"
                              f" {worst!r}: numbers that .item() and the like read are not followed, tensors"
                              " are."))  # fmt: skip
        elif leak > SINK_WARN:
            names = ", ".join(list(sums.constants)[:3])
            cautions.append((i, f"{percent(leak, 2)} of the mass is in constants made from the input at {names}."))
    return errors, cautions


def _lost_to_rounding(sums: _CutMasses, precision: Sequence[float]) -> frozenset[int]:
    """The samples that rounding makes unusable: a change in the last digit moves them as far as they are off."""
    sources = sums.variation(False).values()
    found = set()
    for i, lost in enumerate(precision):
        gap, moved = abs(float(sums.mass[i]) - 1), lost * sum(v[i] for v in sources)
        if not lost <= PRECISION_RAISE or (not gap <= PRECISION_RAISE and not moved <= 1e-2 * gap):
            found.add(i)
    return frozenset(found)


def _cut_masses(network: Network, base: Base, batch: int) -> dict[str, tuple[float, ...]]:
    """The mass of the cut through every tensor that relevance reaches.

    An edge from s to c is crossed by the cuts at s, ..., c - 1; what enters later belongs to every cut before it.
    """
    tape = network.tape
    like = tape.nodes[tape.output].value
    change = like.new_zeros(tape.output + 2, batch)

    def cross(site: Site, here: Arrivals) -> Arrivals:
        node, relevance = tape.nodes[site.node], network.relevance(here)
        if relevance is None or (site == Site(site.node) and node.inputs):
            return here
        narrow = site.port and site.port != "sink"
        mass = narrow_mass(node, relevance, batch) if narrow else sample_sums(node, relevance, batch)
        change[0 if site.consumer is None else site.node] += mass
        change[site.end] -= mass
        return here

    sweep(network, {tape.output: base.arrivals[tape.output]}, cross)
    masses = change.cumsum(0).tolist()
    return {tape.nodes[i].name: tuple(masses[i]) for i in sorted(base.arrivals) if i != tape.output}


def _column_facts(network: Network, base: Base) -> tuple[int, tuple[int, float], tuple[int, float]]:
    """Reached columns, those with a negative and with a zero sum, and their share of the weight that arrives."""
    reached, negative, dead, weight_negative, weight_dead, weight = 0, 0, 0, 0.0, 0.0, 0.0
    for i, arrived in base.arrivals.items():
        plain = network.plain_index(i)
        if plain not in arrived.nodes or not network.rules.is_terminal(i):
            continue
        relevance = network.relevance(Arrivals({k: rho for k, rho in arrived.items() if k == plain}))
        assert relevance is not None
        size = relevance[0].abs()
        weight += float(size.sum())
        reached += int((size > 0).sum())
        column = network.column(i) if network.converts(i) else None
        below = network.tape.nodes[i].value < 0 if column is None else column.is_negative
        if below is not None:
            below = below & (size > 0)
            negative += int(below.sum())
            weight_negative += float(size[below].sum())
        if column is not None and column.dead is not None:
            lost = column.dead & (size > 0)
            dead += int(lost.sum())
            weight_dead += float(size[lost].sum())
    weight = weight or 1.0
    return reached, (negative, weight_negative / weight), (dead, weight_dead / weight)


def _measure_precision(network: Network, base: Base, batch: int) -> tuple[float, ...]:
    """One more sweep with everything that is rounded changed by a relative eps: how much of the relevance changes?"""
    other = base_sweep(network.perturbed(), base.arrivals[network.tape.output])
    like = network.tape.nodes[network.tape.output].value
    difference, total = like.new_zeros(batch), like.new_zeros(batch)
    for node in network.tape.sources:
        a, b = (network.relevance(s.arrivals.get(node.index, Arrivals())) for s in (base, other))
        if a is not None and b is not None:
            difference += sample_sums(node, (a - b).abs(), batch)
            total += sample_sums(node, a.abs(), batch)
    total = torch.where(total == 0, torch.ones_like(total), total)
    return tuple((difference / total).tolist())


def _remedies(network: Network) -> tuple[str, ...]:
    """Options that lower cancellation or rounding, and are not in use."""
    found = []
    if network.tape.dtype != torch.float64:
        found.append("dtype=torch.float64")
    if network.bias == "ignore":
        found.append("bias='input'")
    if network.tape.runs is not None:  # differences have both signs everywhere: positive parts lose more than they mend
        found += [] if network.composite.name == EXACT and not network.composite.changes else ["rules='exact'"]
    elif any(
        rule.cancels and not isinstance(rule, Gamma) for rule in (network.composite.conv, network.composite.linear)
    ):
        found.append("rules with positive parts (nrm.Gamma(0.25))")
    return tuple(found)


def _output_condition(network: Network, base: Base) -> Tensor:
    """How many times larger than each sample's explained output its parts are in absolute values: ``(batch,)``.

    At least 1, which is nothing cancels, and 0 where the output is lost: where no part of it has any relevance. Only
    the output's own step counts, seen through data movement and elementwise functions.
    """
    tape, i = network.tape, network.tape.output
    total = tape.nodes[i].value.new_zeros(tape.batch)
    while not network.rules.is_terminal(i):
        readers = [j for j in tape.nodes[i].inputs if j in base.arrivals]
        if len(readers) != 1 or not tape.nodes[i].inputs:
            return total + 1
        i = readers[0]
    deliveries, drains = network.pull(i, base.arrivals[i])
    for to, arrived in deliveries:
        relevance = network.relevance(arrived)
        if relevance is not None:
            total += sample_sums(tape.nodes[to], relevance.abs(), tape.batch)
    if "bias" in drains:
        total += narrow_mass(tape.nodes[i], drains["bias"].abs(), tape.batch)
    return torch.where(total == 0, total, total.clamp(min=1))
