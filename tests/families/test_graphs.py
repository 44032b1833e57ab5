"""Graph networks: layers of PyTorch Geometric, and a plain one that needs nothing but torch, in float64.

Each is captured, its value is the model's own, every graph of a batch has mass 1 and the same measure as alone, pulling
and pushing are adjoint. Walks on tiny graphs are enumerated on the dense network: adjacency times weight.
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
from nrm.measure.edges import EdgeStep, number_edges
from oracles import brute

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it still scripts some of its classes
        import torch_geometric
        from torch_geometric import nn as pyg
        from torch_geometric.data import Batch, Data
except ImportError:  # the extra "graph"
    torch_geometric = None

needs_pyg = pytest.mark.skipif(torch_geometric is None, reason="torch_geometric is absent (pip install nrm[graph])")

RULES = ["lrp-0", "epsilon-plus", nrm.ZPlus(), nrm.Gamma(0.3)]


def ring(n: int, seed: int, features: int = 4, chords: int = 1) -> tuple[Tensor, Tensor]:
    """Random features on a ring with chords, every edge in both directions and in random order."""
    g = torch.Generator().manual_seed(seed)
    pairs = [(i, (i + 1) % n) for i in range(n)] + [(k, (k + 2) % n) for k in range(chords)]
    edges = torch.tensor(pairs + [(b, a) for a, b in pairs]).T
    return torch.rand(n, features, generator=g, dtype=torch.float64), edges[
        :, torch.randperm(edges.shape[1], generator=g)
    ]


def joined(graphs: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
    """Several graphs as one batch: features, edges, and the graph of every node."""
    sizes = [len(x) for x, _ in graphs]
    starts = [sum(sizes[:k]) for k in range(len(sizes))]
    edges = torch.cat([e + s for (_, e), s in zip(graphs, starts, strict=True)], 1)
    return (
        torch.cat([x for x, _ in graphs]),
        edges,
        torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes)),
    )


class PlainConv(nn.Module):
    """Linear, then the sum over neighbours with degree norms, and a loop at every node: a GCN layer in plain torch."""

    def __init__(self, inputs: int, outputs: int, loops: bool = True) -> None:
        super().__init__()
        self.lin = nn.Linear(inputs, outputs, bias=False)
        self.bias = nn.Parameter(torch.randn(outputs) / 4)
        self.loops = loops

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        n = x.shape[0]
        if self.loops:
            edge_index = torch.cat([edge_index, torch.arange(n).expand(2, -1)], 1)
        source, target = edge_index
        degree = torch.zeros(n, dtype=x.dtype).index_add(0, target, torch.ones(len(target), dtype=x.dtype))
        norm = degree[source].clamp(min=1).rsqrt() * degree[target].clamp(min=1).rsqrt()
        h = self.lin(x)
        return torch.zeros(n, h.shape[1], dtype=x.dtype).index_add(0, target, norm[:, None] * h[source]) + self.bias


class PlainGIN(nn.Module):
    """The sum over neighbours and the node itself, then a linear layer."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.lin = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        source, target = edge_index
        return self.lin(torch.zeros_like(x).index_add(0, target, x[source]) + 1.5 * x)


def pool_plain(h: Tensor, batch: Tensor | None) -> Tensor:
    if batch is None:
        return h.sum(0, keepdim=True)
    return h.new_zeros(int(batch.max()) + 1, h.shape[1]).index_add(0, batch, h)


class Net(nn.Module):
    """Two graph layers, a pooling of nodes, a linear head."""

    def __init__(
        self,
        conv: Callable[[int, int], nn.Module],
        pool: Callable[..., Tensor] = pool_plain,
        width: int = 5,
        features: int = 4,
    ) -> None:
        super().__init__()
        self.conv1, self.conv2 = conv(features, width), conv(width, width)
        self.head = nn.Linear(width, 3)
        self.pool = pool

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor | None = None) -> Tensor:
        h = self.conv1(x, edge_index).relu()
        h = self.conv2(h, edge_index).relu()
        return self.head(self.pool(h, batch))


