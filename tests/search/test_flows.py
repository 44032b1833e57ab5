"""Flows against the whole table: every sign, every kind of partition, searched and enumerated."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nrm
from nrm.measure.measure import Measure

SIGNS = ("+", "-", "abs")


class Net(nn.Module):
    """A signed classifier on convolutions with a residual sum, a batch norm with gains of both signs and a pool."""

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.c2, self.b2 = nn.Conv2d(2, 5, 3, padding=1), nn.Conv2d(5, 5, 3, padding=1), nn.BatchNorm2d(5)
        self.p, self.c3, self.fc1, self.fc2 = nn.MaxPool2d(2), nn.Conv2d(5, 4, 3), nn.Linear(16, 6), nn.Linear(6, 3)
        self.b2.weight.data, self.b2.bias.data = torch.randn(5), torch.randn(5) * 0.3

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.c1(x))
        x = torch.relu(self.b2(self.c2(x)) + x)
        x = torch.relu(self.c3(self.p(x)))
        return self.fc2(torch.relu(self.fc1(x.flatten(1))))


def network(rules: Any = "epsilon-plus-flat", bias: str = "auto", seed: int = 0, target: Any = None) -> Measure:
    torch.manual_seed(seed)
    model, x = Net().double().eval(), torch.rand(3, 2, 8, 8, dtype=torch.float64)
    return nrm.measure(model, x, rules=rules, bias=bias, target=target)


def mlp(*sizes: int) -> nn.Sequential:
    linear = [nn.Linear(a, b, bias=False) for a, b in itertools.pairwise(sizes)]
    return nn.Sequential(*(m for layer in linear for m in (layer, nn.ReLU())))[:-1]


@pytest.fixture(params=["table", "search"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Flows from the whole table, and by best-first search."""
    monkeypatch.setattr("nrm.search.flows.table_cost", lambda plan: 0.0 if request.param == "table" else math.inf)
    return str(request.param)


def best(table: Tensor, k: int, sign: str) -> list[tuple[tuple[int, ...], float]]:
    """The k best entries of a table by sorting all of them; only those whose score is above 0."""
    score = {"+": table, "-": -table, "abs": table.abs()}[sign]
    entries = [(-float(score[i]), i, float(table[i])) for i in itertools.product(*map(range, table.shape))]
    return [(i, value) for score_, i, value in sorted(entries)[:k] if score_ < 0]


def index(chosen: nrm.Set) -> tuple[int, ...]:
    at = chosen.expression[2]
    return tuple(at[1:]) if isinstance(at, tuple) else (at,)


def check(R: Measure, arguments: tuple[Any, ...], k: int, sign: str, given: Any = None) -> None:
    flows = R.flows(*arguments, k=k, sign=sign, given=given)
    asked = arguments if given is None else (*arguments, given)
    table = R(*asked)
    whole = R(given) if given is not None else torch.ones(len(R))
    assert flows.certified == (True,) * len(R)
    assert flows.gap == (0.0,) * len(R)
    for s, found in enumerate(flows):
        expected = best(table[s], k, sign)
        assert len(found) == len(expected)
        for flow, (place, value) in zip(found, expected, strict=True):
            assert flow.sample == s
            assert abs(flow.relevance - value) <= 1e-11 * float(table[s].abs().sum())
            assert abs(float(R(*flow)) - value) <= 1e-11 * float(table[s].abs().sum()), (flow, place)
            assert flow.share == pytest.approx(flow.relevance / float(whole[s]))


@pytest.mark.filterwarnings("ignore::nrm.NrmWarning")
@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize(
    ("rules", "bias"),
    [("epsilon-plus-flat", "auto"), ("lrp-0", "input"), ("epsilon-gamma-box", "ignore"),
     ("epsilon-alpha2-beta1", "input")],
)  # fmt: skip
def test_flows_are_the_best_entries_of_the_table(rules: str, bias: str, sign: str, way: str) -> None:
    R = network(rules, bias)
    a, b, c, d = (nrm.layer(name) for name in ("c1", "/relu#1", "c3", "fc1"))
    check(R, (a.channels, b.channels), 4, sign)
    check(R, (d.channels, b.channels, c.channels), 6, sign)
    check(R, (a.channels, nrm.layer("b2").channels, c.channels, d.channels), 5, sign)


