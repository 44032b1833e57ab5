"""Answers of measures as plain data, item by item; what commands print, and what programs may call themselves."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from nrm.cli.asked import FlowsCommand
from nrm.cli.imported import describe
from nrm.cli.inputs import InputSample, NamedInput, read_references
from nrm.cli.models import LoadedModel
from nrm.cli.notation import read_rules, read_target
from nrm.cli.options import MeasureOptions
from nrm.cli.output import Stages, complaint
from nrm.errors import CaptureError, InputError, MassError, NrmError, PrecisionError
from nrm.measure import Average, Measure, measure, name_of
from nrm.questions import Formula, Plan
from nrm.report import EFFORT, View, health, read_partitions

PERSONAL = (CaptureError, MassError, PrecisionError)
"""What may be wrong with one item and not with the next."""

ROOM = 2**31
"""Bytes of measures that are kept while others are looked at."""

SWEEP, CERTIFICATE = 2.0, 2
"""Forward passes of arithmetic that a sweep takes, and the sweeps of a certificate, roughly."""

DTYPES = {"float32": torch.float32, "float64": torch.float64}

Data = dict[str, Any]


def arguments_of(
    settings: MeasureOptions, loaded: LoadedModel, batch: bool | None = None, *, many: bool = False
) -> Data:
    """The arguments of :func:`nrm.measure` that options say; a reference is read as the inputs are, by ``batch``.

    A command that asks no more than an average answers takes ``many`` references.
    """
    if settings.dtype is not None and settings.dtype not in DTYPES:
        raise InputError("no such precision", got=f"--dtype {settings.dtype}", expected=" or ".join(DTYPES))
    return {
        "target": read_target(settings.target, loaded.labels, loaded.tokens),
        "rules": read_rules(settings.rules), "bias": settings.bias, "zero": settings.zero,
        "dtype": None if settings.dtype is None else DTYPES[settings.dtype],
        **({"against": read_references(loaded, settings.against, batch, many)} if settings.against else {}),
    }  # fmt: skip


def open_measure(
    loaded: LoadedModel, sample: InputSample, arguments: Mapping[str, Any], steps: Stages | None = None
) -> Measure:
    """The measure of one sample; the model's own complaints are said in its words."""
    labels: Data = {} if loaded.labels is None else {"output": loaded.labels}
    if sample.tokens is not None:
        labels["input"] = list(sample.tokens)
    progress = False if steps is None else steps.listen
    try:
        return measure(loaded.model, sample.inputs, labels=labels or None, progress=progress, **arguments)
    except NrmError:
        raise
    except Exception as error:  # code of the user's can fail in any way
        raise InputError("the model does not take this input", got=describe(error), hint="--transform") from error


def ask_all(
    loaded: LoadedModel, items: Sequence[NamedInput], arguments: Mapping[str, Any], steps: Stages,
    ask: Callable[[NamedInput, Measure], Data], begin: Callable[[NamedInput, Measure], None] | None = None,
) -> list[Data]:  # fmt: skip
    """The answer for every item, with its name. One that cannot be read or trusted is told, and the others go on.

    What ``begin`` does is done for all items before the first is asked. Their measures are kept for that, as far as
    there is room; others are made again.
    """
    results: dict[NamedInput, Data] = {}
    failed: dict[NamedInput, NrmError] = {}
    kept: dict[NamedInput, Measure] = {}

    def attempt(item: NamedInput, last: bool) -> None:
        try:
            R = kept.pop(item) if item in kept else open_measure(loaded, _loaded(item), arguments, steps)
            if begin is not None and not last:
                begin(item, R)
                if R.nbytes + sum(other.nbytes for other in kept.values()) <= ROOM:
                    kept[item] = R
            else:
                results[item] = ask(item, R)
        except (*PERSONAL, _UnreadableError) as error:
            failed[item] = (error.cause if isinstance(error, _UnreadableError) else error).at(item.name)

    for last in (False, True)[begin is None :]:
        for item in steps.each([item for item in items if item not in failed], lambda item: item.name):
            steps.tell("running the network")
            attempt(item, last)
    if len(failed) == len(items):
        raise next(iter(failed.values()))
    return [
        {"input": item.name, **({"error": complaint(failed[item])} if item in failed else results[item])}
        for item in items
    ]


class _UnreadableError(NrmError):
    """An item that cannot be read, with the reason."""

    def __init__(self, cause: NrmError) -> None:
        super().__init__(cause.what)
        self.cause = cause


def _loaded(item: NamedInput) -> InputSample:
    try:
        return item.load()
    except NrmError as error:
        raise _UnreadableError(error) from error


# ---- answers ---------------------------------------------------------------------------------------------------


def decision(R: Measure | Average) -> Data:
    """What was predicted and what is explained."""
    prediction = R.prediction.flatten().tolist()
    target = R.target if isinstance(R.target, str) else R.target.flatten().tolist()
    name = name_of(R.labels, "output", int(target[-1])) if isinstance(target, list) and target else None
    found = {"prediction": prediction, "target": target, "name": name, "value": float(R.value[0])}
    if isinstance(R, Average):
        return {**found, "runs": [float(R.here[0]), float(R.there[0])], "references": len(R.contrasts)}
    runs = R.inner.target.runs
    return found if runs is None else {**found, "runs": [float(run[R.samples[0]]) for run in runs]}


