"""Elementwise functions that a model writes out: which tensors a tensor is an elementwise function of.

``0.5 * x * (1 + tanh(x + 0.04 * x ** 3))`` is one activation. Its factors are no variables that meet, so a product in
which all factors are elementwise functions of one tensor is one as well, with relevance passing one to one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from nrm.capture.tape import Node

LONGEST = 12
"""More tensors than this need not be remembered: no activation is written in so many steps."""


class Roots:
    """Which tensors the nodes of a pass are elementwise functions of, found where a product asks for it."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._known: dict[int, dict[int, float]] = {}

    def common(self, *factors: Node) -> tuple[int, float] | None:
        """The nearest tensor that all factors are elementwise functions of, and their product where it is 0."""
        if len({f.shape for f in factors}) > 1:
            return None
        roots = [self._of(factor.index) for factor in factors]
        shared = _shared(roots)
        if not shared:
            return None
        nearest = max(shared)
        return nearest, math.prod(each[nearest] for each in roots)

    def _of(self, index: int) -> dict[int, float]:
        """The tensors that a node is an elementwise function of, with its value where they are 0; itself among them."""
        waiting = [index]
        while waiting:
            node = self._nodes[waiting[-1]]
            below = node.inputs if node.op.at(()) is not None else ()
            unknown = [i for i in below if i not in self._known]
            if unknown:
                waiting += unknown
            else:
                self._known[waiting.pop()] = self._through(node, [self._known[i] for i in below])
        return self._known[index]

    @staticmethod
    def _through(node: Node, below: list[dict[int, float]]) -> dict[int, float]:
        shared = _shared(below)
        values = node.op.at([[roots[r] for roots in below] for r in shared])
        kept = [(r, at) for r, at in zip(shared, values, strict=True) if math.isfinite(at)] if values else []
        return {**dict(kept[-LONGEST:]), node.index: 0.0}


def _shared(roots: Sequence[dict[int, float]]) -> list[int]:
    """The tensors that are among all roots, the nearest last."""
    return [r for r in roots[0] if all(r in others for others in roots[1:])] if roots else []
