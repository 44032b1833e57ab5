"""Products of tensors, which share relevance as coefficients say."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor

from nrm.capture import Multiply, Node
from nrm.steps.families.family import Family, family
from nrm.steps.maps import Chained, Scaled

if TYPE_CHECKING:
    from nrm.steps.network import Network


@family(Multiply)
class Products(Family):
    """``y = u v`` with shares alpha: ``rho_u = alpha_u v rho``, so that R(u) = alpha_u R(y) whatever the values."""

    def connect(self, network: Network, node: Node) -> None:
        op, i = node.op, node.index
        assert isinstance(op, Multiply)
        for position, (move, j) in enumerate(zip(op.moves, node.inputs, strict=True)):
            alpha = network.share(i, position)
            if alpha == 0:
                continue
            if network.is_one(i):
                scale: Scaled | None = None
            elif network.is_one(j):
                scale = Scaled(node.shape, lambda: network.tape.nodes[i].value)
            else:
                scale = Scaled(node.shape, _others(network, node, position))
            moved = network.local(i, j, move, None if alpha == 1 else alpha)
            network.link(network.plain(i), network.plain(j), moved if scale is None else Chained(moved, scale))

    def reads(self, network: Network, node: Node) -> list[int]:
        return [j for p, j in enumerate(node.inputs) if network.rules.coefficient(node.index, p) != 0]

    def ones(self, network: Network, node: Node, is_one: bool) -> list[int]:
        return self.reads(network, node) if is_one else []

    def is_nonnegative(self, network: Network, node: Node) -> bool:
        return True


def _others(network: Network, node: Node, position: int) -> Callable[[], Tensor]:
    """The product of all factors but one."""
    op = node.op
    assert isinstance(op, Multiply)

    def formed() -> Tensor:
        parts = [
            (network.tape.nodes[j].value if move is None else move.apply(network.tape.nodes[j].value[None])[0], p)
            for p, (move, j) in enumerate(zip(op.moves, node.inputs, strict=True))
            if p != position
        ]
        values = [1 / value if op.quotient and p else value for value, p in parts]
        total: Tensor = values[0]
        for value in values[1:]:
            total = total * value
        return total.abs() if network.mode else total

    return formed
