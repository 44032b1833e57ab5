"""The linear maps of a relevance network: what a step does to densities on the way down, and to amounts on the way up.

A map leads from one node of the network to another one above it. ``apply`` carries amounts up, ``transpose`` carries
densities down, both with a leading stack axis; the two are adjoint. Applied to the units of everything that a node
reads, its maps add up to the node's own unit: that is what normalization means here.

Most maps are **local**, they lead from one neuron to one neuron. :class:`Factored` is the one that mixes: a linear step
under a rule.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from nrm.operators import (
    Convolution,
    Dense,
    Field,
    GroupSum,
    LinearMap,
    Movement,
    Place,
    Reduce,
    Scatter,
    WeightChange,
    WeightRows,
    apply_by_channel,
    channel_table,
    field_of,
    pick,
    place_all,
    sources,
    transpose_by_channel,
)

if TYPE_CHECKING:
    from nrm.steps.factors import Factors

Scale = Tensor | float | None
"""What every entry is multiplied with; None is 1."""
Way = tuple[Tensor, Tensor]
"""For some neurons, the neuron below each (-1: none) and the entry between them."""

_threshold: Callable[[Tensor, Tensor, float], Tensor] = torch.ops.aten.threshold_backward.default
"""``where(value > 0, x, 0)`` in one pass: torch's own gradient of a ReLU."""


class Map(ABC):
    """One link of a relevance network."""

    @abstractmethod
    def apply(self, a: Tensor) -> Tensor:
        """Amounts of the lower node as amounts of the upper one."""

    @abstractmethod
    def transpose(self, rho: Tensor) -> Tensor | None:
        """Densities of the upper node as densities of the lower one; None is 0 everywhere."""

    @property
    def mixes(self) -> bool:
        """Whether it leads from a neuron to many."""
        return False

    def ways(self, neurons: Tensor) -> list[Way]:
        """The way down from single neurons (flat indices) of the upper node, one by one; for maps that do not mix."""
        raise AssertionError(f"{type(self).__name__} leads from a neuron to many")

    def field(self, dtype: torch.dtype) -> Field:
        """Windows and rows of its columns, for a map that mixes."""
        raise AssertionError(f"{type(self).__name__} leads from a neuron to one")

    def rows(self, field: Field, c: Tensor) -> list[tuple[Scale, Tensor]]:
        """Some rows of its columns, as parts: what every input is multiplied with (None: 1), and the weights."""
        return [(None, field.rows(c))]

    def shares(self) -> list[Scale]:
        """What its inputs are multiplied with, part by part: an input where all of them are 0 is not read."""
        return [None]


def times(x: Tensor, scale: Scale) -> Tensor:
    """A stack of tensors times a scale."""
    return x if scale is None else x * scale


def _size(scale: Scale) -> Scale:
    return scale.abs() if isinstance(scale, Tensor) else scale and abs(scale)


def at(scale: Scale, shape: torch.Size, neurons: Tensor, like: torch.dtype) -> Tensor:
    """The entries of a scale at flat indices of a shape."""
    if isinstance(scale, Tensor):
        return pick(scale, shape, neurons).to(like)
    return torch.full(neurons.shape, 1.0 if scale is None else scale, dtype=like, device=neurons.device)


@dataclass(frozen=True, eq=False)
class Local(Map):
    """``post * move(pre * a)``: data movement between two scales, any of which may be missing."""

    inside: torch.Size
    outside: torch.Size
    dtype: torch.dtype
    pre: Scale = None
    move: LinearMap | None = None
    post: Scale = None

    def apply(self, a: Tensor) -> Tensor:
        a = times(a, self.pre)
        return times(a if self.move is None else self.move.apply(a), self.post)

    def transpose(self, rho: Tensor) -> Tensor:
        rho = times(rho, self.post)
        return times(rho if self.move is None else self.move.transpose(rho), self.pre)

    def bound(self, a: Tensor) -> Tensor:
        """``apply`` with absolute entries, so that nothing cancels."""
        a = times(a, _size(self.pre))
        return times(a if self.move is None else self.move.apply(a), _size(self.post))

    def ways(self, neurons: Tensor) -> list[Way]:
        entry = at(self.post, self.outside, neurons, self.dtype)
        found = []
        for below in sources(self.move, neurons):
            inner = below.clamp(min=0)
            scaled = entry * at(self.pre, self.inside, inner, self.dtype)
            found.append((inner, torch.where(below < 0, torch.zeros_like(scaled), scaled)))
        return found


