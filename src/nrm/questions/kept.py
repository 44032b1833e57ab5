"""What a measure keeps between questions: the base sweep, and messages that several of them have in common."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeVar

from torch import Tensor

from nrm.capture import plain_execution
from nrm.questions.rise import Pushed
from nrm.questions.sweep import Base, base_sweep, held
from nrm.steps import Arrivals, Network

Kind = TypeVar("Kind")


class Messages:
    """Messages of fixed events that several questions have in common, up to a bound; the oldest are dropped first."""

    def __init__(self, bound: int) -> None:
        self.bound = bound
        self._kept: dict[Hashable, Arrivals | Pushed | None] = {}

    def get(self, key: Hashable, make: Callable[[], Kind]) -> Kind:
        """What is kept under a key, or else made and kept."""
        # Taken out and put back, so that what was used last is dropped last.
        found = self._kept.pop(key) if key in self._kept else make()
        self._kept[key] = found  # type: ignore[assignment]
        return found  # type: ignore[return-value]

    def trim(self) -> None:
        """Drops what is too much, after a question has been answered."""
        while self._kept and self.nbytes > self.bound:
            del self._kept[next(iter(self._kept))]

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return held([t for message in self._kept.values() if message is not None for t in message.tensors])

    def __len__(self) -> int:
        return len(self._kept)

    def clear(self) -> None:
        """Forgets all of them."""
        self._kept.clear()


class Kept:
    """What a measure keeps: the base sweep, computed when first needed and again after a release; common messages."""

    def __init__(self, network: Network, start: Tensor, bound: int, density: Tensor | None = None) -> None:
        self.network = network
        self.start = start
        self._density = density
        self.messages = Messages(bound)
        self._base: Base | None = None

    @property
    def base(self) -> Base:
        """The sweep without events."""
        if self._base is None:
            with plain_execution():
                self._base = base_sweep(self.network, self.network.started(self.start, self._density))
        return self._base

    @property
    def known(self) -> Base | None:
        """The sweep, if it has been computed already."""
        return self._base

    @property
    def nbytes(self) -> int:
        """Bytes held by messages and columns."""
        return self.network.nbytes + self.messages.nbytes + (0 if self._base is None else self._base.nbytes)

    def release(self) -> None:
        """Forgets messages and columns."""
        self._base = None
        self.messages.clear()
        self.network.release()
