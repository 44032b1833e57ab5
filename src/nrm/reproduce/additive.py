"""The paper's comparison of joint and additive relevance: how much does a heat map tell two sets of neurons apart?"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from nrm.evaluate import interval
from nrm.measure import Measure
from nrm.plot import montage
from nrm.questions import Set
from nrm.reproduce.experiment import Experiment, Outcome, Setting, UnitPlan
from nrm.reproduce.store import Tensors, Unit
from nrm.reproduce.vgg import PAPER, ImageSubject, heat_of, subject
from nrm.search import cluster

SAMPLES = 10
BLOCKS = ("features.4", "features.9", "features.16", "features.23", "features.30")


def _sets(found: ImageSubject, R: Measure) -> tuple[list[Set], list[Set]]:
    """The three strongest clusters of every block, and three that change from block to block."""
    layers = found.blocks if found.blocks[0] not in BLOCKS else BLOCKS
    parts = [cluster(R, layer, 8 if k < len(layers) - 1 else found.coarse) for k, layer in enumerate(layers)]
    counts = [int(R(part).shape[1]) for part in parts]
    first = [part.layer.group(part.detail[0].tensor, [0, 1, 2]) for part in parts]
    other = [
        part.layer.group(part.detail[0].tensor, sorted({(k + step) % n for step in (0, 2, 3)}))
        for k, (part, n) in enumerate(zip(parts, counts, strict=True))
    ]
    return first, other


def _judge(found: ImageSubject, i: int) -> Tensors:
    """The heat maps of both sets, by both definitions."""
    R = found.measured(i, PAPER)
    kept = {}
    for name, sets in zip(("first", "other"), _sets(found, R), strict=True):
        layers = [s.layer for s in sets]
        kept[f"additive/{name}"] = R.additive(*sets, at=R.input, layers=layers)
        kept[f"joint/{name}"] = R(R.input, *sets)
    return kept


def _likeness(parts: list[Tensors], method: str) -> Tensor:
    """The cosine between the heat maps of the two sets, for every sample."""
    pairs = [[p[f"{method}/{name}"].flatten() for name in ("first", "other")] for p in parts]
    return torch.stack([torch.nn.functional.cosine_similarity(a, b, dim=0) for a, b in pairs]).double()


def _plan(setting: Setting) -> UnitPlan:
    found = subject(setting)
    count = min(setting.samples or SAMPLES, found.count)
    keys = [f"sample-{i:05d}" for i in range(count)]
    units = [Unit(key, partial(_judge, found, i)) for i, key in enumerate(keys)]

    def finish() -> Outcome:
        parts = [setting.store.read(key) for key in keys]
        rows = []
        for method in ("additive", "joint"):
            alike = _likeness(parts, method)
            alike = alike[torch.isfinite(alike)]
            rows.append({
                "model": found.name, "bias": "ignore", "rules": PAPER, "method": method, "samples": len(alike),
                "likeness_of_two_sets": float(alike.mean()), "likeness_ci": [round(x, 4) for x in interval(alike)],
            })  # fmt: skip
        return Outcome(rows, {"network": found.name}, {"sets": _figure(found, parts[0])})

    return units, finish


def _figure(found: ImageSubject, part: Tensors) -> Any:
    picture = found.picture(found.sample(0)[0])
    rows = [
        (picture, *(heat_of(part[f"{method}/{name}"]) for method in ("additive", "joint")))
        for name in ("first", "other")
    ]
    names = ["three strongest clusters", "three others"]
    return montage(rows, names=names, columns=["image", "additive", "joint"], scale="99.5%")


ADDITIVE = Experiment(
    "additive", "Additive and joint relevance of two sets of neurons",
    "figure of features captured by additive and joint relevance", _plan,
)  # fmt: skip
