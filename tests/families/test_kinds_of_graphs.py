"""Graphs beyond nodes of one kind: heterogeneous ones, pooled ones, edges with features, in batches, in float64.

Every graph of a batch has mass 1 and the same measure as alone; edges are their ends; contrasts are exact.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nrm
from capture.replay import check_capture

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it still scripts some of its classes
    pytest.importorskip("torch_geometric", reason="torch_geometric is absent (pip install nrm[graph])")
    from torch_geometric import nn as pyg
    from torch_geometric.data import Batch, HeteroData

BOND, IN, HAS = ("atom", "bond", "atom"), ("atom", "in", "ring"), ("ring", "has", "atom")


def molecule(atoms: int, rings: int, seed: int) -> HeteroData:
    """Atoms in a chain, rings that have some of them; features of different sizes."""
    g = torch.Generator().manual_seed(seed)
    data = HeteroData()
    data["atom"].x = torch.rand(atoms, 4, generator=g, dtype=torch.float64)
    data["ring"].x = torch.rand(rings, 3, generator=g, dtype=torch.float64)
    chain = torch.stack([torch.arange(atoms - 1), torch.arange(1, atoms)])
    data[BOND].edge_index = torch.cat([chain, chain.flip(0)], 1)
    member = torch.stack([torch.arange(atoms), torch.arange(atoms) % rings])
    data[IN].edge_index, data[HAS].edge_index = member, member.flip(0)
    return data


class Hetero(nn.Module):
    """Two layers of convolutions for every kind of edges, the nodes of all kinds pooled, a linear head."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = self._layer((4, 3)), self._layer((6, 6))
        self.head = nn.Linear(6, 2)

    @staticmethod
    def _layer(sizes: tuple[int, int]) -> nn.Module:
        a, r = sizes
        convs = {
            BOND: pyg.SAGEConv(a, 6),
            IN: pyg.GraphConv((a, r), 6),
            HAS: pyg.GATConv((r, a), 6, add_self_loops=False),
        }
        return pyg.HeteroConv(convs, aggr="sum")

    def forward(self, x_dict: Any, edge_index_dict: Any, batch_dict: Any = None) -> Tensor:
        for layer in (self.one, self.two):
            x_dict = {kind: h.relu() for kind, h in layer(x_dict, edge_index_dict).items()}
        batches = {kind: None if batch_dict is None else batch_dict[kind] for kind in x_dict}
        pooled: Tensor = sum(pyg.global_add_pool(h, batches[kind]) for kind, h in x_dict.items())
        return self.head(pooled)


class OnData(Hetero):
    """The same, handed over as one object."""

    def forward(self, data: Any) -> Tensor:  # type: ignore[override]
        return super().forward(data.x_dict, data.edge_index_dict, data.batch_dict if isinstance(data, Batch) else None)


def made(kind: Callable[[], nn.Module], seed: int = 1) -> nn.Module:
    torch.manual_seed(seed)
    model = kind().double().eval()
    with torch.no_grad():
        for p in model.parameters():
            p += 0.1
    return model


MOLECULES = [molecule(5, 2, 0), molecule(4, 1, 1), molecule(6, 3, 2)]


def parts(data: Any) -> dict[str, Any]:
    given = {"x_dict": dict(data.x_dict), "edge_index_dict": dict(data.edge_index_dict)}
    return given | ({"batch_dict": dict(data.batch_dict)} if isinstance(data, Batch) else {})


def test_kinds_of_nodes_have_layers_of_their_own() -> None:
    model, data = made(Hetero), MOLECULES[0]
    check_capture(model, data.x_dict, data.edge_index_dict)
    R = nrm.measure(model, (data.x_dict, data.edge_index_dict), rules="lrp-0")
    assert R(R["input.x_dict.atom"].positions).shape == (1, 5)
    assert R(R["input.x_dict.ring"].positions).shape == (1, 2)
    total = sum(R(part.all) for part in R.inputs)
    assert torch.allclose(total, torch.ones(1, dtype=torch.float64), atol=1e-10)


