"""The walks with the largest relevance, exactly: the best way down from every neuron, then the K best from the output.

A partial walk is worth its product so far times the best product below the neuron it has arrived at
(:mod:`nrm.search.best`). That is a bound that its best completion attains, so a heap of partial walks, each extended by
one entry at a time, gives complete walks in the order of their relevance after about (walks x depth) steps.
"""

from __future__ import annotations

import heapq
import itertools
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nrm.capture import Node, Tape
from nrm.errors import NrmWarning, QuestionError
from nrm.largest import best_first
from nrm.questions import Layer, Progress, Set, Site, drain_name
from nrm.search.best import Terrain
from nrm.search.branches import Branch
from nrm.search.found import Found, read_count
from nrm.search.windows import factors
from nrm.steps import Network

SIGNS = {"+": 1, "-": -1, "abs": 0}
TIES = 1000
"""So many walks of equal relevance are counted, then the search ends."""


@dataclass(frozen=True)
class WalkStep:
    """A neuron on a walk: a layer, or its edge to one consumer, and the index without the sample axis.

    ``label`` is its name, where the measure has one.
    """

    layer: Layer
    index: tuple[int, ...]
    label: str | None = None

    @property
    def set(self) -> Set:
        """The neuron as a set."""
        return self.layer[self.index] if self.index else self.layer.all

    def __str__(self) -> str:
        at = f"{self.layer.name}[{', '.join(map(str, self.index))}]" if self.index else self.layer.name
        at = at if self.label is None else f"{at} {self.label!r}"
        return at if self.layer.consumer is None else f"{at} (to {self.layer.consumer})"


@dataclass(frozen=True)
class Walk:
    """One walk, from the output to an input, and the product of the entries along it.

    ``steps`` are the neurons that tell it from all other walks: a tensor is left out if the one below it has the same
    neurons (a ReLU above its convolution), and where a tensor is read several times the step says by whom. It iterates
    as sets of its sample, so ``R(*walk)`` is its relevance. ``multiplicity`` counts walks with this relevance, this one
    standing for them; ``capped`` says that there are more. ``share`` is the part of the sample's relevance that they
    are together.
    """

    sample: int
    relevance: float
    share: float
    multiplicity: int
    steps: tuple[WalkStep, ...]
    capped: bool = False

    def __iter__(self) -> Iterator[Set]:
        return (step.set.of_sample(self.sample) for step in self.steps)

    def __len__(self) -> int:
        return len(self.steps)

    def record(self) -> dict[str, Any]:
        """The walk as plain data."""
        return {
            "relevance": self.relevance, "share": self.share, "multiplicity": self.multiplicity,
            "walk": " <- ".join(map(str, self.steps)),
        }  # fmt: skip

    def __str__(self) -> str:
        many = "" if self.multiplicity == 1 else f" x {self.multiplicity}{' or more' * self.capped}"
        return f"{self.relevance:.4g}{many}  {' <- '.join(map(str, self.steps))}"


def find_walks(
    network: Network, start: Tensor, samples: Sequence[int], *,
    k: Any, sign: Any, to_input: Any, memory: int, progress: Progress,
) -> Found[Walk]:  # fmt: skip
    """The k walks with the largest relevance of every sample; ``start`` is the relevance of the output's neurons."""
    count = read_count(k, "walks")
    if not isinstance(sign, str) or sign not in SIGNS:
        raise QuestionError(
            "unknown sign of walks", got=repr(sign), expected="'+', '-' or 'abs'",
            hint="'-' is for walks with negative relevance, 'abs' for both",
        )  # fmt: skip
    if not isinstance(to_input, bool):
        raise QuestionError("to_input is yes or no", got=repr(to_input), expected="True or False")
    terrain = Terrain(network, start, to_input=to_input, memory=memory, progress=progress)
    search = Search(terrain, start, SIGNS[sign])
    return Found("walks", [search.best(sample, count) for sample in samples], list(samples))


class WalkColumn(NamedTuple):
    """The entries of one neuron, best first: where each goes, what it is, and what it and all below is worth."""

    ways: list[Branch]
    way: NDArray[np.int64]
    neuron: NDArray[np.int64]
    entry: NDArray[np.float64]
    worth: NDArray[np.float64]
    exponent: int


@dataclass(frozen=True)
class Trail:
    """A partial walk: where it has arrived, its product as ``mantissa * 2**exponent``, and how it came here.

    The product is that of the entries so far; at the end of a walk it is times the unit there, its relevance.
    """

    node: int
    neuron: int
    mantissa: float
    exponent: int
    before: Trail | None
    via: tuple[tuple[int, int], ...] = ()


@dataclass
class Entry:
    """Walks of equal relevance: the first of them, and how many there are."""

    trail: Trail
    count: int = 1
    capped: bool = field(default=False)

    @property
    def relevance(self) -> float:
        """The product along the walk."""
        return math.ldexp(self.trail.mantissa, self.trail.exponent)


