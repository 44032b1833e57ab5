"""Outlooks: what still lies ahead of messages in every state, pushed from below to where they are read."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from nrm.questions.course import Course
from nrm.questions.sweep import Site, leaves, needed
from nrm.rules import Arrivals, Change, Values


class Outlook:
    """For every neuron and state, the share of its walks that will count (times the weights they will take).

    The values of a push (:class:`nrm.rules.Values`), one on the stack for every state behind the consumer that reads
    them. The course starts where messages are read; nothing is settled on it.
    """

    def __init__(self, course: Course) -> None:
        self._course = course
        self._track = course.track
        self._network = course.track.network
        self._values: dict[int, Tensor] = {}
        self._open = {
            i for i, rows in course.inner.items() if not all(course.track.is_settled(state, i) for state in rows)
        }
        """Where something below makes a difference to some state; elsewhere all values are 1."""

    def steps(self) -> list[int]:
        """The nodes whose values have to be computed, from below."""
        i = self._course.start.node
        return sorted(needed(self._network, set(self._read(i)), self._open)) if i in self._open else []

    def rise(self) -> Outlook:
        """Computes all values that are read at the start of the course; drops those that nobody reads any more."""
        steps = self.steps()
        last = {j: i for i in (*steps, self._course.start.node) for j in self._read(i)}
        for i in steps:
            value = self._network.value(i, self)
            if value is not None:
                self._values[i] = value
            for j in [j for j in self._values if last.get(j) == i]:
                del self._values[j]
        return self

    def _read(self, i: int) -> Iterable[int]:
        return (*self._network.tape.nodes[i].inputs, *leaves(self._network, i))

    def ahead(self, arrivals: Arrivals, i: int) -> list[Tensor]:
        """The relevance of every neuron of a node from messages behind it, all states together, as tensors to add."""
        rows = len(self._course.inner[i])
        parts = self._network.relevance_parts(i, arrivals, self if i in self._open else None)
        found = []
        for message, value in parts:
            messages = message.reshape(rows, -1, *message.shape[1:])
            found.append((messages if value is None else messages * value[:, None]).sum(0))
        return found

    # ---- the protocol of Values ------------------------------------------------------------------------------

    def at(self, i: int, consumer: int) -> Tensor | None:
        """The values of a tensor as one of its consumers sees it."""
        if not self._course.passes(Site(i, consumer)):
            return None
        shape, rows = self._network.tape.nodes[i].shape, self._course.inner[i]
        value = self._values.get(i)
        if i not in self._open:
            like = self._network.tape.nodes[i].value
            value = torch.ones((), dtype=like.dtype, device=like.device).expand(len(rows), *shape)
        return None if value is None else self._changed(i, consumer, value)

    def together(self, i: int, consumer: int) -> None:
        """States are apart."""
        return

    def enter(self, i: int, consumer: int) -> tuple[Values, Change] | None:
        """What happens at a tensor inside a fused step, and on the edge above it."""
        if not self._course.passes(Site(i, consumer)):
            return _Nothing(), lambda value: value
        return self, lambda value: self._changed(i, consumer, value)

    def _changed(self, i: int, consumer: int, value: Tensor) -> Tensor:
        return self._course.turn(Site(i, consumer)).up(self._course.turn(Site(i)).up(value))

    def drains(self, i: int) -> list[tuple[str, Tensor]]:
        """The values at a node's drains, where walks begin."""
        found = []
        for port in self._track.ports.get(i, ()):
            turn = self._course.turn(Site(i, port=port))
            shape = self._network.drain_shape(i, port)
            if turn.after:
                found.append((port, turn.up(self._network.tape.nodes[i].value.new_ones(turn.after, *shape))))
        return found


class _Nothing:
    """The values below a tensor that no state enters: 0."""

    def at(self, i: int, consumer: int) -> None:
        return

    def together(self, i: int, consumer: int) -> None:
        return

    def enter(self, i: int, consumer: int) -> None:
        return

    def drains(self, i: int) -> list[tuple[str, Tensor]]:
        return []
