"""Inputs without a batch axis: one sample where a batch of samples is expected, found when the capture has failed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from nrm.capture.capture import Output, capture, own_output
from nrm.capture.checks import MIXED
from nrm.capture.tape import Tape
from nrm.errors import CaptureError, NrmError


def capture_batch(
    model: nn.Module, inputs: Any, *, output: Output = None, batch_dim: int | None = 0,
    dtype: torch.dtype | None = None, whole: bool = False,
) -> Tape:  # fmt: skip
    """Runs the model once on its inputs and returns the tape of that pass; says so if the inputs have no batch axis."""
    try:
        return capture(model, inputs, output=output, batch_dim=batch_dim, dtype=dtype, whole=whole)
    except Exception as error:
        suspicious = not isinstance(error, NrmError) or error.what == MIXED
        if batch_dim != 0 or not suspicious or not _is_one_sample(model, inputs, output, isinstance(error, NrmError)):
            raise
        raise _no_batch_axis(inputs) from error


def _is_one_sample(model: nn.Module, inputs: Any, output: Output, runs: bool) -> bool:
    """Whether the model runs with a batch axis in front and, if it ``runs`` without one, says the same."""
    batched = _with_axis(inputs)
    if batched is None:
        return False
    try:
        found = own_output(model, batched, output)
        return not runs or torch.allclose(found, own_output(model, inputs, output)[None], rtol=1e-3, atol=1e-5)
    except Exception:  # whatever the model does not like about the other form is not what the user asked
        return False


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
