"""What is explained: from the user's target to the relevance of the output."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nrm.errors import MassError, QuestionError
from nrm.questions import Frame, Set


@dataclass(frozen=True, eq=False)
class Target:
    """The relevance of the output's neurons, and what it means.

    ``index`` is the flat index of the explained neuron of every sample (None: relevance is spread), ``allowed`` marks
    the neurons that the target does not exclude, ``(batch, *output shape)``. Of a contrast the value is a difference,
    and ``runs`` are the explained outputs here and in the reference.
    """

    start: Tensor
    index: Tensor | None
    value: Tensor
    spread: str | Set | None
    prediction: Tensor
    allowed: Tensor
    runs: tuple[Tensor, Tensor] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one sample's output."""
        return tuple(self.allowed.shape[1:])

    def coordinates(self, flat: Tensor) -> Tensor:
        """Flat indices of outputs as a user writes them: ``(batch,)``, or ``(batch, axes)`` for several axes."""
        if len(self.shape) < 2:
            return flat
        return torch.stack(torch.unravel_index(flat, self.shape), 1)


def read_target(
    target: Any, output: Tensor, frame: Frame, ends: Tensor | None = None, runs: Sequence[Tensor] | None = None
) -> Target:
    """Checks a target against the output and turns it into output relevance that sums to 1 per sample.

    ``ends`` is each sample's last position that is not padding. If the output has tokens at these positions, the
    prediction is the top token there, and negative positions count from there. Of a contrast the output is a
    difference, and ``runs`` are the outputs it is the difference of; the first has the prediction.
    """
    scores, prediction = predict(output, frame, ends)
    if runs is not None:
        prediction = predict(runs[0], frame, ends)[1]
        _refuse_spread(target)
    batch, shape = scores.shape[0], tuple(scores.shape[1:])
    flat, own = scores.reshape(batch, -1), _own(output, frame)
    index = None
    allowed = torch.ones_like(flat, dtype=torch.bool)
    if isinstance(target, str):
        weights = _spread(target, flat, own)
        value = weights.sum(1) if target == "logits" else (weights * flat).sum(1)
    elif isinstance(target, Set):
        allowed = frame.mask(target)[0].expand(batch, *shape).reshape(batch, -1)
        weights = flat * allowed
        value = weights.sum(1)
    else:
        index = prediction if target is None else _index(target, batch, shape, flat.device, _positions(ends, scores))
        _check_own(target, own.gather(1, index[:, None])[:, 0])
        weights = torch.zeros_like(flat).scatter_(1, index[:, None], 1.0)
        allowed = weights != 0
        value = flat.gather(1, index[:, None])[:, 0]
    if index is None:
        weights = weights / (_positive(weights) if runs is None else _present(weights))
    start = frame.from_samples(weights.reshape(1, batch, *shape))
    spread = None if index is not None else target
    both = None if runs is None else (_summed(runs[0], allowed, frame), _summed(runs[1], allowed, frame))
    return Target(start, index, value, spread, prediction, allowed.reshape(batch, *shape), both)


def _summed(output: Tensor, allowed: Tensor, frame: Frame) -> Tensor:
    """The sum of every sample's allowed outputs."""
    return (frame.to_samples(output[None])[0].reshape(len(allowed), -1) * allowed).sum(1)


