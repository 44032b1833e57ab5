"""Sums: residual additions, batch norms, sums over neighbours; and data movement and scaling, sums of one term."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from nrm.capture import Combine, Node, Op, Tape
from nrm.errors import RuleError
from nrm.rules import LRP0, Pass, Rule, Sum
from nrm.steps.blocks import (
    Upward,
    column_ones,
    column_reads,
    connect_branch,
    connect_column,
    connect_plain,
    effective,
    scaled_slots,
)
from nrm.steps.families.product import product_shares
from nrm.steps.family import Additive, Slot, additive, family
from nrm.steps.nodes import RelevanceNode

if TYPE_CHECKING:
    from nrm.steps.assignment import Assignment
    from nrm.steps.network import Network


@family(Combine)
class Sums(Additive):
    """``y = sum of scale * move(x) + shift``: one column of all its terms where they meet, else every entry moves."""

    def connect(self, network: Network, node: Node) -> None:
        op, i = _sum(node), node.index
        if op.joins:
            connect_column(network, node)
            return
        for term, j in zip(op.terms, node.inputs, strict=True):
            post: Tensor | float | None = network.per_unit(i, j)
            if not network.is_one(i) and not network.is_one(j):
                post = None if term.is_plain else term.scale
            network.link(network.plain(i), network.plain(j), network.local(i, j, term.move, post))

    def reads(self, network: Network, node: Node) -> Iterable[int]:
        return column_reads(network, node.index) if _sum(node).joins else node.inputs

    def ones(self, network: Network, node: Node, is_one: bool) -> Iterable[int]:
        return column_ones(network, node.index, is_one) if _sum(node).joins else super().ones(network, node, is_one)

    def is_nonnegative(self, network: Network, node: Node) -> bool:
        return True

    # ---- rules -----------------------------------------------------------------------------------------------

    def coefficients(self, rules: Assignment, node: Node) -> Sequence[float]:
        """The coefficient of every term; of a product of matrices the shares of its factors, one for each half."""
        if node.op.kind == "matmul":
            factors = [rules.tape.nodes[j].inputs[0] for j in node.inputs]
            return product_shares(rules, node, factors, float(len(factors)))
        choice = rules.choice(node.index)
        return _chosen(rules, node, choice) if isinstance(choice, Sum) else super().coefficients(rules, node)

    def is_open(self, tape: Tape, node: Node, below: Sequence[bool]) -> bool:
        """Seen through movement, scaling and norms; a sum that several tensors read keeps its columns to itself."""
        op = _sum(node)
        if op.kind == "batchnorm":
            return True
        return len(tape.consumers[node.index]) == 1 or len(op.terms) == 1 if op.joins else any(below)

    def has_columns(self, op: Op) -> bool:
        assert isinstance(op, Combine)
        return op.joins

    def leaves(self, rules: Assignment, node: Node, rule: Rule | None) -> Iterator[Rule]:
        rule = plain_rule(rules, node, rule)
        for j in node.inputs:
            if rules.open[j]:
                yield from rules.leaves(j, rule)
            else:
                assert rule is not None
                yield rule

    def is_linear(self, rules: Assignment, node: Node, rule: Rule | None) -> bool:
        """The halves of a product are equal, so that their coefficients make no difference to the sum."""
        rule = plain_rule(rules, node, rule)
        if node.op.kind != "matmul" and any(alpha != 1 for alpha in rules.coefficients(node.index)):
            return False
        plain = rule is not None and rule.proportional
        return all(rules.is_linear(j, rule) if rules.open[j] else plain for j in node.inputs)

    def shift(self, rules: Assignment, node: Node) -> Tensor | None:
        op, total = _sum(node), None
        if op.shift is not None:
            total = torch.as_tensor(op.shift, dtype=node.dtype, device=node.device)
        for position, (term, j) in enumerate(zip(op.terms, node.inputs, strict=True)):
            below = rules.shift(j) if rules.open[j] else None
            if below is None:
                continue
            if term.move is not None:
                below = term.move.apply(below.expand(rules.tape.nodes[j].shape)[None])[0]
            below = below * term.scale * rules.coefficient(node.index, position)
            total = below if total is None else total + below
        return total

    def branch_rule(self, rules: Assignment, node: Node) -> Rule | None:
        return _first_branch(rules, node)

    # ---- columns ---------------------------------------------------------------------------------------------

    def blocks(self, network: Network, node: Node, rule: Rule | None, override: Rule | None) -> list[tuple[int, Rule]]:
        rules, rule = network.rules, plain_rule(network.rules, node, rule)
        found: list[tuple[int, Rule]] = []
        for position, j in enumerate(node.inputs):
            if rules.coefficient(node.index, position) == 0:
                continue
            if rules.open[j]:
                below = network.tape.nodes[j]
                found += additive(below.op).blocks(network, below, rule, override)
            else:
                assert rule is not None
                found.append((j, effective(rule, override)))
        return found

    def connect_slots(
        self, network: Network, node: Node, slots: dict[Slot, RelevanceNode], rule: Rule | None, override: Rule | None,
        rows: Tensor | None,
    ) -> None:  # fmt: skip
        i, rules, rule = node.index, network.rules, plain_rule(network.rules, node, rule)
        for position, (term, j) in enumerate(zip(_sum(node).terms, node.inputs, strict=True)):
            alpha = network.share(i, position)
            if alpha == 0:
                continue
            turned = _folded_rows(network, node, position)
            links: Upward = {}
            for slot, above in slots.items():
                for lower, post in scaled_slots(slot, term, alpha, turned is not None):
                    links.setdefault(lower, []).append((above, network.local(i, j, term.move, post)))
            if rules.open[j]:
                connect_branch(network, j, links, rule, override, turned)
            else:
                assert rule is not None
                connect_plain(network, j, links, effective(rule, override))


def plain_rule(rules: Assignment, node: Node, inherited: Rule | None) -> Rule | None:
    """The rule of terms that enter a sum as they are: the rule of the branch they join."""
    op = _sum(node)
    if not op.joins:
        return inherited
    choice = rules.choice(node.index)
    if isinstance(choice, Rule):
        return choice
    if isinstance(choice, Sum) and choice.rule is not None:
        return choice.rule
    if op.kind == "batchnorm" or (len(op.terms) == 1 and op.kind != "propagate"):
        return inherited if inherited is not None else (Pass() if rules.bias == "ignore" else LRP0())
    branch = _first_branch(rules, node)
    return branch if branch is not None else rules.composite.add


def _sum(node: Node) -> Combine:
    assert isinstance(node.op, Combine)
    return node.op


def _first_branch(rules: Assignment, node: Node) -> Rule | None:
    """The rule of the first layer that a term ends in."""
    below = (rules.tape.nodes[j] for j in node.inputs if rules.open[j])
    return next((r for b in below if (r := additive(b.op).branch_rule(rules, b)) is not None), None)


def _chosen(rules: Assignment, node: Node, choice: Sum) -> list[float]:
    if isinstance(choice.alpha, tuple):
        if len(choice.alpha) not in (1, len(node.inputs)):
            raise RuleError(
                "the coefficients do not fit the terms of a sum", where=node.name,
                got=f"{len(choice.alpha)} of them", expected=f"{len(node.inputs)}",
            )  # fmt: skip
        alphas = choice.alpha if len(choice.alpha) > 1 else choice.alpha * len(node.inputs)
        return [float(a) for a in alphas]
    return [float(choice.alpha.get("branch" if rules.open[j] else "skip", 1.0)) for j in node.inputs]


def _folded_rows(network: Network, node: Node, position: int) -> Tensor | None:
    """A scale on a linear step of its own, as a batch norm has, as a scale of the rows of its weights.

    One of both signs would otherwise want two densities: one for the weights, one for their opposites. Any other one is
    folded where the step has fewer weights than results, which would be scaled on the way up and on the way down.
    """
    term, below = _sum(node).terms[position], network.tape.nodes[node.inputs[position]]
    if not network.rules.open[below.index] or term.move is not None or not isinstance(term.scale, Tensor):
        return None
    alone = network.tape.consumers[below.index] == [node.index] and node.inputs.count(below.index) == 1
    if not alone or not (additive(below.op).weights(below) <= node.shape.numel() or term.flips):
        return None
    return additive(below.op).rows(below, term.scale)
