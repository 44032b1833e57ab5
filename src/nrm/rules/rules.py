"""The propagation rules, named as in the papers. A rule is a frozen value; it turns a linear step into factors.

Every rule has the factored form ``T = sum_k diag(a_k) V_k`` with ``V_k`` the step's map under changed weights, so
that column sums are ``sum_k V_k(a_k)``, pulling is ``a_k * V_k^T(density)`` and pushing is ``V_k(a_k * v)``.

Where a step sits under a constant scale ``s`` (a batch norm folded into it), its weights are ``s W``. A rule says how
it follows such a scale through the *keys* of its factors: ``("power", p)`` factors scale with ``s**p``;
``("sign", +1)`` and ``("sign", -1)`` factors belong to ``W`` and ``-W``, for rules that treat positive and negative
weights differently. A rule also states its properties, and nothing else in the library knows rules by their class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from nrm.errors import RuleError
from nrm.operators import Identity, LinearMap, WeightChange
from nrm.rules.numbers import read_bounds, read_number, read_numbers

Key = tuple[str, int]
"""How a factor follows a scale on the weights: ``("power", p)``, ``("sign", 1)`` or ``("sign", -1)``."""
POSITIVE: Key = ("sign", 1)
NEGATIVE: Key = ("sign", -1)
CONSTANT: Key = ("power", 0)
LINEAR: Key = ("power", 1)
SQUARE: Key = ("power", 2)


class Factor(NamedTuple):
    """One factor ``diag(a) V`` of a rule's matrix: the entry of input i and output j is ``a_i V_ij``.

    A rule's entries are the sum of its factors. Alpha-beta has two groups of them, whose columns are normalized each
    by itself.

    >>> from nrm.operators import Dense
    >>> h, step = torch.tensor([[1.0, -2.0]]), Dense(torch.Size([2]), torch.tensor([[3.0, 4.0]]))
    >>> factor = Factor(h.abs(), step.reweight(torch.abs))  # the entries |h| |W|
    >>> factor.map.apply(factor.a)  # their column sums
    tensor([[11.]])
    """

    a: Tensor | float
    """What stands in the place of activations, in the shape of the step's input, or one number for all."""
    map: LinearMap
    """The step's linear map with changed weights: ``map.reweight(torch.abs)``, ``map.support()``."""
    group: int = 0
    """0, except for rules that normalize two parts by themselves."""


class Rule(ABC):
    """What a linear step's unnormalized entries are. ``h`` is the step's input, ``W`` its weights.

    A rule of one's own says its ``factors`` and what a bias gets; ``nrm.testing.check_rule`` tests it.
    """

    keys: ClassVar[tuple[Key, ...]] = (LINEAR,)
    """How entries follow a scale on the weights; a rule with several keys is asked for the factors of each."""
    cancels: ClassVar[bool] = True
    """Whether entries of both signs can meet in one column, so that its sum may be lost to rounding."""
    proportional: ClassVar[bool] = False
    """Whether columns, biases included, sum to the very value that the step computes: then nothing is divided."""
    vanishes: ClassVar[bool] = False
    """Whether every entry is 0 where the input is, so that a density, relevance per unit of value, is finite there."""
    signed: ClassVar[bool] = True
    """Whether entries have the signs of ``h W``, so that a rule that pools signs takes them in its own groups."""
    pools: ClassVar[bool] = False
    """Whether the signs of a whole column are pooled in two groups, those of other rules' blocks included."""
    apart: ClassVar[bool] = False
    """Whether no connection has an entry in more than one factor of a key."""
    flat: ClassVar[bool] = False
    """Whether all connections of a step have one and the same entry, so that its inputs cannot be told apart."""
    stays: ClassVar[bool] = False
    """Whether entries lead from every neuron to the one at its own place, whatever the weights: channels do not mix."""

    @property
    def nonnegative(self) -> bool:
        """Whether no normalized entry is below 0."""
        return not self.cancels

    @property
    def as_is(self) -> bool:
        """Whether its entries are ``h W``, with nothing changed: then nothing needs to be known of ``h``."""
        return type(self).factors is LRP0.factors and type(self).within is Rule.within

    @property
    def damping(self) -> float:
        """What is added to column sums in the unnormalized counterpart."""
        return 0.0

    def within(self, h: Tensor, sample: int | None) -> Rule:
        """The rule for one input ``h``, with its samples along an axis: what depends on the input is filled in."""
        return self

    def divisors(self, totals: Sequence[Tensor], normalize: bool | str) -> tuple[tuple[Tensor, ...], Tensor | None]:
        """What a message is divided by in each of two groups, and the columns without a sum; for rules that pool."""
        raise AssertionError(f"{self!r} does not pool")

    @abstractmethod
    def factors(self, key: Key, map: LinearMap, h: Tensor, nonnegative: bool) -> list[Factor]:
        """The factors of one key. ``nonnegative`` says that no entry of ``h`` is below 0."""

    @abstractmethod
    def bias(self, b: Tensor) -> tuple[Tensor | None, ...]:
        """The entry of a bias, a weight from a neuron of activation 1, in each group; None: it gets nothing."""

    def __repr__(self) -> str:
        fields = ", ".join(f"{k}={v!r}" for k, v in vars(self).items())
        return f"{type(self).__name__}({fields})"


