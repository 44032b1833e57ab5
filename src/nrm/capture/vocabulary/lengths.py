"""Lengths, spreads, products and logarithms of sums: functions of many entries that are shared by their derivative.

All of them but the last are homogeneous, ``f(t x) = t^d f(x)``, so that ``f(x) = sum_i x_i df/dx_i / d``: what every
entry contributes adds up to the value, and nothing is left over. Of a logarithm of a sum, what is left is a bias.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nrm.capture.call import Call, of_first
from nrm.capture.ops import Linear
from nrm.capture.vocabulary.reading import Steps, axes, count, linear_function, reads
from nrm.operators import WeightedSum


def slopes(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The derivative of the sum of what a function gives; 0 where it has none."""
    with torch.inference_mode(False), torch.enable_grad():
        point = x.detach().clone().requires_grad_()
        (found,) = torch.autograd.grad(function(point).sum(), point)
    return torch.where(torch.isfinite(found), found, torch.zeros_like(found))


def _shared(c: Call, x: Tensor, dim: Any, degree: float, bias: Tensor | None = None) -> Steps:
    """A function of lines along some axes as a sum of entries with weights, its derivative over its degree."""
    weights = slopes(of_first(c.func, c.args[1:], c.kwargs), x) / degree
    map = WeightedSum(x.shape, c.result.shape, axes(dim, x.ndim), weights=weights)
    return c.one(Linear(map, "norm", bias), x)


@reads("norm", "linalg_vector_norm", "linalg_norm", "linalg_matrix_norm")
def _length(c: Call, input: Tensor, p: Any = None, dim: Any = None, *_: Any, **more: Any) -> Steps:
    """A length, of any kind that grows with what it is the length of: all but the number of entries that are not 0."""
    if more.get("ord", p) == 0:
        return None
    if c.name == "linalg_matrix_norm":
        dim = (-2, -1) if dim is None else dim
    return _shared(c, input, dim, 1.0)


@reads("var", "std")
def _spread(c: Call, input: Tensor, dim: Any = None, *_: Any, **__: Any) -> Steps:
    return _shared(c, input, None if isinstance(dim, bool) else dim, 2.0 if c.name == "var" else 1.0)


@reads("prod")
def _prod(c: Call, input: Tensor, dim: int | None = None, *_: Any, **__: Any) -> Steps:
    """Every factor has the same share, whatever its value."""
    return _shared(c, input, dim, float(max(count(input.shape, axes(dim, input.ndim)), 1)))


@reads("cumprod")
def _cumprod(c: Call, input: Tensor, dim: int, **_: Any) -> Steps:
    """Running products, every factor with the same share; each is a sum of entries with the others as weights."""
    size = input.shape[dim]
    line = input.detach().movedim(dim, -1)
    rows = [slopes(lambda v, k=k: v[..., : k + 1].prod(-1), line) / (k + 1) for k in range(size)]  # type: ignore[misc]
    weights = torch.stack(rows, -2)

    def function(v: Tensor) -> Tensor:
        return (weights.to(v) @ v.movedim(dim, -1).unsqueeze(-1)).squeeze(-1).movedim(-1, dim)

    kept = tuple((d, d) for d in range(input.ndim) if d != dim % input.ndim)
    return linear_function(c, input, function, "norm", kept=kept)


@reads("logsumexp")
def _logsumexp(c: Call, input: Tensor, dim: Any, *_: Any, **__: Any) -> Steps:
    """Entries weighted by their softmax. What is left, at most the logarithm of their number, is a bias."""
    weights = slopes(of_first(c.func, c.args[1:], c.kwargs), input)
    seen = torch.where(weights == 0, torch.zeros_like(input), input)
    map = WeightedSum(input.shape, c.result.shape, axes(dim, input.ndim), weights=weights)
    bias = c.result - map.apply(seen[None])[0]
    return c.one(Linear(map, "norm", bias.detach()), input) if bool(torch.isfinite(input).all()) else None
