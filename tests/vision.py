"""torchvision for tests, also next to a CPU build of torch.

torchvision's common wheels are CUDA builds. Beside a CPU torch they fail on import, because their compiled
operators cannot be loaded. Models, transforms and data sets need none of these: it is enough that ``nms`` and
``qnms`` are declared. Only tests do this; the library never imports torchvision.

>>> import vision
>>> torchvision = vision.load()
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

import pytest
import torch

_declared: list[torch.library.Library] = []  # a declaration lives as long as its Library object


def load() -> ModuleType:
    """Torchvision, or a skip of the calling test (or test module) with the reason."""
    try:
        return importlib.import_module("torchvision")
    except ImportError:
        pytest.skip("torchvision is not installed", allow_module_level=True)
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
    _forget_partial_import()
    _declare_operators()
    return importlib.import_module("torchvision")


def _forget_partial_import() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]


def _declare_operators() -> None:
    library = torch.library.Library("torchvision", "DEF")
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _declared.append(library)
