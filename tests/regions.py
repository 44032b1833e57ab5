"""One linear region for two passes: a network in float64 that takes the signs and maxima of its pass in float32.

Rounding near 0 may turn a ReLU or the choice of a maximum. The relevance of signed rules then jumps, although neither
pass is wrong. A statement about precision is about one region, so the second pass is held to that of the first: what
its secant has a jump at becomes a product with 0 or 1, or a choice of entries, both recorded in the first pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

import nrm

Region = Callable[..., Tensor]
"""What a region says of one call: the mask of a ReLU, or the index of every maximum."""


def _sign(x: Tensor, *_: Any, **__: Any) -> Tensor:
    return x > 0


def _choice(x: Tensor, *args: Any, stride: Any = None, **options: Any) -> Tensor:
    return F.max_pool2d_with_indices(x, *args, stride=stride or None, **options)[1]


def _masked(mask: Tensor, x: Tensor, *_: Any, **__: Any) -> Tensor:
    return x * mask.to(x.dtype)


def _clipped(mask: Tensor, x: Tensor, min_val: float = -1.0, max_val: float = 1.0, *_: Any, **__: Any) -> Tensor:
    """A clipped unit has a jump at 0 if it begins there, as ReLU6 does; where it ends its secant is 1 on both sides."""
    return x.clamp(max=max_val) * mask.to(x.dtype) if min_val == 0 else x.clamp(min_val, max_val)


def _six(mask: Tensor, x: Tensor, *_: Any, **__: Any) -> Tensor:
    return _clipped(mask, x, 0.0, 6.0)


def _chosen(index: Tensor, x: Tensor, *_: Any, **__: Any) -> Tensor:
    return x.flatten(2).gather(2, index.flatten(2)).view(index.shape)


KINKED: dict[str, tuple[Region, Region]] = {
    "relu": (_sign, _masked),
    "relu_": (_sign, _masked),
    "relu6": (_sign, _six),
    "hardtanh": (_sign, _clipped),
    "max_pool2d": (_choice, _chosen),
}
"""Functions whose secants jump: how the region of a call is read, and how a call is held to it."""

OTHERS = ("leaky_relu", "prelu", "rrelu", "threshold", "maximum", "minimum", "max_pool1d", "max_pool3d")
"""Functions with jumps that no network here has: they would pass unheld, so they are refused."""


class Regions(TorchFunctionMode):
    """Records the regions of a pass; with those of another pass, holds this one to them.

    Every pass begins anew, as a certificate runs the network once more.
    """

    def __init__(self, given: list[Tensor] | None = None) -> None:
        super().__init__()
        self.found: list[Tensor] = []
        self._given = given
        self._left = iter(given or ())

    def __enter__(self) -> Regions:
        self.found, self._left = [], iter(self._given or ())
        return super().__enter__()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name not in KINKED:
            assert name not in OTHERS, name
            return func(*args, **kwargs)
        read, hold = KINKED[name]
        if self._given is not None:
            return hold(next(self._left), *args, **kwargs)
        with torch._C.DisableTorchFunction():  # reading a region is no part of the pass
            self.found.append(read(*args, **{k: v for k, v in kwargs.items() if k != "inplace"}))
        return func(*args, **kwargs)

    def replayed(self) -> Regions:
        """A mode that holds a pass to the regions of this one."""
        return Regions(self.found)


class Held(nn.Module):
    """A network that runs under a mode."""

    def __init__(self, model: nn.Module, mode: TorchFunctionMode) -> None:
        super().__init__()
        self.model, self._mode = model, mode

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with self._mode:
            return self.model(*args, **kwargs)


def in_one_region(model: nn.Module, inputs: Any, **options: Any) -> tuple[nrm.Measure, nrm.Measure]:
    """The measure in float32, and the one in float64 in the same linear region, of the same target."""
    regions = Regions()
    single = nrm.measure(Held(model, regions), inputs, dtype=torch.float32, **options)
    target = single.target
    options["target"] = target if not isinstance(target, Tensor) or target.ndim == 1 else tuple(target.unbind(1))
    double = nrm.measure(Held(model, regions.replayed()), inputs, dtype=torch.float64, **options)
    return single, double


def largest_error(single: nrm.Measure, double: nrm.Measure) -> float:
    """The largest error of the heat map in float32 over its largest entry."""
    rough, exact = single(single.input).double(), double(double.input)
    return float((rough - exact).abs().max() / exact.abs().max())
