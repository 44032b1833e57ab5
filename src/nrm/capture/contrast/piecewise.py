"""Choices by comparison that differ between the runs: ``where(x > 0, x, 0.1 * x)``.

A condition has no share of its own: it is true or not. Where condition and branches are elementwise functions of one
tensor, the whole choice is one, with a kink or a jump, and its secant is exact. Any other choice that differs between
the runs is control by values, and refused.
"""

from __future__ import annotations

from typing import Any

import torch

from nrm.capture.contrast.compare import differing_choice
from nrm.capture.contrast.secants import slope
from nrm.capture.contrast.step import Exact, Parts, Piece, Step
from nrm.capture.ops import Combine, Multiply, Pointwise, Singular, Source
from nrm.capture.recall import Recall, mapped
from nrm.capture.replay import Segment
from nrm.capture.tape import Node, Tape
from nrm.operators import Masking

CHOICES = {"where", "masked_fill"}
"""Functions that choose every entry by a condition."""

COMPARISONS = {"gt", "lt", "ge", "le", "eq", "ne", "greater", "less", "greater_equal", "less_equal", "not_equal",
               "logical_and", "logical_or", "logical_not", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_not",
               "bitwise_xor", "and", "or", "invert", "xor", "isnan", "isfinite", "isinf", "signbit", "bool",
               "isclose"}  # fmt: skip
"""Functions whose every result is about the entries at its place."""


def piecewise(step: Step) -> tuple[Exact, int] | None:
    """The split of a choice that differs between the runs, and the one tensor it is a function of.

    None where the choice is the same in both runs: then it is data movement.
    """
    condition = _condition(step.node)
    if condition is None:
        return None
    conditions = [condition.run({i: run.nodes[i].value for i in condition.reads}) for run in step.runs]
    if torch.equal(*conditions):
        return None
    base = _base(step.runs[0], step.node, condition)
    if base is None:
        raise differing_choice(step.node)
    function = Segment(step.runs[0], (base,), step.node.index)

    def pieces() -> Parts:
        return (Piece(post=slope(step.value(base), step.result, function, "")),)

    return Exact(Pointwise(function=function), (pieces,), (None,)), base


def _condition(node: Node) -> Recall | None:
    """The condition of a choice, if it was computed from the input."""
    recall = node.recall
    if recall is None:
        return None
    found = [leaf for leaf in (*recall.arguments, *recall.named.values()) if isinstance(leaf, Recall)]
    return found[0] if found else None


def _base(tape: Tape, node: Node, condition: Recall) -> int | None:
    """The nearest tensor that a choice and its condition are elementwise functions of."""
    if not _compares(condition):
        return None
    reads = {*condition.reads, *node.inputs}
    sides = [_bases(tape, i) for i in reads if not _is_constant(tape.nodes[i])]
    shared = frozenset.intersection(*sides) if sides else frozenset()
    fits = [i for i in shared if tape.nodes[i].shape == node.shape]
    return max(fits, default=None)


def _compares(condition: Recall) -> bool:
    """Whether a condition is made of comparisons, entry by entry."""
    if getattr(condition.function, "__name__", "").strip("_") not in COMPARISONS:
        return False
    plain: list[bool] = []

    def look(leaf: Any) -> None:
        if isinstance(leaf, Recall):
            plain.append(_compares(leaf))

    mapped((condition.arguments, condition.named), look)
    return all(plain)


def _bases(tape: Tape, i: int) -> frozenset[int]:
    """The tensors that a tensor is an elementwise function of, itself included; constants may take part."""
    node = tape.nodes[i]
    own = frozenset([i])
    below = [j for j in node.inputs if not _is_constant(tape.nodes[j])]
    if not _is_elementwise(node) or any(tape.nodes[j].shape != node.shape for j in below):
        return own
    if node.recall is not None and any(j not in node.inputs for j in node.recall.reads):
        return own
    sides = [_bases(tape, j) for j in below]
    return own.union(frozenset.intersection(*sides)) if sides else own


def _is_elementwise(node: Node) -> bool:
    op = node.op
    if isinstance(op, Combine):
        return all(term.move is None or isinstance(term.move, Masking) for term in op.terms)
    if isinstance(op, Multiply):
        return all(move is None for move in op.moves)
    return (isinstance(op, Pointwise) and op.entrywise) or (isinstance(op, Singular) and op.move is None)


def _is_constant(node: Node) -> bool:
    return isinstance(node.op, Source) and node.op.kind == "constant" and not node.op.made


__all__ = ["CHOICES", "piecewise"]
