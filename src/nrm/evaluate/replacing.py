"""What takes the place of removed neurons."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from nrm.errors import QuestionError
from nrm.questions import Frame

KINDS = ("zero", "mean", "resample", "reference")


def replacement(value: Any, frame: Frame, own: Tensor, seed: int, there: Tensor | None = None) -> Tensor:
    """The values of removed neurons, ``(1, *tensor shape)`` or what broadcasts to it.

    ``"zero"``; ``"mean"``: every neuron's mean over the samples of the batch; ``"resample"``: its value in another
    sample of the batch; ``"reference"``: its value in the reference of a contrast; a number or a tensor of the layer's
    shape (or one per sample); a mapping gives one for each layer.
    """
    if isinstance(value, Mapping):
        known = {str(key): v for key, v in value.items()}
        if frame.label not in known:
            raise QuestionError(
                f"there is no value for layer {frame.label!r}", got=", ".join(map(repr, known)),
                expected="a value for every layer that something is removed from",
            )  # fmt: skip
        value = known[frame.label]
    if isinstance(value, str):
        return _by_name(value, frame, own, seed, there)
    try:
        given = torch.as_tensor(value, dtype=own.dtype, device=own.device)
        per_sample = given.ndim == len(frame.layer_shape) + 1
        wide = given.expand((frame.batch, *frame.layer_shape) if per_sample else frame.layer_shape)
    except (TypeError, ValueError, RuntimeError):
        got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)[:80]
        raise QuestionError(
            f"the values of removed neurons do not fit layer {frame.label!r}", got=got,
            expected=f"'zero', 'mean', 'resample', 'reference', a number, or a tensor of shape {frame.layer_shape}",
        ) from None  # fmt: skip
    if not bool(torch.isfinite(wide).all()):
        raise QuestionError("the values of removed neurons are not finite", where=f"layer {frame.label!r}")
    return frame.from_samples(wide[None] if per_sample else wide[None, None])


def _by_name(value: str, frame: Frame, own: Tensor, seed: int, there: Tensor | None) -> Tensor:
    if value not in KINDS:
        near = difflib.get_close_matches(value, KINDS, n=1)
        raise QuestionError(
            f"unknown value {value!r} for removed neurons", expected=", ".join(map(repr, KINDS)) + ", or numbers",
            hint=f"value={near[0]!r}" if near else None,
        )  # fmt: skip
    if value == "reference":
        if there is None:
            raise QuestionError(
                "only a contrast has a reference", got="value='reference'",
                hint="R = nrm.measure(model, inputs, against=reference)",
            )  # fmt: skip
        return there[None]
    if value == "zero":
        return own.new_zeros((1, *(1,) * own.ndim))
    if frame.batch < 2 or (frame.sample is None and frame.owner is not None):
        raise QuestionError(
            f"value={value!r} needs a batch of samples to take values from", got=f"{frame.batch} samples"
            if frame.batch < 2 else f"samples without an axis of their own at layer {frame.label!r}",
            hint="measure several inputs at once, or give the values: value=tensor",
        )  # fmt: skip
    rows = frame.to_samples(own[None])[0]
    if value == "mean":
        return frame.from_samples(rows.mean(0, keepdim=True)[None])
    shift = int(torch.randint(1, frame.batch, (), generator=torch.Generator().manual_seed(seed)))
    return frame.from_samples(rows.roll(shift, 0)[None])
