"""The normalized relevance measure: how much of a network's decision flowed through which neurons.

>>> import torch, nrm
>>> _ = torch.manual_seed(0)
>>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
>>> R = nrm.measure(model, torch.ones(1, 4))
>>> tuple(R(R.input, R["1"].channel(0)).shape)
(1, 4)
"""

from __future__ import annotations

import importlib
from typing import Any

from nrm._version import __version__
from nrm.capture import register
from nrm.errors import (
    CaptureError,
    MassError,
    MemoryLimitError,
    NrmError,
    NrmWarning,
    PrecisionError,
    QuestionError,
    ResultFileError,
    RuleError,
)
from nrm.jobs import heatmaps, open_store, relmax, stream
from nrm.measure import Check, Cut, Difference, Measure, measure
from nrm.questions import Layer, Partition, Set, query, stack, visits
from nrm.results import load, save
from nrm.rules import (
    LRP0,
    AlphaBeta,
    Composite,
    EntryEpsilon,
    Epsilon,
    Flat,
    Gamma,
    Gradient,
    IntegratedGradients,
    Occlusion,
    Pass,
    Product,
    Rule,
    Shapley,
    SoftmaxRule,
    Sum,
    WSquare,
    ZBox,
    ZPlus,
    composite,
)
from nrm.search import cluster, coarsen

layer = Layer
"""A layer by name, before any measure exists: ``nrm.layer("features.26").channels``."""

input = Layer("input")
"""The user's input as a layer."""

output = Layer("output")
"""The explained output as a layer."""


def __getattr__(name: str) -> Any:
    if name in ("compat", "evaluate", "methods", "plot", "report", "testing"):
        return importlib.import_module(f"nrm.{name}")
    if name == "explore":
        return importlib.import_module("nrm.explorer").explore
    raise AttributeError(f"module 'nrm' has no attribute {name!r}")


__all__ = [
    "LRP0",
    "AlphaBeta",
    "CaptureError",
    "Check",
    "Composite",
    "Cut",
    "Difference",
    "EntryEpsilon",
    "Epsilon",
    "Flat",
    "Gamma",
    "Gradient",
    "IntegratedGradients",
    "Layer",
    "MassError",
    "Measure",
    "MemoryLimitError",
    "NrmError",
    "NrmWarning",
    "Occlusion",
    "Partition",
    "Pass",
    "PrecisionError",
    "Product",
    "QuestionError",
    "ResultFileError",
    "Rule",
    "RuleError",
    "Set",
    "Shapley",
    "SoftmaxRule",
    "Sum",
    "WSquare",
    "ZBox",
    "ZPlus",
    "__version__",
    "cluster",
    "coarsen",
    "composite",
    "heatmaps",
    "input",
    "layer",
    "load",
    "measure",
    "open_store",
    "output",
    "query",
    "register",
    "relmax",
    "save",
    "stack",
    "stream",
    "visits",
]
