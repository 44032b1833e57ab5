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
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from nrm._version import __version__

if TYPE_CHECKING:
    from nrm import compat, errors, evaluate, methods, plot, rules, tasks as tasks, testing
    from nrm.capture import register
    from nrm.errors import (
        CaptureError as CaptureError,
        MassError as MassError,
        MemoryLimitError as MemoryLimitError,
        NrmError as NrmError,
        NrmWarning as NrmWarning,
        PrecisionError as PrecisionError,
        QuestionError as QuestionError,
        ResultFileError as ResultFileError,
        RuleError as RuleError,
    )
    from nrm.explorer import explore
    from nrm.jobs import circuit, heatmaps, open_store as open_store, relmax, stream
    from nrm.measure import (
        Check as Check,
        Circuit as Circuit,
        Cut as Cut,
        Difference as Difference,
        Estimate as Estimate,
        Generated as Generated,
        Measure as Measure,
        Writing as Writing,
        estimate as estimate,
        generated as generated,
        measure,
        reference,
    )
    from nrm.questions import Layer as Layer, Partition as Partition, Set as Set, query, stack, visits
    from nrm.results import load, save
    from nrm.rules import (
        LRP0 as LRP0,
        AlphaBeta as AlphaBeta,
        Composite as Composite,
        EntryEpsilon as EntryEpsilon,
        Epsilon as Epsilon,
        Flat as Flat,
        Gamma as Gamma,
        Gradient as Gradient,
        IntegratedGradients as IntegratedGradients,
        Occlusion as Occlusion,
        Pass as Pass,
        Product as Product,
        Rule as Rule,
        Shapley as Shapley,
        SoftmaxRule as SoftmaxRule,
        Sum as Sum,
        WSquare as WSquare,
        ZBox as ZBox,
        ZPlus as ZPlus,
        composite as composite,
    )
    from nrm.search import cluster, coarsen as coarsen, merge as merge

    layer = Layer
    """A layer by name, before any measure exists: ``nrm.layer("features.26").channels``."""

    input = Layer("input")
    """The user's input as a layer."""

    output = Layer("output")
    """The explained output as a layer."""

ROOMS = ("errors", "capture", "jobs", "measure", "questions", "results", "rules", "search")
"""Where the names of the front door live. They are imported when the first of them is used, as they need torch."""

SHORT = (
    "LRP0", "AlphaBeta", "CaptureError", "Check", "Circuit", "Composite", "Cut", "Difference", "EntryEpsilon",
    "Epsilon", "Estimate", "Flat", "Gamma", "Generated", "Gradient", "IntegratedGradients", "Layer", "MassError",
    "Measure", "MemoryLimitError", "NrmError", "NrmWarning", "Occlusion", "Partition", "Pass", "PrecisionError",
    "Product", "QuestionError", "ResultFileError", "Rule", "RuleError", "Set", "Shapley", "SoftmaxRule", "Sum",
    "WSquare", "Writing", "ZBox", "ZPlus", "coarsen", "composite", "estimate", "generated", "merge",
    "open_store",
)  # fmt: skip
"""Short names outside the front door: rules, errors and the types that annotations need, ``nrm.Gamma`` for instance."""

MODULES = (
    *ROOMS, "compat", "evaluate", "extras", "methods", "operators", "plot", "report", "steps", "tasks", "testing"
)  # fmt: skip
"""What ``nrm.name`` gives without an import of its own, as far as it is no name of the front door."""


def __getattr__(name: str) -> Any:
    if name == "explore":
        return importlib.import_module("nrm.explorer").explore
    if name in MODULES and name not in ("measure",):
        return importlib.import_module(f"nrm.{name}")
    if name not in __all__ and name not in SHORT:
        raise AttributeError(f"module 'nrm' has no attribute {name!r}")
    found = _layers().get(name) if name in ("layer", "input", "output") else _imported(name)
    globals()[name] = found
    return found


def _layers() -> dict[str, Any]:
    """A layer by name, and the two that every network has."""
    kind = importlib.import_module("nrm.questions").Layer
    return {"layer": kind, "input": kind("input"), "output": kind("output")}


def _imported(name: str) -> Any:
    rooms = (importlib.import_module(f"nrm.{room}") for room in ROOMS)
    found = (vars(room)[name] for room in rooms if name in vars(room))
    return next(value for value in found if not isinstance(value, ModuleType))  # a file of a room may have the name


def __dir__() -> list[str]:
    return sorted(__all__)


class _Door(ModuleType):
    """The module ``nrm``, in which ``nrm.measure`` is the function, also after the room of that name was imported."""

    def __setattr__(self, name: str, value: object) -> None:
        if name == "measure" and isinstance(value, ModuleType):
            value = value.measure
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Door


__all__ = [
    "__version__",
    "circuit",
    "cluster",
    "compat",
    "errors",
    "evaluate",
    "explore",
    "heatmaps",
    "input",
    "layer",
    "load",
    "measure",
    "methods",
    "output",
    "plot",
    "query",
    "reference",
    "register",
    "relmax",
    "rules",
    "save",
    "stack",
    "stream",
    "testing",
    "visits",
]
