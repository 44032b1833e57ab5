"""Sweeps: messages from the output down, and values from an event up. Propagation is written here, once.

A **site** is where a question looks: a tensor, an edge to one of its consumers, or a drain (bias, offset, sink). An
event at a site *restarts* the sweep there: what passes the site inside its set goes on, all other live messages are
dropped, because a walk that bypasses the site is not in the event.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from torch import Tensor

from nrm.capture import Linear, Node
from nrm.questions.arrived import Arrived
from nrm.questions.channels import keeps_channels, mixes_channels, one_hot
from nrm.rules import EVERYTHING, Arrivals, Change, Delivery, Network, Part, Values, outer, total_of


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

    arrivals: Arrived
    drains: dict[tuple[int, str], Tensor] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes held by the kept messages; memory that is shared counts once."""
        return held([*self.drains.values(), *self.arrivals.tensors])


def held(tensors: Iterable[Tensor]) -> int:
    """The bytes behind some tensors; memory that is shared counts once."""
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def base_sweep(network: Network, start: Tensor) -> Base:
    """From the output's relevance to the relevance of everything."""
    base = Base(Arrived(network, start))
    for i in range(network.tape.output, -1, -1):
        if i not in base.arrivals:
            continue
        deliveries, drains = network.pull(i, base.arrivals[i])
        base.drains.update({(i, port): m for port, m in drains.items()})
        for delivery in deliveries:
            base.arrivals.add(delivery.to, delivery.arrivals)
        base.arrivals.leave(i)
    return base


def descend(network: Network, starts: Mapping[int, Arrivals], lowest: int) -> Iterator[tuple[int, Arrivals]]:
    """Carries down together what starts at several nodes: every node on the way, with all that has arrived there."""
    live: dict[int, Arrivals] = {}
    for i in range(max(starts), lowest - 1, -1):
        if i in starts:
            live.setdefault(i, Arrivals()).add(starts[i])
        if i not in live:
            continue
        here = live.pop(i)
        yield i, here
        for delivery in network.pull(i, here)[0] if i > lowest else ():
            if delivery.to >= lowest:
                live.setdefault(delivery.to, Arrivals()).add(delivery.arrivals)


def arrivals_at(network: Network, base: Base, site: Site) -> Arrivals | None:
    """What arrives at a site in the base sweep."""
    if site.port:
        message = base.drains.get((site.node, site.port))
        return None if message is None else Arrivals(message)
    if site.consumer is None:
        return base.arrivals.get(site.node)
    above = base.arrivals.get(site.consumer)
    if above is None:
        return None
    return next((found for _, found in inside([site], network.pull(site.consumer, above)[0], {})), None)


def reachable(network: Network, low: int, high: int | None = None) -> set[int]:
    """The nodes on walks from ``low`` upward, itself included, as far as ``high``."""
    nodes, above = network.tape.nodes, {low}
    for i in range(low + 1, len(nodes) if high is None else high + 1):
        if any(j in above for j in nodes[i].inputs):
            above.add(i)
    return above


def between(network: Network, low: int, high: int) -> set[int]:
    """The nodes on walks from ``low`` up to ``high``, both included."""
    nodes, above = network.tape.nodes, reachable(network, low, high)
    below = {high}
    for i in range(high, low, -1):
        if i in below:
            below.update(j for j in nodes[i].inputs)
    return above & below


def pull_to(
    network: Network, start: Site, arrivals: Arrivals, goal: Site, rows: Sequence[int] | None = None
) -> Arrivals | None:
    """Carries what is at one site down to another one; what cannot get there is dropped on the way.

    With ``rows``, every one of these channels of the start is carried by itself, on the stack: together as long as
    steps keep channels apart, spelled out from the first one that mixes them.
    """
    return next((found for _, found in pull_each(network, start, arrivals, [goal], rows)), None)


def pull_each(
    network: Network, start: Site, arrivals: Arrivals, goals: Sequence[Site], rows: Sequence[int] | None = None
) -> Iterator[tuple[Site, Arrivals]]:
    """The same for many goals in one sweep, the highest first; goals that cannot be reached are left out."""
    ends: dict[int, list[Site]] = {}
    for goal in goals:
        end = goal.node if goal.consumer is None else goal.consumer
        if not start.port and goal.order < start.order and end <= start.node:
            ends.setdefault(end, []).append(goal)
    route = set[int]().union(*(between(network, end, start.node) for end in ends))
    live = {start.node: arrivals} if rows is None else {}
    together = {} if rows is None else {start.node: arrivals}
    for i in sorted(route, reverse=True):
        if i in together:
            assert rows is not None
            for apart, delivery in _told_apart(network, i, together.pop(i), rows, route, i in ends):
                if delivery.to in route:
                    (live if apart else together).setdefault(delivery.to, Arrivals()).add(delivery.arrivals)
        if i not in live:
            continue
        here, asked = live.pop(i), ends.pop(i, [])
        yield from ((goal, here) for goal in asked if goal.consumer is None and not goal.port)
        inner = [goal for goal in asked if goal.consumer is not None or goal.port]
        if not ends and not inner:
            return
        deliveries, drains = network.pull(i, here)
        yield from inside(inner, deliveries, drains)
        for delivery in deliveries:
            if delivery.to in route:
                live.setdefault(delivery.to, Arrivals()).add(delivery.arrivals)