@dataclass(frozen=True, repr=False)
class LRP0(Rule):
    """``h W``: every contribution as it is."""

    proportional: ClassVar[bool] = True
    vanishes: ClassVar[bool] = True

    def factors(self, key: Key, map: LinearMap, h: Tensor, nonnegative: bool) -> list[Factor]:
        return [Factor(h, map)]

    def bias(self, b: Tensor) -> tuple[Tensor | None, ...]:
        return (b,)


@dataclass(frozen=True, repr=False)
class Epsilon(LRP0):
    """The epsilon rule. Normalizing its columns cancels epsilon, so in a measure it *is* LRP-0; the epsilon matters
    only in the unnormalized counterpart (``normalize=False``).
    """

    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        read_number(self, "epsilon", self.epsilon, low=0)

    @property
    def damping(self) -> float:
        return self.epsilon


@dataclass(frozen=True, repr=False)
class Gamma(Rule):
    """``h W + gamma max(0, h W)``: positive contributions count (1 + gamma) times."""

    gamma: float = 0.25
    keys: ClassVar[tuple[Key, ...]] = (POSITIVE, NEGATIVE)
    vanishes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        read_number(self, "gamma", self.gamma, low=0)

    def factors(self, key: Key, map: LinearMap, h: Tensor, nonnegative: bool) -> list[Factor]:
        sign, gamma = key[1], self.gamma
        if nonnegative:
            up = _up(sign)
            return [Factor(h, map.reweight(lambda w: (w if sign > 0 else -w) + gamma * up(w)))]
        positive, negative = _signed_parts(map, sign)
        return [Factor(h, map.reweight(lambda w: sign * w)), Factor(gamma * h.clamp(min=0), positive),
                Factor(gamma * h.clamp(max=0), negative)]  # fmt: skip

    def bias(self, b: Tensor) -> tuple[Tensor | None, ...]:
        return (b + self.gamma * b.clamp(min=0),)


@dataclass(frozen=True, repr=False)
class ZPlus(Rule):
    """``max(0, h W)``: only positive contributions."""

    keys: ClassVar[tuple[Key, ...]] = (POSITIVE, NEGATIVE)
    cancels: ClassVar[bool] = False
    vanishes: ClassVar[bool] = True
    apart: ClassVar[bool] = True

    def factors(self, key: Key, map: LinearMap, h: Tensor, nonnegative: bool) -> list[Factor]:
        return _positive_part(map, h, key[1], nonnegative, group=0)

    def bias(self, b: Tensor) -> tuple[Tensor | None, ...]:
        return (b.clamp(min=0),)


@dataclass(frozen=True, repr=False)
class AlphaBeta(Rule):
    """``alpha`` times the positive contributions' shares minus ``beta`` times the negative ones'.

    Positive and negative parts are pooled over the whole column. A column with one sign only has one group of shares.
    """

    alpha: float = 2.0
    beta: float = 1.0
    keys: ClassVar[tuple[Key, ...]] = (POSITIVE, NEGATIVE)
    cancels: ClassVar[bool] = False
    vanishes: ClassVar[bool] = True
    apart: ClassVar[bool] = True
    pools: ClassVar[bool] = True

    def __post_init__(self) -> None:
        alpha, beta = read_number(self, "alpha", self.alpha), read_number(self, "beta", self.beta)
        if not alpha > beta >= 0:
            raise RuleError(
                "alpha-beta does not give a positive total",
                got=f"AlphaBeta({self.alpha}, {self.beta})", expected="alpha > beta >= 0",
            )  # fmt: skip

    def factors(self, key: Key, map: LinearMap, h: Tensor, nonnegative: bool) -> list[Factor]:
        return [*_positive_part(map, h, key[1], nonnegative, group=0),
                *_positive_part(map, h, -key[1], nonnegative, group=1)]  # fmt: skip

    def bias(self, b: Tensor) -> tuple[Tensor | None, ...]:
        return b.clamp(min=0), (-b).clamp(min=0)

    @property
    def nonnegative(self) -> bool:
        return self.beta == 0

    def divisors(self, totals: Sequence[Tensor], normalize: bool | str) -> tuple[tuple[Tensor, ...], Tensor | None]:
        """A column with one sign only is that sign's shares."""
        if normalize == "raw":
            factors = (self.alpha, -self.beta)
            raw = (torch.full_like(z, 1 / f if f else torch.inf) for z, f in zip(totals, factors, strict=True))
            return tuple(raw), None
        positive, negative = totals
        alpha = torch.where(positive > 0, self.alpha, 0.0).to(positive)
        beta = torch.where(negative > 0, self.beta, 0.0).to(negative)
        total = alpha - beta if normalize else torch.ones_like(alpha)
        dead = total == 0
        up = (total * positive / self.alpha).masked_fill(dead | (alpha == 0), torch.inf)
        down = (-total * negative / (self.beta or 1.0)).masked_fill(dead | (beta == 0), torch.inf)
        return (up, down), (dead if normalize else None)


