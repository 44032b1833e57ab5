"""Courses: the states of messages at every node of a way down, found before any message is sent, and the way itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from nrm.questions.sweep import Site, between, sweep
from nrm.questions.track import Move, State, Track
from nrm.steps import Arrivals

StateRows = list[State]


class Size(NamedTuple):
    """The largest number of messages side by side, and of their entries."""

    messages: int
    entries: int


class RowStep(NamedTuple):
    """Rows of a stack that become other rows, times a mask ``(1, *shape)``; None is everything."""

    mask: Tensor | None
    rows: list[int]
    become: list[int]


@dataclass(frozen=True, eq=False)
class StateTurn:
    """What a site does to messages: from rows of the stack to rows of the next one, neuron by neuron.

    ``settled`` messages end here; their rows go to the answers with these numbers.
    """

    before: int
    after: int
    moves: tuple[RowStep, ...]
    settled: tuple[RowStep, ...]

    @classmethod
    def of(cls, moves: Sequence[Move], before: StateRows, after: StateRows) -> StateTurn:
        """The moves between numbered rows."""
        sources = {state: n for n, state in enumerate(before)}
        targets = {state: n for n, state in enumerate(after)}
        return cls(
            len(before), len(after),
            tuple(RowStep(m.mask, [sources[s] for s, _ in m.pairs], [targets[t] for _, t in m.pairs])
                  for m in moves if m.pairs),
            tuple(RowStep(m.mask, [sources[s] for s, _ in m.settled], [n for _, n in m.settled])
                  for m in moves if m.settled),
        )  # fmt: skip

    def down(self, arrivals: Arrivals) -> Arrivals:
        """The messages behind the site; those of other blocks, if there are any, lie next to each other."""
        if not self.moves:
            return Arrivals()
        if self.before == self.after and len(self.moves) == 1:
            mask, sources, targets = self.moves[0]
            if mask is None and sources == targets == list(range(self.before)):
                return arrivals
        by_row = all(mask is None for mask, _, _ in self.moves)
        return arrivals.restacked(self._down) if by_row else arrivals.each(self._down)

    def _down(self, stack: Tensor) -> Tensor:
        stack = stack.reshape(self.before, -1, *stack.shape[1:])
        return self._moved(stack, self.after, [(m.mask, m.rows, m.become) for m in self.moves]).flatten(0, 1)

    def up(self, values: Tensor) -> Tensor:
        """The adjoint: from values behind the site to values in front of it."""
        return self._moved(values[:, None], self.before, [(m.mask, m.become, m.rows) for m in self.moves])[:, 0]

    @staticmethod
    def _moved(stack: Tensor, rows: int, moves: Sequence[tuple[Tensor | None, list[int], list[int]]]) -> Tensor:
        """``(rows, blocks, *shape)``: what the moves put into every row."""
        masks = [mask.shape[1:] for mask, _, _ in moves if mask is not None]
        shape = [max(sizes) for sizes in zip(stack.shape[2:], *masks, strict=True)]
        total = stack.new_zeros(rows, stack.shape[1], *shape)
        for mask, sources, targets in moves:
            part = stack[sources] if mask is None else stack[sources] * mask
            total.index_add_(0, torch.tensor(targets, device=total.device), part.expand(-1, -1, *shape))
        return total


class Course:
    """The way down from a site to another one, or to wherever walks begin (no ``goal``).

    ``rows`` are the states of messages that arrive at a node, ``inner`` those that leave it, ``end`` those that arrive
    at the goal.
    """

    def __init__(
        self, track: Track, start: Site, states: StateRows, goal: Site | None = None, settle: bool = False
    ) -> None:
        self.track = track
        self.start = start
        self.goal = goal
        self._last = -1 if goal is None else goal.node if goal.consumer is None else goal.consumer
        self.end: StateRows = []
        self.inner: dict[int, StateRows] = {}
        self._states = states
        self._settle = settle
        self._moves: dict[Site, list[Move]] = {}
        self._turns: dict[Site, StateTurn] = {}
        arriving: dict[int, dict[State, None]] = {}
        if start.port or start.consumer is not None:
            passed = self._passed(start, states)
            arriving = {} if start.port else {start.node: passed}
        else:
            arriving[start.node] = dict.fromkeys(states)
        self._find(arriving)
        self.rows: dict[int, StateRows] = {i: list(found) for i, found in arriving.items() if found}

    def _find(self, arriving: dict[int, dict[State, None]]) -> None:
        goal, last = self.goal, self._last
        route = None if goal is None else between(self.track.network, last, self.start.node)
        for i in range(self.start.node, -1, -1):
            if not arriving.get(i):
                continue
            if goal == Site(i):
                self.end = list(arriving[i])
                return
            inner = self.inner[i] = list(self._passed(Site(i), list(arriving[i])))
            if i == last:
                self.end = inner
                return
            if goal is None:
                for port in self.track.ports.get(i, ()):
                    self._passed(Site(i, port=port), inner)
            for j in self.track.inputs(i):
                if route is None or j in route:
                    arriving.setdefault(j, {}).update(self._passed(Site(j, i), inner))

    def _passed(self, site: Site, states: StateRows) -> dict[State, None]:
        """The states behind a site."""
        moves = self._moves[site] = self.track.turns(site, states, self._settle)
        return dict.fromkeys(target for move in moves for _, target in move.pairs)

    def turn(self, site: Site) -> StateTurn:
        """What happens at a site of this course."""
        if site not in self._turns:
            if site == self.start and (site.port or site.consumer is not None):
                before = self._states
            elif site.consumer is not None:
                before = self.inner[site.consumer]
            else:
                before = self.inner[site.node] if site.port else self.rows[site.node]
            if site.port:
                after = list(dict.fromkeys(target for move in self._moves[site] for _, target in move.pairs))
            else:
                after = self.inner[site.node] if site.consumer is None else self.rows.get(site.node, [])
            self._turns[site] = StateTurn.of(self._moves[site], before, after)
        return self._turns[site]

    def passes(self, site: Site) -> bool:
        """Whether any message goes on behind an edge, and behind the tensor below it."""
        return bool(self._moves.get(site)) and bool(self.inner.get(site.node))

    def size(self, nodes: Iterable[int] | None = None) -> Size:
        """How much runs side by side at any of some nodes of the course (all of them)."""
        chosen = self.rows if nodes is None else [i for i in nodes if i in self.rows]
        counts = {i: max(len(self.rows[i]), len(self.inner.get(i, ()))) for i in chosen}
        values = self.track.network.tape.nodes
        entries = [count * values[i].value.numel() for i, count in counts.items()]
        return Size(max(counts.values(), default=0), max(entries, default=0))

    def carry(self, arrivals: Arrivals, settled: Callable[[Site, StateTurn, Arrivals], None]) -> Arrivals | None:
        """Carries what is at the start (in front of it) down to the goal; what is settled on the way is handed over."""
        end = Arrivals()

        def passed(site: Site, here: Arrivals) -> Arrivals | None:
            if site == self.goal:
                end.add(here)
                return None
            if not self._moves.get(site) or (site.port and self.goal is not None):
                return None
            turn = self.turn(site)
            if turn.settled:
                settled(site, turn, here)
            if site.port or not turn.moves:
                return None
            return turn.down(here)

        if self.start.port or self.start.consumer is not None:
            behind = passed(self.start, arrivals)
            if behind is None:
                return None
            arrivals = behind
        sweep(self.track.network, {self.start.node: arrivals}, passed)
        return end or None
