"""What has arrived at every node of a network in the sweep without events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor

from nrm.rules import Arrivals, Network


class Arrived(Mapping[int, Arrivals]):
    """Messages by node. Densities inside a fused step are not kept: they are formed anew from what arrived above it.

    That saves as much memory as the outputs of all convolutions under a batch norm, for an elementwise step each time.
    """

    def __init__(self, network: Network, start: Tensor) -> None:
        self._network = network
        self._kept: dict[int, Arrivals | None] = {network.tape.output: Arrivals(start)}

    def __getitem__(self, i: int) -> Arrivals:
        found = self._kept[i]
        return self._formed(i) if found is None else found

    def __contains__(self, i: object) -> bool:
        return i in self._kept

    def __iter__(self) -> Iterator[int]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, i: int, arrivals: Arrivals) -> None:
        """Joins what arrives at a node."""
        here = self._kept.setdefault(i, Arrivals())
        assert here is not None
        here.add(arrivals)

    def leave(self, i: int) -> None:
        """Lets go of the densities of a node that has been pulled."""
        here = self._kept[i]
        if here is not None and here.is_density:
            self._kept[i] = None

    @property
    def tensors(self) -> list[Tensor]:
        """Everything that is kept."""
        return [t for here in self._kept.values() if here is not None for t in here.tensors]

    def _formed(self, i: int) -> Arrivals:
        here = Arrivals()
        for reader in self._network.tape.consumers[i]:
            if reader in self._kept:
                for delivery in self._network.pull(reader, self[reader])[0]:
                    if delivery.to == i:
                        here.add(delivery.arrivals)
        return here
