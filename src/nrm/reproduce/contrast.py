"""Is a contrast as faithful as the plain measure? Both are judged by joint contributions, of removal to 0 and to the
reference.

A contrast predicts what is lost when neurons are put back to their values in the reference. A plain measure knows no
such values, and removal to 0 is its convention. So every method is judged by both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from nrm.evaluate import compare, scores
from nrm.measure import Measure, measure, reference
from nrm.questions import Argument
from nrm.reproduce.experiment import Experiment, Outcome, Setting, UnitPlan, ranges
from nrm.reproduce.mlp import trained
from nrm.reproduce.store import Tensors, Unit
from nrm.reproduce.tables import TableRow, as_tensors, joined, rows_of
from nrm.reproduce.vgg import BEST, PAPER, ImageSubject, cifar, clusters, subject, upper_part
from nrm.rules import composite

BATCH = 20
"""Samples of a perceptron that are judged together."""
ZERO, REFERENCES = "0", ("zeros", "mean", "blur")
"""Removal to 0, and to the values of these references."""
RULES = {"lrp-0": replace(composite("lrp-0"), bias="input")}
RULES_OF_IMAGES = {PAPER: composite(PAPER), BEST.name: BEST, **RULES}


@dataclass(frozen=True, eq=False)
class ContrastSamples:
    """Some inputs with their classes, and what they are compared with, by name."""

    inputs: Tensor
    classes: Tensor
    references: Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class ContrastedNetwork:
    """A network and its samples: ``count`` of them unless the user says otherwise, ``size`` of them judged together.

    ``rules`` are those of the plain measure.
    """

    model: nn.Module
    samples: Callable[[range], ContrastSamples]
    asked: Callable[[Measure], tuple[Argument, ...]]
    rules: Mapping[str, Any]
    count: int
    order: int = 2
    size: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)

    def measured(self, samples: ContrastSamples, **options: Any) -> Measure:
        """Samples explained for their true class."""
        options = {"zero": "uniform", "progress": False, **self.options, **options}
        return measure(self.model, samples.inputs, target=samples.classes, **options)


def _perceptron(setting: Setting, bias: bool, order: int) -> ContrastedNetwork:
    model, test, _ = trained(setting, bias)
    side = round(test.inputs.shape[1] ** 0.5)
    mean = reference("mean", test.inputs)

    def samples(rows: range) -> ContrastSamples:
        x = test.inputs[rows.start : rows.stop]
        blurred = reference("blur", x.view(-1, 1, side, side)).flatten(1)
        references = {"zeros": torch.zeros_like(x), "mean": mean, "blur": blurred}
        return ContrastSamples(x, test.classes[rows.start : rows.stop], references)

    def asked(R: Measure) -> tuple[Argument, ...]:
        return ((R.input,) if order == 3 else ()) + (R["1"].channels, R["3"].channels)

    count, size = (1000, BATCH) if order == 2 else (10, 1)
    return ContrastedNetwork(
        model, samples, asked, RULES, min(count, len(test.inputs)), order, size, {"dtype": torch.float64}
    )


def of_images(
    found: ImageSubject, mean: Tensor, count: int, asked: Callable[[Measure], tuple[Argument, ...]]
) -> ContrastedNetwork:  # fmt: skip
    """Images one by one. References are images too, where the network reads what a layer makes of them."""

    def samples(rows: range) -> ContrastSamples:
        x, target = found.sample(rows.start)
        references = {name: reference(name, x[None]) for name in ("zeros", "blur")} | {"mean": mean}
        made = {name: found.reads(there) for name, there in references.items()}
        return ContrastSamples(found.reads(x[None]), torch.tensor([target]), made)

    return ContrastedNetwork(found.model, samples, asked, RULES_OF_IMAGES, count)


def _channels(found: ImageSubject, stride: int, R: Measure) -> tuple[Argument, ...]:
    return R[found.channels[0]].channels, R[found.channels[1]].channels[::stride]


def _networks(setting: Setting) -> dict[str, ContrastedNetwork]:
    found = {
        f"MLP, {'biases' if bias else 'no biases'}, order {order}": _perceptron(setting, bias, order)
        for order in (2, 3)
        for bias in (False, True)
    }
    whole = subject(setting)
    mean = setting.store.keep("mean", partial(_mean, whole))["mean"]
    upper = whole if setting.embedded else upper_part(whole)
    found[f"{whole.name}, channels"] = of_images(upper, mean, 20, partial(_channels, upper, 1))
    if not setting.embedded:
        small = cifar(setting)
        own = setting.store.keep("mean-cifar", partial(_mean, small))["mean"]
        found[f"{small.name}, channels"] = of_images(small, own, 100, partial(_channels, small, 8))
    found[f"{whole.name}, clusters"] = of_images(whole, mean, 20, partial(clusters, whole))
    return found


def _mean(found: ImageSubject) -> Tensors:
    """The mean of all images, a batch of one."""
    total = torch.zeros(1)
    for i in range(found.count):
        total = total + found.sample(i)[0].double()[None]
    return {"mean": (total / found.count).float()}


def _judge(network: ContrastedNetwork, rows: range) -> Tensors:
    """All methods by removal to 0, and for every reference the plain measure and its own contrast by removal to it."""
    samples = network.samples(rows)
    plain = {name: network.measured(samples, rules=rules) for name, rules in network.rules.items()}
    first = next(iter(plain.values()))
    asked = network.asked(first)
    own = {f"nrm ({name})": scores(R, *asked) for name, R in plain.items()}
    contrasts = {name: network.measured(samples, against=there) for name, there in samples.references.items()}
    theirs = {f"contrast ({name})": scores(R, *asked) for name, R in contrasts.items()}
    kept = _judged(ZERO, first, asked, own | theirs, network.order)
    for name, R in contrasts.items():
        key = f"contrast ({name})"
        kept |= _judged(name, R, asked, {**own, key: theirs[key]}, network.order, value="reference")
    return kept


def _judged(
    removal: str, R: Measure, asked: tuple[Argument, ...], own: dict[str, Tensor], order: int, **options: Any
) -> Tensors:  # fmt: skip
    """Methods by one kind of removal, as it is kept; tables of third order are not ranked."""
    found = compare(R, *asked, methods=("occlusion",), scores=own, k=None if order == 2 else (), **options)
    return {f"{removal}: {key}": t for key, t in as_tensors(found).items()}


def _rows(name: str, network: ContrastedNetwork, parts: list[Tensors]) -> list[TableRow]:
    rows = []
    for removal in sorted({key.partition(": ")[0] for key in parts[0]}, key=(ZERO, *REFERENCES).index):
        mine = [
            {k.removeprefix(f"{removal}: "): t for k, t in p.items() if k.startswith(f"{removal}: ")} for p in parts
        ]
        to = "to 0" if removal == ZERO else f"to the values of {removal}"
        for row in rows_of(joined(mine), "rules", order=network.order, model=name, removal=to, rules=""):
            if row["method"] == "contrast":
                row["against"], row["rules"] = row["rules"], "exact"
            rows.append(row)
    return rows


def _plan(setting: Setting) -> UnitPlan:
    networks = _networks(setting)
    units, keys = [], {}
    for name, network in networks.items():
        asked = setting.samples if network.order == 2 else setting.third
        batches = ranges(asked or network.count, network.size)
        keys[name] = [f"{name}-{rows.start:05d}-{rows.stop:05d}" for rows in batches]
        work = [partial(_judge, network, rows) for rows in batches]
        units += [Unit(key, one) for key, one in zip(keys[name], work, strict=True)]

    def finish() -> Outcome:
        rows = [
            row
            for name, mine in keys.items()
            for row in _rows(name, networks[name], list(map(setting.store.read, mine)))
        ]
        return Outcome(rows)

    return units, finish


CONTRAST = Experiment("contrast", "Is a contrast as faithful as the plain measure?", "beyond the paper", _plan)