class OnData(Net):
    """The same, handed over as one object."""

    def forward(self, data: Any) -> Tensor:  # type: ignore[override]
        return super().forward(data.x, data.edge_index, data.batch)


def mlp(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 6), nn.ReLU(), nn.Linear(6, outputs))


CONVS: dict[str, Any] = {"plain GCN": PlainConv, "plain GIN": PlainGIN}
POOLS: dict[str, Any] = {"plain": pool_plain}
if torch_geometric is not None:
    CONVS |= {
        "GCN": pyg.GCNConv,
        "GCN without loops": lambda i, o: pyg.GCNConv(i, o, add_self_loops=False),
        "SAGE": pyg.SAGEConv,
        "SAGE, sum": lambda i, o: pyg.SAGEConv(i, o, aggr="sum"),
        "SAGE, max": lambda i, o: pyg.SAGEConv(i, o, aggr="max"),
        "GIN": lambda i, o: pyg.GINConv(mlp(i, o)),
        "GIN, mean": lambda i, o: pyg.GINConv(mlp(i, o), aggr="mean"),
        "GIN, max": lambda i, o: pyg.GINConv(mlp(i, o), aggr="max"),
        "GraphConv": pyg.GraphConv,
        "GAT": pyg.GATConv,
        "GAT, two heads": lambda i, o: pyg.GATConv(i, o, heads=2, concat=False),
        "GATv2": pyg.GATv2Conv,
        "MF": pyg.MFConv,
    }
    POOLS |= {"add": pyg.global_add_pool, "mean": pyg.global_mean_pool, "max": pyg.global_max_pool}

GRAPHS = [ring(5, 0), ring(4, 1), ring(6, 2, chords=2)]


def net(conv: str, pool: str = "plain", kind: type[Net] = Net, seed: int = 3) -> Net:
    """A network whose neurons are not all dead: weights of both signs, mostly positive."""
    torch.manual_seed(seed)
    model = kind(CONVS[conv], POOLS[pool]).double().eval()
    with torch.no_grad():
        for p in model.parameters():
            p += 0.15
    return model


def rules_of(conv: str) -> list[Any]:
    # The mean over heads is signed, and z+ has nothing to give where all neighbours of a negative mean are negative.
    return ["lrp-0"] if "heads" in conv else RULES


CASES = [(conv, rules) for conv in CONVS for rules in rules_of(conv)]


@pytest.fixture(scope="module", params=CASES, ids=[f"{conv}, {rules}" for conv, rules in CASES])
def measured(request: pytest.FixtureRequest) -> tuple[Net, Any, nrm.Measure]:
    conv, rules = request.param
    model = net(conv)
    return model, rules, nrm.measure(model, joined(GRAPHS), rules=rules, zero="uniform")


@pytest.mark.parametrize("conv", CONVS)
def test_the_tape_explains_itself(conv: str) -> None:
    check_capture(net(conv), *joined(GRAPHS))


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("conv", list(CONVS)[:3])
def test_pools_are_captured(conv: str, pool: str) -> None:
    model = net(conv, pool)
    check_capture(model, *joined(GRAPHS))
    R = nrm.measure(model, joined(GRAPHS), rules="lrp-0")
    alone = nrm.measure(model, GRAPHS[1], rules="lrp-0")
    assert torch.allclose(R(R.input.positions)[1, 5:9], alone(alone.input.positions)[0], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("rules", [nrm.Gamma(0.5), nrm.AlphaBeta(2, 1)])
def test_the_pool_of_a_batch_is_the_pool_of_a_graph(rules: nrm.Rule) -> None:
    """Nodes of both signs are summed into their graph by LRP-0, as those of a single graph are, whatever the rules."""

    class Signed(Net):
        def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor | None = None) -> Tensor:
            return self.head(self.pool(self.conv1(x, edge_index), batch))

    model = net("plain GCN", kind=Signed)
    R, alone = nrm.measure(model, joined(GRAPHS), rules=rules), nrm.measure(model, GRAPHS[1], rules=rules)
    assert bool((R.values(R["conv1"]) < 0).any())
    part = alone(alone["conv1"])[0]
    assert torch.allclose(R(R["conv1"])[1, 5:9], part, atol=1e-12 * float(part.abs().sum()))


