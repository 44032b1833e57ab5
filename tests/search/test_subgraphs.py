"""Subgraphs: beside every connected set of nodes, each asked for by itself, on small graphs in float64."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nrm
from families.test_graphs import CONVS, GRAPHS, Net, joined, net, pool_plain, ring
from nrm.measure import subgraphs as measuring
from nrm.search import InnerWalks, Request, subgraphs as searching
from nrm.search.connected import Growth, Neighbours, bits

EDGES = ring(6, 2, chords=2)[1]


def is_connected(edges: Tensor, nodes: tuple[int, ...]) -> bool:
    near = {tuple(sorted(pair)) for pair in edges.T.tolist()}
    reached = [nodes[0]]
    for i in reached:
        reached += [j for j in nodes if tuple(sorted((i, j))) in near and j not in reached]
    return len(reached) == len(nodes)


def every(edges: Tensor, nodes: range, size: int) -> list[tuple[int, ...]]:
    return [some for some in itertools.combinations(nodes, size) if is_connected(edges, some)]


def asked(R: nrm.Measure, nodes: tuple[int, ...]) -> Tensor:
    """Subgraph relevance as GNN-LRP has it: the nodes in the input and in every layer."""
    x = R["input[0]"] if len(R.inner.tape.names["input"]) > 1 or "input[0]" in R.inner.tape.names else R.input
    return R(*(layer.position(list(nodes)) for layer in (x, R["conv1"], R["conv2"])))


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is so small that all of it is computed."""
    monkeypatch.setattr(searching, "AFFORDABLE", 0.0)


def ranked(values: dict[tuple[int, ...], float], sign: str) -> list[tuple[tuple[int, ...], float]]:
    score: Callable[[float], float] = {"+": float, "-": lambda v: -v, "abs": abs}[sign]
    wanted = [(nodes, value) for nodes, value in values.items() if score(value) > 0]
    return sorted(wanted, key=lambda item: (-score(item[1]), item[0]))


RULES: list[Any] = ["lrp-0", nrm.ZPlus(), nrm.Gamma(0.3)]


@pytest.mark.parametrize("how", ["all", "search"])
@pytest.mark.parametrize("rules", RULES, ids=str)
@pytest.mark.parametrize("conv", ["plain GCN", "plain GIN"])
def test_the_best_of_all_connected_sets(conv: str, rules: Any, how: str, request: pytest.FixtureRequest) -> None:
    if how == "search":
        request.getfixturevalue("searched")
    x, edges, batch = joined(GRAPHS)
    R = nrm.measure(net(conv), (x, edges, batch), rules=rules)
    starts = [0, 5, 9, 15]
    for size, sign in ((1, "+"), (3, "+"), (3, "-"), (4, "abs")):
        found = R.subgraphs(size, k=4, sign=sign)
        assert found.certified == (True, True, True)
        for sample, mine in enumerate(found):
            sets = every(edges, range(starts[sample], starts[sample + 1]), size)
            values = {nodes: float(asked(R, nodes)[sample]) for nodes in sets}
            expected = ranked(values, sign)[:4]
            assert [one.relevance for one in mine] == pytest.approx([value for _, value in expected])
            assert all(one.relevance == pytest.approx(values[one.nodes]) and one.certified for one in mine)
            assert all(one.sample == sample for one in mine)


def test_walks_by_number() -> None:
    """Beside the sum over single walks of nodes."""
    x, edges = GRAPHS[0]
    R = nrm.measure(net("plain GIN"), (x, edges), rules="lrp-0")
    table = R(R["input[0]"].positions, R["conv1"].positions, R["conv2"].positions)[0]
    for one in R.subgraphs(3, k=5).only:
        nodes = torch.tensor(one.nodes)
        assert float(table[nodes][:, nodes][:, :, nodes].sum()) == pytest.approx(one.relevance)


@pytest.mark.parametrize("conv", CONVS)
def test_what_a_subgraph_asks_for(conv: str) -> None:
    R = nrm.measure(net(conv), joined(GRAPHS), rules="lrp-0")
    for found in R.subgraphs(3, k=2, sign="abs"):
        for one in found:
            scale = max(1.0, abs(one.relevance))
            assert float(R(*one)[one.sample]) == pytest.approx(one.relevance, abs=1e-10 * scale)
            heat = R(R["input[0]"].positions, *one)[one.sample]
            assert float(heat.sum()) == pytest.approx(one.relevance, abs=1e-10 * scale)
            assert set(heat.nonzero()[:, 0].tolist()) <= set(one.nodes)
            if "GAT" not in conv:  # where heads lie between layers
                assert float(asked(R, one.nodes)[one.sample]) == pytest.approx(one.relevance, abs=1e-9 * scale)


