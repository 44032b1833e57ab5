"""Linear steps with weights: dense layers, convolutions, products with constant matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from nrm.capture.call import Call, of_first
from nrm.capture.ops import Combine, Linear, Op, Term
from nrm.capture.vocabulary.reading import VOCABULARY, Steps, linear_function, many, reads
from nrm.operators import Composed, Convolution, Dense, Expand, Function, Grouped, LinearMap, Matmul, Place, Reshape


@reads("conv1d", "conv2d", "conv3d")
def _conv(
    c: Call, input: Tensor, weight: Tensor, bias: Tensor | None = None,
    stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1,
) -> Steps:  # fmt: skip
    space = weight.ndim - 2
    if c.tracked(weight) or c.tracked(bias):
        return _computed(c, input, weight, bias, stride, padding, dilation, groups)
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
        return _computed(c, input, weight, bias, stride, padding, output_padding, groups, dilation)
    n = weight.ndim - 2
    map = Convolution(
        input.shape, c.result.shape, weight.detach(), many(stride, n), many(padding, n), many(dilation, n), groups,
        True, many(output_padding, n),
    )  # fmt: skip
    return c.one(Linear(map, "conv", _channel_bias(bias, n)), input)


def _computed(c: Call, input: Tensor, weight: Tensor, bias: Tensor | None, *settings: Any) -> Steps:
    """A layer whose weights were computed from the input: a product of two, and a bias that is added to it."""
    function = c.func

    def applied(x: Tensor, w: Tensor) -> Tensor:
        result: Tensor = function(x, w, None, *settings)
        return result

    if bias is not None:
        plain = applied(input, weight)
        ((value, op, inputs),) = _computed_product(_call(c, plain), input, weight, applied)
        c.recorder.follow(value, c.recorder.add(op, inputs, value, c.name))
        wide = bias.reshape(-1, *(1,) * (weight.ndim - 2)) if c.name.startswith("conv") else bias
        if c.tracked(bias) and wide is not bias:
            move = Combine((Term(Reshape(bias.shape, wide.shape)),))
            c.recorder.follow(wide, c.recorder.add(move, [c.index(bias)], wide, "view"))
        return VOCABULARY["add"](Call(c.recorder, torch.add, "add", (plain, wide), {}, c.result), plain, wide)
    return _computed_product(c, input, weight, applied)


def _computed_product(
    c: Call, input: Tensor, weight: Tensor, function: Callable[[Tensor, Tensor], Tensor]
) -> list[tuple[Tensor, Op, list[int]]]:
    halves = [(x, f) for x, f in ((input, lambda v: function(v, weight)), (weight, lambda v: function(input, v)))
              if c.tracked(x)]  # fmt: skip
    if len(halves) == 2:
        return product(c, *halves) or []
    ((x, f),) = halves
    return c.one(Linear(Function(x.shape, c.result.shape, f, False, False, c.name), "linear"), x)


def _call(c: Call, result: Tensor) -> Call:
    """A call with another result in the place of its own."""
    return Call(c.recorder, c.func, c.name, c.args, c.kwargs, result)


def _channel_bias(bias: Tensor | None, space: int) -> Tensor | None:
    return None if bias is None else bias.detach().reshape(-1, *(1,) * space)


@reads("linear")
def _linear(c: Call, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Steps:
    if c.tracked(weight) or c.tracked(bias):
        return _computed(c, input, weight, bias)
    if weight.ndim != 2:
        return None
    return _dense(c, input, weight.detach(), None if bias is None else bias.detach())


def _dense(c: Call, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Steps:
    """A dense layer. It works on the last axis only, so that a batch folded with positions is unfolded for it."""
    node, nodes = c.recorder.node(input), c.recorder.nodes
    if node.owner is not None and isinstance(node.op, Combine) and len(node.inputs) == 1:
        move, above = node.op.terms[0].move, nodes[node.inputs[0]]
        folds = isinstance(move, Reshape) and move.inside[-1] == move.outside[-1] and node.op.terms[0].scale == 1.0
        if folds and above.sample is not None:
            shape = torch.Size((*above.shape[:-1], weight.shape[0]))
            op = Linear(_layer(c, above.shape, weight), "linear", bias)
            unfolded = c.recorder.add(op, [above.index], c.result.reshape(shape), c.name)
            return [(c.result, Combine((Term(Reshape(shape, c.result.shape)),)), [unfolded])]
    return c.one(Linear(_layer(c, input.shape, weight), "linear", bias), input)


def _layer(c: Call, shape: torch.Size, weight: Tensor) -> Dense:
    """The map of a dense layer; weights of a lower precision than its result are kept as they are."""
    return Dense(shape, weight, None if weight.dtype == c.result.dtype else c.result.dtype)


@reads("matmul", "mm", "bmm", "mv", "rmatmul", "dot", "inner")
def _matmul(c: Call, input: Tensor, other: Tensor, **_: Any) -> Steps:
    if c.name == "rmatmul":
        input, other = other, input
    if c.tracked(input) and c.tracked(other):
        return _both(c, input, other)
    if c.name == "inner" and other.ndim > 1 and input.ndim > 1:
        other, input = (other.mT, input) if c.tracked(input) and other.ndim == 2 else (other, input)
        if not c.tracked(input) or other.ndim != 2:
            return None
    if c.tracked(input) and other.ndim >= 2 and input.ndim >= 2:
        return (
            _dense(c, input, other.mT)
            if other.ndim == 2
            else c.one(Linear(Matmul(input.shape, other), "linear"), input)
        )
    if c.tracked(other) and input.ndim >= 2 and other.ndim >= 2:
        return c.one(Linear(Matmul(other.shape, input, left=True), "linear"), other)
    if c.tracked(input):
        return linear_function(c, input, lambda v: torch.matmul(v, other), "linear")
    return linear_function(c, other, lambda v: torch.matmul(input, v), "linear")


@reads("grouped_mm")
def _grouped(c: Call, mat_a: Tensor, mat_b: Tensor, offs: Tensor | None = None, bias: Any = None, **_: Any) -> Steps:
    """The experts of a layer: every group of rows has a matrix of its own."""
    if c.tracked(mat_b) or bias is not None or mat_b.ndim != 3:
        return None
    if offs is None:
        return c.one(Linear(Matmul(mat_a.shape, mat_b.detach()), "linear"), mat_a)
    return c.one(Linear(Grouped(mat_a.shape, mat_b.detach(), tuple(offs.tolist())), "linear"), mat_a)


def _both(c: Call, input: Tensor, other: Tensor) -> Steps:
    """A product of two tensors that both carry relevance."""
    if input.ndim < 2 or other.ndim < 2 or c.name == "inner":
        function = torch.inner if c.name == "inner" else torch.matmul
        return product(c, (input, lambda v: function(v, other)), (other, lambda v: function(input, v)))
    halves = [(input, Matmul(input.shape, other.detach())), (other, Matmul(other.shape, input.detach(), left=True))]
    return _halves(c, halves)


def product(c: Call, *factors: tuple[Tensor, Callable[[Tensor], Tensor]]) -> Steps:
    """A product of two matrices as its halves, where each half is known as a function of its factor only."""
    return _halves(c, [(x, Function(x.shape, c.result.shape, f, False, False, c.name)) for x, f in factors])


def _halves(c: Call, halves: Sequence[tuple[Tensor, LinearMap]]) -> Steps:
    inputs = []
    for side, (x, map) in zip(("left", "right"), halves, strict=True):
        inputs.append(c.recorder.add(Linear(map, "matmul"), [c.index(x)], c.result, f"{c.name}.{side}"))
    return [(c.result, HALVES, inputs)]


HALVES = Combine((Term(None, 0.5), Term(None, 0.5)), joins=True, kind="matmul")
"""A product of matrices, as the sum of what it is to each factor."""


@reads("addmm")
def _addmm(c: Call, input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Steps:
    if c.tracked(mat2) or not c.tracked(mat1):
        return None
    matrix = (mat2 if alpha == 1 else mat2.to(mat1.dtype) * alpha).detach().mT
    if c.tracked(input):
        map = _layer(c, mat1.shape, matrix)
        below = c.recorder.add(Linear(map, "linear"), [c.index(mat1)], map.apply(mat1[None])[0], "mm")
        move = None if input.shape == c.result.shape else Expand(input.shape, c.result.shape)
        terms = (Term(move, float(beta)), Term())
        return [(c.result, Combine(terms, joins=True, kind="add"), [c.index(input), below])]
    return _dense(c, mat1, matrix, (input * beta).detach())


@reads("affine_grid")
def _affine_grid(c: Call, theta: Tensor, *args: Any, **kwargs: Any) -> Steps:
    return linear_function(c, theta, of_first(c.func, args, kwargs), "linear")


@reads("einsum", "tensordot")
def _einsum(c: Call, *args: Any, **kwargs: Any) -> Steps:
    if len(args) == 2 and isinstance(args[1], list | tuple):
        args = (args[0], *args[1])  # the operands may come in a list
    tracked = [i for i, a in enumerate(args) if c.tracked(a)]
    if len(tracked) not in (1, 2) or len(c.tensors) != len(tracked):
        return None
    maps = []
    for i in tracked:
        kept = _kept_axes(args[0], i - 1) if isinstance(args[0], str) else ()
        function = _in_place_of(c.func, i, args, kwargs)
        maps.append(Function(args[i].shape, c.result.shape, function, False, False, c.name, kept=kept))
    if len(tracked) == 2:
        return _halves(c, [(args[i], map) for i, map in zip(tracked, maps, strict=True)])
    return c.one(Linear(maps[0], "linear"), args[tracked[0]])


def _kept_axes(equation: str, operand: int) -> tuple[tuple[int, int], ...]:
    """The axes of an operand that a sum of products has in its result, and where: ``ibh,hnd->ibnd`` keeps i and b."""
    inside, arrow, outside = equation.replace(" ", "").partition("->")
    if not arrow or "." in equation:
        return ()
    mine = inside.split(",")[operand]
    return tuple((mine.index(a), outside.index(a)) for a in mine if mine.count(a) == 1 and a in outside)


def _in_place_of(func: Any, i: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[Tensor], Tensor]:
    """A call as a function of its argument i."""

    def function(v: Tensor) -> Tensor:
        result: Tensor = func(*args[:i], v, *args[i + 1 :], **kwargs)
        return result

    return function