def test_the_value_is_the_models_own(measured: tuple[Net, Any, nrm.Measure]) -> None:
    model, _, R = measured
    with torch.no_grad():
        expected = model(*joined(GRAPHS))
    assert len(R) == len(GRAPHS)
    assert torch.allclose(R.values(R.output), expected, rtol=1e-12)
    assert R.prediction.tolist() == expected.argmax(1).tolist()


def test_every_graph_has_mass_one(measured: tuple[Net, Any, nrm.Measure]) -> None:
    _, _, R = measured
    found = R.check(strict=False)
    variation = max(max(v) for v in found.variation.values())
    assert found.mass == pytest.approx((1, 1, 1), abs=1e-12 * max(variation, 1))
    assert found.cut_error is not None
    assert found.cut_error < 1e-11 * max(variation, 1)
    total = sum(R(part.all) for part in R.inputs)
    assert torch.allclose(total, torch.ones(3, dtype=torch.float64), atol=1e-11 * max(variation, 1))


def test_a_graph_in_a_batch_is_a_graph_alone(measured: tuple[Net, Any, nrm.Measure]) -> None:
    model, rules, R = measured
    node = edge = 0
    for k, (x, edges) in enumerate(GRAPHS):
        alone = nrm.measure(model, (x, edges), rules=rules, zero="uniform")
        nodes, along = slice(node, node + len(x)), slice(edge, edge + edges.shape[1])
        node, edge = nodes.stop, along.stop
        for layer in ("conv1", "conv2"):
            for whole, part, at in (
                (R(R[layer].positions), alone(alone[layer].positions), nodes),
                (R(R[layer].edges), alone(alone[layer].edges), along),
            ):
                scale = float(part.abs().sum())
                assert torch.allclose(whole[k, at], part[0], atol=1e-10 * scale)
                assert float(whole[k].abs().sum()) == pytest.approx(scale)  # nothing of this graph lies in another one
        assert torch.allclose(R(R.input)[k, nodes], alone(alone.input)[0], atol=1e-8)
        for mine, other in zip(R.biases, alone.biases, strict=True):
            assert torch.allclose(R(mine)[k], alone(other)[0], atol=1e-8)


def test_pull_and_push_agree(measured: tuple[Net, Any, nrm.Measure]) -> None:
    _, _, R = measured
    low, high = R["conv1"], R["conv2"]
    table = R(low.positions, high.positions)
    scale = float(table.abs().sum())
    for u, v in ((0, 1), (5, 6), (9, 10)):
        assert torch.allclose(R(low.position(u), high.position(v)), table[:, u, v], atol=1e-12 * scale)
        assert torch.allclose(R(low.positions, high.position(v)), table[:, :, v], atol=1e-12 * scale)
        assert torch.allclose(R(low.position(u), high.positions), table[:, u], atol=1e-12 * scale)
    assert torch.allclose(R(low.channels, high.channels).sum((1, 2)), table.sum((1, 2)), atol=1e-12 * scale)


def test_an_edge_is_its_two_ends(measured: tuple[Net, Any, nrm.Measure]) -> None:
    """Walks along an edge visit its source in the lower layer and its target in the upper one, and only these do."""
    _, _, R = measured
    lower, conv = R["conv2"].input, R["conv2"]
    source, target = joined(GRAPHS)[1]
    ends = R(lower.positions, conv.positions)[:, source, target]
    along = R(lower.all, conv.edges)
    assert along.shape == (3, len(source))
    assert torch.allclose(along, ends, atol=1e-12 * float(ends.abs().sum()))
    assert torch.allclose(R(lower.all, conv.edge(3)), along[:, 3], atol=1e-12)
    assert torch.allclose(R(lower.all, conv.edge([0, 3])), along[:, [0, 3]].sum(1), atol=1e-12)
    assert torch.allclose(R(lower.all, conv.edges[:4]), along[:, :4], atol=1e-12)
    rest = R(lower.all, conv.all) - along.sum(1)  # loops and root weights: from a node to itself
    stay = R(lower.positions, conv.positions).diagonal(dim1=1, dim2=2).sum(1)
    assert torch.allclose(rest, stay, atol=1e-11 * float(ends.abs().sum()))