@pytest.mark.parametrize("rules", ["lrp-0", nrm.Gamma(0.25)])
def test_a_heterogeneous_graph_in_a_batch_is_that_graph_alone(rules: Any) -> None:
    model, batch = made(Hetero), Batch.from_data_list(MOLECULES)
    R = nrm.measure(model, parts(batch), rules=rules)
    assert R.check().mass == pytest.approx((1, 1, 1))
    starts = {"atom": 0, "ring": 0}
    for k, data in enumerate(MOLECULES):
        alone = nrm.measure(model, parts(data), rules=rules)
        torch.testing.assert_close(alone.value[0], R.value[k])
        for kind, start in starts.items():
            layer = f"input.x_dict.{kind}"
            own, count = alone(alone[layer].positions)[0], len(data[kind].x)
            torch.testing.assert_close(R(R[layer].positions)[k, start : start + count], own)
            starts[kind] = start + count


def test_objects_are_handed_over_whole_and_stay_as_they_were() -> None:
    model, on_data, batch = made(Hetero), made(OnData), Batch.from_data_list(MOLECULES)
    before = {(store._key, key): value for store in batch.stores for key, value in store.items()}
    whole, named = nrm.measure(on_data, batch, rules="lrp-0"), nrm.measure(model, parts(batch), rules="lrp-0")
    torch.testing.assert_close(whole(whole["input.atom.x"]), named(named["input.x_dict.atom"]))
    assert {(s._key, key): value for s in batch.stores for key, value in s.items()}.keys() == before.keys()
    assert all(value is before[store._key, key] for store in batch.stores for key, value in store.items())
    single = nrm.measure(on_data, MOLECULES[1], rules="lrp-0")
    torch.testing.assert_close(single(single["input.atom.x"])[0], whole(whole["input.atom.x"])[1, 5:9])


def test_edges_of_every_kind_are_their_ends() -> None:
    """Of two kinds with as many edges, and where the numbers of both ends are alike: a loop is none between kinds."""
    model, data = made(Hetero), MOLECULES[0]
    R = nrm.measure(model, parts(data), rules="lrp-0")
    for kind, low in ((BOND, "input.x_dict.atom"), (IN, "input.x_dict.atom"), (HAS, "input.x_dict.ring")):
        conv = R[f"one.convs.<{'___'.join(kind)}>"]
        source, target = data[kind].edge_index
        along = R(R[low].all, conv.edges)[0]
        assert along.shape == source.shape
        ends = R(R[low].positions, conv.positions)[0]
        if kind != BOND:  # what a node keeps of itself is no walk between kinds
            torch.testing.assert_close(along, ends[source, target])
        else:
            torch.testing.assert_close(along[source != target], ends[source, target])


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = pyg.SAGEConv((-1, -1), 6), pyg.SAGEConv((-1, -1), 6), nn.Linear(6, 2)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.head(self.two(self.one(x, edge_index).relu(), edge_index).relu())


def test_networks_made_heterogeneous() -> None:
    data = MOLECULES[0]
    torch.manual_seed(0)
    model = pyg.to_hetero(Plain(), data.metadata(), aggr="sum").double().eval()
    with torch.no_grad():
        expected = model(data.x_dict, data.edge_index_dict)["ring"]
    given = (data.x_dict, data.edge_index_dict)
    R = nrm.measure(model, given, output=lambda o: o["ring"], target=(1, 0), rules="lrp-0")
    torch.testing.assert_close(R.value[0], expected[1, 0])
    assert R.check(strict=False).mass == pytest.approx((1,))
    assert R(R["one.atom__bond__atom"].edges).shape == (1, 8)
    assert R(R["input.x.ring"]).shape == (1, 2, 3)


def test_the_difference_of_heterogeneous_graphs_is_exact() -> None:
    model, data = made(Hetero), MOLECULES[0]
    other = {kind: x.clone() for kind, x in data.x_dict.items()}
    other["ring"][1] += 1
    given = parts(data)
    C = nrm.measure(model, given, against={**given, "x_dict": other}, target=0)
    one, two = model(**given), model(**{**given, "x_dict": other})
    torch.testing.assert_close(C.value[0], (one - two)[0, 0].detach())
    assert C(C["input.x_dict.ring"].positions)[0].tolist() == pytest.approx([0, 1])
    assert not C(C["input.x_dict.atom"]).any()


def test_complaints() -> None:
    model, batch = made(Hetero), Batch.from_data_list(MOLECULES)
    given = parts(batch)
    edges = {**given["edge_index_dict"], IN: given["edge_index_dict"][IN] + 3}
    with pytest.raises(nrm.CaptureError, match=r"edge_index \('atom', 'in', 'ring'\) names a node"):
        nrm.measure(model, {**given, "edge_index_dict": edges})
    with pytest.raises(nrm.CaptureError, match="some kinds of nodes are not known"):
        nrm.measure(model, {**given, "batch_dict": {"atom": given["batch_dict"]["atom"]}})
    crossed = {**given["edge_index_dict"], IN: torch.tensor([[0], [5]])}
    with pytest.raises(nrm.CaptureError, match="joins nodes of two graphs"):
        nrm.measure(model, {**given, "edge_index_dict": crossed})