class Search:
    """Complete walks in the order of their relevance, from the best products below every neuron."""

    def __init__(self, terrain: Terrain, start: Tensor, sign: int) -> None:
        self._terrain = terrain
        self._tape = terrain.network.tape
        self._start = start.reshape(-1)
        (self._density,) = (rho.reshape(-1) for rho in terrain.network.started(start).tensors)
        self._sign = sign
        self._columns: dict[tuple[int, int, int], WalkColumn] = {}
        self._eps = torch.finfo(self._tape.dtype).eps

    def best(self, sample: int, k: int) -> list[Walk]:
        """One sample's k best walks, those of equal relevance as one."""
        self._columns.clear()
        near = 16 * self._eps
        found: list[Entry] = []
        for trail in self._walks(sample):
            level = list(itertools.takewhile(lambda e: _ratio(trail, e.trail) < 1 + near, reversed(found)))  # noqa: B023
            tied = next((e for e in level if e.trail.mantissa * trail.mantissa > 0), None)
            if tied is not None:
                tied.count += 1
                tied.capped = tied.count >= TIES
                if tied.capped:
                    break
            elif len(found) < k:
                found.append(Entry(trail))
            elif not level:
                break
        if len(found) < k and any(e.capped for e in found):
            text = f"sample {sample}: {TIES} walks have the same relevance, and what comes after them was not searched"
            warnings.warn(text, NrmWarning, stacklevel=5)
        total = float(self._start[self._outputs(sample)].double().sum())
        return [self._walk(sample, e, total) for e in found]

    def _outputs(self, sample: int) -> Tensor:
        """The outputs of one sample that have relevance."""
        node = self._tape.nodes[self._tape.output]
        own = self._start.reshape(node.shape) != 0
        if node.sample is not None:
            mine = torch.arange(node.shape[node.sample], device=own.device) == sample
            own = own & mine.view(*(-1 if a == node.sample else 1 for a in range(own.ndim)))
        elif node.owner is not None:
            own = own & (node.owner == sample)
        return own.reshape(-1).nonzero()[:, 0]

    # ---- the heap --------------------------------------------------------------------------------------------

    def _walks(self, sample: int) -> Iterator[Trail]:
        """Complete walks, best first. What waits in the heap is a trail and the next entry to extend it by."""
        number = itertools.count()
        heap: list[tuple[tuple[int, float], int, Trail | None, WalkColumn, int]] = []

        def wait(trail: Trail | None, column: WalkColumn, rank: int) -> None:
            if rank < len(column.worth):
                mantissa, exponent = (1.0, 0) if trail is None else (abs(trail.mantissa), trail.exponent)
                worth, shift = math.frexp(mantissa * float(column.worth[rank]))
                key = (-(exponent + column.exponent + shift), -worth)
                heapq.heappush(heap, (key, next(number), trail, column, rank))

        wait(None, self._roots(sample), 0)
        while heap:
            _, _, trail, column, rank = heapq.heappop(heap)
            wait(trail, column, rank + 1)
            longer = _extended(trail, column, rank)
            if self._terrain.is_end(longer.node):
                yield self._ended(longer)
            else:
                want = self._sign * (1 if longer.mantissa > 0 else -1)
                wait(longer, self._column(self._tensor(longer.node), longer.neuron, want), 0)

    def _ended(self, trail: Trail) -> Trail:
        unit = self._terrain.network.unit(trail.node)
        if unit is None:
            return trail
        mantissa, shift = math.frexp(trail.mantissa * float(unit.reshape(-1)[trail.neuron]))
        return replace(trail, mantissa=mantissa, exponent=trail.exponent + shift)

    def _tensor(self, node: int) -> int:
        return self._terrain.network.nodes[node].tensor

    def _roots(self, sample: int) -> WalkColumn:
        """The outputs with relevance, as if they were the column of a neuron above."""
        at = self._outputs(sample)
        way = Branch(self._terrain.network.plain(self._tape.output).index, at)
        return self._sorted([way], [at], [self._density[at].double()], self._sign)

    def _column(self, i: int, neuron: int, want: int) -> WalkColumn:
        """The entries of a neuron, sorted by the best product of the wanted sign that they lead to."""
        if (i, neuron, want) not in self._columns:
            ways = self._terrain.ways(i, torch.tensor([neuron], device=self._start.device))
            found = [self._window(w) if w.entry is None else (w.at, w.entry.double()) for w in ways]
            self._columns[i, neuron, want] = self._sorted(ways, [at for at, _ in found], [t for _, t in found], want)
        return self._columns[i, neuron, want]

    def _window(self, way: Branch) -> tuple[Tensor, Tensor]:
        """One neuron's inputs through a step that mixes, and the entries."""
        assert way.leaf is not None and way.windows is not None  # noqa: PT018
        maps = list(way.windows)
        field, node = self._terrain.field(maps[0]), self._tape.nodes[self._tensor(way.to)]
        p, c = field.locate(way.at)
        taps = field.taps(p)[0]
        inside = taps >= 0
        index = taps[inside]
        entry = torch.zeros(len(index), dtype=torch.float64, device=index.device)
        for k, a, rows in factors(field, maps, c):
            part = rows[0][inside].double() * way.windows[maps[k]].double()
            share = a.expand(node.shape).reshape(-1)[index].double() if isinstance(a, Tensor) else a
            entry += part if share is None else share * part
        return index, entry

    def _sorted(self, ways: list[Branch], at: list[Tensor], entries: list[Tensor], want: int) -> WalkColumn:
        bests = [self._terrain.best(way.to) for way in ways]
        exponent = max((b.exponent for b in bests), default=0)
        worths: list[Tensor] = []
        for best, neurons, entry in zip(bests, at, entries, strict=True):
            up = _values(best.up, neurons)
            down = torch.zeros_like(up) if best.down is None else _values(best.down, neurons)
            if want == 0:
                below = torch.maximum(up, down)
            else:
                below = torch.where(entry * want > 0, up, down)
            slack = 1 + 4 * self._eps * best.height  # the products below are rounded: their true values are not larger
            worths.append(entry.abs() * below * slack * 2.0 ** max(best.exponent - exponent, -1000))
        if not worths:
            empty = np.zeros(0)
            return WalkColumn(ways, empty.astype(np.int64), empty.astype(np.int64), empty, empty, 0)
        worth = torch.cat(worths).cpu().numpy()
        order = best_first(worth)
        order = order[worth[order] > 0]
        way = np.repeat(np.arange(len(ways)), [len(w) for w in worths])
        neuron, values = torch.cat(at).cpu().numpy(), torch.cat(entries).cpu().numpy()
        return WalkColumn(ways, way[order], neuron[order], values[order], worth[order], exponent)

    # ---- from trails to walks --------------------------------------------------------------------------------

    def _walk(self, sample: int, entry: Entry, total: float) -> Walk:
        share = entry.count * entry.relevance / total if total else 0.0
        return Walk(sample, entry.relevance, share, entry.count, self._steps(entry.trail), entry.capped)

    def _site(self, node: int) -> Site:
        found = self._terrain.network.nodes[node]
        return Site(found.tensor, port=found.port)

    def _steps(self, trail: Trail) -> tuple[WalkStep, ...]:
        places: list[tuple[Site, int]] = []
        here: Trail | None = trail
        while here is not None:
            places += [(self._site(here.node), here.neuron), *((Site(i), n) for i, n in reversed(here.via))]
            here = here.before
        places.reverse()
        steps: list[WalkStep] = []
        for k, (site, neuron) in enumerate(places):
            above = places[k - 1][0].node if k else None
            last = k == len(places) - 1
            many = above is not None and not site.port and len(self._tape.consumers[site.node]) > 1
            if k and not last and not many and _same_neurons(self._tape, site.node, places[k + 1][0]):
                continue
            steps.append(_step(self._tape, self._terrain.network, site, neuron, above if many else None))
        return tuple(steps)


