"""Differences of measures: every answer is one measure's minus the other's, flows are exact, mistakes are named."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import nrm

pytestmark = pytest.mark.filterwarnings("ignore::nrm.NrmWarning")


class Block(nn.Module):
    """A small residual network."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1)
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.down = nn.Conv2d(4, 5, 3)
        self.head = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.stem(x))
        h = torch.relu(self.conv(h) + h)
        return self.head(torch.relu(self.down(h)).mean((2, 3)))


def model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return Block().double().eval()


def images(seed: int = 1, batch: int = 2) -> torch.Tensor:
    return torch.rand(batch, 2, 6, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def targets(**options: object) -> nrm.Difference:
    return nrm.measure(model(), images(), target=0, **options) - nrm.measure(model(), images(), target=2, **options)


PAIRS: dict[str, Callable[[], nrm.Difference]] = {
    "targets": targets,
    "inputs": lambda: nrm.measure(model(), images(1), target=1) - nrm.measure(model(), images(2), target=1),
    "checkpoints": lambda: nrm.measure(model(0), images(), target=1) - nrm.measure(model(1), images(), target=1),
    "rules": lambda: (
        nrm.measure(model(), images(), target=1, rules="lrp-0")
        - nrm.measure(model(), images(), target=1, rules=nrm.ZPlus(), bias="input")
    ),
}


@pytest.fixture(params=PAIRS)
def D(request: pytest.FixtureRequest) -> nrm.Difference:
    return PAIRS[request.param]()


QUESTIONS = [
    lambda R: R(R.input),
    lambda R: R(R["/relu#0"].channels, R["down"].channels),
    lambda R: R(R.input.positions, R["conv"].channel([1, 3])),
    lambda R: R(R["/relu#0"].channels, given=R["down"].channel(2)),
    lambda R: R(R["/relu#1"].channel(0), R["/relu#0"].channels, given=[R["down"].channels, R.input.channel(0)]),
    lambda R: R(nrm.stack(R["/relu#0"].channels, R["down"].channels), R.input.channels),
    lambda R: R(nrm.stack(R["conv"].channels), nrm.stack(R["/relu#0"].channels, R["down"].channels)),
    lambda R: R(R.edge("/relu#0", "/add").channels),
    lambda R: R(R.input.positions, nrm.visits(R["conv"].channel(1)) & ~nrm.visits(R["down"].channel(2))),
    lambda R: R.dividends(R["conv"].channel(1), R["down"].channel([0, 2])),
    lambda R: R.expect({R["down"].channel(1): 2.0, R["/relu#0"]: 0.5}, R.input),
    lambda R: R.additive(R["/relu#0"].channels),
]


@pytest.mark.parametrize("ask", QUESTIONS)
def test_answers_are_differences_of_answers(D: nrm.Difference, ask: Callable) -> None:
    expected = ask(D.first) - ask(D.second)
    assert float(expected.abs().max()) > 0
    torch.testing.assert_close(ask(D), expected, rtol=0, atol=0)
    torch.testing.assert_close(ask(D.sample(1)), expected[1:], rtol=0, atol=1e-14)


def test_values_are_differences() -> None:
    D = PAIRS["checkpoints"]()
    torch.testing.assert_close(D.value, model(0)(images())[:, 1] - model(1)(images())[:, 1])
    torch.testing.assert_close(D.values("down"), D.first.values("down") - D.second.values("down"), rtol=0, atol=0)
    assert float(D.values("down").abs().max()) > 0


def test_every_cut_has_mass_0(D: nrm.Difference) -> None:
    for cut in (D.inputs, D.cut("conv"), D.cut("/relu#0"), D.cut("down")):
        total = sum(D(part.all) for part in cut)
        torch.testing.assert_close(total, torch.zeros(2, dtype=torch.float64), rtol=0, atol=1e-10)
    torch.testing.assert_close(D(D.output).sum(1), torch.zeros(2, dtype=torch.float64), rtol=0, atol=1e-12)


def test_additivity_and_marginals(D: nrm.Difference) -> None:
    a, b = D["/relu#0"], D["down"]
    table = D(a.channels, b.channels)
    torch.testing.assert_close(table.sum(1), D(a.all, b.channels), rtol=0, atol=1e-10)
    torch.testing.assert_close(D(a.channel([0, 2])), D(a.channel(0)) + D(a.channel(2)), rtol=0, atol=1e-10)
    torch.testing.assert_close(D(a.all), D(a.channel(0)) + D(~a.channel(0)), rtol=0, atol=1e-10)


@pytest.mark.parametrize("sign", ["abs", "+", "-"])
@pytest.mark.parametrize("effort", [300, 1e-3])
def test_flows_are_the_largest_differences(
    D: nrm.Difference, sign: str, effort: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the table, and by the search with the bounds of both measures."""
    if effort < 1:
        monkeypatch.setattr("nrm.search.flows.AFFORDABLE", 0.0)
        monkeypatch.setattr("nrm.search.flows.SMALL", 1e-9)
    arguments = [D["/relu#0"].channels, D["/relu#1"].channels, D["down"].channels]
    found = D.flows(*arguments, k=6, sign=sign, effort=1e9 if effort < 1 else effort)
    assert found.certified == (True, True)
    assert all(flow.certified for flows in found for flow in flows)
    table = D(*arguments)
    score = {"abs": table.abs(), "+": table, "-": -table}[sign].flatten(1)
    for s, flows in enumerate(found):
        best = score[s].topk(6).values
        mine = torch.tensor([flow.relevance for flow in flows], dtype=torch.float64)
        ranked = {"abs": mine.abs(), "+": mine, "-": -mine}[sign]
        torch.testing.assert_close(ranked, best, rtol=0, atol=1e-12)
        for flow in flows:
            assert flow.sample == s
            torch.testing.assert_close(D(*flow), mine.new_tensor([flow.relevance]), rtol=0, atol=1e-12)
            assert D(D.input, *flow).shape == (1, 2, 6, 6)


def towers() -> nrm.Difference:
    """Two targets that share no neuron: output 0 has the first half of every layer, output 1 the second half."""
    sizes = itertools.pairwise([4, 6, 6, 4, 2])
    net = nn.Sequential(*(part for n, m in sizes for part in (nn.Linear(n, m), nn.ReLU())))[:-1]
    torch.manual_seed(0)
    for layer in net[::2]:
        rows, columns = (torch.arange(n) < n // 2 for n in layer.weight.shape)
        layer.weight.data = torch.rand_like(layer.weight) * (rows[:, None] == columns)
        layer.bias.data.zero_()
    x = torch.rand(1, 4, dtype=torch.float64)
    net = net.double()
    return nrm.measure(net, x, target=0, rules="lrp-0") - nrm.measure(net, x, target=1, rules="lrp-0")


@pytest.mark.parametrize("searched", [False, True])
def test_flows_of_the_second_measure_only_are_found(searched: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if searched:
        monkeypatch.setattr("nrm.search.flows.AFFORDABLE", 0.0)
        monkeypatch.setattr("nrm.search.flows.SMALL", 1e-9)
    D = towers()
    arguments = [D["1"].channels, D["3"].channels, D["5"].channels]
    table = D(*arguments)
    assert int((table > 0).sum()) == int((table < 0).sum()) == 18
    for sign, k in (("abs", 36), ("-", 18)):
        found = D.flows(*arguments, k=40, sign=sign, effort=1e9)
        assert found.certified == (True,)
        assert len(found[0]) == k


def test_bounds_of_both_measures_bound_every_extension() -> None:
    from nrm.measure.searching import side_of
    from nrm.questions import Question
    from nrm.search.prefixes import Prefixes

    D = towers()
    arguments = [D["5"].channels, D["3"].channels, D["1"].channels]
    signed = ((D.first, 1.0), (D.second, -1.0))
    sides = [replace(side_of(R.inner, Question(tuple(arguments)))[0], weights=torch.tensor([w])) for R, w in signed]
    with torch.no_grad():
        prefixes = Prefixes(sides, memory=10**9, progress=lambda chunks, _: chunks, bounded=True)
        table = D(*arguments)[0]
        ((_, root),) = prefixes.extend({0: [()]})
        assert bool((root.total[0] >= table.abs().sum((1, 2)) - 1e-12).all())
        torch.testing.assert_close(root.relevance[0], table.sum((1, 2)), rtol=0, atol=1e-12)


def test_flows_rank_by_absolute_value_unless_told() -> None:
    D = targets()
    found = D.flows(D["/relu#0"].channels, D["down"].channels, k=20)
    assert found == D.flows(D["/relu#0"].channels, D["down"].channels, k=20, sign="abs")
    assert {flow.relevance > 0 for flow in found[0]} == {True, False}


def test_a_search_that_ends_early_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nrm.search.flows.AFFORDABLE", 0.0)
    monkeypatch.setattr("nrm.search.flows.SMALL", 1e-9)
    D = targets()
    found = D.flows(D.input, D["/relu#0"], D["down"].channels, k=3, effort=1e-6)
    assert not any(found.certified)
    greedy = D.flows(D["/relu#0"].channels, D["down"].channels, k=3, method="greedy")
    assert not any(greedy.certified)


@pytest.mark.parametrize("searched", [False, True])
def test_flows_given_a_set_rank_by_the_difference_of_conditionals(
    searched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if searched:
        monkeypatch.setattr("nrm.search.flows.AFFORDABLE", 0.0)
        monkeypatch.setattr("nrm.search.flows.SMALL", 1e-9)
    D = targets()
    a, b, given = D["/relu#0"].channels, D["/relu#1"].channels, D["down"].channel(2)
    table = D(a, b, given=given)
    found = D.flows(a, b, given=given, k=4, effort=1e9)
    assert all(found.certified)
    for s, flows in enumerate(found):
        shares = torch.tensor([flow.share for flow in flows], dtype=torch.float64)
        torch.testing.assert_close(shares.abs(), table[s].abs().flatten().topk(4).values, rtol=0, atol=1e-10)
        for flow in flows:
            torch.testing.assert_close(D(*flow), shares.new_tensor([flow.relevance]), rtol=0, atol=1e-12)


def test_two_samples_of_one_batch() -> None:
    R = nrm.measure(model(), images(), target=1)
    D = R.sample(0) - R.sample(1)
    assert len(D) == 1
    a, b = R["/relu#0"].channels, R["down"].channels
    table = R(a, b)
    torch.testing.assert_close(D(a, b), table[:1] - table[1:], rtol=0, atol=1e-14)
    found = D.flows(a, b, k=3)
    best = (table[0] - table[1]).abs().flatten().topk(3).values.tolist()
    assert [abs(flow.relevance) for flow in found[0]] == pytest.approx(best, abs=1e-12)
    assert [float(D(*flow)) for flow in found[0]] == pytest.approx([f.relevance for f in found[0]], abs=1e-12)


def test_blocks_one_after_the_other() -> None:
    D = targets()
    a = D["/relu#0"]
    whole = D(a.channels, D.input)
    for n, (block, heat) in enumerate(D.each(a.channels, D.input)):
        assert block == a.channels[n]
        torch.testing.assert_close(heat, whole[:, n], rtol=0, atol=1e-12)


def test_plan_layers_and_facts() -> None:
    D = targets()
    a, b = D["/relu#0"].channels, D["down"].channels
    plan, one = D.plan(a, b), D.first.plan(a, b)
    assert plan.flops == pytest.approx(2 * one.flops)
    assert plan.shape == (2, 4, 5)
    assert "first: " in repr(plan)
    assert "second: " in repr(plan)
    rows = {row.name: row for row in D.layers}
    for name in ("/relu#0", "conv", "down"):
        assert rows[name].mass == pytest.approx(D(D[name].all).tolist(), abs=1e-12)
    assert D.find("d*") == [nrm.layer("down")]
    assert D["down"].channels == nrm.layer("down").channels
    assert len(D) == 2
    assert all(check.ok == (True, True) for check in D.check())
    text = repr(D)
    assert "output 0" in text
    assert "output 2" in text
    assert "difference" in text
    assert "<table>" in D._repr_html_()
    with pytest.raises(TypeError):
        iter(D)
    D.release()
    assert D(a).shape == (2, 4)


def test_results_can_be_drawn_and_kept(tmp_path: object) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    D = targets()
    assert nrm.plot.heatmap(D(D.input)[0]) is not None
    nrm.save(tmp_path / "d.safetensors", measure=D, pairs=(D(D["down"].channels), (D["down"].channels,)))
    assert nrm.load(tmp_path / "d.safetensors").measure["first"]["target"] == [0, 0]
    with pytest.raises(nrm.QuestionError, match="not a measure"):
        nrm.plot.flows(D, D["down"].channels, D.output)


# --- mistakes ---


def test_other_layers_are_listed() -> None:
    other = nn.Sequential(nn.Flatten(), nn.Linear(72, 3)).double()
    with pytest.raises(nrm.QuestionError, match="different layers") as error:
        nrm.measure(model(), images()) - nrm.measure(other, images())
    assert "stem is in the first only" in str(error.value)


def test_other_shapes_are_listed() -> None:
    wide = torch.rand(2, 2, 7, 6, dtype=torch.float64)
    with pytest.raises(nrm.QuestionError, match="different layers") as error:
        nrm.measure(model(), images()) - nrm.measure(model(), wide)
    assert "input has shape (2, 6, 6) and (2, 7, 6)" in str(error.value)


def test_other_batches_and_scales() -> None:
    R = nrm.measure(model(), images())
    with pytest.raises(nrm.QuestionError, match="different batches"):
        R - nrm.measure(model(), images(batch=3))
    with pytest.raises(nrm.QuestionError, match="different scales"):
        R - nrm.measure(model(), images(), normalize=False)
    for other in (1, "R", R - R):
        with pytest.raises(TypeError):
            R - other


def test_errors_say_whose_they_are() -> None:
    D = targets()
    with pytest.raises(nrm.QuestionError, match="excludes") as error:
        D(D.output.channel(0))
    assert "the second measure" in str(error.value)
    with pytest.raises(nrm.QuestionError, match="unknown layer 'dwon'"):
        D["dwon"]


def test_walks_are_refused_with_a_reason() -> None:
    with pytest.raises(nrm.QuestionError, match="walks of a difference") as error:
        targets().walks(k=3)
    assert "flows" in str(error.value)


def test_a_checkpoint_that_was_trained_on_in_place_is_noticed() -> None:
    net = model()
    before = nrm.measure(copy.deepcopy(net), images())
    D = before - nrm.measure(net, images())
    assert float(D(D.input).abs().max()) == 0
    with torch.no_grad():
        net.head.weight.add_(1.0)
    with pytest.raises(nrm.NrmError, match="weights have changed") as error:
        D(D.input)
    assert "the second measure" in str(error.value)


@pytest.mark.parametrize("more", [{"by": "lift"}, {"by": "excess"}, {"least": 0.1}])
def test_flows_of_a_difference_are_not_ranked_by_lift(more: dict[str, Any]) -> None:
    model, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), torch.rand(1, 4)
    D = nrm.measure(model, x, target=0) - nrm.measure(model, x, target=1)
    with pytest.raises(nrm.errors.QuestionError, match="no lift"):
        D.flows(D.input, D["1"].channels, **more)
    with pytest.raises(nrm.errors.QuestionError, match="unknown by"):
        D.flows(D.input, D["1"].channels, by="size")
    assert D.flows(D.input, D["1"].channels, by="relevance") == D.flows(D.input, D["1"].channels)


def test_a_difference_in_units_and_its_tokens() -> None:
    model, ids = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.ReLU(), nn.Linear(12, 3)), torch.tensor([[3, 1, 4]])
    first, second = (nrm.measure(model, ids, target=t, rules="lrp-0", bias="input") for t in (0, 1))
    D = first - second
    assert D.tokens == first.tokens
    amounts = first.in_units(first.tokens) - second.in_units(second.tokens)
    torch.testing.assert_close(D.in_units(D.tokens), amounts)
    torch.testing.assert_close(sum(D.in_units(one).flatten(1).sum(1) for one in D.inputs), D.value)
