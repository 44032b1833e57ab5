"""Computing a part of the captured network again: for the same values, to see that they come out, or for others.

For other values everything that depends on the input is computed anew: statistics of norms, attention weights, choices
of maxima. For the same values every op is asked what it makes of them, with all that it holds constant, because that is
what relevances are computed from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from nrm.capture.op import Op
from nrm.capture.tape import Node, Tape
from nrm.errors import CaptureError


def reads(node: Node) -> tuple[int, ...]:
    """The nodes from which a node is computed. Those through which relevance passes may be others."""
    return node.inputs if node.recall is None else node.recall.reads


def replay(node: Node, values: Mapping[int, Tensor]) -> Tensor:
    """The value of a node, ``(K, *shape)``, from stacks ``(K or 1, *shape)`` of the nodes that it reads."""
    if node.recall is not None:
        return node.recall.run_stack(values)
    value = None if node.op.holds else node.op.compute([values[i] for i in node.inputs])
    if value is None:
        raise CaptureError(
            "this tensor cannot be computed again", where=f"layer {node.name!r}", got=type(node.op).__name__,
            expected="a call that was recorded with its arguments",
        )  # fmt: skip
    return value


class Deviation(NamedTuple):
    """A node that does not come out again, and how far it is off, beside the largest entry of its tensor."""

    node: Node
    share: float


def find_deviation(tape: Tape) -> Deviation | None:
    """The first node whose op, or call, does not give the value that the model computed from what it reads."""
    needed = {tape.output}
    for node in reversed(tape.nodes[: tape.output + 1]):
        if node.index in needed:
            needed.update((*node.inputs, *reads(node)))
    state = torch.get_rng_state()
    try:
        for node in (tape.nodes[i] for i in sorted(needed)):
            share = deviation(node, tape.nodes)
            if share is not None:
                return Deviation(node, share)
    finally:
        torch.set_rng_state(state)
    return None


def deviation(node: Node, nodes: Sequence[Node]) -> float | None:
    """How far a node is from what its op makes of the values it reads; None if that is rounding, or not said."""
    if node.op.kind == "block":
        return None  # entries of a rule between chosen layers: they are relevances, no weights
    below = [nodes[i].value[None] for i in node.inputs]
    again = node.op.compute(below)
    if again is None and node.recall is not None:
        before = torch.get_rng_state()
        again = replay(node, {i: nodes[i].value[None] for i in reads(node)})
        if not torch.equal(before, torch.get_rng_state()):
            return None  # another draw is another value
    return None if again is None else deviates(node.op, below, again[0], node.value)


def deviates(op: Op, below: Sequence[Tensor], again: Tensor, value: Tensor) -> float | None:
    """How far two values of an op are apart, beside the largest entry; None if rounding may have done it."""
    if again.shape != value.shape:
        return torch.inf
    if not value.numel() or torch.equal(again, value):
        return None
    alike = (again == value) | (again.isnan() & value.isnan())
    if not all(bool(x.isfinite().all()) for x in below):
        alike = alike | again.isnan()  # a mask leaves -inf out, where a sum of terms has 0 times -inf
    gap = torch.where(alike, 0.0, (again - value).abs())
    size = _largest(value)
    slack = SLACK * torch.finfo(value.dtype).eps
    if float(gap.max()) <= slack * size or float(gap.max()) <= slack * _largest(op.sizes(below)):
        return None
    return float(gap.max()) / max(size, 1e-30)


SLACK = 1e3
"""So many times the precision of numbers, rounding may change a value: sums are added up in other orders."""


def _largest(value: Tensor) -> float:
    finite = value[value.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0


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
            known[i] = replay(node, {j: value(j)[None] for j in reads(node)})[0]
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