@needs_pyg
@pytest.mark.parametrize("conv", CONVS)
def test_data_and_batches_are_handed_over_as_they_are(conv: str) -> None:
    model, on_data = net(conv), net(conv, kind=OnData)
    batch = Batch.from_data_list([Data(x=x, edge_index=e, y=torch.ones(1, dtype=torch.float64)) for x, e in GRAPHS])
    before = {key: batch[key].clone() for key in batch.keys()}  # noqa: SIM118
    whole, parts = nrm.measure(on_data, batch, rules="lrp-0"), nrm.measure(model, joined(GRAPHS), rules="lrp-0")
    assert torch.allclose(whole(whole.input), parts(parts.input))
    assert torch.allclose(whole(whole["conv1"].edges), parts(parts["conv1"].edges))
    assert all(torch.equal(batch[key], value) for key, value in before.items())
    single = nrm.measure(on_data, batch[1], rules="lrp-0")
    assert torch.allclose(single(single.input)[0], parts(parts.input)[1, 5:9])
    named = nrm.measure(model, {"x": batch.x, "edge_index": batch.edge_index, "batch": batch.batch}, rules="lrp-0")
    assert torch.allclose(named(named.input), parts(parts.input))


# ---- walks, one by one ----------------------------------------------------------------------------------------------

TINY = (
    torch.tensor([[1.0, 0.5], [0.3, 2.0], [0.8, 0.1]], dtype=torch.float64),
    torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]]),
)
NODES = torch.arange(3).repeat_interleave(2)
BRUTE_RULES = {
    "lrp-0": (nrm.LRP0(), brute.Rule("lrp0")),
    "z+": (nrm.ZPlus(), brute.Rule("zplus")),
    "gamma": (nrm.Gamma(0.3), brute.Rule("gamma", 0.3)),
}


def dense(rule: brute.Rule, bias: str, model: Net, propagates_first: bool) -> brute.Network:
    """The same network with a dense adjacency: adjacency times weight in one step, or one after the other."""
    x, (source, target) = TINY
    network = brute.Network(bias=bias)
    network.source("input", x)
    adjacency = torch.zeros(3, 3, dtype=torch.float64)  # source x target
    adjacency[source, target] = 1
    eye = torch.eye(2, dtype=torch.float64)
    below = "input"
    for name, conv in (("conv1", model.conv1), ("conv2", model.conv2)):
        w = conv.lin.weight.detach().T.contiguous()
        if propagates_first:
            mixed = torch.kron(adjacency + 1.5 * torch.eye(3, dtype=torch.float64), eye)
            network.affine(f"{name}/add", [brute.Block(below, mixed, rule)])
            below, matrix = f"{name}/add", torch.kron(torch.eye(3, dtype=torch.float64), w)
            b = conv.lin.bias.detach()
        else:
            with_loops = adjacency + torch.eye(3, dtype=torch.float64)
            scale = with_loops.sum(0).rsqrt()
            matrix, b = torch.kron(scale[:, None] * with_loops * scale, w), conv.bias.detach()
        network.affine(name, [brute.Block(below, matrix, rule)], b.repeat(3), torch.arange(2).repeat(3))
        network.each(f"{name}/relu", name, torch.relu)
        below = f"{name}/relu"
    network.affine("pool", [brute.Block(below, eye.repeat(3, 1))])
    network.affine("head", [brute.Block("pool", model.head.weight.detach().T, rule)], model.head.bias.detach())
    return network


