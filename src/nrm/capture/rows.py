"""Which node of a graph every row of a tensor is about: followed from the features of nodes through every op.

Layers work on each row by itself, copy the rows of nodes to edges, and sum the rows of edges at nodes; a pooling may
choose some nodes. All of these keep rows apart, so that a walk is at one node in every tensor of nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from nrm.capture.graphs import PLAIN, Graphs
from nrm.capture.ops import Select, Source, in_each_run
from nrm.capture.samples import axis_through
from nrm.capture.tape import Node, Tape
from nrm.operators import Gather, LinearMap, Scatter


@dataclass(frozen=True, eq=False)
class RowNodes:
    """The nodes of the graphs of a call, and of every tensor with a row per node (or copy of one) which node each is.

    Nodes of several kinds are numbered one kind after the other, from ``starts``; ``edges`` are those of all kinds, by
    these numbers. ``entries`` are the tensors at which walks arrive from elsewhere; in all others they are at the node
    where they are in the tensor above. ``lost`` are sums at places whose nodes are not known.
    """

    count: int
    starts: dict[str, int]
    edges: Tensor
    rows: dict[int, Tensor] = field(default_factory=dict)
    entries: list[int] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    copied: dict[int, tuple[int, ...]] = field(default_factory=dict)
    """Of what tensors with known nodes the rows of a tensor are copies, the last one first."""


def row_nodes(tape: Tape) -> RowNodes | None:
    """The node of every row of every tensor; None where there is no graph, or it is not known how many nodes it has."""
    tape = tape.here
    graphs = tape.graphs
    counts = None if graphs is None else _counts(tape, graphs)
    if graphs is None or counts is None:
        return None
    starts, total = dict[str, int](), 0
    for kind, count in counts.items():
        starts[kind], total = total, total + count
    edges = [e + e.new_tensor([[starts[one]], [starts[other]]]) for (one, _, other), e in graphs.edges.items()]
    found = RowNodes(total, starts, torch.cat(edges, 1))
    given = dict(_features(tape, graphs, counts))
    for node in tape.nodes:
        if node.index in given:
            kind = given[node.index]
            found.rows[node.index] = torch.arange(counts[kind], device=node.device) + starts[kind]
            found.entries.append(node.index)
        elif node.inputs and node.shape:
            _follow(found, tape, graphs, node)
    return found


def _counts(tape: Tape, graphs: Graphs) -> dict[str, int] | None:
    """How many nodes of every kind there are; where features are looked up, as many as are looked up."""
    counts = dict(graphs.nodes)
    if PLAIN in graphs.edges and counts.get("") is None:
        edges = graphs.edges[PLAIN]
        least = int(edges.max()) + 1 if edges.numel() else 1
        rows = [n.shape[0] for n in _sources(tape) if n.shape[0] >= least and n.shape[0] != edges.shape[1]]
        counts[""] = rows[0] if rows else None
    known = {kind: count for kind, count in counts.items() if count is not None}
    return known if len(known) == len(counts) else None


def _sources(tape: Tape) -> list[Node]:
    kinds = ("input", "embedding")
    return [n for n in tape.nodes if isinstance(n.op, Source) and n.op.kind in kinds and n.ndim > 0]


def _features(tape: Tape, graphs: Graphs, counts: dict[str, int]) -> Iterator[tuple[int, str]]:
    """The tensors with the features of nodes, each with its kind of nodes."""
    named = {index: name for name, indices in tape.names.items() if name != "input" for index in indices}
    for node in _sources(tape):
        parts = named.get(node.index, node.name).split(".")
        for kind, count in counts.items():
            if node.shape[0] == count and (PLAIN in graphs.edges or kind in parts):
                yield node.index, kind


@dataclass(frozen=True, eq=False)
class _Part:
    """What one input says of a result's rows: their nodes, of what they are copies, and whether walks arrive anew."""

    rows: Tensor | None
    copied: tuple[int, ...]
    arrives: bool


