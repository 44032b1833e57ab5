"""Norms of one's own, read from what they do: ``y = gain (x - mean) + bias``, or without the mean.

Which axes are normalized is found by scaling: a norm does not see how large a group is. A norm that does not see either
where the group lies subtracts its mean. Gains are held, as those of every norm are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from nrm.capture.call import Call, of_first
from nrm.capture.contrast import Pair, Step
from nrm.capture.ops import Combine, Exact, Linear, Parts, Piece, Term
from nrm.capture.vocabulary import Steps
from nrm.operators import Centering, GroupSum

BLIND = 1e-2
"""The largest change, as a share, by which a norm may show how large a group is: it adds a small number to a sum."""


def read_norm(c: Call, input: Tensor, *args: Any, **kwargs: Any) -> Steps:
    """A norm as a linear step whose gain is held; None if it is no norm of its input along any axes."""
    function = _held(c.func, args, kwargs)
    dims = _normalized_axes(function, input)
    if dims is None or any(c.tracked(a) for a in (*args, *kwargs.values())):
        return None
    centers, bias = _centers(function, input, dims), function(torch.zeros_like(input))
    gain = _gain(c.result, input, bias, dims if centers else ())
    if centers:
        return c.one(Linear(Centering.of(gain, tuple(input.shape), dims), "norm", bias), input)
    term = Term(None, gain)
    return c.one(Combine((term,), bias if bool(bias.any()) else None, bool(bias.any()), "scale", held=True), input)


def split_norm(step: Step, input: Pair, *args: Any, **kwargs: Any) -> Exact | None:
    """``mean(gain) dc + mean(c) dgain``, where the gain of a group differs in proportion to ``mean(c) . dc``."""
    recall = step.node.recall
    assert recall is not None
    function = _held(recall.function, args, kwargs)
    dims = _normalized_axes(function, input.here)
    if dims is None:
        return None
    centers, bias = _centers(function, input.here, dims), function(torch.zeros_like(input.here))
    together = GroupSum(input.here.shape, tuple(input.here.shape), dims)

    def pieces() -> Parts:
        over = dims if centers else ()
        c = Pair(*(_without_mean(x, over) for x in input))
        gain = Pair(*(_gain(y, x, bias, over) for y, x in zip(step.result, input, strict=True)))
        turn = (c.mean * c.delta).sum(dims, keepdim=True)
        share = c.mean * gain.delta / turn.masked_fill(turn == 0, 1.0)
        own = gain.mean
        parts = (Piece(post=own), Piece(together, share, c.mean))
        size = torch.Size(input.here.shape[d] for d in dims).numel()
        return (*parts, Piece(together, own * (-1 / size))) if centers else parts

    return step.mixed(pieces)


def _held(call: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Callable[[Tensor], Tensor]:
    """A call as a function of its first argument, whose result has no gradient."""
    inner = of_first(call, args, kwargs)
    return lambda v: inner(v).detach()


def _gain(y: Tensor, x: Tensor, bias: Tensor, dims: tuple[int, ...]) -> Tensor:
    c = _without_mean(x, dims)
    return (y - bias) / c.masked_fill(c == 0, 1.0)


def _without_mean(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    return x - x.mean(dims, keepdim=True) if dims else x


def _centers(function: Callable[[Tensor], Tensor], x: Tensor, dims: tuple[int, ...]) -> bool:
    """Whether a shift of whole groups changes nothing."""
    return _alike(function(x + x.abs().mean(dims, keepdim=True)), function(x))


def _normalized_axes(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[int, ...] | None:
    """The axes of the smallest groups whose size makes no difference."""
    generator, plain = torch.Generator().manual_seed(0), function(x)
    for dims in _candidates(x.ndim):
        shape = [1 if d in dims else n for d, n in enumerate(x.shape)]
        scale = 1 + torch.rand(shape, generator=generator).to(x)
        scaled = function(x * scale)
        if plain.shape == x.shape and _alike(scaled, plain):
            return dims
    return None


def _candidates(ndim: int) -> Iterator[tuple[int, ...]]:
    """Axes that norms go along: the last, the channels of images, their positions, all but the samples."""
    found = [(ndim - 1,), *([(1,), tuple(range(2, ndim)), tuple(range(1, ndim))] if ndim > 2 else [])]
    yield from dict.fromkeys(found)


def _alike(one: Tensor, other: Tensor) -> bool:
    return float((one - other).abs().max()) <= BLIND * max(float(other.abs().max()), 1e-12)
