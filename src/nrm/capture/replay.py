"""Computing a part of the captured network again, for other values of some of its tensors.

Everything that depends on the input is computed anew: statistics of norms, attention weights, choices of maxima.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from nrm.capture.ops import Combine, Linear, Multiply, Op, Pointwise, Select, Source, Unknown
from nrm.capture.tape import Node, Tape
from nrm.errors import CaptureError
from nrm.operators import LinearMap, Place, place_all


def holds(op: Op) -> bool:
    """Whether something in an op was computed from its inputs and is held constant there (or is not said at all)."""
    if isinstance(op, Linear):
        return op.kind in ("norm", "matmul")
    if isinstance(op, Combine):
        return op.held or op.kind == "matmul"
    if isinstance(op, Pointwise):
        return op.function is None
    return isinstance(op, Select | Unknown)


def reads(node: Node) -> tuple[int, ...]:
    """The nodes from which a node is computed. Those through which relevance passes may be others."""
    return node.inputs if node.recall is None else node.recall.reads


def replay(node: Node, values: Mapping[int, Tensor]) -> Tensor:
    """The value of a node, ``(K, *shape)``, from stacks ``(K or 1, *shape)`` of the nodes that it reads."""
    if node.recall is not None:
        return node.recall.run_stack(values)
    op, below = node.op, [values[i] for i in node.inputs]
    if isinstance(op, Source) or holds(op):
        raise CaptureError(
            "this tensor cannot be computed again", where=f"layer {node.name!r}", got=type(op).__name__,
            expected="a call that was recorded with its arguments",
        )  # fmt: skip
    if isinstance(op, Linear):
        value = op.map.apply(below[0])
        return value if op.bias is None else value + op.bias
    if isinstance(op, Combine):
        return _combined(op, below)
    if isinstance(op, Multiply):
        first, *rest = (_moved(move, x) for move, x in zip(op.moves, below, strict=True))
        for factor in rest:
            first = first / factor if op.quotient else first * factor
        return first
    assert isinstance(op, Pointwise)
    assert op.function is not None
    return op.function(below[0])


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


def _combined(op: Combine, below: list[Tensor]) -> Tensor:
    places = [term.move for term in op.terms if isinstance(term.move, Place)]
    if len(places) == len(op.terms) > 1 and all(isinstance(t.scale, float) and t.scale == 1 for t in op.terms):
        total: Any = place_all(list(zip(places, below, strict=True)))
    else:
        parts = (_scaled(_moved(term.move, x), term.scale) for term, x in zip(op.terms, below, strict=True))
        total = next(parts)
        for part in parts:
            total = total + part
    result: Tensor = total if op.shift is None else total + op.shift
    return result


def _moved(move: LinearMap | None, x: Tensor) -> Tensor:
    return x if move is None else move.apply(x)


def _scaled(x: Tensor, scale: Tensor | float) -> Tensor:
    return x if isinstance(scale, float) and scale == 1 else x * scale
