"""Carrying out a plan: messages from above, values from below, and the table where they meet."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from nrm.errors import MemoryLimitError
from nrm.questions.adjacent import adjacent_table
from nrm.questions.plan import Plan
from nrm.questions.stops import Stop, axes_of
from nrm.questions.sweep import Base, Pushed, arrivals_at, pull_to, relevance_at
from nrm.rules import Arrivals, Network

Ranges = tuple[range, ...]


class Answerer:
    """Carries out plans on one network with one kept base sweep."""

    def __init__(
        self, network: Network, base: Base, *, memory: int, progress: Callable[[Iterator[Any], int], Iterator[Any]]
    ) -> None:
        self._network = network
        self._base = base
        self._memory = memory
        self._progress = progress
        self._like = network.tape.nodes[network.tape.output].value

    def table(self, plan: Plan, absolute: bool = False) -> Tensor:
        """``(batch, *axes)`` with the axes of all blocks in the order of the arguments.

        ``absolute`` sums the absolute relevances of the meeting place's neurons: the total variation inside the event.
        """
        if plan.nbytes > self._memory:
            raise MemoryLimitError(
                "the table is larger than the memory bound", got=f"{plan.nbytes / 2**30:.2f} GiB",
                expected=f"at most {self._memory / 2**30:.2f} GiB",
                hint="ask for fewer blocks (a.channels[[3, 7]]), coarser groups, or raise memory= in nrm.measure",
            )  # fmt: skip
        outer = (*plan.above, *plan.below)
        inner = [n for stop in plan.meeting for n in axes_of(stop)]
        table = self._like.new_zeros(*(s.count for s in outer), plan.stops[0].frame.batch, *inner)
        chunks = list(_chunks(plan))
        for up, down in self._progress(iter(chunks), len(chunks)):
            part = self._part(plan, up, down, absolute)
            if part is not None:
                index = tuple(slice(r.start, r.stop) for r in (*up, *down))
                table[index] = part.reshape(*(len(r) for r in (*up, *down)), *table.shape[len(outer) :])
        return _ordered(table, plan)

    def _part(self, plan: Plan, up: Ranges, down: Ranges, absolute: bool) -> Tensor | None:
        """The table for one chunk of outer blocks, ``(stack, batch, *axes of the meeting)``; None is 0."""
        arrivals = self._arrive(plan.above, plan.meeting[0], up)
        lower = self._push(plan.below, down)
        if arrivals is None:
            return None
        stack = math.prod(len(r) for r in (*up, *down))
        if plan.mixing:
            table = self._contract(plan, arrivals, lower)
        else:
            hub = plan.meeting[0]
            relevance = relevance_at(self._network, hub.site, arrivals, lower)
            if relevance is None:
                return None
            mask = hub.mask()
            relevance = relevance if mask is None else relevance * mask
            table = hub.read(relevance.abs() if absolute else relevance)
        return None if table is None else table.expand(stack, *table.shape[1:])

    def _contract(self, plan: Plan, arrivals: Arrivals, lower: Pushed | None) -> Tensor | None:
        high, low = plan.meeting
        mask = high.mask()
        if mask is not None:
            arrivals = arrivals.masked(mask)
        values = self._pushed(low, low.mask(), lower)
        table = adjacent_table(self._network, high.site, arrivals, low.site, values, lower, list(plan.mixing))
        if table is None:
            return None
        table = table.transpose(2, 3)
        for axis, stop in ((2, high), (3, low)):
            picked = stop.blocks[0].picked
            if picked is not None:
                table = table.index_select(axis, picked.flatten().to(table.device))
        return table

    def _arrive(self, above: tuple[Stop, ...], goal: Stop, up: Ranges) -> Arrivals | None:
        sites = [s.site for s in above] + [goal.site]
        arrivals = arrivals_at(self._network, self._base, sites[0])
        for k, rows in enumerate(up):
            if arrivals is None:
                return None
            mask = _mask(above[k], rows)
            if mask is not None:
                arrivals = arrivals.masked(mask)
            arrivals = pull_to(self._network, sites[k], arrivals, sites[k + 1])
        return arrivals

    def _push(self, below: tuple[Stop, ...], down: Ranges) -> Pushed | None:
        lower: Pushed | None = None
        for stop, rows in reversed(list(zip(below, down, strict=True))):
            lower = self._pushed(stop, _mask(stop, rows), lower)
        return lower

    def _pushed(self, stop: Stop, mask: Tensor | None, lower: Pushed | None) -> Pushed:
        if mask is None:
            mask = torch.ones((1, *(1,) * len(stop.frame.shape)), dtype=torch.bool, device=self._like.device)
        wide = mask.to(self._like.dtype).expand(mask.shape[0], *stop.frame.shape)
        return Pushed(self._network, stop.site, wide, lower)


def _mask(stop: Stop, rows: range) -> Tensor | None:
    return stop.block_masks(rows) if stop.blocks else stop.mask()


def _chunks(plan: Plan) -> Iterator[tuple[Ranges, Ranges]]:
    """The outer blocks in chunks whose messages fit into the memory bound."""
    outer, fits = [*plan.above, *plan.below], plan.chunk
    lengths: list[int] = []
    for stop in reversed(outer):
        lengths.insert(0, min(stop.count, fits))
        fits = max(1, fits // lengths[0])

    def products(k: int) -> Iterator[Ranges]:
        if k == len(outer):
            yield ()
            return
        for begin in range(0, outer[k].count, lengths[k]):
            here = range(begin, min(begin + lengths[k], outer[k].count))
            for rest in products(k + 1):
                yield (here, *rest)

    for ranges in products(0):
        yield ranges[: len(plan.above)], ranges[len(plan.above) :]


def _ordered(table: Tensor, plan: Plan) -> Tensor:
    """Outer stops' flat axes as their blocks' axes, the batch first, then the order of the arguments."""
    outer = (*plan.above, *plan.below)
    shape = [n for stop in outer for n in axes_of(stop)]
    table = table.reshape(*shape, *table.shape[len(outer) :])
    owners = [*_owners(outer), -1, *_owners(plan.meeting)]
    order = sorted(range(len(owners)), key=lambda k: (owners[k], k))
    return table.permute(order)


def _owners(stops: tuple[Stop, ...]) -> list[int]:
    """The argument that every axis of these stops belongs to."""
    return [a for s in stops for a, b in zip(s.axes, s.blocks, strict=True) for _ in b.shape]
