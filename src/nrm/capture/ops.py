"""What a recorded call means for relevance: a few kinds of ops, as values.

A call of torch is read once, when it is recorded, and becomes one of these. The rest of the library knows no
torch functions. What each kind does to relevance is said by its family, in ``nrm.steps.families``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from nrm.operators import Gather, LinearMap, Reduce, Scatter


@dataclass(frozen=True, eq=False)
class Source:
    """Where walks begin: the user's input, an embedding, or a constant or parameter used as an activation.

    A constant that was ``made`` from the input, by ways that cannot be followed, holds relevance that is lost.
    """

    kind: str
    made: bool = False


@dataclass(frozen=True, eq=False)
class Linear:
    """A linear step with weights: ``y = map(x) + bias``, as ``Linear(map, kind, bias)``."""

    map: LinearMap
    """What it computes, without the bias, on the whole batch."""
    kind: str
    """``"linear"``, ``"conv"``, ``"pool"`` or ``"norm"``: which rule of a composite it gets, and where channels are."""
    bias: Tensor | None = None
    """The bias, in a shape that broadcasts to the result."""


@dataclass(frozen=True, eq=False)
class Term:
    """One term ``scale * move(x)`` of a combination; no movement means the tensor as it is."""

    move: LinearMap | None = None
    scale: Tensor | float = 1.0

    @cached_property
    def flips(self) -> bool:
        """Whether the scale turns any sign."""
        return float(self.scale.amin()) < 0 if isinstance(self.scale, Tensor) else self.scale < 0


@dataclass(frozen=True, eq=False)
class Combine:
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


@dataclass(frozen=True, eq=False)
class Pointwise:
    """An elementwise function. ``offset`` is its value at 0, which no input explains.

    One that a model writes as a product of functions of one tensor, ``z * tanh(z)``, has the nodes of its ``factors``:
    it can be taken for that product all the same.
    """

    offset: float = 0.0
    kind: str = "activation"
    function: Callable[[Tensor], Tensor] | None = None
    factors: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class LogSoftmax(Pointwise):
    """A log-softmax along ``dim``, or a softmax of opposites: one-to-one with its normalizer held constant."""

    kind: str = "softmax"
    dim: int = -1


@dataclass(frozen=True, eq=False)
class Softmax(Pointwise):
    """A softmax along ``dim``: one-to-one with its normalizer held constant, or by the softmax rule."""

    kind: str = "softmax"
    dim: int = -1


@dataclass(frozen=True, eq=False)
class Select:
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

    def ties(self, values: Tensor) -> Tensor:
        """Which outputs had several equal inputs to choose from: choosing the first or the last makes a difference."""
        rank = torch.unique(values, return_inverse=True)[1].double() * values.numel()
        place = torch.arange(values.numel(), device=values.device).view(values.shape)
        first, last = self.choose(rank - place), self.choose(rank + place)
        return (first.index != last.index).view(first.outside)


@dataclass(frozen=True, eq=False)
class Multiply:
    """A product of tensors that carry relevance; ``moves`` broadcasts each factor, ``quotient`` divides by the last."""

    moves: tuple[LinearMap | None, ...]
    quotient: bool = False
    kind: str = "mul"


@dataclass(frozen=True, eq=False)
class Unknown:
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

    compute: Callable[[Tensor], Tensor] | None = None
    move: LinearMap | None = None


@dataclass(frozen=True, eq=False)
class OwnOp:
    """An op that none of the others is: a class made from it, with a family of its own (:func:`nrm.steps.family`).

    It leaves samples and channels on the axes where they lie in what it reads. An ``entrywise`` one reads tensors of
    the shape of its result, and every entry of the result is made of the entries at the same position.
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
class Exact:
    """A step of a contrast that is linear only in the difference of two runs: ``dy = sum of parts(dx)``, exactly.

    ``of`` is what the step is in each run. ``parts`` forms the pieces of every input when they are needed. ``moves``
    says how entries reach the result if each comes from one entry of every input; None: entries are mixed.
    """

    of: Op
    parts: tuple[Callable[[], Parts], ...]
    moves: tuple[LinearMap | None, ...] | None = None

    @property
    def kind(self) -> str:
        """What kind of step it is in each run."""
        return self.of.kind


Op = Source | Linear | Combine | Pointwise | Select | Multiply | OwnOp | Unknown | Exact


def in_each_run(op: Op) -> Op:
    """The op itself, or what a step of a contrast is in each of its runs."""
    return op.of if isinstance(op, Exact) else op
