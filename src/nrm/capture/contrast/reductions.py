"""Exact splits of calls that only contrasts can follow: products of many, lengths, variances, logarithms of sums.

A product of several variables has the line integral ``int prod_{k != i} (x2_k + t dx_k) dt`` in the place of the mean
of the other factor. It is a polynomial in t, and exact by a few points.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nrm.capture.contrast.ranks import PerLine
from nrm.capture.contrast.secants import slope
from nrm.capture.contrast.splits import splits
from nrm.capture.contrast.step import Exact, Pair, Parts, Piece, Step
from nrm.operators import Function, Reduce


def _points(count: int) -> list[tuple[float, float]]:
    """Places on the way and their weights: integrals of products of ``count - 1`` linear functions are exact."""
    at, weight = np.polynomial.legendre.leggauss((count + 1) // 2)
    return [((float(x) + 1) / 2, float(w) / 2) for x, w in zip(at, weight, strict=True)]


def _along(x: Pair, t: float) -> Tensor:
    return x.there + t * (x.here - x.there)


def _dims(dim: Any, ndim: int) -> tuple[int, ...]:
    if dim is None or (isinstance(dim, list | tuple) and not dim):
        return tuple(range(ndim))
    return tuple(d % ndim for d in ([dim] if isinstance(dim, int) else dim))


@splits("prod")
def _prod(step: Step, input: Pair, dim: int | None = None, keepdim: bool = False, **_: Any) -> Exact:
    shape = input.shape
    lines = input if dim is not None else input.reshape(-1)
    axis = 0 if dim is None else dim % len(shape)

    def pieces() -> Parts:
        weight = torch.zeros_like(lines.here)
        for t, share in _points(lines.shape[axis]):
            weight = weight + share * _others(_along(lines, t), axis)
        return (Piece(Reduce(shape, step.node.shape, _dims(dim, len(shape))), pre=weight.reshape(shape)),)

    return step.mixed(pieces)


def _others(x: Tensor, axis: int) -> Tensor:
    """The product of all entries of a line but one, for each of them; nothing is divided, as entries may be 0."""
    one = torch.ones_like(x.narrow(axis, 0, 1))
    before = torch.cat([one, x.cumprod(axis).narrow(axis, 0, x.shape[axis] - 1)], axis)
    back = torch.cat([one, x.flip(axis).cumprod(axis).narrow(axis, 0, x.shape[axis] - 1)], axis)
    return before * back.flip(axis)


@splits("cumprod")
def _cumprod(step: Step, input: Pair, dim: int, **_: Any) -> Exact:
    shape = input.shape
    axis = dim % len(shape)

    def pieces() -> Parts:
        size = shape[axis]
        weight = input.here.new_zeros(*(n for d, n in enumerate(shape) if d != axis), size, size)
        for t, share in _points(size):
            line = _along(input, t).movedim(axis, -1)
            for j in range(size):
                weight[..., j, : j + 1] += share * _others(line[..., : j + 1], line.ndim - 1)
        return (Piece(PerLine(shape, step.node.shape, axis, weight)),)

    return step.mixed(pieces)


@splits("einsum")
def _einsum(step: Step, equation: str, *operands: Any, **_: Any) -> Exact:
    """A sum of products of three or more tensors that differ between the runs."""
    given: Sequence[Any] = operands[0] if len(operands) == 1 and isinstance(operands[0], list | tuple) else operands
    mine = [k for k, one in enumerate(given) if isinstance(one, Pair)]

    def form(k: int) -> Callable[[], Parts]:
        def function(v: Tensor) -> Tensor:
            total: Any = 0.0
            for t, share in _points(len(mine)):
                others = [v if j == k else _along(x, t) if isinstance(x, Pair) else x for j, x in enumerate(given)]
                total = total + share * torch.einsum(equation, *others)
            result: Tensor = total
            return result

        map = Function(given[k].shape, step.node.shape, function, False, False, "einsum")
        return lambda: (Piece(map),)

    return step.mixed(*(form(k) for k in mine))


@splits("logsumexp")
def _logsumexp(step: Step, input: Pair, dim: Any, keepdim: bool = False) -> Exact:
    """The mean of differences with the logarithmic means of the probabilities as weights."""
    shape = input.shape
    dims = _dims(dim, len(shape))

    def pieces() -> Parts:
        log, log2 = (a - a.logsumexp(dims, keepdim=True) for a in input)
        t = torch.where(log == log2, torch.zeros_like(log), (log - log2).abs())
        safe = torch.where(t == 0, torch.ones_like(t), t)
        mean = torch.maximum(log, log2).exp() * torch.where(t == 0, torch.ones_like(t), -torch.expm1(-t) / safe)
        return (Piece(Reduce(shape, step.node.shape, dims), pre=mean / mean.sum(dims, keepdim=True)),)

    return step.mixed(pieces)


@splits("var", "std")
def _spread(
    step: Step, input: Pair, dim: Any = None, unbiased: Any = None, keepdim: bool = False, **more: Any
) -> Exact:
    """``dvar = (2 / (n - correction)) mean(c) . dx`` for c without its mean; a deviation is a root of it."""
    shape = input.shape
    dim, unbiased = (None, dim) if isinstance(dim, bool) else (dim, unbiased)
    dims = _dims(dim, len(shape))
    correction = more.get("correction", 1 if unbiased is None or unbiased else 0)
    count = torch.Size(shape[d] for d in dims).numel() - (1 if correction is None else correction)

    def pieces() -> Parts:
        center = Pair(*(v - v.mean(dims, keepdim=True) for v in input)).mean
        post = None if step.node.function == "var" else _over_sum(step.result)
        return (Piece(Reduce(shape, step.node.shape, dims), post, center * (2 / count)),)

    return step.mixed(pieces)


def _over_sum(y: Pair) -> Tensor:
    """The secant of a square root, ``1 / (y + y2)``; 0 where both are 0, as there is no derivative."""
    total = y.here + y.there
    return torch.where(total == 0, torch.zeros_like(total), 1 / torch.where(total == 0, torch.ones_like(total), total))


@splits("norm", "linalg_vector_norm", "linalg_norm")
def _length(step: Step, input: Pair, p: Any = 2, dim: Any = None, keepdim: bool = False, **more: Any) -> Exact | None:
    """The length of lines: powers of absolute values, their sum, and its root."""
    shape = input.shape
    order = more.get("ord", p)
    order = 2.0 if order in (None, "fro") else order
    dims = _dims(dim, len(shape))
    matrix = step.node.function == "linalg_norm" and len(dims) == 2
    if not isinstance(order, int | float) or order in (0, float("inf"), -float("inf")) or (matrix and order != 2.0):
        return None
    reduce = Reduce(shape, step.node.shape, dims)

    def pieces() -> Parts:
        if order == 2:
            return (Piece(reduce, _over_sum(step.result), 2 * input.mean),)
        powers = Pair(*(v.abs() ** order for v in input))
        total = Pair(*(reduce.apply(v[None])[0] for v in powers))
        inner = slope(input, powers, lambda v: v.abs() ** order, "pow")
        return (Piece(reduce, slope(total, step.result, lambda v: v ** (1 / order), "pow"), inner),)

    return step.mixed(pieces)
