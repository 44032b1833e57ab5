"""How samples are compared: one by one; relevance is a share of each one's own output, a score ranks over samples."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from inspect import signature
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from nrm.errors import QuestionError, unknown_option
from nrm.measure.making import measure
from nrm.measure.measure import Measure

WEIGHTS = ("logit", "softmax", "none")


def read_weight(weight: object) -> str:
    """The name of a weight, checked."""
    if isinstance(weight, str) and weight in WEIGHTS:
        return weight
    near = difflib.get_close_matches(str(weight), WEIGHTS, n=1)
    raise QuestionError(
        "unknown weight", got=f"weight={weight!r}", expected=", ".join(map(repr, WEIGHTS)),
        hint=f"weight={near[0]!r}" if near else None,
    )  # fmt: skip


def read_options(options: Mapping[str, Any]) -> None:
    """Refuses options that :func:`nrm.measure` does not have, or that are arguments of their own."""
    known = set(signature(measure).parameters) - {"model", "inputs", "target", "progress"}
    for name in options:
        if name not in known:
            raise unknown_option(name, options[name], known)


def refuse_batches(samples: object) -> None:
    """Refuses a loader, whose batches would pass for samples."""
    if isinstance(samples, DataLoader) and samples.batch_sampler is not None:
        raise QuestionError(
            "a loader gives batches", got="a DataLoader", expected="samples, one by one",
            hint="relmax(model, loader.dataset, ..., batch_size=16)",
        )  # fmt: skip


def weights(R: Measure, weight: str) -> Tensor:
    """What each sample's relevance is multiplied with: ``(batch,)``.

    The explained output itself (``"logit"``), its softmax probability (``"softmax"``), or nothing (``"none"``).
    """
    if weight != "softmax":
        return R.value if weight == "logit" else torch.ones_like(R.value)
    outputs, target = R.values(R.output), R.target
    if outputs.ndim != 2 or isinstance(target, str):
        raise QuestionError(
            "a softmax weight is the probability of one class", got=f"outputs of shape {tuple(outputs.shape[1:])}",
            expected="one axis of classes, and a class as the target", hint="weight='logit' or 'none'",
        )  # fmt: skip
    return outputs.softmax(1).gather(1, target[:, None])[:, 0]
