"""What has arrived at every tensor of a network in the sweep without events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor

from nrm.steps import Arrivals, Network


class Arrived(Mapping[int, Arrivals]):
    """Densities by tensor. Those inside a fused step are not kept: they are formed anew from what arrived above it.

    That saves as much memory as the outputs of all convolutions under a batch norm, for an elementwise step each time.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self._kept: dict[int, Arrivals | None] = {}

    def __getitem__(self, i: int) -> Arrivals:
        found = self._kept[i]
        return self._formed(i) if found is None else found

    def __contains__(self, i: object) -> bool:
        return i in self._kept

    def __iter__(self) -> Iterator[int]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, i: int, arrivals: Arrivals) -> None:
        """Keeps what has arrived at a tensor, if some of it has arrived at the tensor by itself."""
        self._kept[i] = arrivals if self._network.plain_index(i) in arrivals.nodes else None

    @property
    def tensors(self) -> list[Tensor]:
        """Everything that is kept."""
        return [t for here in self._kept.values() if here is not None for t in here.tensors]

    def _formed(self, i: int) -> Arrivals:
        here = Arrivals()
        for reader in self._network.tape.consumers[i]:
            if reader in self._kept:
                for to, arrivals in self._network.pull(reader, self[reader])[0]:
                    if to == i:
                        here.add(arrivals)
        return here
