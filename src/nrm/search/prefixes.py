"""Prefixes: blocks for the upper layers of a question, and how far their extensions can reach.

Consider the walks through a prefix and, wherever, through all layers below it that are asked about. R is their
relevance, P the sum of their absolute relevances (or more), from the network of absolute entries. The walks of an
extension are some of them, so that its relevance lies in ``[-(P - R) / 2, (P + R) / 2]``. For non-negative steps these
are the two parts of the Jordan decomposition of the message at the topmost layer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from nrm.errors import RuleError
from nrm.memory import fitting
from nrm.questions import (
    Answerer,
    Progress,
    Pushed,
    between,
    contractible,
    products_at,
    pull_to,
    route_flops,
    widest,
)
from nrm.search.ranking import BestFlows, Queue, Request
from nrm.search.sides import Side, total_of
from nrm.steps import Arrivals, Network

Prefix = tuple[int, ...]


class UnboundedError(Exception):
    """A step whose single weights are not known has no absolute entries."""


@contextlib.contextmanager
def _known_weights() -> Iterator[None]:
    try:
        yield
    except RuleError as error:
        raise UnboundedError(error.args[0] if error.args else str(error)) from error


class Extension(NamedTuple):
    """What the next blocks of some prefixes of one sample carry: ``(prefixes, blocks)``.

    ``total`` is the sum of absolute relevances, None if it is not asked for; ``sizes`` are the counts of the stops
    that the blocks belong to; ``fixed`` are stops without blocks that come after them. Complete combinations are
    findings, others are prefixes again.
    """

    prefixes: list[Prefix]
    relevance: Tensor
    total: Tensor | None
    sizes: tuple[int, ...]
    fixed: int
    complete: bool

    def rank(self, request: Request, best: BestFlows, queue: Queue) -> None:
        """Puts findings onto the list, and prefixes into the queue."""
        if self.complete:
            best.add(request, self.relevance.flatten(), self._blocks)
            return
        reach = request.score(self.relevance) if self.total is None else request.bound(self.relevance, self.total)
        live = reach > 0 if self.total is None else self.total > 0
        for n, prefix in enumerate(self.prefixes):
            at = (live[n] & (reach[n] >= best.threshold)).nonzero()[:, 0]
            # The order of all of them, not only of the largest: the queue takes one after the other, as far as it must.
            order = at[reach[n][at].argsort(descending=True, stable=True)]
            children = [(*prefix, i, *(0,) * self.fixed) for i in order.tolist()]
            queue.push_family(reach[n][order].tolist(), children)

    def _blocks(self, at: Tensor) -> list[Prefix]:
        places = torch.unravel_index(at, (len(self.prefixes), *self.sizes))
        numbers = [p.tolist() for p in places]
        tail = (0,) * self.fixed
        return [(*self.prefixes[n], *rest, *tail) for n, *rest in zip(*numbers, strict=True)]


class Prefixes:
    """Extends prefixes of one question, many at once: every sample has its own on the stack.

    What they carry is the weighted sum over all sides; its bound is the sum of their bounds.
    """

    def __init__(self, sides: Sequence[Side], *, memory: int, progress: Progress, bounded: bool) -> None:
        self._readers = [_Reader(side, memory, progress, bounded) for side in sides]
        self._bounded = bounded
        self._samples = len(sides[0].samples)
        self._counts = [stop.count for stop in sides[0].stops]
        self._is_free = [bool(stop.blocks) for stop in sides[0].stops]
        free = [n for n, is_free in enumerate(self._is_free) if is_free]
        self._last = free[-1]
        self.root: Prefix = (0,) * free[0]
        adjacent = bounded and self._last > 0 and self._is_free[self._last - 1]
        self._pairs = adjacent and all(reader.can_contract(self._last - 1) for reader in self._readers)
        self.width = min(reader.width for reader in self._readers)
        self.cost = max(sum(reader.cost for reader in self._readers), 1e-9)

    def extend(self, batch: Mapping[int, Sequence[Prefix]]) -> Iterator[tuple[int, Extension]]:
        """The extensions of every sample's prefixes by the next stop with blocks (or by the last two)."""
        for length in sorted({len(p) for prefixes in batch.values() for p in prefixes}):
            mine = {s: [p for p in prefixes if len(p) == length] for s, prefixes in batch.items()}
            for begin in range(0, max(map(len, mine.values())), self.width):
                yield from self._extend({s: p[begin : begin + self.width] for s, p in mine.items()}, length)

    # ---- pairs of two stops, from both sides -----------------------------------------------------------------------

    @contextlib.contextmanager
    def keeping(self, nbytes: int) -> Iterator[None]:
        """Meanwhile changed weights are kept in so many bytes, for many sweeps through the same steps."""
        networks = {id(n): n for reader in self._readers for n in reader.networks}.values()
        with contextlib.ExitStack() as stack:
            for network in networks:
                stack.enter_context(network.factors.keeping(nbytes // len(networks)))
            yield

    @property
    def are_pairs(self) -> bool:
        """Whether combinations are pairs of blocks with more than one step that mixes between them."""
        return self._is_free == [True, True] and not self._pairs

    def upper_reach(self, request: Request) -> dict[int, Tensor]:
        """Per sample, what a pair of every upper block can reach."""
        found = self.extend({s: [self.root] for s in range(self._samples)})
        return {s: request.bound(x.relevance[0], x.total[0]) for s, x in found if x.total is not None}

    def of_lower(self, rows: Tensor) -> Tensor:
        """The relevance of lower blocks, ``(stack, samples)``, with all upper ones: ``(stack, samples, blocks)``."""
        return total_of(reader.of_lower(rows) for reader in self._readers)

    def of_groups(self, batch: Mapping[int, Sequence[Sequence[int]]]) -> Iterator[tuple[int, Tensor]]:
        """Per sample, bounds of all pairs of groups of upper blocks with every lower block: ``(groups, blocks)``."""
        stack = max(map(len, batch.values()), default=0)
        if stack == 0:
            return
        member = torch.zeros(stack, self._samples, self._counts[0], dtype=torch.bool)
        for s, groups in batch.items():
            for n, group in enumerate(groups):
                member[n, s, list(group)] = True
        with _known_weights():
            total = total_of(reader.of_groups(member) for reader in self._readers)
        yield from ((s, total[: len(groups), s]) for s, groups in batch.items())

    def _extend(self, batch: Mapping[int, list[Prefix]], length: int) -> Iterator[tuple[int, Extension]]:
        rows = self._rows(batch, length)
        pairs = self._pairs and length == self._last - 1
        complete = pairs or length == self._last
        relevance = total_of(reader.relevance(rows, pairs) for reader in self._readers)
        total = None
        if self._bounded and not complete:
            with _known_weights():
                total = total_of(reader.total(rows) for reader in self._readers)
        sizes = tuple(self._counts[length : length + (2 if pairs else 1)])
        fixed = self._fixed_after(length + len(sizes))
        for s, prefixes in batch.items():
            n = len(prefixes)
            if n:
                absolute = None if total is None else total[:n, s]
                yield s, Extension(prefixes, relevance[:n, s], absolute, sizes, fixed, complete)

    def _fixed_after(self, place: int) -> int:
        """How many stops without blocks follow."""
        rest = self._is_free[place:]
        return next((n for n, is_free in enumerate(rest) if is_free), len(rest))

    @staticmethod
    def _rows(batch: Mapping[int, list[Prefix]], length: int) -> Tensor:
        """``(length, stack, samples)``: every sample's own prefixes; -1 where it has no more."""
        stack = max(map(len, batch.values()))
        rows = torch.full((length, stack, len(batch)), -1)
        for s, prefixes in batch.items():
            if length:
                rows[:, : len(prefixes), s] = torch.tensor(prefixes).reshape(-1, length).T
        return rows


class _Reader:
    """What prefixes carry on one side."""

    def __init__(self, side: Side, memory: int, progress: Progress, bounded: bool) -> None:
        self._side = side
        self._network = network = side.network
        self._answerer = Answerer(network, side.base, memory=memory, progress=progress)
        self._stops = stops = side.stops
        self._mixing: list[int] | None = None
        low, high = stops[-1].site, stops[0].site
        inside = low.port or network.rules.open[low.node]  # then what arrives there meets entries of its own step
        route = between(network, low.node, high.node) - (set() if inside else {low.node})
        self._absolute = network.absolute(route) if bounded else None
        self._below = self._answerer.push_all(stops)
        self._absolute_below: list[Pushed | None] | None = None
        if self._absolute is not None:
            with _known_weights():
                self._absolute_below = self._answerer.push_all(stops, self._absolute)
        element = network.tape.nodes[network.tape.output].value.element_size()
        self.width = min(64, fitting(memory, (1 + bounded) * widest(network, stops) * element))
        self.cost = (1 + bounded) * route_flops(network, low, high) / network.tape.forward

    @property
    def networks(self) -> list[Network]:
        """The network, and that of absolute entries."""
        return [self._network] if self._absolute is None else [self._network, self._absolute]

    def can_contract(self, high: int) -> bool:
        """Whether one contraction gives all pairs of the blocks of a stop and the next one."""
        self._mixing = contractible(self._network, self._stops[high], self._stops[high + 1])
        return bool(self._mixing)

    def relevance(self, rows: Tensor, pairs: bool) -> Tensor:
        """``(stack, samples, blocks)`` of the next stop, or of the next two."""
        return self._side.weighed(self._read(self._own(rows), pairs))

    def total(self, rows: Tensor) -> Tensor:
        """The tables of the sums of absolute relevances."""
        return self._side.weighed(self._read(self._own(rows), False, self._absolute), absolute=True)

    def of_lower(self, rows: Tensor) -> Tensor:
        """Blocks of the lower of two stops with all blocks of the upper one."""
        high, low = self._stops
        own = self._own(rows[None])[0]
        arrivals = self._answerer.arrivals_at(high)
        lower = Pushed(self._network, low.site, low.own_masks(own).to(self._answerer.like.dtype), None)
        table = None
        if arrivals is not None:
            mask = high.mask()
            arrivals = arrivals if mask is None else arrivals.masked(mask)
            table = high.read_parts(products_at(self._network, high.site, arrivals, lower))
        if table is None:
            return self._side.weighed(self._answerer.like.new_zeros(len(rows), self._side.batch, high.count))
        return self._side.weighed(table.reshape(table.shape[0], self._side.batch, -1).expand(len(rows), -1, -1))

    def of_groups(self, member: Tensor) -> Tensor:
        """The sums of absolute relevances of groups of upper blocks with lower ones: ``(stack, samples, blocks)``."""
        high, low = self._stops
        own = torch.zeros(member.shape[0], self._side.batch, member.shape[2], dtype=torch.bool)
        own[:, list(self._side.samples)] = member
        arrivals = self._answerer.arrivals_at(high)
        network, table = self._absolute, None
        assert network is not None
        if arrivals is not None:
            marked = network.magnitudes(arrivals).each(high.group_masks(own).mul)
            there = pull_to(network, high.site, marked, low.site)
            if there is not None:
                table = low.read_parts(products_at(network, low.site, there, None))
        if table is None:
            table = self._answerer.like.new_zeros(len(member), self._side.batch, low.count)
        wide = table.reshape(table.shape[0], self._side.batch, -1).expand(len(member), -1, -1)
        return self._side.weighed(wide, absolute=True)

    def _own(self, rows: Tensor) -> Tensor:
        """The prefixes at the places that their samples have in this side's batch."""
        own = torch.full((*rows.shape[:2], self._side.batch), -1)
        own[:, :, list(self._side.samples)] = rows
        return own

    def _read(self, rows: Tensor, pairs: bool, absolute: Network | None = None) -> Tensor:
        """``(stack, batch, blocks)``; with a network of absolute entries, sums of absolute relevances."""
        length, stack, batch = rows.shape
        stop, arrivals = self._stops[length], self._arrive(rows, absolute)
        table = None
        if arrivals is not None and pairs:
            assert self._mixing is not None
            low = self._stops[length + 1]
            table = self._answerer.contract(stop, low, self._mixing, arrivals, self._below[length + 1])
        elif arrivals is not None:
            below = self._below if absolute is None or self._absolute_below is None else self._absolute_below
            table = stop.read_parts(products_at(absolute or self._network, stop.site, arrivals, below[length]))
        if table is None:
            count = stop.count * (self._stops[length + 1].count if pairs else 1)
            return self._answerer.like.new_zeros(stack, batch, count)
        return table.reshape(table.shape[0], batch, -1).expand(stack, -1, -1)

    def _arrive(self, rows: Tensor, absolute: Network | None) -> Arrivals | None:
        arrivals = self._answerer.arrivals_at(self._stops[0])
        if arrivals is not None and absolute is not None:
            arrivals = absolute.magnitudes(arrivals)
        for row, stop, goal in zip(rows, self._stops, self._stops[1:], strict=False):
            if arrivals is None:
                return None
            masks = stop.own_masks(row)
            arrivals = arrivals.each(masks.mul)
            arrivals = pull_to(absolute or self._network, stop.site, arrivals, goal.site)
        return arrivals