def _values(best: Tensor, neurons: Tensor) -> Tensor:
    return best.double().expand(neurons.shape) if best.numel() == 1 else best[neurons].double()


def _extended(trail: Trail | None, column: WalkColumn, rank: int) -> Trail:
    way = column.ways[int(column.way[rank])]
    entry, neuron = float(column.entry[rank]), int(column.neuron[rank])
    if trail is None:
        return Trail(way.to, neuron, *math.frexp(entry), None)
    mantissa, shift = math.frexp(trail.mantissa * entry)
    via = tuple((i, int(at[0])) for i, at in way.via)
    return Trail(way.to, neuron, mantissa, trail.exponent + shift, trail, via)


def _ratio(small: Trail, large: Trail) -> float:
    """How much larger the relevance of one walk is than that of another, whatever their signs."""
    return math.ldexp(abs(large.mantissa / small.mantissa), min(large.exponent - small.exponent, 100))


def _same_neurons(tape: Tape, above: int, below: Site) -> bool:
    """Whether every neuron of a tensor belongs to one neuron of the tensor below it, and the other way round."""
    node = tape.nodes[above]
    return not below.port and all(
        node.op.is_one_to_one(position) for position, j in enumerate(node.inputs) if j == below.node
    )


def _step(tape: Tape, network: Network, site: Site, neuron: int, consumer: int | None) -> WalkStep:
    node = tape.nodes[site.node]
    shape, sample = tuple(node.shape), node.sample
    if site.port:
        layer = Layer(drain_name(node, site.port))
        shape = network.drain_shape(site.node, site.port)
        sample = sample if site.port == "sink" or not node.has_samples else 0
    else:
        layer = Layer(_name(tape, node), None if consumer is None else tape.nodes[consumer].name)
    at = [int(i) for i in np.unravel_index(neuron, shape)] if shape else []
    return WalkStep(layer, tuple(i for axis, i in enumerate(at) if axis != sample))


def _name(tape: Tape, node: Node) -> str:
    return "output" if node.index == tape.output else node.name
