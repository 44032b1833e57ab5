"""How a tensor was computed, so that it can be computed again from other values.

An op says what a call means for relevance, and may hold things constant that the call computed from its inputs: the
statistics of a norm, the weights of attention, the choice of a maximum. Whoever changes a value and asks what the
network makes of it needs the call itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter


@dataclass(frozen=True)
class At:
    """Stands for the tensor of a node among the arguments of a call."""

    node: int


@dataclass(frozen=True, eq=False)
class Recall:
    """One result of a call whose arguments are constants, nodes (:class:`At`) and results of other calls.

    Other calls are those whose results carry no relevance and depend on the input all the same: masks, places.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    named: dict[str, Any]
    pick: Callable[[Any], Tensor]

    @cached_property
    def reads(self) -> tuple[int, ...]:
        """The nodes that the result depends on, directly or through other calls."""
        found: dict[int, None] = {}
        for leaf in leaves((self.arguments, self.named)):
            found.update(dict.fromkeys((leaf.node,) if isinstance(leaf, At) else leaf.reads))
        return tuple(found)

    @property
    def is_derived(self) -> bool:
        """Whether results of other calls are among the arguments."""
        return any(isinstance(leaf, Recall) for leaf in leaves((self.arguments, self.named)))

    def run(self, values: Mapping[int, Tensor]) -> Tensor:
        """The result for these values of the nodes."""
        args, named = (_filled(part, values) for part in (self.arguments, self.named))
        return self.pick(self.function(*args, **named))

    def run_stack(self, values: Mapping[int, Tensor]) -> Tensor:
        """Values again from other ones, for stacks ``(K or 1, *shape)`` of values: ``(K, *result shape)``."""
        given = [values[i] for i in self.reads]
        stack = max(v.shape[0] for v in given)
        if stack == 1:
            return self._one(*(v[0] for v in given))[None]
        single = [v.shape[0] == 1 for v in given]
        flat = [v[0] if alone else v for v, alone in zip(given, single, strict=True)]
        try:
            mapped: Tensor = torch.vmap(self._one, tuple(None if alone else 0 for alone in single))(*flat)
        except RuntimeError:  # not every function of torch can be mapped; one by one they can all be run
            return torch.stack([self._one(*row) for row in _rows(flat, single, stack)])
        return mapped

    def _one(self, *given: Tensor) -> Tensor:
        return self.run(dict(zip(self.reads, given, strict=True)))


def recalled(
    function: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any], pick: Callable[[Any], Tensor],
    mark: Callable[[Tensor], Any],
) -> Recall:  # fmt: skip
    """A call as it is remembered; ``mark`` gives what stands for a tensor."""
    return Recall(function, _marked(arguments, mark), _marked(named, mark), pick)


def _marked(value: Any, mark: Callable[[Tensor], Any]) -> Any:
    return mapped(value, lambda leaf: mark(leaf) if isinstance(leaf, Tensor) else leaf)


def _filled(value: Any, values: Mapping[int, Tensor]) -> Any:
    def fill(leaf: Any) -> Any:
        if isinstance(leaf, At):
            return values[leaf.node]
        return leaf.run(values) if isinstance(leaf, Recall) else leaf

    return mapped(value, fill)


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Nested tuples, lists and dicts with every leaf changed."""
    if type(value) in LEAVES:
        return change(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(v, change) for v in value))
    if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
        return type(value)(mapped(v, change) for v in value)
    if isinstance(value, dict):
        return {k: mapped(v, change) for k, v in value.items()}
    return change(value)


LEAVES = {Tensor, Parameter, int, float, bool, str, type(None), torch.Size, At}
"""Types of most leaves."""


def leaves(value: Any) -> list[At | Recall]:
    """What stands for tensors among the arguments of a call."""
    found: list[At | Recall] = []
    mapped(value, lambda leaf: found.append(leaf) if isinstance(leaf, At | Recall) else None)
    return found


def _rows(flat: Sequence[Tensor], single: Sequence[bool], stack: int) -> list[list[Tensor]]:
    return [[v if alone else v[k] for v, alone in zip(flat, single, strict=True)] for k in range(stack)]
