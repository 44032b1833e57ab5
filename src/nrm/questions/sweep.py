"""The sweep: densities from the output down. Propagation is written here, once.

A **site** is where a question looks: a tensor, an edge to one of its consumers, or a drain (bias, offset, sink). A
question acts on a sweep at sites alone, by a **turn**: it reads what passes there, masks it, or stops it. An event
*restarts* the sweep at its site: what passes inside its set goes on, and nothing else, because a walk that bypasses the
site is not in the event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from nrm.capture import Node
from nrm.questions.channels import keeps_channels, mixes_channels, one_hot
from nrm.shapes import address_of
from nrm.steps import Arrivals, Network


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

    @property
    def end(self) -> int:
        """The tensor whose step leads to the site: itself, or the consumer of an edge."""
        return self.node if self.consumer is None else self.consumer


Turn = Callable[[Site, Arrivals], Arrivals | None]
"""What a question does at a site: what has arrived goes on as it is returned; None stops it."""


def sweep(network: Network, starts: Mapping[int, Arrivals], turn: Turn, route: set[int] | None = None) -> None:
    """Carries densities down from some tensors, past every tensor, edge and drain on the way, or only on a route."""
    for _ in passing(network, starts, turn, route):
        pass


def passing(
    network: Network, starts: Mapping[int, Arrivals], turn: Turn, route: set[int] | None = None
) -> Iterator[int]:
    """The sweep itself, which rests behind every tensor."""
    live: dict[int, Arrivals] = {}
    for i, arrivals in starts.items():
        live.setdefault(i, Arrivals()).add(arrivals)
    # A step reads only tensors with smaller numbers, so that nothing more can arrive at a tensor when its turn comes.
    for i in range(max(live, default=-1), -1, -1):
        if i not in live:
            continue
        here = turn(Site(i), live.pop(i))
        if not here:
            yield i
            continue
        deliveries, drains = network.pull(i, here)
        for port, relevance in drains.items():  # walks begin there: nothing goes on from a drain
            turn(Site(i, port=port), Arrivals({network.drain(i, port).index: relevance}))
        for to, arrivals in deliveries:
            if route is None or to in route:
                passed = turn(Site(to, i), arrivals)
                if passed:
                    live.setdefault(to, Arrivals()).add(passed)
        yield i


# ---- the sweep without events ------------------------------------------------------------------------------------


def drain_name(node: Node, port: str) -> str:
    """The name of a drain of a node as a layer; of the k-th call of a module it is ``cell.bias#k``."""
    stem, mark, call = node.name.partition("#")
    return f"{stem}.{port}{mark}{call}"


class Arrived(Mapping[int, Arrivals]):
    """Densities by tensor. Those inside a fused step are not kept: they are formed anew from what arrived above it.

    That saves as much memory as the outputs of all convolutions under a batch norm, for an elementwise step each time.
    Those inside a block of a lean tape are not kept either: the sweep goes through the block again.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        self._kept: dict[int, Arrivals | None] = {}
        self._again: tuple[range, dict[int, Arrivals]] = (range(0), {})

    def __getitem__(self, i: int) -> Arrivals:
        found = self._kept[i]
        if found is not None:
            return found
        block = self._network.tape.nodes[i].block
        return self._formed(i) if block is None else self._swept(block)[i]

    def __contains__(self, i: object) -> bool:
        return i in self._kept

    def __iter__(self) -> Iterator[int]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, i: int, arrivals: Arrivals) -> None:
        """Keeps what has arrived at a tensor, if some of it has arrived at the tensor by itself."""
        lean = self._network.tape.nodes[i].block is not None
        self._kept[i] = arrivals if not lean and self._network.plain_index(i) in arrivals.nodes else None

    @property
    def tensors(self) -> list[Tensor]:
        """Everything that is kept."""
        return [t for here in self._kept.values() if here is not None for t in here.tensors]

    def _swept(self, block: range) -> dict[int, Arrivals]:
        """What arrives inside a block of a lean tape, from what is kept at its end; that of the last block is kept."""
        if self._again[0] != block:
            nodes, inside = self._network.tape.nodes, dict[int, Arrivals]()
            starts = {j: self[j] for j in block if j in self._kept and nodes[j].block is None}

            def turn(site: Site, here: Arrivals) -> Arrivals:
                if site.consumer is None and not site.port:
                    here = inside.setdefault(site.node, starts.get(site.node, here))
                return here

            sweep(self._network, starts, turn, set(block))
            self._again = block, inside
        return self._again[1]

    def _formed(self, i: int) -> Arrivals:
        here = Arrivals()
        for reader in self._network.tape.consumers[i]:
            if reader in self._kept:
                for to, arrivals in self._network.pull(reader, self[reader])[0]:
                    if to == i:
                        here.add(arrivals)
        return here


@dataclass
class Base:
    """The sweep without events, kept because every question starts from it."""

    arrivals: Arrived
    drains: dict[tuple[int, str], Tensor] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes held by the kept densities; memory that is shared counts once."""
        return held([*self.drains.values(), *self.arrivals.tensors])


