"""The certificate of a measure: does mass hold, where did it go, and how far may the numbers be trusted."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nrm.capture import Deviation, Select, Source, Tape, find_deviation
from nrm.errors import CaptureError, MassError, NrmError, PrecisionError, warn
from nrm.measure.layers import narrow_mass, sample_sums
from nrm.measure.target import Target, predict
from nrm.measure.verdict import (
    DIFFERENCE,
    NEAR_ZERO,
    OTHER_OUTPUT,
    OUTPUT,
    SHARED_ZERO,
    balance,
    blame_output,
    constants,
    deviations,
    is_beyond,
    output_condition,
    remedies,
)
from nrm.numbers import percent
from nrm.questions import Base, Frame, Site, base_sweep, sweep
from nrm.steps import Arrivals, Network
from nrm.tables import SAMPLE, Results, Tabled

SINK_WARN, SINK_RAISE = 1e-3, 0.1
PRECISION_WARN, PRECISION_RAISE = 1e-4, 1e-2
VARIATION_WARN = 1e3
CANCELLATION = 20.0
"""Above this total variation the verdict speaks of cancellation; with z+ it is 2 to 8."""


@dataclass(frozen=True)
class Check(Tabled):
    """What a check found; numbers are per sample. ``ok`` is the verdict per sample, ``verdict`` says it in words.

    ``mass`` is that of the input cut, ``cuts`` that of the cut through every layer. ``negative`` and ``zero`` are the
    ``reached`` columns with such a sum: how many, and their share of the weight that arrives at columns. ``condition``
    is how many times larger than the explained output its parts are, for samples in trouble; 0 if it is lost.
    ``differs`` is the first layer that does not come out when the tape is replayed, and by how much of its largest
    entry; ``rounding`` are the samples that rounding makes unusable; ``constants`` is the mass that
    begins at constants made from the input by ways that cannot be followed (``.item()``): a leak, as sinks are.
    """

    mass: tuple[float, ...]
    cuts: dict[str, tuple[float, ...]]
    sinks: dict[str, tuple[float, ...]]
    biases: tuple[float, ...]
    offsets: tuple[float, ...]
    variation: dict[str, tuple[float, ...]]
    reached: int
    negative: tuple[int, float]
    zero: tuple[int, float]
    ties: tuple[int, int]
    precision: tuple[float, ...]
    measured: bool
    moved: tuple[float, ...] | None
    value: tuple[float, ...]
    notes: tuple[str, ...] = ()
    errors: tuple[tuple[int, str], ...] = ()
    cautions: tuple[tuple[int | None, str], ...] = ()
    remedies: tuple[str, ...] = ()
    condition: tuple[float, ...] = ()
    differs: tuple[str, float] | None = None
    rounding: frozenset[int] = frozenset()
    constants: dict[str, tuple[float, ...]] = field(default_factory=dict)

    @property
    def ok(self) -> tuple[bool, ...]:
        """Whether each sample's numbers can be used."""
        bad = {sample for sample, _ in self.errors}
        return tuple(i not in bad for i in range(len(self.mass)))

    @property
    def worst_cut(self) -> str | None:
        """The layer whose cut has the mass farthest from 1."""
        return max(self.cuts, key=lambda name: max(abs(m - 1) for m in self.cuts[name]), default=None)

    @property
    def cut_error(self) -> float | None:
        """How far that mass is from 1; None if it was not measured."""
        if not self.measured:
            return None
        return max((abs(m - 1) for masses in self.cuts.values() for m in masses), default=0.0)

    @property
    def sink(self) -> tuple[float, ...]:
        """The mass in sinks, per sample."""
        return tuple(sum(abs(m[i]) for m in self.sinks.values()) for i in range(len(self.mass)))

    @property
    def verdict(self) -> str:
        """One paragraph in plain words, with remedies."""
        if self.errors:
            return "Do not use these numbers. " + " ".join(dict.fromkeys(text for _, text in self.errors))
        if self.cautions:
            return "Usable with care. " + " ".join(dict.fromkeys(text for _, text in self.cautions))
        scope = "measured" if self.measured else "light check"
        text = f"The numbers can be trusted ({scope}): mass holds, no leak, precision lost {max(self.precision):.1g}."
        return " ".join([text, *self._warnings()])

    def _warnings(self) -> Iterator[str]:
        """What numbers that hold do not say."""
        worst = max(self.variation, key=lambda name: max(self.variation[name]), default=None)
        largest = 1.0 if worst is None else max(self.variation[worst])
        if largest > CANCELLATION:
            other = [text for text in self.remedies if text.startswith("rules")]
            yield (
                f"But relevances of both signs cancel: in {worst} their absolute values add up to {largest:.3g} where"
                " the whole is 1, so that single ones can be larger than the whole; ask for larger sets"
                f"{''.join(f', or take {text}' for text in other)}."
            )
        yield from constants(self._constant)

    @property
    def _constant(self) -> tuple[float, ...]:
        """The mass in biases and offsets, per sample."""
        return tuple(b + o for b, o in zip(self.biases, self.offsets, strict=True))

    def speak(self) -> None:
        """Raises if the numbers are noise, warns if they deserve a second look."""
        if self.errors:
            sample, text = self.errors[0]
            raise self._kind(sample)(
                "the relevances of this measure cannot be trusted", where=f"sample {sample}", got=text,
                hint="; ".join(["R.check(strict=False) shows the details", *self._help(sample)]),
            )  # fmt: skip
        for text in dict.fromkeys(text for sample, text in self.cautions if sample is not None):
            warn(text)

    def _kind(self, sample: int) -> type[NrmError]:
        """The kind of a sample's error: rounding is to blame where that was measured."""
        if self.differs is not None:
            return CaptureError
        lost = bool(self.condition) and self.condition[sample] == 0
        return PrecisionError if sample in self.rounding and not lost else MassError

    def _help(self, sample: int) -> Iterator[str]:
        """What may help a sample that is refused: nothing that is in use already."""
        if self.differs is not None:
            return
        condition = self.condition[sample] if self.condition else 1.0
        near = condition == 0 or condition > NEAR_ZERO
        if near:
            yield OTHER_OUTPUT
        few = [text for text in self.remedies if not near or (text.startswith("dtype") and self.value[sample] != 0)]
        if few and sample in self.rounding:
            yield f"{', '.join(few)} may help"

    def sample(self, i: int) -> Check:
        """The certificate of one sample. Counts of columns and ties stay those of the batch."""

        def only(values: tuple[float, ...]) -> tuple[float, ...]:
            return values[i : i + 1]

        return replace(
            self, mass=only(self.mass), cuts={k: only(v) for k, v in self.cuts.items()},
            sinks={k: only(v) for k, v in self.sinks.items()}, biases=only(self.biases),
            offsets=only(self.offsets), variation={k: only(v) for k, v in self.variation.items()},
            precision=only(self.precision), moved=None if self.moved is None else only(self.moved),
            value=only(self.value), condition=only(self.condition),
            errors=tuple((0, text) for s, text in self.errors if s == i),
            cautions=tuple((None if s is None else 0, text) for s, text in self.cautions if s in (None, i)),
            rounding=frozenset({0} if i in self.rounding else ()),
            constants={k: only(v) for k, v in self.constants.items()},
        )  # fmt: skip

    def describe(self) -> dict[str, Any]:
        """The certificate as plain data."""
        return {
            "ok": list(self.ok), "verdict": self.verdict, "mass": list(self.mass), "cut_error": self.cut_error,
            "cuts": {k: list(v) for k, v in self.cuts.items()}, "reached_columns": self.reached,
            "sinks": {k: list(v) for k, v in self.sinks.items()}, "biases": list(self.biases),
            "offsets": list(self.offsets), "variation": {k: list(v) for k, v in self.variation.items()},
            "negative_columns": list(self.negative), "zero_columns": list(self.zero),
            "precision": list(self.precision), "measured": self.measured,
            "moved": None if self.moved is None else list(self.moved), "ties": list(self.ties),
            "value": list(self.value), "notes": list(self.notes),
            "differs": None if self.differs is None else list(self.differs),
            "constants": {k: list(v) for k, v in self.constants.items()},
        }  # fmt: skip

    def table(self) -> Results:
        """The numbers of every sample (``"mass"``, ``"precision"`` and so on), and of every layer and sample.

        ``"cut mass"`` is the mass of the cut through a layer, ``"variation"`` the total variation of a layer.
        """
        numbers: dict[str, Sequence[float]] = {
            "mass": self.mass, "sinks": self.sink, "biases": self.biases, "offsets": self.offsets,
            "precision lost": self.precision, "value": self.value, "ok": self.ok,
        }  # fmt: skip
        numbers |= {} if self.moved is None else {"moved": self.moved}
        tensors = {name: torch.tensor(row) for name, row in numbers.items()}
        axes: dict[str, tuple[str, ...]] = dict.fromkeys(tensors, (SAMPLE,))
        labels = {}
        for name, axis, rows in (("cut mass", "cut", self.cuts), ("variation", "layer", self.variation)):
            if rows:
                tensors[name], axes[name] = torch.tensor(list(rows.values())), (axis, SAMPLE)
                labels[axis] = tuple(rows)
        return Results(tensors, axes, labels=labels)

    def __repr__(self) -> str:
        return "\n".join(f"{name:<22} {text}" for name, text in self._rows())

    def _repr_html_(self) -> str:
        left = "style='text-align:left'"
        rows = "".join(
            f"<tr><th {left}>{html.escape(n)}</th><td {left}>{html.escape(t)}</td></tr>" for n, t in self._rows()
        )
        return f"<table><caption>certificate</caption><tbody>{rows}</tbody></table>"

    def _rows(self) -> list[tuple[str, str]]:
        rows = [("verdict", self.verdict)]
        if len(self.ok) > 1:
            bad = [i for i, ok in enumerate(self.ok) if not ok]
            not_these = f", not {_few(bad)}" if bad else ""
            rows.append(("samples", f"{len(self.ok) - len(bad)} of {len(self.ok)} usable{not_these}"))
        cut = "not measured" if self.cut_error is None else f"{self.cut_error:.2g} at {self.worst_cut}"
        sinks = "".join(f"; {name}: {_few(mass)}" for name, mass in list(self.sinks.items())[:4])
        rows += [
            ("mass of the input cut", _few(self.mass)),
            ("largest cut error", cut),
            ("mass in sinks", _few(self.sink) + sinks),
            ("mass in biases", _few(self.biases)),
            ("mass in offsets", _few(self.offsets)),
            *(("for and against", balance(share)) for share in self._constant[:1] if is_beyond(share)),
            ("total variation", self._variation_text()),
            ("negative columns", self._columns_text(self.negative)),
            ("zero columns", self._columns_text(self.zero)),
            ("ties of maxima", f"{self.ties[0]} of {self.ties[1]} reached" if self.measured else "not measured"),
            ("precision lost", _few(self.precision) + ("" if self.measured else " (estimated)")),
            ("replay of the tape", self._replay_text()),
        ]
        if self.constants:
            rows.insert(4, ("mass in constants", "; ".join(f"{k}: {_few(v)}" for k, v in self.constants.items())
                            + ", made from the input by ways that cannot be followed"))  # fmt: skip
        if self.moved is not None:
            rows.append(("outputs moved", f"{_few(self.moved)} of the largest, against the model's own precision"))
        if any(v < 0 for v in self.value):
            rows.append(("sign", "what is explained is negative: positive relevance argues for the negative value"))
        return rows + [("note", note) for note in self.notes]

    def _replay_text(self) -> str:
        if self.differs is not None:
            return f"{self.differs[0]!r} differs by {self.differs[1]:.2g} of its largest entry"
        return "every tensor has the value that the model computed" if self.measured else "not measured"

    def _variation_text(self) -> str:
        worst = max(self.variation, key=lambda k: max(self.variation[k]), default=None)
        return "-" if worst is None else f"{_few(self.variation[worst])} at {worst}"

    def _columns_text(self, facts: tuple[int, float]) -> str:
        if not self.measured:
            return "not measured"
        return f"{facts[0]} of {self.reached} reached, {percent(facts[1], 2)} of the weight"


def _few(values: Sequence[float]) -> str:
    return ", ".join(f"{v:.4g}" for v in values[:3]) + (" ..." if len(values) > 3 else "")


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
    broken = normalized and _is_off(sums.mass)
    if broken and not full:  # what is at fault is said only if it was measured
        precision = _measure_precision(network, base, batch)
    differs = _find_deviation(tape) if full or broken else None
    rounding = _lost_to_rounding(sums, precision)
    condition = (1.0,) * batch
    errors, cautions = _judge(sums, precision, variation, normalized, condition, rounding)
    if (errors or cautions) and normalized:
        condition = tuple((output_condition(network, base) * _beside(target).clamp(min=1)).tolist())
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
        _notes(network), tuple(errors), tuple(cautions), remedies(network), condition,
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


def _is_off(mass: Tensor) -> bool:
    """Whether a sample's input cut does not have mass 1."""
    return not bool(((mass - 1).abs() <= PRECISION_RAISE).all())


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