def _follow(found: RowNodes, tape: Tape, graphs: Graphs, node: Node) -> None:
    """Finds out what the rows of a result are, from those of what it reads."""
    op = in_each_run(node.op)
    maps: Sequence[LinearMap | None] | None = op.maps(len(node.inputs))
    if isinstance(op, Select) and op.reduce is not None:
        maps = [op.reduce]
    if maps is None:
        return
    parts = [
        _part(found, tape, graphs, map, tape.nodes[i], node) for map, i in zip(maps, node.inputs, strict=True)
    ]  # fmt: skip
    rows = [part.rows for part in parts if part.rows is not None]
    chains = {part.copied for part in parts if part.rows is not None or part.copied}
    if len(chains) == 1 or len({_names(found, chain) for chain in chains}) == 1:
        found.copied[node.index] = next(iter(chains))
    if rows and all(torch.equal(other, rows[0]) for other in rows[1:]):
        found.rows[node.index] = rows[0]
        foreign = [p for p, i in zip(parts, node.inputs, strict=True) if p.rows is None and tape.nodes[i].inputs]
        given = [i for p, i in zip(parts, node.inputs, strict=True) if p.rows is None and i in tape.inputs]
        if foreign or given or any(part.arrives for part in parts):
            found.entries.append(node.index)


def _names(found: RowNodes, chain: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The nodes of the tensors in a chain of copies, by which chains are compared."""
    return tuple(tuple(found.rows[i].tolist()) for i in chain)


NOTHING = _Part(None, (), arrives=False)


def _part(
    found: RowNodes, tape: Tape, graphs: Graphs, map: LinearMap | None, below: Node, node: Node
) -> _Part:  # fmt: skip
    rows, copied = found.rows.get(below.index), found.copied.get(below.index, ())
    if isinstance(map, Scatter):
        return _summed(found, tape, graphs, map, below, node)
    if rows is None and not copied:
        return NOTHING
    if isinstance(map, Gather):
        return _gathered(map, rows, copied, below, node)
    same = bool(below.shape) and below.shape[0] == node.shape[0]
    kept = same and (map is None or axis_through(map, 0) == 0)
    return _Part(rows, copied, arrives=False) if kept else NOTHING


def _gathered(map: Gather, rows: Tensor | None, copied: tuple[int, ...], below: Node, node: Node) -> _Part:
    """Rows that are copied as a whole keep their nodes."""
    if not map.index.numel() or bool((map.index < 0).any()):
        return NOTHING
    width = max(below.shape[1:].numel(), 1)
    lines = map.index.view(node.shape[0], -1)
    first = lines[:, 0] // width
    if not bool((lines // width == first[:, None]).all()):
        return NOTHING
    if torch.equal(first, torch.arange(below.shape[0], device=first.device)):
        return _Part(rows, copied, arrives=False)
    return NOTHING if rows is None else _Part(rows[first], (below.index, *copied), arrives=False)


def _summed(found: RowNodes, tape: Tape, graphs: Graphs, map: Scatter, below: Node, node: Node) -> _Part:
    """Sums over neighbours are at the nodes that were copied to edges, or at those where the edges of the call end."""
    count, copied = node.shape[0], found.copied.get(below.index, ())
    width = max(node.shape[1:].numel(), 1)
    lines = map.index.view(below.shape[0], -1) if below.shape and below.shape[0] else map.index.view(0, 1)
    targets = lines[:, 0] // width
    for (one, _, other), edges in graphs.edges.items():
        ends = graphs.nodes[other] if other else found.count
        if one != other and ends == count and torch.equal(targets, edges[1]):
            return _Part(torch.arange(count, device=node.device) + found.starts[other], (), arrives=True)
    for i in copied:
        if tape.nodes[i].shape[0] == count:
            return _Part(found.rows[i], (), arrives=True)
    for (one, _, other), edges in graphs.edges.items():
        if one == other and count == (graphs.nodes[one] or found.count):
            size = edges.shape[1]
            if any(len(targets) >= size and torch.equal(targets[:size], end) for end in (edges[1], edges[0])):
                return _Part(torch.arange(count, device=node.device) + found.starts[one], (), arrives=True)
    sizes = {n for n in (*graphs.nodes.values(), found.count) if n is not None}
    pools = node.op.kind == "pool"
    if not pools and found.rows.get(below.index) is None and (count > graphs.count or sizes & set(node.shape)):
        found.lost.append(node.index)  # nodes may lie along another axis, as behind stacks of layers
    return NOTHING
