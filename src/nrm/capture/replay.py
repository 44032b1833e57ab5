"""Computing a part of the captured network again, for other values of some of its tensors.

A capture can keep the calls that made its tensors. They are the network's own functions, with everything that depends
on the input left open: statistics of norms, attention weights, choices of maxima are computed anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nrm.capture.ops import Combine
from nrm.capture.tape import Node, Tape
from nrm.errors import CaptureError


class Slot(NamedTuple):
    """A place in the arguments of a call for the value of a node."""

    node: int


@dataclass(frozen=True, eq=False)
class Recorded:
    """A call of torch whose result, or the tensor at a place in it, is the value of a node."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    slots: tuple[int, ...]
    pick: Callable[[Any], Tensor]

    def value(self, values: Callable[[int], Tensor]) -> Tensor:
        """The result for other values of the nodes."""

        def filled(given: Any) -> Any:
            if isinstance(given, Slot):
                return values(given.node)
            if isinstance(given, Tensor):
                return given.clone() if given.is_inference() else given
            if isinstance(given, list | tuple) and not hasattr(given, "_fields"):
                return type(given)(map(filled, given))
            return {k: filled(v) for k, v in given.items()} if isinstance(given, dict) else given

        return self.pick(self.function(*filled(self.arguments), **filled(self.keywords)))


def opened(given: Any, index_of: Callable[[Tensor], int | None], slots: list[int]) -> Any:
    """The arguments of a call with slots for the tensors that have a node."""
    if isinstance(given, Tensor):
        index = index_of(given)
        if index is None:
            return given.detach()
        slots.append(index)
        return Slot(index)
    if isinstance(given, list | tuple) and not hasattr(given, "_fields"):
        return type(given)(opened(g, index_of, slots) for g in given)
    return {k: opened(v, index_of, slots) for k, v in given.items()} if isinstance(given, dict) else given


def reads(node: Node) -> tuple[int, ...]:
    """The nodes that a node's value is computed from, those that get no relevance included."""
    return node.inputs if node.call is None else node.call.slots


class Segment:
    """The captured function from some tensors to a later one; everything else is held at its captured value."""

    def __init__(self, tape: Tape, starts: Sequence[int], end: int) -> None:
        self._tape = tape
        self._starts = tuple(starts)
        self._end = end
        after = set(starts)
        for node in tape.nodes[min(starts) + 1 : end + 1]:
            if node.index not in after and any(i in after for i in reads(node)):
                after.add(node.index)
        needed = {end} & after
        for i in sorted(after, reverse=True):
            if i in needed and i not in self._starts:
                needed.update(j for j in reads(tape.nodes[i]) if j in after)
        self._order = [i for i in sorted(needed) if i not in self._starts]
        self._check()

    @property
    def nodes(self) -> list[Node]:
        """The nodes that are computed again."""
        return [self._tape.nodes[i] for i in self._order]

    @property
    def values(self) -> tuple[Tensor, ...]:
        """The captured values of the starts."""
        return tuple(self._tape.nodes[i].value for i in self._starts)

    def __call__(self, *values: Tensor) -> Tensor:
        """The value of the end for other values of the starts."""
        known = dict(zip(self._starts, values, strict=True))

        def value(i: int) -> Tensor:
            return known[i] if i in known else self._tape.nodes[i].value

        for i in self._order:
            node = self._tape.nodes[i]
            known[i] = _moved(node, value) if node.call is None else node.call.value(value)
        return value(self._end)

    def _check(self) -> None:
        """The captured values must come out again: a forward pass that draws random numbers cannot be repeated."""
        end, state = self._tape.nodes[self._end], torch.get_rng_state()
        again = self(*self.values)
        draws = not torch.equal(state, torch.get_rng_state())
        torch.set_rng_state(state)
        size = float(end.value.abs().max()) if end.value.numel() else 0.0
        slack = 1e4 * torch.finfo(end.value.dtype).eps * max(size, 1e-30)
        if draws or again.shape != end.shape or not float((again - end.value).abs().max()) <= slack:
            raise CaptureError(
                "a part of the network does not give the same values again", where=f"layer {end.name!r}",
                got="a random draw, or constants that changed during the forward pass",
                expected="a forward pass that can be repeated",
            )  # fmt: skip


def _moved(node: Node, value: Callable[[int], Tensor]) -> Tensor:
    """The value of a node without a call: data movement that an in-place write brought about."""
    if not isinstance(node.op, Combine):
        raise CaptureError("a tensor cannot be computed again", where=f"layer {node.name!r}", got=node.function)
    total: Any = 0.0 if node.op.shift is None else node.op.shift
    for term, i in zip(node.op.terms, node.inputs, strict=True):
        x = value(i)
        total = total + (x if term.move is None else term.move.apply(x[None])[0]) * term.scale
    return torch.as_tensor(total)
