"""What tells one data set from another, without reading all of it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from nrm.jobs.answers import Failure
from nrm.jobs.datasets import Images, SampleOrFailure, is_map, load
from nrm.jobs.questions import fingerprint
from nrm.measure import Classes, dataset_names

PROBES = 32
"""Samples that are read and compared."""

SIZES = 1024
"""Files whose sizes are compared."""

BYTES = 2**28
"""Bytes of tensors up to which all of them are compared."""


def identify(dataset: Any, targets: Any, looked: Sequence[SampleOrFailure] = ()) -> dict[str, Any]:
    """The likeness of a data set: its length, a digest of what it lists, and digests of some of its samples.

    What is listed are the names of files with the sizes of some, tensors in memory, and the features and the size of a
    Hugging Face data set. The samples are spread evenly; of an iterable data set they are those that were looked at.
    """
    facts: dict[str, Any] = {"kind": type(dataset).__qualname__, "samples": None}
    if is_map(dataset):
        facts["samples"] = len(dataset)
        facts["content"] = fingerprint(_listing(dataset))
        looked = [load(dataset, i, None) for i in spread(len(dataset), PROBES)]
    facts["probes"] = [[sample.number, _digest(sample)] for sample in looked]
    names = dataset_names(dataset, strict=False)
    if names is not None:
        facts["classes"] = list(names)
    if isinstance(targets, Classes):
        facts["targets"] = targets.describe()
    else:
        facts["targets"] = fingerprint(targets) if isinstance(targets, Tensor | list) else repr(targets)
    return facts


def spread(count: int, most: int) -> list[int]:
    """At most so many numbers below ``count``, the first and the last among them.

    >>> spread(101, 5), spread(3, 5)
    ([0, 25, 50, 75, 100], [0, 1, 2])
    """
    return sorted({round(i * (count - 1) / max(1, most - 1)) for i in range(most)}) if count else []


def _listing(dataset: Any) -> Any:
    """What a data set says of itself at little cost."""
    if isinstance(dataset, Images):
        return _files(dataset.files, dataset.folder)
    if isinstance(dataset, Tensor):
        return _tensors([dataset])
    parts = getattr(dataset, "datasets", None)
    if isinstance(parts, list | tuple):  # torch's ConcatDataset and StackDataset
        return [_listing(part) for part in parts]
    if hasattr(dataset, "indices") and hasattr(dataset, "dataset"):  # torch's Subset
        return [[int(i) for i in dataset.indices], _listing(dataset.dataset)]
    tensors = getattr(dataset, "tensors", None)
    if isinstance(tensors, list | tuple) and all(isinstance(t, Tensor) for t in tensors):  # torch's TensorDataset
        return _tensors(tensors)
    if hasattr(dataset, "features") and hasattr(dataset, "data"):  # Hugging Face
        return [repr(dataset.features), getattr(dataset.data, "nbytes", None)]
    pairs = getattr(dataset, "samples", None)
    if isinstance(pairs, list) and all(isinstance(p, tuple) and isinstance(p[0], str) for p in pairs):  # torchvision
        root = Path(os.fspath(getattr(dataset, "root", "")))
        return [_files([os.path.relpath(name, root) for name, _ in pairs], root), [label for _, label in pairs]]
    return None


def _files(names: Sequence[str], folder: Path) -> list[Any]:
    some = [folder / names[i] for i in spread(len(names), SIZES)]
    return [list(names), [path.stat().st_size if path.exists() else None for path in some]]


def _tensors(tensors: Sequence[Tensor]) -> list[Any]:
    size = sum(t.numel() * t.element_size() for t in tensors)
    return list(tensors) if size <= BYTES else [(tuple(t.shape), str(t.dtype)) for t in tensors]


def _digest(loaded: SampleOrFailure) -> str:
    if isinstance(loaded, Failure):
        return "unreadable"
    return fingerprint([_plain(loaded.input), loaded.label])


def _plain(value: Any) -> Any:
    return {str(k): _plain(v) for k, v in value.items()} if hasattr(value, "items") else value