# ---- pooling --------------------------------------------------------------------------------------------------------


def ring(n: int, seed: int, chords: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    pairs = [(i, (i + 1) % n) for i in range(n)] + [(k, (k + 2) % n) for k in range(chords)]
    edges = torch.tensor(pairs + [(b, a) for a, b in pairs]).T
    x = torch.rand(n, 4, generator=g, dtype=torch.float64)
    return x, edges, torch.rand(edges.shape[1], 3, generator=g, dtype=torch.float64)


GRAPHS = [ring(7, 0), ring(5, 1), ring(6, 2, chords=2)]


class Pooled(nn.Module):
    """A graph layer, a pooling to fewer nodes, another graph layer."""

    def __init__(self, pool: nn.Module) -> None:
        super().__init__()
        self.one, self.pool, self.two, self.head = pyg.GraphConv(4, 6), pool, pyg.GraphConv(6, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor | None = None) -> Tensor:
        h = self.one(x, edge_index).relu()
        h, edges, _, batch, *_ = self.pool(h, edge_index, None, batch)
        return self.head(pyg.global_add_pool(self.two(h, edges).relu(), batch))


class Sorted(nn.Module):
    """A graph layer, the first three nodes by their last channel one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.pool, self.head = pyg.GraphConv(4, 6), pyg.SortAggregation(3), nn.Linear(18, 2)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor | None = None) -> Tensor:
        batch = torch.zeros(len(x), dtype=torch.long) if batch is None else batch
        return self.head(self.pool(self.one(x, edge_index).relu(), batch))


class Featured(nn.Module):
    """Two graph layers that read features of edges."""

    def __init__(self, conv: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.one, self.two, self.head = conv(4, 6), conv(6, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor, batch: Tensor | None = None) -> Tensor:
        h = self.one(x, edge_index, edge_attr=edge_attr).relu()
        return self.head(pyg.global_add_pool(self.two(h, edge_index, edge_attr=edge_attr).relu(), batch))


def mlp(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 6), nn.ReLU(), nn.Linear(6, outputs))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "TopK": lambda: Pooled(pyg.TopKPooling(6)),
    "TopK of two": lambda: Pooled(pyg.TopKPooling(6, ratio=2)),
    "SAG": lambda: Pooled(pyg.SAGPooling(6)),
    "ASA": lambda: Pooled(pyg.ASAPooling(6)),
    "Sort": Sorted,
    "GINE": lambda: Featured(lambda i, o: pyg.GINEConv(mlp(i, o), edge_dim=3)),
    "NN": lambda: Featured(lambda i, o: pyg.NNConv(i, o, mlp(3, i * o))),
    "GAT": lambda: Featured(lambda i, o: pyg.GATConv(i, o, edge_dim=3)),
    "Transformer": lambda: Featured(lambda i, o: pyg.TransformerConv(i, o, edge_dim=3)),
}


@pytest.mark.filterwarnings("ignore::nrm.NrmWarning", "ignore:Sparse")
@pytest.mark.parametrize("name", NETWORKS)
def test_pooled_graphs_and_edges_with_features(name: str) -> None:
    model = made(NETWORKS[name])
    edges = torch.cat([e + s for (_, e, _), s in zip(GRAPHS, (0, 7, 12), strict=True)], 1)
    batch = torch.repeat_interleave(torch.arange(3), torch.tensor([7, 5, 6]))
    featured = isinstance(model, Featured)
    given = (torch.cat([x for x, *_ in GRAPHS]), edges, torch.cat([a for *_, a in GRAPHS]), batch)
    given = given if featured else (*given[:2], batch)
    if name == "ASA":  # which has constants of its own in float32
        model, given = model.float(), (given[0].float(), *given[1:])
    R = nrm.measure(model, given, rules="lrp-0")
    eps = 1e-10 if name != "ASA" else 1e-5
    if name != "ASA":
        check_capture(model, *given)
    check = R.check(strict=False)
    largest = max(max(v) for v in check.variation.values())
    assert check.mass == pytest.approx((1, 1, 1), abs=eps * largest)
    x, e, a = GRAPHS[1]
    x = x.to(given[0])
    alone = nrm.measure(model, (x, e, a) if featured else (x, e), rules="lrp-0")
    torch.testing.assert_close(R.value[1], alone.value[0])
    first = "input[0]"
    torch.testing.assert_close(R(R[first])[1, 7:12], alone(alone[first])[0], atol=10 * eps * largest, rtol=1e-7)
    if name in ("GINE", "NN", "Transformer"):
        torch.testing.assert_close(R(R["input[2]"])[1, 16:28], alone(alone["input[2]"])[0])


@pytest.mark.filterwarnings("ignore::nrm.NrmWarning", "ignore:Sparse")
@pytest.mark.parametrize("name", ["TopK", "SAG"])
def test_edges_behind_a_pooling_keep_their_numbers(name: str) -> None:
    """The nodes that are left have other numbers in the layer, and their edges are those of the call all the same."""
    for seed in range(3):
        model = made(NETWORKS[name], seed)
        (x, e, _), two = GRAPHS[2], "two"
        R = nrm.measure(model, (x, e), rules="lrp-0", bias="ignore", zero="uniform")
        along = R(R["pool"].all, R[two].edges)[0]
        assert along.shape == (e.shape[1],)
        kept = model.pool(model.one(x, e).relu(), e)[4]
        place = {int(node): k for k, node in enumerate(kept)}
        ends = R(R["pool"].positions, R[two].positions)[0]
        for value, (a, b) in zip(along.tolist(), e.T.tolist(), strict=True):
            assert value == pytest.approx(float(ends[place[a], place[b]]) if a in place and b in place else 0.0)
    asa = made(NETWORKS["ASA"]).float()
    R = nrm.measure(asa, (x.float(), e), rules="lrp-0", bias="input")
    with pytest.raises(nrm.QuestionError, match="does not sum along the edges"):
        R(R["two"].edges)


@pytest.mark.filterwarnings("ignore::nrm.NrmWarning", "ignore:Sparse")
@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "ASA"])
def test_subgraphs_of_pooled_graphs_and_edges_with_features(name: str) -> None:
    """The walks inside a subgraph are those that never visit a node outside, wherever nodes can be told apart."""
    model = made(NETWORKS[name])
    x, e, a = GRAPHS[2]
    R = nrm.measure(model, (x, e, a) if isinstance(model, Featured) else (x, e), rules="lrp-0")
    found = R.subgraphs(3, k=3, sign="abs").only
    assert len(found) == 3
    for one in found:
        assert float(R(*one)) == pytest.approx(one.relevance, rel=1e-6)
    (whole,) = R.subgraphs(6, k=1, sign="abs").only
    total = sum(float(R(R[part])[0].sum()) for part in R.inner.tape.names if part.startswith("input["))
    assert whole.relevance == pytest.approx(total, rel=1e-6)


def test_subgraphs_of_several_kinds_of_nodes() -> None:
    R = nrm.measure(made(Hetero), parts(Batch.from_data_list(MOLECULES)), rules="lrp-0")
    found = R.subgraphs(3, k=2, sign="abs")
    for sample, (atoms, rings) in enumerate(
        [(range(5), range(2)), (range(5, 9), range(2, 3)), (range(9, 15), range(3, 6))]
    ):
        for one in found[sample]:
            assert all(i in (atoms if kind == "atom" else rings) for kind, i in one.nodes)
            assert float(R(*one)[sample]) == pytest.approx(one.relevance, rel=1e-6)
    assert "nodes atom " in str(found)


@pytest.mark.filterwarnings("ignore::nrm.NrmWarning")
def test_nodes_without_edges_in_a_batch() -> None:
    """Layers whose sum over neighbours is read by a dense layer alone know whose the empty sums are."""
    model = made(lambda: Featured(lambda i, o: _Weightless(pyg.GraphConv(i, o))))
    x, e, a = GRAPHS[0]
    kept = (e < 5).all(0)
    batch = torch.tensor([0] * 7 + [1] * 7)
    given = (torch.cat([x, x]), torch.cat([e[:, kept], e[:, kept] + 7], 1), torch.cat([a[kept], a[kept]]), batch)
    R = nrm.measure(model, given, rules="lrp-0")
    alone = nrm.measure(model, (x, e[:, kept], a[kept]), rules="lrp-0")
    for k in (0, 1):
        torch.testing.assert_close(R(R["input[0]"])[k, 7 * k : 7 * k + 7], alone(alone["input[0]"])[0])


class _Weightless(nn.Module):
    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        return self.conv(x, edge_index)
