"""Planning: how a question is answered, and what that costs, before anything is computed.

The stops of a question lie on a chain from the output to the input. Somewhere on it messages from above meet values
from below. They can meet at one stop, whose blocks are then read off at once, or between two stops with a single linear
step between them, whose blocks are tabulated by one contraction. Blocks of all other stops are spelled out as masks,
carried along on the stack axis. The planner compares every meeting place by its arithmetic.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from nrm.capture import Combine, Linear
from nrm.operators import Convolution, Dense
from nrm.questions.adjacent import mixing_steps
from nrm.questions.stops import Stop
from nrm.questions.sweep import Site, between
from nrm.rules import Network


@dataclass(frozen=True)
class Line:
    """One line of a plan: what is done, how often, and the arithmetic of doing it that often."""

    what: str
    times: int
    flops: float


@dataclass(frozen=True, eq=False)
class Plan:
    """How a question will be answered. Printing it shows sweeps, cost, memory and the axes of the result."""

    stops: tuple[Stop, ...]
    first: int
    mixing: tuple[int, ...]
    lines: tuple[Line, ...]
    shape: tuple[int, ...]
    axes: tuple[str, ...]
    forward: float
    element: int
    chunk: int
    kept: bool

    @property
    def strategy(self) -> str:
        """``"contract"`` if two stops meet in one linear step, else ``"read"``."""
        return "contract" if self.mixing else "read"

    @property
    def above(self) -> tuple[Stop, ...]:
        """The stops above the meeting place, from the output down."""
        return self.stops[: self.first]

    @property
    def meeting(self) -> tuple[Stop, ...]:
        """The one or two stops where messages and values meet."""
        return self.stops[self.first : self.first + (2 if self.mixing else 1)]

    @property
    def below(self) -> tuple[Stop, ...]:
        """The stops below the meeting place, toward the input."""
        return self.stops[self.first + len(self.meeting) :]

    @property
    def flops(self) -> float:
        """The arithmetic of the whole plan."""
        return sum(line.flops for line in self.lines)

    @property
    def nbytes(self) -> int:
        """The size of the result."""
        return math.prod(self.shape) * self.element

    @property
    def chunks(self) -> int:
        """In how many chunks the outer blocks are worked off."""
        outer = math.prod(s.count for s in (*self.above, *self.below))
        return math.ceil(outer / self.chunk)

    def __repr__(self) -> str:
        rows = [("step", "times", "flops", "forward passes")]
        rows += [(x.what, str(x.times), f"{x.flops:.2e}", f"{x.flops / self.forward:.2f}") for x in self.lines]
        rows.append(("total", "", f"{self.flops:.2e}", f"{self.flops / self.forward:.2f}"))
        wide = [max(len(row[k]) for row in rows) for k in range(4)]
        table = "\n".join("  " + "  ".join(f"{cell:<{w}}" for cell, w in zip(row, wide, strict=True)) for row in rows)
        axes = ", ".join(f"{name} {n}" for name, n in zip(self.axes, self.shape, strict=True))
        base = "kept from before" if self.kept else "computed once and kept"
        return (
            f"plan: {self.strategy} at {' and '.join(s.frame.label for s in self.meeting)}; base sweep {base}\n"
            f"{table}\n"
            f"  result: {axes}; {self.nbytes / 2**20:.2f} MiB in {self.chunks} chunk{'s' * (self.chunks != 1)}"
        )


def make_plan(network: Network, stops: Sequence[Stop], *, memory: int, kept: bool, strategy: str | None = None) -> Plan:
    """The cheapest plan; ``strategy`` forces ``"read"`` or ``"contract"``, or one meeting place: ``"read 0"``."""
    ordered = tuple(sorted(stops, key=lambda s: s.site.order, reverse=True))
    candidates = [_plan(network, ordered, k, (), memory, kept) for k in range(len(ordered))]
    for k in range(len(ordered) - 1):
        mixing = _contractible(network, ordered[k], ordered[k + 1])
        if mixing:
            candidates.append(_plan(network, ordered, k, tuple(mixing), memory, kept))
    if strategy is not None:
        candidates = [c for c in candidates if strategy in (c.strategy, f"{c.strategy} {c.first}")]
        assert candidates, f"no plan with strategy {strategy!r}"
    return min(candidates, key=lambda plan: (plan.flops, -plan.first))


def _contractible(network: Network, high: Stop, low: Stop) -> list[int] | None:
    """The mixing steps between two stops that are both cut into channels, and nothing else."""
    if not all(len(stop.blocks) == 1 and stop.blocks[0].is_channels for stop in (high, low)):
        return None
    return mixing_steps(network, low.site, high.site)


def _plan(
    network: Network, stops: tuple[Stop, ...], first: int, mixing: tuple[int, ...], memory: int, kept: bool
) -> Plan:
    meeting = 2 if mixing else 1
    forward = sum(step_flops(network, i) for i in range(len(network.tape.nodes)))
    lines = [] if kept else [Line("base sweep", 1, sum(_reached_flops(network)))]
    times = 1
    for upper, lower in itertools.pairwise(stops[: first + 1]):
        times *= upper.count
        cost = route_flops(network, lower.site, upper.site)
        lines.append(Line(f"pull {upper.frame.label} -> {lower.frame.label}", times, times * cost))
    ups, times = times, 1
    for lower, upper in zip(reversed(stops[first + meeting :]), reversed(stops[first + meeting - 1 : -1]), strict=True):
        times *= lower.count
        cost = route_flops(network, lower.site, upper.site)
        lines.append(Line(f"push {lower.frame.label} -> {upper.frame.label}", times, times * cost))
    stack = ups * times
    if mixing:
        high, low = stops[first], stops[first + 1]
        label = f"contract {high.frame.label} x {low.frame.label}"
        lines.append(Line(label, stack, stack * route_flops(network, low.site, high.site)))
    else:
        hub = stops[first]
        lines.append(Line(f"read {hub.frame.label}", stack, stack * 2.0 * hub.frame.shape.numel()))
    element = network.tape.nodes[network.tape.output].value.element_size()
    owners = sorted((a, n, b.text) for s in stops for a, b in zip(s.axes, s.blocks, strict=True) for n in [b.shape])
    shape = [stops[0].frame.batch] + [n for _, sizes, _ in owners for n in sizes]
    names = ["sample"] + [text for _, sizes, text in owners for _ in sizes]
    chunk = max(1, int(memory // (6 * _widest(network, stops) * element)))
    return Plan(stops, first, mixing, tuple(lines), tuple(shape), tuple(names), forward, element, chunk, kept)


def step_flops(network: Network, i: int) -> float:
    """The arithmetic of one step in either direction, for a stack of one."""
    node = network.tape.nodes[i]
    size = float(node.value.numel())
    if isinstance(node.op, Linear):
        map = node.op.map
        if isinstance(map, Convolution):
            entries = map.inside.numel() if map.transposed else map.outside.numel()
            return 2.0 * entries * map.weight[0].numel()
        if isinstance(map, Dense):
            return 2.0 * size * map.weight.shape[1]
        return 4.0 * max(size, float(map.inside.numel()))
    return size * (2.0 if isinstance(node.op, Combine) else 1.0)


def route_flops(network: Network, low: Site, high: Site) -> float:
    """The arithmetic of carrying one message between two sites."""
    route = between(network, low.node, high.node) - {low.node}
    return sum(step_flops(network, i) for i in route if network.rules.reached[i])


def _reached_flops(network: Network) -> list[float]:
    """Column sums and transposes of every step that relevance reaches."""
    return [2 * step_flops(network, i) for i, reached in enumerate(network.rules.reached) if reached]


def _widest(network: Network, stops: Sequence[Stop]) -> int:
    """The largest tensor that messages of this question pass."""
    nodes = network.tape.nodes
    low, high = min(s.site.node for s in stops), max(s.site.node for s in stops)
    route = between(network, low, high) | {s.site.node for s in stops}
    return max(nodes[i].value.numel() for i in route)
