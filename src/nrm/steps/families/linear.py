"""Linear steps with weights: convolutions, dense layers, pooling, norms, products with a matrix that is held."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from nrm.capture import Linear, Node, Tape
from nrm.rules import Rule
from nrm.steps.blocks import column_ones, column_reads, connect_column, effective
from nrm.steps.factors import Factors
from nrm.steps.family import Additive, Slot, family
from nrm.steps.maps import Factored
from nrm.steps.nodes import RelevanceNode

if TYPE_CHECKING:
    from nrm.steps.assignment import Assignment
    from nrm.steps.network import Network


@family(Linear)
class LinearSteps(Additive):
    """``y = W x + b``: one block, the column of its rule."""

    def connect(self, network: Network, node: Node) -> None:
        connect_column(network, node)

    def reads(self, network: Network, node: Node) -> list[int]:
        return column_reads(network, node.index)

    def ones(self, network: Network, node: Node, is_one: bool) -> list[int]:
        return column_ones(network, node.index, is_one)

    def is_open(self, tape: Tape, node: Node, below: Sequence[bool]) -> bool:
        return True

    def leaves(self, rules: Assignment, node: Node, rule: Rule | None) -> Iterator[Rule]:
        yield rules.leaf_rule(node.index)

    def is_linear(self, rules: Assignment, node: Node, rule: Rule | None) -> bool:
        return rules.leaf_rule(node.index).proportional

    def shift(self, rules: Assignment, node: Node) -> Tensor | None:
        assert isinstance(node.op, Linear)
        return node.op.bias

    def branch_rule(self, rules: Assignment, node: Node) -> Rule | None:
        return rules.leaf_rule(node.index) if node.op.kind in ("conv", "linear") else None

    def own_rule(self, rules: Assignment, node: Node) -> Rule:
        return rules.leaf_rule(node.index)

    def blocks(self, network: Network, node: Node, rule: Rule | None, override: Rule | None) -> list[tuple[int, Rule]]:
        return [(node.inputs[0], effective(network.rules.leaf_rule(node.index), override))]

    def connect_slots(
        self, network: Network, node: Node, slots: dict[Slot, RelevanceNode], rule: Rule | None, override: Rule | None,
        rows: Tensor | None,
    ) -> None:  # fmt: skip
        assert isinstance(node.op, Linear)
        own, (j,) = effective(network.rules.leaf_rule(node.index), override), node.inputs
        for slot, above in slots.items():
            if slot[0] in own.keys:
                below, one = network.tape.nodes[j], network.is_one(j)
                factors = Factors(network.factors, own, *slot, node.op.map, below, one, rows)
                network.link(above, network.plain(j), Factored(factors))

    def rows(self, node: Node, scale: Tensor) -> Tensor | None:
        assert isinstance(node.op, Linear)
        return node.op.map.rows(scale)

    def weights(self, node: Node) -> float:
        assert isinstance(node.op, Linear)
        weight = getattr(node.op.map, "weight", None)
        return weight.numel() if isinstance(weight, Tensor) else math.inf
