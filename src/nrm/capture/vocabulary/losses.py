"""Losses and distances, run as what they are made of."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nrm.capture.vocabulary.composed import composes


def _over(loss: Tensor, reduction: str = "mean") -> Tensor:
    """The losses of all entries as they are, or as one number."""
    if reduction == "none":
        return loss
    return loss.sum() if reduction == "sum" else loss.mean()


@composes("l1_loss")
def _l1(input: Tensor, target: Tensor, size_average: Any = None, reduce: Any = None, reduction: str = "mean", *_: Any,
        **__: Any) -> Tensor:  # fmt: skip
    return _over((input - target).abs(), reduction)


@composes("mse_loss")
def _mse(input: Tensor, target: Tensor, size_average: Any = None, reduce: Any = None, reduction: str = "mean", *_: Any,
         **__: Any) -> Tensor:  # fmt: skip
    return _over((input - target).square(), reduction)


@composes("smooth_l1_loss")
def _smooth_l1(input: Tensor, target: Tensor, size_average: Any = None, reduce: Any = None, reduction: str = "mean",
               beta: float = 1.0) -> Tensor:  # fmt: skip
    """A square up to ``beta``, over twice of it, then straight; both parts as functions of the size."""
    if beta == 0:
        return _over((input - target).abs(), reduction)
    return _over(_bent((input - target).abs(), beta) / beta, reduction)


@composes("huber_loss")
def _huber(input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0, *_: Any, **__: Any) -> Tensor:
    return _over(_bent((input - target).abs(), delta), reduction)


def _bent(size: Tensor, knee: float) -> Tensor:
    """``size^2 / 2`` up to the knee, a straight line behind it."""
    below = size.clamp(max=knee)
    return below.square() * 0.5 + (size - below) * knee


@composes("kl_div")
def _kl_div(input: Tensor, target: Tensor, size_average: Any = None, reduce: Any = None, reduction: str = "mean",
            log_target: bool = False) -> Tensor:  # fmt: skip
    share = target.exp() if log_target else target
    own = target * share if log_target else torch.special.xlogy(target, target)
    loss = own - share * input
    return loss.sum() / len(input) if reduction == "batchmean" else _over(loss, reduction)


@composes("poisson_nll_loss")
def _poisson(input: Tensor, target: Tensor, log_input: bool = True, full: bool = False, size_average: Any = None,
             eps: float = 1e-8, reduce: Any = None, reduction: str = "mean") -> Any:  # fmt: skip
    if full:
        return NotImplemented
    return _over(input.exp() - target * input if log_input else input - target * (input + eps).log(), reduction)


@composes("soft_margin_loss")
def _soft_margin(input: Tensor, target: Tensor, size_average: Any = None, reduce: Any = None,
                 reduction: str = "mean") -> Tensor:  # fmt: skip
    return _over(F.softplus(-target * input), reduction)


@composes("hinge_embedding_loss")
def _hinge(input: Tensor, target: Tensor, margin: float = 1.0, size_average: Any = None, reduce: Any = None,
           reduction: str = "mean") -> Tensor:  # fmt: skip
    far = torch.where(target == 1, torch.zeros_like(input), (margin - input).clamp(min=0))
    return _over(torch.where(target == -1, torch.zeros_like(input), input) + far, reduction)


@composes("binary_cross_entropy_with_logits")
def _binary_logits(
    input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: Any = None, reduce: Any = None,
    reduction: str = "mean", pos_weight: Tensor | None = None,
) -> Tensor:  # fmt: skip
    positive = target if pos_weight is None else target * pos_weight
    loss = -(positive * F.logsigmoid(input)) - (1 - target) * F.logsigmoid(-input)
    return _over(loss if weight is None else loss * weight, reduction)


@composes("binary_cross_entropy")
def _binary(input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: Any = None, reduce: Any = None,
            reduction: str = "mean") -> Tensor:  # fmt: skip
    loss = -(target * input.log().clamp(min=-100)) - (1 - target) * (1 - input).log().clamp(min=-100)
    return _over(loss if weight is None else loss * weight, reduction)


@composes("multilabel_soft_margin_loss")
def _multilabel(input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: Any = None,
                reduce: Any = None, reduction: str = "mean") -> Tensor:  # fmt: skip
    loss: Tensor = _binary_logits(input, target, weight, reduction="none")
    return _over(torch.mean(loss, -1), reduction)


@composes("cross_entropy")
def _cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: Any = None, ignore_index: int = -100,
    reduce: Any = None, reduction: str = "mean", label_smoothing: float = 0.0,
) -> Any:  # fmt: skip
    axis = 0 if input.ndim == 1 else 1
    logs = input.log_softmax(axis)
    if target.is_floating_point():
        loss = -(logs * target if weight is None else logs * target * weight.view(-1, *(1,) * (input.ndim - axis - 1)))
        whole = loss.sum(axis)
        return NotImplemented if label_smoothing else whole if reduction == "none" else (
            whole.sum() if reduction == "sum" else whole.sum() / max(whole.numel(), 1))  # fmt: skip
    return NotImplemented if label_smoothing else _nll(logs, target, weight, None, ignore_index, None, reduction)


@composes("nll_loss")
def _nll(
    input: Tensor, target: Tensor, weight: Tensor | None = None, size_average: Any = None, ignore_index: int = -100,
    reduce: Any = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    axis = 0 if input.ndim == 1 else 1
    counted = target != ignore_index
    known = torch.where(counted, target, torch.zeros_like(target))
    share = counted.to(input.dtype) if weight is None else weight[known] * counted
    loss = -(input.gather(axis, known.unsqueeze(axis)).squeeze(axis) * share)
    return loss.sum() / share.sum() if reduction == "mean" else _over(loss, reduction)


# ---- distances -------------------------------------------------------------------------------------------------------


@composes("pairwise_distance")
def _pairwise(x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(x1 - x2 + eps, p, -1, keepdim)
    return length


@composes("cdist")
def _cdist(x1: Tensor, x2: Tensor, p: float = 2.0, *_: Any, **__: Any) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(x1.unsqueeze(-2) - x2.unsqueeze(-3), p, -1)
    return length


@composes("cosine_similarity")
def _cosine(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    one, other = (x / torch.linalg.vector_norm(x, 2, dim, True).clamp(min=eps) for x in (x1, x2))
    product: Tensor = one * other
    return product.sum(dim)


@composes("triplet_margin_loss")
def _triplet(
    anchor: Tensor, positive: Tensor, negative: Tensor, margin: float = 1.0, p: float = 2, eps: float = 1e-6,
    swap: bool = False, size_average: Any = None, reduce: Any = None, reduction: str = "mean",
) -> Tensor:  # fmt: skip
    near, far = (F.pairwise_distance(anchor, other, p, eps) for other in (positive, negative))
    if swap:
        far = torch.minimum(far, F.pairwise_distance(positive, negative, p, eps))
    return _over((near - far + margin).clamp(min=0), reduction)
