"""torchvision beside a torch that its compiled operators do not fit.

torchvision's common wheels are CUDA builds. Beside a CPU torch their compiled operators cannot be loaded, and the
import fails. Models, transforms and data sets need only a few of these, which are written in torch here. Only tests and
the census do this; the library never imports torchvision.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

_declared: list[Any] = []  # a declaration lives as long as its Library object


def load_torchvision() -> ModuleType:
    """Torchvision; an ImportError where it is not installed."""
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]  # what was imported in part
    library: Any = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define(
        "roi_align(Tensor input, Tensor rois, float spatial_scale, int pooled_height, int pooled_width,"
        " int sampling_ratio, bool aligned) -> Tensor"
    )
    library.impl("nms", _nms, "CPU")
    library.impl("roi_align", _roi_align, "CompositeImplicitAutograd")
    _declared.append(library)
    found = importlib.import_module("torchvision")
    for name in ("torchvision.extension", "torchvision.ops.roi_align"):
        vars(importlib.import_module(name))["_has_ops"] = lambda: True
    return found


def _nms(dets: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """The boxes that overlap with no better one by more than a share, the best first."""
    order = scores.argsort(descending=True, stable=True)
    boxes = dets[order]
    low, high = (torch.maximum(boxes[:, None, :2], boxes[:, :2]), torch.minimum(boxes[:, None, 2:], boxes[:, 2:]))
    common = (high - low).clamp(min=0).prod(-1)
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(-1)
    over = common > iou_threshold * (areas[:, None] + areas - common)
    gone = torch.zeros(len(boxes), dtype=torch.bool)
    for i in range(len(boxes)):
        if not gone[i]:
            gone[i + 1 :] |= over[i, i + 1 :]
    return order[~gone]


def _roi_align(input: Tensor, rois: Tensor, *args: Any) -> Tensor:
    """Torchvision's own form of it in Python, with boxes held as its compiled form holds them."""
    function = vars(importlib.import_module("torchvision.ops.roi_align"))["_roi_align"].__wrapped__
    result: Tensor = function(input, rois.detach(), *args)
    return result