def risen(carried: Sequence[tuple[Map, Tensor]], others: Sequence[Tensor] = ()) -> Tensor | None:
    """The sum of what maps bring up to one node, each from its own amounts, and of others; None is 0.

    Pieces of a concatenation are put into one tensor: each in a tensor of the whole size would be work in the square of
    their number, which is a network's depth where all layers read all earlier ones.
    """
    placed, parts = [], list(others)
    for map, a in carried:
        if isinstance(map, Local) and isinstance(map.move, Place) and map.post is None:
            placed.append((map.move, times(a, map.pre)))
        else:
            parts.append(map.apply(a))
    if placed:
        parts.append(place_all(placed))
    return _sum(parts) if parts else None


@dataclass(frozen=True, eq=False)
class Scaled(Map):
    """Neuron to neuron, times a tensor that is formed when it is needed; None is 0 everywhere."""

    shape: torch.Size
    form: Callable[[], Tensor | None]

    def apply(self, a: Tensor) -> Tensor:
        scale = self.form()
        return torch.zeros_like(a) if scale is None else a * scale

    def transpose(self, rho: Tensor) -> Tensor | None:
        scale = self.form()
        return None if scale is None else rho * scale

    def bound(self, a: Tensor) -> Tensor:
        """``apply`` with absolute entries, so that nothing cancels."""
        return self.apply(a).abs()

    def ways(self, neurons: Tensor) -> list[Way]:
        scale = self.form()
        return [] if scale is None else [(neurons, pick(scale, self.shape, neurons))]


@dataclass(frozen=True, eq=False)
class Gated(Scaled):
    """Neuron to neuron where a value is above 0, and nowhere else, as a ReLU leads.

    One pass over the tensor: a scale of ones and zeros would be three, which is as much as a small convolution.
    """

    value: Callable[[], Tensor]

    @classmethod
    def by(cls, shape: torch.Size, value: Callable[[], Tensor]) -> Gated:
        """The gate that a value is."""

        def form() -> Tensor:
            v = value()
            return (v > 0).to(v)

        return cls(shape, form, value)

    def apply(self, a: Tensor) -> Tensor:
        return _threshold(a, self.value()[None], 0)

    def transpose(self, rho: Tensor) -> Tensor:
        return self.apply(rho)


@dataclass(frozen=True, eq=False)
class Summed(Map):
    """A sum of pieces that is formed when it is needed; a piece moves entries, or ``mixes`` them."""

    form: Callable[[], Sequence[Local]]
    mixed: bool = False

    @property
    def mixes(self) -> bool:
        return self.mixed and not self._moves

    @cached_property
    def _moves(self) -> bool:
        """Whether all pieces move entries, as those of a maximum do."""
        return all(is_movement(piece.move) for piece in self.form())

    def apply(self, a: Tensor) -> Tensor:
        return _sum([piece.apply(a) for piece in self.form()])

    def transpose(self, rho: Tensor) -> Tensor:
        return _sum([piece.transpose(rho) for piece in self.form()])

    def ways(self, neurons: Tensor) -> list[Way]:
        return [way for piece in self.form() for way in piece.ways(neurons)]

    def field(self, dtype: torch.dtype) -> Field:
        return pieces_field(self.form(), dtype)