def held(tensors: Iterable[Tensor]) -> int:
    """The bytes behind some tensors; memory that is shared counts once."""
    return sum({address_of(t): t.untyped_storage().nbytes() for t in tensors}.values())


def base_sweep(network: Network, start: Arrivals) -> Base:
    """From what is at the output to the densities of everything."""
    base = Base(Arrived(network))

    def keep(site: Site, here: Arrivals) -> Arrivals:
        if site.port:
            (base.drains[site.node, site.port],) = here.tensors
        elif site.consumer is None:
            base.arrivals.keep(site.node, here)
        return here

    sweep(network, {network.tape.output: start}, keep)
    return base


def arrivals_at(network: Network, base: Base, site: Site) -> Arrivals | None:
    """What arrives at a site in the base sweep."""
    if site.port:
        relevance = base.drains.get((site.node, site.port))
        return None if relevance is None else Arrivals({network.drain(site.node, site.port).index: relevance})
    if site.consumer is None:
        return base.arrivals.get(site.node)
    above = base.arrivals.get(site.consumer)
    return None if above is None else pull_edge(network, site, above)


def pull_edge(network: Network, edge: Site, above: Arrivals) -> Arrivals | None:
    """What its consumer sends along an edge."""
    total = Arrivals()
    for to, arrivals in network.pull(edge.end, above)[0]:
        if to == edge.node:
            total.add(arrivals)
    return total or None


# ---- routes ------------------------------------------------------------------------------------------------------


def reachable(network: Network, low: int, high: int | None = None) -> set[int]:
    """The tensors on walks from ``low`` upward, itself included, as far as ``high``."""
    nodes, above = network.tape.nodes, {low}
    for i in range(low + 1, len(nodes) if high is None else high + 1):
        if any(j in above for j in nodes[i].inputs):
            above.add(i)
    return above


def between(network: Network, low: int, high: int) -> set[int]:
    """The tensors on walks from ``low`` up to ``high``, both included."""
    nodes, above = network.tape.nodes, reachable(network, low, high)
    below = {high}
    for i in range(high, low, -1):
        if i in below:
            below.update(j for j in nodes[i].inputs)
    return above & below


# ---- from site to site -------------------------------------------------------------------------------------------


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
    """Carries what is at one site down to many in one sweep, the highest first; what cannot be reached is left out."""
    wanted = [goal for goal in goals if not start.port and goal.order < start.order and goal.end <= start.node]
    if not wanted:
        return
    ends = {goal.end for goal in wanted}
    route = set[int]().union(*(between(network, end, start.node) for end in ends))
    starts = {start.node: arrivals}
    if rows is not None:
        starts = _tell_apart(network, start.node, arrivals, rows, route, ends)
    found: dict[Site, Arrivals] = {}
    last = Site(min(ends))
    stops_there = all(goal == last for goal in wanted if goal.end == last.node)

    def watch(site: Site, here: Arrivals) -> Arrivals | None:
        if site in wanted:
            found.setdefault(site, Arrivals()).add(here)
        # Behind the lowest goal nobody looks, so that its own step need not be pulled.
        return None if (site == last and stops_there) or site.node not in route else here

    for _ in passing(network, starts, watch, route | {goal.node for goal in wanted}):
        yield from found.items()
        found.clear()


def _tell_apart(
    network: Network, top: int, arrivals: Arrivals, rows: Sequence[int], route: set[int], ends: set[int]
) -> dict[int, Arrivals]:
    """Channels that travel together as long as steps keep them apart: where they are spelled out, on the stack."""
    apart: dict[int, Arrivals] = {}

    def split(site: Site, here: Arrivals) -> Arrivals | None:
        if site.consumer is not None or site.port:
            return here
        node = network.tape.nodes[site.node]
        if site.node not in ends and mixes_channels(network, node):
            for map, rho in network.mixing(site.node, here):
                below = network.plain(node.inputs[0]).index
                spelled = Arrivals({below: map.transpose_by_channel(rho, rows)})
                apart.setdefault(node.inputs[0], Arrivals()).add(spelled)
            return None
        inside = [p for p, j in enumerate(node.inputs) if j in route]
        if site.node not in ends and all(keeps_channels(network, node, p) for p in inside):
            return here
        apart.setdefault(site.node, Arrivals()).add(here.masked(one_hot(node, rows)))
        return None

    sweep(network, {top: arrivals}, split, route)
    return apart
