"""The interaction graph: every block of some layers with every block of others, by one masked sweep per block."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from torch import Tensor

from nrm.questions.answer import Answerer
from nrm.questions.stops import Stop


def interaction_graph(answerer: Answerer, rows: Sequence[Stop], columns: Sequence[Stop]) -> Tensor:
    """``(batch, blocks of the rows, blocks of the columns)``; every stop has one partition.

    A block is carried down once, and all lower layers are read on the way.
    """
    places = [list(itertools.accumulate((stop.count for stop in side), initial=0)) for side in (rows, columns)]
    shape = (rows[0].frame.batch, places[0][-1], places[1][-1])
    answerer.guard(shape[0] * shape[1] * shape[2] * answerer.like.element_size())
    graph = answerer.like.new_zeros(shape)
    for up, down, table in ((rows, columns, graph), (columns, rows, graph.transpose(1, 2))):
        starts, ends = places if up is rows else reversed(places)
        for n, stop in enumerate(up):
            for at, row, part in _below(answerer, stop, down):
                table[:, [starts[n] + r for r in row], ends[at] : ends[at + 1]] = part
    for n, m in itertools.product(range(len(rows)), range(len(columns))):
        if rows[n].site == columns[m].site:
            both = _crossed(answerer, rows[n], columns[m])
            if both is not None:
                graph[:, places[0][n] : places[0][n + 1], places[1][m] : places[1][m + 1]] = both
    return graph


def _below(answerer: Answerer, upper: Stop, stops: Sequence[Stop]) -> Iterator[tuple[int, list[int], Tensor]]:
    """The place of a lower stop, some blocks of the upper one, and the table of both: ``(batch, rows, blocks)``."""
    lower = [n for n, stop in enumerate(stops) if stop.site.order < upper.site.order]
    if not lower:
        return
    for rows, site, arrivals in answerer.carry_down(upper, [stops[n] for n in lower]):
        for n in lower:
            table = answerer.read(stops[n], arrivals) if stops[n].site == site else None
            if table is not None:
                yield n, rows, table.reshape(*table.shape[:2], -1).transpose(0, 1)


def _crossed(answerer: Answerer, first: Stop, second: Stop) -> Tensor | None:
    """Two partitions of one layer: the relevance of every intersection of blocks."""
    both = Stop(first.site, first.frame, blocks=[*first.blocks, *second.blocks], axes=[0, 1])
    arrivals = answerer.arrivals_at(both)
    table = None if arrivals is None else answerer.read(both, arrivals)
    return None if table is None else table[0].reshape(-1, first.count, second.count)
