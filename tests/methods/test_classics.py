"""Every recipe is its question, and on small graphs the enumeration of walks."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import nrm
from nrm.methods import additive, conrel, crp, gnn_lrp, lrp, subgraph, symbxai
from oracles import brute


@pytest.fixture(scope="module")
def R() -> nrm.Measure:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(5 * 36, 4)
    )
    return nrm.measure(model.eval(), torch.rand(2, 3, 8, 8), rules="epsilon-plus")


RECIPES: dict[str, tuple[Callable[[nrm.Measure], Tensor], Callable[[nrm.Measure], Tensor], tuple[int, ...]]] = {
    "lrp": (lambda R: lrp(R), lambda R: R(R.input), (2, 3, 8, 8)),
    "lrp of a set": (lambda R: lrp(R, R.input[:, :4]), lambda R: R(R.input[:, :4]), (2,)),
    "lrp of positions": (lambda R: lrp(R, R.input.positions), lambda R: R(R.input).sum(1), (2, 8, 8)),
    "conrel": (lambda R: conrel(R, R["1"]), lambda R: R(R["1"]), (2, 6, 8, 8)),
    "conrel of a set": (lambda R: conrel(R, R["1"].channel([1, 2])), lambda R: R(R["1"].channels)[:, 1:3].sum(1), (2,)),
    "conrel of channels": (lambda R: conrel(R, R["1"].channels), lambda R: R(R["1"].channels), (2, 6)),
    "crp": (lambda R: crp(R, R["1"].channel(2)), lambda R: R(R.input, R["1"].channel(2)), (2, 3, 8, 8)),
    "crp of two concepts as one": (
        lambda R: crp(R, R["1"].channel([2, 4])),
        lambda R: R(R.input, R["1"].channel(2)) + R(R.input, R["1"].channel(4)),
        (2, 3, 8, 8),
    ),
    "crp of two concepts, one by one": (
        lambda R: crp(R, R["1"].channels[[2, 4]]),
        lambda R: torch.stack([R(R.input, R["1"].channel(c)) for c in (2, 4)], 1),
        (2, 2, 3, 8, 8),
    ),
    "crp in two layers": (
        lambda R: crp(R, R["1"].channel(2), R["3"].channel(0), at=R.input.positions),
        lambda R: R(R.input, R["1"].channel(2), R["3"].channel(0)).sum(1),
        (2, 8, 8),
    ),
    "crp at an input set": (
        lambda R: crp(R, R["1"].channels, at=R.input[0]),
        lambda R: R(R.input, R["1"].channels)[:, 0].sum((1, 2)),
        (2, 6),
    ),
    "subgraph": (
        lambda R: subgraph(R, ["input", R["1"]], [(0, 0), (0, 1)]),
        lambda R: R(R.input[:, 0, :2], R["1"][:, 0, :2]),
        (2,),
    ),
    "a walk over places": (
        lambda R: gnn_lrp(R, ("input", "1"), [3, (1, 4)]),
        lambda R: R(R.input[:, 0, 3], R["1"][:, 1, 4]),
        (2,),
    ),
}


RECIPES |= {
    "symbxai": (
        lambda R: symbxai(R, nrm.visits(R["1"].channel(2)) & ~nrm.visits(R["3"].channel(1))),
        lambda R: R(R["1"].channel(2), ~R["3"].channel(1)),
        (2,),
    ),
    "symbxai of text about places": (
        lambda R: symbxai(R, "here OR NOT here", ["input", "1"], here=[0]),
        lambda R: torch.ones(2),
        (2,),
    ),
    "symbxai of text about sets, as a heat map": (
        lambda R: symbxai(R, "one AND two", one=R["1"].channel([2, 4]), two=R["3"].channel(0), at=R.input),
        lambda R: R(R.input, R["1"].channel([2, 4]), R["3"].channel(0)),
        (2, 3, 8, 8),
    ),
    "symbxai given a set": (
        lambda R: symbxai(R, "one", one=R["1"].channel([2, 4]), given=R["3"].channel(0)),
        lambda R: R(R["1"].channel([2, 4]), R["3"].channel(0)) / R(R["3"].channel(0)),
        (2,),
    ),
    "symbxai of features with the names of arguments": (
        lambda R: symbxai(R, "R AND NOT formula", R=R["1"].channel([2, 4]), formula=R["3"].channel(0)),
        lambda R: R(R["1"].channel([2, 4]), ~R["3"].channel(0)),
        (2,),
    ),
    "additive": (
        lambda R: additive(R, R["1"].channel(2), R["3"].channel(0), layers=["1", "3"]),
        lambda R: (R(R["1"].channel(2)) + R(R["3"].channel(0))) / 2,
        (2,),
    ),
    "additive heat map": (
        lambda R: additive(R, R["1"].channel(2), at=R.input),
        lambda R: R.additive(R["1"].channel(2), at=R.input),
        (2, 3, 8, 8),
    ),
}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_its_question(name: str, R: nrm.Measure) -> None:
    recipe, question, shape = RECIPES[name]
    answer = recipe(R)
    assert answer.shape == shape
    assert float(answer.abs().sum()) > 0
    torch.testing.assert_close(answer, question(R), rtol=1e-5, atol=1e-7)


def test_errors(R: nrm.Measure) -> None:
    with pytest.raises(nrm.QuestionError, match="CRP needs a concept"):
        crp(R)
    with pytest.raises(nrm.QuestionError, match="one node per layer"):
        gnn_lrp(R, ["input", "1"], [3])
    for layers in ("input", [], R.input, None):
        with pytest.raises(nrm.QuestionError, match="layers are a list"):
            subgraph(R, layers, [1])  # type: ignore[arg-type]
    with pytest.raises(nrm.QuestionError, match="unknown layer"):
        subgraph(R, ["nowhere"], [1])
    with pytest.raises(nrm.QuestionError, match="for formulas as text"):
        symbxai(R, nrm.visits(R.input.all), ["input"])
    with pytest.raises(nrm.QuestionError, match="has no set for 'net'"):
        symbxai(R, "fin AND NOT net", ["input"], fin=[0])
    with pytest.raises(nrm.QuestionError, match="'fin' is no set"):
        symbxai(R, "fin", fin=[0])
    with pytest.raises(nrm.QuestionError, match="nothing was asked"):
        additive(R)
    with pytest.raises(nrm.QuestionError, match="not something that can be asked about"):
        conrel(R, "1")  # type: ignore[arg-type]


# --- graphs against their list of walks ---

NODES, SIZES = 4, (2, 3, 2)


class GraphNet(nn.Module):
    """Two rounds of ``relu(A h W)`` over four nodes, and a sum of all nodes."""

    adjacency: Tensor

    def __init__(self) -> None:
        super().__init__()
        near = torch.eye(NODES) + torch.diag(torch.ones(NODES - 1), 1) + torch.diag(torch.ones(NODES - 1), -1)
        self.register_buffer("adjacency", near / near.sum(1, keepdim=True))
        self.mix1, self.mix2 = (nn.Linear(*pair, bias=False) for pair in itertools.pairwise(SIZES))
        self.relu1, self.relu2 = nn.ReLU(), nn.ReLU()
        self.head = nn.Linear(SIZES[-1], 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = self.relu1(self.adjacency @ self.mix1(x))
        h = self.relu2(self.adjacency @ self.mix2(h))
        return self.head(h.sum(1))


LAYERS = ["input", "relu1", "relu2"]


def graph(seed: int) -> tuple[GraphNet, Tensor]:
    torch.manual_seed(seed)
    model, x = GraphNet().double().eval(), torch.randn(1, NODES, SIZES[0], dtype=torch.float64)
    return model, x


def walks_of(model: GraphNet, x: Tensor, target: int, rule: brute.Rule) -> list[tuple[brute.Walk, float]]:
    """Every walk over single neurons, from the weights alone."""
    with torch.no_grad():
        net = brute.Network()
        net.source("input", x[0])
        h = "input"
        for k, mix in enumerate((model.mix1, model.mix2), 1):
            net.affine(
                f"mix{k}",
                [brute.Block(h, torch.kron(torch.eye(NODES, dtype=torch.float64), mix.weight.T.contiguous()), rule)],
            )
            width = torch.eye(SIZES[k], dtype=torch.float64)
            net.affine(f"near{k}", [brute.Block(f"mix{k}", torch.kron(model.adjacency.T.contiguous(), width), rule)])
            h = f"relu{k}"
            net.each(h, f"near{k}", torch.relu)
        net.affine("sum", [brute.Block(h, torch.eye(SIZES[-1], dtype=torch.float64).repeat(NODES, 1))])
        net.affine("head", [brute.Block("sum", model.head.weight.T, rule)])
        torch.testing.assert_close(net.values["head"], model(x)[0])
        return brute.walks(net.explain("head", target))


def node(walk: brute.Walk, layer: str) -> int:
    """The node that a walk passes in a layer; neurons are numbered node by node."""
    number = brute.position(walk, layer)
    assert number is not None
    return number // SIZES[LAYERS.index(layer)]


@pytest.mark.filterwarnings("ignore::nrm.errors.NrmWarning")
@pytest.mark.parametrize("rule", ["lrp0", "zplus"])
@pytest.mark.parametrize("seed", [3, 6, 8])  # networks that are alive
def test_walks_over_nodes_are_sums_of_walks_over_neurons(seed: int, rule: str) -> None:
    model, x = graph(seed)
    target = int(model(x).argmax())
    rules = {"lrp0": nrm.LRP0(), "zplus": nrm.ZPlus()}[rule]
    R = nrm.measure(model, x, target=target, rules={"*": rules, "/sum": nrm.LRP0()}, bias="ignore")
    truth = torch.zeros(1, NODES, NODES, NODES, dtype=torch.float64)
    for walk, relevance in walks_of(model, x, target, brute.Rule(rule)):
        truth[(0, *(node(walk, layer) for layer in LAYERS))] += relevance
    scale = float(truth.abs().sum())
    torch.testing.assert_close(truth.sum(), torch.tensor(1.0, dtype=torch.float64))
    answer = gnn_lrp(R, LAYERS)
    torch.testing.assert_close(answer, truth, rtol=1e-9, atol=1e-11 * scale)
    torch.testing.assert_close(gnn_lrp(R, LAYERS, [0, 1, 1]), truth[:, 0, 1, 1], rtol=1e-9, atol=1e-11 * scale)
    for nodes in ([0], [1, 2], [0, 1, 3], [0, 1, 2, 3]):
        inside = truth[:, nodes][:, :, nodes][:, :, :, nodes].sum((1, 2, 3))
        torch.testing.assert_close(subgraph(R, LAYERS, nodes), inside, rtol=1e-9, atol=1e-11 * scale)


FORMULAS: dict[str, Callable[[bool, bool, bool], bool]] = {
    "A": lambda a, b, c: a,
    "NOT A": lambda a, b, c: not a,
    "A AND B": lambda a, b, c: a and b,
    "A OR B": lambda a, b, c: a or b,
    "A AND NOT (B XOR C)": lambda a, b, c: a and not (b ^ c),
    "(A IMPLIES B) OR C": lambda a, b, c: (not a or b) or c,
}


@pytest.mark.filterwarnings("ignore::nrm.errors.NrmWarning")
@pytest.mark.parametrize("rule", ["lrp0", "zplus"])
@pytest.mark.parametrize("seed", [3, 6, 8])
def test_symbxai_counts_walks_by_the_nodes_they_visit(seed: int, rule: str) -> None:
    model, x = graph(seed)
    target = int(model(x).argmax())
    rules = {"lrp0": nrm.LRP0(), "zplus": nrm.ZPlus()}[rule]
    R = nrm.measure(model, x, target=target, rules={"*": rules, "/sum": nrm.LRP0()}, bias="ignore")
    found = walks_of(model, x, target, brute.Rule(rule))
    scale = sum(abs(relevance) for _, relevance in found)
    features = {"A": [0], "B": [2, 3], "C": [1]}
    for text, holds in FORMULAS.items():
        truth, heat = 0.0, torch.zeros(1, NODES, dtype=torch.float64)
        for walk, relevance in found:
            nodes = {node(walk, layer) for layer in LAYERS}
            if holds(*(bool(nodes & set(chosen)) for chosen in features.values())):
                truth += relevance
                heat[0, node(walk, "input")] += relevance
        answer = symbxai(R, text, LAYERS, **features)
        torch.testing.assert_close(answer, torch.tensor([truth], dtype=torch.float64), rtol=1e-9, atol=1e-11 * scale)
        maps = symbxai(R, text, LAYERS, at=R.input.positions, **features)
        torch.testing.assert_close(maps, heat, rtol=1e-9, atol=1e-11 * scale)
    # the paper's rows, written out: SymbXAI by subgraphs of complements
    inside = {name: subgraph(R, LAYERS, [n for n in range(NODES) if n not in set(features[name])]) for name in "AB"}
    neither = subgraph(R, LAYERS, [1])
    torch.testing.assert_close(symbxai(R, "A", LAYERS, **features), 1 - inside["A"], rtol=1e-9, atol=1e-11 * scale)
    both = 1 + neither - inside["A"] - inside["B"]
    torch.testing.assert_close(symbxai(R, "A AND B", LAYERS, **features), both, rtol=1e-9, atol=1e-11 * scale)
