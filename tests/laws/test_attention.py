"""Law 16: the edges of attention are its walks from keys to queries, by values and by weights."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import nrm

pytestmark = pytest.mark.filterwarnings("ignore::nrm.NrmWarning")

T, D, HEADS = 4, 3, 2


class Attention(nn.Module):
    """Two heads on six channels: by torch's function, or written out in one of several ways."""

    def __init__(self, way: str, causal: bool) -> None:
        super().__init__()
        self.way, self.causal = way, causal
        self.to_q, self.to_k, self.to_v = nn.Linear(6, 6), nn.Linear(6, self.shared), nn.Linear(6, self.shared)
        self.out = nn.Linear(6, 6)

    @property
    def shared(self) -> int:
        return D if self.way in ("gqa", "one head") else HEADS * D

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (-1, D)).transpose(1, 2) for f in (self.to_q, self.to_k, self.to_v))
        found = getattr(self, f"_{self.way.replace(' ', '_')}")(q, k, v)
        return self.out(found.transpose(1, 2).flatten(2))

    def _sdpa(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)

    def _gqa(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, enable_gqa=True)

    def _one_head(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Keys and values of one head, which all queries share by broadcasting."""
        return self._written(q, k, v)

    def _written(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self._weights(q @ k.mT / math.sqrt(D)) @ v

    def _turned(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Positions last, as convolutional models write it: values come first."""
        return (v.mT @ self._weights(q @ k.mT).mT).mT

    def _keys_first(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self._weights((k @ q.mT).mT) @ v

    def _einsum(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Heads behind positions, as many write it."""
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        weights = self._weights(torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(D))
        return torch.einsum("bhqk, bkhd -> bqhd", weights, v).transpose(1, 2)

    def _weights(self, scores: Tensor) -> Tensor:
        if self.causal:
            scores = scores.masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -torch.inf)
        return scores.softmax(-1)


class Two(nn.Module):
    """Two attention layers with skips, and a nonlinear function between and above them."""

    def __init__(self, way: str, causal: bool) -> None:
        super().__init__()
        self.one, self.two = Attention(way, causal), Attention(way, causal)
        self.between, self.head = nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.one(x)
        x = x + self.two(torch.tanh(self.between(x)))
        return self.head(torch.tanh(x)).mean(1)


WAYS = ("sdpa", "gqa", "one head", "written", "turned", "keys first", "einsum")
RULES: dict[str, object] = {
    "transformer": "transformer",
    "half": {"*": "transformer", "matmul": nrm.Product(gate=1, signal=1)},
    "attn-lrp": "attn-lrp",
    "w2": nrm.WSquare(),
    "gamma": nrm.Gamma(0.3),
    "alpha-beta": nrm.AlphaBeta(2, 1),
}


def measured(way: str, causal: bool, **options: object) -> nrm.Measure:
    torch.manual_seed(0)
    model, x = Two(way, causal).double(), torch.randn(2, T, 6, dtype=torch.float64)
    if options.pop("contrast", False):
        options["against"] = torch.randn(2, T, 6, dtype=torch.float64)
    return nrm.measure(model, x, target=1, **options)


def by_sweeps(R: nrm.Measure, attn: nrm.Layer, turned: bool) -> Tensor:
    """Every edge by questions about tensors: values at the key with results at the query, and the attention weights."""
    step = R.inner.places.attention(attn.edges.layer)
    assert step is not None
    nodes = R.inner.tape.nodes
    product = nrm.layer(nodes[step.product].name)
    weights = nrm.layer(nodes[nodes[step.weights].inputs[0]].name, nodes[step.weights].name)
    result = product.axis(0, 2 if turned else 1)
    values = attn.v.axis(0, 1)
    pairs = R(values, result)  # (batch, value heads, keys, heads, queries)
    if pairs.shape[1] == 1:
        by_value = pairs[:, 0].permute(0, 2, 3, 1)
    else:
        assert pairs.shape[1] == HEADS
        by_value = torch.stack([pairs[:, h, :, h].mT for h in range(HEADS)], 1)
    by_weight = R(weights)
    return by_value + (by_weight.mT if turned else by_weight)


@pytest.mark.parametrize(
    ("rules", "way"),
    [*itertools.product(("transformer", "contrast"), WAYS), *itertools.product(RULES, ("gqa", "written", "turned"))],
)
def test_edges_are_what_sweeps_find(rules: str, way: str) -> None:
    options = {"contrast": True} if rules == "contrast" else {"rules": RULES[rules]}
    causal = way in ("sdpa", "gqa", "turned")
    R = measured(way, causal, **options)
    for name in ("one", "two"):
        attn = R[name]
        edges = R(attn.edges)
        assert edges.shape == (2, HEADS, T, T)
        scale = float(edges.abs().max())
        torch.testing.assert_close(edges, by_sweeps(R, attn, way == "turned"), rtol=1e-9, atol=1e-12 * scale)
        heads = R(R[f"{name}.out"].input.heads)
        torch.testing.assert_close(edges.sum((2, 3)), heads, rtol=1e-9, atol=1e-12 * scale)
        if causal:
            assert not bool(edges.triu(1).any())


@pytest.mark.parametrize("way", WAYS)
def test_edges_of_a_contrast_are_those_defined(way: str) -> None:
    """``mean(A) <dv, g>`` by value and ``dA <mean(v), g>`` by pattern, with g the weights of a linear output."""
    torch.manual_seed(1)
    attention = Attention(way, True).double()
    model = nn.Sequential(attention, nn.Flatten(), nn.Linear(T * 6, 1, dtype=torch.float64))
    runs = torch.randn(2, 1, T, 6, dtype=torch.float64).unbind(0)
    R = nrm.measure(model, runs[0], against=runs[1], target=0)
    parts = []
    with torch.no_grad():
        for x in runs:
            q, k, v = (
                f(x).unflatten(-1, (-1, D)).transpose(1, 2).expand(1, HEADS, T, D)
                for f in (attention.to_q, attention.to_k, attention.to_v)
            )
            scale = 1.0 if way in ("turned", "keys first") else math.sqrt(D)
            parts.append((attention._weights(q @ k.mT / scale), v))
        (A, v), (A2, v2) = parts
        g = (model[2].weight.view(1, T, 6) @ attention.out.weight).unflatten(-1, (HEADS, D)).transpose(1, 2)
        by_value = (A + A2) / 2 * (g @ (v - v2).mT)
        by_pattern = (A - A2) * (g @ ((v + v2) / 2).mT)
    torch.testing.assert_close(R.in_units(R["0"].edges), by_value + by_pattern, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(R.in_units(R["0"].v.all), by_value.sum((1, 2, 3)), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("way", WAYS)
def test_where_a_head_looks_and_what_it_moves(way: str) -> None:
    """Queries and keys have the pattern's part of the edges, values the rest: together they are the layer."""
    R = measured(way, True, contrast=True)
    for name in ("one", "two"):
        attn = R[name]
        where, what = R(attn.q.all) + R(attn.k.all), R(attn.v.all)
        torch.testing.assert_close(where + what, R(attn.edges).sum((1, 2, 3)))
        assert bool((where.abs() > 1e-6).all())
        for part, projection in ((attn.q, "to_q"), (attn.k, "to_k"), (attn.v, "to_v")):
            whole = R(R[f"{name}.{projection}"])
            torch.testing.assert_close(R(part.all), whole.flatten(1).sum(1))
            heads = R.values(part).shape[1]
            assert R.values(part).shape == (2, heads, T, D)
            torch.testing.assert_close(R(part.axis(1)), whole.sum(2))
    plain = measured(way, True)
    assert not bool(plain(plain["one"].q.all).any()), "weights are held constant"


def test_one_tensor_may_be_query_key_and_value() -> None:
    class Bare(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.softmax(x @ x.mT, -1) @ x

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), Bare(), nn.Flatten(), nn.Linear(12, 2)).double()
    x, twin = torch.randn(2, 2, T, 3, dtype=torch.float64)
    R = nrm.measure(model, x, against=twin, target=0)
    parts = [R(part.all) for part in (R["1"].q, R["1"].k, R["1"].v)]
    torch.testing.assert_close(sum(parts), torch.ones(2, dtype=torch.float64))
    assert R(R["1"].edges).shape == (2, 1, T, T)
    torch.testing.assert_close(R(R["1"].edges).sum((1, 2, 3)), torch.ones(2, dtype=torch.float64))


@pytest.mark.parametrize("contrast", [False, True])
def test_a_stack_is_the_flow_of_all_layers(contrast: bool) -> None:
    R = measured("sdpa", True, contrast=contrast)
    layers = [R["one"], R["two"]]
    every = nrm.stack(*(attn.edges for attn in layers))
    table = R(every)
    assert table.shape == R.plan(every).shape == (2, 2, HEADS, T, T)
    for n, attn in enumerate(layers):
        torch.testing.assert_close(table[:, n], R(attn.edges))
    named = R.table(every)
    torch.testing.assert_close(named["relevance"], table)
    assert named.labels[str(every)] == ("one.edges", "two.edges")
    last = nrm.stack(*(attn.edges[:, -1] for attn in layers))
    torch.testing.assert_close(R(last), table[:, :, :, -1])
    torch.testing.assert_close(R.in_units(every), table * R.value.view(-1, 1, 1, 1, 1))


def test_edges_are_sets_too() -> None:
    R = measured("written", False)
    attn, table = R["one"], R(R["one"].edges)
    torch.testing.assert_close(R(attn.edge((1, 2, 3))), table[:, 1, 2, 3])
    torch.testing.assert_close(R(attn.edges[0, :, 2]), table[:, 0, :, 2])
    torch.testing.assert_close(R(attn.edge([(0, 1, 2), (1, 2, 3)])), table[:, 0, 1, 2] + table[:, 1, 2, 3])
    torch.testing.assert_close(R(attn.edges, given=attn.edge((1, 2, 3)))[:, 1, 2, 3], torch.ones(2).double())
    for n, (block, answer) in zip(range(5), R.each(attn.edges), strict=False):
        torch.testing.assert_close(answer, table.flatten(1)[:, n])
        torch.testing.assert_close(R(block), answer)
    torch.testing.assert_close(R.sample(1)(attn.edges), table[1:])


def test_edges_cost_one_product_each() -> None:
    R = measured("sdpa", False)
    R(R.input)
    plan = R.plan(nrm.stack(R["one"].edges, R["two"].edges))
    assert plan.passes < 0.5
    assert [line.times for line in plan.lines] == [1, 1]


def test_what_edges_of_attention_refuse() -> None:
    R = measured("written", False)
    edges = R["one"].edges
    for ask in (
        lambda: R(edges, R.input), lambda: R(edges, R["two"].edges), lambda: R.flows(edges, R.input),
        lambda: R(nrm.visits(R["one"].edge((0, 0, 0)))), lambda: R(nrm.stack(edges), nrm.stack(edges)),
    ):  # fmt: skip
        with pytest.raises(nrm.QuestionError, match="asked alone"):
            ask()
    with pytest.raises(nrm.QuestionError, match="different shapes do not stack"):
        R(nrm.stack(edges, R["two"].edges[:1]))
    with pytest.raises(nrm.QuestionError, match="no sum over neighbours"):
        R(R["between"].edges)
    with pytest.raises(nrm.QuestionError, match="no attention step"):
        R(R["between"].q)
    several = nn.Sequential(nn.Sequential(Attention("sdpa", False), Attention("sdpa", False)), nn.Flatten())
    S = nrm.measure(several.double(), torch.randn(1, T, 6, dtype=torch.float64), target=0)
    with pytest.raises(nrm.QuestionError, match=r"2 attention steps[\s\S]*0\.0"):
        S(S["0"].edges)
    assert S(S["0.1"].edges).shape == (1, HEADS, T, T)


def test_references_average_edges() -> None:
    torch.manual_seed(0)
    model = Two("sdpa", True).double()
    x, *others = torch.randn(4, 1, T, 6, dtype=torch.float64).unbind(0)
    R = nrm.measure(model, x, against=others, target=0)
    each = [nrm.measure(model, x, against=other, target=0) for other in others]
    mean = sum(S.in_units(S["one"].edges) for S in each) / len(each)
    torch.testing.assert_close(R.in_units(R["one"].edges), mean)
    assert R(nrm.stack(R["one"].edges, R["two"].edges)).shape == (1, 2, HEADS, T, T)


ALONE = {
    "with the input": lambda R, e: R(e, R.input),
    "with a layer above": lambda R, e: R(e, R["1"].channels),
    "with what the step reads": lambda R, e: R(e, R["0.self_attn"].v.all),
    "with edges of another step": lambda R, e: R(e, R["1.self_attn"].edges),
    "with a condition": lambda R, e: R(e, given=R["1"].channel(0)),
    "as a condition": lambda R, e: R(R.input, given=e[0, 1, 2]),
    "in a formula": lambda R, e: R(nrm.visits(e[0, 1, 2]) & nrm.visits(R["1"].channel(0))),
    "in a formula alone": lambda R, e: R(nrm.visits(e[0, 1, 2]) | nrm.visits(e[0, 0, 0])),
    "in dividends": lambda R, e: R.dividends(e[0, 1, 2], R["1"].channel(0)),
    "in expectations": lambda R, e: R.expect({R["1"]: torch.ones(8)}, e),
    "in additive shares": lambda R, e: R.additive(e[0, 1, 2]),
    "in flows": lambda R, e: R.flows(e, R.input, k=2),
    "one by one": lambda R, e: next(iter(R.each(e, R.input))),
    "in a stack": lambda R, e: R(nrm.stack(e, R["1.self_attn"].edges), R.input),
    "in a plan": lambda R, e: R.plan(e, R.input),
}


@pytest.mark.parametrize("how", ALONE)
@pytest.mark.parametrize("contrast", [True, False])
def test_edges_together_with_other_events_are_refused(how: str, contrast: bool) -> None:
    """Edges are answered alone; with any other event they are refused by name, whatever the question."""
    torch.manual_seed(0)
    layers = (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(2))
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(24, 2)).double().eval()
    x, other = torch.randn(2, 1, 3, 8, dtype=torch.float64)
    R = nrm.measure(model, x, target=0, against=other if contrast else None)
    with pytest.raises(nrm.QuestionError, match=r"edges of attention are asked alone(.|\n)*0\.self_attn\.edges"):
        ALONE[how](R, R["0.self_attn"].edges)
    hinted = R(R["0.self_attn"].v.position((1, 2)), R.input)
    torch.testing.assert_close(hinted.flatten(1).sum(1), R(R["0.self_attn"].v.position((1, 2))))


def test_tables_name_heads_queries_and_keys() -> None:
    R = measured("sdpa", True)
    table = R.table(R["one"].edges)
    assert table.axes["relevance"] == ("sample", "one.edges head", "one.edges query", "one.edges key")
    torch.testing.assert_close(table.tensors["relevance"], R(R["one"].edges))
    stack = nrm.stack(R["one"].edges, R["two"].edges)
    assert R.table(stack).axes["relevance"] == ("sample", str(stack), "head", "query", "key")
