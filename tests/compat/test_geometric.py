"""The door for PyTorch Geometric: its explainer calls, masks are questions."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nrm

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it still scripts some of its classes
    pytest.importorskip("torch_geometric", reason="torch_geometric is absent (pip install nrm[graph])")
    from torch_geometric.explain import Explainer, HeteroExplanation
    from torch_geometric.nn import GCNConv, GINConv, HeteroConv, SAGEConv, global_add_pool


class Net(nn.Module):
    """Two graph layers of different kinds, with or without a pooling of nodes."""

    def __init__(self, outputs: int, pool: bool) -> None:
        super().__init__()
        self.conv1 = GCNConv(3, 6)
        self.conv2 = GINConv(nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6)))
        self.unused = GCNConv(6, 6)
        self.head = nn.Linear(6, outputs)
        self.pool = pool

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor | None = None, scale: float = 1.0) -> Tensor:
        h = self.conv1(x, edge_index).relu() * scale
        h = self.conv2(h, edge_index).relu()
        return self.head(global_add_pool(h, batch) if self.pool else h)


EDGES = torch.tensor([[0, 1, 1, 2, 0, 2, 3, 4], [1, 0, 2, 1, 2, 0, 4, 3]])
BATCH = torch.tensor([0, 0, 0, 1, 1])
X = torch.rand(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def net(outputs: int = 4, pool: bool = True) -> Net:
    torch.manual_seed(0)
    model = Net(outputs, pool).double().eval()
    with torch.no_grad():
        for p in model.parameters():
            p += 0.1
    return model


def explainer(model: nn.Module, **changes: Any) -> Explainer:
    config = {"mode": "multiclass_classification", "task_level": "graph", "return_type": "raw"}
    config |= {key: changes.pop(key) for key in config if key in changes}
    settings = {"explanation_type": "model", "node_mask_type": "attributes", "edge_mask_type": "object"} | changes
    algorithm = settings.pop("algorithm", None) or nrm.compat.geometric(rules="lrp-0")
    return Explainer(model, algorithm=algorithm, model_config=config, **settings)


def test_graphs_of_a_batch() -> None:
    model = net()
    found = explainer(model)(X, EDGES, batch=BATCH)
    R = nrm.measure(model, (X, EDGES, BATCH), rules="lrp-0")
    x = R["input[0]"] if len(R.inputs) and R.inputs else R.input
    torch.testing.assert_close(found.node_mask, (R(x) * R.value[:, None, None]).sum(0))
    per_layer = [(R(R[name].edges) * R.value[:, None]).sum(0) for name in ("conv1", "conv2")]
    torch.testing.assert_close(found.edge_mask, (per_layer[0] + per_layer[1]) / 2)
    assert float(found.edge_mask.abs().min()) > 0
    assert found.validate(raise_on_error=True)


def test_one_graph_of_a_batch() -> None:
    model = net()
    found = explainer(model)(X, EDGES, batch=BATCH, index=1)
    alone = explainer(model)(X[3:], EDGES[:, 6:] - 3)
    torch.testing.assert_close(found.node_mask[3:], alone.node_mask)
    torch.testing.assert_close(found.edge_mask[6:], alone.edge_mask)
    assert not found.node_mask[:3].any()
    assert not found.edge_mask[:6].any()


@pytest.mark.parametrize(("kind", "shape"), [("attributes", (5, 3)), ("object", (5, 1)), ("common_attributes", (1, 3))])
def test_kinds_of_node_masks(kind: str, shape: tuple[int, ...]) -> None:
    whole = explainer(net())(X, EDGES, batch=BATCH).node_mask
    found = explainer(net(), node_mask_type=kind, edge_mask_type=None)(X, EDGES, batch=BATCH)
    assert found.node_mask.shape == shape
    assert "edge_mask" not in found
    torch.testing.assert_close(found.node_mask, whole.sum_to_size(shape))


def test_edges_alone() -> None:
    found = explainer(net(), node_mask_type=None)(X, EDGES, batch=BATCH)
    assert "node_mask" not in found
    torch.testing.assert_close(found.edge_mask, explainer(net())(X, EDGES, batch=BATCH).edge_mask)


@pytest.mark.parametrize("index", [2, torch.tensor([2, 4]), None])
def test_nodes(index: Any) -> None:
    model = net(pool=False)
    found = explainer(model, task_level="node")(X, EDGES, index=index)
    rows = range(5) if index is None else torch.as_tensor(index).flatten().tolist()
    nodes, edges = torch.zeros_like(X), torch.zeros(8, dtype=X.dtype)
    for row in rows:
        R = nrm.measure(model, (X, EDGES), target=(row, int(model(X, EDGES)[row].argmax())), rules="lrp-0")
        nodes += R(R.input)[0] * R.value
        edges += (R(R["conv1"].edges) + R(R["conv2"].edges))[0] / 2 * R.value
    torch.testing.assert_close(found.node_mask, nodes)
    torch.testing.assert_close(found.edge_mask, edges)


def test_a_given_target() -> None:
    model, target = net(), torch.tensor([3, 0])
    found = explainer(model, explanation_type="phenomenon")(X, EDGES, batch=BATCH, target=target)
    R = nrm.measure(model, (X, EDGES, BATCH), target=target, rules="lrp-0")
    torch.testing.assert_close(found.node_mask, (R(R.input) * R.value[:, None, None]).sum(0))


@pytest.mark.parametrize("level", ["graph", "node"])
def test_binary_classes_and_regression(level: str) -> None:
    model = net(1, pool=level == "graph")
    rows = 2 if level == "graph" else 5
    more = {"batch": BATCH} if level == "graph" else {}
    value = explainer(model, mode="regression", task_level=level)(X, EDGES, **more).node_mask
    for sign in (1, 0):
        ask = explainer(model, mode="binary_classification", task_level=level, explanation_type="phenomenon")
        found = ask(X, EDGES, target=torch.full((rows,), sign), **more)
        torch.testing.assert_close(found.node_mask, value if sign else -value)
    yes = torch.arange(rows) % 2
    parts = explainer(model, mode="binary_classification", task_level=level, explanation_type="phenomenon")
    total = sum(parts(X, EDGES, target=yes, index=row, **more).node_mask for row in range(rows))
    torch.testing.assert_close(parts(X, EDGES, target=yes, **more).node_mask, total)


class Links(Net):
    """The score of pairs of nodes, one or several numbers for each."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_label_index: Tensor) -> Tensor:  # type: ignore[override]
        h = self.conv2(self.conv1(x, edge_index).relu(), edge_index)
        return self.head(h[edge_label_index[0]] * h[edge_label_index[1]])


