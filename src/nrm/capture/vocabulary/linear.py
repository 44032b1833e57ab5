"""Linear steps with weights: dense layers, convolutions, products with constant matrices."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nrm.capture.ops import Linear
from nrm.capture.recorder import Call
from nrm.capture.vocabulary.reading import Steps, linear_function, many, reads
from nrm.operators import Composed, Convolution, Dense, Matmul, Place


@reads("conv1d", "conv2d", "conv3d")
def _conv(
    c: Call, input: Tensor, weight: Tensor, bias: Tensor | None = None,
    stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1,
) -> Steps:  # fmt: skip
    if c.tracked(weight) or c.tracked(bias):
        return None
    space = weight.ndim - 2
    stride, dilation = many(stride, space), many(dilation, space)
    if isinstance(padding, str):
        total = [d * (k - 1) if padding == "same" else 0 for d, k in zip(dilation, weight.shape[2:], strict=True)]
        if any(t % 2 for t in total):
            return _conv_uneven(c, input, weight, bias, stride, total, dilation, groups)
        padding = [t // 2 for t in total]
    map = Convolution(input.shape, c.result.shape, weight.detach(), stride, many(padding, space), dilation, groups)
    return c.one(Linear(map, "conv", _channel_bias(bias, space)), input)


def _conv_uneven(
    c: Call, input: Tensor, weight: Tensor, bias: Tensor | None,
    stride: tuple[int, ...], total: list[int], dilation: tuple[int, ...], groups: int,
) -> Steps:  # fmt: skip
    """An even kernel with padding "same": more padding at the end, which the convolution itself cannot express."""
    space = weight.ndim - 2
    wider = (*input.shape[:-space], *(n + t for n, t in zip(input.shape[-space:], total, strict=True)))
    inner = tuple(slice(t // 2, t // 2 + n) for t, n in zip(total, input.shape[-space:], strict=True))
    place = Place(input.shape, torch.Size(wider), (Ellipsis, *inner))
    conv = Convolution(torch.Size(wider), c.result.shape, weight.detach(), stride, (0,) * space, dilation, groups)
    return c.one(Linear(Composed(place, conv), "conv", _channel_bias(bias, space)), input)


@reads("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def _conv_transpose(
    c: Call, input: Tensor, weight: Tensor, bias: Tensor | None = None,
    stride: Any = 1, padding: Any = 0, output_padding: Any = 0, groups: int = 1, dilation: Any = 1,
) -> Steps:  # fmt: skip
    if c.tracked(weight) or c.tracked(bias):
        return None
    n = weight.ndim - 2
    map = Convolution(
        input.shape, c.result.shape, weight.detach(), many(stride, n), many(padding, n), many(dilation, n), groups,
        True, many(output_padding, n),
    )  # fmt: skip
    return c.one(Linear(map, "conv", _channel_bias(bias, n)), input)


def _channel_bias(bias: Tensor | None, space: int) -> Tensor | None:
    return None if bias is None else bias.detach().reshape(-1, *(1,) * space)


@reads("linear")
def _linear(c: Call, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Steps:
    if c.tracked(weight) or c.tracked(bias) or weight.ndim != 2:
        return None
    return c.one(Linear(Dense(input.shape, weight.detach()), "linear", None if bias is None else bias.detach()), input)


@reads("matmul", "mm", "bmm", "mv", "rmatmul", "dot", "inner")
def _matmul(c: Call, input: Tensor, other: Tensor, **_: Any) -> Steps:
    if c.name == "rmatmul":
        input, other = other, input
    if c.tracked(input) and c.tracked(other):
        return None
    if c.name == "inner" and other.ndim > 1 and input.ndim > 1:
        other, input = (other.mT, input) if c.tracked(input) and other.ndim == 2 else (other, input)
        if not c.tracked(input) or other.ndim != 2:
            return None
    if c.tracked(input) and other.ndim >= 2 and input.ndim >= 2:
        return c.one(Linear(Matmul(input.shape, other), "linear"), input)
    if c.tracked(other) and input.ndim >= 2 and other.ndim >= 2:
        return c.one(Linear(Matmul(other.shape, input, left=True), "linear"), other)
    if c.tracked(input):
        return linear_function(c, input, lambda v: torch.matmul(v, other), "linear")
    return linear_function(c, other, lambda v: torch.matmul(input, v), "linear")


@reads("addmm", "baddbmm")
def _addmm(c: Call, input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Steps:
    if c.tracked(input) or c.tracked(mat2) or not c.tracked(mat1):
        return None
    return c.one(Linear(Matmul(mat1.shape, mat2 * alpha), "linear", (input * beta).detach()), mat1)


@reads("einsum", "tensordot")
def _einsum(c: Call, *args: Any, **kwargs: Any) -> Steps:
    tracked = [i for i, a in enumerate(args) if c.tracked(a)]
    if len(tracked) != 1 or len(c.tensors) != 1:
        return None
    func, (before, after) = c.func, (args[: tracked[0]], args[tracked[0] + 1 :])

    def function(v: Tensor) -> Tensor:
        result: Tensor = func(*before, v, *after, **kwargs)
        return result

    return linear_function(c, args[tracked[0]], function, "linear")
