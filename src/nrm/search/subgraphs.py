"""Subgraphs: the connected sets of nodes whose inner walks carry most of the relevance. Exact, or with a bound.

The relevance of a set of nodes is that of all walks which begin at its features and visit no other node: one sweep, in
which the densities of other nodes are dropped wherever walks arrive at nodes. Few sets are all computed. Of many, a
search divides them by what they have and have not: all sets of a part lie in a region A around what they have, so that
their walks are walks inside A. Let ``R_v`` be the relevance of the walks inside A that begin at node v, and ``P_v`` the
sum of their absolute relevances (or more); the positive ones are ``(P_v + R_v) / 2``, and a set of n nodes has no more
than the n largest of these, its own nodes first.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nrm.errors import RuleError
from nrm.memory import fitting
from nrm.questions import Base, Formula, Progress, Set, Site, between, sweep
from nrm.search.connected import Growth, Neighbours, bits
from nrm.search.flows import AFFORDABLE, SMALL
from nrm.search.found import Certified
from nrm.search.ranking import BestFlows, Queue, Request
from nrm.steps import Arrivals, Network, total_of

BEAM = 16
"""So many of the best smaller sets are enlarged for a list to begin with."""


@dataclass(frozen=True)
class Subgraph:
    """A connected set of nodes, with the relevance of the walks that begin at its features and stay inside.

    ``nodes`` are numbered as in the call, in a batch through all graphs; of several kinds each is ``(kind, number)``.
    It iterates as what to ask for it: ``R(*subgraph)`` is its relevance, ``R(x, *subgraph)`` its heat map.
    ``certified`` says that no other connected set of as many nodes can come before it. ``labels`` are names of nodes.
    """

    sample: int
    nodes: tuple[Any, ...]
    relevance: float
    certified: bool
    arguments: tuple[Set | Formula, ...]
    labels: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Set | Formula]:
        return iter(self.arguments)

    def __len__(self) -> int:
        return len(self.nodes)

    def __str__(self) -> str:
        texts = [" ".join(map(str, n)) if isinstance(n, tuple) else str(n) for n in self.nodes]
        if self.labels:
            texts = [f"{text} {label!r}" for text, label in zip(texts, self.labels, strict=True)]
        return f"{self.relevance:.4g}  nodes {', '.join(texts)}{'' if self.certified else '  (not certified)'}"

    def record(self) -> dict[str, Any]:
        """The columns of a table."""
        found = {"nodes": self.nodes, "relevance": self.relevance, "certified": self.certified}
        return {**found, "labels": self.labels} if self.labels else found


class Subgraphs(Certified[Subgraph]):
    """One list of subgraphs per sample, best first. ``certified`` and ``gap`` say, per sample, how complete it is."""

    def __init__(self, samples: Sequence[Sequence[Subgraph]], numbers: Sequence[int], gaps: Sequence[float]) -> None:
        super().__init__("subgraphs", samples, numbers, gaps)


class NodeSite(NamedTuple):
    """A tensor at which walks arrive at nodes, and the node of each of its rows."""

    tensor: int
    rows: Tensor


@dataclass(frozen=True, eq=False)
class NodeGraph:
    """The nodes of a measure's graphs: which sample each belongs to, how they are joined, and where walks visit them.

    ``inputs`` are the user's tensors, at which the walks that count begin: those of nodes are among the ``sites``.
    """

    owner: Tensor
    neighbours: Neighbours
    sites: Sequence[NodeSite]
    inputs: Sequence[int]


class _Inside(NamedTuple):
    """The relevance of walks inside some sets: of those that begin at every node, and of the others by sample."""

    by_node: Tensor
    others: Tensor


class InnerWalks:
    """Computes the relevance of the walks inside many sets of nodes at once."""

    def __init__(self, network: Network, base: Base, graph: NodeGraph, *, memory: int) -> None:
        self._network, self._graph = network, graph
        self._start = base.arrivals[network.tape.output]
        low = [i for i in graph.inputs if i in base.arrivals]
        self._route = set[int]().union(*(between(network, i, network.tape.output) for i in low))
        nodes = network.tape.nodes
        self._like = nodes[network.tape.output].value
        widest = max([nodes[i].shape.numel() for i in self._route], default=1)
        self.width = min(256, fitting(memory, 2 * widest * self._like.element_size()))
        flops = sum(network.tape.flops[i] for i in self._route if network.rules.reached[i])
        self.cost = max(flops / max(network.tape.forward, SMALL), 1e-9)
        """Forward passes of arithmetic for one set."""

    def relevance(self, sets: Mapping[int, Sequence[int]]) -> dict[int, list[float]]:
        """The relevance of some sets of every sample."""
        found: dict[int, list[float]] = {s: [] for s in sets}
        for part, members in self._chunks(sets):
            total = self._by_sample(self._swept(self._network, self._start, members))
            for s, mine in part.items():
                found[s] += total[: len(mine), s].tolist()
        return found

    def bounds(
        self, request: Request, size: int, growths: Mapping[int, Sequence[Growth]]
    ) -> dict[int, list[float]]:  # fmt: skip
        """How much the sets of some growths can have at most."""
        near = self._graph.neighbours
        regions = {s: [near.reach(g, size - g.inside.bit_count()) for g in some] for s, some in growths.items()}
        absolute = self._network.absolute(self._route)
        start, found = absolute.magnitudes(self._start), dict[int, list[float]]()
        done = dict.fromkeys(growths, 0)
        for part, members in self._chunks(regions):
            signed = self._swept(self._network, self._start, members)
            total = self._swept(absolute, start, members)
            for s, mine in part.items():
                some = growths[s][done[s] : done[s] + len(mine)]
                done[s] += len(mine)
                found.setdefault(s, []).extend(self._bound(request, size, s, some, signed, total))
        return found

    def _bound(
        self, request: Request, size: int, sample: int, growths: Sequence[Growth], signed: _Inside, total: _Inside
    ) -> Iterator[float]:  # fmt: skip
        """The n largest of what the walks that begin at nodes have of the wanted sign, those inside first."""
        for row, growth in enumerate(growths):
            reach, best = bits(self._graph.neighbours.reach(growth, size - growth.inside.bit_count())), 0.0
            inside = bits(growth.inside)
            rest = [i for i in reach if not growth.inside >> i & 1]
            for sign in (1.0, -1.0) if request.sign == "abs" else ((-1.0,) if request.sign == "-" else (1.0,)):
                own = (total.by_node[row] + sign * signed.by_node[row]).clamp(min=0) / 2
                others = float(total.others[row, sample] + sign * signed.others[row, sample]) / 2
                more = own[rest].sort(descending=True).values[: size - len(inside)]
                best = max(best, float(own[inside].sum() + more.sum()) + max(others, 0.0))
            whole = float(total.by_node[row, reach].sum() + total.others[row, sample])
            yield best + 64 * torch.finfo(self._like.dtype).eps * whole

    def _by_sample(self, found: _Inside) -> Tensor:
        """``(sets, samples)``."""
        owner = self._graph.owner
        return found.others.index_add(1, owner, found.by_node)

    def _chunks(self, sets: Mapping[int, Sequence[int]]) -> Iterator[tuple[dict[int, Sequence[int]], Tensor]]:
        """Some sets of every sample at a time, and the nodes in each row: one set of every sample together."""
        longest = max(map(len, sets.values()), default=0)
        for begin in range(0, longest, self.width):
            part = {s: mine[begin : begin + self.width] for s, mine in sets.items() if mine[begin : begin + self.width]}
            members = torch.zeros(max(map(len, part.values())), len(self._graph.owner), dtype=torch.bool)
            for mine in part.values():
                for row, nodes in enumerate(mine):
                    members[row, bits(nodes)] = True
            yield part, members.to(self._like.device)

    def _swept(self, network: Network, start: Arrivals, members: Tensor) -> _Inside:
        """One sweep for every row of nodes."""
        by_node = self._like.new_zeros(members.shape)
        others = self._like.new_zeros(len(members), network.tape.batch)
        sites = {site.tensor: site.rows for site in self._graph.sites}

        def turn(site: Site, here: Arrivals) -> Arrivals | None:
            nonlocal by_node, others
            if site.port or site.consumer is not None:
                return here
            if site.node in sites:
                rows = sites[site.node]
                inside = members[:, rows].view(len(members), -1, *(1,) * (network.tape.nodes[site.node].ndim - 1))
                here = here.each(lambda rho: rho * inside)
            if site.node in self._graph.inputs:
                relevance = total_of(network.products(here))
                if relevance is not None and site.node in sites:
                    flat = relevance.expand(len(members), *relevance.shape[1:]).flatten(2)
                    by_node = by_node.index_add(1, sites[site.node], flat.sum(2) if flat.ndim > 2 else flat)
                elif relevance is not None:
                    others = others + self._of_samples(site.node, relevance.expand(len(members), *relevance.shape[1:]))
            return here

        sweep(network, {network.tape.output: start}, turn, self._route)
        return _Inside(by_node, others)

    def _of_samples(self, i: int, relevance: Tensor) -> Tensor:
        """The relevance of an input that has no row per node, by sample."""
        node = self._network.tape.nodes[i]
        if node.sample is not None:
            return relevance.movedim(node.sample + 1, 1).flatten(2).sum(2)
        total = relevance.new_zeros(len(relevance), self._network.tape.batch)
        owner = torch.zeros(node.shape, dtype=torch.long, device=node.device) if node.owner is None else node.owner
        return total.index_add(1, owner.flatten(), relevance.flatten(1))


class SubgraphSearch:
    """The search for the subgraphs of one size, for every sample by itself."""

    def __init__(self, walks: InnerWalks, graph: NodeGraph, samples: Sequence[int], progress: Progress) -> None:
        self._walks, self._graph, self._progress = walks, graph, progress
        self._nodes = {
            s: sum(1 << i for i in (graph.owner == s).nonzero()[:, 0].tolist()) for s in samples
        }  # fmt: skip

    def run(self, size: int, request: Request) -> tuple[dict[int, BestFlows], dict[int, float]]:
        """Per sample: the best sets, and the bound of all that were not looked at."""
        best = {s: BestFlows(request.k) for s in self._nodes}
        limit = int(min(AFFORDABLE, request.effort) / self._walks.cost)
        near = self._graph.neighbours
        sets = {s: list(itertools.islice(near.sets(nodes, size), limit + 1)) for s, nodes in self._nodes.items()}
        if max(map(len, sets.values()), default=0) <= limit:
            self._take(request, best, sets)
            return best, dict.fromkeys(self._nodes, 0.0)
        self._begin(request, size, best)
        try:
            return best, self._search(request, size, best)
        except RuleError:  # a step whose single weights are not known has no absolute entries
            return best, dict.fromkeys(self._nodes, math.inf)

    def _take(self, request: Request, best: Mapping[int, BestFlows], sets: Mapping[int, Sequence[int]]) -> None:
        """Puts sets onto the lists of their samples."""
        longest = max(map(len, sets.values()), default=0)
        for begin in self._progress(iter(range(0, longest, self._walks.width)), -(-longest // self._walks.width)):
            some = {s: mine[begin : begin + self._walks.width] for s, mine in sets.items()}
            for s, values in self._walks.relevance(some).items():
                scores = [_score(request, value) for value in values]
                entries = zip(scores, (tuple(bits(nodes)) for nodes in some[s]), values, strict=True)
                best[s].take(entry for entry in entries if entry[0] > 0)

    def _begin(self, request: Request, size: int, best: Mapping[int, BestFlows]) -> None:
        """A list to begin with: the best sets of one node less, each enlarged by every neighbour."""
        near = self._graph.neighbours
        sets = {s: [1 << i for i in bits(nodes)] for s, nodes in self._nodes.items()}
        for _ in range(size - 1):
            values = self._walks.relevance(sets)
            kept = {
                s: [n for _, n in sorted(zip((-_score(request, v) for v in values[s]), mine, strict=True))[:BEAM]]
                for s, mine in sets.items()
            }
            sets = {s: sorted({n | 1 << i for n in mine for i in bits(near.around(n))}) for s, mine in kept.items()}
        self._take(request, best, sets)

    def _search(self, request: Request, size: int, best: Mapping[int, BestFlows]) -> dict[int, float]:
        """Best-first: the growth that can have most is divided, until none can reach the list."""
        near, queues = self._graph.neighbours, {s: Queue() for s in self._nodes}
        self._push(request, size, best, queues, {s: list(near.roots(n)) for s, n in self._nodes.items()})
        left, width = int(request.effort / self._walks.cost), 4
        for _ in self._progress(itertools.count(), None):
            if left <= 0:
                break
            batch = {s: queues[s].pop(best[s].threshold, width) for s in self._nodes}
            if not any(batch.values()):
                break
            width = min(2 * width, 64)
            children = {s: [c for g in some for c in near.children(Growth(*g))] for s, some in batch.items()}
            whole = {s: [c.inside for c in mine if c.inside.bit_count() == size] for s, mine in children.items()}
            parts = {s: [c for c in mine if c.inside.bit_count() < size] for s, mine in children.items()}
            self._take(request, best, whole)
            self._push(request, size, best, queues, parts)
            left -= max(len(whole[s]) + 2 * len(parts[s]) for s in self._nodes)
        return {s: queues[s].reach(best[s].threshold) for s in self._nodes}

    def _push(
        self, request: Request, size: int, best: Mapping[int, BestFlows], queues: Mapping[int, Queue],
        growths: Mapping[int, Sequence[Growth]],
    ) -> None:  # fmt: skip
        for s, bounds in self._walks.bounds(request, size, growths).items():
            order = sorted(zip(bounds, growths[s], strict=True), key=lambda pair: (-pair[0], pair[1]))
            live = [(bound, growth) for bound, growth in order if bound > 0 and bound >= best[s].threshold]
            queues[s].push_family([bound for bound, _ in live], [tuple(growth) for _, growth in live])


def _score(request: Request, value: float) -> float:
    """What is to be large."""
    return value if request.sign == "+" else -value if request.sign == "-" else abs(value)
