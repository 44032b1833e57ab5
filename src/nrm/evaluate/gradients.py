"""Gradients at the readers of a residual stream, times what writers write to it: scores of all direct edges.

The network is run again from its tape with gradients on. Every reader has a copy of what it reads, so that one pass
back gives the gradient by each of them alone. It is carried down the stream by the skip, and meets all writers below.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from nrm.capture import StreamBranch, StreamSegment
from nrm.evaluate.backward import GradientMethod
from nrm.evaluate.patching import PatchedPart
from nrm.evaluate.streams import Spot, TapeRun, is_plain_sum, is_sum, projected, through_sums
from nrm.questions import Frame, Site, StreamEnd, frame_at, masks_of


@dataclass
class Passed:
    """A run with gradients: the stream at every crossing, its copies for readers and for the skip.

    ``heads`` are tensors that heads read from, with the crossing they lie above; what a reader reads is at its site.
    """

    crossings: list[Tensor]
    skips: list[Tensor] = field(default_factory=list)
    read: dict[Site, Tensor] = field(default_factory=dict)
    whole: dict[Site, Tensor] = field(default_factory=dict)
    gradients: dict[Site, Tensor] = field(default_factory=dict)


class StreamGradients:
    """The scores of direct edges by a gradient method, for the samples of one contrast."""

    def __init__(
        self, part: PatchedPart, writers: Sequence[StreamEnd], readers: Sequence[StreamEnd], method: GradientMethod
    ) -> None:  # fmt: skip
        self._part, self._stream, self._method = part, part.stream, method
        self._writers, self._readers = list(writers), list(readers)
        back = method.backward(part.here)
        self._rerun, self._plain = TapeRun(part.here, back.compute, back.needs), TapeRun(part.here)
        self._sites = {reader.site for reader in self._readers}

    def scores(self) -> Tensor:
        """``(batch, writers, readers)``, the mean over all inputs at which gradients are taken."""
        first, steps = self._stream.crossings[0], self._method.steps
        here, there = (run.nodes[first].value[None] for run in (self._part.here, self._part.there))
        written = Written(self._part, self._plain, self._writers, self._method.activation).rows()
        shares = [1.0] if steps == 1 else [k / steps for k in range(steps)]
        return sum((self._table(there + s * (here - there), written) for s in shares), torch.zeros(())) / steps

    def _table(self, begin: Tensor, written: Mapping[int, Tensor]) -> Tensor:
        at, last = self._stream.crossings, len(self._readers)
        total = begin.new_zeros(self._part.R.inner.tape.batch, len(self._writers), last)
        with torch.enable_grad():
            passed = self._passed(begin.requires_grad_())
        live, low = begin.new_zeros(last, *passed.crossings[-1].shape[1:]), last
        for k in reversed(range(len(at))):
            rows = [n for n, r in enumerate(self._readers) if r.crossing == k]
            if rows:
                low = rows[0]
                live[low : rows[-1] + 1] = self._sent(passed, k, rows)
            write = [n for n, w in enumerate(self._writers) if w.crossing == k]
            if write and low < last:
                frame = frame_at(self._part.R.inner.network, Site(at[k]))
                total[:, write[0] : write[-1] + 1, low:] = _products(frame, written[k], live[low:])
            if k:
                live = self._descended(passed, k - 1, live, low)
        return total

    # ---- the run ---------------------------------------------------------------------------------------------

    def _passed(self, begin: Tensor) -> Passed:
        """The network run again, and the gradients of the explained output by every copy."""
        found = Passed([begin])
        for segment in self._stream.segments:
            low = found.crossings[-1]
            given: dict[Spot, Tensor] = {b.term: self._branch(segment, b, low, found) for b in segment.branches}
            found.skips.append(low.view_as(low))
            (high,) = self._rerun({segment.low: found.skips[-1], **given}, [segment.high])
            found.crossings.append(high)
        top = found.crossings[-1]
        site = Site(self._stream.crossings[-1])
        found.read[site] = top.view_as(top)
        (output,) = self._rerun({site.node: found.read[site]}, [self._part.here.output])
        explained = self._part.explained(output).sum()
        wanted = {s: t for s, t in found.read.items() if s in self._sites}
        slopes: Sequence[Tensor | None] = torch.autograd.grad(
            explained, list(wanted.values()), retain_graph=True, allow_unused=True
        )
        found.gradients = {s: g for s, g in zip(wanted, slopes, strict=True) if g is not None}
        return found

    def _branch(self, segment: StreamSegment, branch: StreamBranch, low: Tensor, found: Passed) -> Tensor:
        """What a branch adds, from copies of what it reads."""
        if not branch.reads:
            copy = found.read[Site(branch.term)] = low.view_as(low)
            (term,) = self._rerun({segment.low: copy}, [branch.term])
            return term
        assert branch.heads is not None
        tensors = dict.fromkeys(read.tensor for read in branch.reads.values())
        values = dict(zip(tensors, self._rerun({segment.low: low}, list(tensors)), strict=True))
        given: dict[Spot, Tensor] = {}
        for read in branch.reads.values():
            site, whole = Site(read.tensor, read.reader), values[read.tensor]
            found.whole[site] = whole
            given[read.tensor, read.reader] = found.read[site] = whole.view_as(whole)
        if self._rerun.depends(given, branch.heads, segment.low):
            given[segment.low] = low
        (heads,) = self._rerun(given, [branch.heads])
        (term,) = self._rerun({branch.heads: heads}, [branch.term])
        return term

    # ---- down the stream -------------------------------------------------------------------------------------

    def _sent(self, passed: Passed, k: int, rows: list[int]) -> Tensor:
        """The gradient of the explained output by what each of some readers of one crossing reads of the stream."""
        low = passed.crossings[k]
        found = low.new_zeros(len(rows), *low.shape[1:])
        for site in dict.fromkeys(self._readers[n].site for n in rows):
            some = [n for n in rows if self._readers[n].site == site]
            gradient = passed.gradients.get(site)
            if gradient is None:
                continue  # the explained output does not depend on it
            if site in passed.whole:
                masks = masks_of(self._part.R.inner.network, [self._readers[n] for n in some])
                gradient = _pulled(passed.whole[site], low, masks * gradient)
            found[some[0] - rows[0] : some[-1] - rows[0] + 1] = gradient
        return found

    def _descended(self, passed: Passed, k: int, live: Tensor, low: int) -> Tensor:
        """Gradients at the upper end of a segment, as gradients at its lower end by the skip alone."""
        segment = self._stream.segments[k]
        if low == len(live) or (is_sum(segment) and is_plain_sum(self._part.here, segment)):
            return live
        pulled = _pulled(passed.crossings[k + 1], passed.skips[k], live[low:])
        room = pulled.new_zeros(len(live), *pulled.shape[1:])
        room[low:] = pulled
        return room


class Written:
    """What writers write to the stream: in the clean run, or its difference from the reference."""

    def __init__(self, part: PatchedPart, rerun: TapeRun, writers: Sequence[StreamEnd], clean: bool) -> None:
        self._part, self._rerun, self._writers, self._clean = part, rerun, writers, clean

    def rows(self) -> dict[int, Tensor]:
        """The rows of all writers ``(writers, *shape)``, by the crossing that they write to."""
        stream = self._part.stream
        first = stream.crossings[0]
        parts: dict[int, list[tuple[list[int], Tensor]]] = {0: [(self._at(0, Site(first)), self._value(first))]}
        for k, segment in enumerate(stream.segments):
            parts[k + 1] = [self._branch(k + 1, segment, branch) for branch in segment.branches]
            parts[k + 1] += [self._term(k + 1, segment, i) for i in segment.sources]
        return {k: _in_order(some) for k, some in parts.items() if any(part[0] for part in some)}

    def _at(self, crossing: int, site: Site) -> list[int]:
        return [n for n, w in enumerate(self._writers) if w.crossing == crossing and w.site == site]

    def _value(self, i: int) -> Tensor:
        here, there = (run.nodes[i].value[None] for run in (self._part.here, self._part.there))
        return here if self._clean else here - there

    def _term(self, k: int, segment: StreamSegment, i: int) -> tuple[list[int], Tensor]:
        numbers = self._at(k, Site(i))
        return numbers, through_sums(self._rerun, segment, i, self._value(i)[None])[0][: len(numbers)]

    def _branch(self, k: int, segment: StreamSegment, branch: StreamBranch) -> tuple[list[int], Tensor]:
        if branch.heads is None:
            return self._term(k, segment, branch.term)
        numbers = self._at(k, Site(branch.heads))
        masks = masks_of(self._part.R.inner.network, [self._writers[n] for n in numbers])
        rows = projected(self._rerun, branch, masks * self._value(branch.heads))
        return numbers, through_sums(self._rerun, segment, branch.term, rows[None])[0]


def _in_order(parts: Sequence[tuple[list[int], Tensor]]) -> Tensor:
    """The rows of several groups in the order of their numbers."""
    numbers = [n for some, _ in parts for n in some]
    rows = torch.cat([rows for some, rows in parts if some])
    return rows if numbers == sorted(numbers) else rows[torch.tensor(numbers, device=rows.device).argsort()]


def _pulled(high: Tensor, low: Tensor, gradients: Tensor) -> Tensor:
    """A stack of gradients by one tensor ``(1, *shape)``, as gradients by one that it is computed from."""
    (found,) = torch.autograd.grad(high, low, gradients[:, None], retain_graph=True, is_grads_batched=True)
    return found[:, 0]


def _products(frame: Frame, written: Tensor, gradients: Tensor) -> Tensor:
    """``(batch, writers, readers)``."""
    a, g = (frame.to_samples(t.expand(t.shape[0], *frame.shape)).flatten(2) for t in (written, gradients))
    return a.transpose(0, 1) @ g.permute(1, 2, 0)


__all__ = ["StreamGradients", "Written"]
