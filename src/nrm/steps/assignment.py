"""Which rule every step of a tape gets, and which steps share columns. Structure only: no message is touched here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from nrm.capture import Softmax, Tape, Unknown
from nrm.errors import CaptureError, RuleError
from nrm.rules import NEGATIVE, Choice, Composite, Key, Rule, SoftmaxRule, choices, reads_input
from nrm.steps.blocks import effective
from nrm.steps.family import Additive, additive, family_of, find_family


class Assignment:
    """The rules of a tape.

    A tensor is ``open`` if it ends in linear steps, seen through movement, scaling and norms: a sum that reads it takes
    it as a branch, whose entries belong to the sum's own columns. A ``reached`` tensor can receive relevance.
    """

    def __init__(self, tape: Tape, composite: Composite, bias: str) -> None:
        self.tape = tape
        self.composite = composite
        self.bias = bias
        self._choices = choices(composite, tape)
        self._first = reads_input(tape) if composite.first is not None else set()
        self._shares: dict[int, Sequence[float]] = {}
        self._pools: dict[int, Rule | None] = {}
        self._leaf_rules: dict[int, Rule] = {}
        self._leaves: dict[int, tuple[Rule, ...]] = {}
        self._linear: dict[int, bool] = {}
        self._biases: dict[int, Tensor | None] = {}
        by_rule = ((n.index, n.op) for n in tape.nodes if self.softmax(n.index))
        self.softmax_axes = {i: op.dim for i, op in by_rule if isinstance(op, Softmax)}
        """The axis along which every softmax that is passed by its own rule mixes entries."""
        self._key_sets: dict[tuple[int, Rule | None], set[Key]] = {}
        self.open = self._find_open()
        self.reached = self._find_reached()
        self._check()

    def _find_open(self) -> list[bool]:
        """Which tensors end in linear steps, seen through movement, scaling and norms."""
        open_: list[bool] = []
        for node in self.tape.nodes:
            family, below = find_family(node.op), [open_[j] for j in node.inputs]
            open_.append(isinstance(family, Additive) and family.is_open(self.tape, node, below))
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
                self.is_linear(node.index)
                family = additive(node.op)
                if family.own_rule(self, node) is not None:
                    self._biases[node.index] = family.shift(self, node)

    def is_terminal(self, i: int) -> bool:
        """Whether the node's step has columns of its own."""
        op = self.tape.nodes[i].op
        family = find_family(op)
        return isinstance(family, Additive) and family.has_columns(op)

    def drains(self, i: int) -> Iterable[str]:
        """The drains that a node's step may have, whether or not anything arrives there."""
        node = self.tape.nodes[i]
        family = find_family(node.op)
        return () if family is None else family.drains(self, node)

    def choice(self, i: int) -> Choice | None:
        """What the composite says about this node in particular."""
        return self._choices.get(i)

    def coefficients(self, i: int) -> Sequence[float]:
        """alpha: the share of every input in a step where several variables meet."""
        if i not in self._shares:
            node = self.tape.nodes[i]
            self._shares[i] = family_of(node.op).coefficients(self, node)
        return self._shares[i]

    def coefficient(self, i: int, position: int) -> float:
        """alpha: the share of an input in a step where several variables meet."""
        return self.coefficients(i)[position]

    def softmax(self, i: int) -> bool:
        """Whether relevance passes a softmax by its own rule; else it is one-to-one."""
        if not isinstance(self.tape.nodes[i].op, Softmax):
            return False
        choice = self._choices.get(i)
        return isinstance(choice, SoftmaxRule) or (choice is None and self.composite.softmax is not None)

    def leaf_rule(self, i: int) -> Rule:
        """The rule of a linear step."""
        if i not in self._leaf_rules:
            choice, first = self._choices.get(i), self.composite.first
            if isinstance(choice, Rule):
                self._leaf_rules[i] = choice
            elif i in self._first and first is not None:
                self._leaf_rules[i] = first
            else:
                self._leaf_rules[i] = self.composite.kind(self.tape.nodes[i].op.kind)
        return self._leaf_rules[i]

    def leaves(self, i: int, rule: Rule | None = None) -> Iterable[Rule]:
        """The rules of everything that shares the columns of node i; ``rule`` is the one that it inherits."""
        node = self.tape.nodes[i]
        if rule is not None:
            return additive(node.op).leaves(self, node, rule)
        if i not in self._leaves:
            self._leaves[i] = tuple(additive(node.op).leaves(self, node, None))
        return self._leaves[i]

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
        """Whether every block is LRP-0 with coefficient 1, so that the column sum is the value without its biases."""
        node = self.tape.nodes[i]
        if rule is not None:
            return additive(node.op).is_linear(self, node, rule)
        if i not in self._linear:
            self._linear[i] = additive(node.op).is_linear(self, node, None)
        return self._linear[i]

    def shift(self, i: int) -> Tensor | None:
        """The folded bias of a step: what is left of its value when every block is 0."""
        node = self.tape.nodes[i]
        return self._biases[i] if i in self._biases else additive(node.op).shift(self, node)
