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

from nrm.capture import Node, Term
from nrm.errors import RuleError
from nrm.operators import Identity
from nrm.rules import CONSTANT, Flat, Rule
from nrm.steps.factors import Factors
from nrm.steps.family import Slot, additive
from nrm.steps.maps import Chained, Factored, Map, Scale, Scaled
from nrm.steps.nodes import BRANCH, COLUMN, RelevanceNode

if TYPE_CHECKING:
    from nrm.steps.network import Network

Upward = dict[Slot, list[tuple[RelevanceNode, Map]]]
"""The nodes above a branch, and the maps to them, for every slot below."""


def effective(rule: Rule, override: Rule | None) -> Rule:
    """The rule of a block inside a column that another rule pools or replaces."""
    if override is None:
        return rule
    return override if rule.signed or not override.pools else rule


def is_proportional(network: Network, i: int) -> bool:
    """Whether the columns of a step sum to its value, so that densities pass it by its transpose alone."""
    exact = network.takes_shares and network.bias == "input" and not network.is_one(i)
    return exact and network.rules.is_linear(i)


def column_reads(network: Network, i: int) -> list[int]:
    """The tensors that the blocks of a step read."""
    return [j for j, _ in _blocks(network, i)]


def column_ones(network: Network, i: int, is_one: bool) -> list[int]:
    """The tensors that blocks of a step read by rules whose entries do not vanish with the value."""
    spreads = network.zero == "uniform" and (is_one or network.bias != "input" or not network.rules.is_linear(i))
    return [j for j, rule in _blocks(network, i) if spreads or not rule.vanishes]


def _blocks(network: Network, i: int) -> list[tuple[int, Rule]]:
    """What the blocks of a column read, and by which rule."""
    node = network.tape.nodes[i]
    return additive(node.op).blocks(network, node, None, network.rules.pool(i))


def connect_column(network: Network, node: Node) -> None:
    """Links the plain node of an additive step to its blocks, and to its bias and sink."""
    i, here, rules = node.index, network.plain(node.index), network.rules
    override, family = rules.pool(i), additive(node.op)
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
            family.connect_slots(network, node, {(CONSTANT, 0): flat}, None, Flat(), None)
    slots = {(key, group): tops[group] for group in range(groups) for key in sorted(rules.keys(i, override))}
    family.connect_slots(network, node, slots, None, override, None)
    for top, entry in zip(tops, bias_entries(network, i, groups), strict=True):
        if entry is not None:
            network.link(top, network.drain(i, "bias"), network.drained(i, _always(entry)))


def _converts(network: Network, i: int, group: int) -> Callable[[], Tensor]:
    return lambda: network.column(i).factors[group]


def _always(entry: Tensor) -> Callable[[], Tensor]:
    return lambda: entry


def connect_branch(
    network: Network, j: int, links: Upward, rule: Rule | None, override: Rule | None, rows: Tensor | None
) -> None:
    """Links a branch. Columns that read it under the same rules share its nodes, whatever the scales above."""
    node, fresh = network.tape.nodes[j], {}
    family = additive(node.op)
    own = family.own_rule(network.rules, node)
    if own is not None:
        rule = effective(own, override)
        links = {slot: found for slot, found in links.items() if slot[0] in rule.keys}
    for slot, above in links.items():
        below, new = network.node((j, rule, override, slot, rows is not None), j, BRANCH)
        for upper, map in above:
            network.link(upper, below, map)
        if new:
            fresh[slot] = below
    if fresh:
        family.connect_slots(network, node, fresh, rule, override, rows)


def connect_plain(network: Network, j: int, links: Upward, rule: Rule) -> None:
    """Links a term that enters as it is: the rule's entries on the identity."""
    node = network.tape.nodes[j]
    identity = Identity(node.shape)
    for slot, above in links.items():
        if slot[0] in rule.keys:
            block = Factored(Factors(network.factors, rule, *slot, identity, node, network.is_one(j)))
            plain = rule.proportional and not network.is_one(j)  # then its entries are 1
            for upper, map in above:
                network.link(upper, network.plain(j), map if plain else Chained(block, map))


def scaled_slots(slot: Slot, term: Term, alpha: float, folded: bool) -> list[tuple[Slot, Scale]]:
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
