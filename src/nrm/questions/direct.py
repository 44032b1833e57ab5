"""Direct edges of a residual stream: walks from what a writer adds to what a reader takes, by skips alone.

The density that a reader sends to the stream is carried down crossing by crossing, on the route of the skip, and no
other way. At every crossing it meets the amounts that writers put there: the relevance of the edge is the sum of their
products. Where sums are proportional the density arrives as it left, and all edges are one product for each reader.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nrm.capture import ResidualStream, StreamBranch
from nrm.questions.rise import Pushed
from nrm.questions.stops import frame_at
from nrm.questions.sweep import Base, Site, arrivals_at, drain_name, pull_to, sweep
from nrm.shapes import place_of
from nrm.steps import Arrivals, Network

EMBEDDING, HEAD, BRANCH, CONSTANT = "embedding", "head", "branch", "constant"
QUERY, KEY, VALUE, LOGITS = "q", "k", "v", "logits"


@dataclass(frozen=True)
class StreamEnd:
    """A writer or reader of a residual stream: where it is, what kind it is, and which head of how many.

    ``crossing`` is the crossing of the stream that it writes to or reads from, counted from the bottom.
    """

    name: str
    kind: str
    crossing: int
    site: Site
    head: int | None = None
    heads: tuple[int, int] | None = None
    """The axis of heads of its tensor, and their number."""

    def __str__(self) -> str:
        word = f".{self.kind}" if self.kind in (QUERY, KEY, VALUE) else ""
        return f"{self.name}{word}" if self.head is None else f"{self.name}{word}.head({self.head})"


# ---- who writes, who reads -------------------------------------------------------------------------------------------


def find_writers(network: Network, stream: ResidualStream, base: Base) -> list[StreamEnd]:
    """What adds to a stream, from the bottom up: what it begins with, attention heads, other branches, biases."""
    crossings = stream.crossings
    found = [StreamEnd(_name(network, crossings[0]), EMBEDDING, 0, Site(crossings[0]))]
    for k, segment in enumerate(stream.segments):
        for branch in segment.branches:
            found += _by_head(network, branch, k + 1)
        found += [StreamEnd(_name(network, i), CONSTANT, k + 1, Site(i)) for i in segment.sources]
        for i, port in sorted(base.drains):
            if i in segment.route and i != segment.low:
                label = drain_name(network.tape.nodes[i], port)
                found.append(StreamEnd(label, CONSTANT, k + 1, Site(i, port=port)))
    return found


def find_readers(network: Network, stream: ResidualStream, base: Base) -> list[StreamEnd]:
    """What takes from a stream and receives relevance: queries, keys, values of heads, other branches, the output."""
    found: list[StreamEnd] = []
    for k, segment in enumerate(stream.segments):
        for branch in segment.branches:
            name = _branch_name(network, branch)
            for word, read in branch.reads.items():
                node = network.tape.nodes[read.tensor]
                axis = len(node.shape) - 3
                site = Site(read.tensor, read.reader)
                if axis >= 0 and read.reader in base.arrivals:
                    count = node.shape[axis]
                    found += [StreamEnd(name, word, k, site, h, (axis, count)) for h in range(count)]
            if not branch.reads and branch.term in base.arrivals:
                found.append(StreamEnd(name, BRANCH, k, Site(branch.term)))
    top = stream.crossings[-1]
    return [*found, StreamEnd("output", LOGITS, len(stream.segments), Site(top))]


def _by_head(network: Network, branch: StreamBranch, crossing: int) -> list[StreamEnd]:
    name = _branch_name(network, branch)
    if branch.heads is None:
        return [StreamEnd(name, BRANCH, crossing, Site(branch.term))]
    heads = network.tape.nodes[branch.heads].heads
    assert heads is not None
    return [StreamEnd(name, HEAD, crossing, Site(branch.heads), h, heads) for h in range(heads[1])]


def _name(network: Network, i: int) -> str:
    """The shortest name of a tensor: a module that ends with it rather than its last layer."""
    names = [name for name, calls in network.tape.names.items() if calls == [i] and not name.startswith("input")]
    return min(names, key=len, default=network.tape.nodes[i].name)


def _branch_name(network: Network, branch: StreamBranch) -> str:
    """The name of a branch: of attention, the module that has both its heads and their projection."""
    if branch.heads is None:
        return _name(network, branch.term)
    paths = [network.tape.nodes[i].name.split("/")[0].split(".") for i in (branch.heads, branch.term)]
    common = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(*paths, strict=False))
    shared = ".".join(part for part, _ in common)
    return shared if shared in network.tape.names else _name(network, branch.term)


# ---- the table -------------------------------------------------------------------------------------------------------

TOGETHER = 32
"""So many writers wait for a product of their own: it reads the densities of all readers above, which are many."""


@dataclass(frozen=True, eq=False)
class Encounter:
    """Writers at one crossing and the densities that they meet there, of readers above: numbers of rows and columns."""

    at: int
    rows: Sequence[int]
    some: Sequence[int]
    arrivals: Arrivals
    amounts: dict[int, Tensor]

    @property
    def alone(self) -> Tensor | None:
        """The densities, if they and the amounts are at one node."""
        found = _only(self.arrivals)
        return found[1] if found is not None and found[1].is_contiguous() and set(self.amounts) == {found[0]} else None


class DirectRoute:
    """The relevance of every direct edge between some writers and some readers of a stream."""

    def __init__(self, network: Network, base: Base, stream: ResidualStream) -> None:
        self.network, self.base, self.stream = network, base, stream
        self.sent: list[Arrivals] = []
        """What readers have sent down to the present crossing, in stacks of the readers of one or more crossings."""

    def table(self, writers: Sequence[StreamEnd], readers: Sequence[StreamEnd], positions: bool = False) -> Tensor:
        """``(batch, writers, readers)``; with ``positions`` a last axis of the stream's positions, flattened."""
        like = self.network.tape.nodes[self.stream.crossings[0]].value
        frame = frame_at(self.network, Site(self.stream.crossings[writers[0].crossing]))
        channels = 1 if frame.layer_channel is None else frame.layer_shape[frame.layer_channel]
        axes = [math.prod(frame.layer_shape) // channels] if positions else []
        total = like.new_zeros(self.network.tape.batch, len(writers), len(readers), *axes)
        groups, columns = at_one_site(writers), _at_one_crossing(readers)
        self.sent, live, room = [], list[list[int]](), None
        waiting: list[Encounter] = []
        for at in reversed(range(len(self.stream.crossings))):
            sent = columns.get(at) and self._sent_by([readers[r] for r in columns[at]])
            if sent:
                self.sent.append(sent)
                live.append(columns[at])
                room = self._gather(room, live, len(readers))
            for rows in groups:
                if writers[rows[0]].crossing == at:
                    amounts = self.amounts([writers[w] for w in rows])
                    for some, arrivals in zip(live, self.sent, strict=True):
                        meeting = Encounter(at, rows, some, arrivals, amounts)
                        if not self._may_wait(waiting, meeting):
                            self._meet(waiting, total, positions)
                        waiting.append(meeting)
            if at:
                self.descend(at - 1)
        self._meet(waiting, total, positions)
        return total

    def _may_wait(self, waiting: Sequence[Encounter], last: Encounter) -> bool:
        """Whether one product is for these writers and more: they meet the same densities, of some more readers."""
        if not waiting:
            return True
        above, below = waiting[-1].alone, last.alone
        nodes = [self.network.tape.nodes[self.stream.crossings[m.at]] for m in (waiting[-1], last)]
        first, second = ((node.shape, node.sample, node.channel) for node in nodes)
        if above is None or below is None or first != second or sum(len(m.rows) for m in waiting) >= TOGETHER:
            return False
        return waiting[-1].some[-1] == last.some[-1] and _end_of(above) == _end_of(below)

    def _meet(self, waiting: list[Encounter], total: Tensor, positions: bool) -> None:
        """The products of all that wait, with the densities that the last one meets: its readers are theirs, too."""
        if not waiting:
            return
        last = waiting[-1]
        amounts = last.amounts
        if len(waiting) > 1:
            shape = self.network.tape.nodes[self.stream.crossings[last.at]].shape
            ((node, _),) = last.arrivals.items()
            each = [next(iter(m.amounts.values())) for m in waiting]
            amounts = {node: torch.cat([a.expand(a.shape[0], *shape) for a in each])}
        part = self._product(last.at, last.arrivals, amounts, positions)
        begin = 0
        for meeting in waiting:
            end, readers = begin + len(meeting.rows), slice(meeting.some[0], meeting.some[-1] + 1)
            if part is not None:
                rows = slice(meeting.rows[0], meeting.rows[-1] + 1)
                total[:, rows, readers] = part[:, begin:end, meeting.some[0] - last.some[0] :]
            begin = end
        waiting.clear()

    def _gather(self, room: Tensor | None, live: list[list[int]], count: int) -> Tensor | None:
        """Puts the last stack before the one above it, if that has come down as it was: one product is for both.

        ``room`` holds the densities of all ``count`` readers, from which stacks are cut; there is none at first.
        """
        rows, stack = live[-1], _only(self.sent[-1])
        if stack is None:
            return room
        node, rho = stack
        above = _only(self.sent[-2]) if len(self.sent) > 1 else None
        if room is None or room.shape[1:] != rho.shape[1:]:
            room, above = rho.new_empty(count, *rho.shape[1:]), None
        if above is not None and (above[0] != node or place_of(above[1]) != place_of(room[live[-2][0]])):
            above = None
        room[rows[0] : rows[-1] + 1] = rho
        if above is not None and rows[-1] + 1 == live[-2][0]:
            self.sent.pop()
            rows = [*rows, *live.pop(-2)]
            live[-1] = rows
        self.sent[-1] = Arrivals({node: room[rows[0] : rows[-1] + 1]})
        return room

    def amounts(self, ends: Sequence[StreamEnd]) -> dict[int, Tensor]:
        """What writers at one site put into the stream, on the stack: amounts at the crossing that they write to."""
        first, crossing = ends[0], self.stream.crossings[ends[0].crossing]
        pushed = Pushed(self.network, first.site, masks_of(self.network, ends), None).rise_to([crossing])
        return pushed.amounts_at(Site(crossing))

    def descend(self, to: int) -> None:
        """Carries everything that was sent to a crossing down to the next one, by the skip.

        Most skips hand densities on as they are. Then the first one tells where all of them arrive.
        """
        renamed: dict[int, int] | None = None
        for n, above in enumerate(self.sent):
            if renamed is not None and above.nodes == renamed.keys():
                self.sent[n] = Arrivals({renamed[node]: rho for node, rho in above.items()})
                continue
            below = self._down(to, above)
            renamed = _renamed(above, below)
            self.sent[n] = below

    def _sent_by(self, ends: Sequence[StreamEnd]) -> Arrivals | None:
        """What readers of one crossing send to it, on the stack: they go down together."""
        groups = [[ends[n] for n in rows] for rows in at_one_site(ends)]
        return joined_stacks([(len(some), self._sent(some)) for some in groups])

    def _sent(self, ends: Sequence[StreamEnd]) -> Arrivals | None:
        """What readers at one site send to the crossing that they read from."""
        first = ends[0]
        low = Site(self.stream.crossings[first.crossing])
        if first.kind == LOGITS:
            return arrivals_at(self.network, self.base, low)
        if first.head is None:
            branch = self._branch(first)
            if branch.alone:  # what it reads is read for it alone, and known from the base sweep
                return self._along(low.node, branch.region)
        arrivals = arrivals_at(self.network, self.base, first.site)
        if arrivals is None:
            return None
        if first.head is not None:
            arrivals = arrivals.masked(masks_of(self.network, ends))
        return pull_to(self.network, first.site, arrivals, low)

    def _branch(self, end: StreamEnd) -> StreamBranch:
        branches = self.stream.segments[end.crossing].branches
        return next(b for b in branches if b.term == end.site.node)

    def _along(self, low: int, region: frozenset[int]) -> Arrivals | None:
        """What arrives at a crossing by all edges into a region."""
        total = Arrivals()
        for consumer in self.network.tape.consumers[low]:
            if consumer in region and consumer in self.base.arrivals:
                part = arrivals_at(self.network, self.base, Site(low, consumer))
                if part:
                    total.add(part)
        return total or None

    def _down(self, to: int, here: Arrivals) -> Arrivals:
        """What gets from the upper to the lower end of a segment by its skip."""
        segment, found = self.stream.segments[to], Arrivals()

        def turn(site: Site, arrivals: Arrivals) -> Arrivals | None:
            if site == Site(segment.low):
                found.add(arrivals)
                return None
            return arrivals

        if here:
            sweep(self.network, {segment.high: here}, turn, set(segment.route))
        return found

    def _product(self, crossing: int, here: Arrivals, amounts: dict[int, Tensor], positions: bool) -> Tensor | None:
        """``(batch, writers, readers, positions)`` at one crossing, or summed over positions."""
        frame = frame_at(self.network, Site(self.stream.crossings[crossing]))
        total: Tensor | None = None
        for node, rho in here.items():
            if node not in amounts:
                continue
            full = [t.expand(t.shape[0], *frame.shape) for t in (amounts[node], rho)]
            a, r = (frame.to_samples(t) for t in full)
            if positions and frame.layer_channel is not None:
                a, r = (t.movedim(frame.layer_channel + 2, -1).flatten(2, -2) for t in (a, r))
                part = torch.einsum("wbpc,rbpc->bwrp", a, r)
            else:
                part = a.flatten(2).transpose(0, 1) @ r.flatten(2).permute(1, 2, 0)
            total = part if total is None else total + part
        return total


def masks_of(network: Network, ends: Sequence[StreamEnd]) -> Tensor:
    """The masks of ends at one site, ``(ends, *shape)``: those of their heads, or all of it."""
    first = ends[0]
    frame = frame_at(network, first.site)
    if first.head is None:
        return torch.ones(1, *frame.shape, dtype=torch.bool, device=frame.device)
    assert first.heads is not None
    axis, count = first.heads
    size = frame.shape[axis]
    labels = torch.arange(size, device=frame.device) // (size // count)
    chosen = torch.tensor([end.head for end in ends], device=frame.device)
    mask = labels[None] == chosen[:, None]
    return mask.view(len(ends), *(size if a == axis else 1 for a in range(len(frame.shape))))


def at_one_site(ends: Sequence[StreamEnd]) -> list[list[int]]:
    """The places of neighbouring ends that lie at one site and travel on one stack."""
    groups: list[list[int]] = []
    for n, end in enumerate(ends):
        first = ends[groups[-1][0]] if groups else None
        if first is not None and end.heads and (first.site, first.kind) == (end.site, end.kind):
            groups[-1].append(n)
        else:
            groups.append([n])
    return groups


def joined_stacks(parts: Sequence[tuple[int, Arrivals | None]]) -> Arrivals | None:
    """Some stacks behind each other, each of so many densities; where nothing has arrived, it is 0."""
    found = [dict(sent.items()) if sent else {} for _, sent in parts]
    stacks = {}
    for node in dict.fromkeys(node for part in found for node in part):
        like = next(part[node] for part in found if node in part)
        blank = [like.new_zeros(n, *like.shape[1:]) for n, _ in parts]
        stacks[node] = torch.cat([part.get(node, zero) for part, zero in zip(found, blank, strict=True)])
    return Arrivals(stacks) if stacks else None


def _end_of(stack: Tensor) -> tuple[int, torch.Size]:
    """Where the memory of a stack ends, and what it is a stack of."""
    return place_of(stack) + stack.numel() * stack.element_size(), stack.shape[1:]


def _only(sent: Arrivals) -> tuple[int, Tensor] | None:
    """The node and densities of what has arrived at one node alone."""
    found = list(sent.items())
    return found[0] if len(found) == 1 else None


def _at_one_crossing(ends: Sequence[StreamEnd]) -> dict[int, list[int]]:
    """The places of neighbouring ends, by their crossing."""
    groups = itertools.groupby(range(len(ends)), key=lambda n: ends[n].crossing)
    return {crossing: list(group) for crossing, group in groups}


def _renamed(above: Arrivals, below: Arrivals) -> dict[int, int] | None:
    """The node below for every node above, where the very densities have arrived; None where they are others."""
    upper, lower = dict(above.items()), dict(below.items())
    found = {a: b for a, rho in upper.items() for b, arrived in lower.items() if arrived is rho}
    return found if len(found) == len(upper) == len(lower) == len(set(found.values())) else None
