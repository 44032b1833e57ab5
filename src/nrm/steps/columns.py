"""The columns of steps that convert: what densities are multiplied with, and columns without a sum.

A density becomes relevance, which is divided by the column's sum and meets unnormalized entries: one factor
``unit / sum`` for every column. Only here are sums tested for being lost in rounding.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from nrm.capture import Linear
from nrm.errors import RuleError
from nrm.operators import Dense, Jacobian

if TYPE_CHECKING:
    from nrm.steps.network import Network


@dataclass(frozen=True, eq=False)
class Columns:
    """The columns of a step. ``factors`` are ``unit / sum``, one for each group, 0 where a column has no sum.

    ``lost`` is the unit where relevance goes to the sink, and 0 elsewhere; ``spread`` what a column without a sum gives
    to each of its connections.
    """

    factors: tuple[Tensor, ...]
    unit: Tensor
    dead: Tensor | None = None
    lost: Tensor | None = None
    spread: Tensor | None = None

    @property
    def tensors(self) -> list[Tensor]:
        """Everything that is held for these columns alone."""
        return [t for t in (*self.factors, self.dead, self.lost, self.spread) if t is not None]

    @property
    def is_negative(self) -> Tensor | None:
        """The columns whose sum is negative; None where signs are pooled."""
        return (self.factors[0] * self.unit < 0) if len(self.factors) == 1 else None

    def absolute(self) -> Columns:
        """The columns of the network of absolute entries."""
        lost, spread = (None if t is None else t.abs() for t in (self.lost, self.spread))
        factors = tuple(f.abs() for f in self.factors)
        return replace(self, factors=factors, unit=self.unit.abs(), lost=lost, spread=spread)

    def perturbed(self, network: Network, i: int, seed: int) -> Columns:
        """The columns with every sum changed as rounding may have changed it, to see what that does."""
        generator = torch.Generator().manual_seed(seed + i)
        size = torch.finfo(network.tape.dtype).eps * _condition(network, i, self)
        noise = [1 + size * torch.randn(f.shape, generator=generator).to(f) for f in self.factors]
        return replace(self, factors=tuple(f * n for f, n in zip(self.factors, noise, strict=True)))


def make_column(network: Network, i: int) -> Columns:
    """The columns of a step that converts."""
    try:
        return _ColumnSums(network, i).column()
    except RuleError as error:
        raise error.at(network.tape.nodes[i].name) from None


def noise_floor(size: Tensor) -> Tensor:
    """Below this, the difference of two numbers of such a size has lost too many digits."""
    return 1e3 * torch.finfo(size.dtype).eps * size


class _ColumnSums:
    """The sums of one step's columns, and which of them are lost."""

    def __init__(self, network: Network, i: int) -> None:
        self.network, self.i = network, i
        self.node = network.tape.nodes[i]
        self.rules = network.rules
        self.pool = network.rules.pool(i)
        self.leaves = set(network.rules.leaves(i))
        self.map = self.node.op.map if isinstance(self.node.op, Linear) else None  # of a block with its own weights

    def column(self) -> Columns:
        network, unit = self.network, self.network.full_unit(self.network.plain(self.i).index)
        if self.pool is not None:
            divisors, dead = self.pool.divisors([self._total(g) for g in range(2)], network.normalize)
        else:
            divisors, dead = self._plain_divisor(self._plain_total())
        factors = tuple(unit / d for d in divisors)
        if dead is None or not bool(dead.any()) or not network.takes_shares:
            return Columns(factors, unit)
        if network.zero != "uniform":
            return Columns(factors, unit, dead, unit * dead)
        count = self._total("uniform")
        spread = torch.where(dead & (count > 0), 1 / count.clamp(min=1), torch.zeros_like(count))
        lonely = dead & (count == 0)
        return Columns(factors, unit, dead, unit * lonely if bool(lonely.any()) else None, unit * spread)

    def _total(self, group: int | str, mode: str = "") -> Tensor:
        """The sum of all entries of one group, from the units below."""
        network = self.network if not mode else self.network.twin(mode)
        node, _ = network.node((self.i, "column", group), self.i, "column")
        total = network.unit(node.index)
        assert total is not None
        if mode:
            network.factors.forget()  # weights as large as the step's own
        return total

    def _plain_total(self) -> Tensor:
        """Where every block is LRP-0, the column's sum is the value, or the value without its bias."""
        if not self.rules.is_linear(self.i):
            return self._total(0)
        shift = None if self.network.bias == "input" else self.network.rules.shift(self.i)
        if shift is None:
            return self.node.value
        z = self.node.value - shift
        noise = z.abs() <= noise_floor(self.node.value.abs() + shift.abs())
        return torch.where(noise, self._total(0), z) if bool(noise.any()) else z

    def _plain_divisor(self, z: Tensor) -> tuple[tuple[Tensor, ...], Tensor | None]:
        normalize = self.network.normalize
        if normalize == "raw":
            return (torch.ones_like(z),), None
        if normalize is False:
            z = z + max(rule.damping for rule in self.leaves)
            return (z.masked_fill(z == 0, torch.inf),), None
        if not z.numel():  # an expert that no token was sent to
            return (z,), None
        tiny = torch.finfo(z.dtype).tiny
        if any(rule.cancels for rule in self.leaves):
            dead = self._lost(z)
        elif float(z.amin()) > tiny:
            return (z,), None
        else:
            dead = z <= tiny
        return ((z.masked_fill(dead, torch.inf),), dead) if bool(dead.any()) else ((z,), None)

    def _lost(self, z: Tensor) -> Tensor:
        """Columns whose sum is lost in rounding: at most 8 eps of the sum of its entries' absolute values.

        That sum costs as much as a forward step, so it is computed only if some sum is small beside the others.
        """
        map, size = self.map, z.abs()
        tiny = torch.finfo(z.dtype).tiny
        axes = [a for a in range(z.ndim) if a != self.node.sample]
        largest = size.amax(axes, keepdim=True) if axes else size
        small = (size > tiny) & (size <= (1e-2 if isinstance(map, Dense) else 1e-4) * largest)
        if not bool(small.any()):
            return size <= tiny

        def lost(total: Tensor) -> Tensor:
            return small & (size <= 8 * torch.finfo(z.dtype).eps * total)

        try:
            if not isinstance(map, Jacobian) and self._marked_rows(small) is None:
                small = lost(1.01 * self._total(0, "bound"))
                if not bool(small.any()):
                    return size <= tiny
            return (size <= tiny) | lost(self._absolute_total(small))
        except RuleError:  # single weights are not known
            return size <= tiny

    def _marked_rows(self, small: Tensor) -> Tensor | None:
        """The rows of a plain dense step with columns that are marked as small, if they are few."""
        if not isinstance(self.map, Dense) or not self.rules.leaf_rule(self.i).proportional:
            return None
        rows = small.reshape(-1, small.shape[-1]).any(0).nonzero()[:, 0]
        return rows if len(rows) * 8 <= small.shape[-1] else None

    def _absolute_total(self, small: Tensor) -> Tensor:
        """The sums of absolute entries of the columns marked as small; of these only where a step knows them apart."""
        rows = self._marked_rows(small)
        shift = self.network.rules.shift(self.i) if self.network.bias == "input" else None
        offset = 0.0 if shift is None else shift.abs()
        map = self.map
        if isinstance(map, Jacobian):
            return map.absolute_sums(small) + offset
        if rows is not None:
            assert isinstance(map, Dense)
            sums = torch.zeros(self.node.shape, dtype=self.node.dtype, device=self.node.device)
            h = self.network.tape.nodes[self.node.inputs[0]].value
            sums[..., rows] = h.abs() @ map.weight.index_select(0, rows).to(h.dtype).abs().T
            return sums + offset
        return self._total(0, "absolute")


