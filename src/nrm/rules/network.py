"""The relevance network: a tape with a rule for every step, and what each step does to messages.

A **message** at a tensor is the relevance of its neurons. A step that adds contributions (a linear layer, a residual
sum, a batch norm) has columns; dividing an arriving message by the column sums gives its **density**. Densities, not
messages, run through a fused additive step, because all its branches share one column: a branch turns density into
relevance only where it ends, at the input of its last linear step. That is how sums of branches are normalized once,
without copies of neurons and without forming any matrix.

``pull`` carries arrivals at a node one step toward the inputs; ``rise`` and ``value`` are its adjoint, toward the
output. Column sums are the rise of ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from nrm.capture import Combine, Linear, Multiply, Node, Pointwise, Select, Source, Tape, Unknown
from nrm.errors import CaptureError, MassError, RuleError
from nrm.operators import Dense, Identity, LinearMap
from nrm.rules.composites import Composite, choices, reads_input
from nrm.rules.rules import LINEAR, NEGATIVE, AlphaBeta, EntryEpsilon, Epsilon, Factor, Flat, Gamma, Key, LRP0, Pass
from nrm.rules.rules import Product, Rule, Sum, ZPlus

Density = dict[tuple[Key, int], Tensor]
NONNEGATIVE = {"relu", "relu6", "sigmoid", "hardsigmoid", "softmax", "softplus", "exp", "square", "abs"}
GATES = ("sigmoid", "softmax", "exp", "hardsigmoid", "log_softmax", "softmin")


class Packet(NamedTuple):
    """Density on its way down a fused step. ``rule`` is the rule of plain terms; ``override`` replaces every rule."""

    density: Density
    rule: Rule
    override: Rule | None = None


@dataclass
class Arrivals:
    """What has arrived at a node: relevance, and densities of fused steps that it is a branch of."""

    message: Tensor | None = None
    packets: list[Packet] = field(default_factory=list)

    def add(self, other: Arrivals) -> None:
        """Joins what arrives by another edge."""
        if other.message is not None:
            self.message = other.message if self.message is None else self.message + other.message
        self.packets += other.packets

    def masked(self, mask: Tensor) -> Arrivals:
        """Only what passes through the marked neurons."""
        message = None if self.message is None else outer(self.message, mask)
        packets = [Packet({k: outer(d, mask) for k, d in p.density.items()}, p.rule, p.override) for p in self.packets]
        return Arrivals(message, packets)


class Columns(NamedTuple):
    """The columns of a step: the factor from message to density per group, dead columns, and the biases' entries."""

    inverse: tuple[Tensor, ...]
    dead: Tensor | None
    bias: tuple[Tensor | None, ...]
    count: Tensor | None


class Delivery(NamedTuple):
    """What a step sends to one of its inputs."""

    to: int
    arrivals: Arrivals


class Values(Protocol):
    """What a push has computed so far: the relevance of an event below, given a neuron.

    ``at`` is the value of a tensor as one of its consumers sees it (None: 0). ``enter`` says whether the event
    restarts at a tensor inside a fused step: then only what lies beneath it counts there, times a mask.
    """

    def at(self, i: int, consumer: int) -> Tensor | None: ...

    def enter(self, i: int, consumer: int) -> tuple[Values, Tensor] | None: ...

    def drains(self, i: int) -> list[tuple[str, Tensor]]: ...


class Everything:
    """The event that always holds: 1 at every neuron."""

    def at(self, i: int, consumer: int) -> Tensor | None:
        """1, for every neuron."""
        return torch.ones(())

    def enter(self, i: int, consumer: int) -> tuple[Values, Tensor] | None:
        """Nothing restarts."""
        return None

    def drains(self, i: int) -> list[tuple[str, Tensor]]:
        """Nothing special about drains."""
        return []


EVERYTHING = Everything()