@pytest.mark.parametrize("rules", RULES, ids=str)
@pytest.mark.parametrize("sign", ["+", "-", "abs"])
def test_no_set_exceeds_the_bound_of_its_part(rules: Any, sign: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[tuple[InnerWalks, Any]] = []
    monkeypatch.setattr(measuring, "InnerWalks", lambda *a, **k: kept.append((InnerWalks(*a, **k), a[2])) or kept[0][0])
    x = ring(6, 2)[0]
    R = nrm.measure(net("plain GIN"), (x - 0.5, EDGES), rules=rules)
    R.subgraphs(1)
    ((walks, graph),) = kept
    request, near, size = Request(1, sign, "exact", 1.0), graph.neighbours, 4
    waiting = [g for root in near.roots(0b111111) for g in (root, *near.children(root))]
    bounds = walks.bounds(request, size, {0: waiting})[0]
    for growth, bound in zip(waiting, bounds, strict=True):
        sets = [s for s in near.sets(0b111111, size) if s & growth.inside == growth.inside and not s & growth.outside]
        values = torch.tensor(walks.relevance({0: sets})[0] or [0.0])
        score = values if sign == "+" else -values if sign == "-" else values.abs()
        assert float(score.max()) <= bound * (1 + 1e-6) + 1e-12


def test_bounds_spare_work_where_nothing_cancels(searched: None, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = 0
    whole = InnerWalks.relevance

    def relevance(self: InnerWalks, sets: Any) -> Any:
        nonlocal counted
        counted += sum(map(len, sets.values()))
        return whole(self, sets)

    edges = grid(6)
    x = torch.full((36, 4), 0.02, dtype=torch.float64)
    x[[7, 8, 13, 14, 20, 21]] = 1.0
    R = nrm.measure(net("plain GIN"), (x, edges), rules=nrm.ZPlus(), zero="uniform")
    monkeypatch.setattr(InnerWalks, "relevance", relevance)
    (best,) = R.subgraphs(6, k=1).only
    assert best.certified
    assert counted < 700  # of 2,816 sets, as is counted below
    monkeypatch.setattr(searching, "AFFORDABLE", 1e6)
    assert R.subgraphs(6, k=1).only[0].relevance == pytest.approx(best.relevance)
    assert len(list(Neighbours(36, edges.T.tolist()).sets(2**36 - 1, 6))) == 2816


def test_a_search_that_is_stopped_says_what_may_be_missing(searched: None) -> None:
    R = nrm.measure(net("plain GIN"), GRAPHS[2], rules="lrp-0")
    values = [one.relevance for one in R.subgraphs(3, k=30).only]
    found = R.subgraphs(3, k=2, effort=1e-4)
    assert found.certified == (False,)
    assert found.gap[0] > 0
    assert "not certified, subgraphs may be missing" in str(found)
    assert values[0] <= found.only[-1].relevance + found.gap[0] + 1e-12


def test_connected_sets_are_all_there_once() -> None:
    near = Neighbours(6, [tuple(pair) for pair in EDGES.T.tolist()])
    for size in range(1, 7):
        found = [tuple(bits(s)) for s in near.sets(0b111111, size)]
        assert sorted(found) == every(EDGES, range(6), size)
    assert near.reach(Growth(0b1, ~0b111111), 0) == 0b1
    assert near.reach(Growth(0b1, ~0b111111), 6) == 0b111111


def grid(n: int) -> Tensor:
    """Nodes in rows, each joined with those beside and below it."""
    pairs = [(n * r + c, n * r + c + 1) for r in range(n) for c in range(n - 1)]
    pairs += [(n * r + c, n * r + c + n) for r in range(n - 1) for c in range(n)]
    return torch.tensor(pairs + [(b, a) for a, b in pairs]).T


class Jumping(Net):
    """Layers that are read twice, by the next one and by the pooling, with a residual connection."""

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor | None = None) -> Tensor:
        one = self.conv1(x, edge_index).relu()
        two = one + self.conv2(one, edge_index).relu()
        return self.head(self.pool(one * 0.5 + two, batch))


def test_layers_that_walks_pass_by() -> None:
    """A walk may leave after the first layer: it is inside all the same."""
    torch.manual_seed(0)
    model = Jumping(CONVS["plain GIN"], pool_plain).double().eval()
    x, edges = GRAPHS[0]
    R = nrm.measure(model, (x, edges), rules="lrp-0", bias="ignore")
    # One after the other: all walks of the whole graph visit all of its nodes, and no others.
    (whole,) = R.subgraphs(5, k=1, sign="abs").only
    assert whole.nodes == (0, 1, 2, 3, 4)
    assert whole.relevance == pytest.approx(float(R(R["input[0]"].all)))
    for one in R.subgraphs(2, k=3, sign="abs").only:
        inside = torch.zeros(5, dtype=torch.bool)
        inside[list(one.nodes)] = True
        outside = (~inside).nonzero()[:, 0].tolist()
        event = nrm.visits(R["input[0]"].position(list(one.nodes)))
        for name in ("conv1", "conv2"):
            event = event & ~nrm.visits(R[name].position(outside))
        assert float(R(event)) == pytest.approx(one.relevance)


def sparse(edges: Tensor) -> Iterator[Tensor]:
    yield edges[:, (edges < 4).all(0)]


def test_nodes_without_edges_and_looked_up_features() -> None:
    class Embedded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kinds, self.net = nn.Embedding(5, 4), net("plain GIN")

        def forward(self, kinds: Tensor, edge_index: Tensor) -> Tensor:
            return self.net(self.kinds(kinds), edge_index)

    torch.manual_seed(0)
    (edges,) = sparse(EDGES)
    model = Embedded().double().eval()
    R = nrm.measure(model, {"kinds": torch.tensor([0, 1, 2, 3, 4, 1]), "edge_index": edges}, rules="lrp-0")
    found = R.subgraphs(1, k=6, sign="abs").only
    assert sorted(one.nodes for one in found) == [(i,) for i in range(6)]
    assert all(set(one.nodes) <= set(range(4)) for one in R.subgraphs(2, k=9, sign="abs").only)


def test_contrasts_and_single_samples_and_labels() -> None:
    x, edges = GRAPHS[0]
    other = x.clone()
    other[2] = 0
    C = nrm.measure(net("plain GIN"), (x, edges), against=(other, edges), target=0)
    (best,) = C.subgraphs(2, k=1).only
    assert 2 in best.nodes
    assert float(C(*best)) == pytest.approx(best.relevance)
    R = nrm.measure(net("plain GIN"), joined(GRAPHS), rules="lrp-0")
    assert R.sample(1).subgraphs(2, k=3).only == R.subgraphs(2, k=3)[1]
    records = R.subgraphs(2, k=1).records()
    assert records[0].keys() == {"sample", "rank", "nodes", "relevance", "certified"}


class Stacked(nn.Module):
    """A graph layer with nodes along the second axis."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        source, target = edge_index
        wide = torch.stack([x, 2 * x])
        summed = torch.zeros_like(wide).index_add(1, target, wide[:, source])
        return summed.sum((0, 1))[None]


class TwoSteps(nn.Module):
    """A layer that sums over neighbours twice, with nothing in between to ask for."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        source, target = edge_index
        for _ in range(2):
            x = torch.zeros_like(x).index_add(0, target, x[source])
        return x.sum(0, keepdim=True)


def test_steps_inside_a_layer_count() -> None:
    """A walk that leaves and comes back within a layer of two steps was outside."""
    path = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    R = nrm.measure(TwoSteps(), (torch.tensor([[1.0], [1.0], [1.0]]), path), rules="lrp-0")
    (best,) = R.subgraphs(2, k=1).only
    # Two steps between 0 and 1: 0 1 0 and 1 0 1, of the walks 010 012 101 121 210 212.
    assert best.nodes in ((0, 1), (1, 2))
    assert best.relevance == pytest.approx(2 / 6)


def test_complaints() -> None:
    stacked = nrm.measure(Stacked(), GRAPHS[0], rules="lrp-0")
    with pytest.raises(nrm.QuestionError, match="not known to which nodes a sum belongs"):
        stacked.subgraphs(2)
    R = nrm.measure(net("plain GIN"), GRAPHS[0], rules="lrp-0")
    with pytest.raises(nrm.QuestionError, match="not a number of nodes"):
        R.subgraphs(0)
    with pytest.raises(nrm.QuestionError, match="unknown sign"):
        R.subgraphs(2, sign="both")
    assert R.subgraphs(9).only == ()
    dense = nrm.measure(nn.Linear(3, 2), torch.ones(1, 3))
    with pytest.raises(nrm.QuestionError, match="no graph among the inputs"):
        dense.subgraphs(2)
