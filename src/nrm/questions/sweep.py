"""Sweeps: messages from the output down, and values from an event up. Propagation is written here, once.

A **site** is where a question looks: a tensor, an edge to one of its consumers, or a drain (bias, offset, sink). An
event at a site *restarts* the sweep there: what passes the site inside its set goes on, all other live messages are
dropped, because a walk that bypasses the site is not in the event.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from torch import Tensor

from nrm.capture import Node, plain_execution
from nrm.rules import EVERYTHING, Arrivals, Network, Values, outer


@dataclass(frozen=True)
class Site:
    """A place on the tape: a tensor, an edge (``consumer``), or a drain of a node (``port``)."""

    node: int
    consumer: int | None = None
    port: str = ""

    @property
    def order(self) -> tuple[int, int]:
        """Where the site lies on every walk: later sites are nearer to the output."""
        if self.consumer is not None:
            return (self.consumer, -1)
        return (self.node, -1 if self.port else 0)


def drain_name(node: Node, port: str) -> str:
    """The name of a drain of a node as a layer; of the k-th call of a module it is ``cell.bias#k``."""
    stem, mark, call = node.name.partition("#")
    return f"{stem}.{port}{mark}{call}"


@dataclass
class Base:
    """The sweep without events, kept because every question starts from it."""

    arrivals: dict[int, Arrivals] = field(default_factory=dict)
    drains: dict[tuple[int, str], Tensor] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes held by the kept messages; memory that is shared counts once."""
        tensors = list(self.drains.values())
        for a in self.arrivals.values():
            tensors += [a.message] if a.message is not None else []
            tensors += [d for p in a.packets for d in p.density.values()]
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
        return sum(storages.values())


class Kept:
    """The base sweep of one measure: computed when first needed, and again after it was released."""

    def __init__(self, network: Network, start: Tensor) -> None:
        self.network = network
        self.start = start
        self._base: Base | None = None

    @property
    def base(self) -> Base:
        """The sweep without events."""
        if self._base is None:
            with plain_execution():
                self._base = base_sweep(self.network, self.start)
        return self._base

    @property
    def is_there(self) -> bool:
        """Whether the sweep has been computed already."""
        return self._base is not None

    @property
    def nbytes(self) -> int:
        """Bytes held by messages and columns."""
        return self.network.nbytes + (0 if self._base is None else self._base.nbytes)

    def release(self) -> None:
        """Forgets messages and columns."""
        self._base = None
        self.network.release()


def base_sweep(network: Network, start: Tensor) -> Base:
    """From the output's relevance to the relevance of everything."""
    base = Base()
    base.arrivals[network.tape.output] = Arrivals(start)
    for i in range(network.tape.output, -1, -1):
        arrived = base.arrivals.get(i)
        if arrived is None:
            continue
        deliveries, drains = network.pull(i, arrived)
        base.drains.update({(i, port): m for port, m in drains.items()})
        for delivery in deliveries:
            base.arrivals.setdefault(delivery.to, Arrivals()).add(delivery.arrivals)
    return base


def arrivals_at(network: Network, base: Base, site: Site) -> Arrivals | None:
    """What arrives at a site in the base sweep."""
    if site.port:
        message = base.drains.get((site.node, site.port))
        return None if message is None else Arrivals(message)
    if site.consumer is None:
        return base.arrivals.get(site.node)
    above = base.arrivals.get(site.consumer)
    return None if above is None else _by_edge(network, site, above)


def _by_edge(network: Network, site: Site, above: Arrivals) -> Arrivals | None:
    assert site.consumer is not None
    total: Arrivals | None = None
    for delivery in network.pull(site.consumer, above)[0]:
        if delivery.to == site.node:
            total = total or Arrivals()
            total.add(delivery.arrivals)
    return total


def between(network: Network, low: int, high: int) -> set[int]:
    """The nodes on walks from ``low`` up to ``high``, both included."""
    nodes = network.tape.nodes
    above = {low}
    for i in range(low + 1, high + 1):
        if any(j in above for j in nodes[i].inputs):
            above.add(i)
    below = {high}
    for i in range(high, low, -1):
        if i in below:
            below.update(j for j in nodes[i].inputs)
    return above & below


