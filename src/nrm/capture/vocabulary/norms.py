"""Normalization in eval: statistics are constants, so every norm is a linear step or a scale."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nrm.capture.call import Call
from nrm.capture.ops import Combine, Linear, Term
from nrm.capture.vocabulary.reading import Steps, reads
from nrm.operators import Centering


@reads("batch_norm")
def _batch_norm(
    c: Call, input: Tensor, running_mean: Tensor | None, running_var: Tensor | None,
    weight: Tensor | None = None, bias: Tensor | None = None, training: bool = False,
    momentum: float = 0.1, eps: float = 1e-5, *_: Any,
) -> Steps:  # fmt: skip
    if training or running_mean is None or running_var is None:
        return _normalized_by_channel(c, input, weight, bias, eps)
    scale = torch.rsqrt(running_var + eps)
    scale = scale if weight is None else scale.mul_(weight)
    shift = running_mean * -scale
    shift = shift if bias is None else shift.add_(bias)
    shape = (-1, *(1,) * (input.ndim - 2))
    op = Combine((Term(None, scale.view(shape)),), shift.view(shape), joins=True, kind="batchnorm")
    return c.one(op, input)


def _normalized_by_channel(c: Call, input: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Steps:
    """A batch norm by the statistics of the batch itself: samples are mixed in them, and they are held."""
    dims = tuple(d for d in range(input.ndim) if d != 1)
    shape = (-1, *(1,) * (input.ndim - 2))
    gain = torch.rsqrt(input.var(dims, unbiased=False, keepdim=True) + eps)
    gain = (gain if weight is None else gain * weight.view(shape)).expand(input.shape)
    map = Centering.of(gain.detach().contiguous(), tuple(input.shape), dims)
    return c.one(Linear(map, "norm", None if bias is None else bias.detach().view(shape)), input)


@reads("layer_norm")
def _layer_norm(
    c: Call, input: Tensor, normalized_shape: Any, weight: Tensor | None = None, bias: Tensor | None = None,
    eps: float = 1e-5, *_: Any,
) -> Steps:  # fmt: skip
    dims = tuple(range(input.ndim - len(normalized_shape), input.ndim))
    deviation = torch.rsqrt(input.var(dims, unbiased=False, keepdim=True) + eps)
    gain = (deviation * (1.0 if weight is None else weight)).expand(input.shape)
    map = Centering.of(gain.detach().contiguous(), tuple(input.shape), dims)
    return c.one(Linear(map, "norm", None if bias is None else bias.detach()), input)


@reads("group_norm", "instance_norm")
def _group_norm(c: Call, input: Tensor, *args: Any, **kwargs: Any) -> Steps:
    names = ("num_groups", "weight", "bias", "eps") if c.name == "group_norm" else (
        "running_mean", "running_var", "weight", "bias", "use_input_stats", "momentum", "eps")  # fmt: skip
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    if c.name == "instance_norm" and not given.get("use_input_stats", True):
        return _batch_norm(c, input, given.get("running_mean"), given.get("running_var"), given.get("weight"),
                           given.get("bias"), False, 0.1, given.get("eps", 1e-5))  # fmt: skip
    groups = given["num_groups"] if c.name == "group_norm" else input.shape[1]
    view = (input.shape[0], groups, input.shape[1] // groups, *input.shape[2:])
    dims = tuple(range(2, len(view)))
    spread = input.reshape(view).var(dims, unbiased=False, keepdim=True)
    gain = torch.rsqrt(spread + given.get("eps", 1e-5)).expand(view).reshape(input.shape)
    shape = (-1, *(1,) * (input.ndim - 2))
    if given.get("weight") is not None:
        gain = gain * given["weight"].view(shape)
    bias = None if given.get("bias") is None else given["bias"].detach().view(shape)
    return c.one(Linear(Centering.of(gain.detach(), view, dims), "norm", bias), input)


@reads("rms_norm")
def _rms_norm(c: Call, input: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: Any = None) -> Steps:
    dims = tuple(range(input.ndim - len(normalized_shape), input.ndim))
    eps = torch.finfo(input.dtype).eps if eps is None else eps
    gain = torch.rsqrt(input.square().mean(dims, keepdim=True) + eps) * (1.0 if weight is None else weight)
    return c.one(Combine((Term(None, gain.detach()),), kind="scale", held=True), input)


@reads("normalize", "local_response_norm", "torch.nn.modules.normalization.CrossMapLRN2d")
def _divide_by_norm(c: Call, input: Tensor, *args: Any, **kwargs: Any) -> Steps:
    gain = torch.where(input == 0, torch.ones_like(input), c.result / input)
    return c.one(Combine((Term(None, gain.detach()),), kind="scale", held=True), input)