def predict(output: Tensor, frame: Frame, ends: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The outputs of every sample ``(batch, *shape)``, and the flat index of each sample's top one."""
    scores = frame.to_samples(output[None])[0]
    batch, shape = scores.shape[0], tuple(scores.shape[1:])
    at = _positions(ends, scores)
    if at is None:
        return scores, scores.reshape(batch, -1).masked_fill(~_own(output, frame), -torch.inf).argmax(1)
    return scores, at * shape[1] + scores[torch.arange(batch, device=scores.device), at].argmax(1)


def _positions(ends: Tensor | None, scores: Tensor) -> Tensor | None:
    """The last positions, if the output has tokens there."""
    if ends is None or scores.ndim != 3 or int(ends.max()) >= scores.shape[1]:
        return None
    return ends.to(scores.device)


def _own(output: Tensor, frame: Frame) -> Tensor:
    """Which outputs are a sample's own ``(batch, outputs)``: not those of another graph's nodes."""
    mine = frame.to_samples(torch.ones_like(output, dtype=torch.bool)[None])[0]
    return mine.reshape(mine.shape[0], -1)


def _check_own(target: Any, own: Tensor) -> None:
    """Refuses to explain an output of one sample as another one's, such as a node of another graph."""
    if not bool(own.all()):
        sample = int((~own).nonzero()[0, 0])
        raise QuestionError(
            f"the target is no output of sample {sample}", got=f"target={target!r}"[:120],
            hint="target=([NODE, ...], CLASS) with one node per graph of the batch, or target=None",
        )  # fmt: skip


def _spread(target: str, flat: Tensor, own: Tensor) -> Tensor:
    """The outputs that relevance is spread over; ``target`` is ``"logits"`` or ``"softmax"``."""
    return flat if target == "logits" else torch.softmax(flat.masked_fill(~own, -torch.inf), 1)


def _positive(weights: Tensor) -> Tensor:
    """The total of every sample's explained outputs, which must be there to be shared."""
    total = weights.sum(1, keepdim=True)
    lost = ~(total > 8 * torch.finfo(weights.dtype).eps * weights.abs().sum(1, keepdim=True))
    if bool(lost.any()):
        bad = int(lost.nonzero()[0, 0])
        raise MassError(
            "the explained outputs do not have a positive sum", where=f"sample {bad}",
            got=f"{float(total[bad]):.4g}", expected="a positive total that can be shared",
            hint="target=CLASS explains one output; target='softmax' always has a positive total",
        )  # fmt: skip
    return total


def _refuse_spread(target: Any) -> None:
    """A softmax of differences is nothing; the difference of a softmax is an output like any other."""
    if isinstance(target, str) and target == "softmax":
        raise QuestionError(
            "relevance cannot be spread by a softmax in a contrast", got="target='softmax'",
            expected="a class, one per sample, a tuple, a set of outputs or 'logits'",
            hint="output=lambda o: o.softmax(-1) explains differences of probabilities",
        )  # fmt: skip


def _present(weights: Tensor) -> Tensor:
    """The total of every sample's explained differences, of either sign; 1 where there is none, and no share of it."""
    total = weights.sum(1, keepdim=True)
    return torch.where(total == 0, torch.ones_like(total), total)


def _index(target: Any, batch: int, shape: tuple[int, ...], device: torch.device, ends: Tensor | None = None) -> Tensor:
    """The flat index of the target neuron of every sample."""
    if not shape:
        raise QuestionError(
            "the output has one number per sample, so there is nothing to choose", got=f"target={target!r}",
            hint="target=None",
        )  # fmt: skip
    indices = target if isinstance(target, tuple) else _by_axis(target, batch, len(shape))
    if len(indices) != len(shape):
        raise QuestionError(
            f"the target does not fit an output of {len(shape)} {'axes' if len(shape) > 1 else 'axis'} per sample",
            got=f"target={target!r}", expected=f"{len(shape)} indices, for shape {shape}",
            hint="target=(-1, token) is a token at the last position" if len(shape) > 1 else
                 "target=CLASS, or target=[CLASS, ...] with one per sample",
        )  # fmt: skip
    flat = torch.zeros(batch, dtype=torch.long, device=device)
    for axis, (i, n) in enumerate(zip(indices, shape, strict=True)):
        last = axis == len(shape) - 1
        at = _axis(i, batch, n, device, negative=not last)
        if axis == 0 and ends is not None and not last:
            at = _from_the_end(at, torch.as_tensor(i, device=device).expand(batch), n, ends)
        flat = flat * n + at
    return flat


def _by_axis(target: Any, batch: int, axes: int) -> tuple[Any, ...]:
    """A target that is no tuple, by axis: one index per sample, or rows with an index for every axis (``R.target``)."""
    rows = target.tolist() if hasattr(target, "tolist") else target
    if axes < 2 or not isinstance(rows, list) or not all(isinstance(r, list | tuple) and len(r) == axes for r in rows):
        return (target,)
    if len(rows) != batch:
        raise QuestionError(
            "targets and samples do not match", got=f"{len(rows)} rows", expected=f"{batch} of them, one per sample"
        )
    return tuple(list(indices) for indices in zip(*rows, strict=True))


def _from_the_end(at: Tensor, given: Tensor, size: int, ends: Tensor) -> Tensor:
    """Positions that count from the end of each sample's own sequence, its padding left out."""
    own = torch.where(given < 0, at - (size - 1 - ends), at)
    if bool((own < 0).any()):
        bad = int((own < 0).nonzero()[0, 0])
        raise QuestionError(
            "target out of range", got=f"position {int(given[bad])} (sample {bad})",
            expected=f"a position from {-int(ends[bad]) - 1}: the sequence has {int(ends[bad]) + 1} tokens",
        )  # fmt: skip
    return own


def _axis(target: Any, batch: int, size: int, device: torch.device, negative: bool) -> Tensor:
    """One index per sample along one axis. A position may count from the end; a class may not."""
    try:
        values = torch.as_tensor(target)
    except (TypeError, ValueError, RuntimeError):
        raise QuestionError(
            "a target is a class index", got=f"target={target!r}"[:120],
            expected="an integer, one per sample, a tuple, a set of outputs, 'logits' or 'softmax'",
        ) from None  # fmt: skip
    if values.is_floating_point() or values.dtype == torch.bool or values.is_complex():
        raise QuestionError(
            "a target is a class index", got=f"{target!r} ({values.dtype})"[:120], expected="an integer"
        )
    if values.ndim > 1 or (values.ndim == 1 and len(values) != batch):
        raise QuestionError(
            "targets and samples do not match", got=f"targets of shape {tuple(values.shape)}",
            expected=f"one number, or {batch} of them, one per sample",
        )  # fmt: skip
    low = -size if negative else 0
    outside = (values < low) | (values >= size)
    if bool(outside.any()):
        sample = "" if values.ndim == 0 else f" (sample {int(outside.nonzero()[0, 0])})"
        raise QuestionError(
            "target out of range", got=f"{int(values[outside].flatten()[0])}{sample}",
            expected=f"an index from {low} to {size - 1}: the output has {size} entries there",
        )  # fmt: skip
    values = torch.where(values < 0, values + size, values)
    return values.long().to(device).expand(batch)


def excluded(target: Target, masks: Tensor, samples: range) -> int | None:
    """The first of these samples in which some block ``(K, batch or 1, *output shape)`` lies outside the target."""
    batch = target.allowed.shape[0]
    wide = masks.expand(masks.shape[0], batch, *target.shape).reshape(masks.shape[0], batch, math.prod(target.shape))
    inside = (wide & target.allowed.reshape(1, batch, -1)).any(2)
    outside = (wide.any(2) & ~inside).any(0)
    return next((s for s in samples if bool(outside[s])), None)
