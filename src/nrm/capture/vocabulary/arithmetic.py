"""Elementwise functions, addition and multiplication."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nrm.capture.call import Call, of_first
from nrm.capture.ops import Combine, LogSoftmax, Multiply, Pointwise, Singular, Softmax, Term, Unknown
from nrm.capture.vocabulary.pooling import choice
from nrm.capture.vocabulary.reading import Steps, expanded, once, reads, term, wide
from nrm.errors import CaptureError
from nrm.operators import LinearMap


@reads(
    "relu", "relu6", "leaky_relu", "elu", "selu", "celu", "gelu", "silu", "mish", "hardtanh", "hardswish",
    "hardsigmoid", "hardshrink", "softshrink", "tanhshrink", "softplus", "softsign", "sigmoid", "logsigmoid",
    "log_sigmoid", "tanh", "exp", "exp2", "expm1", "log1p", "sqrt", "square", "abs", "absolute", "clamp", "clamp_min",
    "clamp_max", "clip", "sin", "cos", "tan", "threshold", "rrelu", "erf", "erfc", "asinh", "arcsinh", "atan", "arctan",
    "asin", "arcsin", "sinh", "cosh", "positive", "sinc", "logit", "expit", "nan_to_num", "rpow", "log", "log2",
    "log10", "acos", "arccos", "atanh", "arctanh", "acosh", "arccosh", "erfinv", "sign", "sgn", "round", "floor",
    "ceil", "trunc", "fix", "frac", "deg2rad", "rad2deg", "heaviside", "fmod", "remainder", "floor_divide", "lgamma",
    "digamma", "i0", "special_i0e", "special_i1", "special_i1e", "special_ndtr", "special_ndtri", "special_log_ndtr",
    "special_entr", "special_erfcx", "special_bessel_j0", "special_bessel_j1",
)  # fmt: skip
def _pointwise(c: Call, input: Tensor, *args: Any, **kwargs: Any) -> Steps:
    if any(c.tracked(a) for a in (*args, *kwargs.values())):
        return None
    function = of_first(c.func, args, kwargs)
    plain = not args and kwargs.keys() <= {"inplace"}
    offset = (_at_zero if plain else _at_zero.__wrapped__)(c.func if plain else function, input.dtype, input.device)
    if offset is None:
        return None
    if not math.isfinite(offset):
        return c.one(Singular(c.name, c.recorder.place(), elementwise=function), input)
    simple = not any(isinstance(a, Tensor) for a in (*args, *kwargs.values()))
    return c.one(Pointwise(offset, function=function if simple else None), input)


@functools.lru_cache(256)
def _at_zero(function: Callable[[Tensor], Tensor], dtype: torch.dtype, device: torch.device) -> float | None:
    """The value of an elementwise function where its input is 0; None if it is not one number."""
    value = function(torch.zeros(1, dtype=dtype, device=device))
    return float(value) if value.numel() == 1 else None


@reads("pow")
def _pow(c: Call, input: Any, exponent: Any) -> Steps:
    if c.tracked(exponent):
        return None if c.tracked(input) or isinstance(input, Tensor) else c.one(Pointwise(1.0), exponent)
    if isinstance(exponent, Tensor) and exponent.numel() == 1:
        exponent = float(exponent)
    if not isinstance(exponent, int | float) or exponent == 0:
        return None
    function: Callable[[Tensor], Tensor] = torch.square if exponent == 2 else lambda v: v**exponent
    return c.one(Pointwise(0.0, function=function) if exponent > 0 else _reciprocal(c, function), input)


def _reciprocal(c: Call, compute: Callable[[Tensor], Tensor], move: LinearMap | None = None) -> Singular:
    """Something that is infinite at 0: no part of it is anybody's, but it may divide."""
    return Singular(c.name, c.recorder.place(), "reciprocal", compute, move)


@reads("rsqrt", "reciprocal")
def _divisor(c: Call, input: Tensor) -> Steps:
    return c.one(_reciprocal(c, c.func), input)


@reads("linalg_inv")
def _inverse(c: Call, A: Tensor) -> Steps:
    """The inverse of a matrix divides whatever it is multiplied with, as a reciprocal does."""
    return [(c.result, Unknown(c.name, c.recorder.place(), "reciprocal"), [c.index(A)])]


@reads("prelu")
def _prelu(c: Call, input: Tensor, weight: Tensor) -> Steps:
    return None if c.tracked(weight) else c.one(Pointwise(0.0), input)


@reads("softmax", "log_softmax", "softmin")
def _softmax(c: Call, input: Tensor, dim: int | None = None, *_: Any, **__: Any) -> Steps:
    dim = (0 if input.ndim in (0, 1, 3) else 1) if dim is None else dim  # what torch takes if none is given
    kind = Softmax if c.name == "softmax" else LogSoftmax
    return c.one(kind(dim=dim % max(input.ndim, 1)), input)


@reads("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout", "feature_dropout")
def _dropout(c: Call, input: Tensor, *args: Any, **kwargs: Any) -> Steps:
    if not torch.equal(c.result, input):
        raise CaptureError(
            f"{c.name} is active, so that the model has no fixed prediction", where=c.recorder.place(),
            expected="eval mode", hint="model.eval(), or F.dropout(x, training=self.training)",
        )  # fmt: skip
    return c.one(Combine((Term(),)), input)


