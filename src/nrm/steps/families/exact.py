"""Steps of a contrast that are linear in differences only: elementwise functions, products, norms, softmax, maxima."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from nrm.capture import Exact, Node, Piece
from nrm.steps.family import Family, family
from nrm.steps.maps import Chained, Local, Map, Scaled, Summed
from nrm.steps.nodes import COLUMN, RelevanceNode

if TYPE_CHECKING:
    from nrm.steps.assignment import Assignment
    from nrm.steps.network import Network


@family(Exact)
class ExactSteps(Family):
    """``dy = sum of parts(dx)``: what a step does to differences is its map, and no rule is asked."""

    def connect(self, network: Network, node: Node) -> None:
        op, i = node.op, node.index
        assert isinstance(op, Exact)
        if network.is_one(i) and _is_one_to_one(op):
            network.link(network.plain(i), network.plain(node.inputs[0]), network.local(i, node.inputs[0]))
            return
        top = _converted(network, node) if network.is_one(i) else network.plain(i)
        for position, j in enumerate(node.inputs):
            network.link(top, network.plain(j), _map(network, node, position))

    def ones(self, network: Network, node: Node, is_one: bool) -> tuple[int, ...]:
        """An elementwise step hands relevance on as it is, any other step shares it by differences."""
        assert isinstance(node.op, Exact)
        return node.inputs if is_one and _is_one_to_one(node.op) else ()

    def drains(self, rules: Assignment, node: Node) -> tuple[str, ...]:
        return ("sink",)


def _is_one_to_one(op: Exact) -> bool:
    return op.moves == (None,)


def _map(network: Network, node: Node, position: int) -> Map:
    """The map of one input, from its difference, or from 1."""
    op, below = node.op, network.tape.nodes[node.inputs[position]]
    assert isinstance(op, Exact)
    form = op.parts[position]

    def pieces() -> list[Local]:
        return [Local(below.shape, node.shape, network.tape.dtype, p.pre, p.move, p.post)
                for p in map(_absolute if network.mode else _same, form())]  # fmt: skip

    def scale() -> Tensor | None:
        (piece,) = pieces()
        return torch.ones_like(below.value) if piece.post is None else torch.as_tensor(piece.post).expand(node.shape)

    found: Map = Scaled(node.shape, scale) if _is_one_to_one(op) else Summed(pieces, op.moves is None)
    if network.is_one(node.inputs[position]):
        return Chained(Scaled(below.shape, lambda: below.value.abs() if network.mode else below.value), found)
    return found


def _same(piece: Piece) -> Piece:
    return piece


def _absolute(piece: Piece) -> Piece:
    """A piece with absolute entries."""
    move = piece.move if piece.move is None or piece.move.nonnegative else piece.move.reweight(torch.abs)
    post, pre = (x.abs() if isinstance(x, Tensor) else x and abs(x) for x in (piece.post, piece.pre))
    return Piece(move, post, pre)


def _converted(network: Network, node: Node) -> RelevanceNode:
    """The node of a step's difference under one whose unit is 1: relevance is shared by it, and lost where it is 0."""
    i, here = node.index, network.plain(node.index)
    column, _ = network.node((i, COLUMN, "exact"), i, COLUMN)

    def over() -> Tensor:
        dead = node.value == 0
        shares = 1 / node.value.masked_fill(dead, 1.0)
        return (shares.abs() if network.mode else shares).masked_fill(dead, 0.0)

    lost: Callable[[], Tensor] = lambda: (node.value == 0).to(node.value)  # noqa: E731
    network.link(here, column, Scaled(node.shape, over))
    network.link(here, network.drain(i, "sink"), Scaled(node.shape, lost))
    return column
