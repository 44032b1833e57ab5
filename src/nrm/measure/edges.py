"""The sums over neighbours in graph layers: which tensor travels along the edges, and which edge every row of it is.

A graph layer copies nodes to edges, scales the copies and sums them at their targets. The rows of the summed tensor are
the graph's edges, in an order of their own: layers drop loops, add loops of their own, or sort.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from nrm.capture import Combine, Multiply, Node, Select, Tape, in_each_run
from nrm.errors import QuestionError
from nrm.operators import Gather, Scatter, Slice


class EdgeStep(NamedTuple):
    """One sum over neighbours: its node, the node of what is summed, every row's target and source (if known)."""

    sum: int
    rows: int
    targets: Tensor
    sources: Tensor | None


def find_edge_steps(tape: Tape, name: str) -> list[EdgeStep]:
    """The sums over neighbours inside a layer, down to what the layer receives."""
    top = tape.find(name)
    own = _step_of(tape, top)
    if own is not None:
        return [own]
    within = inside(tape, name)
    found, seen, waiting = [], {top.index}, [top]
    while waiting:
        node = waiting.pop()
        here = _step_of(tape, node)
        if here is not None:
            found.append(here)
            continue  # below it are the layer's input and the sums of weights over neighbours
        for i in node.inputs:
            if i not in seen and within(tape.nodes[i]):
                seen.add(i)
                waiting.append(tape.nodes[i])
    return sorted(found)


def inside(tape: Tape, name: str) -> Callable[[Node], bool]:
    """Whether a node below a layer's result was made by this call of it.

    Layers may call modules that are not their own, such as an activation that all layers of a model share: these run
    after the layer has received its input.
    """
    path = name.rpartition("#")[0] if name not in tape.names and "#" in name else name
    received = tape.find(f"{name}.input").index if path in tape.received else len(tape.nodes)

    def within(node: Node) -> bool:
        own = node.module == path or node.module.startswith(f"{path}.")
        outer = not node.module or path.startswith(f"{node.module}.")
        return own or (node.index > received and not outer)

    return within


def number_edges(step: EdgeStep, edges: Tensor) -> Tensor:
    """The number of every row in a list of edges ``(2, edges)``; -1 for loops that the layer has added.

    Where several edges join the same nodes, the first row is the first of them.

    >>> edges = torch.tensor([[1, 0, 2], [0, 1, 0]])
    >>> loops_last = EdgeStep(9, 8, torch.tensor([1, 0, 0, 0, 1, 2]), torch.tensor([0, 1, 2, 0, 1, 2]))
    >>> number_edges(loops_last, edges)
    tensor([ 1,  0,  2, -1, -1, -1])
    """
    count = len(step.targets)
    for source, target in ((0, 1), (1, 0)):
        if count == edges.shape[1] and torch.equal(step.targets, edges[target]):
            return torch.arange(count, device=edges.device)
        if step.sources is not None:
            numbers = _matched(step.sources, step.targets, edges[source], edges[target])
            foreign = (numbers < 0) & (step.sources != step.targets)
            if not bool(foreign.any()):
                return numbers
    raise QuestionError(
        "this layer does not sum along the edges of the graph", got=f"{count} rows",
        expected=f"the {edges.shape[1]} edges of edge_index, and loops",
        hint="R(lower.position(u), upper.position(v)) is the relevance from node u to node v",
    )  # fmt: skip


def number_among(step: EdgeStep, lists: Sequence[Tensor]) -> tuple[Tensor, int]:
    """The number of every row in the list of edges that it is from, and how many edges that list has.

    Of a graph with several kinds of edges it is the list with most of the rows, of which loops are none.
    """
    found: list[tuple[int, Tensor, int]] = []
    for edges in lists:
        try:
            numbers = number_edges(step, edges)
        except QuestionError:  # of another kind
            if edges is lists[-1] and not found:
                raise
            continue
        found.append((int((numbers >= 0).sum()), numbers, edges.shape[1]))
    _, numbers, count = max(found, key=lambda one: one[0])
    return numbers, count


def _matched(sources: Tensor, targets: Tensor, edge_sources: Tensor, edge_targets: Tensor) -> Tensor:
    waiting: dict[tuple[int, int], list[int]] = {}
    for number, pair in reversed(list(enumerate(zip(edge_sources.tolist(), edge_targets.tolist(), strict=True)))):
        waiting.setdefault(pair, []).append(number)
    numbers = [
        waiting[pair].pop() if waiting.get(pair) else -1
        for pair in zip(sources.tolist(), targets.tolist(), strict=True)
    ]
    return torch.tensor(numbers, dtype=torch.long, device=sources.device)


def _step_of(tape: Tape, node: Node) -> EdgeStep | None:
    """What a node says of edges, if it sums over neighbours or chooses from them."""
    op = in_each_run(node.op)
    if isinstance(op, Select) and isinstance(op.reduce, Scatter):
        return _step(tape, node, node.inputs[0], op.reduce, op.reduce.index)
    if not isinstance(op, Combine):
        return None
    for term, i in zip(op.terms, node.inputs, strict=True):
        below = tape.nodes[i]
        if isinstance(term.move, Scatter):
            return _step(tape, node, i, term.move, term.move.index)
        inner = in_each_run(below.op)
        chosen = inner.reduce if isinstance(inner, Select) else None
        if isinstance(chosen, Scatter) and isinstance(term.move, Gather):  # nodes without neighbours are put in later
            filled = (term.move.index >= 0).nonzero()[:, 0]
            return _step(tape, node, below.inputs[0], chosen, filled[chosen.index])
    return None


def _step(tape: Tape, node: Node, below: int, along: Scatter, places: Tensor) -> EdgeStep | None:
    if not along.inside or len(along.inside) != len(node.shape):
        return None
    rows = along.inside[0]
    targets = places.view(rows, -1)[:, 0] // max(node.shape[1:].numel(), 1)
    return EdgeStep(node.index, below, targets, _sources_of(tape, tape.nodes[below], rows))


def _sources_of(tape: Tape, node: Node, rows: int) -> Tensor | None:
    """The node that every row is a copy of, seen through scaling, weights and movement that keeps rows."""
    op = in_each_run(node.op)
    if not node.shape or node.shape[0] != rows:
        return None
    if isinstance(op, Multiply) and not op.quotient:
        found = (_sources_of(tape, tape.nodes[i], rows) for i in node.inputs)
        return next((sources for sources in found if sources is not None), None)
    if not isinstance(op, Combine) or len(op.terms) != 1 or op.joins:
        return None
    move = op.terms[0].move
    if isinstance(move, Gather) and bool((move.index >= 0).all()):
        lines = (move.index // max(move.inside[1:].numel(), 1)).view(rows, -1)
        return lines[:, 0] if bool((lines == lines[:, :1]).all()) else None
    return None if isinstance(move, Slice) else _sources_of(tape, tape.nodes[node.inputs[0]], rows)
