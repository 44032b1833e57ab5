"""Which rule every step of a tape gets, and which steps share columns. Structure only: no message is touched here."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from nrm.capture import Combine, Linear, Multiply, Node, Op, Pointwise, Softmax, Tape, Unknown
from nrm.errors import CaptureError, RuleError
from nrm.rules import LRP0, NEGATIVE, Composite, Key, Pass, Product, Rule, SoftmaxRule, Sum, choices, reads_input

GATES = ("sigmoid", "softmax", "exp", "hardsigmoid", "log_softmax", "softmin")


def effective(rule: Rule, override: Rule | None) -> Rule:
    """The rule of a block inside a column that another rule pools or replaces."""
    if override is None:
        return rule
    return override if rule.signed or not override.pools else rule


def is_product(op: Op) -> bool:
    """Whether a step joins the two halves of a product of matrices."""
    return isinstance(op, Combine) and op.kind == "matmul"


class Assignment:
    """The rules of a tape.

    A tensor is ``open`` if it ends in linear steps, seen through movement, scaling and norms: a sum that reads it takes
    it as a branch, whose entries belong to the sum's own columns. A ``reached`` tensor can receive relevance.
    """

    def __init__(self, tape: Tape, composite: Composite, bias: str) -> None:
        self.tape = tape
        self.composite = composite
        self._bias = bias
        self._choices = choices(composite, tape)
        self._first = reads_input(tape) if composite.first is not None else set()
        self._shares: dict[int, list[float]] = {}
        self._pools: dict[int, Rule | None] = {}
        self._key_sets: dict[tuple[int, Rule | None], set[Key]] = {}
        self.open = self._find_open()
        self.reached = self._find_reached()
        self._check()

    def _find_open(self) -> list[bool]:
        """Which tensors end in linear steps, seen through movement, scaling and norms."""
        open_: list[bool] = []
        for node in self.tape.nodes:
            op = node.op
            if isinstance(op, Linear):
                open_.append(True)
            elif isinstance(op, Combine):
                if op.kind == "batchnorm":
                    open_.append(True)
                elif op.joins:
                    single = len(self.tape.consumers[node.index]) == 1 or (len(op.terms) == 1)
                    open_.append(single)
                else:
                    open_.append(any(open_[i] for i in node.inputs))
            else:
                open_.append(False)
        return open_

    def _find_reached(self) -> list[bool]:
        """Which tensors relevance can arrive at. What lies behind a closed gate needs no rule."""
        reached = [False] * len(self.tape.nodes)
        reached[self.tape.output] = True
        for node in reversed(self.tape.nodes):
            if not reached[node.index]:
                continue
            for position, i in enumerate(node.inputs):
                if self.coefficient(node.index, position) != 0:
                    reached[i] = True
        return reached

    def _check(self) -> None:
        for node in self.tape.nodes:
            if not self.reached[node.index]:
                continue
            if isinstance(node.op, Unknown) and node.op.kind == "contrast":
                raise CaptureError(
                    f"no exact split for {node.op.function}", where=node.op.where,
                    got=f"a tensor of shape {tuple(node.shape)} on the way to the output of a contrast",
                    expected="an op of the vocabulary, or one that was registered with a split of its own",
                    hint=f"nrm.register({node.op.function!r}, ..., contrast=...)",
                )  # fmt: skip
            if isinstance(node.op, Unknown):
                raise CaptureError(
                    f"no rule for {node.op.function}", where=node.op.where,
                    got=f"a tensor of shape {tuple(node.shape)} on the way to the output",
                    expected="an op of the vocabulary, or one that you registered",
                    hint=f"nrm.register({node.op.function!r}, ...) tells how its relevance is shared",
                )  # fmt: skip
            if self.is_terminal(node.index):
                self.pool(node.index)

    def is_terminal(self, i: int) -> bool:
        """Whether the node's step has columns of its own."""
        op = self.tape.nodes[i].op
        return isinstance(op, Linear) or (isinstance(op, Combine) and op.joins)

    def coefficient(self, i: int, position: int) -> float:
        """alpha: the share of an input in a step where several variables meet."""
        op, choice = self.tape.nodes[i].op, self._choices.get(i)
        if isinstance(op, Multiply) or is_product(op):
            if i not in self._shares:
                product = choice if isinstance(choice, Product) else self.composite.product
                self._shares[i] = self._product_shares(i, product)
            return self._shares[i][position]
        if isinstance(op, Combine) and isinstance(choice, Sum):
            return self._sum_shares(i, choice)[position]
        return 1.0

    def _product_shares(self, i: int, product: Product) -> list[float]:
        """The shares of the factors: they sum to 1, or to n for the n halves of a product of matrices."""
        node = self.tape.nodes[i]
        op, factors, whole = node.op, list(node.inputs), 1.0
        if is_product(op):
            factors, whole = [self.tape.nodes[j].inputs[0] for j in factors], float(len(factors))
        elif isinstance(op, Multiply) and op.quotient:
            return [1.0] + [0.0] * (len(factors) - 1)
        divides = [self._distance(j, ("reciprocal",)) < math.inf for j in factors]
        if any(divides) and not all(divides):
            return [0.0 if d else whole / divides.count(False) for d in divides]
        weights = self._weights(node, factors, product)
        if not sum(weights):
            raise RuleError("the coefficients of a product sum to 0", where=node.name, got=repr(product))
        return [whole * w / sum(weights) for w in weights]

    def _weights(self, node: Node, factors: list[int], product: Product) -> Sequence[float]:
        if product.shares is not None:
            if len(product.shares) != len(factors):
                raise RuleError(
                    "the shares do not fit the factors of a product", where=node.name, got=repr(product),
                    expected=f"{len(factors)} numbers",
                )  # fmt: skip
            return product.shares
        gates = [self._distance(j, GATES) for j in factors]
        nearest = min(gates)
        is_gate = [nearest < math.inf and d == nearest for d in gates]
        if all(is_gate) or not any(is_gate):
            return [1.0] * len(gates)
        return [product.gate if g else product.signal for g in is_gate]

    def _distance(self, i: int, functions: Sequence[str]) -> float:
        """How many elementwise steps and movements lie between a factor and one of these functions."""
        for distance in range(8):
            node = self.tape.nodes[i]
            if node.function in functions or getattr(node.op, "kind", "") in functions:
                return distance
            quotient = isinstance(node.op, Multiply) and node.op.quotient  # a softmax over neighbours: exp over its sum
            if not quotient and (not isinstance(node.op, Pointwise | Combine) or len(node.inputs) != 1):
                return math.inf
            i = node.inputs[0]
        return math.inf

    def softmax(self, i: int) -> bool:
        """Whether relevance passes a softmax by its own rule; else it is one-to-one."""
        if not isinstance(self.tape.nodes[i].op, Softmax):
            return False
        choice = self._choices.get(i)
        return isinstance(choice, SoftmaxRule) or (choice is None and self.composite.softmax is not None)

    def _sum_shares(self, i: int, choice: Sum) -> list[float]:
        node = self.tape.nodes[i]
        if isinstance(choice.alpha, tuple):
            if len(choice.alpha) not in (1, len(node.inputs)):
                raise RuleError(
                    "the coefficients do not fit the terms of a sum", where=node.name,
                    got=f"{len(choice.alpha)} of them", expected=f"{len(node.inputs)}",
                )  # fmt: skip
            alphas = choice.alpha if len(choice.alpha) > 1 else choice.alpha * len(node.inputs)
            return [float(a) for a in alphas]
        return [float(choice.alpha.get("branch" if self.open[j] else "skip", 1.0)) for j in node.inputs]

    def leaf_rule(self, i: int) -> Rule:
        """The rule of a linear step."""
        op, choice = self.tape.nodes[i].op, self._choices.get(i)
        assert isinstance(op, Linear)
        if isinstance(choice, Rule):
            return choice
        if i in self._first and self.composite.first is not None:
            return self.composite.first
        return self.composite.kind(op.kind)

    def plain_rule(self, i: int, inherited: Rule | None) -> Rule | None:
        """The rule of terms that enter a combination as they are: the rule of the branch they join."""
        op = self.tape.nodes[i].op
        assert isinstance(op, Combine)
        if not op.joins:
            return inherited
        choice = self._choices.get(i)
        if isinstance(choice, Rule):
            return choice
        if isinstance(choice, Sum) and choice.rule is not None:
            return choice.rule
        if op.kind == "batchnorm" or (len(op.terms) == 1 and op.kind != "propagate"):
            return inherited if inherited is not None else (Pass() if self._bias == "ignore" else LRP0())
        branch = next((r for j in self.tape.nodes[i].inputs if (r := self._branch_rule(j)) is not None), None)
        return branch if branch is not None else self.composite.add

    def _branch_rule(self, j: int) -> Rule | None:
        """The rule of the linear step that a term ends in."""
        node = self.tape.nodes[j]
        if not self.open[j]:
            return None
        if isinstance(node.op, Linear):
            return self.leaf_rule(j) if node.op.kind in ("conv", "linear") else None
        return next((r for i in node.inputs if (r := self._branch_rule(i)) is not None), None)

    def leaves(self, i: int, rule: Rule | None = None) -> Iterator[Rule]:
        """The rules of everything that shares the columns of node i."""
        node = self.tape.nodes[i]
        if isinstance(node.op, Linear):
            yield self.leaf_rule(i)
            return
        rule = self.plain_rule(i, rule)
        for j in node.inputs:
            if self.open[j]:
                yield from self.leaves(j, rule)
            else:
                assert rule is not None
                yield rule

    def pool(self, i: int) -> Rule | None:
        """The rule that pools the signs of a whole column, such as alpha-beta, if one of its blocks has one."""
        if i in self._pools:
            return self._pools[i]
        found = {r for r in self.leaves(i) if r.pools}
        if len(found) > 1:
            raise RuleError(
                "two alpha-beta rules meet in one column", where=self.tape.nodes[i].name,
                got=", ".join(sorted(map(repr, found))), expected="one rule for all branches of a sum",
            )  # fmt: skip
        self._pools[i] = next(iter(found), None)
        return self._pools[i]

    def keys(self, i: int, override: Rule | None) -> set[Key]:
        """The keys of all blocks of a column; those of turned weights follow from the scales on the way to them."""
        if (i, override) not in self._key_sets:
            keys = {k for r in self.leaves(i) for k in effective(r, override).keys}
            self._key_sets[i, override] = keys - {NEGATIVE}
        return self._key_sets[i, override]

    def is_linear(self, i: int, rule: Rule | None = None) -> bool:
        """Whether every block is LRP-0 with coefficient 1, so that the column sum is the value without its biases.

        The halves of a product are equal, so that their coefficients make no difference to the sum.
        """
        node = self.tape.nodes[i]
        if isinstance(node.op, Linear):
            return self.leaf_rule(i).proportional
        rule = self.plain_rule(i, rule)
        if not is_product(node.op) and any(self.coefficient(i, p) != 1 for p in range(len(node.inputs))):
            return False
        plain = rule is not None and rule.proportional
        return all(self.is_linear(j, rule) if self.open[j] else plain for j in node.inputs)

    def shift(self, i: int) -> Tensor | None:
        """The folded bias of a step: what is left of its value when every block is 0."""
        node = self.tape.nodes[i]
        if isinstance(node.op, Linear):
            return node.op.bias
        assert isinstance(node.op, Combine)
        total = None
        if node.op.shift is not None:
            total = torch.as_tensor(node.op.shift, dtype=node.value.dtype, device=node.value.device)
        for position, (term, j) in enumerate(zip(node.op.terms, node.inputs, strict=True)):
            below = self.shift(j) if self.open[j] else None
            if below is None:
                continue
            if term.move is not None:
                below = term.move.apply(below.expand(self.tape.nodes[j].shape)[None])[0]
            below = below * term.scale * self.coefficient(i, position)
            total = below if total is None else total + below
        return total
