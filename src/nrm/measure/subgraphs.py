"""Connected subgraphs of the graphs of a measure, by the walks that stay inside them."""

from __future__ import annotations

import torch

from nrm.capture import RowNodes, plain_execution, row_nodes
from nrm.errors import QuestionError
from nrm.measure.inner import Inner
from nrm.measure.labels import name_of
from nrm.questions import Formula, Layer, Set, visits
from nrm.search import (
    InnerWalks,
    Neighbours,
    NodeGraph,
    NodeSite,
    Request,
    Subgraph,
    Subgraphs,
    SubgraphSearch,
    read_count,
)


def subgraphs_of(inner: Inner, size: int, request: Request) -> Subgraphs:
    """Each sample's connected subgraphs of so many nodes with the largest relevance."""
    count = read_count(size, "nodes", "size")
    inner.origin.check_fresh()
    with plain_execution():
        inner.be_loud()
        found = _known_rows(inner)
        graph = _node_graph(inner, found)
        walks = InnerWalks(inner.network, inner.base, graph, memory=inner.memory)
        search = SubgraphSearch(walks, graph, list(inner.samples), inner.progress())
        best, rest = search.run(count, request)
    lists, gaps = [], []
    for s in inner.samples:
        lists.append([
            _named(inner, found, graph, Subgraph(s, nodes, relevance, -score >= rest[s], ()))
            for score, nodes, relevance in best[s].found
        ])  # fmt: skip
        gaps.append(max(0.0, rest[s] - best[s].threshold))
    return Subgraphs(lists, list(inner.samples), gaps)


def _known_rows(inner: Inner) -> RowNodes:
    """The nodes of all tensors; an error where walks pass sums whose nodes are not known."""
    found = row_nodes(inner.tape)
    if found is None:
        raise QuestionError(
            "there is no graph among the inputs", expected="edge_index, as an argument of forward or in a Data object",
            hint="R.flows(layer.positions, ..., k=10) finds walks over positions",
        )  # fmt: skip
    lost = [inner.tape.nodes[i].name for i in found.lost if i in inner.base.arrivals]
    if lost:
        raise QuestionError(
            "it is not known to which nodes a sum belongs", where=f"layer {lost[0]!r}",
            expected="sums over neighbours of nodes of this graph",
            hint="R(*[layer.position(nodes) for layer in layers]) has the walks inside some nodes of layers you know",
        )  # fmt: skip
    return found


def _node_graph(inner: Inner, found: RowNodes) -> NodeGraph:
    """The graph, with the tensors at which walks that have relevance arrive at nodes."""
    graphs = inner.tape.here.graphs
    assert graphs is not None
    parts = [graphs.batch.get(kind) for kind in found.starts]
    empty = torch.zeros(found.count, dtype=torch.long, device=found.edges.device)
    owner = torch.cat([part for part in parts if part is not None]) if graphs.batch else empty
    sites = [NodeSite(i, found.rows[i]) for i in found.entries if i in inner.base.arrivals]
    pairs = [(a, b) for a, b in found.edges.T.tolist()]
    return NodeGraph(owner, Neighbours(found.count, pairs), sites, inner.tape.inputs)


def _named(inner: Inner, found: RowNodes, graph: NodeGraph, one: Subgraph) -> Subgraph:
    """A subgraph with the numbers that its nodes have among their kind, what to ask for it, and names of its nodes."""
    kinds = sorted(found.starts.items(), key=lambda item: item[1])
    numbers = []
    for node in one.nodes:
        kind, start = next((k, s) for k, s in reversed(kinds) if s <= node)
        numbers.append((kind, node - start) if kind else node)
    names = [name_of(inner.labels, "input", node, one.sample) for node in one.nodes]
    labels = tuple(name for name in names if name is not None)
    return Subgraph(
        one.sample, tuple(numbers), one.relevance, one.certified, (_event(inner, graph, one.nodes),),
        labels if len(labels) == len(names) else (),
    )  # fmt: skip


def _event(inner: Inner, graph: NodeGraph, nodes: tuple[int, ...]) -> Formula:
    """The walks that begin at the features of some nodes and visit no others."""
    starts, outside = list[Set](), list[Set]()
    inputs = [i for i in graph.inputs if i in inner.base.arrivals]
    at = {site.tensor: torch.isin(site.rows, torch.tensor(nodes, device=site.rows.device)) for site in graph.sites}
    for i in inputs:
        layer = _layer(inner, i)
        starts.append(layer[at[i].nonzero()[:, 0].tolist()] if i in at else layer.all)
    for i, inside in at.items():
        if i not in inputs and not bool(inside.all()):
            outside.append(_layer(inner, i)[(~inside).nonzero()[:, 0].tolist()])
    return visits(*starts) & ~visits(*outside) if outside else visits(*starts)


def _layer(inner: Inner, i: int) -> Layer:
    """A tensor by its name; looked-up features have theirs as an input."""
    names = inner.tape.names
    return Layer(inner.tape.nodes[i].name or next(name for name, at in names.items() if at == [i]))
