"""The blocks of an additive step: from its columns down to the linear steps and plain terms that share them.

All terms of a sum share one column. A term that ends in a linear step contributes that step's block, any other term the
identity block of its own value; scales and movement on the way belong to the maps between. Where a rule treats positive
and negative weights differently, a scale of both signs wants two nodes for a branch, one for its weights and one for
their opposites: a **slot** is the key and the group of a rule's factors that such a node stands for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor

from nrm.capture import Combine, Linear, Node, Term
from nrm.errors import RuleError
from nrm.operators import Identity
from nrm.rules import CONSTANT, Flat, Key, Rule
from nrm.steps.assignment import effective
from nrm.steps.factors import Factors
from nrm.steps.maps import Chained, Factored, Map, Scale, Scaled
from nrm.steps.nodes import BRANCH, COLUMN, RelevanceNode

if TYPE_CHECKING:
    from nrm.steps.network import Network

Slot = tuple[Key, int]


def is_proportional(network: Network, i: int) -> bool:
    """Whether the columns of a step sum to its value, so that densities pass it by its transpose alone."""
    exact = network.takes_shares and network.bias == "input" and not network.is_one(i)
    return exact and network.rules.is_linear(i)


def column_reads(network: Network, i: int) -> list[int]:
    """The tensors that the blocks of a step read."""
    return [j for j, _ in _reads(network, i, None, network.rules.pool(i))]


def column_ones(network: Network, i: int, is_one: bool) -> list[int]:
    """The tensors that blocks of a step read by rules whose entries do not vanish with the value."""
    spreads = network.zero == "uniform" and (is_one or network.bias != "input" or not network.rules.is_linear(i))
    return [j for j, rule in _reads(network, i, None, network.rules.pool(i)) if spreads or not rule.vanishes]


def _reads(network: Network, i: int, rule: Rule | None, override: Rule | None) -> list[tuple[int, Rule]]:
    """What the blocks of a column read, and by which rule."""
    rules, node = network.rules, network.tape.nodes[i]
    if isinstance(node.op, Linear):
        return [(node.inputs[0], effective(rules.leaf_rule(i), override))]
    rule = rules.plain_rule(i, rule)
    found = []
    for position, j in enumerate(node.inputs):
        if rules.coefficient(i, position) == 0:
            continue
        if rules.open[j]:
            found += _reads(network, j, rule, override)
        else:
            assert rule is not None
            found.append((j, effective(rule, override)))
    return found


def connect_column(network: Network, node: Node) -> None:
    """Links the plain node of an additive step to its blocks, and to its bias and sink."""
    i, here, rules = node.index, network.plain(node.index), network.rules
    override = rules.pool(i)
    groups = 2 if override is not None else 1
    if is_proportional(network, i):
        tops = [here]
    else:
        tops = []
        for group in range(groups):
            column, _ = network.node((i, COLUMN, group), i, COLUMN)
            network.link(here, column, Scaled(node.shape, _converts(network, i, group)))
            tops.append(column)
        network.link(here, network.drain(i, "sink"), Scaled(node.shape, lambda: network.column(i).lost))
        if network.zero == "uniform":
            flat, _ = network.node((i, COLUMN, "uniform"), i, COLUMN)
            network.link(here, flat, Scaled(node.shape, lambda: network.column(i).spread))
            _connect(network, node, {(CONSTANT, 0): flat}, None, Flat(), None)
    slots = {(key, group): tops[group] for group in range(groups) for key in sorted(rules.keys(i, override))}
    _connect(network, node, slots, None, override, None)
    for top, entry in zip(tops, bias_entries(network, i, groups), strict=True):
        if entry is not None:
            network.link(top, network.drain(i, "bias"), network.drained(i, _always(entry)))


def _converts(network: Network, i: int, group: int) -> Callable[[], Tensor]:
    return lambda: network.column(i).factors[group]


def _always(entry: Tensor) -> Callable[[], Tensor]:
    return lambda: entry


def _connect(
    network: Network, node: Node, slots: dict[Slot, RelevanceNode], rule: Rule | None, override: Rule | None,
    rows: Tensor | None,
) -> None:  # fmt: skip
    """Links nodes of an additive step, one for every slot, to what lies below them in the same columns."""
    i, rules = node.index, network.rules
    if isinstance(node.op, Linear):
        own, (j,) = effective(rules.leaf_rule(i), override), node.inputs
        for slot, above in slots.items():
            if slot[0] in own.keys:
                factors = Factors(
                    network.factors, own, *slot, node.op.map, network.tape.nodes[j], network.is_one(j), rows
                )
                network.link(above, network.plain(j), Factored(factors))
        return
    assert isinstance(node.op, Combine)
    rule = rules.plain_rule(i, rule)
    for position, (term, j) in enumerate(zip(node.op.terms, node.inputs, strict=True)):
        alpha = network.share(i, position)
        if alpha == 0:
            continue
        turned = folded_rows(network, node, position)
        links: dict[Slot, list[tuple[RelevanceNode, Map]]] = {}
        for slot, above in slots.items():
            for lower, post in _scaled(slot, term, alpha, turned is not None):
                links.setdefault(lower, []).append((above, network.local(i, j, term.move, post)))
        if rules.open[j]:
            _connect_branch(network, j, links, rule, override, turned)
        else:
            assert rule is not None
            _connect_plain(network, j, links, effective(rule, override))


def _connect_branch(
    network: Network, j: int, links: dict[Slot, list[tuple[RelevanceNode, Map]]], rule: Rule | None,
    override: Rule | None, rows: Tensor | None,
) -> None:  # fmt: skip
    """Links a branch. Columns that read it under the same rules share its nodes, whatever the scales above."""
    node, fresh = network.tape.nodes[j], {}
    if isinstance(node.op, Linear):
        own = effective(network.rules.leaf_rule(j), override)
        rule, links = own, {slot: found for slot, found in links.items() if slot[0] in own.keys}
    for slot, above in links.items():
        below, new = network.node((j, rule, override, slot, rows is not None), j, BRANCH)
        for upper, map in above:
            network.link(upper, below, map)
        if new:
            fresh[slot] = below
    if fresh:
        _connect(network, node, fresh, rule, override, rows)


def _connect_plain(
    network: Network, j: int, links: dict[Slot, list[tuple[RelevanceNode, Map]]], rule: Rule
) -> None:  # fmt: skip
    """Links a term that enters as it is: the rule's entries on the identity."""
    node = network.tape.nodes[j]
    identity = Identity(node.shape)
    for slot, above in links.items():
        if slot[0] in rule.keys:
            block = Factored(Factors(network.factors, rule, *slot, identity, node, network.is_one(j)))
            plain = rule.proportional and not network.is_one(j)  # then its entries are 1
            for upper, map in above:
                network.link(upper, network.plain(j), map if plain else Chained(block, map))


