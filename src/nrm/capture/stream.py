"""The residual stream of a run: the tensors that every walk passes, and the branches that read them and add to them.

A tensor is a **crossing** if every way from the input to the output passes through it. Between two neighbouring
crossings lies a *segment*. Where the upper one is a sum, and one of its terms comes from the lower one with fewer
weights than all others, that term is the skip, and the others are **branches**: they read the stream and write to it.
Everything else (a norm after the sum, a ReLU, a convolution in the skip) lies on the stream itself. Nothing is told by
names of modules, so that transformers and residual convolutional networks are found alike.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field

from nrm.capture.heads import ReadBy, attention_reads, attention_step
from nrm.capture.ops import Combine, Linear
from nrm.capture.tape import Node, Tape


@dataclass(frozen=True)
class StreamBranch:
    """A term that is added to the stream: its tensor, and the tensors between the stream and it.

    ``heads`` is the tensor of attention heads that it projects, if it is one; ``reads`` are the queries, keys and
    values of its attention, where all three are known. ``alone`` says that no other branch shares its tensors.
    """

    term: int
    region: frozenset[int]
    heads: int | None = None
    reads: dict[str, ReadBy] = field(default_factory=dict)
    alone: bool = True


@dataclass(frozen=True)
class StreamSegment:
    """The way between two neighbouring crossings.

    ``route`` are the tensors of the skip, and the ``sums`` in which it meets branches.
    """

    low: int
    high: int
    route: frozenset[int]
    sums: frozenset[int] = frozenset()
    branches: tuple[StreamBranch, ...] = ()
    sources: tuple[int, ...] = ()
    """Terms that do not come from the stream, such as a learned vector that is added to it."""


@dataclass(frozen=True)
class ResidualStream:
    """The segments of a stream, from the first block that adds to it to the last; there is at least one."""

    segments: tuple[StreamSegment, ...]

    @property
    def crossings(self) -> list[int]:
        """The tensors that every walk passes, from the bottom up."""
        return [self.segments[0].low, *(segment.high for segment in self.segments)]


def find_stream(tape: Tape) -> ResidualStream | None:
    """The residual stream of a run: of the input that most branches lie above; None if there is no branch at all."""
    tape = tape.here
    found = [stream for i in tape.inputs if (stream := _stream_from(tape, i)) is not None]
    return max(found, key=lambda stream: sum(len(s.branches) for s in stream.segments), default=None)


def _stream_from(tape: Tape, bottom: int) -> ResidualStream | None:
    crossings = _crossings(tape, bottom)
    segments = [_segment(tape, low, high) for low, high in itertools.pairwise(crossings)]
    residual = [k for k, segment in enumerate(segments) if segment.branches]
    return ResidualStream(tuple(segments[residual[0] : residual[-1] + 1])) if residual else None


def _crossings(tape: Tape, bottom: int) -> list[int]:
    """The tensors that every way from a tensor to the output passes, in their order."""
    on = sorted(_between(tape, bottom, tape.output))
    found, farthest, known = [], bottom, set(on)
    for i in on:
        if farthest <= i:  # nothing below is read by anything above
            found.append(i)
        farthest = max([farthest, *(c for c in tape.consumers[i] if c in known)])
    return found


def _between(tape: Tape, low: int, high: int) -> frozenset[int]:
    """The tensors on ways from one tensor to another one, both included; none if there is no way."""
    above = {low}
    for node in tape.nodes[low + 1 : high + 1]:
        if any(j in above for j in node.inputs):
            above.add(node.index)
    below = {high}
    for i in range(high, low, -1):
        if i in below:
            below.update(tape.nodes[i].inputs)
    return frozenset(above & below) if high in above else frozenset()


def _segment(tape: Tape, low: int, high: int) -> StreamSegment:
    terms = _terms(tape, tape.nodes[high], low)
    ways = {t: _between(tape, low, t) for t in terms}
    reaching = sorted((t for t in terms if ways[t]), key=lambda t: _weights(tape, ways[t] - {low}))
    sizes = [_weights(tape, ways[t] - {low}) for t in reaching]
    if len(reaching) < 2 or sizes[0] == sizes[1] or len(set(terms)) < len(terms):
        return StreamSegment(low, high, _between(tape, low, high))
    skip, *others = reaching
    branches = [_branch(tape, t, ways[t] - {low}, [ways[o] for o in others if o != t], low) for t in others]
    constant = tuple(t for t in terms if not ways[t])
    sums = frozenset(_sums(tape, tape.nodes[high], low))
    return StreamSegment(low, high, ways[skip] | sums, sums, tuple(branches), constant)


def _sums(tape: Tape, node: Node, low: int) -> list[int]:
    """A sum, and the sums among its terms that nothing else reads; none if it is no sum."""
    if not isinstance(node.op, Combine) or not node.op.joins or node.op.kind != "add" or len(node.inputs) < 2:
        return []
    inner = [i for i in node.inputs if i != low and len(tape.consumers[i]) == 1]
    return [node.index, *(found for i in inner for found in _sums(tape, tape.nodes[i], low))]


def _terms(tape: Tape, node: Node, low: int) -> list[int]:
    """The terms of a sum, with those of the sums inside it."""
    sums = _sums(tape, node, low)
    return [i for s in sums for i in tape.nodes[s].inputs if i not in sums]


def _weights(tape: Tape, region: Iterable[int]) -> int:
    """How many steps with weights there are in a region: what a skip has fewest of."""
    return sum(isinstance(tape.nodes[i].op, Linear) and tape.nodes[i].op.kind != "pool" for i in region)


def _branch(tape: Tape, term: int, region: frozenset[int], others: list[frozenset[int]], low: int) -> StreamBranch:
    heads = _projected_heads(tape, term, region)
    steps = [step for i in sorted(region) if (step := attention_step(tape, i)) is not None]
    reads = attention_reads(tape, steps[0]) if heads is not None and len(steps) == 1 else {}
    if len(reads) < 3:
        reads = {}
    reads = {name: _unrepeated(tape, read) for name, read in reads.items()}
    return StreamBranch(term, region, heads, reads, not any((other - {low}) & region for other in others))


def _projected_heads(tape: Tape, term: int, region: frozenset[int]) -> int | None:
    """The tensor of attention heads that a branch projects: below at most one layer with weights, all else moves."""
    node, weights = tape.nodes[term], 0
    while node.heads is None:
        weights += isinstance(node.op, Linear)
        inside = [i for i in node.inputs if i in region]
        if weights > 1 or len(inside) != 1 or not (isinstance(node.op, Linear) or node.op.is_local):
            return None
        node = tape.nodes[inside[0]]
    return node.index


def _unrepeated(tape: Tape, read: ReadBy) -> ReadBy:
    """Keys or values before they were repeated for groups of queries; as they are if they were not."""
    whole = tape.nodes[read.tensor].shape
    at, reader = tape.nodes[read.tensor], read.reader
    while isinstance(at.op, Combine) and len(at.inputs) == 1 and len(whole) > 3:
        reader, at = at.index, tape.nodes[at.inputs[0]]
        if len(at.shape) == len(whole) and at.shape[-2:] == whole[-2:] and at.shape[-3] < whole[-3]:
            return ReadBy(at.index, reader, read.turned)
    return read


__all__ = ["ResidualStream", "StreamBranch", "StreamSegment", "find_stream"]
