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
    from nrm import compat, errors, evaluate, methods, plot, rules, testing
    from nrm.capture import register
    from nrm.errors import CaptureError as CaptureError
    from nrm.errors import MassError as MassError
    from nrm.errors import MemoryLimitError as MemoryLimitError
    from nrm.errors import NrmError as NrmError
    from nrm.errors import NrmWarning as NrmWarning
    from nrm.errors import PrecisionError as PrecisionError
    from nrm.errors import QuestionError as QuestionError
    from nrm.errors import ResultFileError as ResultFileError
    from nrm.errors import RuleError as RuleError
    from nrm.explorer import explore
    from nrm.jobs import heatmaps, relmax, stream
    from nrm.jobs import open_store as open_store
    from nrm.measure import Check as Check
    from nrm.measure import Cut as Cut
    from nrm.measure import Difference as Difference
    from nrm.measure import Measure as Measure
    from nrm.measure import measure
    from nrm.questions import Layer as Layer
    from nrm.questions import Partition as Partition
    from nrm.questions import Set as Set
    from nrm.questions import query, stack, visits
    from nrm.results import load, save
    from nrm.rules import LRP0 as LRP0
    from nrm.rules import AlphaBeta as AlphaBeta
    from nrm.rules import Composite as Composite
    from nrm.rules import EntryEpsilon as EntryEpsilon
    from nrm.rules import Epsilon as Epsilon
    from nrm.rules import Flat as Flat
    from nrm.rules import Gamma as Gamma
    from nrm.rules import Gradient as Gradient
    from nrm.rules import IntegratedGradients as IntegratedGradients
    from nrm.rules import Occlusion as Occlusion
    from nrm.rules import Pass as Pass
    from nrm.rules import Product as Product
    from nrm.rules import Rule as Rule
    from nrm.rules import Shapley as Shapley
    from nrm.rules import SoftmaxRule as SoftmaxRule
    from nrm.rules import Sum as Sum
    from nrm.rules import WSquare as WSquare
    from nrm.rules import ZBox as ZBox
    from nrm.rules import ZPlus as ZPlus
    from nrm.rules import composite as composite
    from nrm.search import cluster
    from nrm.search import coarsen as coarsen

    layer = Layer
    """A layer by name, before any measure exists: ``nrm.layer("features.26").channels``."""

    input = Layer("input")
    """The user's input as a layer."""

    output = Layer("output")
    """The explained output as a layer."""

ROOMS = ("errors", "capture", "jobs", "measure", "questions", "results", "rules", "search")
"""Where the names of the front door live. They are imported when the first of them is used, as they need torch."""

SHORT = (
    "LRP0", "AlphaBeta", "CaptureError", "Check", "Composite", "Cut", "Difference", "EntryEpsilon", "Epsilon", "Flat",
    "Gamma", "Gradient", "IntegratedGradients", "Layer", "MassError", "Measure", "MemoryLimitError", "NrmError",
    "NrmWarning", "Occlusion", "Partition", "Pass", "PrecisionError", "Product", "QuestionError", "ResultFileError",
    "Rule", "RuleError", "Set", "Shapley", "SoftmaxRule", "Sum", "WSquare", "ZBox", "ZPlus", "coarsen", "composite",
    "open_store",
)  # fmt: skip
"""Short names outside the front door: rules, errors and the types that annotations need, ``nrm.Gamma`` for instance."""

MODULES = (*ROOMS, "compat", "evaluate", "extras", "methods", "operators", "plot", "report", "steps", "testing")
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
    return next(vars(room)[name] for room in rooms if name in vars(room))


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
    "register",
    "relmax",
    "rules",
    "save",
    "stack",
    "stream",
    "testing",
    "visits",
]
