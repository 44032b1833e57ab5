"""Which rule is most faithful? The same judgement over rules and networks.

Samples whose relevance the library refuses under a rule, because rounding has eaten it, are counted and left out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nrm.errors import MassError, PrecisionError
from nrm.evaluate import compare, scores
from nrm.measure import Measure, measure
from nrm.reproduce.data import folder_of
from nrm.reproduce.experiment import Experiment, Outcome, Plan, Setting
from nrm.reproduce.mlp import trained
from nrm.reproduce.networks import ResNet, load
from nrm.reproduce.store import Tensors, Unit
from nrm.reproduce.tables import as_tensors, joined, rows_of
from nrm.reproduce.vgg import subject
from nrm.rules import AlphaBeta, Composite, Gamma, Rule, ZPlus, composite

SAMPLES = 10


def _named(name: str, rule: Rule | None, bias: str, everywhere: bool) -> Composite:
    """A rule in the convolutions (in all linear steps), LRP-0 elsewhere."""
    base = composite("lrp-0")
    if rule is not None:
        base = replace(base, conv=rule, add=rule, linear=rule if everywhere else base.linear)
    return replace(base, name=f"{name}, bias {bias}", bias=bias)


def candidates(everywhere: bool) -> list[Composite]:
    """The rules that are compared."""
    rules: list[tuple[str, Rule | None]] = [("lrp-0", None), ("z+", ZPlus())]
    rules += [(f"gamma {g:g}", Gamma(g)) for g in (0.05, 0.1, 0.25, 0.5, 1.0)]
    rules += [("alpha-beta 2, 1", AlphaBeta(2.0, 1.0))]
    return [_named(name, rule, bias, everywhere) for name, rule in rules for bias in ("ignore", "input")]


Ask = Callable[[Any], Measure]
"""A sample's measure under some rules."""


def _networks(setting: Setting) -> dict[str, tuple[Callable[[int], Ask], tuple[str, str], bool]]:
    """For each network: a sample's measure under rules, two layers, and whether the rule is for all linear steps."""
    model, test, _ = trained(setting, True)

    def mlp(i: int) -> Ask:
        x, y = test.inputs[i : i + 1], int(test.classes[i])
        return lambda rules: measure(
            model, x, target=y, rules=rules, dtype=torch.float64, zero="uniform", progress=False
        )  # fmt: skip

    found: dict[str, tuple[Callable[[int], Ask], tuple[str, str], bool]] = {"MLP": (mlp, ("1", "3"), True)}
    vgg = subject(setting)
    found[vgg.name] = (lambda i: partial(vgg.measured, i), vgg.channels, False)
    if not setting.embedded:
        found["ResNet18-CIFAR10"] = (_resnet(setting), ("layer4.0", "layer4.1/relu#0"), False)
    return found


def _resnet(setting: Setting) -> Callable[[int], Ask]:
    home = folder_of(setting.data, "resnet18-cifar10", "CIFAR ResNet18")
    model = load(ResNet(), home / "resnet18_cifar10_fp16.safetensors")
    with np.load(home / "cifar10_test_1000.npz") as kept:
        arrays = [torch.from_numpy(kept[key]) for key in kept.files]
    images = next(a for a in arrays if a.ndim == 4)
    classes = next(a for a in arrays if a.ndim == 1)
    images = images.permute(0, 3, 1, 2) if images.shape[-1] == 3 else images
    images = images.float() / 255 if images.dtype == torch.uint8 else images.float()

    def ask(i: int) -> Ask:
        x: Tensor = images[i : i + 1]
        return lambda rules: measure(model, x, target=int(classes[i]), rules=rules, zero="uniform", progress=False)

    return ask


def _judge(ask: Ask, layers: tuple[str, str], everywhere: bool) -> Tensors:
    rules = candidates(everywhere)
    R = ask(rules[1])
    pair = [R[name].channels for name in layers]
    own = {}
    for candidate in rules:
        with contextlib.suppress(MassError, PrecisionError):  # the library refuses numbers that are noise
            own[f"nrm ({candidate.name})"] = scores(ask(candidate), *pair)
    return as_tensors(compare(R, *pair, methods=("occlusion", "activation", "random"), scores=own))


def _plan(setting: Setting) -> Plan:
    count = setting.samples or SAMPLES
    networks = _networks(setting)
    keys = {name: [f"{name}-{i:05d}" for i in range(count)] for name in networks}
    units = [Unit(key, partial(_unit, networks[name], i)) for name in networks for i, key in enumerate(keys[name])]

    def finish() -> Outcome:
        rows = []
        for name, mine in keys.items():
            table = joined([setting.store.read(key) for key in mine])
            found = rows_of(table, order=2, model=name, bias="", rules="")
            for row in found:
                row["refused"] = count - row["samples"]
                rules, _, bias = str(row["rules"]).rpartition(", bias ")
                row["rules"], row["bias"] = rules, bias
            rows += sorted(found, key=lambda row: -(row["pearson_mean"] or -2.0))
        return Outcome(rows, {"pairs of": ", ".join(f"{n}: {' x '.join(v[1])}" for n, v in networks.items())})

    return units, finish


def _unit(network: tuple[Callable[[int], Ask], tuple[str, str], bool], i: int) -> Tensors:
    ask, layers, everywhere = network
    return _judge(ask(i), layers, everywhere)


RULES = Experiment("rules", "Which rule is most faithful?", "beyond the paper", _plan)
