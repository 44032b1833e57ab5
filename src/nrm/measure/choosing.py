"""Which edges make a circuit: by their share, by the mass that is to stay inside, or by their flow inside."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from nrm.capture import plain_execution
from nrm.errors import QuestionError, warn
from nrm.measure.circuit import Chain, Circuit, possible_edges, refuse_others
from nrm.measure.inside import CircuitPart
from nrm.measure.living import LivingEdges
from nrm.questions import feeds

SATURATED = 1.3
"""Above this predicted mass networks saturate: the difference that comes back is smaller than predicted."""

SHRINK = 0.7
"""What is left of a circuit in a step of shrinking it by its flow."""

HALVINGS = 12
"""So often a bisection halves its range."""

FITTING = 0.02
"""So near to the wanted mass a circuit fits."""

MISSED = 0.05
"""Farther from the wanted mass, a circuit is said to have missed it."""

GROWTH, GROWTHS = 1.25, 12
"""By this a circuit grows if no weight makes it fit, and so often."""

REFILLS = 6
"""So often edges at single positions that no walk takes are exchanged for others."""

HEAVIEST = 8.0
"""The largest weight of edges that hinder, beside those that help."""

Edges = Circuit | Tensor | Sequence[tuple[str, str]]
"""A circuit given by hand: another one, marks ``(writers, readers)``, or pairs of names with ``*`` and ``?``."""


def find_circuit(
    parts: Sequence[CircuitPart], *, top: float | None = None, mass: float | None = None, by: str = "share",
    edges: Edges | None = None, chains: int = 0,
) -> Circuit:  # fmt: skip
    """The circuit that ``R.circuit`` is asked for; of several measures, one for all of their samples."""
    refuse_options(top, mass, by, edges)
    finder = CircuitFinder(parts)
    with plain_execution():
        if edges is not None:
            inside = finder.given(edges)
        elif by == "flow":
            inside = finder.by_flow(top, mass)
        elif mass is not None:
            inside = finder.taken(finder.by_mass(mass, None if top is None else finder.number(top)))
        else:
            assert top is not None
            inside = finder.by_place(finder.number(top))
        found = finder.circuit(inside, chains)
    if mass is not None and top is None and by == "share" and abs((found.mass or 0) - mass) > MISSED:
        warn(f"no circuit of mass {mass:g} was found among those tried: this one has {found.mass:.3f}")
    return found


def refuse_options(top: float | None, mass: float | None, by: str, edges: Edges | None) -> None:
    """Refuses what asks for no circuit, or for two."""
    if by not in ("share", "flow"):
        raise QuestionError("edges are ranked by share or by flow", got=f"by={by!r}", expected="'share' or 'flow'")
    if edges is not None and (top is not None or mass is not None):
        raise QuestionError(
            "edges are given or chosen", got="edges= together with top= or mass=", expected="one of them"
        )
    if edges is None and top is None and mass is None:
        raise QuestionError(
            "how large is the circuit to be?", got="R.circuit()", expected="top=, mass= or edges=",
            hint="R.circuit(mass=0.9), R.circuit(top=0.01), R.circuit(top=200)",
        )  # fmt: skip
    if top is not None and (isinstance(top, bool) or not (top >= 1 if isinstance(top, int) else 0 < top <= 1)):
        raise QuestionError(
            "so many edges cannot be chosen", got=f"top={top!r}", expected="a whole number from 1, or a share in (0, 1]"
        )
    if mass is not None and not (math.isfinite(mass) and mass > 0):
        raise QuestionError("the mass of a circuit", got=f"mass={mass!r}", expected="a positive number, such as 0.9")


class CircuitFinder:
    """Chooses edges of one or several measures of a network, and knows the mass of every choice."""

    def __init__(self, parts: Sequence[CircuitPart]) -> None:
        self._parts = parts
        first = self._parts[0].edges
        self.writers, self.readers = first.writers, first.readers
        """Who writes to the stream, and who reads it."""
        for part in self._parts[1:]:
            refuse_others((self.writers, self.readers, first.relevance[0]), part.edges, part.edges.relevance[0])
        self._values = torch.cat([part.edges.value for part in self._parts])
        total = self._values.sum()
        if not bool(total.abs() > 0):
            raise QuestionError(
                "there is no difference to be shared", got=f"explained values that add up to {float(total):.3g}",
                expected="a difference of one sign", hint="measure samples one by one, or choose another target",
            )  # fmt: skip
        self._weights = self._values / total
        self.shares = self._mean(lambda part: part.edges.relevance)
        """The share of every edge in the mean explained value, ``(writers, readers)`` or with positions."""
        exists = possible_edges(self.writers, self.readers).to(self.shares.device)
        self.exists = exists.view(*exists.shape, *(1,) * (self.shares.ndim - 2)).expand(self.shares.shape)
        """Which pairs are edges."""

    def number(self, top: float) -> int:
        """A number of edges, or a share of all, as a number."""
        return top if isinstance(top, int) else max(1, round(top * int(self.exists.sum())))

    def mass(self, inside: Tensor) -> float:
        """The mass of the walks that stay inside, as a share of the mean explained value."""
        return float(self._mean(lambda part: part.masses(inside)))

    def circuit(self, inside: Tensor, chains: int = 0) -> Circuit:
        """The circuit of some edges, with its flows."""
        if not bool(inside.any()):
            raise QuestionError("the circuit is empty", got="no edge", expected="at least one edge from below to above")
        found = [part.flows(inside) for part in self._parts]
        masses = torch.cat([masses for masses, _ in found])
        total = float((masses * self._weights).sum())
        if total > SATURATED:
            warn(
                f"the predicted mass of this circuit is {total:.2f}: above {SATURATED} networks saturate, and the "
                "difference that really comes back is smaller (nrm.evaluate.patch measures it)"
            )
        flow = self._averaged([flow for _, flow in found])
        circuit = Circuit(
            self.writers, self.readers, inside, self.shares * inside, flow * inside, total, masses, self._values,
            self._parts[0].inner.origin.digest(),
        )  # fmt: skip
        return replace(circuit, chains=tuple(self._chains(circuit, chains))) if chains else circuit

    # ---- choices ---------------------------------------------------------------------------------------------

    def given(self, edges: Edges) -> Tensor:
        """A circuit by hand, as marks."""
        blank = torch.zeros_like(self.exists)
        if isinstance(edges, Circuit):
            refuse_others((self.writers, self.readers, blank), edges, edges.inside)
            return edges.inside.to(blank.device) & self.exists
        if isinstance(edges, Tensor):
            if edges.shape != blank.shape or edges.dtype != torch.bool:
                raise QuestionError(
                    "marks of edges", got=f"{edges.dtype} of shape {tuple(edges.shape)}",
                    expected=f"torch.bool of shape {tuple(blank.shape)}",
                )  # fmt: skip
            return edges.to(blank.device) & self.exists
        for pair in edges:
            blank = blank | self._named(pair)
        return blank & self.exists

    def _named(self, pair: Any) -> Tensor:
        if not (isinstance(pair, tuple | list) and len(pair) == 2 and all(isinstance(name, str) for name in pair)):
            raise QuestionError(
                "an edge is a pair of names", got=repr(pair)[:80], expected="('layers.0.attn.head(1)', 'output')"
            )
        rows, columns = (
            torch.tensor([fnmatch.fnmatchcase(str(end), name) for end in ends])
            for name, ends in zip(pair, (self.writers, self.readers), strict=True)
        )
        found = (rows[:, None] & columns[None]).view(*self.exists.shape[:2], *(1,) * (self.exists.ndim - 2))
        if not bool((found & self.exists).any()):
            raise QuestionError(
                "no edge of the stream has these names", got=repr(tuple(pair)),
                expected=f"a writer such as {str(self.writers[-1])!r}, a reader such as "
                f"{str(self.readers[-1])!r}", hint="R.direct() has all of them; * and ? stand for letters",
            )  # fmt: skip
        return found.expand(self.exists.shape)

    def by_share(self, number: int, scores: Tensor | None = None) -> Tensor:
        """At most so many edges with the largest scores that lie on a way from below to the output.

        Scores are the absolute shares if there are none. Edges that no walk inside takes are left out, and further ones
        take their places.
        """
        return self.living.best(number, self.shares.abs() if scores is None else scores)

    def by_place(self, number: int) -> Tensor:
        """Edges by share, where those at single positions that no walk takes are left out as well.

        At a position an edge may lie on a way by its names and on none by its place: then its flow is 0, and the next
        one takes its place.
        """
        scores = self.shares.abs()
        found = self.by_share(number, scores)
        for _ in self._steps(REFILLS if found.ndim > 2 else 0):
            dead = found & ~self.taken(found)
            if not bool(dead.any()):
                break
            scores = scores.masked_fill(dead, -1.0)
            found = self.by_share(number, scores)
        return self.taken(found)

    def taken(self, inside: Tensor) -> Tensor:
        """The edges that walks inside take; without the others the mass is the same."""
        if inside.ndim < 3:
            return inside  # these lie on ways already
        flowing = inside & (self._flow(inside) != 0)
        return flowing if bool(flowing.any()) else inside

    def by_mass(self, target: float, number: int | None) -> Tensor:
        """A small circuit of a mass: edges that help first, of those that hinder as many as make the mass fit.

        Edges are ranked by their share s where it is positive and by ``weight * |s|`` elsewhere. With weight 0 the mass
        is largest. The smallest size at which it is enough is searched for, then the weight at which it fits; where
        none does, the circuit grows. A smaller circuit of that mass is not excluded.
        """
        if number is not None:
            return self._fitting(number, target)[1]
        size = self._enough(lambda size: self.mass(self.by_share(size, self._keys(0.0))) >= target)
        tried = []
        for _ in self._steps(GROWTHS):
            tried.append(self._fitting(size, target))
            if tried[-1][0] <= FITTING or size >= int(self.exists.sum()):
                break
            size = max(size + 1, round(GROWTH * size))
        return min(tried, key=lambda one: one[0])[1]

    def _keys(self, weight: float) -> Tensor:
        return torch.where(self.shares > 0, self.shares, weight * self.shares.abs())

    def _fitting(self, size: int, target: float) -> tuple[float, Tensor]:
        """How far its mass is from the wanted one, and the circuit: of a size, that with the best weight."""
        tried: list[tuple[float, Tensor]] = []

        def attempt(weight: float) -> float:
            inside = self.by_share(size, self._keys(weight))
            mass = self.mass(inside)
            tried.append((abs(mass - target), inside))
            return mass

        if attempt(0.0) > target:
            low, high = 0.0, 1.0
            while high < HEAVIEST and attempt(high) > target:
                low, high = high, 2 * high
            for _ in range(HALVINGS):
                if min(tried, key=lambda one: one[0])[0] <= FITTING:
                    break
                middle = (low + high) / 2
                low, high = (middle, high) if attempt(middle) > target else (low, middle)
        return min(tried, key=lambda one: one[0])

    def _enough(self, is_enough: Callable[[int], bool]) -> int:
        """The smallest size that is enough, on a scale of ratios; all edges if none is."""
        low, high = 1, int(self.exists.sum())
        for _ in self._steps(2 * HALVINGS):
            if high - low <= max(1, low // 50):
                break
            middle = round(math.sqrt(low * high)) if high > 2 * low else (low + high) // 2
            low, high = (low, middle) if is_enough(middle) else (middle, high)
        return high

    def by_flow(self, top: float | None, mass: float | None) -> Tensor:
        """Shrinks all edges step by step to those with the largest flow inside what is left.

        It ends at a number of edges, or before the mass would fall below the wanted one.
        """
        inside = self.alive(self.exists)
        goal = 1 if top is None else min(self.number(top), int(inside.sum()))
        for _ in self._steps(None):
            size = int(inside.sum())
            if size <= goal:
                break
            scores = self._flow(inside).abs()
            smaller = self.by_share(max(goal, int(SHRINK * size)), torch.where(inside, scores, -1.0)) & inside
            smaller = self.alive(smaller)
            if not bool(smaller.any()) or (mass is not None and self.mass(smaller) < mass):
                break
            if int(smaller.sum()) == size:
                break
            inside = smaller
        return inside

    # ---- what is alive ---------------------------------------------------------------------------------------

    def alive(self, inside: Tensor) -> Tensor:
        """The edges that lie on a way from where walks begin to the output, by other edges that are inside."""
        return self.living.of(inside)

    @cached_property
    def living(self) -> LivingEdges:
        """Which edges lie on ways."""
        plain = self._parts[0].inner.tape.runs is None
        return LivingEdges(self.writers, self.readers, self.exists, plain)

    # ---- chains ----------------------------------------------------------------------------------------------

    def _chains(self, circuit: Circuit, number: int) -> Iterator[Chain]:
        """The strongest ways through a circuit, from the output down, each time the largest flow is followed.

        All flows are exact. As they have signs, a stronger way behind a weaker one is not excluded.
        """
        last = len(self.readers) - 1
        open_ways = self._extended(circuit.inside, (), [last])
        found = 0
        for _ in self._steps(20 * number):
            if not open_ways or found == number:
                return
            best = max(range(len(open_ways)), key=lambda n: abs(open_ways[n][0]))
            flow, way = open_ways.pop(best)
            writer = self.writers[way[-1][0]]
            readers = [n for n, r in enumerate(self.readers) if feeds(r, writer)]
            if readers:
                open_ways += self._extended(circuit.inside, way, readers)
            else:
                found += 1
                yield Chain(tuple(circuit.edge(at) for at in reversed(way)), flow)

    def _extended(
        self, inside: Tensor, way: tuple[tuple[int, ...], ...], readers: list[int]
    ) -> list[tuple[float, tuple[tuple[int, ...], ...]]]:
        """A way from the output down and one more edge into some readers, with the exact flow of each."""
        only = inside.clone()
        for at in way:
            siblings = self._siblings(at[1])
            only[:, siblings] = False
            only[at] = True
        mean = self._flow(only)
        places = [tuple(p) for p in mean[:, readers].nonzero().tolist()]
        return [
            (float(mean[(p[0], readers[p[1]], *p[2:])]), (*way, (p[0], readers[p[1]], *p[2:]))) for p in places
        ]  # fmt: skip

    def _siblings(self, reader: int) -> list[int]:
        """The readers that lead to what a reader leads to: a way takes one of them."""
        inner = self.living.branches
        writers = inner[reader].bool()
        if not bool(writers.any()):
            return [reader]
        return inner[:, writers].any(1).nonzero().flatten().tolist()

    # ---- numbers ---------------------------------------------------------------------------------------------

    def _flow(self, inside: Tensor) -> Tensor:
        """The flow of every edge inside, as a share of the mean explained value."""
        return self._mean(lambda part: part.flows(inside)[1]) * inside

    def _mean(self, asked: Callable[[CircuitPart], Tensor]) -> Tensor:
        """Shares of all samples as shares of the mean explained value."""
        return self._averaged([asked(part) for part in self._parts])

    def _averaged(self, shares: Sequence[Tensor]) -> Tensor:
        weights = torch.split(self._weights, [len(part) for part in shares])
        return sum(
            ((s * w.view(-1, *(1,) * (s.ndim - 1))).sum(0) for s, w in zip(shares, weights, strict=True)),
            self._weights.new_zeros(()),
        )

    def _steps(self, total: int | None) -> Iterator[int]:
        numbers = iter(int, 1) if total is None else iter(range(total))
        return iter(self._parts[0].inner.progress("circuit")(numbers, total))
