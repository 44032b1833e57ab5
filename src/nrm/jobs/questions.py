"""The questions of a dataset job: written without a measure, asked to that of every sample."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from torch import Tensor

from nrm.errors import QuestionError
from nrm.questions import Formula, Layer, Partition, Question, Set, Stack, spans_steps

SinglePart = Layer | Partition | Set


def read_asked(given: Any) -> Question:
    """What a job asks of every sample: a question, a layer, partition, set or formula, or a tuple of them."""
    if isinstance(given, Question):
        return given
    parts = given if isinstance(given, tuple) else (given,)
    for part in parts or (None,):
        if not isinstance(part, SinglePart | Stack | Formula):
            name = part if isinstance(part, str) else "conv"
            raise QuestionError(
                "not a question", got=repr(given)[:120], expected="layers, partitions or sets, or a tuple of them",
                hint=f"nrm.layer({name!r}).channels, or (a.channels, b.channels)",
            )  # fmt: skip
    return Question(parts)


def only_part(question: Question) -> SinglePart | None:
    """The only part of a question about one tensor."""
    part = question.asked[0]
    return part if len(question.asked) == 1 and isinstance(part, SinglePart) and not spans_steps(part) else None


def joined_sets(question: Question) -> tuple[Set, ...]:
    """The sets of a question about several of them, each of one tensor: together they are one block."""
    sets = tuple(part for part in question.asked if isinstance(part, Set) and not spans_steps(part))
    return sets if 1 < len(sets) == len(question.asked) else ()


def digest_of(question: Question) -> str:
    """A digest that equal questions have in every process, masks and labels included."""
    plain = replace(question, arguments=()) == Question(())  # whatever else a question may say
    return fingerprint(question.arguments if plain else question)


def fingerprint(value: Any) -> str:
    """A digest of values made of texts, numbers, tensors, containers and dataclasses.

    >>> fingerprint({"a": [1, 2.0]}) == fingerprint({"a": [1, 2.0]}) != fingerprint({"a": [1, 2]})
    True
    """
    digest = hashlib.blake2b(digest_size=16)
    _feed(digest, value)
    return digest.hexdigest()


def _feed(digest: Any, value: Any) -> None:
    digest.update(type(value).__qualname__.encode() + b"(")
    if isinstance(value, Tensor):
        digest.update(f"{tuple(value.shape)}{value.dtype}".encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            _feed(digest, key)
            _feed(digest, inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            _feed(digest, inner)
    elif is_dataclass(value):
        for f in fields(value):
            if f.compare or isinstance(getattr(value, f.name), Tensor):
                _feed(digest, getattr(value, f.name))
    elif hasattr(value, "__array__"):
        data = value.__array__()
        digest.update(f"{data.shape}{data.dtype}".encode() + data.tobytes())
    elif callable(value):
        digest.update(
            f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', repr(type(value)))}".encode()
        )
    else:
        digest.update(repr(value).encode())
    digest.update(b")")
