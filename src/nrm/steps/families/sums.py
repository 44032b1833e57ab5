"""Sums: residual additions, batch norms, sums over neighbours; and data movement and scaling, sums of one term."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torch import Tensor

from nrm.capture import Combine, Node
from nrm.steps.blocks import column_ones, column_reads, connect_column
from nrm.steps.families.family import Family, family

if TYPE_CHECKING:
    from nrm.steps.network import Network


@family(Combine)
class Sums(Family):
    """``y = sum of scale * move(x) + shift``: one column of all its terms where they meet, else every entry moves."""

    def connect(self, network: Network, node: Node) -> None:
        op, i = node.op, node.index
        assert isinstance(op, Combine)
        if op.joins:
            connect_column(network, node)
            return
        for term, j in zip(op.terms, node.inputs, strict=True):
            post: Tensor | float | None = network.per_unit(i, j)
            if not network.is_one(i) and not network.is_one(j):
                post = None if isinstance(term.scale, float) and term.scale == 1 else term.scale
            network.link(network.plain(i), network.plain(j), network.local(i, j, term.move, post))

    def reads(self, network: Network, node: Node) -> Iterable[int]:
        assert isinstance(node.op, Combine)
        return column_reads(network, node.index) if node.op.joins else node.inputs

    def ones(self, network: Network, node: Node, is_one: bool) -> Iterable[int]:
        assert isinstance(node.op, Combine)
        return column_ones(network, node.index, is_one) if node.op.joins else super().ones(network, node, is_one)

    def is_nonnegative(self, network: Network, node: Node) -> bool:
        return True