def layers_of(R: Measure, pattern: str | None = None, blocks: bool = False) -> list[Data]:
    """The layers of a network in the order of the forward pass: those that match a pattern, or its largest parts."""
    found = R.layers if pattern is None else R.layers.find(pattern)
    return [
        {"name": r.name, "shape": list(r.shape), "channel_axis": r.channel, "kind": r.kind, "cut": r.is_cut,
         "bypassed": r.bypassed, "inside": r.inside, "mass": sum(r.mass)}
        for r in (found.blocks if blocks else found)
    ]  # fmt: skip


def partitions_of(R: Measure | Average, parts: Sequence[Any], nodes: int) -> list[Any]:
    """Divided layers as the measure takes them; clusters and groups are found now."""
    found = [part.by for part in parts if getattr(part, "by", "") in ("clusters", "groups")]
    if isinstance(R, Average) and found:
        raise InputError(
            f"{found[0]} are found for one reference", got=f"{len(R.contrasts)} references",
            expected="a division that is there without them: channels, positions, neurons", hint="one --against",
        )  # fmt: skip
    one = R.contrasts[0] if isinstance(R, Average) else R
    return [partition for _, partition in read_partitions(one, parts, nodes)]


def table_of(values: Any, axes: Sequence[tuple[str, str, Sequence[str]]]) -> Data:
    """A table as plain data: along every axis its layer, what it is divided by, and the names of its entries."""
    return {"axes": [{"layer": layer, "by": by, "labels": list(names)} for layer, by, names in axes], "values": values}


def flows_of(R: Measure | Average, parts: Sequence[Any], asked: FlowsCommand) -> Data:
    """The strongest combinations of blocks; those ranked by something else than relevance say how much they have."""
    if isinstance(R, Average):
        found = R.flows(*parts, k=asked.k, sign=asked.sign, effort=asked.effort)
    else:
        found = R.flows(*parts, k=asked.k, sign=asked.sign, effort=asked.effort, by=asked.by, least=asked.least)
    listed = [
        {"sets": [str(one) for one in flow], "labels": list(flow.labels) or [None] * len(flow.sets),
         **({} if flow.ranked is None else {flow.ranked[0]: flow.ranked[1]}),
         "relevance": flow.relevance, "certified": flow.certified}
        for flow in found[0]
    ]  # fmt: skip
    return {"decision": decision(R), "flows": listed, "certified": found.certified[0], "gap": found.gap[0]}


def event_of(R: Measure, event: Formula) -> Data:
    """The relevance of a formula."""
    return {"decision": decision(R), "formula": str(event), "relevance": float(R(event)[0])}


def check_of(R: Measure | Average) -> Data:
    """The certificate, and its facts in words; of several references, the worst one."""
    checks = R.check(strict=False) if isinstance(R, Average) else (R.check(strict=False),)
    found = max(checks, key=lambda one: (not all(one.ok), one.precision[0]))
    return {"decision": decision(R), "ok": all(found.ok), **health(found), "certificate": found.describe()}


# ---- plans -----------------------------------------------------------------------------------------------------


def line(what: str, plan: Plan, times: int = 1) -> Data:
    """A line of a plan: what, how often, and how many forward passes of arithmetic in all."""
    return {"what": what, "times": times, "passes": times * plan.passes}


def sweeps(times: int = 1) -> Data:
    """Sweeps of relevance through the whole network, which every measure needs once; a plan counts what is more."""
    return {"what": "sweeps through the network, about", "times": times, "passes": SWEEP * times}


def plan_flows(R: Measure, parts: Sequence[Any], effort: float) -> list[Data]:
    """A search for flows: their whole table if that is cheap, else a search within the effort."""
    table = line("table of all combinations", R.plan(*parts))
    return [sweeps(), table if table["passes"] <= effort else {"what": "search, at most", "times": 1, "passes": effort}]


def plan_view(view: View, maps: bool, fast: bool = False) -> list[Data]:
    """A view, with the maps of a report or without."""
    R, variable = view.R, view.canvas.variable
    lines = [sweeps(), line("heat map", R.plan(variable))]
    if fast and not maps:
        return lines
    for a, b in itertools.pairwise(view.columns):
        lines.append(line(f"ribbons {a.column.name} - {b.column.name}", R.plan(a.groups, b.groups)))
    if fast:
        return lines
    lines.append({"what": "chains, at most", "times": 1, "passes": EFFORT})
    for shown in view.columns if maps else ():
        lines.append(line(f"maps of {shown.column.name}", R.plan(variable, shown.groups[0]), len(shown.column.nodes)))
    return [*lines, {**sweeps(CERTIFICATE), "what": "certificate, about"}]


def timed(make: Callable[[], Measure]) -> tuple[Measure, float]:
    """A measure, and the seconds that it took: a forward pass, roughly."""
    begin = time.perf_counter()
    made = make()
    return made, time.perf_counter() - begin


def cost(lines: Sequence[Data], seconds: float, items: int = 1) -> Data:
    """Lines of a plan with their sum, and how long that takes for all items, roughly."""
    passes = sum(one["passes"] for one in lines)
    return {"items": items, "lines": list(lines), "passes": passes, "seconds": items * (1 + passes) * seconds}
