"""The oracle answers to itself: two readings of one network, its own forward pass, and numbers worked out by hand."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import assume, given, settings, strategies as st

from networks import KINDS, cases
from oracles import brute
from oracles.brute import Block, Network, Proper, Rule, at, avoid, conditional, measure, table, walks
from oracles.twin import RULES, Rules

rules = st.sampled_from(sorted(RULES)).map(Rules)
options = st.fixed_dictionaries(
    {"bias": st.sampled_from(["ignore", "input"]), "zero": st.sampled_from(["sink", "uniform"])}
)

# About eighty examples of all kinds together, and a hundred of each where there is time, as in the laws.
many = settings().max_examples // 3
of_each = settings(max_examples=many if many > 50 else 3)


def small_walks(network: Network) -> list[tuple[brute.Walk, float]]:
    try:
        found = walks(network)
    except brute.TooManyWalks:
        assume(False)
    assume(max(float(c.max()) for c in network.condition.values()) < 1e6)
    return found


@pytest.mark.parametrize("kind", KINDS)
@of_each
@given(data=st.data())
def test_forward_pass(kind: str, data: st.DataObject) -> None:
    case = data.draw(cases(kind, batch=2))
    for sample in range(2):
        twin = case.twin(Rules("lrp0"), sample)
        value, truth = twin.net.values[twin.net.output], case.outputs[sample].flatten()
        torch.testing.assert_close(value, truth, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@of_each
@given(data=st.data(), rules=rules, options=options)
def test_walks_and_the_proper_network_agree(kind: str, data: st.DataObject, rules: Rules, options: dict) -> None:
    case = data.draw(cases(kind))
    target = data.draw(st.integers(0, case.outputs.shape[1] - 1))
    twin = case.twin(rules, **options)
    network = twin.net.explain(twin.net.output, target)
    found = small_walks(network)
    scale = sum(abs(r) for _, r in found)
    assert measure(found) == pytest.approx(1, abs=1e-9 * scale)
    proper = Proper(network)
    assert proper.measure({}) == pytest.approx(1, abs=1e-9 * scale)
    sites = sorted({tensor for walk, _ in found for tensor, _ in walk})
    sites += sorted({(a, b) for walk, _ in found for (a, _), (b, _) in itertools.pairwise(walk)})
    for site in sites:
        assert proper.measure({site: None}) == pytest.approx(measure(found, at(site)), abs=1e-9 * scale)
    for _ in range(3):
        chosen = data.draw(st.lists(st.sampled_from(sites), min_size=1, max_size=3, unique=True))
        events = {}
        for site in chosen:
            first = site if isinstance(site, str) else site[0]
            width = math.prod(twin.shapes.get(first, (len(network.values.get(first, ())),)))
            events[site] = data.draw(st.sets(st.integers(0, width - 1)))
        truth = measure(found, *(at(site, s) for site, s in events.items()))
        assert proper.measure(events) == pytest.approx(truth, abs=1e-9 * scale)


def test_by_hand() -> None:
    """Two inputs (1, 2), one hidden layer, one skip: every number on paper."""
    net = Network(bias="input")
    net.source("x", torch.tensor([1.0, 2.0]))
    net.affine("h", [Block("x", torch.tensor([[3.0], [1.0]]).double())], shift=torch.tensor([5.0]).double())
    skip = Block("x", torch.tensor([[10.0], [-5.0]]).double(), via=(("u", 0),))
    net.affine("y", [Block("h", torch.tensor([[2.0]]).double()), skip])  # column (20, 10, -10), no bias
    found = walks(net.explain("y", 0))
    assert net.values["y"].tolist() == [20.0]
    assert measure(found, at("h")) == pytest.approx(1.0)
    assert measure(found, at("u")) == pytest.approx(0.0)  # +0.5 and -0.5
    assert measure(found, at("x", [0]), at("u")) == pytest.approx(0.5)
    assert measure(found, at("x", [1]), at("h")) == pytest.approx(2 / 10)
    assert measure(found, at("h.bias")) == pytest.approx(5 / 10)
    assert measure(found, at(("x", "h"))) == pytest.approx(5 / 10)
    assert measure(found, avoid("x", [1])) == pytest.approx(1 - (0.2 - 0.5))
    assert conditional(found, [at("x", [0])], [at("h")]) == pytest.approx(0.3)
    assert conditional(found, [at("x", [0])], [at("nowhere")]) == 0
    assert table(found, [("x", torch.tensor([0, 1])), ("h", torch.tensor([0]))]).tolist() == [
        [pytest.approx(0.3)],
        [pytest.approx(0.2)],
    ]


@pytest.mark.parametrize(
    ("rule", "bias", "column"),
    [  # h = (2, -1, 3), w = (1, 4, -1), b = 5: products (2, -4, -3)
        (Rule("lrp0"), "ignore", [-2 / 5, 4 / 5, 3 / 5]),
        (Rule("lrp0"), "input", None),
        (Rule("gamma", 0.5), "ignore", [-3 / 4, 4 / 4, 3 / 4]),
        (Rule("gamma", 0.5), "input", [3 / 3.5, -4 / 3.5, -3 / 3.5, 7.5 / 3.5]),
        (Rule("zplus"), "ignore", [1, 0, 0]),
        (Rule("zplus"), "input", [2 / 7, 0, 0, 5 / 7]),
        (Rule("alphabeta", 2, 1), "ignore", [2, -4 / 7, -3 / 7]),
        (Rule("alphabeta", 2, 1), "input", [4 / 7, -4 / 7, -3 / 7, 10 / 7]),
        (Rule("alphabeta", 3, 1), "ignore", [3 / 2, -2 / 7, -3 / 14]),
        (Rule("flat"), "input", [1 / 3, 1 / 3, 1 / 3, 0]),
        (Rule("wsquare"), "input", [1 / 43, 16 / 43, 1 / 43, 25 / 43]),
        (Rule("zbox", -5, 5), "ignore", [7 / 25, 16 / 25, 2 / 25]),
        (Rule("entry", 0.5), "ignore", [-2.5 / 3.5, 3.5 / 3.5, 2.5 / 3.5]),
    ],
)
def test_rules_by_hand(rule: Rule, bias: str, column: list[float] | None) -> None:
    net = Network(bias=bias)
    net.source("x", torch.tensor([2.0, -1.0, 3.0]))
    weight = torch.tensor([[1.0], [4.0], [-1.0]]).double()
    net.affine("y", [Block("x", weight, rule, support=torch.ones(3, 1).bool())], torch.tensor([5.0]).double())
    if column is None:  # 2 - 4 - 3 + 5 = 0: a dead column
        assert measure(walks(net.explain("y", 0)), at("y.sink")) == 1
        return
    shares = torch.cat([share.matrix[:, 0] for share in net.shares["y"]])
    assert shares.tolist() == pytest.approx(column)


def test_columns_without_mass() -> None:
    weight = torch.tensor([[-1.0], [-2.0], [0.0]]).double()
    for zero, where in (("sink", "y.sink"), ("uniform", "x")):
        net = Network(zero=zero)
        net.source("x", torch.ones(3))
        net.affine("y", [Block("x", weight, Rule("zplus"))])  # support: where the weight is not 0
        found = walks(net.explain("y", 0))
        assert measure(found, at(where)) == pytest.approx(1)
        if zero == "uniform":
            assert measure(found, at("x", [1])) == pytest.approx(0.5)
    net = Network(zero="error")
    net.source("x", torch.ones(3))
    net.affine("y", [Block("x", weight, Rule("zplus"))])
    with pytest.raises(brute.ZeroColumn):
        walks(net.explain("y", 0))


def test_alpha_beta_pools_over_the_blocks() -> None:
    """Per branch, each block would have both signs and sum to 1; pooled, the column is one."""
    net = Network()
    net.source("x", torch.tensor([1.0, 1.0]))
    net.source("y", torch.tensor([1.0, 1.0]))
    rule = Rule("alphabeta", 2, 1)
    a, b = torch.tensor([[3.0], [-1.0]]).double(), torch.tensor([[1.0], [-3.0]]).double()
    net.affine("z", [Block("x", a, rule), Block("y", b, rule)])
    shares = torch.cat([share.matrix[:, 0] for share in net.shares["z"]])
    assert shares.tolist() == pytest.approx([6 / 4, -1 / 4, 2 / 4, -3 / 4])


def test_too_many_walks() -> None:
    net = Network()
    net.source("0", torch.ones(10))
    for k in range(6):
        net.affine(f"{k + 1}", [Block(f"{k}", torch.ones(10, 10, dtype=torch.float64))])
    with pytest.raises(brute.TooManyWalks):
        walks(net.explain("6", 0))
