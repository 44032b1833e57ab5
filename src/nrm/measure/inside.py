"""What walks inside circuits have of the samples of one measure."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from nrm.capture import find_stream
from nrm.measure.direct import DirectEdges, direct_edges
from nrm.measure.inner import Inner
from nrm.questions import CircuitRoute


class CircuitPart:
    """The samples of one measure: their direct edges, and the mass and flows of any circuit.

    ``open`` gives the measure when it is needed: the edges may be known without it, and it need not be held.
    """

    def __init__(self, open: Callable[[], Inner], edges: DirectEdges) -> None:
        self._open, self.edges = open, edges
        self._made: tuple[Inner, CircuitRoute] | None = None

    @classmethod
    def of(cls, inner: Inner, positions: bool = False) -> CircuitPart:
        """The part of a measure that is at hand."""
        return cls(lambda: inner, direct_edges(inner, None, None, positions))

    @property
    def inner(self) -> Inner:
        """The measure."""
        return self._open()

    def masses(self, inside: Tensor) -> Tensor:
        """The mass of a circuit, ``(samples,)``."""
        inner, route = self._route()
        return inner.mine(route.mass(self._weights(inside)).expand(inner.tape.batch))

    def flows(self, inside: Tensor) -> tuple[Tensor, Tensor]:
        """The mass of a circuit and the flows of its edges, ``(samples, writers, readers)`` or with positions."""
        inner, route = self._route()
        masses, flows = route.flows(self._weights(inside))
        return inner.mine(masses.expand(inner.tape.batch)), inner.mine(flows)

    def _route(self) -> tuple[Inner, CircuitRoute]:
        inner = self._open()
        if self._made is None or self._made[0] is not inner:
            stream = find_stream(inner.tape)
            assert stream is not None  # or there were no edges
            ends = self.edges.writers, self.edges.readers
            self._made = inner, CircuitRoute(inner.network, inner.base, stream, *ends)
        return self._made

    def _weights(self, inside: Tensor) -> Tensor:
        return inside[None].to(self.edges.relevance)