@pytest.mark.parametrize("index", [1, None])
@pytest.mark.parametrize("mode", ["regression", "multiclass_classification"])
def test_links(mode: str, index: int | None) -> None:
    torch.manual_seed(0)
    model = Links(1 if mode == "regression" else 3, pool=False).double().eval()
    pairs = torch.tensor([[0, 3, 1], [2, 4, 3]])
    found = explainer(model, task_level="edge", mode=mode)(X, EDGES, edge_label_index=pairs, index=index)
    nodes, edges = torch.zeros_like(X), torch.zeros(8, dtype=X.dtype)
    for row in range(3) if index is None else [index]:
        column = int(model(X, EDGES, pairs)[row].argmax())
        given = {"x": X, "edge_index": EDGES, "edge_label_index": pairs}
        R = nrm.measure(model, given, target=(row, column), rules="lrp-0")
        nodes += R(R["input.x"])[0] * R.value
        edges += (R(R["conv1"].edges) + R(R["conv2"].edges))[0] / 2 * R.value
    torch.testing.assert_close(found.node_mask, nodes)
    torch.testing.assert_close(found.edge_mask, edges)
    if index == 1:  # nothing of the other part of the graph has to do with it
        assert not found.node_mask[:3].any()
        assert not found.edge_mask[:6].any()


class Kinds(nn.Module):
    """Layers for every kind of edges; a row for every ring, or for the whole graph."""

    def __init__(self, pool: bool) -> None:
        super().__init__()
        self.pool = pool
        self.one, self.two = self._layer((3, 2)), self._layer((4, 4))
        self.head = nn.Linear(4, 2)

    @staticmethod
    def _layer(sizes: tuple[int, int]) -> HeteroConv:
        (a, r), t = sizes, ("ring", "has", "atom")
        bond = {("atom", "bond", "atom"): SAGEConv(a, 4)}
        return HeteroConv(bond | {("atom", "in", "ring"): SAGEConv((a, r), 4), t: SAGEConv((r, a), 4)})

    def forward(self, x: dict[str, Tensor], edge_index: dict[Any, Tensor]) -> Tensor:
        h = {kind: t.relu() for kind, t in self.one(x, edge_index).items()}
        h = self.two(h, edge_index)
        return self.head(h["ring"].relu().sum(0, keepdim=True) + h["atom"].relu().sum(0) if self.pool else h["ring"])