def pull_to(network: Network, start: Site, arrivals: Arrivals, goal: Site) -> Arrivals | None:
    """Carries what is at one site down to another one; what cannot get there is dropped on the way."""
    if start.port or goal.order >= start.order:
        return None
    top = start.node
    last = goal.node if goal.consumer is None else goal.consumer
    if top < last:
        return None
    route = between(network, last, top)
    if top not in route or last not in route:
        return None
    live = {top: arrivals}
    for i in range(top, last - 1, -1):
        if i not in live or i not in route:
            continue
        if i == last and goal.consumer is None and not goal.port:
            return live[i]
        here = live.pop(i)
        if i == last and goal.consumer is not None:
            return _by_edge(network, goal, here)
        deliveries, drains = network.pull(i, here)
        if i == last:
            return Arrivals(drains[goal.port]) if goal.port in drains else None
        for delivery in deliveries:
            if delivery.to in route:
                live.setdefault(delivery.to, Arrivals()).add(delivery.arrivals)
    return None


class Pushed:
    """The values of one event at a site, and of all events below it, on the way up.

    ``mask`` is ``(K, *shape)``; values above the site are computed by :meth:`rise_to`, in order.
    """

    def __init__(self, network: Network, site: Site, mask: Tensor, lower: Pushed | None) -> None:
        self._network = network
        self._site = site
        self._mask = mask
        self._lower = lower
        self._values: dict[int, Tensor] = {}
        self._start = self._first()

    def _first(self) -> Tensor | None:
        """The value at the site itself: the mask, times the value of the events below."""
        if self._lower is None:
            return self._mask
        if self._site.port:
            return None
        below = self._lower.at_site(self._site)
        return None if below is None else outer(self._mask, below)

    @property
    def lower(self) -> Pushed | None:
        """The events below this one."""
        return self._lower

    def sits_on(self, node: int) -> bool:
        """Whether the event is a set of this very tensor."""
        return self._site == Site(node)

    def at_site(self, site: Site) -> Tensor | None:
        """The value at a higher site, before that site's own mask."""
        self.rise_to([site.node])
        if site.node == self._site.node and not self._site.port:
            return self._start if self._site.consumer in (None, site.consumer) else None
        return self._values.get(site.node)

    def masked(self, relevance: Tensor) -> Tensor:
        """A relevance at the site, restricted to the event there."""
        return outer(relevance, self._mask)

    def rise_to(self, goals: Iterable[int]) -> Pushed:
        """Computes the values of everything between the site and the goals."""
        network, first = self._network, self._site.node if self._site.port else self._site.node + 1
        wanted = set(goals)
        if not wanted:
            return self
        last = max(wanted)
        route: set[int] = set()
        for goal in wanted:
            if goal >= self._site.node:
                route |= between(network, self._site.node, goal)
        for i in range(first, last + 1):
            if i in route and i not in self._values:
                value = network.value(i, self)
                if value is not None:
                    self._values[i] = value
        return self

    # ---- the protocol of Values ------------------------------------------------------------------------------

    def at(self, i: int, consumer: int) -> Tensor | None:
        """The value of a tensor as one of its consumers sees it."""
        if i == self._site.node and not self._site.port:
            return self._start if self._site.consumer in (None, consumer) else None
        return self._values.get(i)

    def enter(self, i: int, consumer: int) -> tuple[Values, Tensor] | None:
        """A fused step passes the site: beneath it only the lower events count."""
        if i != self._site.node or self._site.port or self._site.consumer not in (None, consumer):
            return None
        lower, mask = self._lower, self._mask
        if lower is not None and lower.sits_on(i):  # an edge above a set of its own tensor
            mask, lower = outer(mask, lower._mask), lower._lower
        return (EVERYTHING if lower is None else lower), mask

    def drains(self, i: int) -> list[tuple[str, Tensor]]:
        """The value at the drain that the site is, if it belongs to this node."""
        if self._site.port and i == self._site.node and self._start is not None:
            return [(self._site.port, self._start)]
        return []


def relevance_at(network: Network, site: Site, arrivals: Arrivals, lower: Pushed | None) -> Tensor | None:
    """The relevance of every neuron of a site, jointly with the events below: ``(K, *shape)``."""
    if site.port:
        return arrivals.message if lower is None else None
    if lower is None:
        return network.relevance(site.node, arrivals)
    if lower.sits_on(site.node):  # the site is an edge, the event below it a set of the same tensor
        relevance = relevance_at(network, site, arrivals, lower.lower)
        return None if relevance is None else lower.masked(relevance)
    lower.rise_to([*network.tape.nodes[site.node].inputs, *_interior(network, site.node)])
    return network.relevance(site.node, arrivals, lower)


def _interior(network: Network, i: int) -> list[int]:
    """The tensors whose values a rise into node i reads: the inputs of the blocks of its columns."""
    node, found = network.tape.nodes[i], []
    for j in node.inputs:
        found.append(j)
        if network.rules.open[j]:
            found += _interior(network, j)
    return found