def inside(
    goals: Sequence[Site], deliveries: Sequence[Delivery], drains: Mapping[str, Tensor]
) -> Iterator[tuple[Site, Arrivals]]:
    """What arrives at the edges into a step, and at its drains."""
    for goal in goals:
        if goal.port:
            if goal.port in drains:
                yield goal, Arrivals(drains[goal.port])
            continue
        by_edge = [d.arrivals for d in deliveries if d.to == goal.node]
        if by_edge:
            total = Arrivals()
            for one in by_edge:
                total.add(one)
            yield goal, total


def _told_apart(
    network: Network, i: int, here: Arrivals, rows: Sequence[int], route: set[int], at_goal: bool
) -> Iterator[tuple[bool, Delivery]]:
    """One step of channels that travel together: what comes out, and whether the channels are spelled out there."""
    node = network.tape.nodes[i]
    if not at_goal and mixes_channels(network, node):
        assert isinstance(node.op, Linear)
        message = network.blocks.pull_by_channel(i, node.op, network.densities(i, here), rows)
        yield True, Delivery(node.inputs[0], Arrivals(message))
    elif not at_goal and all(keeps_channels(network, node, p) for p, j in enumerate(node.inputs) if j in route):
        yield from ((False, delivery) for delivery in network.pull(i, here)[0])
    else:
        yield True, Delivery(i, here.masked(one_hot(node, rows)))


class Pushed:
    """The values of one event at a site, and of all events below it, on the way up.

    ``mask`` is ``(K, *shape)``; values above the site are computed by :meth:`rise_to`, in order. With ``rows``, every
    one of these channels of the site is an event by itself, on the stack. Their values are kept together as long as
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
        self._values: dict[int, Tensor] = {}
        self._together: set[int] = set() if rows is None else {site.node}
        self._above = set() if rows is None else reachable(network, site.node)
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

    @property
    def tensors(self) -> list[Tensor]:
        """All values, those of the events below included."""
        own = [self._mask, *([] if self._start is None else [self._start]), *self._values.values()]
        return own if self._lower is None else own + self._lower.tensors

    def sits_on(self, node: int) -> bool:
        """Whether the event is a set of this very tensor."""
        return self._site == Site(node)

    def at_site(self, site: Site) -> Tensor | None:
        """The value at a higher site, before that site's own mask."""
        self.rise_to([site.node])
        if site.node == self._site.node and not self._site.port:
            return self._spelled(site.node, self._start) if self._site.consumer in (None, site.consumer) else None
        return self._spelled(site.node, self._values.get(site.node))

    def masked(self, relevance: Tensor) -> Tensor:
        """A relevance at the site, restricted to the event there."""
        return outer(relevance, self.mask)

    @property
    def mask(self) -> Tensor:
        """The event's own masks."""
        mask = self._spelled(self._site.node, self._mask)
        assert mask is not None
        return mask

    def _spelled(self, i: int, value: Tensor | None) -> Tensor | None:
        """The values of a tensor with every channel by itself."""
        if value is None or self._rows is None or i not in self._together:
            return value
        return outer(one_hot(self._network.tape.nodes[i], self._rows), value)

    def rise_to(self, goals: Iterable[int]) -> Pushed:
        """Computes the values that are needed of everything between the site and the goals."""
        network, first = self._network, self._site.node if self._site.port else self._site.node + 1
        wanted = set(goals)
        route: set[int] = set()
        for goal in wanted:
            if goal >= self._site.node:
                route |= between(network, self._site.node, goal)
        for i in sorted(needed(network, wanted, route)):
            if i >= first and i not in self._values:
                keep = self._keeps(i)
                value = network.value(i, _Together(self) if keep else self)
                if value is not None:
                    self._values[i] = value
                    self._together.update({i} if keep else ())
        return self

    def _keeps(self, i: int) -> bool:
        """Whether the channels of everything that leads into a node are together, and stay so in it."""
        if self._rows is None or self._site.port:
            return False
        node = self._network.tape.nodes[i]
        live = [(p, j) for p, j in enumerate(node.inputs) if j in self._above]
        return all(j in self._together and keeps_channels(self._network, node, p) for p, j in live)

    # ---- the protocol of Values ------------------------------------------------------------------------------

    def at(self, i: int, consumer: int) -> Tensor | None:
        """The value of a tensor as one of its consumers sees it."""
        return self._spelled(i, self.kept(i, consumer))

    def kept(self, i: int, consumer: int) -> Tensor | None:
        """The same as it is kept: channels may be together."""
        if i == self._site.node and not self._site.port:
            return self._start if self._site.consumer in (None, consumer) else None
        return self._values.get(i)

    def together(self, i: int, consumer: int) -> tuple[Tensor, Sequence[int]] | None:
        """The value of all channels in one tensor, and which ones to tell apart; None if they are apart already."""
        value = self.kept(i, consumer)
        if self._rows is None or value is None or i not in self._together:
            return None
        return (value, self._rows) if mixes_channels(self._network, self._network.tape.nodes[consumer]) else None

    def enter(self, i: int, consumer: int) -> tuple[Values, Change] | None:
        """A fused step passes the site: beneath it only the lower events count."""
        return self._enter(i, consumer, self.mask) if i == self._site.node else None

    def _enter(self, i: int, consumer: int, mask: Tensor) -> tuple[Values, Change] | None:
        if self._site.port or self._site.consumer not in (None, consumer):
            return None
        lower = self._lower
        if lower is not None and lower.sits_on(i):  # an edge above a set of its own tensor
            mask, lower = outer(mask, lower.mask), lower._lower
        return (EVERYTHING if lower is None else lower), partial(outer, mask)

    def drains(self, i: int) -> list[tuple[str, Tensor]]:
        """The value at the drain that the site is, if it belongs to this node."""
        if self._site.port and i == self._site.node and self._start is not None:
            return [(self._site.port, self._start)]
        return []


