"""Secants: the slope of an elementwise function between its values in two runs.

``(phi(z) - phi(z2)) / (z - z2)`` loses its digits where the two are close. There a smooth function has the mean of its
derivatives at the two points of Gauss between them instead, which is the secant up to the fourth power of the gap. One
with kinks keeps the secant, as a point may lie on the wrong side of a kink. Where both are equal, it is torch's
derivative.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from nrm.capture.contrast.step import Pair

Function = Callable[[Tensor], Tensor]

SMOOTH = {"gelu", "silu", "mish", "softplus", "sigmoid", "expit", "logsigmoid", "log_sigmoid", "tanh", "tanhshrink",
          "exp", "exp2", "expm1", "square", "sin", "cos", "erf", "erfc", "asinh", "arcsinh", "atan", "arctan", "sinh",
          "cosh", "sinc", "rpow", "i0", "special_i0e", "special_i1", "special_i1e", "special_ndtr", "special_log_ndtr",
          "special_erfcx", "special_bessel_j0", "special_bessel_j1"}  # fmt: skip
"""Functions that bend on a scale of about 1, everywhere."""

POWERS = {"sqrt", "rsqrt", "reciprocal", "pow", "log", "log2", "log10", "div", "rdiv", "rtruediv",
          "lgamma", "digamma", "special_entr"}  # fmt: skip
"""Functions that bend on the scale of their argument: smooth but for 0."""

BENT = {"elu", "selu", "celu", "leaky_relu", "prelu", "softsign"}
"""Functions that bend on a scale of about 1, with a kink at 0."""

EDGES: dict[str, Function] = {
    "log1p": lambda z: 1 + z,
    "logit": lambda z: torch.minimum(z, 1 - z),
    "asin": lambda z: 1 - z.abs(),
    "arcsin": lambda z: 1 - z.abs(),
    "tan": lambda z: z.cos().abs(),
    **dict.fromkeys(("acos", "arccos", "atanh", "arctanh", "erfinv"), lambda z: 1 - z.abs()),
    **dict.fromkeys(("acosh", "arccosh"), lambda z: z - 1),
    "special_ndtri": lambda z: torch.minimum(z, 1 - z),
}
"""Functions that bend on the scale of the distance to the edge of where they are defined, about."""

WRITTEN: dict[str, Callable[[Pair, Pair], Tensor]] = {
    "square": lambda z, y: z.here + z.there,
    "reciprocal": lambda z, y: -y.here * y.there,
    "rsqrt": lambda z, y: -(y.here * y.there).square() / (y.here + y.there),
}
"""Secants in which nothing cancels: no derivative is needed."""


def slope(z: Pair, y: Pair, function: Function | None, name: str) -> Tensor:
    """The secant of a function between two runs; where it has no digits, the derivative (0 if nothing is known)."""
    if name in WRITTEN:
        return WRITTEN[name](z, y)
    gap = z.here - z.there
    near = _is_near(z, gap, name)
    secant = (y.here - y.there).div_(gap)
    if function is None or near is None:
        same = gap == 0
        if not bool(same.any()):
            return secant
        return secant.masked_fill_(same, 0.0) if function is None else torch.where(
            same, derivative(function, z.mean), secant)  # fmt: skip
    if not bool(near.any()):
        return secant
    apart = gap * GAUSS
    between = derivative(function, z.there + apart).add_(derivative(function, z.here - apart)).mul_(0.5)
    return torch.where(near, between, secant)


GAUSS = (1 - 1 / math.sqrt(3)) / 2
"""So far from either end the two points of Gauss lie, as a share of the way."""


def _is_near(z: Pair, gap: Tensor, name: str) -> Tensor | None:
    """Where the difference of values has lost so many digits that the derivatives between them are closer.

    None: nowhere, as nothing is known of how the function bends.
    """
    close: float = torch.finfo(gap.dtype).eps ** (1 / 5)  # its fourth power, over 4320, is below what rounding costs
    if name in SMOOTH:
        return gap.abs() <= close
    if name in BENT:
        return (gap.abs() <= close) & (z.here.sign() == z.there.sign())
    if name in POWERS or name in EDGES:
        scale = EDGES.get(name, torch.abs)
        return gap.abs() <= close * torch.minimum(scale(z.here), scale(z.there))
    return None


def derivative(function: Function, z: Tensor) -> Tensor:
    """Torch's derivative of an elementwise function; 0 where it has none, an infinite one, or torch cannot find it."""
    with torch.inference_mode(False), torch.enable_grad():
        point = z.detach().clone().requires_grad_()
        try:
            value = function(point)
        except RuntimeError:  # it has run on these numbers before, so it leaves torch: numpy takes none with a gradient
            return torch.zeros_like(z)
        if not value.requires_grad:
            return torch.zeros_like(z)
        (found,) = torch.autograd.grad(value, point, torch.ones((), dtype=value.dtype).to(value).expand(value.shape))
    if bool(torch.isfinite(found.sum())):
        return found
    return torch.where(torch.isfinite(found), found, torch.zeros_like(found))
