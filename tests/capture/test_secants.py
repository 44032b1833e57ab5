"""Multipliers of elementwise functions in float32, beside the exact secant of the float32 numbers they are made of."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import nrm

EPS = torch.finfo(torch.float32).eps
CLOSE = 0.05
"""From this gap on, relative to the scale on which a function bends, the values themselves are subtracted."""

Function = Callable[[Tensor], Tensor]
AT_ONE: dict[str, Function] = {
    "gelu": F.gelu, "gelu by tanh": lambda v: F.gelu(v, approximate="tanh"), "silu": F.silu, "mish": F.mish,
    "softplus": lambda v: F.softplus(v, threshold=50.0), "sigmoid": torch.sigmoid, "expit": torch.special.expit,
    "logsigmoid": F.logsigmoid, "tanh": torch.tanh, "tanhshrink": F.tanhshrink, "exp": torch.exp, "exp2": torch.exp2,
    "expm1": torch.expm1, "square": torch.square, "sin": torch.sin, "cos": torch.cos, "erf": torch.erf,
    "erfc": torch.erfc, "asinh": torch.asinh, "atan": torch.atan, "sinh": torch.sinh, "cosh": torch.cosh,
    "power of a number": lambda v: 3.0**v, "elu": F.elu, "celu": lambda v: F.celu(v, 0.8), "selu": F.selu,
    "leaky_relu": F.leaky_relu, "softsign": F.softsign, "square as a power": lambda v: v**2,
}  # fmt: skip
"""Functions that bend on a scale of 1; torch's softplus has a step at 20 by default, which is no rounding."""
ABOVE_0: dict[str, Function] = {
    "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "reciprocal": torch.reciprocal, "third power": lambda v: v**3,
    "broken power": lambda v: v**1.7, "negative power": lambda v: v**-1.5, "log": torch.log, "log2": torch.log2,
    "log10": torch.log10, "number over": lambda v: 2.0 / v, "log1p": torch.log1p,
}  # fmt: skip
"""Functions that bend on the scale of their argument (``log1p`` on that of 1 more)."""


def pairs(positive: bool) -> tuple[Tensor, Tensor]:
    """Numbers of all sizes and others at all distances from them, as float32 has them."""
    sizes = torch.tensor([1e-4, 3e-4, 1e-3, 1e-2, 0.1, 0.3, 1.0, 2.0, 3.0, 5.0, 8.0, 12.0, 17.0, 30.0])
    gaps = torch.logspace(-7, 1, 33)
    z = (sizes if positive else torch.cat([sizes, -sizes]))[:, None]
    z, other = torch.broadcast_tensors(z, z + torch.cat([gaps, -gaps]))
    keep = (z != other) & ((other > 0) | (not positive))
    return z[keep], other[keep]


