"""References of a contrast: what an input is compared with."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nrm.capture import is_record, tensors_in
from nrm.errors import QuestionError

WORDS = ("zeros", "blur")
"""References that are made from the input itself."""
FROM_DATA = ("mean", "shuffle")
"""References that are made from many samples."""
BLUR = 10.0
"""An image is blurred by a Gaussian whose deviation is its shorter side over this number."""


def read_reference(inputs: Any, against: Any, batch_dim: int | None) -> Any:
    """The reference in the form of the inputs: a word is one made from them, one sample is repeated for all."""
    if isinstance(against, str):
        return _from_word(against, inputs)
    return _fitted(inputs, against, batch_dim, "the reference")


def reference(kind: str, data: Any, *, seed: int = 0) -> Any:
    """A reference made from data, a batch of samples along the first axis.

    ``"mean"`` is the mean sample, a batch of one: what a contrast leaves out is what all samples have in common.
    ``"shuffle"`` gives every sample another one of the batch, chosen by ``seed`` (no sample is its own reference).
    ``"zeros"`` and ``"blur"`` are what ``against=`` makes of these words, one reference for every sample, to look at.
    ``data`` is a tensor, or a tuple or mapping of tensors.

    >>> reference("mean", torch.tensor([[1.0, 2.0], [3.0, 6.0]]))
    tensor([[2., 4.]])
    >>> reference("shuffle", torch.tensor([[1.0], [2.0], [3.0]])).shape
    torch.Size([3, 1])
    """
    if kind in WORDS:
        return _from_word(kind, data)
    if kind not in FROM_DATA:
        known = (*FROM_DATA, *WORDS)
        near = difflib.get_close_matches(str(kind), known, n=1)
        raise QuestionError(
            f"unknown reference {kind!r}", expected=", ".join(map(repr, known)),
            hint=f"nrm.reference({near[0]!r}, data)" if near else None,
        )  # fmt: skip
    tensors = tensors_in(data)
    count = len(tensors[0]) if tensors and tensors[0].ndim else 0
    if not count or any(t.ndim == 0 or len(t) != count for t in tensors):
        raise QuestionError("not a batch of samples", got=type(data).__name__, expected="samples along the first axis")
    if kind == "mean":
        return changed(data, _mean)
    if count < 2:
        raise QuestionError("one sample has no other to be shuffled with", got="a batch of one", expected="two or more")
    order = _shuffled(count, seed)
    return changed(data, lambda t: t[order.to(t.device)])


def _mean(t: Tensor) -> Tensor:
    if not t.is_floating_point():
        raise QuestionError("integers have no mean", got=str(t.dtype), hint="nrm.reference('shuffle', data)")
    return t.mean(0, keepdim=True)


def _shuffled(count: int, seed: int) -> Tensor:
    """An order in which no sample is at its own place: a random cycle through all of them."""
    around = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    order = torch.empty_like(around)
    order[around] = around.roll(1)
    return order


def changed(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The tensors of a value changed, in the form of the value."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {k: changed(v, change) for k, v in value.items()}
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)(changed(v, change) for v in value)
    return value


def _from_word(word: str, inputs: Any) -> Any:
    if word not in WORDS:
        near = difflib.get_close_matches(word, WORDS, n=1)
        raise QuestionError(
            f"unknown reference {word!r}", expected=f"{', '.join(map(repr, WORDS))}, or an input to compare with",
            hint=f"against={near[0]!r}" if near else "nrm.reference('mean', data) makes one from data",
        )  # fmt: skip
    floats = [t for t in tensors_in(inputs) if t.is_floating_point()]
    if not floats or is_record(inputs):
        raise QuestionError(
            f"there is no reference {word!r} for these inputs", got="integers" if not floats else type(inputs).__name__,
            expected="float tensors", hint="against=OTHER, an input to compare with, in the form of this one",
        )  # fmt: skip
    if word == "zeros":
        return changed(inputs, lambda t: torch.zeros_like(t) if t.is_floating_point() else t)
    return changed(inputs, lambda t: _blurred(t) if t.is_floating_point() else t)


def _blurred(image: Tensor) -> Tensor:
    """Images ``(samples, channels, height, width)`` blurred by a Gaussian, channel by channel; edges are mirrored."""
    if image.ndim != 4 or min(image.shape[2:]) < 2:
        raise QuestionError(
            "only images can be blurred", got=f"shape {tuple(image.shape)}",
            expected="(samples, channels, height, width)", hint="against='zeros'",
        )  # fmt: skip
    sigma = max(1.0, min(image.shape[2:]) / BLUR)
    found = image
    for axis in (2, 3):
        reach = min(int(3 * sigma + 0.5), image.shape[axis] - 1)
        at = torch.arange(-reach, reach + 1, dtype=image.dtype, device=image.device)
        weight = torch.exp(-0.5 * (at / sigma) ** 2)
        pad = (0, 0, reach, reach) if axis == 2 else (reach, reach, 0, 0)
        kernel = (weight / weight.sum()).view(1, 1, *((-1, 1) if axis == 2 else (1, -1)))
        wide = F.pad(found, pad, mode="reflect")
        found = F.conv2d(wide.flatten(0, 1)[:, None], kernel).view(image.shape)
    return found


def _fitted(given: Any, other: Any, batch_dim: int | None, where: str) -> Any:
    if isinstance(given, Tensor):
        return _fitted_tensor(given, other, batch_dim, where)
    if isinstance(given, Mapping):
        if not isinstance(other, Mapping) or set(given) != set(other):
            raise _unlike(given, other, where)
        return {k: _fitted(v, other[k], batch_dim, f"{where}[{k!r}]") for k, v in given.items()}
    if isinstance(given, list | tuple) and not hasattr(given, "_fields"):
        if not isinstance(other, list | tuple) or len(given) != len(other):
            raise _unlike(given, other, where)
        pairs = enumerate(zip(given, other, strict=True))
        return type(given)(_fitted(v, o, batch_dim, f"{where}[{k}]") for k, (v, o) in pairs)
    if is_record(given) and type(other) is not type(given):
        raise _unlike(given, other, where)
    return other


def _fitted_tensor(given: Tensor, other: Any, batch_dim: int | None, where: str) -> Tensor:
    if not isinstance(other, Tensor):
        raise _unlike(given, other, where)
    name = where.rpartition("[")[2].strip("]'")
    if name.endswith("mask") and given.shape == other.shape and not torch.equal(given, other.to(given)):
        raise QuestionError(
            "input and reference are padded in different ways", where=where,
            got=f"{int((given != other.to(given)).sum())} positions that are masked in one of them only",
            expected="the same positions in both", hint=ALIGN,
        )  # fmt: skip
    if other.shape == given.shape:
        return other
    wide = [n if d == batch_dim else m for d, (n, m) in enumerate(zip(given.shape, other.shape, strict=False))]
    one = batch_dim is not None and other.ndim == given.ndim > batch_dim and other.shape[batch_dim] == 1
    if one and wide == list(given.shape):
        return other.expand(wide)
    raise QuestionError(
        "the reference does not have the shape of the input", where=where, got=f"shape {tuple(other.shape)}",
        expected=f"shape {tuple(given.shape)}, or one sample of it for all", hint=ALIGN,
    )  # fmt: skip


ALIGN = "align them, so that every position has its counterpart; texts: as many tokens, and the same padding"


def _unlike(given: Any, other: Any, where: str) -> QuestionError:
    return QuestionError(
        "the reference is not made as the input is", where=where, got=type(other).__name__,
        expected=f"a {type(given).__name__} with the same parts",
    )  # fmt: skip


def many(against: Any) -> Sequence[Any] | None:
    """The references of a list of several; None if it is one."""
    if not isinstance(against, list):
        return None
    if not against:
        raise QuestionError("a list without references", got="[]", expected="one reference or more")
    return against