@pytest.mark.parametrize("level", ["graph", "node"])
def test_several_kinds_of_nodes(level: str) -> None:
    torch.manual_seed(0)
    model = Kinds(level == "graph").double().eval()
    x = {"atom": X, "ring": torch.rand(2, 2, dtype=torch.float64)}
    member = torch.tensor([[0, 1, 2, 3, 4], [0, 0, 0, 1, 1]])
    edges = {("atom", "bond", "atom"): EDGES, ("atom", "in", "ring"): member, ("ring", "has", "atom"): member.flip(0)}
    index = None if level == "graph" else 1
    found = explainer(model, task_level=level, node_mask_type="object")(x, edges, index=index)
    assert isinstance(found, HeteroExplanation)
    assert found.validate(raise_on_error=True)
    row = index or 0
    target = (row, int(model(x, edges)[row].argmax())) if level == "node" else None
    R = nrm.measure(model, {"x": x, "edge_index": edges}, target=target, rules="lrp-0")
    for kind in x:
        own = R(R[f"input.x.{kind}"].positions)[0] * R.value
        torch.testing.assert_close(found[kind].node_mask[:, 0], own)
    for kind in edges:
        layers = [R[f"{layer}.convs.<{'___'.join(kind)}>"] for layer in ("one", "two")]
        own = torch.stack([R(layer.edges)[0] * R.value for layer in layers]).mean(0)
        torch.testing.assert_close(found[kind].edge_mask, own)
    shared = explainer(model, task_level=level, node_mask_type="object", edge_mask_type=None)(x, edges, index=index)
    assert "edge_mask" not in shared["atom", "bond", "atom"]


def test_more_arguments_and_the_sum() -> None:
    model = net()
    with torch.no_grad():
        for bias in (
            model.conv1.bias,
            *(m.bias for m in model.modules() if isinstance(m, nn.Linear) and m.bias is not None),
        ):
            bias.zero_()
    found = explainer(model, node_mask_type="object")(X, EDGES, batch=BATCH, scale=0.5)
    assert found.node_mask.shape == (5, 1)
    top = model(X, EDGES, BATCH, 0.5).max(1).values.sum().detach()
    torch.testing.assert_close(found.node_mask.sum(), top)


@pytest.mark.parametrize(
    "changes",
    [{"return_type": "log_probs"}, {"return_type": "probs"}, {"edge_mask_type": "attributes"}],
)
def test_what_is_not_supported(changes: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    """The explainer refuses; the log says what was wrong."""
    ((name, value),) = changes.items()
    with pytest.raises(ValueError, match=r"does not support|edge_mask_type"):
        explainer(net(), **changes)
    if name != "edge_mask_type":  # which the explainer itself refuses
        assert f"{name}='{value}', expected one of" in caplog.text


@pytest.mark.parametrize("mode", ["regression", "binary_classification"])
@pytest.mark.parametrize("level", ["graph", "node"])
def test_several_outputs_need_classes(mode: str, level: str) -> None:
    ask = explainer(net(2, pool=level == "graph"), mode=mode, task_level=level, explanation_type="phenomenon")
    with pytest.raises(nrm.QuestionError, match=f"(?s){mode} is about one output.*2 outputs"):
        ask(X, EDGES, target=torch.zeros(1 if level == "graph" else 5))


def test_errors() -> None:
    with pytest.raises(nrm.QuestionError, match="unknown option 'epochs'"):
        nrm.compat.geometric(epochs=200)
    with pytest.raises(nrm.QuestionError, match="unknown option 'output'"):
        nrm.compat.geometric(output=0)
    algorithm = nrm.compat.geometric()
    with pytest.raises(nrm.QuestionError, match="one kind of graph"):
        algorithm(net(), {"a": X}, EDGES, target=torch.tensor([0]))

    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(3, 2)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.head(x).double().sum(0, keepdim=True)

    with pytest.raises(nrm.QuestionError, match="no layer passes messages"):
        explainer(Bare())(X.float(), EDGES)

    class Nameless(Bare):
        def forward(self, *args: Tensor) -> Tensor:  # type: ignore[override]
            return super().forward(*args)

    with pytest.raises(nrm.QuestionError, match="no names"):
        explainer(Nameless())(X.float(), EDGES)
