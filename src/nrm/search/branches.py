"""What the column of a neuron is made of: every way on from it, one step toward the inputs.

:meth:`nrm.rules.Network.pull` carries whole messages; here the same step is taken from single neurons, because the best
walk through a neuron depends on its entries one by one. A fused step is seen through down to its blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nrm.capture import Combine, Linear, Multiply, Pointwise, Select, Source, Term
from nrm.operators import Identity, Scatter
from nrm.questions.sweep import Site
from nrm.rules import Flat, Network, Pass, Rule
from nrm.rules.density import START, Density, effective, scaled
from nrm.rules.rules import CONSTANT, LINEAR
from nrm.search.fields import sources


@dataclass(frozen=True, eq=False)
class Branch:
    """One way on from some neurons: to one neuron each of ``to``, or through the linear step ``leaf`` to its window.

    ``at`` is the neuron below, of ``to`` or of the linear step's output (-1: this neuron does not go there), and
    ``density`` what its entries are multiplied with, by key and group of the rule's factors; without a linear step it
    is the entry itself. ``via`` are the tensors inside the fused step, each with its neurons.
    """

    to: Site
    at: Tensor
    density: Density
    leaf: int | None = None
    rule: Rule | None = None
    via: tuple[tuple[int, Tensor], ...] = ()

    @property
    def entry(self) -> Tensor:
        """The entries of a branch without a linear step."""
        return self.density[LINEAR, 0]

    @property
    def route(self) -> tuple[Site, int | None, tuple[int, ...], Rule | None]:
        """Which tensors it passes. Entries of one neuron on the same route, by the same neurons, are one entry."""
        return self.to, self.leaf, tuple(i for i, _ in self.via), self.rule


def branches(network: Network, i: int, neurons: Tensor) -> list[Branch]:
    """Every way on from some neurons (flat indices) of node i that relevance arrives at."""
    return _merged([*_inner(network, i, neurons), *_drains(network, i, neurons)])


def pick(values: Tensor, shape: torch.Size, neurons: Tensor) -> Tensor:
    """The entries of a tensor that broadcasts to a shape, at flat indices of that shape."""
    if values.shape == shape and values.is_contiguous():
        return values.view(-1)[neurons]
    if not shape:
        return values.expand(neurons.shape)
    return values.expand(shape)[torch.unravel_index(neurons, shape)]


def _inner(network: Network, i: int, neurons: Tensor) -> Iterator[Branch]:
    node, op, rules = network.tape.nodes[i], network.tape.nodes[i].op, network.rules
    ones = torch.ones(len(neurons), dtype=network.tape.dtype, device=neurons.device)
    if rules.is_terminal(i):
        columns, override = network.columns[i], rules.pool(i)
        inverse = [1 / pick(sums, node.shape, neurons) for sums in columns.sums]
        keys = sorted(rules.keys(i, override))
        density = {(key, group): d for group, d in enumerate(inverse) for key in keys}
        yield from _fall(network, i, neurons, density, START, override)
        if columns.spread is not None:
            spread = pick(columns.spread, node.shape, neurons)
            yield from _fall(network, i, neurons, {(CONSTANT, 0): spread}, START, Flat())
    elif isinstance(op, Combine):
        for term, j in zip(op.terms, node.inputs, strict=True):
            yield _plain(j, sources(term.move, neurons), ones)
    elif isinstance(op, Pointwise):
        kept = ones if op.offset == 0 else pick(network.kept_share(i), node.shape, neurons)
        yield _plain(node.inputs[0], neurons, kept)
    elif isinstance(op, Select):
        yield _plain(node.inputs[0], sources(op.map, neurons), ones)
    elif isinstance(op, Multiply):
        for position, (move, j) in enumerate(zip(op.moves, node.inputs, strict=True)):
            alpha = rules.coefficient(i, position)
            if alpha != 0:
                yield _plain(j, sources(move, neurons), ones * alpha)
    else:
        assert isinstance(op, Source)


def _plain(j: int, at: Tensor, entry: Tensor) -> Branch:
    return Branch(Site(j), at.clamp(min=0), {(LINEAR, 0): torch.where(at < 0, torch.zeros_like(entry), entry)})


def _fall(
    network: Network, i: int, at: Tensor, density: Density, rule: Rule, override: Rule | None,
    via: tuple[tuple[int, Tensor], ...] = (),
) -> Iterator[Branch]:  # fmt: skip
    """Densities through a fused step, down to its linear steps and plain terms."""
    node, rules = network.tape.nodes[i], network.rules
    if isinstance(node.op, Linear):
        own = effective(rules.leaf_rule(i), override)
        kept = {slot: d for slot, d in density.items() if slot[0] in own.keys}
        to = Site(node.inputs[0])
        if isinstance(own, Pass):
            _ = own.factors(CONSTANT, node.op.map, node.value, False)  # refuses a step that changes the shape
            yield Branch(to, at, {(LINEAR, 0): _total(kept, at)}, via=via)
        else:
            yield Branch(to, at, kept, leaf=i, rule=own, via=via)
        return
    assert isinstance(node.op, Combine)
    rule = rules.plain_rule(i, rule)
    for position, (term, j) in enumerate(zip(node.op.terms, node.inputs, strict=True)):
        alpha = rules.coefficient(i, position)
        if alpha == 0:
            continue
        scale = pick(term.scale, node.shape, at) if isinstance(term.scale, Tensor) else term.scale
        for below in term.move.rounds(at) if isinstance(term.move, Scatter) else [sources(term.move, at)]:
            share = (below >= 0).to(network.tape.dtype) * alpha
            part = {slot: d * share for slot, d in scaled(density, Term(scale=scale), None).items()}
            below = below.clamp(min=0)
            if rules.open[j]:
                yield from _fall(network, j, below, part, rule, override, (*via, (j, below)))
            else:
                entry = _identity_entry(network, j, below, part, effective(rule, override))
                yield Branch(Site(j), below, {(LINEAR, 0): entry}, via=via)


def _identity_entry(network: Network, j: int, at: Tensor, density: Density, rule: Rule) -> Tensor:
    """The entries of a plain term: its rule on the identity."""
    node = network.tape.nodes[j]
    parts: Density = {}
    for key in sorted({key for key, _ in density}.intersection(rule.keys)):
        for number, (a, map, group) in enumerate(network.blocks.factors(rule, key, Identity(node.shape), j)):
            if (key, group) in density:
                assert isinstance(map, Identity)
                value = pick(a, node.shape, at) if isinstance(a, Tensor) else a
                parts[key, 2 * number + group] = density[key, group] * value * map.weight
    return _total(parts, at)


def _total(parts: Density, like: Tensor) -> Tensor:
    found = list(parts.values())
    return sum(found[1:], found[0]) if found else torch.zeros(len(like), device=like.device)


def _drains(network: Network, i: int, neurons: Tensor) -> Iterator[Branch]:
    """What goes to the node's own bias, offset and sink."""
    node, op = network.tape.nodes[i], network.tape.nodes[i].op
    entries: dict[str, Tensor] = {}
    if network.rules.is_terminal(i):
        columns = network.columns[i]
        for sums, entry in zip(columns.sums, columns.bias, strict=True):
            if entry is not None:
                share = pick(entry, node.shape, neurons) / pick(sums, node.shape, neurons)
                entries["bias"] = entries["bias"] + share if "bias" in entries else share
    elif isinstance(op, Pointwise) and op.offset != 0:
        entries["offset"] = pick(network.offset_share(i), node.shape, neurons)
    dead = network.sink(i)
    if dead is not None:
        entries["sink"] = pick(dead, node.shape, neurons).to(network.tape.dtype)
    for port, entry in entries.items():
        at = pick(network.drain_index(i, port), node.shape, neurons)
        yield Branch(Site(i, port=port), at, {(LINEAR, 0): entry})


def _merged(found: list[Branch]) -> list[Branch]:
    """Terms of one sum that are the same tensor are one way: where they pass the same neurons, entries add up."""
    result: list[Branch] = []
    for new in found:
        for k, old in enumerate(result):
            if new.route == old.route:
                same = new.at == old.at
                for (_, mine), (_, other) in zip(new.via, old.via, strict=True):  # an edge twice: two walks
                    same = same & (mine == other)
                shared = {s: torch.where(same, d, torch.zeros_like(d)) for s, d in new.density.items()}
                rest = {s: torch.where(same, torch.zeros_like(d), d) for s, d in new.density.items()}
                total = {s: old.density.get(s, 0) + shared.get(s, 0) for s in {**old.density, **shared}}
                result[k] = replace(old, density={s: torch.as_tensor(d) for s, d in total.items()})
                new = replace(new, density=rest)
        if new.density and not all(bool((d == 0).all()) for d in new.density.values()):
            result.append(new)
    return result
