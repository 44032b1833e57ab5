"""MUTAG, a graph network trained on real molecules: subgraphs against the list of their walks, and known edges."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import nrm

pytestmark = [pytest.mark.data, pytest.mark.filterwarnings("ignore::nrm.NrmWarning")]


@pytest.fixture(scope="module")
def molecules(shared: Callable[[str], Path]) -> tuple[Any, list[Any]]:
    """A network trained on nine of ten parts, and the molecules of the tenth."""
    home = shared("graphs/MUTAG")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("torch_geometric", reason="torch_geometric is absent (pip install nrm[graph])")
        from real.molecules import deal, read_mutag, train

        graphs = read_mutag(home)
        part = deal(graphs).tolist()
        model = train([g for g, p in zip(graphs, part, strict=True) if p != 0], seed=0)
    return model.double(), [g for g, p in zip(graphs, part, strict=True) if p == 0]


def walk_table(model: Any, x: Tensor, edges: Tensor, target: int) -> dict[tuple[int, ...], float]:
    """Every walk of nodes with its LRP-0 relevance: a product of the layers' own Jacobians, nothing of the library."""
    values, steps = [x], []
    for conv in model.convs:
        jacobian = torch.autograd.functional.jacobian(lambda h, conv=conv: conv(h, edges), values[-1])
        steps.append(jacobian.permute(2, 0, 3, 1))  # from node, to node, from channel, to channel
        values.append(conv(values[-1], edges).detach())
    top = model.head.weight[target].detach()
    value = model(x, edges)[0, target].item()
    near = {(a, b) for a, b in edges.T.tolist()} | {(i, i) for i in range(len(x))}
    walks = [((i,), x[i]) for i in range(len(x))]
    for step in steps:
        walks = [
            ((*walk, j), row @ step[walk[-1], j]) for walk, row in walks for j in range(len(x)) if (walk[-1], j) in near
        ]
    return {walk: float(row @ top) / value for walk, row in walks}


def test_subgraph_relevance_is_the_sum_of_its_walks(molecules: tuple[Any, list[Any]]) -> None:
    from real.molecules import neighbourhood

    model, held = molecules
    for graph in held[:3]:
        x, edges = graph.x.double(), graph.edge_index
        R = nrm.measure(model, (x, edges), target=1, rules="lrp-0")
        walks = walk_table(model, x, edges, 1)
        scale = sum(abs(r) for r in walks.values())
        layers = [R.input, *(R[f"convs.{k}"] for k in range(3))]
        assert len(walks) > 500
        assert float(R(R.input.all)) == pytest.approx(sum(walks.values()), abs=1e-10 * scale)
        for size, start in itertools.product((1, 3, 6), (0, 7)):
            nodes = neighbourhood(graph, start, size)
            inside = sum(r for walk, r in walks.items() if set(walk) <= set(nodes))
            found = float(R(*(layer.position(nodes) for layer in layers)))
            assert found == pytest.approx(inside, abs=1e-10 * scale)
        for k, layer in enumerate(layers[1:]):
            ends = torch.zeros(len(x), len(x), dtype=torch.float64)
            for walk, r in walks.items():
                ends[walk[k], walk[k + 1]] += r
            along = R(layer.edges, R.input.all)[0]  # not those that begin at biases on the way
            assert torch.allclose(along, ends[edges[0], edges[1]], atol=1e-10 * scale)


def test_a_molecule_in_a_batch_is_a_molecule_alone(molecules: tuple[Any, list[Any]]) -> None:
    from torch_geometric.data import Batch

    model, held = molecules
    batch = Batch.from_data_list(held[:4])
    whole = nrm.measure(model, (batch.x.double(), batch.edge_index, batch.batch), target=1, rules="lrp-0")
    table, along = whole(whole.input.positions), whole(whole["convs.1"].edges)
    node = edge = 0
    for k, graph in enumerate(held[:4]):
        R = nrm.measure(model, (graph.x.double(), graph.edge_index), target=1, rules="lrp-0")
        mine, edges = R(R.input.positions)[0], R(R["convs.1"].edges)[0]
        assert torch.allclose(table[k, node : node + len(mine)], mine, atol=1e-9 * float(mine.abs().sum()))
        assert torch.allclose(along[k, edge : edge + len(edges)], edges, atol=1e-9 * float(edges.abs().sum()))
        node, edge = node + len(mine), edge + len(edges)


def test_known_edges_are_found(molecules: tuple[Any, list[Any]]) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    from real.molecules import accuracy, undirected

    model, held = molecules
    assert accuracy(model.float(), held) > 0.75  # one part of 19; benchmarks/molecules.py has all ten
    model.double()
    found = []
    for graph in held:
        if int(graph.y) == 1 and 0 < int(graph.truth.sum()) < len(graph.truth):
            R = nrm.measure(
                model, (graph.x.double(), graph.edge_index), output=lambda o: o[:, 1] - o[:, 0], rules="lrp-0"
            )
            score = R.value.sign() * sum(R(conv.edges)[0] for conv in R.find("convs.?"))
            found.append(metrics.roc_auc_score(graph.truth, undirected(graph, score)))
    assert len(found) > 5
    assert sum(found) / len(found) > 0.8