class Beside(nn.Module):
    """A function of the first entry, plus the second one, which gives the output a difference to speak of."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x[:, :1]) + x[:, 1:]


class Cancelling(Beside):
    """A function of the difference of the first two entries, plus the third one."""

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x[:, :1] - x[:, 1:2]) + x[:, 2:]


def multipliers(function: Function, z: Tensor, other: Tensor) -> Tensor:
    """What a contrast multiplies differences with: contributions in units of the output, per unit of the input."""
    x, reference = torch.stack([z, torch.ones_like(z)], 1), torch.stack([other, torch.zeros_like(other)], 1)
    R = nrm.measure(Beside(function), x, against=reference, target=0)
    return R.in_units(R.input)[:, 0].double() / (z.double() - other.double())


def is_the_secant(function: Function, z: Tensor, other: Tensor, scale: Tensor) -> None:
    """Up to 2e-5, and to what float32 has lost before: the rounding of the two values, over their gap.

    The floor stops growing at gaps of ``CLOSE``, below which derivatives are taken; these have a rounding of a few
    epsilons, in functions with slopes of up to 1 that vanish by cancellation (GELU at -8).
    """
    found = multipliers(function, z, other)
    exact = [function(v.double()) for v in (z, other)]
    gap = z.double() - other.double()
    secant = (exact[0] - exact[1]) / gap
    lost = sum((function(v).double() - truth).abs() for v, truth in zip((z, other), exact, strict=True))
    floor = lost / torch.maximum(gap.abs(), CLOSE * scale) + 8 * EPS
    beyond = ((found - secant).abs() - floor) / secant.abs().clamp(min=1e-30)
    worst = int(beyond.argmax())
    assert float(beyond[worst]) <= 2e-5, f"{float(z[worst])} against {float(other[worst])}"


@pytest.mark.parametrize("name", AT_ONE)
def test_multipliers_of_functions_that_bend_on_a_scale_of_1(name: str) -> None:
    z, other = pairs(positive=False)
    is_the_secant(AT_ONE[name], z, other, torch.ones_like(z))


@pytest.mark.parametrize("name", ABOVE_0)
def test_multipliers_of_powers_and_logarithms(name: str) -> None:
    z, other = pairs(positive=True)
    is_the_secant(ABOVE_0[name], z, other, torch.minimum(z, other) + (name == "log1p"))


@pytest.mark.parametrize(
    ("function", "scale"),
    [(torch.logit, lambda v: torch.minimum(v, 1 - v)), (torch.asin, lambda v: 1 - v.abs()), (torch.tan, torch.cos)],
    ids=["logit", "asin", "tan"],
)
def test_multipliers_of_functions_with_edges(function: Function, scale: Function) -> None:
    z, other = pairs(positive=True)
    inside = (z < 0.999) & (other < 0.999) & (other > 1e-6)
    z, other = z[inside], other[inside]
    is_the_secant(function, z, other, torch.minimum(scale(z), scale(other)))


def test_multipliers_of_sinc_where_its_derivative_has_digits() -> None:
    z, other = pairs(positive=False)
    far = (z.abs() >= 0.3) & (other.abs() >= 0.3)  # torch subtracts two near numbers in its derivative close to 0
    is_the_secant(torch.sinc, z[far], other[far], torch.ones_like(z[far]))


def test_a_root_between_small_numbers_has_its_secant_and_not_its_derivative() -> None:
    z, other = torch.tensor([1e-4, 4e-4]), torch.tensor([4e-4, 1e-4])
    found = multipliers(torch.sqrt, z, other)  # the derivative at the midpoint would be 31.6
    torch.testing.assert_close(found, torch.full_like(found, 100 / 3), rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("function", [F.relu, F.hardtanh, F.leaky_relu, F.elu, F.selu, F.softsign, torch.abs])
def test_a_kink_between_two_numbers_is_in_the_secant(function: Function) -> None:
    for size in (1e-6, 1e-3, 0.03, 0.5):  # a midpoint would lie on one side of it
        z, other = torch.tensor([size]), torch.tensor([-3 * size])
        exact = (function(z.double()) - function(other.double())) / (z.double() - other.double())
        torch.testing.assert_close(multipliers(function, z, other), exact, rtol=1e-5, atol=0.0)


@pytest.mark.parametrize(
    ("function", "at", "expected"),
    [(F.relu, 2.0, 1.0), (F.relu, -2.0, 0.0), (F.hardtanh, 3.0, 0.0), (F.hardtanh, 0.5, 1.0),
     (F.leaky_relu, -2.0, 0.01), (torch.abs, -2.0, -1.0), (torch.square, 1.5, 3.0), (torch.exp, 0.0, 1.0)],
)  # fmt: skip
def test_where_both_values_are_equal_it_is_the_derivative(function: Function, at: float, expected: float) -> None:
    """Two changes that cancel in front of the function: the contribution of each is its change times the slope."""
    x, reference = torch.tensor([[at + 1.0, 1.0, 1.0]]), torch.tensor([[at, 0.0, 0.0]])
    R = nrm.measure(Cancelling(function), x, against=reference, target=0)
    torch.testing.assert_close(R.in_units(R.input), torch.tensor([[expected, -expected, 1.0]]))