@pytest.mark.parametrize("bias", ["ignore", "input"])
@pytest.mark.parametrize("rule", BRUTE_RULES)
@pytest.mark.parametrize("conv", ["plain GCN", "plain GIN", "GCN"])
def test_subgraphs_edges_and_walks_against_their_list(conv: str, rule: str, bias: str) -> None:
    if conv not in CONVS:
        pytest.skip("torch_geometric is absent (pip install nrm[graph])")
    torch.manual_seed(5)
    model = Net(CONVS[conv], width=2, features=2).double()
    with torch.no_grad():
        for p in model.parameters():
            p += 0.3
    ours, theirs = BRUTE_RULES[rule]
    network = dense(theirs, bias, model, conv == "plain GIN")
    R = nrm.measure(model, TINY, rules=ours, bias=bias, target=0)
    assert torch.allclose(R.values(R.output)[0], network.values["head"])
    found = brute.walks(network.explain("head", 0))
    layers = [R.input, R["conv1"], R["conv2"]]
    for nodes in ([0, 1], [1], [1, 2], [0, 2], [0, 1, 2]):
        inside = [n for n in range(6) if int(NODES[n]) in nodes]
        expected = brute.measure(found, *(brute.at(name, inside) for name in ("input", "conv1", "conv2")))
        assert float(R(*(layer.position(nodes) for layer in layers))) == pytest.approx(expected, abs=1e-12)
    for upper, lower, name in ((R["conv1"], "input", "conv1"), (R["conv2"], "conv1", "conv2")):
        ends = brute.table(found, [(lower, NODES), (name, NODES)])
        below = R.input if lower == "input" else R[lower]
        assert torch.allclose(R(below.all, upper.edges)[0], ends[TINY[1][0], TINY[1][1]], atol=1e-12)
    whole = brute.table(found, [("input", NODES), ("conv1", NODES), ("conv2", NODES)])
    assert torch.allclose(R(*(layer.positions for layer in layers))[0], whole, atol=1e-12)
    best = sorted((r for _, r in found), reverse=True)[:20]
    listed = [r for walk in R.walks(k=20)[0] for r in [walk.relevance] * walk.multiplicity]
    assert listed[:20] == pytest.approx(best, rel=1e-9)


def test_flows_of_nodes_are_exact() -> None:
    R = nrm.measure(net("plain GCN"), GRAPHS[0], rules=nrm.ZPlus())
    table = R(R.input.positions, R["conv1"].positions, R["conv2"].positions)[0]
    best = R.flows(R.input.positions, R["conv1"].positions, R["conv2"].positions, k=5)[0]
    assert [f.relevance for f in best] == pytest.approx(table.flatten().sort(descending=True).values[:5].tolist())


@needs_pyg
def test_weights_over_neighbours_are_held_constant() -> None:
    """LRP-0 with biases as inputs is gradient times input over output, with the attention as a constant matrix."""
    model = net("GAT")
    x, edges = GRAPHS[0]
    R = nrm.measure(model, (x, edges), rules="lrp-0")

    def fixed(conv: Any, h: Tensor) -> Tensor:
        _, (pairs, weights) = conv(h.detach(), edges, return_attention_weights=True)
        matrix = torch.zeros(len(x), len(x), dtype=torch.float64)
        matrix[pairs[1], pairs[0]] = weights[:, 0].detach()
        return matrix @ conv.lin(h) + conv.bias

    leaf = x.clone().requires_grad_()
    h = fixed(model.conv2, fixed(model.conv1, leaf).relu()).relu()
    value = model.head(h.sum(0))[int(R.prediction)]
    value.backward()
    assert leaf.grad is not None
    assert torch.allclose(R(R.input)[0], leaf.grad * x / value.detach(), atol=1e-12 * float(R(R.input).abs().sum()))


# ---- what graphs bring along ----------------------------------------------------------------------------------------


@needs_pyg
@pytest.mark.parametrize("conv", ["GCN", "SAGE, max", "GIN", "GAT"])
def test_loops_isolated_nodes_and_repeated_edges(conv: str) -> None:
    """A loop of the user's is an edge; an edge twice is two edges, of which a layer may drop one; node 0 is alone."""
    x = torch.rand(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) + 0.1
    edges = torch.tensor([[1, 2, 3, 3, 4, 1, 1], [2, 1, 3, 4, 3, 2, 4]])
    R = nrm.measure(net(conv), (x, edges), rules="lrp-0")
    check_capture(net(conv), x, edges)
    lower, upper = R["conv2"].input, R["conv2"]
    table, along = R(lower.positions, upper.positions)[0], R(lower.all, upper.edges)[0]
    assert float(along[[0, 5]].sum()) == pytest.approx(float(table[1, 2]), abs=1e-12)
    assert float(along[1]) == pytest.approx(float(table[2, 1]), abs=1e-12)
    assert float(along[3]) == pytest.approx(float(table[3, 4]), abs=1e-12)
    assert float(table[0, 1:].abs().sum() + table[1:, 0].abs().sum()) == 0
    if conv in ("GCN", "GAT"):
        assert float(along[2]) == pytest.approx(float(table[3, 3]), abs=1e-12)
    assert sum(float(R(part.all)) for part in R.inputs) == pytest.approx(1)


