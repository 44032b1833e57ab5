"""Tracks: what a message remembers of its walks on the way down.

A plain message knows where its walks are. To answer a question about *which* sets they have visited, or to add up
weights along them, a sweep carries several messages side by side, one for every **state** that walks can be in: the
events that have happened so far, and whether one of the weights has been taken. A site where something happens turns
messages from one state into another, neuron by neuron; everything else propagates them as always, on the stack.

Only states that make a difference are kept apart. Two states are the same if no event that can still happen tells them
apart, a state that cannot lead to any answer is dropped, and one whose answer is certain is *settled*. So a conjunction
of sets in several layers carries a single message, and so does a formula about avoiding them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nrm.questions.sweep import Site
from nrm.steps import Network

AnswerNumbers = npt.NDArray[np.int64]
"""For every combination of events, the number of the answer that its walks count for; -1 is none."""


class State(NamedTuple):
    """The events that have happened, as bits, and whether a weight has been taken."""

    visited: int
    taken: bool


@dataclass(frozen=True, eq=False)
class Move:
    """Messages that go from one state to another at a site, or are settled there, each times a mask (None: all)."""

    mask: Tensor | None
    pairs: tuple[tuple[State, State], ...]
    settled: tuple[tuple[State, int], ...]


class Track:
    """The states of one question on one network.

    ``events`` has the sites of every event, each with the mask ``(1, *shape)`` of its neurons.
    ``weights`` are ``(1, *shape)`` by site: walks count with the sum of their weights; None lets every walk count once.
    ``ports`` are the drains at which walks of each node may begin.
    """

    def __init__(
        self, network: Network, ports: Mapping[int, Sequence[str]],
        events: Sequence[Sequence[tuple[Site, Tensor]]], labels: AnswerNumbers,
        weights: Mapping[Site, Tensor] | None = None,
    ) -> None:  # fmt: skip
        self.network = network
        self.ports = ports
        self.labels = labels
        self.weights = weights
        self._count = len(events)
        self._marks = _marks(events, network.tape.dtype)
        self._after = self._look_ahead()
        self._subsets: dict[int, AnswerNumbers] = {}
        self._canonical: dict[tuple[int, bool, bytes], State] = {}

    @property
    def start(self) -> State:
        """The state of every walk above the output."""
        return State(0, self.weights is None)

    def restricted(self, labels: AnswerNumbers) -> Track:
        """The track with other answers."""
        twin = copy.copy(self)
        twin.labels, twin._canonical = labels, {}
        return twin

    def split(self, event: int) -> tuple[Track, Track]:
        """The walks for which an event happens, and all others."""
        happened = (np.arange(len(self.labels)) >> event & 1).astype(bool)
        with_it, without = (self.restricted(np.where(side, self.labels, -1)) for side in (happened, ~happened))
        return with_it, without

    # ---- where something happens -----------------------------------------------------------------------------

    def _here(self, site: Site) -> int:
        """The events that can happen at a site, and the bit of the weights."""
        found = 0
        for pattern, _ in self._marks.get(site, ()):
            found |= pattern
        return found | (self._weighing if self.weights is not None and site in self.weights else 0)

    @property
    def _weighing(self) -> int:
        return 1 << self._count

    def _look_ahead(self) -> list[int]:
        """What can still happen on the way down from every node, itself left out."""
        after: list[int] = []
        for node in self.network.tape.nodes:
            ahead = 0
            for j in self.inputs(node.index):
                ahead |= self._here(Site(j, node.index)) | self._here(Site(j)) | after[j]
            for port in self.ports.get(node.index, ()):
                ahead |= self._here(Site(node.index, port=port))
            after.append(ahead)
        return after

    def inputs(self, i: int) -> list[int]:
        """The tensors that a step gives relevance to."""
        rules, node = self.network.rules, self.network.tape.nodes[i]
        if not rules.reached[i]:
            return []
        return list(dict.fromkeys(j for p, j in enumerate(node.inputs) if rules.coefficient(i, p) != 0))

    def _then(self, site: Site) -> int:
        """What can still happen after a site."""
        if site.port:
            return 0
        return self._after[site.node] | (0 if site.consumer is None else self._here(Site(site.node)))

    # ---- states ----------------------------------------------------------------------------------------------

    def turns(self, site: Site, states: Sequence[State], settle: bool) -> list[Move]:
        """What becomes of these states at a site. Without ``settle``, states whose answer is certain go on as well."""
        then, weight = self._then(site), None if self.weights is None else self.weights.get(site)
        moves = []
        for pattern, mask in self._marks.get(site, [(0, None)]):
            passed = [(s, State(s.visited | pattern, s.taken)) for s in states]
            moves.append(self._move(mask, passed, then, settle))
            if weight is not None:
                taken = [(s, State(t.visited, True)) for s, t in passed if not s.taken]
                moves.append(self._move(weight if mask is None else weight * mask, taken, then, settle))
        return [move for move in moves if move.pairs or move.settled]

    def _move(self, mask: Tensor | None, passed: list[tuple[State, State]], then: int, settle: bool) -> Move:
        pairs, settled = [], []
        for source, state in passed:
            answers = self._answers(state, then)
            if answers is None:
                continue
            if settle and state.taken and _constant(answers):
                settled.append((source, int(answers[0])))
            else:
                key = (then, state.taken, answers.tobytes())
                pairs.append((source, self._canonical.setdefault(key, state)))
        return Move(mask, tuple(pairs), tuple(settled))

    def is_settled(self, state: State, i: int) -> bool:
        """Whether the answer is certain for walks in this state below a node."""
        answers = self._answers(state, self._after[i])
        return answers is not None and state.taken and _constant(answers)

    def _answers(self, state: State, then: int) -> AnswerNumbers | None:
        """The answers that a state may still lead to, by what happens then; None if it is none at all."""
        if not state.taken and not then & self._weighing:
            return None
        events = then & (self._weighing - 1)
        if events not in self._subsets:
            self._subsets[events] = np.array(list(_subsets(events)), dtype=np.int64)
        answers: AnswerNumbers = self.labels[self._subsets[events] | state.visited]
        return None if bool((answers < 0).all()) else answers


def _constant(answers: AnswerNumbers) -> bool:
    return bool((answers == answers[0]).all())


def _subsets(bits: int) -> Iterator[int]:
    subset = bits
    while subset:
        yield subset
        subset = (subset - 1) & bits
    yield 0


def _marks(
    events: Sequence[Sequence[tuple[Site, Tensor]]], dtype: torch.dtype
) -> dict[Site, list[tuple[int, Tensor | None]]]:
    """For every site the combinations of events that its neurons stand for, each with the mask of those neurons."""
    found: dict[Site, Tensor] = {}
    for k, event in enumerate(events):
        for site, mask in event:
            bits = mask.long() << k
            found[site] = found[site] | bits if site in found else bits
    marks: dict[Site, list[tuple[int, Tensor | None]]] = {}
    for site, pattern in found.items():
        values = torch.unique(pattern).tolist()
        marks[site] = [(v, None if len(values) == 1 else (pattern == v).to(dtype)) for v in values]
    return marks