@dataclass(frozen=True, eq=False)
class Chained(Map):
    """One map after another: ``then(first(a))``; all but the first are local."""

    first: Map
    then: Map

    def apply(self, a: Tensor) -> Tensor:
        return self.then.apply(self.first.apply(a))

    def transpose(self, rho: Tensor) -> Tensor | None:
        between = self.then.transpose(rho)
        return None if between is None else self.first.transpose(between)

    @property
    def mixes(self) -> bool:
        return self.then.mixes

    def field(self, dtype: torch.dtype) -> Field:
        return self.then.field(dtype)

    def rows(self, field: Field, c: Tensor) -> list[tuple[Scale, Tensor]]:
        (scale,) = self.shares()
        return [(scale, rows) for _, rows in self.then.rows(field, c)]

    def shares(self) -> list[Scale]:
        assert isinstance(self.first, Scaled), "below a step that mixes are units"
        scale = self.first.form()
        return [0.0 if scale is None else scale]

    def ways(self, neurons: Tensor) -> list[Way]:
        return [
            (below, entry * inner)
            for middle, entry in self.then.ways(neurons)
            for below, inner in self.first.ways(middle)
        ]


@dataclass(frozen=True, eq=False)
class Drained(Map):
    """From the neurons of a drain, one per sample and channel, to those of the node it belongs to, times an entry."""

    widen: Callable[[Tensor], Tensor]
    narrow: Callable[[Tensor, Tensor], Tensor]
    """Densities times entries, added up for every neuron of the drain."""
    index: Callable[[], Tensor]
    shape: torch.Size
    form: Callable[[], Tensor]

    def apply(self, a: Tensor) -> Tensor:
        return (self.widen(a) * self.form()).expand(a.shape[0], *self.shape)

    def transpose(self, rho: Tensor) -> Tensor:
        return self.narrow(rho, self.form())

    def ways(self, neurons: Tensor) -> list[Way]:
        return [(pick(self.index(), self.shape, neurons), pick(self.form(), self.shape, neurons))]


@dataclass(frozen=True, eq=False)
class Factored(Map):
    """``T = sum_k diag(a_k) V_k``: a linear step under one key and group of a rule, from the unit of its input."""

    factors: Factors

    @property
    def mixes(self) -> bool:
        return not self.factors.is_identity

    def field(self, dtype: torch.dtype) -> Field:
        return field_of(self.factors.map, dtype)

    def rows(self, field: Field, c: Tensor) -> list[tuple[Scale, Tensor]]:
        asked = self.factors
        scale = None if asked.rows is None else asked.rows.reshape(-1)[c % asked.rows.numel()][:, None]
        rows = WeightRows(asked.map.inside, asked.map.outside, field.rows(c).to(asked.below.value), field.sparse)
        parts = asked.on(rows, scale)
        assert all(isinstance(part.map, WeightRows) for part in parts), "a rule changes weights one by one"
        return [(part.a, part.map.weight) for part in parts]  # type: ignore[attr-defined]

    def shares(self) -> list[Scale]:
        return [part.a for part in self.factors()]

    def apply(self, a: Tensor) -> Tensor:
        parts = [part.map.apply(times(a, part.a)) for part in self.factors()]
        return _sum(parts) if parts else a.new_zeros(a.shape[0], *self.factors.map.outside)

    def transpose(self, rho: Tensor) -> Tensor:
        parts = [_after(part.map, part.map.transpose(rho), part.a) for part in self.factors()]
        return _sum(parts) if parts else rho.new_zeros(rho.shape[0], *self.factors.map.inside)

    def apply_by_channel(self, a: Tensor, rows: Sequence[int]) -> Tensor:
        """Each of these input channels by itself, on the stack, for about the arithmetic of all together."""
        return _sum([apply_by_channel(part.map, times(a, part.a), rows) for part in self.factors()])

    def transpose_by_channel(self, rho: Tensor, rows: Sequence[int]) -> Tensor:
        """Each of these output channels by itself."""
        parts = [_after(part.map, transpose_by_channel(part.map, rho, rows), part.a) for part in self.factors()]
        return _sum(parts)

    def table(self, a: Tensor, rho: Tensor) -> Tensor:
        """All pairs of channels at once, ``(K, batch, input channels, output channels)``, density-first."""
        if a.shape[0] > 1 and rho.shape[0] > 1:
            a, rho = a.repeat(rho.shape[0], *(1,) * (a.ndim - 1)), rho.repeat_interleave(a.shape[0], 0)
        return _sum([channel_table(part.map, times(a, part.a), rho) for part in self.factors()])

    def ways(self, neurons: Tensor) -> list[Way]:
        """For the identity block of a plain term."""
        total: Tensor | None = None
        node = self.factors.below
        for part in self.factors():
            assert self.factors.is_identity, "a linear step leads from a neuron to many"
            entry = at(part.a, node.shape, neurons, node.dtype) * getattr(part.map, "weight", 1.0)
            total = entry if total is None else total + entry
        return [] if total is None else [(neurons, total)]


