"""Direct edges: what every writer of a residual stream hands to every reader, by skips alone."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nrm.capture import ResidualStream, find_stream, plain_execution
from nrm.errors import QuestionError
from nrm.largest import largest
from nrm.measure.inner import Inner
from nrm.questions import (
    Base,
    DirectRoute,
    Line,
    Plan,
    Site,
    StreamEnd,
    find_readers,
    find_writers,
    route_flops,
)
from nrm.steps import Network
from nrm.tables import SAMPLE, Results, Tabled

Ends = str | StreamEnd | Sequence[str | StreamEnd] | None
"""Some writers or readers: names with ``*`` and ``?``, or the ends of another table; None is all of them."""


@dataclass(frozen=True, eq=False)
class DirectEdges(Tabled):
    """The relevance of every direct edge of a residual stream, ``(batch, writers, readers)``.

    An edge has the walks that leave a writer (what the stream begins with, an attention head, another branch, a bias)
    and enter a reader (the queries, keys or values of a head, another branch, the output) with nothing but skips in
    between. Those into one reader add up to what it takes from the stream, those into ``output`` to 1 where everything
    passes the stream. With positions kept there is a last axis: the position of the stream at which an edge lies.
    """

    relevance: Tensor
    writers: tuple[StreamEnd, ...]
    readers: tuple[StreamEnd, ...]
    value: Tensor
    """The explained output of each sample; of a difference of two measures, that of their outputs."""
    units: Tensor | None = None
    """The table in units of the output, where that is not the relevance times the explained output."""

    def __len__(self) -> int:
        """How many edges there are: pairs whose writer lies below its reader."""
        return sum(w.crossing <= r.crossing for w in self.writers for r in self.readers)

    def in_units(self) -> Tensor:
        """The table in units of the output: every share times the explained output of its sample.

        Of a difference of two measures it is the difference of both tables in these units.
        """
        if self.units is not None:
            return self.units
        return self.relevance * self.value.view(-1, *(1,) * (self.relevance.ndim - 1))

    def top(self, k: int = 10, sample: int = 0) -> list[tuple[StreamEnd, StreamEnd, float]]:
        """The k edges of a sample with the largest absolute relevance, positions summed: writer, reader, relevance."""
        table = self.relevance[sample]
        table = table.sum(2) if table.ndim > 2 else table
        columns = len(self.readers)
        found = largest(table.abs().flatten(), k).tolist()
        return [(self.writers[i // columns], self.readers[i % columns], float(table.flatten()[i])) for i in found]

    def table(self) -> Results:
        """The table with its axes and the names of writers and readers."""
        axes = (SAMPLE, "writer", "reader", *(("position",) if self.relevance.ndim > 3 else ()))
        names = {"writer": tuple(map(str, self.writers)), "reader": tuple(map(str, self.readers))}
        return Results({"relevance": self.relevance}, {"relevance": axes}, labels=names)

    def __repr__(self) -> str:
        lines = [f"{len(self.writers)} writers, {len(self.readers)} readers, {len(self)} direct edges"]
        for sample in range(min(len(self.relevance), 2)):
            lines.append(f"largest of sample {sample}")
            lines += [f"  {share:8.4f}  {writer} -> {reader}" for writer, reader, share in self.top(8, sample)]
        return "\n".join(lines)


def direct_edges(inner: Inner, writers: Ends, readers: Ends, positions: bool) -> DirectEdges:
    """The direct edges of a measure."""
    inner.origin.check_fresh()
    with plain_execution():
        stream = _stream_of(inner)
        inner.be_loud()
        write, read = _ends(inner, stream, inner.base, writers, readers, positions)
        table = DirectRoute(inner.network, inner.base, stream).table(write, read, positions)
    return DirectEdges(inner.mine(table), tuple(write), tuple(read), inner.mine(inner.target.value).clone())


def plan_direct(inner: Inner, writers: Ends, readers: Ends, positions: bool) -> Plan:
    """How direct edges would be found, and what they would cost.

    Who writes and who reads is known after the base sweep, which all questions share; before it there is no plan.
    """
    base, network = inner.kept.known, inner.network
    stream = _stream_of(inner)
    if base is None:
        raise QuestionError(
            "direct edges have a plan after the base sweep, which shows who receives relevance",
            got="a measure that has not been asked yet", expected="a measure with an answer",
            hint="R(R.input), or any other question: what it computes is kept",
        )  # fmt: skip
    write, read = _ends(inner, stream, base, writers, readers, positions)
    like = inner.tape.nodes[stream.crossings[write[0].crossing]]
    channels = 1 if like.channel is None else like.shape[like.channel]
    places = like.shape.numel() // inner.tape.batch // channels
    pairs = sum(w.crossing <= r.crossing for w in write for r in read)
    at = stream.crossings
    lines = (
        _travel(network, "pull readers to the stream", [(at[r.crossing], r.site.node) for r in read]),
        _travel(network, "push writers to the stream", [(w.site.node, at[w.crossing]) for w in write]),
        Line("products of writers and readers", pairs, 2.0 * pairs * like.shape.numel()),
    )
    sizes: tuple[tuple[str, int], ...] = ("sample", inner.tape.batch), ("writer", len(write)), ("reader", len(read))
    sizes = (*sizes, ("position", places)) if positions else sizes
    axes, shape = tuple(name for name, _ in sizes), tuple(n for _, n in sizes)
    how = "readers are carried to the stream once, and meet all writers below"
    return Plan(how, lines, shape, axes, network.tape.forward, like.value.element_size(), True)


def _travel(network: Network, what: str, ways: Sequence[tuple[int, int]]) -> Line:
    """What carrying messages between the ends of these ways costs, each from its lower to its upper node."""
    each = {way: route_flops(network, *map(Site, way)) for way in set(ways)}
    return Line(what, len(ways), sum(each[way] for way in ways))


def _stream_of(inner: Inner) -> ResidualStream:
    stream = find_stream(inner.tape)
    if stream is None:
        raise QuestionError(
            "there is no residual stream", got="a network in which no branch is added to what it read",
            expected="a transformer, or a network of residual blocks",
            hint="R(a.channels, b.channels) asks for pairs",
        )  # fmt: skip
    return stream


def _ends(
    inner: Inner, stream: ResidualStream, base: Base, writers: Ends, readers: Ends, positions: bool
) -> tuple[list[StreamEnd], list[StreamEnd]]:  # fmt: skip
    """The writers and readers that are asked for."""
    write = _chosen(find_writers(inner.network, stream, base), writers, "writer")
    read = _chosen(find_readers(inner.network, stream, base), readers, "reader")
    if positions:
        _refuse_positions(inner, stream, write)
    return write, read


def edges_apart(first: DirectEdges, second: DirectEdges) -> DirectEdges:
    """The difference of the edges of two measures."""
    for what, mine, other in (("writers", first.writers, second.writers), ("readers", first.readers, second.readers)):
        names, others = list(map(str, mine)), list(map(str, other))
        if names != others:
            alone = sorted(set(names) ^ set(others)) or names
            raise QuestionError(
                f"the two measures have other {what}", got=f"{alone[0]!r} in one of them only",
                expected="one stream with the same ends in both", hint=f"D.direct({what}=...) chooses those of both",
            )  # fmt: skip
    return replace(
        first, relevance=first.relevance - second.relevance, value=first.value - second.value,
        units=first.in_units() - second.in_units(),
    )  # fmt: skip


def averaged_edges(tables: Sequence[DirectEdges]) -> DirectEdges:
    """The mean of the edges of several contrasts in units of the output, as shares of the mean difference."""
    first = tables[0]
    value = torch.stack([table.value for table in tables]).mean(0)
    units = torch.stack([table.in_units() for table in tables]).mean(0)
    return replace(first, relevance=units / value.view(-1, *(1,) * (units.ndim - 1)), value=value)


def _chosen(ends: list[StreamEnd], wanted: Ends, what: str) -> list[StreamEnd]:
    """The ends that are asked for, in the order of the stream."""
    if wanted is None:
        return ends
    patterns = [str(p) for p in ([wanted] if isinstance(wanted, str | StreamEnd) else wanted)]
    chosen = set[int]()
    for pattern in patterns:
        found = {n for n, end in enumerate(ends) if fnmatch.fnmatchcase(str(end), pattern)}
        if not found:
            some = ", ".join(repr(str(end)) for end in [*ends[:3], ends[-1]])
            raise QuestionError(
                f"no {what} of the stream has this name", got=repr(pattern), expected=f"such as {some}",
                hint="R.direct() has all of them; * and ? stand for letters",
            )  # fmt: skip
        chosen |= found
    return [end for n, end in enumerate(ends) if n in chosen]


def _refuse_positions(inner: Inner, stream: ResidualStream, writers: Sequence[StreamEnd]) -> None:
    """Refuses positions where the stream changes them on the way."""
    nodes = [inner.tape.nodes[stream.crossings[writer.crossing]] for writer in writers]
    shapes = {tuple(n for a, n in enumerate(node.shape) if a not in (node.sample, node.channel)) for node in nodes}
    if len(shapes) > 1 or any(node.sample is None and inner.tape.batch > 1 for node in nodes):
        raise QuestionError(
            "the positions of the stream are not the same everywhere", got=", ".join(map(str, sorted(shapes))),
            expected="writers between which positions stay as they are", hint="positions=False, or fewer writers",
        )  # fmt: skip