@pytest.mark.parametrize("sign", SIGNS)
def test_every_kind_of_partition_and_event(sign: str, way: str) -> None:
    R = network("lrp-0", "input")
    a, b, c = (nrm.layer(name) for name in ("c1", "p", "c3"))
    labels = torch.randint(-1, 3, (3, 5, 4, 4), generator=torch.Generator().manual_seed(0))
    check(R, (a.positions, c.channels), 5, sign)
    check(R, (b.groups(labels), c.positions, nrm.layer("fc1").channels), 5, sign)
    check(R, (b, nrm.layer("fc1")), 7, sign)
    check(R, (a.channels[[4, 1]], c.channels[1:3], c.positions), 5, sign)
    check(R, (nrm.input[:, :4], b.channels, c.channels), 4, sign)
    check(R, (a.channels, b.channel([0, 3]), c.channels), 4, sign)
    check(R, (a.channels, c.channels), 4, sign, given=nrm.layer("fc1").channel([0, 1, 5]))
    check(R, (b.channels, b.positions[:2], c.channels, nrm.input.channel(1)), 4, sign)
    check(R, (b.channels,), 3, sign)


def test_flows_as_data() -> None:
    R = network()
    a, b = nrm.layer("p"), nrm.layer("c3")
    rows = R.flows(a.channels, a.positions, b.channels[[3, 1]], k=2).records()
    assert list(rows[0]) == [
        "sample", "rank", "p.channels", "p.positions", "c3.channels", "relevance", "share", "certified"
    ]  # fmt: skip
    assert {row["c3.channels"] for row in rows} <= {1, 3}
    scalar = nrm.measure(Net().double().eval(), torch.rand(2, 2, 8, 8).double(), output=lambda o: o[:, 0] - o[:, 1])
    assert scalar.flows(a.channels, scalar.output, sign="abs", k=1).records()[0]["output"] is None


def test_what_goes_on_inside_a_flow() -> None:
    R = network()
    a, b, c = (nrm.layer(name) for name in ("c1", "p", "c3"))
    flow = R.flows(b.channels, c.channels, k=1)[1][0]
    inner = R.flows(a.channels, given=list(flow), k=2)
    assert len(inner) == 1
    assert inner[0][0].sample == 1
    assert inner[0][0].share == pytest.approx(inner[0][0].relevance / flow.relevance)
    assert R.flows(a.channels, flow.sets[0], k=1)[0][0].sample == 1


def test_a_condition_that_cancels_is_judged() -> None:
    model = mlp(3, 3, 1)
    model[0].weight.data, model[2].weight.data = torch.eye(3), torch.tensor([[1.0, -0.9999, 1.0]])
    R = nrm.measure(model, torch.ones(1, 3), rules="lrp-0", dtype=torch.float64)
    with pytest.warns(nrm.NrmWarning, match="below 0.1 %"):
        R.flows(R.input, given=R["1"].channel([0, 1]))


def test_more_flows_than_there_are(way: str) -> None:
    R = network()
    flows = R.flows(nrm.layer("c3").channels, nrm.layer("fc1").channels, k=1000)
    table = R(nrm.layer("c3").channels, nrm.layer("fc1").channels)
    assert [len(found) for found in flows] == [int((row > 0).sum()) for row in table]
    assert all(flows.certified)


def test_the_prefix_bound_alone_would_be_wrong() -> None:
    """With a classifier of both signs a pair can be larger than each of its blocks: pruning by relevance misses it."""
    R = network(seed=0)
    a, b = nrm.layer("p"), nrm.layer("c3")
    larger = R(a.channels, b.channels).amax(1) > R(b.channels).clamp(min=0) + 1e-6
    assert bool(larger.any())


def test_a_flow_answers_for_its_sample() -> None:
    R = network()
    x, a, b = nrm.input, nrm.layer("c1"), nrm.layer("c3")
    flow = R.flows(a.channels, b.channels, k=2)[2][1]
    heat = R(x, *flow)
    assert heat.shape == (1, 2, 8, 8)
    torch.testing.assert_close(heat, R.sample(2)(x, *flow))
    assert float(heat.sum()) <= flow.relevance + 1e-9
    torch.testing.assert_close(R(*flow), torch.tensor([flow.relevance], dtype=torch.float64))
    one = R.sample(2).flows(a.channels, b.channels, k=2)
    assert [f.sample for f in one[0]] == [2, 2]
    assert one[0][1] == flow
    with pytest.raises(nrm.QuestionError, match="other samples"):
        R.sample(1)(x, *flow)
    other = R.flows(a.channels, b.channels, k=1)[0][0]
    with pytest.raises(nrm.QuestionError, match="other samples"):
        R(*flow, *other)


def test_ties_are_in_the_order_of_the_blocks(way: str) -> None:
    model = mlp(2, 4, 3, 1)
    for layer in model[::2]:
        nn.init.ones_(layer.weight)
    R = nrm.measure(model.double(), torch.ones(1, 2, dtype=torch.float64))
    flows = R.flows(R["1"].channels, R["3"].channels, k=5)[0]
    assert [tuple(index(s)[0] for s in flow)[::-1] for flow in flows] == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0)]
    assert R.flows(R["1"].channels, R["3"].channels, k=5)[0] == flows


