"""The blocks of additive steps: their unnormalized push (*rise*), from which column sums follow, and their pull."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from nrm.capture import NONNEGATIVE, Combine, Linear, Select
from nrm.operators import (
    Convolution,
    Dense,
    Identity,
    LinearMap,
    Place,
    apply_by_channel,
    channel_table,
    place_all,
    transpose_by_channel,
)
from nrm.rules.assignment import Assignment
from nrm.rules.density import (
    EVERYTHING,
    START,
    Density,
    Packet,
    Values,
    absolute_of,
    effective,
    scaled,
)
from nrm.rules.rules import NEGATIVE, POSITIVE, SIGN, TURNED, AlphaBeta, Factor, Key, Rule, ZBox

RECENT = 5
"""So many steps' factors are kept: a residual sum and what lies under it until its last branch is pulled."""

LARGE = 2**22
"""The factors of a step with more weights than this are kept alone."""


class Blocks:
    """The blocks of a tape under its rules. A linear step is one block; a plain term is an identity block."""

    def __init__(self, assignment: Assignment) -> None:
        self.tape = assignment.tape
        self.rules = assignment
        self.is_absolute = False
        self._is_bound = False
        self._nonnegative: dict[int, bool] = {}
        self._identities: dict[int, Identity] = {}
        self._turned: dict[tuple[int, int], bool] = {}
        self._turns: dict[LinearMap, Tensor] = {}
        """The signs of the rows, for the maps that turn them."""
        self._recent: dict[tuple[Rule, Key, LinearMap, int], list[Factor]] = {}
        """The factors of the last steps: column sums are followed by a pull, with the same changed weights."""
        self._shared: dict[int, dict[tuple[frozenset[Key], Rule, Rule | None], Density]] = {}
        """Rises of the branches that several steps read, until they are left."""
        self._twins: dict[bool, Blocks] = {}

    def absolute(self) -> Blocks:
        """The same blocks with the absolute values of all their factors, coefficients and scales."""
        return self._twin(is_bound=False)

    def bounds(self) -> Blocks:
        """Blocks whose sums over everything are at least those of the absolute ones, and cheaper."""
        return self._twin(is_bound=True)

    def _twin(self, *, is_bound: bool) -> Blocks:
        if is_bound not in self._twins:
            twin = copy.copy(self)
            twin.is_absolute, twin._is_bound = True, is_bound
            twin._recent, twin._shared, twin._twins = {}, {}, {}
            self._twins[is_bound] = twin
        return self._twins[is_bound]

    def rise(
        self, i: int, keys: set[Key], rule: Rule, below: Values, *,
        override: Rule | None = None,
    ) -> Density:  # fmt: skip
        """The unnormalized push into an additive step: for every key, ``sum_k V_k(a_k * v)`` of the blocks below."""
        node = self.tape.nodes[i]
        if isinstance(node.op, Linear):
            own, j = effective(self.rules.leaf_rule(i), override), node.inputs[0]
            v, rows = below.together(j, i) or (below.at(j, i), None)
            return self._rise_block(node.op.map, j, own, keys, v, rows)
        assert isinstance(node.op, Combine)
        rule = self.rules.plain_rule(i, rule)
        total: Density = {}
        placed: dict[tuple[Key, int], list[tuple[Place, Tensor]]] = {}
        for position, (term, j) in enumerate(zip(node.op.terms, node.inputs, strict=True)):
            alpha = self.rules.coefficient(i, position)
            if alpha == 0:
                continue
            turns = self.turns(i, position)
            wanted = {(TURNED, key[1]) if turns and key[0] == SIGN else key for key in keys}
            if POSITIVE in wanted and term.flips:
                wanted.add(NEGATIVE)
            if self.rules.open[j]:
                entered = below.enter(j, i)
                inside = below if entered is None else entered[0]
                part = self._rise_branch(j, wanted, rule, inside, override)
                if entered is not None:
                    part = {key: entered[1](tensor) for key, tensor in part.items()}
            else:
                plain = effective(rule, override)
                part = self._rise_block(self._identity(j), j, plain, wanted, below.at(j, i))
            is_piece = isinstance(term.move, Place) and isinstance(term.scale, float)
            if term.move is not None and not is_piece:
                part = {key: term.move.apply(tensor) for key, tensor in part.items()}
            for key, tensor in scaled(part, term, keys, self.is_absolute, turns=turns).items():
                tensor = tensor if alpha == 1 else tensor * (abs(alpha) if self.is_absolute else alpha)
                if is_piece:
                    placed.setdefault(key, []).append((cast(Place, term.move), tensor))
                else:
                    total[key] = total[key] + tensor if key in total else tensor
        for key, pieces in placed.items():
            whole = place_all(pieces)
            total[key] = total[key] + whole if key in total else whole
        return total

    def _rise_branch(self, j: int, keys: set[Key], rule: Rule, below: Values, override: Rule | None) -> Density:
        """The rise of a branch. Of one that several steps read, as in DenseNet, that of everything is computed once."""
        if below is not EVERYTHING or len(self.tape.consumers[j]) == 1:
            return self.rise(j, keys, rule, below, override=override)
        asked, known = (frozenset(keys), rule, override), self._shared.setdefault(j, {})
        if asked not in known:
            known[asked] = self.rise(j, keys, rule, below, override=override)
        return known[asked]

    def _rise_block(
        self, map: LinearMap, j: int, rule: Rule, keys: set[Key], v: Tensor | None,
        rows: Sequence[int] | None = None,
    ) -> Density:  # fmt: skip
        """The same of one block; with ``rows``, for every one of these input channels by itself."""
        total: Density = {}
        if v is None:
            return total
        for key in sorted(key for key in keys if straight(key) in rule.keys):
            for factor in self.factors(rule, key, map, j):
                x = self._weighted(factor.a, v, j)
                if self._is_bound:
                    entry = factor.map.bound(x)
                else:
                    entry = factor.map.apply(x) if rows is None else apply_by_channel(factor.map, x, rows)
                slot = (key, factor.group)
                total[slot] = total[slot] + entry if slot in total else entry
        return total

    def _weighted(self, a: Tensor | float, v: Tensor, j: int) -> Tensor:
        node = self.tape.nodes[j]
        if v.ndim == 0:  # everything: 1 at every neuron
            if isinstance(a, Tensor):
                return a.expand(node.shape)[None]
            return torch.full((1, *node.shape), a, dtype=self.tape.dtype, device=node.value.device)
        return a * v

    def factors(self, rule: Rule, key: Key, map: LinearMap, j: int) -> list[Factor]:
        """The factors of one key of a rule on a map whose input is node j; those of the last calls are kept."""
        asked = (rule, key, map, j)
        if asked not in self._recent:
            self._make_room(map)
            h = self.tape.nodes[j].value
            bounded = rule.within(h, self.tape.nodes[j].sample) if isinstance(rule, ZBox) else rule
            straightened = map if key[0] != TURNED else map.reweight(self._turns[map].mul)
            factors = bounded.factors(straight(key), straightened, h, self._is_nonnegative(j))
            if self.is_absolute:
                changed = [f.map if self._is_bound else f.map.reweight(torch.abs) for f in factors]
                factors = [Factor(absolute_of(f.a), map, f.group) for f, map in zip(factors, changed, strict=True)]
            self._recent[asked] = factors
        return self._recent[asked]

    def turns(self, i: int, position: int) -> bool:
        """Whether a branch of a combination turns the rows of its step where the scale on them is negative.

        Otherwise a scale of both signs wants two densities: one for the weights, one for their opposites.
        """
        if (i, position) not in self._turned:
            node = self.tape.nodes[i]
            assert isinstance(node.op, Combine)
            term, below = node.op.terms[position], self.tape.nodes[node.inputs[position]]
            rows = None
            if isinstance(below.op, Linear) and isinstance(term.scale, Tensor) and term.move is None and term.flips:
                alone = self.tape.consumers[below.index] == [i] and node.inputs.count(below.index) == 1
                rows = below.op.map.rows(term.scale) if alone else None
                if rows is not None:
                    self._turns[below.op.map] = torch.where(rows < 0, -1.0, 1.0).to(rows)
            self._turned[i, position] = rows is not None
        return self._turned[i, position]

    def _identity(self, j: int) -> Identity:
        """The block of a plain term, always the same value for a tensor."""
        if j not in self._identities:
            self._identities[j] = Identity(self.tape.nodes[j].shape)
        return self._identities[j]

    def _make_room(self, map: LinearMap) -> None:
        weight = getattr(map, "weight", None)
        kept = 1 if isinstance(weight, Tensor) and weight.numel() > LARGE else RECENT
        while len(self._recent) >= kept:
            del self._recent[next(iter(self._recent))]

    def leave(self, i: int) -> None:
        """Forgets the rises of a branch that all its readers have seen."""
        for blocks in (self, *self._twins.values()):
            blocks._shared.pop(i, None)

    def forget(self) -> None:
        """Forgets the factors of the last steps."""
        self._recent.clear()

    def release(self) -> None:
        """Forgets the factors of the last steps, and what steps have in common."""
        self.forget()
        self._shared.clear()
        self._twins.clear()

    def _is_nonnegative(self, j: int) -> bool:
        """Whether no entry of a tensor is below 0: known from its op, or else looked up once."""
        if j not in self._nonnegative:
            node = self.tape.nodes[j]
            if node.function in NONNEGATIVE:
                known = True
            elif isinstance(node.op, Select) or (isinstance(node.op, Combine) and not node.op.joins and all(
                isinstance(t.scale, float) and t.scale >= 0 for t in node.op.terms
            )):  # fmt: skip
                known = all(self._is_nonnegative(k) for k in node.inputs)
            else:
                known = not node.value.numel() or float(node.value.amin()) >= 0
            self._nonnegative[j] = known
        return self._nonnegative[j]

    def pull(self, i: int, op: Linear, packets: list[Packet]) -> Tensor:
        """The density that has arrived at a linear step, as relevance of its input."""
        return self._block(op.map, self.tape.nodes[i].inputs[0], self._collected(i, packets))

    def pull_by_channel(self, i: int, op: Linear, packets: list[Packet], rows: Sequence[int]) -> Tensor:
        """The same for every one of these output channels by itself, ``(K R, *shape)``."""
        collected = self._collected(i, packets)
        return self._block(op.map, self.tape.nodes[i].inputs[0], collected, rows)

    def table(self, i: int, op: Linear, packets: list[Packet], v: Tensor) -> Tensor:
        """The same for every pair of channels at once, jointly with an event whose values at the input are ``v``.

        ``(K, batch, input channels, output channels)``, the stacks of density and values multiplied, density first.
        """
        j = self.tape.nodes[i].inputs[0]
        parts: list[Tensor] = []
        collected = self._collected(i, packets)
        for rule, key in dict.fromkeys((rule, key) for rule, key, _ in collected):
            for factor in self.factors(rule, key, op.map, j):
                d = collected.get((rule, key, factor.group))
                if d is None:
                    continue
                a = factor.a * v
                if a.shape[0] > 1 and d.shape[0] > 1:
                    a, d = a.repeat(d.shape[0], *(1,) * (a.ndim - 1)), d.repeat_interleave(a.shape[0], 0)
                parts.append(channel_table(factor.map, a, d))
        return sum(parts[1:], parts[0])

    def _collected(self, i: int, packets: list[Packet]) -> dict[tuple[Rule, Key, int], Tensor]:
        """The density that has arrived at a linear step by all edges, by rule, key and group."""
        own = self.rules.leaf_rule(i)
        collected: dict[tuple[Rule, Key, int], Tensor] = {}
        for packet in packets:
            rule = effective(own, packet.override)
            for (key, group), d in packet.density.items():
                if straight(key) in rule.keys:
                    slot = (rule, key, group)
                    collected[slot] = collected[slot] + d if slot in collected else d
        return collected

    def _block(
        self, map: LinearMap, j: int, collected: dict[tuple[Rule, Key, int], Tensor], rows: Sequence[int] | None = None
    ) -> Tensor:
        total: Tensor | None = None
        for rule, key in dict.fromkeys((rule, key) for rule, key, _ in collected):
            for factor in self.factors(rule, key, map, j):
                d = collected.get((rule, key, factor.group))
                if d is not None:
                    part = factor.map.transpose(d) if rows is None else transpose_by_channel(factor.map, d, rows)
                    if isinstance(factor.a, Tensor) and isinstance(factor.map, Convolution | Dense):
                        part.mul_(factor.a)  # a fresh tensor: no need for another one
                    elif isinstance(factor.a, Tensor) or factor.a != 1:
                        part = part * factor.a
                    total = part if total is None else total + part
        if total is None:
            first = next(iter(collected.values()), None)
            stack = (1 if first is None else first.shape[0]) * (1 if rows is None else len(rows))
            total = self.tape.nodes[j].value.new_zeros(stack, *self.tape.nodes[j].shape)
        return total

    def plain(self, j: int, packet: Packet) -> Tensor:
        """The density that has arrived at a plain term, as its relevance."""
        rule = effective(packet.rule, packet.override)
        collected = {(rule, key, group): d for (key, group), d in packet.density.items() if key in rule.keys}
        if not collected:
            stack = next(iter(packet.density.values())).shape[0]
            return self.tape.nodes[j].value.new_zeros(stack, *self.tape.nodes[j].shape)
        return self._block(self._identity(j), j, collected)

    def column_sums(self, i: int, rule: Rule | None = None, override: Rule | None = None) -> list[Tensor]:
        """The sums over the blocks of every column, per group; biases are not in them."""
        rule, override = rule or START, override or self.rules.pool(i)
        if override is None and self.rules.is_linear(i, rule):
            shift, value = self.shift(i), self.tape.nodes[i].value
            if shift is None:
                return [value]
            z = value - shift
            noise = z.abs() <= noise_floor(value.abs() + shift.abs())
            if not bool(noise.any()):
                return [z]
            exact = self.rise(i, self.rules.keys(i, None), rule, EVERYTHING)
            parts = list(exact.values())
            return [torch.where(noise, sum(parts[1:], parts[0])[0], z)]
        groups = 2 if isinstance(override, AlphaBeta) else 1
        rise = self.rise(i, self.rules.keys(i, override), rule, EVERYTHING, override=override)
        shape = self.tape.nodes[i].shape
        sums: list[Tensor] = []
        for g in range(groups):
            parts = [d for (_, group), d in rise.items() if group == g]
            total = sum(parts[1:], parts[0])[0] if parts else self.tape.nodes[i].value.new_zeros(shape)
            sums.append(total)
        return sums

    def shift(self, i: int) -> Tensor | None:
        """The folded bias of a step: what is left of its value when every block is 0."""
        node = self.tape.nodes[i]
        if isinstance(node.op, Linear):
            return node.op.bias
        assert isinstance(node.op, Combine)
        total = torch.as_tensor(node.op.shift, dtype=node.value.dtype, device=node.value.device) if (
            node.op.shift is not None
        ) else None  # fmt: skip
        for position, (term, j) in enumerate(zip(node.op.terms, node.inputs, strict=True)):
            below = self.shift(j) if self.rules.open[j] else None
            if below is None:
                continue
            if term.move is not None:
                below = term.move.apply(below.expand(self.tape.nodes[j].shape)[None])[0]
            below = below * term.scale * self.rules.coefficient(i, position)
            total = below if total is None else total + below
        return total


def straight(key: Key) -> Key:
    """The key that a rule knows."""
    return (SIGN, key[1]) if key[0] == TURNED else key


def noise_floor(size: Tensor) -> Tensor:
    """Below this, the difference of two numbers of such a size has lost too many digits."""
    return 1e3 * torch.finfo(size.dtype).eps * size
