"""The adjoint of the sweep: amounts from an event up to wherever densities are read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor

from nrm.questions.channels import keeps_channels, mixes_channels, one_hot
from nrm.questions.sweep import Site, between, reachable
from nrm.steps import Arrivals, Network, Pairing, outer


class Pushed:
    """The amounts of one event at a site, and of all events below it, on the way up.

    ``mask`` is ``(K, *shape)``; amounts above the site are computed by :meth:`rise_to`, in order. With ``rows``, every
    one of these channels of the site is an event by itself, on the stack. Their amounts are kept together as long as
    steps keep channels apart.
    """

    def __init__(
        self, network: Network, site: Site, mask: Tensor, lower: Pushed | None, rows: Sequence[int] | None = None
    ) -> None:
        self._network = network
        self._site = site
        self._mask = mask
        self._lower = lower
        self._rows = rows
        self._amounts: dict[int, dict[int, Tensor]] = {}
        self._together: set[int] = set() if rows is None else {site.node}
        self._above = set() if rows is None else reachable(network, site.node)
        self._start = self._first()

    def _first(self) -> dict[int, Tensor]:
        """The amounts at the site itself: units inside the mask, or what has risen there from the events below."""
        network, site = self._network, self._site
        if site.port:
            return {} if self._lower is not None else {network.drain(site.node, site.port).index: self._mask}
        if self._lower is not None:
            return {node: outer(self._mask, a) for node, a in self._lower.amounts_at(site).items()}
        units = {node: network.unit(node) for node in network.of.get(site.node, ())}
        return {node: self._mask if unit is None else self._mask * unit for node, unit in units.items()}

    @property
    def tensors(self) -> list[Tensor]:
        """All amounts, those of the events below included."""
        risen = [a for found in self._amounts.values() for a in found.values()]
        own = [self._mask, *self._start.values(), *risen]
        return own if self._lower is None else own + self._lower.tensors

    def amounts_at(self, site: Site) -> dict[int, Tensor]:
        """The amounts at every node of a higher site, before that site's own mask."""
        if site.node == self._site.node and not self._site.port:
            found = self._start if self._site.consumer in (None, site.consumer) else {}
        else:
            self.rise_to([site.node])
            found = self._amounts.get(site.node, {})
        return {node: self._spelled(site.node, a) for node, a in found.items()}

    def products(self, site: Site, arrivals: Arrivals) -> list[Pairing]:
        """The relevance of a higher site's neurons jointly with the event, as sums of products."""
        amounts = {} if site.port else self.amounts_at(site)
        return [Pairing(rho, amounts[node]) for node, rho in arrivals.items() if node in amounts]

    @property
    def mask(self) -> Tensor:
        """The event's own masks."""
        return self._spelled(self._site.node, self._mask)

    def masked(self, relevance: Tensor) -> Tensor:
        """A relevance at the site, restricted to the event there."""
        return outer(relevance, self.mask)

    def _spelled(self, i: int, amount: Tensor) -> Tensor:
        """The amounts of a tensor with every channel by itself."""
        if self._rows is None or i not in self._together:
            return amount
        return outer(one_hot(self._network.tape.nodes[i], self._rows), amount)

    def rise_to(self, goals: Iterable[int]) -> Pushed:
        """Computes the amounts of everything between the site and the goals."""
        network, first = self._network, self._site.node if self._site.port else self._site.node + 1
        route: set[int] = set()
        for goal in goals:
            if goal >= self._site.node:
                route |= between(network, self._site.node, goal)
        for i in sorted(route):
            if i >= first and i not in self._amounts:
                keep = self._keeps(i)
                self._amounts[i] = network.amounts(i, _Together(self) if keep else self)
                self._together.update({i} if keep else ())
        return self

    def _keeps(self, i: int) -> bool:
        """Whether the channels of everything that leads into a tensor are together, and stay so in it."""
        if self._rows is None or self._site.port:
            return False
        node = self._network.tape.nodes[i]
        live = [(p, j) for p, j in enumerate(node.inputs) if j in self._above]
        return all(j in self._together and keeps_channels(self._network, node, p) for p, j in live)

    # ---- the protocol of Amounts -----------------------------------------------------------------------------

    def at(self, node: int, consumer: int) -> Tensor | None:
        """The amount at a node as one of its tensor's consumers sees it."""
        found = self.kept(node, consumer)
        return None if found is None else self._spelled(self._network.nodes[node].tensor, found)

    def kept(self, node: int, consumer: int) -> Tensor | None:
        """The amount at a node with channels as they are kept, together or apart."""
        i = self._network.nodes[node].tensor
        if i == self._site.node and not self._site.port:
            return self._start.get(node) if self._site.consumer in (None, consumer) else None
        return self._amounts.get(i, {}).get(node)

    def together(self, node: int, consumer: int) -> tuple[Tensor, Sequence[int]] | None:
        """The amounts of all channels in one tensor, and which ones to tell apart; None if they are apart already."""
        found, tensor = self.kept(node, consumer), self._network.nodes[node].tensor
        if self._rows is None or found is None or tensor not in self._together:
            return None
        return (found, self._rows) if mixes_channels(self._network, self._network.tape.nodes[consumer]) else None

    def drain(self, i: int, port: str) -> Tensor | None:
        """The amount at the drain that the site is."""
        if self._site != Site(i, port=port):
            return None
        return self._start.get(self._network.drain(i, port).index)


class _Together:
    """Amounts with channels together: what a step sees that keeps them apart."""

    def __init__(self, pushed: Pushed) -> None:
        self._pushed = pushed

    def at(self, node: int, consumer: int) -> Tensor | None:
        return self._pushed.kept(node, consumer)

    def together(self, node: int, consumer: int) -> None:
        return None

    def drain(self, i: int, port: str) -> Tensor | None:
        return self._pushed.drain(i, port)


def products_at(network: Network, site: Site, arrivals: Arrivals, lower: Pushed | None) -> list[Pairing]:
    """The relevance of every neuron of a site, jointly with the events below, as sums of products."""
    return network.products(arrivals) if lower is None else lower.products(site, arrivals)