class Network:
    """A tape under rules. Knows steps; knows no questions."""

    def __init__(
        self, tape: Tape, composite: Composite, *, bias: str, zero: str = "sink", normalize: bool | str = True
    ) -> None:
        self.tape = tape
        self.composite = composite
        self.bias = bias
        self.zero = zero
        self.normalize = normalize
        self.open = self._find_open()
        self._choices = choices(composite, tape)
        self._first = reads_input(tape) if composite.first is not None else set()
        self._columns: dict[int, Columns] = {}
        self._nonnegative: dict[int, bool] = {}
        self._pools: dict[int, Rule | None] = {}
        self._key_sets: dict[tuple[int, Rule | None], set[Key]] = {}
        self.reached = self._find_reached()
        self._check_rules()

    # ---- structure -------------------------------------------------------------------------------------------

    def _find_open(self) -> list[bool]:
        """Which tensors a density can enter: they end in linear steps, seen through movement, scaling and norms."""
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

    def _check_rules(self) -> None:
        for node in self.tape.nodes:
            if not self.reached[node.index]:
                continue
            if isinstance(node.op, Unknown):
                raise CaptureError(
                    f"no rule for {node.op.function}", where=node.op.where,
                    got=f"a tensor of shape {tuple(node.shape)} on the way to the output",
                    expected="an op of the vocabulary, or one that you registered",
                    hint=f"nrm.register({node.op.function!r}, ...) tells how its relevance is shared",
                )  # fmt: skip
            if self.is_terminal(node.index):
                self._pool(node.index)

    def is_terminal(self, i: int) -> bool:
        """Whether the node's step has columns of its own."""
        op = self.tape.nodes[i].op
        return isinstance(op, Linear) or (isinstance(op, Combine) and op.joins)

    def coefficient(self, i: int, position: int) -> float:
        """alpha: the share of an input in a step where several variables meet."""
        op, choice = self.tape.nodes[i].op, self._choices.get(i)
        if isinstance(op, Multiply):
            product = choice if isinstance(choice, Product) else self.composite.product
            return self._product_shares(i, product)[position]
        if isinstance(op, Combine) and isinstance(choice, Sum):
            return self._sum_shares(i, choice)[position]
        return 1.0

    def _product_shares(self, i: int, product: Product) -> list[float]:
        node = self.tape.nodes[i]
        op = node.op
        assert isinstance(op, Multiply)
        if op.quotient:
            return [1.0] + [0.0] * (len(node.inputs) - 1)
        gates = [self._gate_distance(j) for j in node.inputs]
        nearest = min(gates)
        is_gate = [nearest < math.inf and d == nearest for d in gates]
        if all(is_gate) or not any(is_gate):
            return [1.0 / len(gates)] * len(gates)
        weights = [product.gate if g else product.signal for g in is_gate]
        total = sum(weights)
        if not total:
            raise RuleError("the coefficients of a product sum to 0", where=node.name, got=repr(product))
        return [w / total for w in weights]

    def _gate_distance(self, i: int) -> float:
        """How many elementwise steps and movements lie between a factor and a squashing function."""
        for distance in range(8):
            node = self.tape.nodes[i]
            if node.function in GATES:
                return distance
            if not isinstance(node.op, Pointwise | Combine) or len(node.inputs) != 1:
                return math.inf
            i = node.inputs[0]
        return math.inf

    def _sum_shares(self, i: int, choice: Sum) -> list[float]:
        node = self.tape.nodes[i]
        if isinstance(choice.alpha, tuple):
            alphas = choice.alpha if len(choice.alpha) == len(node.inputs) else choice.alpha * len(node.inputs)
            return [float(a) for a in alphas[: len(node.inputs)]]
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

    def plain_rule(self, i: int, inherited: Rule) -> Rule:
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
        if op.kind == "batchnorm" or len(op.terms) == 1:
            return inherited if inherited is not _START else (Pass() if self.bias == "ignore" else LRP0())
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

    def _leaves(self, i: int, rule: Rule) -> Iterator[Rule]:
        """The rules of everything that shares the columns of node i."""
        node = self.tape.nodes[i]
        if isinstance(node.op, Linear):
            yield self.leaf_rule(i)
            return
        rule = self.plain_rule(i, rule)
        for j in node.inputs:
            if self.open[j]:
                yield from self._leaves(j, rule)
            else:
                yield rule

    def _pool(self, i: int) -> Rule | None:
        """The alpha-beta rule that pools all blocks of a column, if one of them has it."""
        if i in self._pools:
            return self._pools[i]
        found = {r for r in self._leaves(i, _START) if isinstance(r, AlphaBeta)}
        if len(found) > 1:
            raise RuleError(
                "two alpha-beta rules meet in one column", where=self.tape.nodes[i].name,
                got=", ".join(sorted(map(repr, found))), expected="one rule for all branches of a sum",
            )  # fmt: skip
        self._pools[i] = next(iter(found), None)
        return self._pools[i]

    def _keys(self, i: int, override: Rule | None) -> set[Key]:
        if (i, override) not in self._key_sets:
            keys = {k for r in self._leaves(i, _START) for k in effective(r, override).keys}
            self._key_sets[i, override] = keys - {NEGATIVE}
        return self._key_sets[i, override]

    # ---- columns ---------------------------------------------------------------------------------------------

    def columns(self, i: int) -> Columns:
        """The columns of a step with columns; computed once."""
        if i not in self._columns:
            try:
                self._columns[i] = self._make_columns(i)
            except RuleError as error:
                raise error.at(self.tape.nodes[i].name) from None
        return self._columns[i]

    def release(self) -> None:
        """Forgets the columns; they are computed again when asked for."""
        self._columns.clear()

    @property
    def nbytes(self) -> int:
        """Bytes held by the columns."""
        held = [t for c in self._columns.values() for t in (*c.inverse, c.dead, *c.bias, c.count) if t is not None]
        return sum(t.numel() * t.element_size() for t in held)

    def _make_columns(self, i: int) -> Columns:
        override = self._pool(i)
        sums = self.column_sums(i)
        bias = self._bias_entries(i, override, len(sums))
        totals = [z if b is None else z + b for z, b in zip(sums, bias, strict=True)]
        if isinstance(override, AlphaBeta):
            inverse, dead = _alpha_beta_inverse(override, totals, self.normalize)
        else:
            inverse, dead = self._plain_inverse(i, totals[0])
        count = None
        if dead is not None:
            if not bool(dead.any()) or self.normalize is not True:
                dead = None
            elif self.zero == "uniform":
                rise = self.rise(i, {("power", 0)}, _START, EVERYTHING, override=Flat())
                count = sum(rise.values())[0]  # type: ignore[index]
        return Columns(inverse, dead, bias, count)

    def column_sums(self, i: int, rule: Rule | None = None, override: Rule | None = None) -> list[Tensor]:
        """The sums over the blocks of every column, per group; biases are not in them."""
        rule, override = rule or _START, override or self._pool(i)
        if override is None and self._is_linear(i, rule):
            shift = self.shift(i)
            value = self.tape.nodes[i].value
            return [value if shift is None else value - shift]
        groups = 2 if isinstance(override, AlphaBeta) else 1
        rise = self.rise(i, self._keys(i, override), rule, EVERYTHING, override=override)
        shape = self.tape.nodes[i].shape
        sums: list[Tensor] = []
        for g in range(groups):
            parts = [d for (_, group), d in rise.items() if group == g]
            total = sum(parts[1:], parts[0])[0] if parts else self.tape.nodes[i].value.new_zeros(shape)
            sums.append(total)
        return sums

    def _is_linear(self, i: int, rule: Rule) -> bool:
        """Whether every block is LRP-0 with coefficient 1, so that the column sum is the value without its biases."""
        node = self.tape.nodes[i]
        if isinstance(node.op, Linear):
            return isinstance(self.leaf_rule(i), LRP0)
        rule = self.plain_rule(i, rule)
        if any(self.coefficient(i, p) != 1 for p in range(len(node.inputs))):
            return False
        return all(self._is_linear(j, rule) if self.open[j] else isinstance(rule, LRP0) for j in node.inputs)

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
            below = self.shift(j) if self.open[j] else None
            if below is None:
                continue
            if term.move is not None:
                below = term.move.apply(below.expand(self.tape.nodes[j].shape)[None])[0]
            below = below * term.scale * self.coefficient(i, position)
            total = below if total is None else total + below
        return total

    def _bias_entries(self, i: int, override: Rule | None, groups: int) -> tuple[Tensor | None, ...]:
        if self.bias != "input":
            return (None,) * groups
        shift = self.shift(i)
        if shift is None:
            return (None,) * groups
        rule = override or next(self._leaves(i, _START))
        entries = rule.bias(shift.to(self.tape.dtype))
        return (*entries, *(None,) * (groups - len(entries)))

    def _plain_inverse(self, i: int, z: Tensor) -> tuple[tuple[Tensor, ...], Tensor | None]:
        rules = set(self._leaves(i, _START))
        if self.normalize == "raw":
            return (torch.ones_like(z),), None
        if self.normalize is False:
            epsilon = next((r.epsilon for r in rules if isinstance(r, Epsilon)), 0.0)
            z = z + epsilon
            return (torch.where(z == 0, torch.zeros_like(z), 1 / z),), None
        if not any(r.cancels for r in rules):
            if float(z.amin()) > torch.finfo(z.dtype).tiny:
                return (1 / z,), None
            dead = z <= torch.finfo(z.dtype).tiny
        else:
            dead = self._lost(i, z)
            if not bool(dead.any()):
                return (1 / z,), None
        return (torch.where(dead, torch.zeros_like(z), 1 / torch.where(dead, torch.ones_like(z), z)),), dead

    def _lost(self, i: int, z: Tensor) -> Tensor:
        """Columns whose sum is lost in rounding: at most 8 eps of the sum of its entries' absolute values.

        That sum costs as much as a forward step, so it is computed only if some sum is small beside the others.
        """
        op, size = self.tape.nodes[i].op, z.abs()
        tiny = torch.finfo(z.dtype).tiny
        small = size <= (1e-2 if _has_rows(op) else 1e-4) * size.amax()
        if not bool(small.any()):
            return size <= tiny
        shift = self.shift(i) if self.bias == "input" else None
        try:
            total = self._absolute_sums(i, small)
        except RuleError:
            return size <= tiny
        if shift is not None:
            total = total + shift.abs()
        return small & (size <= (8 * torch.finfo(z.dtype).eps * total).clamp(min=tiny))

    def _absolute_sums(self, i: int, small: Tensor) -> Tensor:
        """The sums of absolute entries of the columns marked as small; a dense step looks at its marked rows only."""
        node = self.tape.nodes[i]
        if isinstance(node.op, Linear) and isinstance(node.op.map, Dense) and isinstance(self.leaf_rule(i), LRP0):
            rows = small.reshape(-1, small.shape[-1]).any(0).nonzero()[:, 0]
            sums = torch.zeros_like(node.value)
            weight = node.op.map.weight.index_select(0, rows).abs()
            sums[..., rows] = self.tape.nodes[node.inputs[0]].value.abs() @ weight.T
            return sums
        rise = self.rise(i, self._keys(i, None), _START, EVERYTHING, absolute=True)
        total: Tensor = sum(rise.values())[0]  # type: ignore[index,assignment]
        return total

    # ---- toward the output -----------------------------------------------------------------------------------

    def rise(
        self, i: int, keys: set[Key], rule: Rule, below: Values, *,
        override: Rule | None = None, absolute: bool = False,
    ) -> Density:  # fmt: skip
        """The unnormalized push into an additive step: for every key, ``sum_k V_k(a_k * v)`` of the blocks below."""
        node = self.tape.nodes[i]
        if isinstance(node.op, Linear):
            own = effective(self.leaf_rule(i), override)
            return self._rise_block(node.op.map, node.inputs[0], own, keys, below.at(node.inputs[0], i), absolute)
        assert isinstance(node.op, Combine)
        rule = self.plain_rule(i, rule)
        total: Density = {}
        for position, (term, j) in enumerate(zip(node.op.terms, node.inputs, strict=True)):
            alpha = self.coefficient(i, position)
            if alpha == 0:
                continue
            scale = abs_(term.scale) if absolute else term.scale
            wanted = keys | {NEGATIVE} if ("sign", 1) in keys and _has_negative(scale) else keys
            if self.open[j]:
                restart = below.enter(j, i)
                inside = below if restart is None else restart[0]
                part = self.rise(j, wanted, rule, inside, override=override, absolute=absolute)
                if restart is not None:
                    part = {key: outer(restart[1], tensor) for key, tensor in part.items()}
            else:
                plain = effective(rule, override)
                identity = Identity(self.tape.nodes[j].shape)
                part = self._rise_block(identity, j, plain, wanted, below.at(j, i), absolute)
            if term.move is not None:
                part = {key: term.move.apply(tensor) for key, tensor in part.items()}
            for key, tensor in scaled(part, scale, keys).items():
                tensor = tensor if alpha == 1 else tensor * (abs(alpha) if absolute else alpha)
                total[key] = total[key] + tensor if key in total else tensor
        return total

    def _rise_block(
        self, map: LinearMap, j: int, rule: Rule, keys: set[Key], v: Tensor | None, absolute: bool
    ) -> Density:
        total: Density = {}
        if v is None:
            return total
        for key in sorted(keys.intersection(rule.keys)):
            for factor in self._factors(rule, key, map, j):
                a, linear = factor.a, factor.map
                if absolute:
                    a, linear = abs_(a), linear.reweight(torch.abs)
                entry = linear.apply(self._weighted(a, v, j))
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

    def _factors(self, rule: Rule, key: Key, map: LinearMap, j: int) -> list[Factor]:
        h = self.tape.nodes[j].value
        return rule.factors(key, map, h, self._is_nonnegative(j))

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
                known = float(node.value.amin()) >= 0
            self._nonnegative[j] = known
        return self._nonnegative[j]

    def value(self, i: int, below: Values) -> Tensor | None:
        """The push into node i: the relevance of an event below, given each neuron of i. None is 0 everywhere."""
        node, op = self.tape.nodes[i], self.tape.nodes[i].op
        parts: list[Tensor] = []
        if isinstance(op, Linear) or (isinstance(op, Combine) and op.joins):
            parts += self._terminal_value(i, below)
        elif isinstance(op, Combine):
            for term, j in zip(op.terms, node.inputs, strict=True):
                v = below.at(j, i)
                if v is not None:
                    parts.append(v if term.move is None else term.move.apply(v))
        elif isinstance(op, Pointwise):
            v = below.at(node.inputs[0], i)
            if v is not None:
                parts.append(v if op.offset == 0 else v * self._kept_share(i))
        elif isinstance(op, Select):
            v = below.at(node.inputs[0], i)
            if v is not None:
                parts.append(op.map.apply(v))
        elif isinstance(op, Multiply):
            for position, (move, j) in enumerate(zip(op.moves, node.inputs, strict=True)):
                alpha, v = self.coefficient(i, position), below.at(j, i)
                if alpha != 0 and v is not None:
                    parts.append(alpha * (v if move is None else move.apply(v)))
        parts += self._drain_values(i, below)
        return sum(parts[1:], parts[0]) if parts else None

    def _terminal_value(self, i: int, below: Values) -> list[Tensor]:
        override = self._pool(i)
        rise = self.rise(i, self._keys(i, override), _START, below, override=override)
        if not rise:
            return []
        columns = self.columns(i)
        parts = [d * columns.inverse[group] for (_, group), d in rise.items()]
        if columns.count is not None:
            flat = self.rise(i, {("power", 0)}, _START, below, override=Flat())
            parts += [d * (columns.dead / columns.count) for d in flat.values()]  # type: ignore[operator]
        return parts

    def _drain_values(self, i: int, below: Values) -> list[Tensor]:
        """What neurons of drains (biases, offsets, sinks) contribute to the node they belong to."""
        parts: list[Tensor] = []
        for port, v in below.drains(i):
            if port == "sink":
                dead = self._dead(i)
                if dead is not None:
                    parts.append(v * dead)
                continue
            wide = self._widened(i, v)
            if port == "offset":
                parts.append(wide * self._offset_share(i))
            else:
                columns = self.columns(i)
                for inverse, entry in zip(columns.inverse, columns.bias, strict=True):
                    if entry is not None:
                        parts.append(wide * (inverse * entry))
        return parts

    # ---- toward the input ------------------------------------------------------------------------------------

    def pull(self, i: int, arrivals: Arrivals) -> tuple[list[Delivery], dict[str, Tensor]]:
        """One step toward the inputs: what each input receives, and what goes to the node's own drains."""
        node, op = self.tape.nodes[i], self.tape.nodes[i].op
        message, packets = arrivals.message, list(arrivals.packets)
        drains: dict[str, Tensor] = {}
        if message is not None and self.is_terminal(i):
            packets += self._normalized(i, message, drains)
            message = None
        deliveries: list[Delivery] = []
        if packets and isinstance(op, Linear):
            deliveries.append(Delivery(node.inputs[0], Arrivals(self._pull_block(i, op, packets))))
        elif packets:
            deliveries += [d for packet in packets for d in self._fall(i, packet)]
        if message is not None:
            deliveries += self._move(node, message, drains)
        return deliveries, drains

    def _normalized(self, i: int, message: Tensor, drains: dict[str, Tensor]) -> list[Packet]:
        columns, override = self.columns(i), self._pool(i)
        if columns.dead is not None and self.zero == "error" and bool((message * columns.dead).any()):
            raise MassError(
                "relevance arrives at columns that sum to 0", where=self.tape.nodes[i].name,
                got=f"{int(((message * columns.dead) != 0).sum())} columns",
                hint="zero='sink' or zero='uniform', another rule for this layer, or bias='input'",
            )  # fmt: skip
        density: Density = {}
        for group, inverse in enumerate(columns.inverse):
            d = message * inverse
            density.update({(key, group): d for key in self._keys(i, override)})
            entry = columns.bias[group]
            if entry is not None:
                share = self._narrowed(i, d * entry)
                drains["bias"] = drains["bias"] + share if "bias" in drains else share
        packets = [Packet(density, _START, override)]
        if columns.dead is not None:
            lost = message * columns.dead
            if columns.count is not None:
                packets.append(Packet({(("power", 0), 0): lost / columns.count.clamp(min=1)}, _START, Flat()))
            else:
                drains["sink"] = lost
        return packets

    def _pull_block(self, i: int, op: Linear, packets: list[Packet]) -> Tensor:
        own = self.leaf_rule(i)
        collected: dict[tuple[Rule, Key, int], Tensor] = {}
        for packet in packets:
            rule = effective(own, packet.override)
            for (key, group), d in packet.density.items():
                if key in rule.keys:
                    slot = (rule, key, group)
                    collected[slot] = collected[slot] + d if slot in collected else d
        return self._block(op.map, node_input(self.tape.nodes[i]), collected)

    def _block(self, map: LinearMap, j: int, collected: dict[tuple[Rule, Key, int], Tensor]) -> Tensor:
        total: Tensor | None = None
        for rule, key in dict.fromkeys((rule, key) for rule, key, _ in collected):
            for factor in self._factors(rule, key, map, j):
                d = collected.get((rule, key, factor.group))
                if d is not None:
                    part = factor.map.transpose(d)
                    if isinstance(factor.a, Tensor) or factor.a != 1:
                        part = part * factor.a
                    total = part if total is None else total + part
        if total is None:
            first = next(iter(collected.values()), None)
            stack = 1 if first is None else first.shape[0]
            total = self.tape.nodes[j].value.new_zeros(stack, *self.tape.nodes[j].shape)
        return total

    def _fall(self, i: int, packet: Packet) -> Iterator[Delivery]:
        """Density through a combination: to branches as density, to plain terms as relevance."""
        node = self.tape.nodes[i]
        assert isinstance(node.op, Combine)
        rule = self.plain_rule(i, packet.rule)
        for position, (term, j) in enumerate(zip(node.op.terms, node.inputs, strict=True)):
            alpha = self.coefficient(i, position)
            if alpha == 0:
                continue
            density = scaled(packet.density, term.scale, None)
            for key, d in density.items():
                d = d if term.move is None else term.move.transpose(d)
                density[key] = d if alpha == 1 else d * alpha
            if self.open[j]:
                yield Delivery(j, Arrivals(packets=[Packet(density, rule, packet.override)]))
            else:
                yield Delivery(j, Arrivals(self._plain(j, Packet(density, rule, packet.override))))

    def _plain(self, j: int, packet: Packet) -> Tensor:
        rule = effective(packet.rule, packet.override)
        collected = {(rule, key, group): d for (key, group), d in packet.density.items() if key in rule.keys}
        if not collected:
            stack = next(iter(packet.density.values())).shape[0]
            return self.tape.nodes[j].value.new_zeros(stack, *self.tape.nodes[j].shape)
        return self._block(Identity(self.tape.nodes[j].shape), j, collected)

    def _move(self, node: Node, message: Tensor, drains: dict[str, Tensor]) -> Iterator[Delivery]:
        """Relevance through steps without columns of their own."""
        i, op = node.index, node.op
        if isinstance(op, Combine):
            for term, j in zip(op.terms, node.inputs, strict=True):
                yield Delivery(j, Arrivals(message if term.move is None else term.move.transpose(message)))
        elif isinstance(op, Pointwise):
            if op.offset != 0:
                drains["offset"] = self._narrowed(i, message * self._offset_share(i))
                dead = self._dead(i)
                if dead is not None:
                    drains["sink"] = message * dead
                message = message * self._kept_share(i)
            yield Delivery(node.inputs[0], Arrivals(message))
        elif isinstance(op, Select):
            yield Delivery(node.inputs[0], Arrivals(op.map.transpose(message)))
        elif isinstance(op, Multiply):
            for position, (move, j) in enumerate(zip(op.moves, node.inputs, strict=True)):
                alpha = self.coefficient(i, position)
                if alpha != 0:
                    m = message if move is None else move.transpose(message)
                    yield Delivery(j, Arrivals(m if alpha == 1 else m * alpha))
        else:
            assert isinstance(op, Source)

    # ---- reading and drains ----------------------------------------------------------------------------------

    def relevance(self, i: int, arrivals: Arrivals, below: Values | None = None) -> Tensor | None:
        """The relevance of every neuron of a node, jointly with an event below if there is one. None is 0.

        Density becomes relevance here: it is multiplied with the column sums of the branch it would enter.
        """
        parts: list[Tensor] = []
        if arrivals.message is not None:
            v = None if below is None else self.value(i, below)
            if below is None:
                parts.append(arrivals.message)
            elif v is not None:
                parts.append(outer(arrivals.message, v))
        for packet in arrivals.packets:
            keys = {key for key, _ in packet.density}
            rise = self.rise(i, keys, packet.rule, below or EVERYTHING, override=packet.override)
            parts += [outer(packet.density[slot], d) for slot, d in rise.items() if slot in packet.density]
        return sum(parts[1:], parts[0]) if parts else None

    def _dead(self, i: int) -> Tensor | None:
        if self.is_terminal(i):
            columns = self.columns(i)
            return columns.dead if columns.count is None else None
        op, value = self.tape.nodes[i].op, self.tape.nodes[i].value
        if isinstance(op, Pointwise) and op.offset != 0 and bool((value == 0).any()):
            return value == 0
        return None

    def _offset_share(self, i: int) -> Tensor:
        node = self.tape.nodes[i]
        assert isinstance(node.op, Pointwise)
        share = node.op.offset / torch.where(node.value == 0, torch.ones_like(node.value), node.value)
        return torch.where(node.value == 0, torch.zeros_like(share), share)

    def _kept_share(self, i: int) -> Tensor:
        node = self.tape.nodes[i]
        return torch.where(node.value == 0, torch.zeros_like(node.value), 1 - self._offset_share(i))

    def drain_shape(self, i: int, port: str) -> tuple[int, ...]:
        """The shape of a drain: a sink has one neuron per column, a bias or offset one per sample and channel."""
        node = self.tape.nodes[i]
        if port == "sink":
            return tuple(node.shape)
        return tuple(node.shape[a] for a in self._bias_axes(node))

    @staticmethod
    def _bias_axes(node: Node) -> list[int]:
        return [a for a in (node.sample, node.channel) if a is not None]

    def _narrowed(self, i: int, m: Tensor) -> Tensor:
        node = self.tape.nodes[i]
        kept = self._bias_axes(node)
        m = m.expand(m.shape[0], *node.shape)
        m = m.permute(0, *(a + 1 for a in kept), *(a + 1 for a in range(node.value.ndim) if a not in kept))
        return m.flatten(len(kept) + 1).sum(-1) if node.value.ndim > len(kept) else m

    def _widened(self, i: int, v: Tensor) -> Tensor:
        node = self.tape.nodes[i]
        kept = self._bias_axes(node)
        order = sorted(range(len(kept)), key=kept.__getitem__)
        v = v.permute(0, *(a + 1 for a in order))
        return v.reshape(v.shape[0], *(n if a in kept else 1 for a, n in enumerate(node.shape)))


