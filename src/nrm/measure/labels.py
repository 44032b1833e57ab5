"""Names for classes, tokens and channels, used wherever something is shown."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nrm.errors import NrmError, QuestionError
from nrm.questions.frame import Frame

Names = tuple[str, ...] | tuple[tuple[str, ...], ...]
"""One name per channel or position, or one such list per sample."""


def read_labels(labels: Mapping[str, Any] | None, frame_of: Callable[[str], Frame]) -> dict[str, Names]:
    """The user's names by layer, checked against the layers they are for.

    Names are a sequence, a mapping from index to name (as ``config.id2label``), or one sequence per sample.
    """
    if labels is not None and not isinstance(labels, Mapping):
        raise QuestionError(
            "labels are given by layer", got=type(labels).__name__, expected='{"output": [...], "input": [...]}'
        )
    found: dict[str, Names] = {}
    for name, given in (labels or {}).items():
        try:
            found[name] = _read(name, given, frame_of(name))
        except NrmError as error:
            raise error.at(f"labels[{name!r}]") from None
    return found


def _read(name: str, given: Any, frame: Frame) -> Names:
    if isinstance(given, Mapping):
        channels = 0 if frame.layer_channel is None else frame.layer_shape[frame.layer_channel]
        return tuple(str(given.get(i, i)) for i in range(channels))
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise QuestionError("not a list of names", got=repr(given)[:80], expected="one text per channel or position")
    if given and all(isinstance(one, list | tuple) for one in given):
        if len(given) != frame.batch:
            raise QuestionError("names and samples do not match", got=f"{len(given)} lists", expected=str(frame.batch))
        return tuple(tuple(map(str, one)) for one in given)
    names = tuple(map(str, given))
    sizes = {*frame.layer_shape, math.prod(frame.layer_shape)}
    if frame.layer_shape and len(names) not in sizes:
        raise QuestionError(
            f"the names do not fit layer {name!r}", got=f"{len(names)} names",
            expected=f"as many as an axis of its shape {frame.layer_shape} has",
        )  # fmt: skip
    return names


def name_of(labels: Mapping[str, Names], layer: str, index: int, sample: int = 0) -> str | None:
    """The name of one channel or position of a layer, if it has one."""
    names = labels.get(layer)
    if names is None:
        return None
    own = names[sample] if names and isinstance(names[0], tuple) else names
    return str(own[index]) if index < len(own) else None
