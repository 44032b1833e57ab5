"""What a census asks about: a model with inputs that it takes, and how it is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

SIZE = 16
"""The width of most networks that a census makes."""


@dataclass(frozen=True, eq=False)
class Subject:
    """A model, its inputs, others of the same shapes, and what is explained of it."""

    model: nn.Module
    inputs: Any
    others: Any
    output: Any = None
    batch_dim: int | None = 0


@dataclass(frozen=True, eq=False)
class CensusCase:
    """A line of a list: its name, and how its subject is made. Nothing is made before ``make`` is called."""

    of: str
    name: str
    make: Callable[[], Subject]


class NotMadeError(Exception):
    """No small model of this kind could be made and run; this says nothing about relevance."""


Cases = Sequence[CensusCase]
