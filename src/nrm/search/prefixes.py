"""Prefixes: blocks for the upper layers of a question, and how far their extensions can reach.

Consider the walks through a prefix and, wherever, through all layers below it that are asked about. R is their
relevance, P the sum of their absolute relevances (or more), from the network of absolute entries. The walks of an
extension are some of them, so that its relevance lies in ``[-(P - R) / 2, (P + R) / 2]``. For non-negative steps these
are the two parts of the Jordan decomposition of the message at the topmost layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from nrm.errors import RuleError
from nrm.questions.answer import Answerer
from nrm.questions.plan import contractible, model_flops, route_flops, widest
from nrm.questions.stops import Stop
from nrm.questions.sweep import between, parts_at, pull_to
from nrm.rules import Arrivals, Network
from nrm.search.ranking import Best, Queue, Request

Prefix = tuple[int, ...]


class UnboundedError(Exception):
    """A step whose single weights are not known has no absolute entries."""


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

    def rank(self, request: Request, best: Best, queue: Queue) -> None:
        """Puts findings onto the list, and prefixes into the queue."""
        if self.complete:
            best.add(request, self.relevance.flatten(), self._blocks)
            return
        reach = request.score(self.relevance) if self.total is None else request.bound(self.relevance, self.total)
        live = reach > 0 if self.total is None else self.total > 0
        for n, prefix in enumerate(self.prefixes):
            at = (live[n] & (reach[n] >= best.threshold)).nonzero()[:, 0]
            order = at[reach[n][at].argsort(descending=True, stable=True)]
            children = [(*prefix, i, *(0,) * self.fixed) for i in order.tolist()]
            queue.push_family(reach[n][order].tolist(), children)

    def _blocks(self, at: Tensor) -> list[Prefix]:
        places = torch.unravel_index(at, (len(self.prefixes), *self.sizes))
        numbers = [p.tolist() for p in places]
        tail = (0,) * self.fixed
        return [(*self.prefixes[n], *rest, *tail) for n, *rest in zip(*numbers, strict=True)]


class Prefixes:
    """Extends prefixes of one question, many at once: every sample of a batch has its own on the stack."""

    def __init__(
        self, network: Network, answerer: Answerer, stops: Sequence[Stop], *, memory: int, bounded: bool
    ) -> None:
        self._network = network
        self._answerer = answerer
        self._stops = stops
        free = [n for n, stop in enumerate(stops) if stop.blocks]
        self._last = free[-1]
        self.root: Prefix = (0,) * free[0]
        low, high = stops[-1].site, stops[0].site
        inside = low.port or network.rules.open[low.node]  # then what arrives there meets entries of its own step
        route = between(network, low.node, high.node) - (set() if inside else {low.node})
        self._absolute = network.absolute(route) if bounded else None
        self._below = answerer.push_all(stops)
        self._absolute_below = None if self._absolute is None else answerer.push_all(stops, self._absolute)
        self._mixing = self._contraction() if bounded else None
        element = network.tape.nodes[network.tape.output].value.element_size()
        self.width = max(1, min(64, memory // (12 * widest(network, stops) * element)))
        self.cost = max((1 + bounded) * route_flops(network, low, high) / model_flops(network), 1e-9)

    def _contraction(self) -> list[int] | None:
        """The step between the last two stops, if one contraction gives all their pairs."""
        if self._last == 0 or not self._stops[self._last - 1].blocks:
            return None
        return contractible(self._network, self._stops[self._last - 1], self._stops[self._last])

    def extend(self, batch: Mapping[int, Sequence[Prefix]]) -> Iterator[tuple[int, Extension]]:
        """The extensions of every sample's prefixes by the next stop with blocks (or by the last two)."""
        for length in sorted({len(p) for prefixes in batch.values() for p in prefixes}):
            mine = {s: [p for p in prefixes if len(p) == length] for s, prefixes in batch.items()}
            for begin in range(0, max(map(len, mine.values())), self.width):
                yield from self._extend({s: p[begin : begin + self.width] for s, p in mine.items()}, length)

    def _extend(self, batch: Mapping[int, list[Prefix]], length: int) -> Iterator[tuple[int, Extension]]:
        rows = self._rows(batch, length)
        pairs = self._mixing is not None and length == self._last - 1
        complete = pairs or length == self._last
        relevance = self._read(rows, pairs)
        total = None
        if self._absolute is not None and not complete:
            try:
                total = self._read(rows, False, self._absolute)
            except RuleError as error:
                raise UnboundedError(error.args[0] if error.args else str(error)) from error
        taken = self._stops[length : length + (2 if pairs else 1)]
        fixed = self._fixed_after(length + len(taken))
        for s, prefixes in batch.items():
            n = len(prefixes)
            if n:
                absolute = None if total is None else total[:n, s]
                sizes = tuple(stop.count for stop in taken)
                yield s, Extension(prefixes, relevance[:n, s], absolute, sizes, fixed, complete)

    def _fixed_after(self, place: int) -> int:
        """How many stops without blocks follow."""
        rest = self._stops[place:]
        return next((n for n, stop in enumerate(rest) if stop.blocks), len(rest))

    def _rows(self, batch: Mapping[int, list[Prefix]], length: int) -> Tensor:
        """``(length, stack, batch)``: every sample's own prefixes; -1 where it has no more."""
        stack = max(map(len, batch.values()))
        rows = torch.full((length, stack, self._stops[0].frame.batch), -1)
        for s, prefixes in batch.items():
            if length:
                rows[:, : len(prefixes), s] = torch.tensor(prefixes).reshape(-1, length).T
        return rows

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
            table = stop.read_parts(parts_at(absolute or self._network, stop.site, arrivals, below[length]))
        if table is None:
            count = stop.count * (self._stops[length + 1].count if pairs else 1)
            return self._network.tape.nodes[self._network.tape.output].value.new_zeros(stack, batch, count)
        return table.reshape(table.shape[0], batch, -1).expand(stack, -1, -1)

    def _arrive(self, rows: Tensor, absolute: Network | None) -> Arrivals | None:
        arrivals = self._answerer.arrivals_at(self._stops[0])
        if arrivals is not None and absolute is not None:
            arrivals = arrivals.absolute()
        for row, stop, goal in zip(rows, self._stops, self._stops[1:], strict=False):
            if arrivals is None:
                return None
            arrivals = arrivals.restricted(stop.own_masks(row))
            arrivals = pull_to(absolute or self._network, stop.site, arrivals, goal.site)
        return arrivals
