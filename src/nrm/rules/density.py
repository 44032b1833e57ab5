"""What runs through a relevance network: messages, densities, and the values of a push."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from nrm.capture import Term
from nrm.operators import Slice
from nrm.rules.rules import LRP0, SIGN, TURNED, AlphaBeta, EntryEpsilon, Gamma, Key, Pass, Rule, ZPlus

Density = dict[tuple[Key, int], Tensor]
"""Density by key and group of the factors it will meet."""


Change = Callable[[Tensor], Tensor]
"""What is done to a stack of messages or values, neuron by neuron."""


class Packet(NamedTuple):
    """Density on its way down a fused step. ``rule`` is the rule of plain terms; ``override`` replaces every rule."""

    density: Density
    rule: Rule
    override: Rule | None = None


class Piece(NamedTuple):
    """A message at a slice of a tensor."""

    move: Slice
    message: Tensor


class Arrivals:
    """What has arrived at a node: relevance, and densities of fused steps that it is a branch of.

    Pieces of the message that come from slices of the tensor are put together when it is read, all into one tensor:
    a sequence that is cut into its steps would otherwise be as many tensors of its full size.
    """

    def __init__(
        self, message: Tensor | None = None, packets: Sequence[Packet] = (), piece: Piece | None = None
    ) -> None:
        self._message = message
        self._pieces: list[Piece] = [] if piece is None else [piece]
        self.packets: list[Packet] = list(packets)

    @property
    def message(self) -> Tensor | None:
        """The relevance that has arrived."""
        if self._pieces:
            self._message = _joined(self._message, self._pieces)
            self._pieces = []
        return self._message

    def add(self, other: Arrivals) -> None:
        """Joins what arrives by another edge."""
        if other._message is not None:
            self._message = other._message if self._message is None else self._message + other._message
        self._pieces += other._pieces
        self.packets += other.packets

    @property
    def is_density(self) -> bool:
        """Whether nothing but density has arrived."""
        return self._message is None and not self._pieces and bool(self.packets)

    @property
    def tensors(self) -> list[Tensor]:
        """All messages and densities."""
        densities = [d for packet in self.packets for d in packet.density.values()]
        return densities if self.message is None else [self.message, *densities]

    def masked(self, mask: Tensor) -> Arrivals:
        """Only what passes through the marked neurons, for every message with every mask."""
        return self.each(lambda t: outer(t, mask))

    def restricted(self, mask: Tensor) -> Arrivals:
        """Only what passes through the marked neurons, with one mask for each message of the stack."""
        return self.each(lambda t: t * mask)

    def absolute(self) -> Arrivals:
        """The absolute value of everything."""
        return self.each(torch.abs)

    def each(self, change: Change) -> Arrivals:
        """Every message and density changed."""
        return Arrivals(None if self.message is None else change(self.message), self._changed(change))

    def restacked(self, change: Change) -> Arrivals:
        """The same for a change of the stack alone, whatever the neurons: pieces stay pieces."""
        result = Arrivals(None if self._message is None else change(self._message), self._changed(change))
        result._pieces = [Piece(piece.move, change(piece.message)) for piece in self._pieces]
        return result

    def _changed(self, change: Change) -> list[Packet]:
        return [Packet({k: change(d) for k, d in p.density.items()}, p.rule, p.override) for p in self.packets]


def _joined(message: Tensor | None, pieces: Sequence[Piece]) -> Tensor:
    first = pieces[0]
    if message is None and len(pieces) == 1:
        return first.move.transpose(first.message)
    stack = max(p.message.shape[0] for p in pieces)
    total = first.message.new_zeros(stack, *first.move.inside) if message is None else message.expand(
        max(stack, message.shape[0]), *message.shape[1:]).clone()  # fmt: skip
    for move, piece in pieces:
        total[(slice(None), *move.index)].add_(piece)
    return total


class Delivery(NamedTuple):
    """What a step sends to one of its inputs."""

    to: int
    arrivals: Arrivals


class Values(Protocol):
    """What a push has computed so far: the relevance of an event below, given a neuron.

    ``at`` is the value of a tensor as one of its consumers sees it (None: 0). ``together`` gives the values of many
    channels in one tensor, and which ones to tell apart, to a consumer that can do so at once. ``enter`` says whether
    something happens at a tensor inside a fused step: which values count beneath it, and what changes them there.
    """

    def at(self, i: int, consumer: int) -> Tensor | None: ...

    def together(self, i: int, consumer: int) -> tuple[Tensor, Sequence[int]] | None: ...

    def enter(self, i: int, consumer: int) -> tuple[Values, Change] | None: ...

    def drains(self, i: int) -> list[tuple[str, Tensor]]: ...


class Everything:
    """The event that always holds: 1 at every neuron."""

    _one = torch.ones(())

    def at(self, i: int, consumer: int) -> Tensor | None:
        """1, for every neuron."""
        return self._one

    def together(self, i: int, consumer: int) -> None:
        """Nothing to tell apart."""
        return

    def enter(self, i: int, consumer: int) -> tuple[Values, Change] | None:
        """Nothing happens."""
        return None

    def drains(self, i: int) -> list[tuple[str, Tensor]]:
        """Nothing special about drains."""
        return []


EVERYTHING = Everything()


class _Start(Pass):
    """The rule of plain terms before any combination has said what it is."""


START: Rule = _Start()


def outer(first: Tensor, second: Tensor) -> Tensor:
    """The product of two stacks of tensors: every one of the first with every one of the second, first-major."""
    if first.shape[0] == 1 or second.shape[0] == 1:
        return first * second
    return (first[:, None] * second[None]).flatten(0, 1)


class Part(NamedTuple):
    """A part of a relevance: a stack of messages, to be multiplied with a stack of values (None: with 1)."""

    message: Tensor
    value: Tensor | None

    def product(self) -> Tensor:
        """Every message with every value, message-first."""
        return self.message if self.value is None else outer(self.message, self.value)


def total_of(parts: Sequence[Part]) -> Tensor | None:
    """The relevance that parts add up to; None is 0."""
    products = [part.product() for part in parts]
    return sum(products[1:], products[0]) if products else None


def effective(rule: Rule, override: Rule | None) -> Rule:
    """The rule of a block inside a column that another rule pools or replaces."""
    if isinstance(override, AlphaBeta):
        signed = isinstance(rule, LRP0 | Gamma | ZPlus | AlphaBeta | EntryEpsilon)
        return override if signed else rule
    return override or rule


def absolute_of(scale: Tensor | float) -> Tensor | float:
    """The absolute value of a number or a tensor."""
    return scale.abs() if isinstance(scale, Tensor) else abs(scale)


def scaled(
    density: Density, term: Term, keys: set[Key] | None, absolute: bool = False, *, turns: bool = False
) -> Density:
    """Density (or its adjoint) across the scale of a term: powers scale, signs swap where the scale is negative.

    ``absolute`` takes powers of the scale's absolute value. Where the step below ``turns`` its weights with the scale,
    no sign needs to swap.
    """
    if isinstance(term.scale, float) and term.scale == 1.0:
        return {k: d for k, d in density.items() if keys is None or k[0] in keys}
    scale = term.scale if isinstance(term.scale, Tensor) else _number(term.scale, density)
    result: Density = {}
    for (key, group), d in density.items():
        if key[0] == "power":
            power = scale.abs() if absolute else scale
            pieces = {key: d if key[1] == 0 else d * (power if key[1] == 1 else power ** key[1])}
        elif turns:
            pieces = {(TURNED if key[0] == SIGN else SIGN, key[1]): d * scale.abs()}
        elif term.flips:
            pieces = {key: d * scale.clamp(min=0), (key[0], -key[1]): d * (-scale).clamp(min=0)}
        else:
            pieces = {key: d * scale}
        for k, piece in pieces.items():
            if keys is None or k in keys:
                slot = (k, group)
                result[slot] = result[slot] + piece if slot in result else piece
    return result


def _number(scale: float, density: Density) -> Tensor:
    like = next(iter(density.values())) if density else torch.zeros(())
    return torch.tensor(scale, dtype=torch.float64).to(like)
