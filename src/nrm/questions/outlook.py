"""Outlooks: what still lies ahead of messages in every state, pushed from below to where they are read."""

from __future__ import annotations

from torch import Tensor

from nrm.questions.course import Course
from nrm.questions.sweep import Site
from nrm.steps import Arrivals


class Outlook:
    """For every neuron and state, its unit times the share of its walks that will count (times the weights they take).

    The amounts of a push (:class:`nrm.steps.Amounts`), one on the stack for every state behind the consumer that reads
    them. The course starts where densities are read; nothing is settled on it.
    """

    def __init__(self, course: Course) -> None:
        self._course = course
        self._track = course.track
        self._network = course.track.network
        self._amounts: dict[int, dict[int, Tensor]] = {}
        self._open = {
            i for i, rows in course.inner.items() if not all(course.track.is_settled(state, i) for state in rows)
        }
        """Where something below makes a difference to some state; elsewhere all walks count, and amounts are units."""

    def steps(self) -> list[int]:
        """The tensors whose amounts have to be computed, from below."""
        start, nodes = self._course.start.node, self._network.tape.nodes
        needed = {start} & self._open
        for i in range(start, -1, -1):
            if i in needed:
                needed.update(j for j in nodes[i].inputs if j in self._open)
        return sorted(needed - {start})

    def rise(self) -> Outlook:
        """Computes all amounts that are read at the start of the course; drops those that nobody reads any more."""
        steps, nodes = self.steps(), self._network.tape.nodes
        last = {j: i for i in (*steps, self._course.start.node) for j in nodes[i].inputs}
        for i in steps:
            self._amounts[i] = self._network.amounts(i, self)
            for j in [j for j in self._amounts if last.get(j) == i]:
                del self._amounts[j]
        return self

    def ahead(self, arrivals: Arrivals, i: int) -> list[Tensor]:
        """The relevance of every neuron of a tensor from densities behind it, over all states, as tensors to add."""
        network, rows, found = self._network, len(self._course.inner[i]), []
        for node, rho in arrivals.items():
            densities = rho.reshape(rows, -1, *rho.shape[1:])
            if i in self._open:
                amount = network.amount(network.nodes[node], self)
                if amount is not None:
                    found.append((densities * amount[:, None]).sum(0))
            else:
                unit = network.unit(node)
                found.append((densities if unit is None else densities * unit).sum(0))
        return found

    # ---- the protocol of Amounts -----------------------------------------------------------------------------

    def at(self, node: int, consumer: int) -> Tensor | None:
        """The amounts at a node as one of its tensor's consumers sees it."""
        network, course = self._network, self._course
        i = network.nodes[node].tensor
        if not course.passes(Site(i, consumer)):
            return None
        amount = self._amounts.get(i, {}).get(node)
        if i not in self._open:
            amount = network.full_unit(node).expand(len(course.inner[i]), *network.tape.nodes[i].shape)
        return None if amount is None else course.turn(Site(i, consumer)).up(course.turn(Site(i)).up(amount))

    def together(self, node: int, consumer: int) -> None:
        """States are apart."""
        return

    def drain(self, i: int, port: str) -> Tensor | None:
        """The amounts at a drain, where walks begin."""
        if port not in self._track.ports.get(i, ()):
            return None
        turn = self._course.turn(Site(i, port=port))
        if not turn.after:
            return None
        return turn.up(self._network.tape.nodes[i].value.new_ones(turn.after, *self._network.drain_shape(i, port)))