@needs_pyg
def test_nodes_can_be_embedded_and_edges_weighted() -> None:
    class Embedded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kind, self.conv, self.head = nn.Embedding(6, 4), pyg.GCNConv(4, 4), nn.Linear(4, 2)

        def forward(self, z: Tensor, edge_index: Tensor, edge_weight: Tensor, batch: Tensor) -> Tensor:
            return self.head(pool_plain(self.conv(self.kind(z), edge_index, edge_weight).relu(), batch))

    torch.manual_seed(0)
    _, edges, batch = joined(GRAPHS)
    inputs = (torch.arange(15) % 6, edges, torch.rand(edges.shape[1], dtype=torch.float64), batch)
    R = nrm.measure(Embedded().double(), inputs, rules="lrp-0")
    assert R(R["kind"].positions).shape == (3, 15)
    assert R.check(strict=False).mass == pytest.approx((1, 1, 1))
    assert "held constant" in str(R.check(strict=False))


@needs_pyg
@pytest.mark.parametrize("kind", ["GCN", "GraphSAGE", "GIN", "GAT"])
def test_models_of_the_library_have_edges_in_every_layer(kind: str) -> None:
    """Their layers share one activation, which is no part of any of them; GIN calls it inside its layers."""

    class Ready(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gnn = getattr(pyg.models, kind)(4, 5, num_layers=3, out_channels=5, jk="cat", norm="batch_norm")
            self.head = nn.Linear(5, 2)

        def forward(self, data: Any) -> Tensor:
            return self.head(pyg.global_add_pool(self.gnn(data.x, data.edge_index), data.batch))

    torch.manual_seed(1)
    model, batch = Ready().double().eval(), Batch.from_data_list([Data(x=x, edge_index=e) for x, e in GRAPHS])
    with torch.no_grad():
        for p in model.parameters():
            p += 0.15
    R = nrm.measure(model, batch, rules="lrp-0")
    for k in range(3):
        conv = R[f"gnn.convs.{k}"]
        lower, (source, target) = conv.input, batch.edge_index
        ends = R(lower.positions, conv.positions)[:, source, target]
        assert torch.allclose(R(lower.all, conv.edges), ends, atol=1e-12 * float(ends.abs().sum()))
        assert float(ends.abs().sum()) > 0.01


def test_an_output_per_node_is_explained_per_graph() -> None:
    class PerNode(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2 = PlainConv(4, 5), PlainConv(5, 3)

        def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor | None = None) -> Tensor:
            return self.conv2(self.conv1(x, edge_index).relu(), edge_index)

    torch.manual_seed(0)
    model = PerNode().double()
    x, edges, batch = joined(GRAPHS)
    R = nrm.measure(model, (x, edges, batch), target=([1, 6, 9], 2), rules="lrp-0")
    assert R.value.tolist() == pytest.approx(model(x, edges)[[1, 6, 9], 2].tolist())
    alone = nrm.measure(model, GRAPHS[1], target=(1, 2), rules="lrp-0")
    assert torch.allclose(R(R.input.positions)[1, 5:9], alone(alone.input.positions)[0])
    model.conv2.bias.data -= 100  # every output below the zeros that stand for other graphs' nodes
    low = nrm.measure(model, (x, edges, batch), rules="lrp-0")
    assert low.value.tolist() == pytest.approx([model(x, edges)[batch == k].max().item() for k in range(3)])
    with pytest.raises(nrm.QuestionError, match="no output of sample 1"):
        nrm.measure(model, (x, edges, batch), target=(1, 2))
    assert nrm.measure(model, (x, edges, batch)).check(strict=False).mass == pytest.approx((1, 1, 1))


def test_nodes_of_graphs_may_lie_mixed_and_graphs_without_edges() -> None:
    model, (x, edges) = net("plain GCN"), GRAPHS[0]
    order = torch.tensor([0, 2, 4, 6, 8, 1, 3, 5])  # the node of the batch that a graph's node is
    mixed = torch.zeros(9, 4, dtype=torch.float64)
    mixed[order[:5]], mixed[order[5:]], mixed[7] = x, GRAPHS[1][0][:3], 1.0
    batch = torch.tensor([0, 1, 0, 1, 0, 1, 0, 2, 0])
    R, alone = (
        nrm.measure(model, (mixed, order[edges], batch), rules="lrp-0"),
        nrm.measure(model, (x, edges), rules="lrp-0"),
    )
    assert torch.allclose(R(R["conv1"])[0, order[:5]], alone(alone["conv1"])[0])
    assert torch.allclose(R(R["conv1"].edges)[0], alone(alone["conv1"].edges)[0])
    assert float(R(R["conv1"].edges)[1:].abs().sum()) == 0
    bare = nrm.measure(model, (GRAPHS[1][0][:3], edges[:, :0]), rules="lrp-0")
    assert bare(bare["conv1"].edges).shape == (1, 0)
    assert torch.allclose(R(R.input)[1, order[5:]], bare(bare.input)[0])


def test_one_set_of_nodes_per_graph() -> None:
    R = nrm.measure(net("plain GCN"), joined(GRAPHS), rules="lrp-0")
    table = R(R["conv1"].positions)
    mine = R(R["conv1"].position([[0, 1], [5], [9, 14]]))
    expected = [float(table[0, [0, 1]].sum()), float(table[1, 5]), float(table[2, [9, 14]].sum())]
    assert mine.tolist() == pytest.approx(expected)


def test_complaints() -> None:
    model = net("plain GCN")
    R = nrm.measure(model, joined(GRAPHS), rules="lrp-0")
    with pytest.raises(nrm.QuestionError, match="no sum over neighbours"):
        R(R["head"].edges)
    with pytest.raises(nrm.QuestionError, match="no such block"):
        R(R["conv1"].edge(999))
    x, edges, batch = joined(GRAPHS)
    more = torch.cat([edges, torch.tensor([[0], [99]])], 1)
    for inputs, text in (
        ((x, torch.cat([edges, torch.tensor([[0], [14]])], 1), batch), "joins nodes of two graphs"),
        ((x, more, batch), "names a node that does not exist"),
        ((x, more), "0 to 14: there are 15 nodes"),
        ((x, edges - 1), "names a node that does not exist"),
        ((x, edges.T, batch), "edge_index does not list edges"),
        ((x, edges.double(), batch), "edge_index does not list edges"),
        ((x, edges, batch.double()), "does not tell graphs apart"),
        ((x, edges, batch - 1), "does not tell graphs apart"),
        ((x, edges, batch[:-1]), "does not tell graphs apart"),
        ((x, edges, batch + (batch > 0)), "a graph of the batch has no nodes"),
        ((x * torch.nan, edges, batch), "contains NaN"),
    ):
        with pytest.raises(nrm.CaptureError, match=text):
            nrm.measure(model, inputs)
    with pytest.raises(nrm.QuestionError, match="targets and samples do not match"):
        nrm.measure(model, (x, edges, batch), target=[0, 1])
    whole = nrm.measure(model, (x, edges, batch), batch_dim=None, target=(0, 0))
    assert len(whole) == 1


def test_rows_of_repeated_edges_are_counted_in_order() -> None:
    edges = torch.tensor([[0, 0, 1], [1, 1, 0]])
    rows = EdgeStep(9, 8, targets=torch.tensor([0, 1, 1, 1]), sources=torch.tensor([1, 0, 0, 1]))
    assert number_edges(rows, edges).tolist() == [2, 0, 1, -1]
    foreign = EdgeStep(9, 8, targets=torch.tensor([2, 1]), sources=torch.tensor([0, 0]))
    with pytest.raises(nrm.QuestionError, match="does not sum along the edges"):
        number_edges(foreign, edges)


def test_edges_are_values() -> None:
    conv = nrm.layer("conv1")
    assert (str(conv.edges), repr(conv.edge([1, 2]))) == ("conv1.edges", "nrm.layer('conv1').edge([1, 2])")
    assert conv.edges == nrm.layer("conv1").edges
    assert eval(repr(conv.edges[:3])) == conv.edges[:3]


@pytest.mark.parametrize("rules", ["lrp-0", nrm.ZPlus()])
def test_a_single_channel_per_node_is_no_axis_of_graphs(rules: Any) -> None:
    class Scores(Net):
        def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor | None = None) -> Tensor:
            return self.conv2(self.conv1(x, edge_index).relu(), edge_index).relu() * 2

    torch.manual_seed(3)
    model = Scores(lambda i, o: PlainConv(i, {5: 1}.get(i, o)), pool_plain).double().eval()
    with torch.no_grad():
        for p in model.parameters():
            p.abs_()
    x, edges = GRAPHS[0]
    R = nrm.measure(model, (x, edges), output=lambda o: o[:, 0], target=2, rules=rules, bias="ignore")
    assert R(R["conv2"].positions).shape == (1, 5)
    assert R(R["conv2"].channels).shape == (1, 1)
    assert torch.allclose(R(R["conv2"].positions)[0], torch.eye(5, dtype=torch.float64)[2])
    assert torch.allclose(R(R.input.positions).sum(), torch.ones((), dtype=torch.float64))


