"""Samples of a data set: what is the input, what is the label, and how some of them become a batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import default_collate

from nrm.devices import home_of
from nrm.errors import QuestionError

LABELS = ("label", "labels")


def split_label(item: Any) -> tuple[Any, int | None]:
    """The input and the label of one sample: a pair (input, label), or a mapping with an entry ``"label"``.

    >>> split_label(("x", 3)), split_label({"ids": [1], "label": 2}), split_label("x")
    (('x', 3), ({'ids': [1]}, 2), ('x', None))
    """
    if isinstance(item, Mapping):
        name = next((name for name in LABELS if name in item and _is_class(item[name])), None)
        if name is None:
            return item, None
        rest = {key: value for key, value in item.items() if key != name}
        return rest, int(item[name])
    if isinstance(item, tuple | list) and len(item) == 2 and _is_class(item[1]):
        return item[0], int(item[1])
    return item, None


def _is_class(label: Any) -> bool:
    if isinstance(label, int) and not isinstance(label, bool):
        return True
    return getattr(label, "ndim", None) == 0 and "int" in str(label.dtype)


def read_batch(batch: Any) -> tuple[Any, Tensor | None]:
    """The inputs and the labels of a batch that a loader gives: inputs, or a pair (inputs, labels)."""
    if isinstance(batch, Mapping):
        name = next((name for name in LABELS if name in batch and _are_classes(batch[name])), None)
        if name is None:
            return batch, None
        return {key: value for key, value in batch.items() if key != name}, torch.as_tensor(batch[name])
    if isinstance(batch, tuple | list) and len(batch) == 2 and _are_classes(batch[1]):
        inputs = batch[0]
        return (tuple(inputs) if isinstance(inputs, list) else inputs), torch.as_tensor(batch[1])
    return (tuple(batch) if isinstance(batch, list) else batch), None


def _are_classes(labels: Any) -> bool:
    if isinstance(labels, list | tuple):
        return bool(labels) and all(_is_class(label) for label in labels)
    return isinstance(labels, Tensor) and labels.ndim == 1 and not labels.is_floating_point()


def collate(inputs: Sequence[Any]) -> Any:
    """Inputs of single samples as the inputs of a batch."""
    try:
        together = default_collate(list(inputs))
    except (RuntimeError, TypeError) as error:
        raise QuestionError(
            "the samples cannot be put into one batch", got=str(error).splitlines()[0][:120],
            expected="tensors, numbers, or mappings or tuples of them, without a sample axis",
            hint="a transform of the data set that gives tensors",
        ) from None  # fmt: skip
    return tuple(together) if isinstance(together, list) else together


def split_batch(batch: Any) -> Iterator[Any]:
    """The samples of a batch that a loader gives: inputs without a sample axis, in pairs with labels where it has some.

    >>> list(split_batch((torch.tensor([[1.0], [2.0]]), torch.tensor([3, 4]))))
    [(tensor([1.]), 3), (tensor([2.]), 4)]
    """
    inputs, labels = read_batch(batch)
    counts = {len(tensor) for tensor in _tensors(inputs) if tensor.ndim}
    if len(counts) != 1:
        raise QuestionError(
            "the batch cannot be taken apart into samples", got=type(inputs).__name__,
            expected="tensors, or mappings or tuples of them, with the samples first",
            hint="nrm.stream explains batches as they are; nrm.measure explains one",
        )  # fmt: skip
    for i in range(*counts):
        yield _pick(inputs, i) if labels is None else (_pick(inputs, i), int(labels[i]))


def _tensors(inputs: Any) -> Iterator[Tensor]:
    if isinstance(inputs, Tensor):
        yield inputs
    elif isinstance(inputs, Mapping | tuple | list):
        for value in inputs.values() if isinstance(inputs, Mapping) else inputs:
            yield from _tensors(value)


def _pick(inputs: Any, i: int) -> Any:
    if isinstance(inputs, Mapping):
        return {key: _pick(value, i) for key, value in inputs.items()}
    if isinstance(inputs, tuple) or (isinstance(inputs, list) and any(isinstance(value, Tensor) for value in inputs)):
        return tuple(_pick(value, i) for value in inputs)
    return inputs[i]


def on_device(inputs: Any, model: nn.Module) -> Any:
    """Inputs on the device of a model."""
    return inputs if next(model.parameters(), None) is None else _on(inputs, home_of(model))


def _on(inputs: Any, device: torch.device) -> Any:
    if isinstance(inputs, Tensor):
        return inputs.to(device)
    if isinstance(inputs, Mapping):
        return {key: _on(value, device) for key, value in inputs.items()}
    return tuple(_on(value, device) for value in inputs) if isinstance(inputs, tuple) else inputs