class _Start(Pass):
    """The rule of plain terms before any combination has said what it is."""


_START: Rule = _Start()


def outer(first: Tensor, second: Tensor) -> Tensor:
    """The product of two stacks of tensors: every one of the first with every one of the second, first-major."""
    if first.shape[0] == 1 or second.shape[0] == 1:
        return first * second
    return (first[:, None] * second[None]).flatten(0, 1)


def _has_rows(op: object) -> bool:
    return isinstance(op, Linear) and isinstance(op.map, Dense)


def node_input(node: Node) -> int:
    """The only input of a linear step."""
    return node.inputs[0]


def effective(rule: Rule, override: Rule | None) -> Rule:
    """The rule of a block inside a column that another rule pools or replaces."""
    if isinstance(override, AlphaBeta):
        signed = isinstance(rule, LRP0 | Gamma | ZPlus | AlphaBeta | EntryEpsilon)
        return override if signed else rule
    return override or rule


def abs_(scale: Tensor | float) -> Tensor | float:
    """The absolute value of a number or tensor."""
    return abs(scale)


def _has_negative(scale: Tensor | float) -> bool:
    return bool((scale < 0).any()) if isinstance(scale, Tensor) else scale < 0


def scaled(density: Density, scale: Tensor | float, keys: set[Key] | None) -> Density:
    """Density (or its adjoint) across a constant scale: powers scale, signs swap where the scale is negative."""
    if isinstance(scale, float) and scale == 1.0:
        return {k: d for k, d in density.items() if keys is None or k[0] in keys}
    negative = _has_negative(scale)
    scale_tensor = scale if isinstance(scale, Tensor) else torch.tensor(scale, dtype=torch.float64).to(
        next(iter(density.values())) if density else torch.zeros(()))  # fmt: skip
    up, down = scale_tensor.clamp(min=0), (-scale_tensor).clamp(min=0)
    result: Density = {}
    for (key, group), d in density.items():
        if key[0] == "power":
            pieces = {key: d if key[1] == 0 else d * scale_tensor ** key[1]}
        elif negative:
            pieces = {key: d * up, (key[0], -key[1]): d * down}
        else:
            pieces = {key: d * up}
        for k, piece in pieces.items():
            if keys is None or k in keys:
                slot = (k, group)
                result[slot] = result[slot] + piece if slot in result else piece
    return result


def _alpha_beta_inverse(
    rule: AlphaBeta, totals: list[Tensor], normalize: bool | str
) -> tuple[tuple[Tensor, ...], Tensor | None]:
    """The two groups' factors. A column with one sign only is that sign's shares."""
    positive, negative = totals
    alpha = torch.where(positive > 0, rule.alpha, 0.0).to(positive)
    beta = torch.where(negative > 0, rule.beta, 0.0).to(negative)
    if normalize == "raw":
        return (torch.full_like(positive, rule.alpha), torch.full_like(negative, -rule.beta)), None
    total = alpha - beta if normalize else torch.ones_like(alpha)
    dead = total == 0
    safe = torch.where(dead, torch.ones_like(total), total)
    up = alpha / safe / torch.where(positive > 0, positive, torch.ones_like(positive))
    down = -beta / safe / torch.where(negative > 0, negative, torch.ones_like(negative))
    return (up.masked_fill(dead, 0.0), down.masked_fill(dead, 0.0)), (dead if normalize else None)
