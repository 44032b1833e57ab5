"""What runs through a relevance network: densities on the way down, amounts on the way up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from nrm.operators import Slice

StackChange = Callable[[Tensor], Tensor]
"""What is done to a stack of densities or amounts, neuron by neuron."""


class DensityPiece(NamedTuple):
    """A density at a slice of a tensor."""

    move: Slice
    density: Tensor


class Arrivals:
    """What has arrived at a tensor: a stack of densities for each of its nodes in the relevance network.

    Pieces that come from slices of the tensor are put together when they are read, all into one tensor: a sequence that
    is cut into its steps would otherwise be as many tensors of its full size.
    """

    def __init__(
        self, densities: Mapping[int, Tensor] | None = None, pieces: Mapping[int, DensityPiece] | None = None
    ) -> None:
        self._densities: dict[int, Tensor] = dict(densities or {})
        self._pieces: dict[int, list[DensityPiece]] = {node: [piece] for node, piece in (pieces or {}).items()}

    def items(self) -> Iterator[tuple[int, Tensor]]:
        """The nodes and their densities."""
        for node, pieces in self._pieces.items():
            self._densities[node] = _joined(self._densities.get(node), pieces)
        self._pieces = {}
        return iter(list(self._densities.items()))

    @property
    def nodes(self) -> set[int]:
        """The nodes at which something has arrived."""
        return {*self._densities, *self._pieces}

    def add(self, other: Arrivals) -> None:
        """Joins what arrives by another edge."""
        for node, rho in other._densities.items():  # never in place: the base sweep may have kept the first of them
            self._densities[node] = self._densities[node] + rho if node in self._densities else rho
        for node, pieces in other._pieces.items():
            self._pieces.setdefault(node, []).extend(pieces)

    def __bool__(self) -> bool:
        return bool(self._densities or self._pieces)

    @property
    def tensors(self) -> list[Tensor]:
        """All densities."""
        return [rho for _, rho in self.items()]

    def masked(self, mask: Tensor) -> Arrivals:
        """Only what passes through the marked neurons, for every density of the stack with every mask."""
        return self.each(lambda rho: outer(rho, mask))

    def each(self, change: StackChange) -> Arrivals:
        """Every density changed."""
        return Arrivals({node: change(rho) for node, rho in self.items()})

    def restacked(self, change: StackChange) -> Arrivals:
        """Every density changed along the stack alone, whatever the neurons: pieces stay pieces."""
        result = Arrivals({node: change(rho) for node, rho in self._densities.items()})
        result._pieces = {
            node: [DensityPiece(p.move, change(p.density)) for p in all_] for node, all_ in self._pieces.items()
        }
        return result


def _joined(density: Tensor | None, pieces: Sequence[DensityPiece]) -> Tensor:
    first = pieces[0]
    if density is None and len(pieces) == 1:
        return first.move.transpose(first.density)
    stack = max(p.density.shape[0] for p in pieces)
    total = first.density.new_zeros(stack, *first.move.inside) if density is None else density.expand(
        max(stack, density.shape[0]), *density.shape[1:]).clone()  # fmt: skip
    for move, piece in pieces:
        total[(slice(None), *move.index)].add_(piece)
    return total


class Delivery(NamedTuple):
    """What a step sends to one of the tensors it reads."""

    to: int
    arrivals: Arrivals


class Amounts(Protocol):
    """What has risen so far from an event below: the unit of a neuron times the share of its walks in the event.

    ``at`` is the amount at a node as one of the tensor's consumers sees it (None: 0). ``together`` gives the amounts of
    many channels in one tensor, and which ones to tell apart, to a consumer that can do so at once. ``drain`` is the
    amount at a drain of a tensor.
    """

    def at(self, node: int, consumer: int) -> Tensor | None: ...

    def together(self, node: int, consumer: int) -> tuple[Tensor, Sequence[int]] | None: ...

    def drain(self, i: int, port: str) -> Tensor | None: ...


def outer(first: Tensor, second: Tensor) -> Tensor:
    """The product of two stacks of tensors: every one of the first with every one of the second, first-major."""
    if first.shape[0] == 1 or second.shape[0] == 1:
        return first * second
    return (first[:, None] * second[None]).flatten(0, 1)


class Pairing(NamedTuple):
    """A part of a relevance: a stack of densities times a stack of amounts (None: of units that are 1)."""

    density: Tensor
    amount: Tensor | None

    def formed(self) -> Tensor:
        """Every density with every amount, density-first."""
        return self.density if self.amount is None else outer(self.density, self.amount)


def total_of(parts: Sequence[Pairing]) -> Tensor | None:
    """The relevance that parts add up to; None is 0."""
    products = [part.formed() for part in parts]
    return sum(products[1:], products[0]) if products else None