def folded_rows(network: Network, node: Node, position: int) -> Tensor | None:
    """A scale of both signs on a linear step of its own, as a scale of the rows of its weights.

    Otherwise it wants two densities: one for the weights, one for their opposites.
    """
    assert isinstance(node.op, Combine)
    term, below = node.op.terms[position], network.tape.nodes[node.inputs[position]]
    if not isinstance(below.op, Linear) or term.move is not None:
        return None
    if not isinstance(term.scale, Tensor) or not term.flips:
        return None
    alone = network.tape.consumers[below.index] == [node.index] and node.inputs.count(below.index) == 1
    return below.op.map.rows(term.scale) if alone else None


def _scaled(slot: Slot, term: Term, alpha: float, folded: bool) -> list[tuple[Slot, Scale]]:
    """The slots below a term's scale: powers scale, signs swap where the scale is negative."""
    (kind, number), group = slot
    scale = term.scale
    one = isinstance(scale, float) and scale == 1.0
    if folded or one or (kind == "power" and number == 0):
        return [(slot, None if alpha == 1 else alpha)]
    if kind == "power":
        return [(slot, (scale if number == 1 else scale**number) * alpha)]
    if not term.flips:
        return [(slot, scale * alpha)]
    opposite: Slot = ((kind, -number), group)
    if isinstance(scale, float):
        return [(opposite, -scale * alpha)]
    return [(slot, scale.clamp(min=0) * alpha), (opposite, (-scale).clamp(min=0) * alpha)]


def bias_entries(network: Network, i: int, groups: int) -> tuple[Tensor | None, ...]:
    """What the folded bias of a step puts into its columns, in each group; None: nothing."""
    shift = network.rules.shift(i) if network.bias == "input" else None
    if shift is None:
        return (None,) * groups
    override, rules = network.rules.pool(i), set(network.rules.leaves(i))
    rule = override or (next(iter(rules)) if len(rules) == 1 else None)
    shift = shift.to(network.tape.dtype)
    try:
        entries = (shift,) if rule is None else rule.bias(shift)  # of mixed branches: as it is
    except RuleError as error:
        raise error.at(network.tape.nodes[i].name) from None
    return (*entries, *(None,) * (groups - len(entries)))
