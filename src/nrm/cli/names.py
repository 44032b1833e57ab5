"""Names of classes from files: what the outputs of a model are called, and what a data set calls them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nrm.errors import InputError
from nrm.measure import dataset_names

WHAT = "the names of the classes cannot be read"


def read_labels(path: Path) -> list[str] | dict[int, str]:
    """Names of outputs: one per line, or JSON: a list, or names (or ``[id, name]``) by index."""
    if path.suffix != ".json":
        return _lines(path)
    found = _json(path)
    try:
        if isinstance(found, list):
            return [str(name) for name in found]
        return {int(key): str(name[-1] if isinstance(name, list) else name) for key, name in found.items()}
    except (ValueError, AttributeError, IndexError) as error:
        raise InputError(WHAT, got=f"{path}: {error}", expected="a list of names, or names by index") from error


def read_class_names(path: Path | None, labels: Path | None, dataset: Any) -> Any:
    """What a data set calls the outputs: the ``class_names`` of :func:`nrm.relmax`.

    From a file of its own: names in the order of the outputs (lines, or a JSON list), or JSON with outputs by name
    (``{"cats": 281}``), or ``[id, name]`` by number. Without one, from the file of labels if that has the data set's
    ids, as ImageNet's lists of classes have.
    """
    if path is None:
        ids = {} if labels is None else _ids(labels)
        called = {name for both in ids.values() for name in both}
        own = dataset_names(dataset, strict=False) or ()
        return ids if own and all(name in called or name.rpartition("/")[2] in called for name in own) else None
    if path.suffix != ".json":
        return _lines(path)
    found = _json(path)
    if isinstance(found, list):
        return [str(name) for name in found]
    if not isinstance(found, Mapping):
        raise InputError(
            WHAT, got=str(path), expected='{"cats": 281, "dogs": 207}, or a list in the order of the outputs'
        )
    return _ids(path) or dict(found)


def _ids(path: Path) -> dict[int, list[str]]:
    """Ids and names by the number of the output, if a file has them."""
    found = _json(path) if path.suffix == ".json" else None
    if not isinstance(found, Mapping) or not all(str(k).isdecimal() and isinstance(v, list) for k, v in found.items()):
        return {}
    return {int(key): [str(name) for name in value] for key, value in found.items()}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(WHAT, got=f"{path}: {type(error).__name__}") from error


def _lines(path: Path) -> list[str]:
    names = _text(path).splitlines()
    if not any(names):
        raise InputError("the file has no names", got=str(path), expected="one name per line")
    return names


def _json(path: Path) -> Any:
    try:
        return json.loads(_text(path))
    except ValueError as error:
        raise InputError(WHAT, got=f"{path}: {error}", expected="JSON") from error