class _Together:
    """The same values, channels together: what a step sees that keeps them apart."""

    def __init__(self, pushed: Pushed) -> None:
        self._pushed = pushed

    def at(self, i: int, consumer: int) -> Tensor | None:
        return self._pushed.kept(i, consumer)

    def together(self, i: int, consumer: int) -> None:
        return None

    def enter(self, i: int, consumer: int) -> tuple[Values, Change] | None:
        pushed = self._pushed
        return pushed._enter(i, consumer, pushed._mask) if i == pushed._site.node else None

    def drains(self, i: int) -> list[tuple[str, Tensor]]:
        return self._pushed.drains(i)


def needed(network: Network, wanted: set[int], route: set[int]) -> set[int]:
    """The tensors whose values are read on the way to the wanted ones; the inside of a fused step is not."""
    needed = wanted & route
    for i in sorted(route, reverse=True):
        if i in needed:
            needed.update(j for j in _reads(network, i) if j in route)
    return needed


def _reads(network: Network, i: int) -> Iterator[int]:
    """The tensors whose values make up the value of a node."""
    fused = network.rules.is_terminal(i)
    for j in network.tape.nodes[i].inputs:
        if fused and network.rules.open[j] and not isinstance(network.tape.nodes[i].op, Linear):
            yield from leaves(network, j)
        else:
            yield j


def leaves(network: Network, i: int) -> Iterator[int]:
    """The tensors that the blocks of an open tensor read."""
    node = network.tape.nodes[i]
    for j in node.inputs:
        if network.rules.open[j] and not isinstance(node.op, Linear):
            yield from leaves(network, j)
        else:
            yield j


def relevance_at(network: Network, site: Site, arrivals: Arrivals, lower: Pushed | None = None) -> Tensor | None:
    """The relevance of every neuron of a site, jointly with the events below: ``(K, *shape)``."""
    return total_of(parts_at(network, site, arrivals, lower))


def parts_at(network: Network, site: Site, arrivals: Arrivals, lower: Pushed | None) -> list[Part]:
    """The same as sums of products of messages from above and values from below."""
    if site.port:
        return [Part(arrivals.message, None)] if lower is None and arrivals.message is not None else []
    if lower is None:
        return network.relevance_parts(site.node, arrivals)
    if lower.sits_on(site.node):  # the site is an edge, the event below it a set of the same tensor
        parts = parts_at(network, site, arrivals, lower.lower)
        return [Part(m, lower.mask if v is None else outer(lower.mask, v)) for m, v in parts]
    lower.rise_to([*network.tape.nodes[site.node].inputs, *leaves(network, site.node)])
    return network.relevance_parts(site.node, arrivals, lower)
