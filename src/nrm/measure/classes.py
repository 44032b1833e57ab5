"""Classes by name: the outputs of a model, and the classes of a data set that are explained as these outputs.

Classes are matched by their names, never by their order: folders ``4`` and ``9`` are the outputs 4 and 9 of a network
for digits, not its outputs 0 and 1.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nrm.errors import QuestionError

LABEL = "label"
"""The target that stands for the class a data set says."""

RESERVED = ("logits", "softmax")
"""Targets that are words, and never the names of classes."""

SHOWN = 12
"""How many names an error lists."""


def output_names(labels: Any) -> dict[int, str]:
    """The names of a model's outputs by number, from the ``labels`` of :func:`nrm.measure`.

    >>> output_names({"output": ["cat", "dog"]}), output_names({"output": {3: "eel"}}), output_names(None)
    ({0: 'cat', 1: 'dog'}, {3: 'eel'}, {})
    """
    given = labels.get("output") if isinstance(labels, Mapping) else None
    if isinstance(given, Mapping):
        return {int(i): str(name) for i, name in given.items()}
    if given is None or isinstance(given, str) or not isinstance(given, Sequence):
        return {}
    if any(isinstance(one, list | tuple) for one in given):  # every sample has names of its own
        return {}
    return {i: str(name) for i, name in enumerate(given)}


def find_class(name: str, names: Mapping[int, str]) -> int:
    """The number of the class of this name: letter by letter, else without case, else by one of its synonyms.

    >>> find_class("great_white_shark", {2: "great white shark, white shark"})
    2
    """
    found = _search(name, names)
    if len(found) == 1:
        return found[0]
    if found:
        raise QuestionError(
            "several classes have this name", got=repr(name), expected=_listed([f"{i}: {names[i]}" for i in found]),
            hint="the number of the class",
        )  # fmt: skip
    raise QuestionError(
        "no such class", got=repr(name),
        expected=_listed([*names.values()]) if names else "a number: the outputs have no names",
        hint=", ".join(_close(name, names)) or None,
    )  # fmt: skip


def _close(name: str, names: Mapping[int, str]) -> list[str]:
    """Names that may have been meant."""
    near = difflib.get_close_matches(name.casefold(), [n.casefold() for n in names.values()], n=3)
    return [n for n in names.values() if n.casefold() in near or name.casefold() in n.casefold()][:3]


def _search(name: str, names: Mapping[int, str]) -> list[int]:
    """The classes that a name fits, by the strictest way in which it fits any."""
    ways: tuple[Callable[[str], set[str]], ...] = (_exactly, _loosely, _synonyms)
    for way in ways:
        wanted = way(name)
        found = [i for i, known in names.items() if wanted & way(known)]
        if found:
            return found
    return []


def _exactly(name: str) -> set[str]:
    return {name.strip()}


def _loosely(name: str) -> set[str]:
    return {" ".join(re.split(r"[\s_-]+", name.strip().casefold()))}


def _synonyms(name: str) -> set[str]:
    return {word for part in name.split(",") for word in _loosely(part)} - {""}


def named_target(target: Any, labels: Any, own: bool = False) -> Any:
    """A target with classes by number, where some are given by name: alone, in a list, or last in a tuple.

    ``own`` says whether samples have labels, so that ``"label"`` is a target.

    >>> named_target(["dog", 0], {"output": ["cat", "dog"]})
    [1, 0]
    """
    if isinstance(target, str):
        if target == LABEL and own:
            return target
        if target == LABEL:
            raise QuestionError(
                "a single prediction has no label", got="target='label'", expected="a class by number or name",
                hint="target='label' is for data sets: nrm.relmax, nrm.stream",
            )  # fmt: skip
        return target if target in RESERVED else _named(target, labels)
    if isinstance(target, tuple) and target and isinstance(target[-1], str | list):
        return (*target[:-1], named_target(target[-1], labels))
    if isinstance(target, list) and any(isinstance(one, str) for one in target):
        return [_named(one, labels) if isinstance(one, str) else one for one in target]
    return target


def _named(name: str, labels: Any) -> int:
    known = output_names(labels)
    if not _search(name, known):
        near = difflib.get_close_matches(name, RESERVED, n=1)
        close = [f"target={word!r}" for word in near] or [repr(one) for one in _close(name, known)]
        raise QuestionError(
            f"unknown target {name!r}",
            expected=f"'logits', 'softmax', a number, or {_listed([*known.values()])}" if known
            else "a number, 'logits' or 'softmax': the outputs have no names",
            hint=", ".join(close) or (None if known else 'labels={"output": [...]} gives them names'),
        )  # fmt: skip
    return find_class(name, known)


# ---- classes of a data set -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Classes:
    """The classes of a data set by their labels 0, 1, ..., and the number of the output that each of them is."""

    names: tuple[str, ...]
    outputs: tuple[int, ...]

    def of(self, label: int) -> int:
        """The output that a label stands for."""
        if not 0 <= label < len(self.outputs):
            raise QuestionError(
                "no such class", got=f"label {label}", expected=f"0 to {len(self.outputs) - 1}: {_listed(self.names)}"
            )
        return self.outputs[label]

    def describe(self) -> dict[str, int]:
        """The output of every class by its name."""
        return dict(zip(self.names, self.outputs, strict=True))


def is_label(target: Any) -> bool:
    """Whether a target is what the data set says."""
    return isinstance(target, str) and target == LABEL


def dataset_names(dataset: Any, strict: bool = True) -> tuple[str, ...] | None:
    """What a data set calls its classes, in the order of its labels; None if it does not say.

    Folders of images, torchvision's data sets (``.classes``) and those of Hugging Face (``features``) do, and subsets
    and concatenations of them. A concatenation of parts with different classes is refused if that matters (``strict``).
    """
    features = getattr(dataset, "features", None)
    if isinstance(features, Mapping):
        known = next((features[name] for name in (LABEL, "labels") if hasattr(features.get(name), "names")), None)
        return None if known is None or not known.names else tuple(map(str, known.names))
    classes = getattr(dataset, "classes", None)
    if isinstance(classes, list | tuple) and classes and all(isinstance(c, str | tuple) for c in classes):
        return tuple(c if isinstance(c, str) else ", ".join(map(str, c)) for c in classes)
    parts = getattr(dataset, "datasets", None)
    if isinstance(parts, list | tuple) and parts:
        return _common(parts, strict)
    inner = getattr(dataset, "dataset", None)
    return None if inner is None else dataset_names(inner, strict)


def _common(parts: Sequence[Any], strict: bool) -> tuple[str, ...] | None:
    """The names of the classes of a concatenation; one label means one class in all of its parts."""
    known = [dataset_names(part, strict) for part in parts]
    for names in known[1:]:
        if names != known[0] and not strict:
            return None
        if names != known[0]:
            raise QuestionError(
                "the parts of the data set number their classes differently",
                got="; ".join("no names" if names is None else _listed(names) for names in known[:3]),
                expected="the same classes in the same order", hint="one job for each part",
            )  # fmt: skip
    return known[0]


def match_classes(
    names: Sequence[str], labels: Any = None, given: Any = None, outputs: int | None = None
) -> tuple[int, ...]:
    """The output that each class of a data set is: by what the user gives, by the outputs' names, or by its number.

    ``names`` are what the data set calls its classes (a folder by its path, or the last part of it); ``labels`` those
    of :func:`nrm.measure`; ``given`` the user's ``class_names``: a mapping from the data set's names to outputs (by
    number or name), or what the data set calls the outputs, in their order. One way has to do for all classes; if
    none does, they are refused with both lists.

    >>> match_classes(["4", "9"], outputs=10), match_classes(["dog", "cat"], {"output": ["cat", "dog"]})
    ((4, 9), (1, 0))
    """
    known = output_names(labels)
    if given is not None:
        return _as_given(names, _read_given(given), known, outputs)
    if known:
        found = [_search(name, known) or _search(_last(name), known) for name in names]
        if all(len(one) == 1 for one in found):
            return tuple(one[0] for one in found)
        if any(found):
            raise _unmatched([n for n, one in zip(names, found, strict=True) if len(one) != 1], names, known, outputs)
    if all(_last(name).isdecimal() for name in names):
        numbers = tuple(int(_last(name)) for name in names)
        if outputs is None or max(numbers) < outputs:
            return numbers
    raise _unmatched(names, names, known, outputs)


def _last(name: str) -> str:
    return name.rpartition("/")[2]


def _read_given(given: Any) -> dict[str, Any]:
    """The outputs, by number or name, by what a data set calls them."""
    if isinstance(given, Mapping):
        found: dict[str, Any] = {}
        for key, value in given.items():
            if isinstance(key, int):  # an output's number, and what the data set calls it: one name or several
                found |= {str(name): key for name in (value if isinstance(value, list | tuple) else [value])}
            else:
                found[str(key)] = value
        return found
    if isinstance(given, Sequence) and not isinstance(given, str):
        return {str(name): i for i, name in enumerate(given)}
    raise QuestionError(
        "not names of classes", got=f"class_names={given!r}"[:120],
        expected="a mapping from the data set's names to outputs, or its names in the order of the outputs",
    )  # fmt: skip


def _as_given(
    names: Sequence[str], given: Mapping[str, Any], known: Mapping[int, str], outputs: int | None
) -> tuple[int, ...]:
    missing = [name for name in names if name not in given and _last(name) not in given]
    if missing:
        raise QuestionError(
            "class_names does not have all classes of the data set", got=_listed(missing),
            expected=f"for each of them an output; class_names has {_listed([*given])}",
        )  # fmt: skip
    found = []
    for name in names:
        value = given[name] if name in given else given[_last(name)]
        number = find_class(value, known) if isinstance(value, str) else value
        if type(number) is not int or number < 0 or (outputs is not None and number >= outputs):
            raise QuestionError(
                "no such output", got=f"class_names[{name!r}] = {value!r}", expected=_outputs_text(known, outputs)
            )
        found.append(number)
    return tuple(found)


def _unmatched(
    wrong: Sequence[str], names: Sequence[str], known: Mapping[int, str], outputs: int | None
) -> QuestionError:
    """The refusal, with both lists."""
    some = "" if len(wrong) == len(names) else f"; no single output for {_listed(wrong)}"
    return QuestionError(
        "the classes of the data set are not the model's outputs by name", got=f"{_listed(names)}{some}",
        expected=_outputs_text(known, outputs),
        hint='class_names={"name in the data set": OUTPUT, ...}'
             + ("" if known else ', or labels={"output": [...]} for the names of the outputs'),
    )  # fmt: skip


def _outputs_text(known: Mapping[int, str], outputs: int | None) -> str:
    if known:
        return f"the outputs {_listed([*known.values()])}"
    return "numbers of outputs, which have no names" + ("" if outputs is None else f": 0 to {outputs - 1}")


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:SHOWN])
    return shown if len(names) <= SHOWN else f"{shown} ... ({len(names)})"
