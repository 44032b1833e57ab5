"""A residual network run again from its tape, in which every reader of the stream has an input of its own.

The input of a reader is the stream as it is outside the circuit, plus what those writers have changed that it has an
edge to. Where the stream is a sum, these changes are computed once and added up for every reader; where something lies
on the stream itself (a norm after the sum, a ReLU, a convolution in the skip), it is run for every reader by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from nrm.capture import Combine, Node, ResidualStream, StreamBranch, StreamSegment, Tape, reads, replay
from nrm.errors import QuestionError
from nrm.measure import Inner
from nrm.questions import EMBEDDING, Frame, Site, StreamEnd, frame_at, masks_of

Compute = Callable[[Node, Mapping[int, Tensor]], Tensor]
"""The value of a node from stacks ``(K or 1, *shape)`` of those it reads, as :func:`nrm.capture.replay` gives it."""

Needs = Callable[[Node], Sequence[int]]
"""The nodes that a node is computed from."""

Spot = int | tuple[int, int]
"""A tensor, or its copy on the way to one consumer."""


class TapeRun:
    """Parts of a captured network, computed again for stacks ``(K or 1, *shape)`` of values.

    What does not depend on what is given has the value that was captured. A ``compute`` that reads other nodes than
    the call did says which by ``needs``.
    """

    def __init__(self, tape: Tape, compute: Compute = replay, needs: Needs = reads) -> None:
        self.tape, self._compute, self._needs = tape, compute, needs
        self._orders: dict[object, list[tuple[int, list[int]]]] = {}

    def __call__(self, given: Mapping[Spot, Tensor], ends: Sequence[int]) -> list[Tensor]:
        """The values of some tensors, if others, or their copies for one consumer, are as given."""
        known, nodes = dict(given), self.tape.nodes
        for i, last in self._order(tuple(given), tuple(ends)):
            node = nodes[i]
            below = {j: self._read(known, self._spot(given, j, node)) for j in self._needs(node)}
            known[i] = self._compute(node, below)
            for j in last:
                known.pop(j, None)
        return [self._read(known, i) for i in ends]

    def depends(self, given: Iterable[Spot], end: int, on: int) -> bool:
        """Whether a tensor depends on another one by a way that passes nothing that is given."""
        given, open_nodes, seen = set(given), [end], set[int]()
        while open_nodes:
            node = self.tape.nodes[open_nodes.pop()]
            for j in self._needs(node):
                if j == on:
                    return True
                if j > on and j not in seen and self._spot(given, j, node) not in given:
                    seen.add(j)
                    open_nodes.append(j)
        return False

    def _read(self, known: Mapping[Spot, Tensor], spot: Spot) -> Tensor:
        if spot in known:
            return known[spot]
        return self.tape.nodes[spot if isinstance(spot, int) else spot[0]].value[None]

    @staticmethod
    def _spot(given: Iterable[Spot], j: int, node: Node) -> Spot:
        """What a node reads of another: the copy that is given for it, or for a half of the product that it is."""
        assert isinstance(given, Mapping | set)
        return next((spot for h in (node.index, *node.inputs) if (spot := (j, h)) in given), j)

    def _order(self, given: tuple[Spot, ...], ends: tuple[int, ...]) -> list[tuple[int, list[int]]]:
        """The nodes to be computed, each with those that nobody reads after it."""
        key = given, ends
        if key not in self._orders:
            self._orders[key] = self._ordered(set(given), ends)
        return self._orders[key]

    def _ordered(self, given: set[Spot], ends: tuple[int, ...]) -> list[tuple[int, list[int]]]:
        begin = min(spot if isinstance(spot, int) else spot[0] for spot in given)
        touched = set[int]()
        for node in self.tape.nodes[begin + 1 : max(ends) + 1]:
            if node.index not in given and any(
                j in touched or self._spot(given, j, node) in given for j in self._needs(node)
            ):
                touched.add(node.index)
        needed, order, later = set(ends) & touched, list[tuple[int, list[int]]](), set(ends)
        for i in sorted(touched, reverse=True):
            if i in needed:
                below = [j for j in self._needs(self.tape.nodes[i]) if j in touched]
                needed.update(below)
                order.append((i, [j for j in below if j not in later]))
                later.update(below)
        return order[::-1]


class BranchReads(NamedTuple):
    """The readers of a branch, by number: of its queries, keys and values, or of all it reads under no name."""

    places: dict[str, list[int]]

    @property
    def all(self) -> list[int]:
        """The numbers of all of them."""
        return [place for some in self.places.values() for place in some]


@dataclass(frozen=True)
class Outside:
    """What the network is like outside a circuit: the tape that it is run on, and values of its tensors.

    ``values`` are those of the first crossing and of what branches add, or of their heads; where there are none, the
    tape has them, and the run outside is its own.
    """

    tape: Tape
    values: Mapping[int, Tensor] | None = None

    def value(self, i: int) -> Tensor:
        """The value of a tensor, ``(1, *shape)``."""
        return self.tape.nodes[i].value[None] if self.values is None else self.values[i]


class Changes:
    """What writers have changed for every circuit of a stack since the stream was a tensor, as rows to be added up."""

    def __init__(self, circuits: int, writers: int, frame: Frame, like: Tensor) -> None:
        self._order = _axes(frame)
        self._shape = [like.shape[a] for a in self._order]
        self._rows = like.new_empty(circuits, writers, like.numel())
        self.writers: list[int] = []

    def put(self, writers: Sequence[int], rows: Tensor) -> None:
        """The changes of some writers, ``(circuits or 1, writers, *shape)``."""
        begin = len(self.writers)
        laid = rows.permute(0, 1, *(a + 2 for a in self._order)).flatten(2)
        self._rows[:, begin : begin + len(writers)] = laid
        self.writers += writers

    def added(self, weights: Tensor) -> Tensor | None:
        """Their sum for some readers, ``(circuits, readers, *shape)``; None where nothing has changed.

        ``weights`` are ``(circuits, all writers, readers)``, or with positions as a last axis.
        """
        if not self.writers:
            return None
        rows, chosen = self._rows[:, : len(self.writers)], weights[:, self.writers].to(self._rows)
        if chosen.ndim == 3:
            total = chosen.transpose(1, 2) @ rows
        else:
            batch, *places, channels = self._shape
            cut = rows.view(*rows.shape[:2], batch, math.prod(places), channels)
            total = torch.einsum("kwrp,kwbpc->krbpc", chosen, cut)
        laid = total.view(*total.shape[:2], *self._shape)
        back = sorted(range(len(self._order)), key=self._order.__getitem__)
        return laid.permute(0, 1, *(a + 2 for a in back))


def _axes(frame: Frame) -> list[int]:
    """The axes of a tensor with samples first and channels last, where it has both; in their own order otherwise."""
    axes = list(range(len(frame.shape)))
    if frame.sample is None or frame.channel is None:
        return axes
    return [frame.sample, *(a for a in axes if a not in (frame.sample, frame.channel)), frame.channel]


class CircuitRun:
    """The network with everything outside a circuit as it is outside: in a reference, zero, or what is given."""

    def __init__(
        self, inner: Inner, stream: ResidualStream, writers: Sequence[StreamEnd], readers: Sequence[StreamEnd],
        outside: Outside,
    ) -> None:  # fmt: skip
        self._inner, self._stream, self._outside = inner, stream, outside
        self._writers, self._readers = list(writers), list(readers)
        self._rerun = TapeRun(outside.tape)
        self._here = inner.tape.here
        self._frames = [frame_at(inner.network, Site(i)) for i in stream.crossings]

    @property
    def nbytes(self) -> int:
        """About how many bytes the run of one circuit takes."""
        widest = max(math.prod(frame.shape) for frame in self._frames)
        rows = len(self._writers) + 4 * self._most_at_once()
        return widest * rows * self._here.nodes[self._stream.crossings[0]].value.element_size()

    def run(self, weights: Tensor) -> Tensor:
        """The network's output for every circuit, ``(circuits, *output shape)``.

        ``weights`` are those of the edges, ``(circuits, writers, readers)`` or with positions: 1 inside, 0 outside.
        """
        stream, first = self._stream, self._stream.crossings[0]
        begin = self._outside.value(first)
        changes = Changes(len(weights), len(self._writers), self._frames[0], begin[0])
        lowest = [n for n, w in enumerate(self._writers) if w.kind == EMBEDDING]
        changes.put(lowest, (self._here.nodes[first].value[None] - begin)[None])
        at = StreamState(begin, None, changes)
        for k, segment in enumerate(stream.segments):
            terms = {b.term: self._branch(k, segment, b, at, weights) for b in segment.branches}
            terms |= {i: self._source(i, len(weights)) for i in segment.sources}
            at = self._pass(k, segment, at, terms, weights)
        last = [len(self._readers) - 1]
        (output,) = self._rerun({stream.crossings[-1]: at.read(last, weights).flatten(0, 1)}, [self._here.output])
        return output

    def _most_at_once(self) -> int:
        """The largest number of readers whose inputs are there at the same time."""
        if all(self._adds_up(segment) for segment in self._stream.segments):
            crossings = [reader.crossing for reader in self._readers]
            return max(crossings.count(k) for k in set(crossings))
        return len(self._readers)

    # ---- along the stream ------------------------------------------------------------------------------------

    def _pass(
        self, k: int, segment: StreamSegment, at: StreamState, terms: dict[int, TermChange], weights: Tensor
    ) -> StreamState:  # fmt: skip
        """From one crossing to the next one."""
        base = {term: change.outside for term, change in terms.items()}
        if self._adds_up(segment):
            shape = self._here.nodes[segment.high].shape
            for change in terms.values():
                at.changes.put(change.writers, change.rows.expand(*change.rows.shape[:2], *shape))
            return StreamState(self._base(segment, at, base), at.live, at.changes)
        live = [n for n, reader in enumerate(self._readers) if reader.crossing > k]
        low = at.read(live, weights).flatten(0, 1)
        given: dict[Spot, Tensor] = {segment.low: low}
        for term, change in terms.items():
            given[term] = change.added(weights[:, :, live]).flatten(0, 1)
        (high,) = self._rerun(given, [segment.high])
        return StreamState(high, live, Changes(len(weights), len(self._writers), self._frames[k + 1], high[0]))

    def _adds_up(self, segment: StreamSegment) -> bool:
        """Whether changes below and those of the branches are just added there."""
        return is_sum(segment) and is_plain_sum(self._here, segment)

    def _base(self, segment: StreamSegment, at: StreamState, terms: Mapping[int, Tensor]) -> Tensor:
        """What is on the stream but for changes, at the upper end."""
        if self._outside.values is None and at.live is None:
            return self._outside.value(segment.high)
        given: dict[Spot, Tensor] = {segment.low: at.base}
        for term, value in terms.items():
            given[term] = value
        return self._rerun(given, [segment.high])[0]

    # ---- branches --------------------------------------------------------------------------------------------

    def _source(self, i: int, circuits: int) -> TermChange:
        """A term that does not come from the stream."""
        here, outside = self._here.nodes[i].value[None], self._outside.tape.nodes[i].value[None]
        writers = [n for n, w in enumerate(self._writers) if w.site == Site(i)]
        rows = (here - outside)[None].expand(circuits, len(writers), *here.shape[1:])
        return TermChange(writers, rows, outside)

    def _branch(
        self, k: int, segment: StreamSegment, branch: StreamBranch, at: StreamState, weights: Tensor
    ) -> TermChange:
        """What the writers of a branch change, by what its readers have read."""
        top = branch.term if branch.heads is None else branch.heads
        outside = self._outside.value(top)
        writers = [n for n, w in enumerate(self._writers) if w.site == Site(top)]
        known = self._reads(k, branch)
        if not known.all:  # nothing that it says is explained
            value = outside
        elif branch.reads:
            value = self._attended(segment, branch, known, at, weights)
        else:
            low = at.read(known.all, weights).flatten(0, 1)
            (value,) = self._rerun({segment.low: low}, [top])
        change = (value - outside)[:, None]
        if branch.heads is None:
            return TermChange(writers, change, outside)
        masks = masks_of(self._inner.network, [self._writers[n] for n in writers])
        moved = projected(self._rerun, branch, (change * masks).flatten(0, 1))
        (term,) = self._rerun({top: outside}, [branch.term])
        return TermChange(writers, moved.view(-1, len(writers), *moved.shape[1:]), term)

    def _reads(self, k: int, branch: StreamBranch) -> BranchReads:
        sites = {word: Site(read.tensor, read.reader) for word, read in branch.reads.items()} or {"": Site(branch.term)}
        return BranchReads(
            {
                word: [n for n, r in enumerate(self._readers) if r.crossing == k and r.site == site]
                for word, site in sites.items()
            }
        )

    def _attended(
        self, segment: StreamSegment, branch: StreamBranch, known: BranchReads, at: StreamState, weights: Tensor
    ) -> Tensor:  # fmt: skip
        """The heads of attention whose queries, keys and values have read the stream, each for itself."""
        assert branch.heads is not None
        given: dict[Spot, Tensor] = {}
        for word, places in known.places.items():
            read = branch.reads[word]
            rows = at.read(places, weights) if places else at.base[:, None]
            (found,) = self._rerun({segment.low: rows.flatten(0, 1)}, [read.tensor])
            if places:
                masks = masks_of(self._inner.network, [self._readers[n] for n in places])
                found = (found.view(-1, len(places), *found.shape[1:]) * masks).sum(1)
            given[read.tensor, read.reader] = found
        if self._rerun.depends(given, branch.heads, segment.low):
            every = weights[:, :, known.all].amax(2, keepdim=True)  # what is read beside them has an edge if one has
            given[segment.low] = at.mixed(every, known.all[:1]).flatten(0, 1)
        return self._rerun(given, [branch.heads])[0]


# ---- linear steps on the way to the stream ---------------------------------------------------------------------------


def is_sum(segment: StreamSegment) -> bool:
    """Whether nothing but sums lies on the stream there."""
    return segment.route <= {segment.low, *segment.sums}


def is_plain_sum(tape: Tape, segment: StreamSegment) -> bool:
    """Whether all terms of the sums on the stream are added as they are."""
    sums = [tape.nodes[i].op for i in segment.sums]
    return all(isinstance(op, Combine) and all(t.is_plain and t.move is None for t in op.terms) for op in sums)


def through_sums(rerun: TapeRun, segment: StreamSegment, term: int, rows: Tensor) -> Tensor:
    """Changes ``(K, W, *shape)`` of a term as changes of the sum: equal, unless terms are scaled or moved there."""
    nodes = rerun.tape.nodes
    if is_plain_sum(rerun.tape, segment):
        return rows.expand(*rows.shape[:2], *nodes[segment.high].shape)
    ends = {i for s in segment.sums for i in nodes[s].inputs if i not in segment.sums}
    blank: dict[Spot, Tensor] = {i: torch.zeros_like(nodes[i].value)[None] for i in ends}
    (shift,) = rerun(blank, [segment.high])
    (moved,) = rerun({**blank, term: rows.flatten(0, 1)}, [segment.high])
    return (moved - shift).view(*rows.shape[:2], *moved.shape[1:])


def projected(rerun: TapeRun, branch: StreamBranch, rows: Tensor) -> Tensor:
    """What changes ``(K, *shape)`` of attention heads change in the term that they are projected to."""
    assert branch.heads is not None
    # the projection of heads is linear but for its bias, which is there with and without a change
    (blank,) = rerun({branch.heads: torch.zeros_like(rows[:1])}, [branch.term])
    (moved,) = rerun({branch.heads: rows}, [branch.term])
    return moved - blank


@dataclass(frozen=True)
class TermChange:
    """A term of a sum on the stream: its value outside, and what writers change of it, ``(K, writers, *shape)``."""

    writers: list[int]
    rows: Tensor
    outside: Tensor

    def added(self, weights: Tensor) -> Tensor:
        """Its value for readers with these edges to all writers, ``(K, readers, *shape)``."""
        chosen = weights[:, self.writers].to(self.rows)
        if chosen.ndim > 3:
            raise QuestionError(
                "positions of a stream that changes on its way", got="a circuit with positions",
                expected="a circuit without positions, or a stream on which there is nothing but sums",
            )  # fmt: skip
        total = torch.einsum("kwr,kw...->kr...", chosen, self.rows.expand(len(chosen), *self.rows.shape[1:]))
        return self.outside[:, None] + total


@dataclass(frozen=True)
class StreamState:
    """The stream at a crossing: ``base`` for all readers, or ``(K * live, *shape)``, and changes that are added."""

    base: Tensor
    live: list[int] | None
    changes: Changes

    def read(self, places: Sequence[int], weights: Tensor) -> Tensor:
        """What some readers read, ``(K, readers, *shape)``."""
        return self.mixed(weights[:, :, places], places)

    def mixed(self, weights: Tensor, places: Sequence[int]) -> Tensor:
        """What is read by edges with these weights, on the stream of some readers."""
        if self.live is None:
            base = self.base[:, None]
        else:
            rows = self.base.view(-1, len(self.live), *self.base.shape[1:])
            base = rows[:, [self.live.index(p) for p in places]]
        added = self.changes.added(weights)
        if added is None:
            return base.expand(len(weights), weights.shape[2], *base.shape[2:])
        return base + added


__all__ = [
    "CircuitRun",
    "Compute",
    "Needs",
    "Outside",
    "Spot",
    "TapeRun",
    "is_plain_sum",
    "is_sum",
    "projected",
    "through_sums",
]
