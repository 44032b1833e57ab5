"""Walks that stay inside a circuit: a set of direct edges of a residual stream.

What a reader sends to the stream is handed only to the writers that have an edge to it, weighted by the edge: 1 inside
the circuit, 0 outside. A walk takes an edge at most once, so that the mass of a circuit is linear in the weight of each
edge, and its derivative by that weight is the flow of the walks that take the edge and stay inside otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from nrm.capture import ResidualStream, StreamBranch, StreamSegment
from nrm.questions.direct import (
    CONSTANT,
    EMBEDDING,
    LOGITS,
    DirectRoute,
    StreamEnd,
    at_one_site,
    joined_stacks,
    masks_of,
)  # fmt: skip
from nrm.questions.stops import frame_at
from nrm.questions.sweep import Base, Site, arrivals_at, sweep
from nrm.steps import Arrivals, Network


def feeds(reader: StreamEnd, writer: StreamEnd) -> bool:
    """Whether what a reader takes gets to a writer, inside the branch of both; several queries may share a key."""
    if (reader.name, reader.crossing + 1) != (writer.name, writer.crossing) or writer.kind in (EMBEDDING, CONSTANT):
        return False
    if reader.heads is None or writer.heads is None or reader.head is None or writer.head is None:
        return True
    return writer.head * reader.heads[1] // writer.heads[1] == reader.head


class CircuitRoute:
    """The measure of the walks of a stream that take chosen edges only."""

    def __init__(
        self, network: Network, base: Base, stream: ResidualStream, writers: Sequence[StreamEnd],
        readers: Sequence[StreamEnd],
    ) -> None:  # fmt: skip
        self._network, self._base, self._stream = network, base, stream
        self._readers = readers
        self._groups = [(rows[0], [writers[w] for w in rows]) for rows in at_one_site(writers)]
        self._begun = {  # the amounts that walks begin with are those of every circuit
            first: DirectRoute(network, base, stream).amounts(ends)
            for first, ends in self._groups
            if ends[0].kind in (EMBEDDING, CONSTANT)
        }

    def mass(self, weights: Tensor) -> Tensor:
        """The measure of the walks that stay inside, ``(batch,)``.

        ``weights`` are those of the edges, ``(batch or 1, writers, readers)``, or with positions as a last axis.
        """
        route, live = DirectRoute(self._network, self._base, self._stream), list[list[int]]()
        value = self._network.tape.nodes[self._stream.crossings[0]].value
        total = value.new_zeros(self._network.tape.batch)
        inside: dict[Site, Arrivals] = {}
        for at in reversed(range(len(self._stream.crossings))):
            places = [r for r, reader in enumerate(self._readers) if reader.crossing == at]
            sent = self._sent_by([self._readers[r] for r in places], inside)
            if sent:
                route.sent.append(sent)
                live.append(places)
            inside = {}
            for first, ends in self._groups:
                if ends[0].crossing != at:
                    continue
                here = self._handed(at, weights[:, first : first + len(ends)], live, route.sent)
                if here and first in self._begun:
                    total = total + self._product(at, here, self._begun[first])
                elif here:
                    total = total + self._enter(ends, here, inside)
            if at:
                route.descend(at - 1)
        return total

    def flows(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """The mass, and the flow of every edge: of the walks that take it and stay inside otherwise.

        Of an edge outside, it is what would come in with it.
        """
        with torch.enable_grad():
            weights = weights.expand(self._network.tape.batch, *weights.shape[1:]).clone().requires_grad_()
            mass = self.mass(weights)
            (flow,) = torch.autograd.grad(mass.sum(), weights) if mass.requires_grad else (torch.zeros_like(weights),)
        return mass.detach(), flow

    # ---- on the stream ---------------------------------------------------------------------------------------

    def _handed(self, at: int, weights: Tensor, live: list[list[int]], sent: list[Arrivals]) -> Arrivals:
        """What writers at one site receive from the readers that they have edges to, on the stack."""
        frame, found = frame_at(self._network, Site(self._stream.crossings[at])), Arrivals()
        for places, arrivals in zip(live, sent, strict=True):
            chosen = weights[:, :, places[0] : places[-1] + 1]
            if not (chosen.requires_grad or bool(chosen.any())):
                continue
            for node, rho in arrivals.items():
                each = frame.to_samples(rho.expand(rho.shape[0], *frame.shape))
                found.add(Arrivals({node: frame.from_samples(_weighed(chosen.to(rho), each, frame.layer_channel))}))
        return found

    def _product(self, at: int, here: Arrivals, amounts: dict[int, Tensor]) -> Tensor:
        """The relevance of writers that walks begin with, ``(batch,)``."""
        frame = frame_at(self._network, Site(self._stream.crossings[at]))
        parts = [frame.to_samples(rho * amounts[node]) for node, rho in here.items() if node in amounts]
        return sum((p.sum(0).flatten(1).sum(1) for p in parts), torch.zeros(()))

    # ---- inside branches -------------------------------------------------------------------------------------

    def _sent_by(self, ends: Sequence[StreamEnd], inside: Mapping[Site, Arrivals]) -> Arrivals | None:
        """What readers of one crossing send to it, on the stack."""
        groups = [[ends[n] for n in rows] for rows in at_one_site(ends)]
        return joined_stacks(
            [
                (len(some), self._from_output() if some[0].kind == LOGITS else inside.get(some[0].site))
                for some in groups
            ]
        )

    def _from_output(self) -> Arrivals | None:
        return arrivals_at(self._network, self._base, Site(self._stream.crossings[-1]))

    def _enter(self, ends: Sequence[StreamEnd], here: Arrivals, inside: dict[Site, Arrivals]) -> Tensor:
        """From writers of a branch to what their readers send; returns what ends on the way, at biases of its own."""
        segment = self._stream.segments[ends[0].crossing - 1]
        branch = next(b for b in segment.branches if ends[0].site.node in (b.heads, b.term))
        below = BranchFall(self._network, segment, branch)
        apart = None if branch.heads is None else masks_of(self._network, ends)
        for site, arrivals in below.to_reads({segment.high: here}, apart).items():
            readers = [reader for reader in self._readers if reader.site == site]
            if readers and readers[0].head is not None:
                arrivals = below.to_low({site.node: arrivals.masked(masks_of(self._network, readers))})
            if readers and arrivals:
                inside[site] = arrivals
        return below.ended


class BranchFall:
    """Densities that fall through a branch of a stream, from the sum that it is added to down to what it reads."""

    def __init__(self, network: Network, segment: StreamSegment, branch: StreamBranch) -> None:
        self._network, self._segment, self._branch = network, segment, branch
        self.ended = torch.zeros(())
        """What has ended on the way, at biases inside the branch, ``(batch,)``."""

    def to_reads(self, starts: Mapping[int, Arrivals], apart: Tensor | None) -> dict[Site, Arrivals]:
        """What arrives at queries, keys and values, or of another branch at the stream below.

        ``apart`` are masks, one for each density of the stack: of writers that are heads, each goes on in its own.
        """
        branch, found = self._branch, dict[Site, Arrivals]()
        reads = {Site(read.tensor, read.reader) for read in branch.reads.values()}

        def turn(site: Site, here: Arrivals) -> Arrivals | None:
            if site in reads:
                found.setdefault(site, Arrivals()).add(here)
                return None
            if site == Site(branch.heads if branch.heads is not None else -1) and apart is not None:
                return here.each(lambda rho: (rho * apart).sum(0, keepdim=True))
            if site.node == self._segment.low and site.consumer in branch.region and not reads:
                found.setdefault(Site(branch.term), Arrivals()).add(here)
            return self._go_on(site, here)

        sweep(self._network, starts, turn, {*branch.region, *self._segment.sums, self._segment.low})
        return found

    def to_low(self, starts: Mapping[int, Arrivals]) -> Arrivals:
        """What arrives at the stream below."""
        found = Arrivals()

        def turn(site: Site, here: Arrivals) -> Arrivals | None:
            if site.node == self._segment.low:
                found.add(here)
            return self._go_on(site, here)

        sweep(self._network, starts, turn, {*self._branch.region, self._segment.low})
        return found

    def _go_on(self, site: Site, here: Arrivals) -> Arrivals | None:
        """Nothing passes the stream below, and nothing gets from the sum to its other terms."""
        if site.port and site.node not in self._segment.route:  # what ends on the stream itself is a writer
            frame = frame_at(self._network, site)
            for relevance in here.tensors:
                self.ended = self.ended + frame.to_samples(relevance).sum(0).flatten(1).sum(1)
        sums = self._segment.sums
        aside = site.consumer in sums and site.node not in sums and site.node != self._branch.term
        return None if aside or site.node == self._segment.low else here


def _weighed(weights: Tensor, stack: Tensor, channel: int | None) -> Tensor:
    """Densities ``(readers, batch, *layer)`` summed up with ``(batch, writers, readers)`` weights, or by position."""
    if weights.ndim == 3:
        return torch.einsum("bwr,rb...->wb...", weights.expand(stack.shape[1], -1, -1), stack)
    weights = weights.expand(stack.shape[1], -1, -1, -1)
    if channel is None:
        return torch.einsum("bwrp,rbp->wbp", weights, stack.flatten(2)).view(-1, *stack.shape[1:])
    last = stack.movedim(channel + 2, -1)
    mixed = torch.einsum("bwrp,rbpc->wbpc", weights, last.flatten(2, -2))
    return mixed.view(-1, *last.shape[1:]).movedim(-1, channel + 2)
