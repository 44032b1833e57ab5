"""Questions about several steps of a recurrent layer at once.

A step is a tensor of its own, so a question about many of them is many questions: an axis of steps has one answer per
step, and passing through any of some steps is inclusion and exclusion over passing through all of some.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from nrm.errors import QuestionError
from nrm.questions.frame import pick
from nrm.questions.values import Layer, Partition, Set

MANY = 8
"""So many steps can be asked for as a union; each doubles the number of questions."""


def spans_steps(argument: Any) -> bool:
    """Whether an argument is about several steps of a layer."""
    if isinstance(argument, Partition):
        return argument.kind == "steps"
    return isinstance(argument, Set) and argument.expression[0] == "steps"


def steps_of(partition: Partition, count: int) -> torch.Tensor:
    """The steps of a partition into steps, in the shape of its axes."""
    numbers = torch.arange(count)
    for choice in partition.chosen:
        numbers = pick(numbers, choice, f"{partition} ({count} steps)", signed=True)
    return numbers


def any_step(chosen: Set, count: int) -> list[tuple[float, list[Set]]]:
    """Passing through any of some steps, as a weighted sum of passing through all of some."""
    steps = sorted({_step(i, count, chosen) for i in chosen.expression[1][1:]})
    if len(steps) > MANY:
        raise QuestionError(
            "passing through any of so many steps is not one question", got=f"{len(steps)} steps: {chosen}"[:120],
            expected=f"up to {MANY}", hint="layer.steps[...] is an axis with one answer per step",
        )  # fmt: skip
    layer = chosen.layer
    return [
        (-1.0 if size % 2 == 0 else 1.0, [layer.step(t) for t in subset])
        for size in range(1, len(steps) + 1)
        for subset in itertools.combinations(steps, size)
    ]


def per_sample(chosen: Set, samples: int) -> list[Set] | None:
    """One set of steps per sample, or None if all samples share one."""
    items = chosen.expression[1][1:]
    nested = [isinstance(i, tuple) and i[0] == "any" for i in items]
    if not any(nested):
        return None
    if not all(nested) or len(items) != samples:
        raise QuestionError(
            f"the steps do not fit the samples at layer {chosen.layer.name!r}", got=f"{len(items)} entries",
            expected=f"{samples} lists, one set of steps per sample",
        )  # fmt: skip
    return [Set(chosen.layer, ("steps", item), chosen.sample) for item in items]


def replaced(asked: Sequence[Any], position: int, by: Sequence[Layer | Set | Partition]) -> list[Any]:
    """The same question with other arguments in place of one."""
    return [*asked[:position], *by, *asked[position + 1 :]]


def _step(index: Any, count: int, chosen: Set) -> int:
    if not isinstance(index, int) or not -count <= index < count:
        raise QuestionError(
            f"layer {chosen.layer.name!r} has no such step", got=str(index), expected=f"0 to {count - 1}"
        )
    return index % count
