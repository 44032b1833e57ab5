"""The graphs of the experiments: planted motifs, connected subgraphs, and parts that no network learned from."""

from __future__ import annotations

import itertools

import torch

from nrm.evaluate import contribution
from nrm.reproduce.gnn import RULES, _copies, _sets
from nrm.reproduce.graphs import GCN, GIN, GraphNet, LabelledGraph, batched, connected, deal, motifs


def is_connected(graph: LabelledGraph, nodes: tuple[int, ...]) -> bool:
    near = {tuple(pair) for pair in graph.edge_index.T.tolist()}
    reached = [nodes[0]]
    for i in reached:
        reached += [j for j in nodes if (i, j) in near and j not in reached]
    return len(reached) == len(nodes)


def test_connected_subgraphs_are_all_there() -> None:
    for graph in motifs(4):
        for size in (1, 3, 4):
            every = itertools.combinations(range(len(graph.x)), size)
            assert connected(graph, size) == [list(nodes) for nodes in every if is_connected(graph, nodes)]


def test_only_one_class_has_the_motif() -> None:
    for graph in motifs(20):
        kinds = graph.x.argmax(1)
        (middle,) = (kinds == 2).nonzero()[:, 0].tolist()
        around = kinds[graph.edge_index[1][graph.edge_index[0] == middle]].tolist()
        assert around.count(1) == 2 * graph.label
        assert int(graph.known.sum()) == 3 * graph.label
        assert is_connected(graph, tuple(range(len(graph.x))))


def test_every_part_has_both_classes() -> None:
    labels = [0] * 30 + [1] * 45
    part = deal(labels, 10)
    for k in range(10):
        mine = [labels[i] for i in (part == k).nonzero()[:, 0].tolist()]
        assert (mine.count(0), len(mine) - mine.count(0)) in ((3, 4), (3, 5))


def test_every_copy_of_a_graph_is_asked_about_its_own_subgraph() -> None:
    graph = motifs(2)[1]
    subgraphs = connected(graph, 3)[:4]
    for kind in (GIN, GCN):
        torch.manual_seed(0)
        model = GraphNet(kind, 3, width=6).double().eval()
        R = _copies(model, graph, len(subgraphs), RULES["gamma 0.25"])
        sets = _sets(R, graph, subgraphs)
        together = R(*sets), contribution(R, *sets)
        for k, nodes in enumerate(subgraphs):
            alone = _copies(model, graph, 1, RULES["gamma 0.25"])
            own = _sets(alone, graph, [nodes])
            assert torch.allclose(alone(*own), together[0][k : k + 1])
            assert torch.allclose(contribution(alone, *own), together[1][k : k + 1])
        x, edges, batch = batched([graph])
        off = torch.ones(len(graph.x), 1, dtype=torch.float64)
        off[subgraphs[0]] = 0.0
        logits = model(x.double() * off, edges, batch)[0] - model(x.double(), edges, batch)[0]
        top = int(model(x.double(), edges, batch).argmax())
        first = contribution(_copies(model, graph, 1, RULES["lrp-0"]), sets[0].layer.position([subgraphs[0]]))
        assert torch.allclose(first, -(logits[top] - logits[1 - top])[None])
