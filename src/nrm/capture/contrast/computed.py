"""Exact splits of what is read at computed places, and of inverses: both factors differ, nothing is held."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nrm.capture.contrast.splits import splits
from nrm.capture.contrast.step import Exact, Pair, Parts, Piece, Step
from nrm.operators import Composed, Expand, Function, Slice


@splits("grid_sample", "grid_sampler")
def _grid_sample(step: Step, input: Pair | Tensor, grid: Pair | Tensor, *args: Any, **kwargs: Any) -> Exact | None:
    """``mean(W) dx + (W - W2) mean(x)``, W the weights that a grid gives; the second part by coordinates."""
    if not isinstance(input, Pair) or not isinstance(grid, Pair):
        return None
    call = step.node.recall
    assert call is not None
    sample: Callable[..., Tensor] = call.function

    def read(v: Tensor) -> Tensor:
        return (sample(v, grid.here, *args, **kwargs) + sample(v, grid.there, *args, **kwargs)) / 2

    def values() -> Parts:
        return (Piece(Function(input.shape, step.node.shape, read, False, False, "grid_sample")),)

    def places() -> Parts:
        at = functools.partial(sample, input.mean)
        slopes = _by_coordinate(lambda g: at(g, *args, **kwargs), grid)
        return tuple(Piece(_coordinate(grid, k, step.node.shape), slope) for k, slope in enumerate(slopes))

    return step.mixed(values, places)


def _by_coordinate(function: Callable[[Tensor], Tensor], grid: Pair) -> list[Tensor]:
    """The slope along every coordinate, of a way that changes one after the other, and of the way back."""
    count = grid.shape[-1]
    slopes: list[Any] = [0.0] * count
    for order in (range(count), range(count - 1, -1, -1)):
        at = grid.there.clone()
        before = function(at)
        for k in order:
            at[..., k] = grid.here[..., k]
            after = function(at)
            gap = (grid.here - grid.there)[..., k].unsqueeze(1)
            still = gap == 0
            slopes[k] = slopes[k] + ((after - before) / gap.masked_fill(still, 1.0)).masked_fill(still, 0.0) / 2
            before = after
    return slopes


def _coordinate(grid: Pair, k: int, shape: torch.Size) -> Composed:
    """One coordinate of every place, for all channels that are read there."""
    own = torch.Size((shape[0], 1, *shape[2:]))
    index = (slice(None), None, *(slice(None),) * (len(shape) - 2), k)
    return Composed(Slice(grid.shape, own, index), Expand(own, shape))


@splits("linalg_inv")
def _inverse(step: Step, A: Pair) -> Exact:
    """``-(A^-1 dA A2^-1 + A2^-1 dA A^-1) / 2``, both ways of writing the difference of two inverses."""
    here, there = step.result

    def function(v: Tensor) -> Tensor:
        return -(here @ v @ there + there @ v @ here) / 2

    return step.mixed(lambda: (Piece(Function(A.shape, step.node.shape, function, False, False, "inverse")),))