def _condition(network: Network, i: int, column: Columns) -> Tensor | float:
    """How many eps a column sum may be off: what was added up, beside what is left of it.

    Where the sum is the value itself, its rounding is in the arriving relevance too and cancels.
    """
    sums = _ColumnSums(network, i)
    if len(column.factors) > 1 or not any(rule.cancels for rule in sums.leaves):
        return 1.0
    live = column.factors[0] != 0
    size = (column.unit / torch.where(live, column.factors[0], 1.0)).abs()
    if network.rules.is_linear(i):
        shift = None if network.bias == "input" else network.rules.shift(i)
        if shift is None:
            return 1.0
        whole = network.tape.nodes[i].value.abs() + shift.abs()
        noise = size <= noise_floor(whole)
        if bool(noise.any()):  # these sums were added up entry by entry
            whole = torch.where(noise, _absolute_or(sums, whole), whole)
    else:
        whole = _absolute_or(sums, size)
    return torch.where(live & (size > 0), whole / size.clamp(min=torch.finfo(size.dtype).tiny), 1.0).clamp(min=1)


def _absolute_or(sums: _ColumnSums, otherwise: Tensor) -> Tensor:
    """The sums of absolute entries, or something else where single weights are not known."""
    try:
        return sums._total(0, "absolute")
    except RuleError:
        return otherwise
