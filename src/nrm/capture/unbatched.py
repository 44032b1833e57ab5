"""Inputs without a batch axis: one sample where a batch of samples is expected, found when the capture has failed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from nrm.capture.capture import Output, capture, own_output
from nrm.capture.checks import MIXED
from nrm.capture.script import CallScript
from nrm.capture.tape import Tape
from nrm.errors import CaptureError, NrmError


def capture_batch(
    model: nn.Module, inputs: Any, *, output: Output = None, batch_dim: int | None = 0,
    dtype: torch.dtype | None = None, whole: bool = False, bound: int | None = None, like: CallScript | None = None,
) -> Tape:  # fmt: skip
    """Runs the model once on its inputs and returns the tape of that pass; says so if the inputs have no batch axis."""
    try:
        return capture(
            model, inputs, output=output, batch_dim=batch_dim, dtype=dtype, whole=whole, bound=bound, like=like
        )
    except Exception as error:
        mixed = isinstance(error, NrmError) and error.what == MIXED
        suspicious = mixed or not isinstance(error, NrmError)
        if batch_dim != 0 or not suspicious or not _is_one_sample(model, inputs, output, mixed):
            raise
        raise _no_batch_axis(inputs) from error


def _is_one_sample(model: nn.Module, inputs: Any, output: Output, mixed: bool) -> bool:
    """Whether the model runs with a batch axis in front only or, if it ``mixed`` samples, says the same without one.

    Where it runs in both forms and mixes nothing, the error is not about axes: a builder has failed, or the library.
    """
    batched = _with_axis(inputs)
    if batched is None:
        return False
    found, plain = _tried(model, batched, output), _tried(model, inputs, output)
    if found is None or plain is None:
        return found is not None
    alike = found.shape == (1, *plain.shape) and torch.allclose(found, plain[None], rtol=1e-3, atol=1e-5)
    return mixed and alike


def _tried(model: nn.Module, inputs: Any, output: Output) -> Tensor | None:
    """What the model says about inputs in one form, or None: what it does not like about it is not what was asked."""
    try:
        return own_output(model, inputs, output)
    except Exception:
        return None


def _with_axis(inputs: Any) -> Any:
    """The inputs with a batch axis in front of every tensor; None if they are not tensors alone."""
    parts = _parts(inputs)
    if not parts or not all(isinstance(part, Tensor) for part in parts):
        return None
    if isinstance(inputs, Mapping):
        return {key: part[None] for key, part in inputs.items()}
    return inputs[None] if isinstance(inputs, Tensor) else tuple(part[None] for part in parts)


def _parts(inputs: Any) -> list[Any]:
    if isinstance(inputs, Mapping):
        return list(inputs.values())
    return list(inputs) if type(inputs) is tuple else [inputs]


def _no_batch_axis(inputs: Any) -> CaptureError:
    shape = ", ".join(map(str, _parts(inputs)[0].shape))
    return CaptureError(
        "the input has no batch axis", got=f"one sample of shape ({shape})",
        expected=f"samples on axis 0: shape (batch, {shape})",
        hint="inputs[None] is a batch of one, on which the model runs; batch_dim=None explains the whole call",
    )  # fmt: skip
