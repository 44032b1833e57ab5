"""Questions with parts of several layers on one axis: put together from questions about each of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from nrm.errors import QuestionError
from nrm.questions import Stack


class Asked(Protocol):
    """What is needed of a measure."""

    def __call__(self, *arguments: Any, given: Any = None) -> Tensor: ...

    def _axes(self, argument: Any) -> int: ...

    def _graph(self, rows: Stack, columns: Stack) -> Tensor: ...


def answer_stacked(R: Asked, arguments: Sequence[Any], conditions: Sequence[Any]) -> Tensor:
    """The answer to a question with stacks among its arguments."""
    if any(isinstance(c, Stack) for c in conditions):
        raise QuestionError(
            "a stack is no condition", got=", ".join(str(c) for c in conditions),
            hint="given=s.partitions[0], one layer at a time: its blocks are alternatives",
        )  # fmt: skip
    if len(arguments) == 2 and not conditions and all(isinstance(a, Stack) for a in arguments):
        return R._graph(*arguments)
    place = next(n for n, a in enumerate(arguments) if isinstance(a, Stack))
    before = sum(R._axes(a) for a in arguments[:place]) + 1
    parts = []
    for partition in arguments[place].partitions:
        table = R(*arguments[:place], partition, *arguments[place + 1 :], given=conditions or None)
        wide = R._axes(partition)
        parts.append(table.flatten(before, before + wide - 1) if wide else table.unsqueeze(before))
    return torch.cat(parts, before)
