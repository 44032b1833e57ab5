"""Linear steps with weights: convolutions, dense layers, pooling, norms, products with a matrix that is held."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nrm.capture import Linear, Node
from nrm.steps.blocks import column_ones, column_reads, connect_column
from nrm.steps.families.family import Family, family

if TYPE_CHECKING:
    from nrm.steps.network import Network


@family(Linear)
class LinearSteps(Family):
    """``y = W x + b``: one block, the column of its rule."""

    def connect(self, network: Network, node: Node) -> None:
        connect_column(network, node)

    def reads(self, network: Network, node: Node) -> list[int]:
        return column_reads(network, node.index)

    def ones(self, network: Network, node: Node, is_one: bool) -> list[int]:
        return column_ones(network, node.index, is_one)
