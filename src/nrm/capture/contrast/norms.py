"""Exact splits of norms: statistics differ between the runs, and their differences are shared as well."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from nrm.capture.contrast.secants import slope
from nrm.capture.contrast.splits import splits
from nrm.capture.contrast.step import Exact, Pair, Parts, Piece, Step
from nrm.operators import Function, GroupSum


@splits("layer_norm")
def _layer_norm(
    step: Step, input: Pair, normalized_shape: Any, weight: Tensor | None = None, bias: Any = None, eps: float = 1e-5,
    *_: Any,
) -> Exact:  # fmt: skip
    shape = input.shape
    dims = tuple(range(len(shape) - len(normalized_shape), len(shape)))
    return step.mixed(functools.partial(_normalized, input, tuple(shape), dims, weight, eps, True))


@splits("rms_norm")
def _rms_norm(
    step: Step, input: Pair, normalized_shape: Any, weight: Tensor | None = None, eps: float | None = None
) -> Exact:
    shape = input.shape
    dims = tuple(range(len(shape) - len(normalized_shape), len(shape)))
    eps = torch.finfo(input.here.dtype).eps if eps is None else eps
    return step.mixed(functools.partial(_normalized, input, tuple(shape), dims, weight, eps, False))


@splits("group_norm")
def _group_norm(
    step: Step, input: Pair, num_groups: int, weight: Tensor | None = None, bias: Any = None, eps: float = 1e-5
) -> Exact:
    return _by_group(step, input, num_groups, weight, eps)


@splits("instance_norm")
def _instance_norm(
    step: Step, input: Pair, running_mean: Any = None, running_var: Any = None, weight: Tensor | None = None,
    bias: Any = None, use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5,
) -> Exact:  # fmt: skip
    return _by_group(step, input, input.shape[1], weight, eps)


@splits("batch_norm")
def _batch_norm(
    step: Step, input: Pair, running_mean: Any = None, running_var: Any = None, weight: Tensor | None = None,
    bias: Any = None, training: bool = False, momentum: float = 0.1, eps: float = 1e-5, *_: Any,
) -> Exact:  # fmt: skip
    """By the statistics of the batch itself; with those that are kept it is linear, and has no split."""
    shape = input.shape
    dims = tuple(d for d in range(len(shape)) if d != 1)
    gain = None if weight is None else weight.view(-1, *(1,) * (len(shape) - 2))
    return step.mixed(functools.partial(_normalized, input, tuple(shape), dims, gain, eps, True))


def _by_group(step: Step, x: Pair, groups: int, weight: Tensor | None, eps: float) -> Exact:
    """Groups of channels, each normalized with all its positions."""
    n, channels, *space = x.shape
    view = (n, groups, channels // groups, *space)
    gain = None if weight is None else weight.view(-1, *(1,) * len(space))
    return step.mixed(functools.partial(_normalized, x, view, tuple(range(2, len(view))), gain, eps, True))


def _normalized(
    x: Pair, view: tuple[int, ...], dims: tuple[int, ...], gain: Tensor | None, eps: float, centers: bool
) -> Parts:
    """``gain [mean(r) dc - mean(c) (r r2)^2 / (r + r2) (2 / d) mean(c) . dc]``, c = x or x without its mean.

    Groups of d entries are the axes ``dims`` of the tensor seen as ``view``; r is one over their deviation.
    """
    shape, groups = x.shape, x.reshape(*view)
    if centers:
        groups = Pair(*(v - v.mean(dims, keepdim=True) for v in groups))
    size = torch.Size(view[d] for d in dims).numel()
    r, r2 = (torch.rsqrt(c.square().mean(dims, keepdim=True) + eps) for c in groups)
    middle = groups.mean
    own = ((r + r2) / 2).expand(view).reshape(shape)
    turn = (middle * ((r * r2).square() / (r + r2) * (2 / size))).reshape(shape)
    own, turn = (own, turn) if gain is None else (own * gain, turn * gain)
    together = GroupSum(shape, view, dims)
    parts = (Piece(post=own), Piece(together, -turn, middle.reshape(shape)))
    return (*parts, Piece(together, own * (-1 / size))) if centers else parts


@splits("normalize")
def _divided_by_length(step: Step, input: Pair, p: float = 2.0, dim: int = 1, eps: float = 1e-12, *_: Any) -> Exact:
    """``x / max(length, eps)`` along an axis, with the length as powers, their sum, and its root."""
    shape = input.shape
    together = GroupSum(shape, tuple(shape), (dim % len(shape),))

    def pieces() -> Parts:
        powers = Pair(*(v.abs() ** p for v in input))
        total = Pair(*(v.sum(dim, keepdim=True) for v in powers))
        root = Pair(*(v ** (1 / p) for v in total))
        least = Pair(*(v.clamp(min=eps) for v in root))
        inner = slope(input, powers, lambda v: v.abs() ** p, "pow")
        outer = slope(total, root, lambda v: v ** (1 / p), "pow") * slope(root, least, lambda v: v.clamp(min=eps), "")
        turn = input.mean * (outer / (least.here * least.there))
        own = Pair(1 / least.here, 1 / least.there).mean
        return (Piece(post=own.expand(shape)), Piece(together, -turn, inner))

    return step.mixed(pieces)


@splits("local_response_norm")
def _divided_by_neighbours(
    step: Step, input: Pair, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Exact:
    """``x / (k + alpha mean of squares nearby)^beta``, over channels nearby."""
    shape = input.shape

    def nearby(v: Tensor) -> Tensor:
        padded = torch.nn.functional.pad(v.movedim(1, -1), (size // 2, (size - 1) // 2))
        return padded.unfold(-1, size, 1).mean(-1).movedim(-1, 1)

    window = Function(shape, shape, nearby, batched=False, positive=True, name="local_response_norm")

    def pieces() -> Parts:
        base = Pair(*(k + alpha * nearby(v.square()) for v in input))
        divisor = Pair(*(v**beta for v in base))
        outer = slope(base, divisor, lambda v: v**beta, "pow") * alpha
        turn = input.mean * outer / (divisor.here * divisor.there)
        own = Pair(1 / divisor.here, 1 / divisor.there).mean
        return (Piece(post=own), Piece(window, -turn, 2 * input.mean))

    return step.mixed(pieces)