def test_greedy_can_miss_the_best_and_says_so() -> None:
    """Two middling blocks of the upper layer: one spreads over many, the other sends all to a single block."""
    model = mlp(1, 4, 2, 1)
    model[0].weight.data = torch.ones(4, 1)
    model[2].weight.data = torch.tensor([[2.0, 2.0, 2.0, 0.0], [0.0, 0.0, 0.0, 5.0]])
    model[4].weight.data = torch.ones(1, 2)
    R = nrm.measure(model, torch.ones(1, 1), rules="lrp-0")
    exact = R.flows(R["1"].channels, R["3"].channels, k=1)
    greedy = R.flows(R["1"].channels, R["3"].channels, k=1, method="greedy")
    assert str(exact[0][0]) == "0.4545  1.channel(3) & 3.channel(1)"
    assert greedy[0][0].relevance < exact[0][0].relevance
    assert not greedy.certified[0]
    assert "not certified" in str(greedy)


def test_a_search_that_ends_early_says_what_is_certain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nrm.search.flows.table_cost", lambda plan: math.inf)
    R = network("lrp-0", "input")
    layers = [nrm.layer(name).channels for name in ("c1", "b2", "c3", "fc1")]
    exact = R.flows(*layers, k=8)
    hasty = R.flows(*layers, k=8, effort=1e-3)
    assert all(exact.certified)
    assert not all(hasty.certified)
    for s, found in enumerate(hasty):
        last = found[-1].relevance if len(found) == 8 else 0.0
        assert exact[s][0].relevance <= last + hasty.gap[s] + 1e-12
        sure = [f.relevance for f in found if f.certified]
        assert sure == pytest.approx([f.relevance for f in exact[s]][: len(sure)])


def test_a_search_without_end_gives_way_to_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nrm.search.flows.table_cost", lambda plan: 50.0)
    R = network("lrp-0", "input")
    layers = [nrm.layer(name).channels for name in ("c1", "b2", "c3", "fc1")]
    monkeypatch.setattr("nrm.search.ranking.Request.bound", lambda self, relevance, total: total * 1e9)
    check(R, tuple(layers), 6, "+")


@pytest.mark.parametrize(
    ("options", "text"),
    [({"k": 0}, "number of flows"), ({"sign": "both"}, "unknown sign"), ({"method": "fast"}, "unknown method"),
     ({"effort": 0}, "not an effort"), ({"given": nrm.layer("c1").channels}, "condition of flows is a set")],
)  # fmt: skip
def test_bad_options(options: dict[str, Any], text: str) -> None:
    with pytest.raises(nrm.QuestionError, match=text):
        network().flows(nrm.layer("c3").channels, **options)


def test_flows_without_partitions() -> None:
    with pytest.raises(nrm.QuestionError, match="flows need partitions"):
        network().flows(nrm.layer("c3").channel(1))


@pytest.mark.parametrize("rules", ["lrp-0", "epsilon-gamma-box", "epsilon-alpha2-beta1", "epsilon-plus-flat"])
@pytest.mark.filterwarnings("ignore::nrm.NrmWarning")
def test_absolute_sums_bound_every_extension(rules: str) -> None:
    """P of every prefix is at least the sum of the absolute relevances of its extensions."""
    from nrm.questions import downward, stops_for
    from nrm.search import Side
    from nrm.search.prefixes import Prefixes

    R = network(rules, "input")
    names = ("fc1", "c3", "b2", "/relu#0")
    arguments = [nrm.layer(n).channels for n in names]
    stops = downward(stops_for(arguments, R.inner.places.resolve))
    side = Side(R.inner.network, R.base, stops, range(len(R)))
    with torch.no_grad():
        prefixes = Prefixes([side], memory=10**9, progress=lambda chunks, _: chunks, bounded=True)
        table = R(*arguments)
        for length in (0, 1):
            chosen = list(itertools.product(*(range(stop.count) for stop in stops[:length])))
            for s, extension in prefixes.extend(dict.fromkeys(range(len(R)), chosen)):
                assert extension.total is not None
                for n, prefix in enumerate(extension.prefixes):
                    inside = table[(s, *prefix)].flatten(1)
                    assert bool((extension.total[n] >= inside.abs().sum(1) - 1e-9).all())
                    torch.testing.assert_close(extension.relevance[n], inside.sum(1), rtol=0, atol=1e-9)