@dataclass(frozen=True, repr=False)
class Flat(Rule):
    """1 for every connection: each column is uniform over its receptive field inside the image."""

    keys: ClassVar[tuple[Key, ...]] = (CONSTANT,)
    cancels: ClassVar[bool] = False
    signed: ClassVar[bool] = False
    flat: ClassVar[bool] = True

    def factors(self, key: Key, map: LinearMap, h: Tensor, nonnegative: bool) -> list[Factor]:
        return [Factor(1.0, map.support())]

    def bias(self, b: Tensor) -> tuple[Tensor | None, ...]:
        return (None,)


@dataclass(frozen=True, repr=False)
class WSquare(Rule):
    """``W^2``: shares by squared weights, whatever the input."""

    keys: ClassVar[tuple[Key, ...]] = (SQUARE,)
    cancels: ClassVar[bool] = False
    signed: ClassVar[bool] = False

    def factors(self, key: Key, map: LinearMap, h: Tensor, nonnegative: bool) -> list[Factor]:
        return [Factor(1.0, map.reweight(torch.square))]

    def bias(self, b: Tensor) -> tuple[Tensor | None, ...]:
        return (b.square(),)


@dataclass(frozen=True, repr=False, eq=False)
class ZBox(Rule):
    """``h W - low max(0, W) - high min(0, W)`` for inputs between the bounds ``low`` and ``high``.

    Bounds are numbers or tensors that broadcast against the input. Without bounds, the range of each sample's input
    (with 0 inside) is used.
    """

    low: float | Tensor | None = None
    high: float | Tensor | None = None
    keys: ClassVar[tuple[Key, ...]] = (POSITIVE, NEGATIVE)
    signed: ClassVar[bool] = False

    def __post_init__(self) -> None:
        read_bounds(self, self.low, self.high)

    def within(self, h: Tensor, sample: int | None) -> ZBox:
        """The rule with bounds: missing ones are the range of each sample's input, with 0 inside."""
        axes = [a for a in range(h.ndim) if a != sample]
        low = h.amin(axes, keepdim=True).clamp(max=0) if self.low is None else self.low
        high = h.amax(axes, keepdim=True).clamp(min=0) if self.high is None else self.high
        return ZBox(low, high)

    def factors(self, key: Key, map: LinearMap, h: Tensor, nonnegative: bool) -> list[Factor]:
        bounded = self.within(h, None)
        low, high = self._bound(bounded.low, h), self._bound(bounded.high, h)
        up, down = _signed_parts(map, key[1])
        sign = key[1]
        return [Factor(h, map.reweight(lambda w: sign * w)), Factor(-low, up), Factor(-high, down)]

    def bias(self, b: Tensor) -> tuple[Tensor | None, ...]:
        return (None,)

    @staticmethod
    def _bound(bound: float | Tensor | None, h: Tensor) -> Tensor:
        value = torch.as_tensor(bound, dtype=h.dtype, device=h.device)
        try:
            return value.expand(h.shape)
        except RuntimeError:
            raise RuleError(
                "a bound of ZBox does not fit its input", got=f"shape {tuple(value.shape)}",
                expected=f"a number, or a tensor that broadcasts to {tuple(h.shape)}",
            ) from None  # fmt: skip


@dataclass(frozen=True, repr=False)
class Pass(Rule):
    """The identity: relevance goes to the same position below. For steps that keep the shape."""

    keys: ClassVar[tuple[Key, ...]] = (CONSTANT,)
    cancels: ClassVar[bool] = False
    signed: ClassVar[bool] = False
    stays: ClassVar[bool] = True

    def factors(self, key: Key, map: LinearMap, h: Tensor, nonnegative: bool) -> list[Factor]:
        if map.inside != map.outside:
            raise RuleError(
                "Pass needs a step that keeps its shape", got=f"{tuple(map.inside)} -> {tuple(map.outside)}",
                hint="use another rule for this layer",
            )  # fmt: skip
        return [Factor(1.0, Identity(map.inside))]

    def bias(self, b: Tensor) -> tuple[Tensor | None, ...]:
        return (None,)


