"""Products of tensors, which share relevance as coefficients say."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from nrm.capture import Multiply, Node, Tape
from nrm.errors import RuleError
from nrm.rules import Product
from nrm.steps.family import Family, family
from nrm.steps.maps import Chained, Scaled

if TYPE_CHECKING:
    from nrm.steps.assignment import Assignment
    from nrm.steps.network import Network

GATES = ("sigmoid", "softmax", "exp", "hardsigmoid", "log_softmax", "softmin")


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

    def coefficients(self, rules: Assignment, node: Node) -> Sequence[float]:
        assert isinstance(node.op, Multiply)
        if node.op.quotient:
            return [1.0] + [0.0] * (len(node.inputs) - 1)
        return product_shares(rules, node, node.inputs, 1.0)


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


def product_shares(rules: Assignment, node: Node, factors: Sequence[int], whole: float) -> list[float]:
    """The shares of some factors, which sum to ``whole``: gates and divisors are told from signals."""
    choice, tape = rules.choice(node.index), rules.tape
    product = choice if isinstance(choice, Product) else rules.composite.product
    divides = [_distance(tape, j, ("reciprocal",)) < math.inf for j in factors]
    if any(divides) and not all(divides):
        return [0.0 if d else whole / divides.count(False) for d in divides]
    weights = _weights(tape, node, factors, product)
    if not sum(weights):
        raise RuleError("the coefficients of a product sum to 0", where=node.name, got=repr(product))
    return [whole * w / sum(weights) for w in weights]


def _weights(tape: Tape, node: Node, factors: Sequence[int], product: Product) -> Sequence[float]:
    if product.shares is not None:
        if len(product.shares) != len(factors):
            raise RuleError(
                "the shares do not fit the factors of a product", where=node.name, got=repr(product),
                expected=f"{len(factors)} numbers",
            )  # fmt: skip
        return product.shares
    gates = [_distance(tape, j, GATES) for j in factors]
    nearest = min(gates)
    is_gate = [nearest < math.inf and d == nearest for d in gates]
    if all(is_gate) or not any(is_gate):
        return [1.0] * len(gates)
    return [product.gate if g else product.signal for g in is_gate]


def _distance(tape: Tape, i: int, functions: Sequence[str]) -> float:
    """How many elementwise steps and movements lie between a factor and one of these functions."""
    for distance in range(8):
        node = tape.nodes[i]
        if node.function in functions or node.op.kind in functions:
            return distance
        quotient = isinstance(node.op, Multiply) and node.op.quotient  # a softmax over neighbours: exp over its sum
        moves = node.op.is_local or node.op.is_one_to_one(0)
        if not quotient and (not moves or len(node.inputs) != 1):
            return math.inf
        i = node.inputs[0]
    return math.inf