class Attended(nn.Module):
    """A graph attention layer, one with chosen neighbours, softmax-weighted messages, and a pooling by maxima."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = pyg.GATConv(4, 6, heads=2, concat=False)
        self.sage = pyg.SAGEConv(6, 6, aggr="max")
        self.soft = pyg.GENConv(6, 6, aggr="softmax", num_layers=1, norm="layer")
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        h = self.attend(x, edge_index).relu()
        h = self.sage(h, edge_index).tanh()
        h = self.soft(h, edge_index)
        return self.head(pyg.global_max_pool(h, batch) + pyg.global_mean_pool(h, batch))


@needs_pyg
@pytest.mark.filterwarnings("ignore::nrm.NrmWarning")
def test_graphs_with_an_atom_exchanged_have_exact_contrasts() -> None:
    """Only nodes that a changed node reaches have a part, and every graph has mass 1 at every cut."""
    torch.manual_seed(0)
    model = Attended().double().eval()
    x, edges, batch = joined([ring(5, 0), ring(4, 1)])
    other = x.clone()
    other[1], other[7] = torch.rand(2, 4, dtype=torch.float64)
    given = {"x": x, "edge_index": edges, "batch": batch}
    R = nrm.measure(model, given, against={**given, "x": other}, target=0)
    difference = (model(x, edges, batch) - model(other, edges, batch))[:, 0].detach()
    torch.testing.assert_close(R.value, difference)
    check = R.check(strict=False)
    largest = max(max(row) for row in check.variation.values())
    assert check.cut_error is not None
    assert check.cut_error < 1e-10 * largest
    heat = R.in_units(R.input)
    changed = [(0, 1), (1, 7)]
    for graph, node in changed:
        torch.testing.assert_close(heat[graph, node].sum(), difference[graph])
    kept = torch.ones(heat.shape[:2], dtype=torch.bool)
    for graph, node in changed:
        kept[graph, node] = False
    assert float(heat[kept].abs().max()) == 0
    fewer = {**given, "edge_index": edges[:, :-1], "x": other}
    with pytest.raises(nrm.QuestionError, match="shape of the input"):
        nrm.measure(model, given, against=fewer)
    turned = {**given, "edge_index": edges.flip(0), "x": other}
    with pytest.raises(nrm.CaptureError, match=r"in the two runs|between the two runs"):
        nrm.measure(model, given, against=turned)