@reads("add", "sub", "rsub")
def _add(c: Call, input: Any, other: Any, *, alpha: float = 1) -> Steps:
    if c.name == "add" and _forbids(c, input, other):
        return _forbid(c, *((input, other) if c.tracked(input) else (other, input)))
    signs = {"add": (1.0, float(alpha)), "sub": (1.0, -float(alpha)), "rsub": (-float(alpha), 1.0)}[c.name]
    shape = c.result.shape
    terms: list[Term] = []
    inputs: list[int] = []
    shift: Tensor | float | None = None
    for value, sign in ((input, signs[0]), (other, signs[1])):
        if not c.tracked(value) and _is_bias(c, value):
            piece = _one_for_all(c, value).detach() * sign if isinstance(value, Tensor) else float(value) * sign
            shift = piece if shift is None else shift + piece
            continue
        tensor = value if c.tracked(value) else wide(c, value, shape)
        terms.append(term(tensor.shape, shape, sign))
        inputs.append(c.index(tensor))
    return [(c.result, Combine(tuple(terms), shift, joins=True, kind="add"), inputs)]


FORBIDDEN = -1e30
"""Adding less than this means that an entry is not to be looked at, whatever it was."""


def _forbids(c: Call, input: Any, other: Any) -> bool:
    mask = other if c.tracked(input) else input
    if c.tracked(mask) or not isinstance(mask, Tensor) or not mask.is_floating_point() or not mask.numel():
        return False
    return bool(mask.amin() < FORBIDDEN)


def _forbid(c: Call, x: Tensor, mask: Tensor) -> Steps:
    """An attention mask: forbidden entries are constants, to the others it adds what it has."""
    allowed = mask >= FORBIDDEN
    added = mask.masked_fill(~allowed, 0.0).to(c.result)
    if not bool(added.any()) and x.shape == c.result.shape:
        return choice(c, allowed, x, c.result)
    steps = _add(Call(c.recorder, c.func, "add", (x, added), {}, x + added), x, added)
    assert steps is not None
    ((value, op, inputs),) = steps
    c.recorder.follow(value, c.recorder.add(op, inputs, value, "add.finite"))
    return choice(c, allowed, value, c.result)


def _is_bias(c: Call, value: Any) -> bool:
    """A constant that varies along the channel axis at most is a bias; anything larger is an input in the middle.

    One that depends on the input is none: its mass has to be seen.
    """
    if c.recorder.is_derived(value):
        return False
    if not isinstance(value, Tensor) or value.numel() == 1:
        return True
    value = _one_for_all(c, value)
    channel = None
    for other in c.tensors:
        node = c.recorder.node(other)
        channel = None if node.channel is None else node.channel - other.ndim
    varies = [axis - value.ndim for axis, n in enumerate(value.shape) if n > 1]
    return varies in ([channel], [-1])


def _one_for_all(c: Call, value: Tensor) -> Tensor:
    """A constant that is the same for all samples, as one: what it is must not depend on the size of the batch."""
    for other in c.tensors:
        node = c.recorder.node(other)
        axis = None if node.sample is None else node.sample - other.ndim
        if axis is not None and value.ndim >= -axis and value.shape[axis] > 1:
            first = value.narrow(axis, 0, 1)
            return first if bool((value == first).all()) else value
    return value


@reads("mul", "div")
def _mul(c: Call, input: Any, other: Any, *, rounding_mode: Any = None) -> Steps:
    if rounding_mode is not None:
        return _pointwise(c, input, other, rounding_mode=rounding_mode)
    shape = c.result.shape
    quotient = c.name == "div"
    if c.tracked(input) and c.tracked(other):
        root = None if quotient else c.recorder.roots.common(*map(c.recorder.node, (input, other)))
        if root is not None:
            return [(c.result, Pointwise(root[1], factors=(c.index(input), c.index(other))), [root[0]])]
        return c.one(_product(input.shape, other.shape, shape, quotient), input, other)
    if c.tracked(other) and quotient:
        return c.one(_reciprocal(c, lambda v: input / v, expanded(other.shape, shape)), other)
    x, factor = (input, other) if c.tracked(input) else (other, input)
    scale = factor.detach() if isinstance(factor, Tensor) else float(factor)
    if isinstance(scale, Tensor) and not scale.is_floating_point():
        scale = scale.to(c.result.dtype)
    move = expanded(x.shape, shape)
    return c.one(Combine((Term(move, 1.0 / scale if quotient else scale),), kind="scale"), x)


@once
def _product(first: torch.Size, second: torch.Size, outside: torch.Size, quotient: bool) -> Multiply:
    return Multiply((expanded(first, outside), expanded(second, outside)), quotient)


@reads("rdiv", "rtruediv")
def _rdiv(c: Call, input: Tensor, other: Any) -> Steps:
    """A constant, the second argument, over a tensor."""
    return _mul(Call(c.recorder, torch.div, "div", (other, input), {}, c.result), other, input)


@reads("neg", "negative")
def _neg(c: Call, input: Tensor) -> Steps:
    return c.one(Combine((Term(None, -1.0),), kind="scale"), input)
