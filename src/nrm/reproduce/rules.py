"""Which rule is most faithful? The same judgement over rules and networks.

Samples whose relevance the library refuses under a rule, because rounding has eaten it, are counted and left out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from nrm.errors import MassError, PrecisionError
from nrm.evaluate import compare, scores
from nrm.measure import Measure, measure
from nrm.reproduce.experiment import Experiment, Outcome, Setting, UnitPlan
from nrm.reproduce.mlp import trained
from nrm.reproduce.store import Tensors, Unit
from nrm.reproduce.tables import TableRow, as_tensors, joined, rows_of
from nrm.reproduce.vgg import ImageSubject, LayerPair, cifar, clusters, subject, upper_part
from nrm.rules import AlphaBeta, Composite, Gamma, Gradient, IntegratedGradients, Rule, ZPlus, composite

SAMPLES = 10
STEPS = 8
"""Points on the way of integrated gradients."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """Rules by name, and what becomes of biases."""

    name: str
    rules: Any
    bias: str


@dataclass(frozen=True, eq=False)
class JudgedNetwork:
    """How a sample is measured, two layers, and which pairs of their blocks are judged.

    ``everywhere`` uses a rule in all linear steps, not only in convolutions; ``integrates`` has gradients along a way
    among the rules, which between far layers take minutes for every sample.
    """

    ask: Callable[[int, Candidate], Measure]
    layers: tuple[str, str]
    pairs: Callable[[Measure], LayerPair]
    everywhere: bool = False
    integrates: bool = True

    def candidates(self) -> list[Candidate]:
        """The rules that are compared; those between layers see all between the two as one function."""
        found: dict[str, Any] = {"lrp-0": composite("lrp-0")}
        for name, rule in (
            ("z+", ZPlus()), *((f"gamma {g:g}", Gamma(g)) for g in (0.05, 0.1, 0.25, 0.5, 1.0)),
            ("alpha-beta 2, 1", AlphaBeta(2.0, 1.0)),
        ):  # fmt: skip
            found[name] = self._composite(rule)
        found["block-wise gradient"] = Gradient(self.layers)
        if self.integrates:
            found["block-wise integrated gradients"] = IntegratedGradients(self.layers, steps=STEPS)
        return [Candidate(name, rules, bias) for name, rules in found.items() for bias in ("ignore", "input")]

    def _composite(self, rule: Rule) -> Composite:
        base = composite("lrp-0")
        return replace(base, conv=rule, add=rule, linear=rule if self.everywhere else base.linear)


def _channels(
    layers: tuple[str, str], stride: int, ask: Callable[[int, Candidate], Measure], **facts: Any
) -> JudgedNetwork:
    """A network of which pairs of channels are judged, of the upper layer every ``stride``-th."""
    low, high = layers
    return JudgedNetwork(ask, layers, lambda R: (R[low].channels, R[high].channels[::stride]), **facts)


def _networks(setting: Setting) -> dict[str, JudgedNetwork]:
    model, test, _ = trained(setting, True)

    def ask(i: int, candidate: Candidate) -> Measure:
        return measure(
            model, test.inputs[i : i + 1], target=int(test.classes[i]), rules=candidate.rules, bias=candidate.bias,
            dtype=torch.float64, progress=False,
        )  # fmt: skip

    whole = subject(setting)
    vgg = whole if setting.embedded else upper_part(whole)
    stride = 1 if setting.embedded else 8
    found = {
        "MLP": _channels(("1", "3"), 1, ask, everywhere=True),
        vgg.name: _channels(vgg.channels, stride, partial(_measured, vgg)),
        f"{whole.name}, clusters": JudgedNetwork(
            partial(_measured, whole), whole.blocks, partial(clusters, whole), integrates=setting.embedded
        ),
    }
    if not setting.embedded:
        small = cifar(setting)
        found[small.name] = _channels(small.channels, stride, partial(_measured, small))
    return found


def _measured(found: ImageSubject, i: int, candidate: Candidate) -> Measure:
    return found.measured(i, candidate.rules, bias=candidate.bias, zero="sink")


def _judge(network: JudgedNetwork, i: int) -> Tensors:
    candidates = network.candidates()
    own, R = {}, network.ask(i, candidates[1])
    pairs = network.pairs(R)
    for one in candidates:
        with contextlib.suppress(MassError, PrecisionError):  # the library refuses numbers that are noise
            own[f"nrm ({one.name}, bias {one.bias})"] = scores(network.ask(i, one), *pairs)
    return as_tensors(compare(R, *pairs, methods=("occlusion", "activation", "random"), scores=own))


def _plan(setting: Setting) -> UnitPlan:
    count = setting.samples or SAMPLES
    networks = _networks(setting)
    keys = {name: [f"{name}-{i:05d}" for i in range(count)] for name in networks}
    units = [Unit(keys[name][i], partial(_judge, networks[name], i)) for i in range(count) for name in networks]

    def finish() -> Outcome:
        rows = []
        for name, mine in keys.items():
            table = joined([setting.store.read(key) for key in mine])
            found = rows_of(table, order=2, model=name, bias="", rules="")
            for row in found:
                row["refused"] = count - row["samples"]
                rules, _, bias = str(row["rules"]).rpartition(", bias ")
                row["rules"], row["bias"] = rules, bias
            found += _refused(name, networks[name], {(row["rules"], row["bias"]) for row in found}, count)
            rows += sorted(found, key=lambda row: -(row["pearson_mean"] or -2.0))
        layers = ", ".join(f"{name}: {' x '.join(one.layers)}" for name, one in networks.items())
        return Outcome(rows, {"pairs of": layers, "steps of integrated gradients": STEPS})

    return units, finish


def _refused(name: str, network: JudgedNetwork, judged: set[tuple[str, str]], count: int) -> list[TableRow]:
    """A row for all rules under which no sample was accepted."""
    return [
        {"order": 2, "model": name, "bias": one.bias, "rules": one.name, "method": "nrm", "samples": 0,
         "pearson_mean": None, "pearson_ci": None, "sc": None, "refused": count}
        for one in network.candidates()
        if (one.name, one.bias) not in judged
    ]  # fmt: skip


RULES = Experiment("rules", "Which rule is most faithful?", "beyond the paper", _plan)
