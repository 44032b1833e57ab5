"""What a recorded call means for relevance: a few kinds of ops, as values.

A call of torch is read once, when it is recorded, and becomes one of these. The rest of the library knows no
torch functions. What each kind does to relevance is said by its family, in ``nrm.steps.families``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from torch import Tensor

from nrm.capture.axes import followed, moves_within, through
from nrm.capture.op import Maps, Op as Op
from nrm.operators import (
    Function,
    Gather,
    LinearMap,
    Matmul,
    Permute,
    PerSample,
    Place,
    Reduce,
    Reshape,
    Scatter,
    convolution_in,
    has_table,
    place_all,
)

if TYPE_CHECKING:
    from nrm.capture.tape import Node


@dataclass(frozen=True, eq=False)
class Source(Op):
    """Where walks begin: the user's input, an embedding, or a constant or parameter used as an activation.

    A constant that was ``made`` from the input, by ways that cannot be followed, holds relevance that is lost.
    """

    kind: str
    made: bool = False

    def maps(self, count: int) -> Maps:
        return ()

    @property
    def holds(self) -> bool:
        return False


@dataclass(frozen=True, eq=False)
class Linear(Op):
    """A linear step with weights: ``y = map(x) + bias``, as ``Linear(map, kind, bias)``."""

    map: LinearMap
    """What it computes, without the bias, on the whole batch."""
    kind: str
    """``"linear"``, ``"conv"``, ``"pool"`` or ``"norm"``: which rule of a composite it gets, and where channels are."""
    bias: Tensor | None = None
    """The bias, in a shape that broadcasts to the result."""
    beside: tuple[int, ...] = ()
    """Nodes that the map was computed from, which is held: they have no share, but a contrast shares with them."""

    @property
    def mixes(self) -> bool:
        return True

    def maps(self, count: int) -> Maps:
        return (self.map,)

    def channel_axis(self, channels: list[int | None], shape: torch.Size, sample: int | None) -> int | None:
        """1 after convolutions and pooling, the last axis after dense layers and norms."""
        last = len(shape) - 1
        if last < (sample is not None):
            return None
        convolution = convolution_in(self.map)
        if convolution is not None:
            return len(shape) - convolution.weight.ndim + 1
        if self.kind == "linear":
            return last
        if isinstance(self.map, Reduce):
            kept = through(self.map, channels[0])
            return last if kept is None else kept
        return channels[0]

    def read_channel(self, ndim: int) -> int | None:
        convolution = convolution_in(self.map)
        if convolution is not None:
            return ndim - convolution.weight.ndim + 1
        norm = self.kind == "norm" and getattr(self.map, "dims", ()) == (ndim - 1,)
        return ndim - 1 if norm or self.kind == "linear" else None

    def keeps_channels(self, node: Node, below: Node, position: int) -> bool:
        rows = isinstance(self.map, Matmul) and self.map.left and node.channel == node.ndim - 1
        return (rows or self.kind == "pool") and node.channel == below.channel

    def table_axes(self, ndim: int, below: int) -> tuple[int, int, int | None] | None:
        if not has_table(self.map):
            return None
        if self.kind == "linear":
            return ndim - 1, below - 1, 0 if ndim > 1 else None
        weight = self.map.weight  # type: ignore[attr-defined]
        axis = ndim - weight.ndim + 1
        return axis, axis, 0 if ndim == weight.ndim else None

    @property
    def holds(self) -> bool:
        return self.kind in ("norm", "matmul") or bool(self.beside)

    def compute(self, below: Sequence[Tensor]) -> Tensor:
        value = self.map.apply(below[0])
        return value if self.bias is None else value + self.bias

    def sizes(self, below: Sequence[Tensor]) -> Tensor:
        if isinstance(self.map, Function):  # its weights are not known one by one
            return super().sizes(below)
        return self.map.reweight(torch.abs).apply(below[0].abs()) + (0.0 if self.bias is None else self.bias.abs())

    def flops(self, shape: torch.Size) -> float:
        return self.map.flops

    @property
    def tensors(self) -> Sequence[Tensor]:
        return (self.map.matrix,) if isinstance(self.map, PerSample) else ()


@dataclass(frozen=True, eq=False)
class Term:
    """One term ``scale * move(x)`` of a combination; no movement means the tensor as it is."""

    move: LinearMap | None = None
    scale: Tensor | float = 1.0

    @cached_property
    def flips(self) -> bool:
        """Whether the scale turns any sign."""
        return float(self.scale.amin()) < 0 if isinstance(self.scale, Tensor) else self.scale < 0

    @property
    def is_plain(self) -> bool:
        """Whether the scale is 1."""
        return isinstance(self.scale, float) and self.scale == 1

    def of(self, x: Tensor) -> Tensor:
        """The term for a stack of values."""
        moved = x if self.move is None else self.move.apply(x)
        return moved if self.is_plain else moved * self.scale


@dataclass(frozen=True, eq=False)
class Combine(Op):
    """``y = sum of terms + shift``: data movement, scaling by a constant, batch norm, addition, sums over neighbours.

    If it ``joins``, several terms (or a term and a shift) meet in one entry and share one column; otherwise every
    entry of y comes from exactly one entry below, and relevance just moves.

    A product of two matrices that both carry relevance is the sum of its halves, each linear in one factor with the
    other held constant; the kind "matmul" says so. ``held`` says that scales, shift or places were computed from the
    inputs: an op that is the whole truth about relevance, and not about other inputs.
    """

    terms: tuple[Term, ...]
    shift: Tensor | float | None = None
    joins: bool = False
    kind: str = "move"
    held: bool = False
    gated: tuple[tuple[int, Term], ...] = ()
    """Terms inside the shift, with their nodes: a bias behind a gate, which is held constant for relevance."""

    @property
    def is_local(self) -> bool:
        return True

    @property
    def mixes(self) -> bool:
        """The halves of a product of matrices are linear steps already."""
        sums = len(self.terms) > 1 or isinstance(self.terms[0].move, Scatter)
        return self.joins and sums and self.kind not in ("matmul", "product")

    def maps(self, count: int) -> Maps:
        return [term.move for term in self.terms]

    def is_one_to_one(self, position: int) -> bool:
        move = self.terms[position].move
        return move is None or isinstance(move, Reshape | Permute)

    def moved_channels(self, channels: list[int | None]) -> Sequence[int | None]:
        """Channels that are split into groups or put together again are followed as well."""
        return [followed(term.move, axis) for term, axis in zip(self.terms, channels, strict=True)]

    @property
    def keeps_sign(self) -> bool:
        return not self.joins and all(isinstance(t.scale, float) and t.scale >= 0 for t in self.terms)

    @property
    def holds(self) -> bool:
        return self.held or self.kind == "matmul"

    def compute(self, below: Sequence[Tensor]) -> Tensor:
        places = [term.move for term in self.terms if isinstance(term.move, Place)]
        if len(places) == len(self.terms) > 1 and all(term.is_plain for term in self.terms):
            total = place_all(list(zip(places, below, strict=True)))
        else:
            parts = (term.of(x) for term, x in zip(self.terms, below, strict=True))
            total = next(parts)
            for part in parts:
                total = total + part
        return total if self.shift is None else total + self.shift

    def sizes(self, below: Sequence[Tensor]) -> Tensor:
        terms = tuple(Term(term.move, _absolute(term.scale)) for term in self.terms)
        return Combine(terms, None if self.shift is None else _absolute(self.shift)).compute([x.abs() for x in below])

    def at(self, points: Sequence[Sequence[float]]) -> Sequence[float] | None:
        scales = [_number(term.scale) if term.move is None else None for term in self.terms]
        shift = 0.0 if self.shift is None else _number(self.shift)
        if shift is None or None in scales:
            return None
        return [shift + sum(s * x for s, x in zip(scales, point, strict=True) if s) for point in points]

    def flops(self, shape: torch.Size) -> float:
        return 2.0 * shape.numel()


@dataclass(frozen=True, eq=False)
class Pointwise(Op):
    """An elementwise function. ``offset`` is its value at 0, which no input explains.

    One that a model writes as a product of functions of one tensor, ``z * tanh(z)``, has the nodes of its ``factors``:
    it can be taken for that product all the same.
    """

    offset: float = 0.0
    kind: str = "activation"
    function: Callable[[Tensor], Tensor] | None = None
    factors: tuple[int, ...] = ()

    entrywise: ClassVar[bool] = True
    is_local: ClassVar[bool] = True

    def maps(self, count: int) -> Maps:
        return (None,)

    def keeps_channels(self, node: Node, below: Node, position: int) -> bool:
        return node.channel == below.channel

    def is_one_to_one(self, position: int) -> bool:
        return True

    @property
    def holds(self) -> bool:
        return self.function is None

    def compute(self, below: Sequence[Tensor]) -> Tensor | None:
        return None if self.function is None else self.function(below[0])

    def at(self, points: Sequence[Sequence[float]]) -> Sequence[float] | None:
        if self.function is None:
            return None
        values, others = {0.0: self.offset}, sorted({x for (x,) in points} - {0.0})
        if others:
            values |= zip(others, self.function(torch.tensor(others, dtype=torch.float64)).tolist(), strict=True)
        return [values[x] for (x,) in points]


@dataclass(frozen=True, eq=False)
class LogSoftmax(Pointwise):
    """A log-softmax along ``dim``, or a softmax of opposites: one-to-one with its normalizer held constant."""

    entrywise: ClassVar[bool] = False
    is_local: ClassVar[bool] = False
    kind: str = "softmax"
    dim: int = -1


@dataclass(frozen=True, eq=False)
class Softmax(Pointwise):
    """A softmax along ``dim``: one-to-one with its normalizer held constant, or by the softmax rule."""

    entrywise: ClassVar[bool] = False
    is_local: ClassVar[bool] = False
    kind: str = "softmax"
    dim: int = -1


@dataclass(frozen=True, eq=False)
class Select(Op):
    """Each output is one chosen input: max pooling, maxima over axes. The choice is computed when first needed.

    ``choose`` takes the values to choose by, None for the input's own; ``reduce`` is the sum in whose place the maximum
    stands, over axes or at places.
    """

    choose: Callable[[Tensor | None], Gather]
    reduce: Reduce | Scatter | None = None
    kind: str = "max"

    @cached_property
    def map(self) -> Gather:
        """The movement from the chosen entries."""
        return self.choose(None)

    @property
    def mixes(self) -> bool:
        return True

    def maps(self, count: int) -> Maps:
        return (self.reduce,)

    def field(self, marks: Tensor, below: Sequence[Tensor]) -> list[Tensor]:
        """The first and the last entry of every window: its corners are enough for a box."""
        (x,) = below
        place = torch.arange(x.numel(), device=x.device, dtype=torch.float64).view(x.shape)
        return [self.choose(place).transpose(marks) + self.choose(-place).transpose(marks)]

    def keeps_channels(self, node: Node, below: Node, position: int) -> bool:
        same = self.reduce is None and node.channel == below.channel
        return same and moves_within(self.map, below.channel, node.channel)

    @property
    def keeps_sign(self) -> bool:
        return True

    def compute(self, below: Sequence[Tensor]) -> Tensor:
        return self.map.apply(below[0])

    def ties(self, values: Tensor) -> Tensor:
        """Which outputs had several equal inputs to choose from: choosing the first or the last makes a difference."""
        rank = torch.unique(values, return_inverse=True)[1].double() * values.numel()
        place = torch.arange(values.numel(), device=values.device).view(values.shape)
        first, last = self.choose(rank - place), self.choose(rank + place)
        return (first.index != last.index).view(first.outside)


@dataclass(frozen=True, eq=False)
class Multiply(Op):
    """A product of tensors that carry relevance; ``moves`` broadcasts each factor, ``quotient`` divides by the last."""

    moves: tuple[LinearMap | None, ...]
    quotient: bool = False
    kind: str = "mul"

    @property
    def is_local(self) -> bool:
        return True

    @property
    def scales(self) -> bool:
        return True

    def maps(self, count: int) -> Maps:
        return self.moves

    @property
    def holds(self) -> bool:
        return False

    def compute(self, below: Sequence[Tensor]) -> Tensor:
        first, *rest = (x if move is None else move.apply(x) for move, x in zip(self.moves, below, strict=True))
        for factor in rest:
            first = first / factor if self.quotient else first * factor
        return first

    def at(self, points: Sequence[Sequence[float]]) -> Sequence[float] | None:
        return None if self.quotient or any(self.moves) else [math.prod(point) for point in points]


@dataclass(frozen=True, eq=False)
class Unknown(Op):
    """A call without a rule. It is an error only if relevance would have to pass through it.

    A ``reciprocal`` divides whatever it is multiplied with, and is held constant like every divisor.
    """

    function: str
    where: str
    kind: str = field(default="unknown")


@dataclass(frozen=True, eq=False)
class Singular(Unknown):
    """An elementwise function without a value at 0, so that no part of it is anybody's: a logarithm, a reciprocal.

    In a contrast it has a secant. ``move`` broadcasts its input, where a constant is divided by it.
    """

    elementwise: Callable[[Tensor], Tensor] | None = None
    move: LinearMap | None = None


@dataclass(frozen=True, eq=False)
class OwnOp(Op):
    """An op that none of the others is: a class made from it, with a family of its own (:func:`nrm.steps.family`).

    It leaves samples and channels on the axes where they lie in what it reads, and its call is repeated where it has to
    be computed again. One that says more overrides the methods of :class:`Op`: most follows from ``maps``, and from
    ``entrywise``. An ``entrywise`` one reads tensors of the shape of its result, and every entry of the result is made
    of the entries at the same position. With ``compute`` it is compared with what the call gave; ``holds = False`` says
    that this is the truth for other inputs as well.
    """

    entrywise: ClassVar[bool] = False
    kind: str = "own"


class Piece(NamedTuple):
    """A part ``post * move(pre * x)`` of an exact split; what is missing is 1, or leaves every entry where it is."""

    move: LinearMap | None = None
    post: Tensor | float | None = None
    pre: Tensor | float | None = None


Parts = tuple[Piece, ...]


@dataclass(frozen=True, eq=False)
class Exact(Op):
    """A step of a contrast that is linear only in the difference of two runs: ``dy = sum of parts(dx)``, exactly.

    ``of`` is what the step is in each run. ``parts`` forms the pieces of every input when they are needed. ``moves``
    says how entries reach the result if each comes from one entry of every input; None: entries are mixed.
    """

    of: Op
    parts: tuple[Callable[[], Parts], ...]
    moves: tuple[LinearMap | None, ...] | None = None

    @property
    def kind(self) -> str:  # type: ignore[override]
        """What kind of step it is in each run."""
        return self.of.kind

    @property
    def is_local(self) -> bool:
        return self.moves is not None

    @property
    def mixes(self) -> bool:
        return self.of.mixes

    def maps(self, count: int) -> Maps | None:
        return self.moves

    def is_one_to_one(self, position: int) -> bool:
        return self.moves is not None and self.of.is_one_to_one(position)

    def field(self, marks: Tensor, below: Sequence[Tensor]) -> list[Tensor] | None:
        return self.of.field(marks, below)


def in_each_run(op: Op) -> Op:
    """The op itself, or what a step of a contrast is in each of its runs."""
    return op.of if isinstance(op, Exact) else op


def _absolute(value: Tensor | float) -> Tensor | float:
    return value.abs() if isinstance(value, Tensor) else abs(value)


def _number(value: Tensor | float) -> float | None:
    if isinstance(value, Tensor):
        return float(value) if value.numel() == 1 else None
    return float(value)
