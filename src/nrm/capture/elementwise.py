"""Elementwise functions that a model writes out: which tensors a tensor is an elementwise function of.

``0.5 * x * (1 + tanh(x + 0.04 * x ** 3))`` is one activation. Its factors are no variables that meet, so a product in
which all factors are elementwise functions of one tensor is one as well, with relevance passing one to one.
"""

from __future__ import annotations

import math

from nrm.capture.op import Op
from nrm.capture.tape import Node

LONGEST = 12
"""More tensors than this need not be remembered: no activation is written in so many steps."""


def roots_of(index: int, op: Op, parents: list[Node]) -> dict[int, float]:
    """The tensors that a node is an elementwise function of, with its value where they are 0; first of all itself."""
    common = _common(parents)
    values = op.at(list(common.values()))
    kept = [(r, at) for r, at in zip(common, values, strict=True) if math.isfinite(at)] if values is not None else []
    return {**dict(kept[-LONGEST:]), index: 0.0}


def common_root(*factors: Node) -> tuple[int, float] | None:
    """The nearest tensor that all factors are elementwise functions of, and their product where it is 0."""
    shared = _shared(list(factors))
    if not shared or len({f.shape for f in factors}) > 1:
        return None
    nearest = max(shared)
    return nearest, math.prod(f.roots[nearest] for f in factors)


def _common(parents: list[Node]) -> dict[int, list[float]]:
    """The tensors that all parents are elementwise functions of, with the value of each where they are 0."""
    return {r: [p.roots[r] for p in parents] for r in _shared(parents)}


def _shared(nodes: list[Node]) -> list[int]:
    if len(nodes) < 2:
        return [r for node in nodes for r in node.roots]
    return [r for r in nodes[0].roots if all(r in n.roots for n in nodes[1:])]