@dataclass(frozen=True, repr=False)
class EntryEpsilon(Rule):
    """``h W + epsilon`` for every connection, as the paper writes its stabilizer."""

    epsilon: float = 1e-6
    keys: ClassVar[tuple[Key, ...]] = (LINEAR, CONSTANT)

    def __post_init__(self) -> None:
        read_number(self, "epsilon", self.epsilon, low=0)

    def factors(self, key: Key, map: LinearMap, h: Tensor, nonnegative: bool) -> list[Factor]:
        return [Factor(h, map)] if key == LINEAR else [Factor(self.epsilon, map.support())]

    def bias(self, b: Tensor) -> tuple[Tensor | None, ...]:
        return (b + self.epsilon,)


@dataclass(frozen=True)
class Product:
    """How relevance is shared by the factors of a product: the coefficients of its ``gate`` and its ``signal``.

    The factor nearest to a sigmoid, softmax or exponential is the gate. LRP-all, the default, gives nothing to it;
    where no factor is nearer, both count as signals and share equally. ``shares`` gives every factor its own number,
    in their order, whatever they are: ``Product(shares=(0, 1))``. A divisor never gets anything.

    A product of elementwise functions of one tensor, ``z * tanh(z)``, is one function of it and has nothing to share,
    unless it is named: ``{"*/mul": Product(shares=(1, 1))}`` splits it.

    It also tells how a product of two matrices is shared. Attention weights are the gate of the values, so that they
    are held constant by default; ``Product(gate=1, signal=1)`` gives one half to each.
    """

    gate: float = 0.0
    signal: float = 1.0
    shares: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("gate", "signal"):
            read_number(self, name, getattr(self, name))
        if self.shares is not None:
            object.__setattr__(self, "shares", read_numbers(self, "shares", self.shares))


@dataclass(frozen=True)
class SoftmaxRule:
    """``T_ij = x_i s_j (delta_ij - s_i)``: what logit i contributes to entry j of a softmax s.

    x are the logits minus their maximum, 0 where an entry is masked. The remainder ``s_j - sum_i T_ij`` goes to a
    neuron of its own, the step's offset, so that columns sum to ``s_j``.
    """


@dataclass(frozen=True)
class Sum:
    """Coefficients of the terms of a sum: ``alpha={"skip": 1, "branch": 1}`` or one number per term, in order."""

    alpha: Mapping[str, float] | tuple[float, ...] = (1.0,)
    rule: Rule | None = None

    def __post_init__(self) -> None:
        if isinstance(self.alpha, Mapping) and not set(self.alpha) <= {"skip", "branch"}:
            raise RuleError("unknown terms of a sum", got=str([*self.alpha]), expected="'skip' and 'branch'")
        if isinstance(self.alpha, Mapping):
            for term, value in self.alpha.items():
                read_number(self, f"alpha of the {term}", value)
        else:
            object.__setattr__(self, "alpha", read_numbers(self, "alpha", self.alpha))
        if self.rule is not None and not isinstance(self.rule, Rule):
            raise RuleError("the rule of a sum is no rule", got=f"rule={self.rule!r}"[:120], expected="nrm.ZPlus()")

    def __hash__(self) -> int:
        return hash((tuple(self.alpha.items()) if isinstance(self.alpha, Mapping) else self.alpha, self.rule))


def _up(sign: int) -> WeightChange:
    """``max(0, sign * w)``."""
    return (lambda w: w.clamp(min=0)) if sign > 0 else (lambda w: w.clamp(max=0).neg_())


def _down(sign: int) -> WeightChange:
    """``min(0, sign * w)``."""
    return (lambda w: w.clamp(max=0)) if sign > 0 else (lambda w: w.clamp(min=0).neg_())


def _signed_parts(map: LinearMap, sign: int) -> tuple[LinearMap, LinearMap]:
    return map.reweight(_up(sign)), map.reweight(_down(sign))


def _positive_part(map: LinearMap, h: Tensor, sign: int, nonnegative: bool, group: int) -> list[Factor]:
    """``max(0, sign * h W)`` from its two ways to be positive."""
    if nonnegative:
        return [Factor(h, map.reweight(_up(sign)), group)]
    up, down = _signed_parts(map, sign)
    return [Factor(h.clamp(min=0), up, group), Factor(h.clamp(max=0), down, group)]
