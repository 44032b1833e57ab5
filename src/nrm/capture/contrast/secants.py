"""Secants: the slope of an elementwise function between its values in two runs.

``(phi(z) - phi(z2)) / (z - z2)`` loses its digits where the two are close. There a smooth function has the derivative
at the midpoint instead, and one with kinks keeps the secant: the midpoint may lie on the wrong side of a kink. Where
both are equal, it is torch's derivative.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from nrm.capture.contrast.step import Pair

Function = Callable[[Tensor], Tensor]

SMOOTH = {"gelu", "silu", "mish", "softplus", "sigmoid", "expit", "logsigmoid", "log_sigmoid", "tanh", "tanhshrink",
          "exp", "exp2", "expm1", "square", "sin", "cos", "erf", "erfc", "asinh", "arcsinh", "atan", "arctan", "sinh",
          "cosh", "sinc", "rpow"}  # fmt: skip
"""Functions that bend on a scale of about 1, everywhere."""

POWERS = {"sqrt", "rsqrt", "reciprocal", "pow", "log", "log2", "log10", "div", "float_power"}
"""Functions that bend on the scale of their argument: smooth but for 0."""


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
    same = gap == 0
    secant = (y.here - y.there) / torch.where(same, torch.ones_like(gap), gap)
    near = same | _is_near(z, gap, name)
    if not bool(near.any()):
        return secant
    if function is None:
        return torch.where(same, torch.zeros_like(secant), secant)
    return torch.where(near, derivative(function, z.mean), secant)


def _is_near(z: Pair, gap: Tensor, name: str) -> Tensor:
    """Where the difference of values has lost so many digits that the derivative between them is closer."""
    close: float = torch.finfo(gap.dtype).eps ** (1 / 3)
    if name in SMOOTH:
        return gap.abs() <= close
    if name in POWERS:
        return gap.abs() <= close * torch.minimum(z.here.abs(), z.there.abs())
    return torch.zeros_like(gap, dtype=torch.bool)


def derivative(function: Function, z: Tensor) -> Tensor:
    """Torch's derivative of an elementwise function; 0 where it has none, or an infinite one."""
    with torch.inference_mode(False), torch.enable_grad():
        point = z.detach().clone().requires_grad_()
        value = function(point)
        if not value.requires_grad:
            return torch.zeros_like(z)
        (found,) = torch.autograd.grad(value.sum(), point)
    return torch.where(torch.isfinite(found), found, torch.zeros_like(found))