def _after(map: LinearMap, fresh: Tensor, a: Scale) -> Tensor:
    if isinstance(a, Tensor) and isinstance(map, Convolution | Dense):
        return fresh.mul_(a)  # nobody else has seen it yet: no need for another tensor
    return times(fresh, a)


def is_movement(move: LinearMap | None) -> bool:
    """Whether every entry of the result is one entry, or a sum at places."""
    return move is None or isinstance(move, Movement | Scatter)


def pieces_field(pieces: Sequence[Local], dtype: torch.dtype) -> Field:
    """The columns of a sum of pieces: over groups of entries if all that mix have the same, else found one by one."""
    moves = [piece.move for piece in pieces if piece.move is not None]
    first = moves[0] if moves else None
    if isinstance(first, GroupSum):
        alike = all(isinstance(m, GroupSum) and (m.view, m.dims) == (first.view, first.dims) for m in moves)
    else:
        alike = isinstance(first, Reduce) and len(pieces) == 1
    if first is None or not alike:
        return field_of(PieceSum(pieces[0].inside, pieces[0].outside, tuple(pieces)), dtype)
    return PiecesField(tuple(pieces), field_of(first, dtype))


@dataclass(frozen=True, eq=False)
class PieceSum(LinearMap):
    """A sum of pieces that is one linear map, whose columns can be found one by one."""

    inside: torch.Size
    outside: torch.Size
    pieces: tuple[Local, ...]

    def apply(self, x: Tensor) -> Tensor:
        return _sum([piece.apply(x) for piece in self.pieces])

    def transpose(self, y: Tensor) -> Tensor:
        return _sum([piece.transpose(y) for piece in self.pieces])

    def reweight(self, change: WeightChange) -> LinearMap:
        raise AssertionError("a split is exact: no rule changes its entries")


@dataclass(frozen=True, eq=False)
class PiecesField(Field):
    """The columns of pieces over groups of entries: a window per group, a row per neuron."""

    pieces: tuple[Local, ...]
    group: Field

    @property
    def width(self) -> int:  # type: ignore[override]
        return self.group.width

    def locate(self, o: Tensor) -> tuple[Tensor, Tensor]:
        return self.group.locate(o)[0], o

    def taps(self, p: Tensor) -> Tensor:
        return self.group.taps(p)

    def rows(self, c: Tensor) -> Tensor:
        taps = self.taps(self.group.locate(c)[0])
        total = torch.zeros(taps.shape, dtype=torch.float64, device=c.device)
        for piece in self.pieces:
            own = at(piece.post, piece.outside, c, torch.float64)[:, None]
            inner = at(piece.pre, piece.inside, taps.reshape(-1), torch.float64).reshape(taps.shape)
            weight = self.group.rows(self.group.locate(c)[1]) if piece.move is not None else taps == c[:, None]
            total += own * inner * weight
        return total.to(self.pieces[0].dtype)


def _sum(parts: list[Tensor]) -> Tensor:
    return sum(parts[1:], parts[0])


@dataclass(frozen=True, eq=False)
class Softmaxed(Map):
    """A softmax under its own rule, ``T_ij = x_i s_j (delta_ij - s_i)`` along ``dim``, from logits, whose unit is 1."""

    diagonal: Callable[[], tuple[Tensor, Tensor, Tensor]]
    """Of logit i: its entry to output i over s_i, its entry to any other output j over s_j; and what s stands for."""
    dim: int

    def apply(self, a: Tensor) -> Tensor:
        own, other, s = self.diagonal()
        return s * ((own - other) * a + torch.sum(other * a, self.dim + 1, keepdim=True))

    def transpose(self, rho: Tensor) -> Tensor:
        own, other, s = self.diagonal()
        rho = rho * s
        return (own - other) * rho + other * rho.sum(self.dim + 1, keepdim=True)
