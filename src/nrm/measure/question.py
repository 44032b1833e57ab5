"""From the arguments of ``R(...)`` to sites, and from sites to a table of relevances.

A question is a chain of sites. One of them, the *hub*, is where messages from above and values from below meet: its
blocks are read off at once. Blocks of other sites are spelled out as masks and carried along on the stack axis, in
chunks that respect the memory bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from nrm.errors import MemoryLimitError, QuestionError
from nrm.measure.frame import Blocks, Frame
from nrm.measure.sweep import Base, Pushed, Site, arrivals_at, between, pull_to, relevance_at
from nrm.measure.values import Layer, Partition, Set
from nrm.rules import Arrivals, Network


@dataclass(eq=False)
class Stop:
    """One site of a question, with the sets that restrict it and the partitions that are free there."""

    site: Site
    frame: Frame
    sets: list[Set] = field(default_factory=list)
    blocks: list[Blocks] = field(default_factory=list)
    axes: list[int] = field(default_factory=list)

    @property
    def count(self) -> int:
        """How many combinations of blocks this site has."""
        return math.prod(b.count for b in self.blocks)

    def mask(self) -> Tensor | None:
        """The intersection of the sets as ``(1, *shape)`` in the tensor's own axes; None is everything."""
        return self.frame.from_samples(self.set_mask()) if self.sets else None

    def set_mask(self) -> Tensor:
        """The intersection of the sets as ``(1, batch or 1, *layer shape or 1s)``."""
        total = self.frame.mask(self.sets[0])
        for chosen in self.sets[1:]:
            total = total & self.frame.mask(chosen)
        return total

    def block_masks(self, rows: range) -> Tensor:
        """The masks of some block combinations, ``(len(rows), *shape)``, the sets included."""
        total: Tensor | None = None
        left = self.count
        for blocks in self.blocks:
            left //= blocks.count
            mask = self.frame.from_samples(blocks.masks([(r // left) % blocks.count for r in rows]))
            total = mask if total is None else total & mask
        assert total is not None
        chosen = self.mask()
        return total if chosen is None else total & chosen

    def read(self, relevance: Tensor) -> Tensor:
        """``(K, *shape)`` to ``(K, batch, *block axes)``: the relevance of every combination of blocks."""
        m = self.frame.to_samples(relevance)
        if not self.blocks:
            return m.flatten(2).sum(2) if m.ndim > 2 else m
        if len(self.blocks) == 1:
            return self.blocks[0].read(m)
        return _cross_table(self.blocks, m)


def _cross_table(blocks: Sequence[Blocks], m: Tensor) -> Tensor:
    """Two or more partitions of one layer: the relevance of every intersection of blocks."""
    first, rest = blocks[0], blocks[1:]
    rows = []
    for r in range(first.count):
        part = m * first.masks([r])[0][None]
        rows.append(rest[0].read(part) if len(rest) == 1 else _cross_table(rest, part))
    table = torch.stack(rows, 2)
    return table.reshape(*table.shape[:2], *first.shape, *table.shape[3:])


class Answerer:
    """Answers chains of stops on one network with one kept base sweep."""

    def __init__(
        self, network: Network, base: Base, *, memory: int, progress: Callable[[Iterator[Any], int], Iterator[Any]]
    ) -> None:
        self._network = network
        self._base = base
        self._memory = memory
        self._progress = progress

    def table(self, stops: list[Stop], absolute: bool = False) -> Tensor:
        """``(batch, *axes)`` with the axes of all blocks in the order of ``Stop.axes``.

        ``absolute`` sums the absolute relevances of the hub's neurons instead: the total variation inside the event.
        """
        stops = sorted(stops, key=lambda s: s.site.order, reverse=True)
        hub = max(range(len(stops)), key=lambda k: (stops[k].count if stops[k].blocks else 0, k))
        above, below = stops[:hub], stops[hub + 1 :]
        self._check_size(stops)
        outer_counts = [s.count for s in (*above, *below)]
        batch = stops[hub].frame.batch
        table: Tensor | None = None
        chunks = list(self._chunks(above, below, stops))
        for up, down in self._progress(iter(chunks), len(chunks)):
            part = self._part(above, stops[hub], below, up, down, absolute)
            if table is None:
                like = self._network.tape.nodes[self._network.tape.output].value
                table = like.new_zeros(*outer_counts, batch, *_axes_of(stops[hub]))
            index = tuple(slice(r.start, r.stop) for r in (*up, *down))
            table[index] = part.reshape(*(len(r) for r in (*up, *down)), *table.shape[len(outer_counts) :])
        assert table is not None
        return self._ordered(table, above, stops[hub], below)

    def _ordered(self, table: Tensor, above: list[Stop], hub: Stop, below: list[Stop]) -> Tensor:
        """Outer stops' flat axes as their blocks' axes, the batch first, then the order of the arguments."""
        shape: list[int] = []
        owners: list[int] = []
        for stop in (*above, *below):
            shape += _axes_of(stop)
            owners += [a for a, b in zip(stop.axes, stop.blocks, strict=True) for _ in b.shape]
        outer_axes = len(shape)
        table = table.reshape(*shape, *table.shape[len(above) + len(below) :])
        owners += [-1] + [a for a, b in zip(hub.axes, hub.blocks, strict=True) for _ in b.shape]
        order = sorted(range(len(owners)), key=lambda k: (owners[k], k))
        assert len(owners) == table.ndim, (outer_axes, owners, table.shape)
        return table.permute(order)

    def _part(
        self, above: list[Stop], hub: Stop, below: list[Stop], up: tuple[range, ...], down: tuple[range, ...],
        absolute: bool,
    ) -> Tensor:  # fmt: skip
        """The table for one chunk of outer blocks: ``(product of chunk sizes, batch, *hub axes)``."""
        stack = math.prod(len(r) for r in (*up, *down))
        empty = self._network.tape.nodes[self._network.tape.output].value.new_zeros(
            stack, hub.frame.batch, *_axes_of(hub)
        )
        arrivals = self._arrive(above, hub, up)
        if arrivals is None:
            return empty
        lower = self._push(below, down)
        if below and lower is None:
            return empty
        relevance = relevance_at(self._network, hub.site, arrivals, lower)
        if relevance is None:
            return empty
        mask = hub.mask()
        if mask is not None:
            relevance = relevance * mask
        return hub.read(relevance.abs() if absolute else relevance).expand_as(empty)

    def _arrive(self, above: list[Stop], hub: Stop, up: tuple[range, ...]) -> Arrivals | None:
        sites = [s.site for s in above] + [hub.site]
        arrivals = arrivals_at(self._network, self._base, sites[0])
        for k, rows in enumerate(up):
            if arrivals is None:
                return None
            mask = self._mask(above[k], rows)
            if mask is not None:
                arrivals = arrivals.masked(mask)
            arrivals = pull_to(self._network, sites[k], arrivals, sites[k + 1])
        return arrivals

    def _push(self, below: list[Stop], down: tuple[range, ...]) -> Pushed | None:
        lower: Pushed | None = None
        for stop, rows in reversed(list(zip(below, down, strict=True))):
            mask = self._mask(stop, rows)
            value = self._network.tape.nodes[stop.site.node].value
            if mask is None:
                mask = torch.ones((1, *(1,) * len(stop.frame.shape)), dtype=torch.bool, device=value.device)
            wide = mask.to(value.dtype).expand(mask.shape[0], *stop.frame.shape)
            lower = Pushed(self._network, stop.site, wide, lower)
        return lower

    @staticmethod
    def _mask(stop: Stop, rows: range) -> Tensor | None:
        return stop.block_masks(rows) if stop.blocks else stop.mask()

    # ---- memory ----------------------------------------------------------------------------------------------

    def _check_size(self, stops: list[Stop]) -> None:
        like = self._network.tape.nodes[self._network.tape.output].value
        need = math.prod(s.count for s in stops) * stops[0].frame.batch * like.element_size()
        if need > self._memory:
            raise MemoryLimitError(
                "the table is larger than the memory bound", got=f"{need / 2**30:.2f} GiB",
                expected=f"at most {self._memory / 2**30:.2f} GiB",
                hint="ask for fewer blocks (a.channels[[3, 7]]), coarser groups, or raise memory= in nrm.measure",
            )  # fmt: skip

    def _chunks(
        self, above: list[Stop], below: list[Stop], stops: list[Stop]
    ) -> Iterator[tuple[tuple[range, ...], tuple[range, ...]]]:
        """The outer blocks in chunks whose messages fit into the memory bound."""
        outer_stops = [*above, *below]
        widest = self._widest(stops)
        like = self._network.tape.nodes[self._network.tape.output].value
        fits = max(1, int(self._memory // (6 * widest * like.element_size())))
        lengths = []
        for stop in reversed(outer_stops):
            lengths.append(min(stop.count, fits))
            fits = max(1, fits // lengths[-1])
        lengths.reverse()

        def products(k: int) -> Iterator[tuple[range, ...]]:
            if k == len(outer_stops):
                yield ()
                return
            for begin in range(0, outer_stops[k].count, lengths[k]):
                here = range(begin, min(begin + lengths[k], outer_stops[k].count))
                for rest in products(k + 1):
                    yield (here, *rest)

        for ranges in products(0):
            yield ranges[: len(above)], ranges[len(above) :]

    def _widest(self, stops: list[Stop]) -> int:
        """The largest tensor that messages of this question pass."""
        nodes = self._network.tape.nodes
        low, high = min(s.site.node for s in stops), max(s.site.node for s in stops)
        route = between(self._network, low, high) | {s.site.node for s in stops}
        return max(nodes[i].value.numel() for i in route)


def _axes_of(stop: Stop) -> list[int]:
    return [n for b in stop.blocks for n in b.shape]


def stops_for(arguments: Sequence[Any], resolve: Callable[[Layer], tuple[Site, Frame]]) -> list[Stop]:
    """The arguments of a question gathered by site: sets intersect, partitions become axes in their order."""
    stops: dict[Site, Stop] = {}
    for position, argument in enumerate(arguments):
        if isinstance(argument, Layer):
            layer, partition, chosen = argument, Partition(argument), None
        elif isinstance(argument, Partition):
            layer, partition, chosen = argument.layer, argument, None
        elif isinstance(argument, Set):
            layer, partition, chosen = argument.layer, None, argument
        else:
            raise QuestionError(
                "not something that can be asked about", got=f"{type(argument).__name__}: {argument!r}"[:120],
                expected="a layer R['name'], a set (.channel(3), [...], .where(mask)) or a partition (.channels)",
            )  # fmt: skip
        site, frame = resolve(layer)
        stop = stops.setdefault(site, Stop(site, frame))
        if chosen is not None:
            stop.sets.append(chosen)
        else:
            assert partition is not None
            stop.blocks.append(Blocks.of(frame, partition))
            stop.axes.append(position)
    return list(stops.values())
