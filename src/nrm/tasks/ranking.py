"""How well scores rank what is true above what is not."""

from __future__ import annotations

import torch
from torch import Tensor

from nrm.errors import InputError


def auroc(scores: Tensor, truth: Tensor) -> float:
    """The area under the receiver operating characteristic: how well scores tell true entries from others.

    It is the probability that a true entry has a larger score than another one, each drawn at random; equal scores
    count half. 1 is a perfect order, 0.5 no order at all.

    >>> auroc(torch.tensor([0.9, 0.2, 0.2, 0.1]), torch.tensor([True, True, False, False]))
    0.875
    """
    if scores.shape != truth.shape or truth.dtype != torch.bool:
        raise InputError(
            "scores and truth do not match", got=f"{tuple(scores.shape)} and {tuple(truth.shape)} of {truth.dtype}",
            expected="two tensors of one shape, the second of torch.bool",
        )  # fmt: skip
    if bool(scores.isnan().any()):
        raise InputError("a score is not a number", got=f"{int(scores.isnan().sum())} of {scores.numel()}")
    positive, negative = int(truth.sum()), int((~truth).sum())
    if not positive or not negative:
        raise InputError(
            "there is nothing to be told apart", got=f"{positive} true entries, {negative} others",
            expected="at least one of each",
        )  # fmt: skip
    _, place, counts = scores.flatten().unique(return_inverse=True, return_counts=True)  # type: ignore[no-untyped-call]
    middle = counts.cumsum(0).double() - (counts.double() - 1) / 2  # the mean rank of those with this score
    above = middle[place][truth.flatten()].sum() - positive * (positive + 1) / 2
    return float(above) / (positive * negative)


__all__ = ["auroc"]
