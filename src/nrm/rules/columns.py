"""The columns of additive steps: sums, zero policy, biases. A message over ``sums`` is a density."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from nrm.capture import Linear
from nrm.errors import RuleError
from nrm.operators import Dense, Jacobian
from nrm.rules.blocks import Blocks, noise_floor
from nrm.rules.density import EVERYTHING, START, Density
from nrm.rules.rules import CONSTANT, LRP0, AlphaBeta, Epsilon, Flat, Rule


class Columns(NamedTuple):
    """The columns of a step: what a message is divided by, per group, and the biases' entries.

    Columns without a sum have an infinite divisor, so that nothing passes them: their message goes to the ``sink``, or
    is ``spread`` over their connections, times these weights.
    """

    sums: tuple[Tensor, ...]
    sink: Tensor | None
    bias: tuple[Tensor | None, ...]
    spread: Tensor | None

    @property
    def dead(self) -> Tensor | None:
        """The columns without a sum."""
        if self.spread is None:
            return self.sink
        return self.spread > 0 if self.sink is None else self.sink | (self.spread > 0)


class ColumnStore:
    """Columns by node, computed once and kept until released."""

    def __init__(self, blocks: Blocks, *, bias: str, zero: str, normalize: bool | str) -> None:
        self.blocks = blocks
        self.bias = bias
        self.zero = zero
        self.normalize = normalize
        self._kept: dict[int, Columns] = {}

    def __getitem__(self, i: int) -> Columns:
        """The columns of a step with columns; computed once."""
        if i not in self._kept:
            try:
                self._kept[i] = self._make_columns(i)
            except RuleError as error:
                raise error.at(self.blocks.tape.nodes[i].name) from None
        return self._kept[i]

    def release(self) -> None:
        """Forgets the columns; they are computed again when asked for."""
        self._kept.clear()
        self.blocks.release()

    @property
    def nbytes(self) -> int:
        """Bytes held by the columns."""
        held = [t for c in self._kept.values() for t in (*c.sums, c.sink, *c.bias, c.spread) if t is not None]
        return sum(t.numel() * t.element_size() for t in held)

    def perturbed(self, seed: int) -> ColumnStore:
        """The kept columns with every sum changed as rounding may have changed it, to see what that does."""
        twin = ColumnStore(self.blocks, bias=self.bias, zero=self.zero, normalize=self.normalize)
        generator = torch.Generator().manual_seed(seed)
        eps = torch.finfo(self.blocks.tape.dtype).eps
        for i, columns in self._kept.items():
            size = eps * self._condition(i, columns)
            noise = [1 + size * torch.randn(z.shape, generator=generator).to(z) for z in columns.sums]
            sums = tuple(z / n for z, n in zip(columns.sums, noise, strict=True))
            twin._kept[i] = columns._replace(sums=sums)
        return twin

    def absolute(self) -> AbsoluteColumns:
        """The columns with the absolute values of sums and biases."""
        return AbsoluteColumns(self)

    def _condition(self, i: int, columns: Columns) -> Tensor | float:
        """How many eps a column sum may be off: what was added up, beside what is left of it.

        Where the sum is the value itself, its rounding is in the arriving message too and cancels.
        """
        rules = self.blocks.rules
        if len(columns.sums) > 1 or not any(r.cancels for r in rules.leaves(i, START)):
            return 1.0
        if rules.is_linear(i, START):
            shift = None if self.bias == "input" else self.blocks.shift(i)
            if shift is None:
                return 1.0
            size = self.blocks.tape.nodes[i].value.abs() + shift.abs()
            noise = columns.sums[0].abs() <= noise_floor(size)
            if bool(noise.any()):  # these sums were added up entry by entry
                size = torch.where(noise, self._absolute(i, size), size)
        else:
            size = self._absolute(i, columns.sums[0].abs())
        return (size / columns.sums[0].abs()).clamp(min=1)

    def _absolute(self, i: int, otherwise: Tensor) -> Tensor:
        """The sums of absolute entries, or something else where single weights are not known."""
        try:
            return self._sums(self.blocks.absolute(), i)
        except RuleError:
            return otherwise

    def _make_columns(self, i: int) -> Columns:
        override = self.blocks.rules.pool(i)
        bias = self._bias_entries(i, override, 2 if isinstance(override, AlphaBeta) else 1)
        if override is None and self.bias == "input" and self.blocks.rules.is_linear(i, START):
            totals = [self.blocks.tape.nodes[i].value]  # all blocks and the bias add up to the value itself
        else:
            totals = [z if b is None else z + b for z, b in zip(self.blocks.column_sums(i), bias, strict=True)]
        if isinstance(override, AlphaBeta):
            divisors, dead = _alpha_beta_divisors(override, totals, self.normalize)
        else:
            divisors, dead = self._plain_divisor(i, totals[0])
        if dead is None or not bool(dead.any()) or self.normalize is not True:
            return Columns(divisors, None, bias, None)
        if self.zero != "uniform":
            return Columns(divisors, dead, bias, None)
        rise = self.blocks.rise(i, {CONSTANT}, START, EVERYTHING, override=Flat())
        count = total(rise) if rise else torch.zeros_like(divisors[0])
        spread = torch.where(dead & (count > 0), 1 / count.clamp(min=1), torch.zeros_like(count))
        lonely = dead & (count == 0)
        return Columns(divisors, lonely if bool(lonely.any()) else None, bias, spread)

    def _bias_entries(self, i: int, override: Rule | None, groups: int) -> tuple[Tensor | None, ...]:
        if self.bias != "input":
            return (None,) * groups
        shift = self.blocks.shift(i)
        if shift is None:
            return (None,) * groups
        rules = set(self.blocks.rules.leaves(i, START))
        rule = override or (next(iter(rules)) if len(rules) == 1 else LRP0())  # of mixed branches: as it is
        entries = rule.bias(shift.to(self.blocks.tape.dtype))
        return (*entries, *(None,) * (groups - len(entries)))

    def _plain_divisor(self, i: int, z: Tensor) -> tuple[tuple[Tensor, ...], Tensor | None]:
        rules = set(self.blocks.rules.leaves(i, START))
        if self.normalize == "raw":
            return (torch.ones_like(z),), None
        if self.normalize is False:
            epsilon = next((r.epsilon for r in rules if isinstance(r, Epsilon)), 0.0)
            z = z + epsilon
            return (z.masked_fill(z == 0, torch.inf),), None
        if not z.numel():  # an expert that no token was sent to
            return (z,), None
        if any(r.cancels for r in rules):
            dead = self._lost(i, z)
        elif float(z.amin()) > torch.finfo(z.dtype).tiny:
            return (z,), None
        else:
            dead = z <= torch.finfo(z.dtype).tiny
        return ((z.masked_fill(dead, torch.inf),), dead) if bool(dead.any()) else ((z,), None)

    def _lost(self, i: int, z: Tensor) -> Tensor:
        """Columns whose sum is lost in rounding: at most 8 eps of the sum of its entries' absolute values.

        That sum costs as much as a forward step, so it is computed only if some sum is small beside the others.
        """
        op, size = self.blocks.tape.nodes[i].op, z.abs()
        tiny = torch.finfo(z.dtype).tiny
        axes = [a for a in range(z.ndim) if a != self.blocks.tape.nodes[i].sample]
        largest = size.amax(axes, keepdim=True) if axes else size
        small = (size > tiny) & (size <= (1e-2 if _has_rows(op) else 1e-4) * largest)
        if not bool(small.any()):
            return size <= tiny
        shift = self.blocks.shift(i) if self.bias == "input" else None
        offset = 0.0 if shift is None else shift.abs()

        def lost(total: Tensor) -> Tensor:
            return small & (size <= 8 * torch.finfo(z.dtype).eps * (total + offset))

        try:
            if not _is_block(op) and self._marked_rows(i, small) is None:
                small = lost(1.01 * self._sums(self.blocks.bounds(), i))
                if not bool(small.any()):
                    return size <= tiny
            return (size <= tiny) | lost(self._absolute_sums(i, small))
        except RuleError:
            return size <= tiny

    def _marked_rows(self, i: int, small: Tensor) -> Tensor | None:
        """The rows of a plain dense step with columns that are marked as small, if they are few."""
        op = self.blocks.tape.nodes[i].op
        if not _has_rows(op) or not isinstance(self.blocks.rules.leaf_rule(i), LRP0):
            return None
        rows = small.reshape(-1, small.shape[-1]).any(0).nonzero()[:, 0]
        return rows if len(rows) * 8 <= small.shape[-1] else None

    def _sums(self, blocks: Blocks, i: int) -> Tensor:
        """The sums of entries that blocks have in the columns of a step."""
        sums = total(blocks.rise(i, self.blocks.rules.keys(i, None), START, EVERYTHING))
        blocks.forget()  # weights as large as the step's own
        return sums

    def _absolute_sums(self, i: int, small: Tensor) -> Tensor:
        """The sums of absolute entries of the columns marked as small; of these only where a step knows them apart."""
        node, rows = self.blocks.tape.nodes[i], self._marked_rows(i, small)
        op = node.op
        if isinstance(op, Linear) and isinstance(op.map, Jacobian):
            return op.map.absolute_sums(small)
        if rows is not None:
            assert isinstance(op, Linear)
            assert isinstance(op.map, Dense)
            sums = torch.zeros_like(node.value)
            weight = op.map.weight.index_select(0, rows).abs()
            sums[..., rows] = self.blocks.tape.nodes[node.inputs[0]].value.abs() @ weight.T
            return sums
        return self._sums(self.blocks.absolute(), i)


class AbsoluteColumns(ColumnStore):
    """The columns of a store with the absolute values of sums and biases."""

    def __init__(self, store: ColumnStore) -> None:
        super().__init__(store.blocks, bias=store.bias, zero=store.zero, normalize=store.normalize)
        self._store = store

    def __getitem__(self, i: int) -> Columns:
        columns = self._store[i]
        bias = tuple(None if b is None else b.abs() for b in columns.bias)
        return columns._replace(sums=tuple(z.abs() for z in columns.sums), bias=bias)


def total(rise: Density) -> Tensor:
    """The sum over all keys of a rise of a single stack."""
    parts = list(rise.values())
    return sum(parts[1:], parts[0])[0]


def _is_block(op: object) -> bool:
    return isinstance(op, Linear) and isinstance(op.map, Jacobian)


def _has_rows(op: object) -> bool:
    return isinstance(op, Linear) and isinstance(op.map, Dense)


def _alpha_beta_divisors(
    rule: AlphaBeta, totals: list[Tensor], normalize: bool | str
) -> tuple[tuple[Tensor, ...], Tensor | None]:
    """The two groups' factors. A column with one sign only is that sign's shares."""
    positive, negative = totals
    if normalize == "raw":
        factors = (rule.alpha, -rule.beta)
        return tuple(torch.full_like(z, 1 / f if f else torch.inf) for z, f in zip(totals, factors, strict=True)), None
    alpha = torch.where(positive > 0, rule.alpha, 0.0).to(positive)
    beta = torch.where(negative > 0, rule.beta, 0.0).to(negative)
    total = alpha - beta if normalize else torch.ones_like(alpha)
    dead = total == 0
    up = (total * positive / rule.alpha).masked_fill(dead | (alpha == 0), torch.inf)
    down = (-total * negative / (rule.beta or 1.0)).masked_fill(dead | (beta == 0), torch.inf)
    return (up, down), (dead if normalize else None)
