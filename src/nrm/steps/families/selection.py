"""Maxima: every output is one chosen input."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nrm.capture import Node, Select
from nrm.steps.family import Family, family

if TYPE_CHECKING:
    from nrm.steps.network import Network


@family(Select)
class Selections(Family):
    """``y_j = x_i`` for the chosen i: the density of y goes to x there."""

    def connect(self, network: Network, node: Node) -> None:
        assert isinstance(node.op, Select)
        (j,) = node.inputs
        post = network.per_unit(node.index, j)
        network.link(network.plain(node.index), network.plain(j), network.local(node.index, j, node.op.map, post))

    def is_nonnegative(self, network: Network, node: Node) -> bool:
        return True
