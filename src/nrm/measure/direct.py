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
from nrm.questions import DirectRoute, StreamEnd, find_readers, find_writers
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
    """The explained output of each sample."""

    def __len__(self) -> int:
        """How many edges there are: pairs whose writer lies below its reader."""
        return sum(w.crossing <= r.crossing for w in self.writers for r in self.readers)

    def in_units(self) -> Tensor:
        """The table in units of the output: every share times the explained output of its sample."""
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
        stream = find_stream(inner.tape)
        if stream is None:
            raise QuestionError(
                "there is no residual stream", got="a network in which no branch is added to what it read",
                expected="a transformer, or a network of residual blocks",
                hint="R(a.channels, b.channels) asks for pairs",
            )  # fmt: skip
        inner.be_loud()
        write = _chosen(find_writers(inner.network, stream, inner.base), writers, "writer")
        read = _chosen(find_readers(inner.network, stream, inner.base), readers, "reader")
        if positions:
            _refuse_positions(inner, stream, write)
        table = DirectRoute(inner.network, inner.base, stream).table(write, read, positions)
    return DirectEdges(inner.mine(table), tuple(write), tuple(read), inner.mine(inner.target.value).clone())


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
