"""The graphs of the experiments: planted motifs, connected subgraphs, and parts that no network learned from."""

from __future__ import annotations

import itertools

import torch

from nrm.evaluate import contribution
from nrm.reproduce.bonds import auc, bond_scores, undirected
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


def test_a_contrast_removes_the_atoms_of_each_copys_own_subgraph() -> None:
    graph = motifs(2)[1]
    subgraphs = connected(graph, 3)[:3]
    torch.manual_seed(0)
    model = GraphNet(GIN, 3, width=6).double().eval()
    R = _copies(model, graph, len(subgraphs), None, subgraphs)
    plain = _copies(model, graph, len(subgraphs), RULES["lrp-0"])
    for k, nodes in enumerate(subgraphs):
        sets = _sets(plain, graph, subgraphs)
        assert torch.allclose(R.value[k], contribution(plain, sets[0])[k])  # what the output loses without them
        heat = R(R["input[0]"].positions)[k].nonzero()[:, 0] - k * len(graph.x)
        assert set(heat.tolist()) <= set(nodes)


def test_bonds_are_ranked_and_removed_one_by_one() -> None:
    truth, score = torch.tensor([True, False, True, False]), torch.tensor([0.5, 0.5, 2.0, -1.0])
    assert auc(truth, score) == (0.5 + 1 + 1 + 1) / 4
    graph = motifs(2)[1]
    torch.manual_seed(0)
    model = GraphNet(GIN, 3, width=6, pool="mean").double().eval()
    scores = dict(bond_scores(model, graph, 1))
    x, edges, batch = batched([graph])
    logits = model(x.double(), edges, batch)[0]
    a, b = edges[:, 0].tolist()
    kept = [k for k, pair in enumerate(edges.T.tolist()) if pair not in ([a, b], [b, a])]
    other = model(x.double(), edges[:, kept], batch)[0]
    assert torch.allclose(scores["removal"][0, 0], (logits - other)[1] - (logits - other)[0])
    assert torch.equal(undirected(graph, scores["removal"][0]), 2 * scores["removal"][0])  # both directions are cut
    assert all(rows.shape[1] == edges.shape[1] for rows in scores.values())
