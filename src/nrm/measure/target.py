"""What is explained: from the user's target to the relevance of the output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nrm.errors import MassError, QuestionError
from nrm.measure.frame import Frame
from nrm.measure.values import Set


@dataclass(frozen=True, eq=False)
class Target:
    """The relevance of the output's neurons, the target's index where it is one neuron, and the explained value."""

    start: Tensor
    index: Tensor | None
    value: Tensor
    spread: str | None
    prediction: Tensor


def read_target(target: Any, output: Tensor, frame: Frame, normalize: bool | str) -> Target:
    """Checks a target against the output and turns it into output relevance that sums to 1 per sample."""
    scores = frame.to_samples(output[None])[0]
    batch, shape = scores.shape[0], tuple(scores.shape[1:])
    flat = scores.reshape(batch, -1)
    prediction = flat.argmax(1)
    spread = index = None
    if isinstance(target, str):
        weights, spread = _spread(target, flat), target
    elif isinstance(target, Set):
        mask = frame.mask(target)[0].expand(batch, *shape).reshape(batch, -1)
        weights = flat * mask
        spread = repr(target)
    else:
        index = prediction if target is None else _index(target, batch, shape, flat.device)
        weights = torch.zeros_like(flat).scatter_(1, index[:, None], 1.0)
    total = weights.sum(1, keepdim=True)
    if bool((total <= 0).any()):
        bad = int((total <= 0).nonzero()[0, 0])
        raise MassError(
            "the explained outputs do not have a positive sum", where=f"sample {bad}",
            got=f"{float(total[bad]):.4g}", expected="a positive total to be shared",
            hint="target=CLASS explains one output; target='softmax' always has a positive total",
        )  # fmt: skip
    relevance = weights / total
    value = flat.gather(1, index[:, None])[:, 0] if index is not None else (relevance * flat).sum(1)
    if isinstance(target, str | Set) and spread != "softmax":
        value = weights.sum(1)
    start = frame.from_samples(relevance.reshape(1, batch, *shape))
    return Target(start, index, value, spread, prediction)


def _spread(target: str, flat: Tensor) -> Tensor:
    if target == "logits":
        return flat
    if target == "softmax":
        return torch.softmax(flat, 1)
    raise QuestionError(f"unknown target {target!r}", expected="a class, None, a set, 'logits' or 'softmax'")


def _index(target: Any, batch: int, shape: tuple[int, ...], device: torch.device) -> Tensor:
    """The flat index of the target neuron of every sample."""
    if isinstance(target, tuple):
        if len(target) != len(shape):
            raise QuestionError("the target does not fit the output", got=f"{target}", expected=f"{len(shape)} indices")
        coordinates = [_axis(t, batch, n, device, negative=k < len(shape) - 1) for k, (t, n) in
                       enumerate(zip(target, shape, strict=True))]  # fmt: skip
    elif len(shape) == 1:
        coordinates = [_axis(target, batch, shape[0], device, negative=False)]
    elif not shape:
        raise QuestionError("the output has one number per sample, so there is nothing to choose", got=repr(target),
                            hint="target=None")  # fmt: skip
    else:
        raise QuestionError(
            f"the output has {len(shape)} axes per sample", got=f"target={target!r}", expected=f"a tuple for {shape}",
            hint="target=(position, class)",
        )  # fmt: skip
    flat = torch.zeros(batch, dtype=torch.long, device=device)
    for i, n in zip(coordinates, shape, strict=True):
        flat = flat * n + i
    return flat


def _axis(target: Any, batch: int, size: int, device: torch.device, negative: bool) -> Tensor:
    values = torch.as_tensor(target)
    if values.is_floating_point() or values.dtype == torch.bool or values.is_complex():
        raise QuestionError("a target is a class index", got=f"{values.dtype}", expected="an integer")
    if values.ndim > 1 or (values.ndim == 1 and len(values) != batch):
        raise QuestionError("targets and samples do not match", got=f"shape {tuple(values.shape)}",
                            expected=f"one number, or {batch} of them")  # fmt: skip
    low = -size if negative else 0
    if bool(((values < low) | (values >= size)).any()):
        raise QuestionError("target out of range", got=str(values.tolist()), expected=f"{low} to {size - 1}")
    values = torch.where(values < 0, values + size, values)
    return values.to(device).expand(batch)
