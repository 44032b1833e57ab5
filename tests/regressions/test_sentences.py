"""Sentences that were false or misled: what is said about shares, causes and remedies is what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nrm
from nrm.capture.vocabulary import VOCABULARY
from nrm.report.health import health


def one_weight(bias: float, weight: float = 5.0, dtype: torch.dtype = torch.float32) -> nn.Linear:
    model = nn.Linear(1, 1).to(dtype)
    model.weight.data.fill_(weight)
    model.bias.data.fill_(bias)
    return model


def texts(R: nrm.Measure) -> str:
    """Everything that is said about a measure of one sample."""
    check = R.check(strict=False)
    facts = " ".join(fact["text"] for fact in health(check)["facts"])
    return " ".join([repr(check), check.verdict, facts, repr(R)])


@pytest.mark.parametrize("bias", [-4.0, -5.5, 4.0, 495.0])
def test_nothing_is_claimed_about_what_was_not_run(bias: float) -> None:
    R = nrm.measure(one_weight(bias), torch.ones(1, 1))
    R(R.input)
    said = texts(R)
    assert "would say" not in said
    assert "caused" not in said
    assert "bias='ignore'" not in said


def test_a_bias_against_the_output_is_explained_by_signs() -> None:
    """5 - 4 = 1: the input has 500 %, the bias -400 %."""
    R = nrm.measure(one_weight(-4.0), torch.ones(1, 1))
    told = "biases and offsets have -400 %, against the explained value, and everything else has 500 %, for it"
    check = R.check()
    assert check.ok == (True,)
    assert told in check.verdict
    assert told in repr(check)
    assert any(told in fact["text"] for fact in health(check)["facts"])
    assert "together they are 100 %" in check.verdict


def test_an_input_against_the_output_is_explained_by_signs() -> None:
    """-5 + 9 = 4: the bias has 225 %, the input -125 %."""
    check = nrm.measure(one_weight(9.0, -5.0), torch.ones(1, 1)).check()
    assert "have 225 %, for the explained value, and everything else has -125 %, against it" in check.verdict


class Neighbours(nn.Module):
    """Nodes that add up their neighbours, with a bias for every node."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.head = one_weight(0.0), one_weight(-8.0, 1.0)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = torch.zeros_like(x).index_add(0, edge_index[1], self.lin(x)[edge_index[0]])
        return self.head(h.sum(0, keepdim=True))


def test_a_graph_network_whose_biases_have_a_share_of_minus_eight() -> None:
    edges = torch.tensor([[0, 1], [1, 0]])
    R = nrm.measure(Neighbours(), (torch.tensor([[0.9], [0.9]]), edges), rules="lrp-0")
    torch.testing.assert_close(R.value, torch.tensor([1.0]))
    said = texts(R)
    assert "-800 %, against the explained value, and everything else has 900 %, for it" in said
    assert "would say" not in said


def test_almost_all_mass_in_biases_says_what_was_not_tried() -> None:
    R = nrm.measure(one_weight(1000.0), torch.ones(1, 1))
    verdict = R.check().verdict
    assert "99.50 % of the mass is in biases" in verdict
    assert "not tried; nrm.evaluate.remove(R, R.input.all) tries it" in verdict
    assert nrm.evaluate.remove(R, R.input.all).item() == 1000.0


def test_samples_are_told_apart() -> None:
    R = nrm.measure(one_weight(-4.0), torch.tensor([[1.0], [100.0]]))
    assert "of sample 0 biases and offsets have -400 %" in R.check().verdict
    assert "biases" not in R.sample(1).check().verdict
    assert "have -400 %" in R.sample(0).check().verdict


def test_the_light_check_does_not_speak_of_layers() -> None:
    R = nrm.measure(one_weight(-4.0), torch.ones(1, 1))
    R(R.input)
    assert R.inner.light is not None
    mass = health(R.inner.light)["facts"][0]["text"]
    assert "layers were not measured" in mass
    assert "no layer is off" in health(R.check())["facts"][0]["text"]


# ---- outputs of 0, and close to it -----------------------------------------------------------------------------------


def test_an_output_of_zero_has_no_shares_and_no_remedy_that_is_in_use() -> None:
    R = nrm.measure(one_weight(-5.0), torch.ones(1, 1))
    with pytest.raises(nrm.NrmError) as caught:
        R(R.input)
    text = str(caught.value)
    assert "The explained output is 0" in text
    assert "R.in_units(...) says what it is the sum of" in text
    assert "explain another output" in text
    for wrong in ("zero='uniform'", "bias='input'", "float64", "sinks"):
        assert wrong not in text, wrong
    assert R.in_units(R.input).tolist() == [[5.0]]
    assert R.in_units(R.biases[0]).tolist() == [[-5.0]]


def test_an_output_close_to_zero_is_answered_in_its_units() -> None:
    R = nrm.measure(one_weight(-4.99999), torch.ones(1, 1))
    with pytest.raises(nrm.PrecisionError) as caught:
        R(R.input)
    text = str(caught.value)
    assert "close to 0" in text
    assert "R.in_units(...) answers in units of the output" in text
    assert "dtype=torch.float64" in text
    for wrong in ("zero='uniform'", "bias='input'"):
        assert wrong not in text, wrong
    torch.testing.assert_close(R.in_units(R.input), torch.tensor([[5.0]]))
    torch.testing.assert_close(R.in_units(R.biases[0]), torch.tensor([[-4.99999]]))


def test_float64_is_not_recommended_to_who_has_it() -> None:
    R = nrm.measure(one_weight(-5.0 + 1e-14, dtype=torch.float64), torch.ones(1, 1).double())
    with pytest.raises(nrm.PrecisionError) as caught:
        R(R.input)
    assert "float64" not in str(caught.value)
    torch.testing.assert_close(R.in_units(R.input), torch.tensor([[5.0]]).double())


def test_an_output_lost_in_rounding_is_named() -> None:
    model = nn.Linear(2, 2)
    model.weight.data = torch.tensor([[5.0, -3.0], [1.0, 1.0]])
    model.bias.data = torch.tensor([-2.0 + 4e-7, 1000.0])
    R = nrm.measure(model, torch.ones(1, 2), target=0)
    with pytest.raises(nrm.PrecisionError, match="close to 0"):
        R(R.input)
    torch.testing.assert_close(R.in_units(R.input), torch.tensor([[5.0, -3.0]]))
    R = nrm.measure(model, torch.ones(1, 2), target=0, rules=nrm.Gamma(0.0), bias="input")  # a rule that divides
    with pytest.raises(nrm.MassError, match="0 up to rounding"):
        R(R.input)


def test_other_troubles_are_not_blamed_on_the_output() -> None:
    torch.manual_seed(0)
    deep = nn.Sequential(*[part for _ in range(14) for part in (nn.Linear(12, 12), nn.Tanh())], nn.Linear(12, 2))
    R = nrm.measure(deep, torch.randn(1, 12), rules="lrp-0", bias="ignore")
    for ask in (R, R.in_units):
        with pytest.raises(nrm.NrmError) as caught:
            ask(R.input)
        text = str(caught.value)
        assert "close to 0" not in text
        assert "bias='input'" in text
        assert "float64" in text


def test_a_remedy_in_use_is_not_named_for_cancellation() -> None:
    model = nn.Linear(2, 1, bias=False).double()
    model.weight.data = torch.tensor([[50.0, -49.0]]).double()
    x = torch.ones(1, 2).double()
    assert "nrm.Gamma(0.25)" in nrm.measure(model, x, rules="lrp-0").check().verdict
    verdict = nrm.measure(model, x, rules=nrm.Gamma(0.001)).check().verdict
    assert "cancel" in verdict
    assert "nrm.Gamma" not in verdict


# ---- errors that name the way ----------------------------------------------------------------------------------------


def layered() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))


@pytest.mark.parametrize("verb", ["__call__", "plan", "flows", "each", "in_units", "additive", "expect"])
def test_a_layer_by_its_name_alone_is_told_how_to_be_asked(verb: str) -> None:
    R = nrm.measure(layered(), torch.rand(1, 4))
    D = R - nrm.measure(layered(), torch.rand(1, 4))
    for asked in (R, D):
        with pytest.raises(nrm.QuestionError) as caught:
            list(getattr(asked, verb)({"1": 1.0} if verb == "expect" else "1"))
        assert "R['1']" in str(caught.value)


def test_a_condition_by_its_name_alone_is_told_how_to_be_asked() -> None:
    R = nrm.measure(layered(), torch.rand(1, 4))
    with pytest.raises(nrm.QuestionError, match=r"given=R\['1'\]"):
        R(R.input, given="1")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "ask",
    [
        lambda R: nrm.evaluate.contribution(R, "1"), lambda R: nrm.evaluate.remove(R, "1"),
        lambda R: nrm.evaluate.occlusion(R, R.input, "1"), lambda R: nrm.evaluate.compare(R, R.input, "1"),
        lambda R: nrm.evaluate.scores(R, "1", method="occlusion"), lambda R: nrm.plot.flows(R, R.input, "1"),
        lambda R: nrm.stack("1", R.input), lambda R: nrm.coarsen(R, R.input, "1"), lambda R: nrm.visits("1"),
        lambda R: nrm.query("net", net="1"), lambda R: R.lift(R.input, "1"), lambda R: R.table("1"),
    ],
)  # fmt: skip
def test_functions_that_take_measures_say_so_too(ask: Any) -> None:
    with pytest.raises(nrm.QuestionError) as caught:
        ask(nrm.measure(layered(), torch.rand(1, 4)))
    assert "R['1']" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("word", "rule"),
    [("gamma", "nrm.Gamma(0.25)"), ("zplus", "nrm.ZPlus()"), ("z+", "nrm.ZPlus()"), ("ZPlus", "nrm.ZPlus()"),
     ("alpha-beta", "nrm.AlphaBeta(2, 1)"), ("epsilon", "nrm.Epsilon()"), ("lrp0", "nrm.LRP0()"),
     ("flat", "nrm.Flat()"), ("w-square", "nrm.WSquare()"), ("zbox", "nrm.ZBox()"), ("pass", "nrm.Pass()"),
     ("entry-epsilon", "nrm.EntryEpsilon()"), ("gradient", "nrm.Gradient()"), ("occlusion", "nrm.Occlusion()"),
     ("integrated_gradients", "nrm.IntegratedGradients()"), ("shapley", "nrm.Shapley()")],
)  # fmt: skip
def test_a_rule_given_as_a_word_is_named(word: str, rule: str) -> None:
    with pytest.raises(nrm.RuleError) as caught:
        nrm.measure(layered(), torch.rand(1, 4), rules=word)
    assert caught.value.hint == f"rules={rule}"
    with pytest.raises(nrm.RuleError) as caught:
        nrm.measure(layered(), torch.rand(1, 4), rules={"0": word})
    assert caught.value.hint == f"{{'0': {rule}}}"
    assert eval(rule, {"nrm": nrm}) is not None  # it can be written like that


class Summing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.cumsum(-1)


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)), (3, 8, 8)),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 2)).eval(), (3, 8, 8)),
        (nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(144, 2)), (1, 8, 8)),
        (nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)), (4,)),
        (nn.Conv2d(3, 2, 3), (3, 5, 5)),
        (Summing(), (4,)),
    ],
)
def test_an_input_without_a_batch_axis_is_called_that(model: nn.Module, shape: tuple[int, ...]) -> None:
    x = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    with pytest.raises(nrm.CaptureError, match="the input has no batch axis") as caught:
        nrm.measure(model, x)
    assert caught.value.got == f"one sample of shape ({', '.join(map(str, shape))})"
    nrm.measure(model, x[None])


def test_tokens_without_a_batch_axis_are_called_that() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.mix, self.head = nn.Embedding(9, 6), nn.GRU(6, 6, batch_first=True), nn.Linear(6, 3)

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.mix(self.words(ids))[0][:, -1])

    model = Words()
    with pytest.raises(nrm.CaptureError, match="the input has no batch axis"):
        nrm.measure(model, {"ids": torch.tensor([1, 5, 2])})
    nrm.measure(model, {"ids": torch.tensor([[1, 5, 2]])})


def test_a_builder_that_fails_is_not_taken_for_a_missing_batch_axis(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(call: Any, input: Tensor) -> Any:
        raise KeyError("the builder's own mistake")

    monkeypatch.setitem(VOCABULARY, "sinc", broken)

    class Waves(nn.Linear):  # runs with and without a batch axis
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(torch.sinc(input))

    with pytest.raises(KeyError, match="the builder's own mistake"):
        nrm.measure(Waves(4, 2), torch.rand(2, 4))


def test_other_errors_of_a_model_stay_its_own() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        nrm.measure(layered(), torch.rand(2, 3))

    class Mixing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x - x.mean(0)

    with pytest.raises(nrm.CaptureError, match="mixed"):
        nrm.measure(Mixing(), torch.rand(3, 4))


# ---- outputs that the target excludes --------------------------------------------------------------------------------


def test_excluded_outputs_have_measure_zero_inside_a_formula() -> None:
    R = nrm.measure(layered(), torch.rand(1, 4), target=0)
    a, other = nrm.visits(R["1"].channel([0, 1])), nrm.visits(R.output[1])
    for formula, same in (
        (other, None),
        (a & other, None),
        (a | other, a),
        (a & ~other, a),
        (other.implies(a), ~other),
    ):
        expected = torch.zeros(1) if same is None else R(same)
        torch.testing.assert_close(R(formula), expected)
    torch.testing.assert_close(R(~other), torch.ones(1))
    torch.testing.assert_close(R(R.input, a | other), R(R.input, a))
    torch.testing.assert_close(R(a, given=other), torch.zeros(1))
    torch.testing.assert_close(R.dividends(R["1"].channel(0), R.output[1])[:, :, 1], torch.zeros(1, 2))


def test_excluded_outputs_are_refused_as_arguments_of_their_own() -> None:
    R = nrm.measure(layered(), torch.rand(1, 4), target=0)
    a = nrm.visits(R["1"].channel(0))
    for ask in (
        lambda: R(R.output[1]), lambda: R(a, R.output[1]), lambda: R(a, given=R.output[1]),
        lambda: R.flows(R["1"].channels, R.output[1]),
    ):  # fmt: skip
        with pytest.raises(nrm.QuestionError, match="the target excludes these outputs"):
            ask()


# ---- bare sums -------------------------------------------------------------------------------------------------------


class BareSum(nn.Module):
    """Two terms without weights: x and -x / 2, positive and negative."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(1, 1, bias=False).double(), nn.Linear(1, 1, bias=False).double()
        self.up.weight.data.fill_(1.0)
        self.down.weight.data.fill_(-0.5)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.up(x)) + torch.tanh(self.down(x))


@pytest.mark.parametrize(
    ("rules", "entries"),
    [
        ("lrp-0", lambda h: h),
        (nrm.LRP0(), lambda h: h),
        (nrm.Gamma(0.5), lambda h: h + 0.5 * h.clamp(min=0)),
        (nrm.ZPlus(), lambda h: h.clamp(min=0)),
        (nrm.Flat(), torch.ones_like),
        (nrm.WSquare(), torch.ones_like),
        (nrm.EntryEpsilon(0.1), lambda h: h + 0.1),
        ("epsilon-plus", lambda h: h.clamp(min=0)),
        ("epsilon-plus-flat", lambda h: h.clamp(min=0)),
        ("epsilon-gamma-box", lambda h: h),
        ("epsilon-alpha2-beta1", lambda h: h),
        ({"up": nrm.Gamma(0.5), "*": "lrp-0"}, lambda h: h),
    ],
)
def test_a_bare_sum_takes_the_rule_of_the_composite(rules: Any, entries: Any) -> None:
    x = torch.ones(1, 1).double()
    R = nrm.measure(BareSum(), x, rules=rules, zero="uniform")
    h = torch.stack([x.tanh(), (-0.5 * x).tanh()])[:, 0, 0]
    expected = entries(h) / entries(h).sum()
    found = torch.cat([R(R[name]) for name in ("/tanh#0", "/tanh#1")])[:, 0]
    torch.testing.assert_close(found, expected)


# ---- defaults are what we recommend ----------------------------------------------------------------------------------


class Messages(nn.Module):
    """A graph network of two layers: sums over neighbours, perceptrons, a head."""

    def __init__(self, act: nn.Module, norm: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.head = nn.Linear(3, 8), nn.Linear(8, 8), nn.Linear(8, 2)
        self.act, self.norm = act, nn.LayerNorm(8) if norm else nn.Identity()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for layer in (self.first, self.second):
            near = torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])
            x = self.act(self.norm(layer(x + near)))
        return self.head(x.sum(0, keepdim=True))


RING = (torch.eye(3)[[0, 1, 2, 0]], torch.tensor([[0, 1, 2, 3, 1, 2, 3, 0], [1, 2, 3, 0, 0, 1, 2, 3]]))


@pytest.mark.parametrize(
    ("model", "rules"),
    [
        (Messages(nn.ReLU()), "Gamma(gamma=0.25)"),
        (Messages(nn.Tanh()), "lrp-0"),
        (Messages(nn.ReLU(), norm=True), "lrp-0"),
    ],
)
def test_graph_networks_get_gamma_where_it_does_not_cancel(model: nn.Module, rules: str) -> None:
    R = nrm.measure(model, RING)
    assert R.rules == rules
    assert "bias='input'" in repr(R)
    assert max(v for row in R.check().variation.values() for v in row) < 20


def test_pictures_of_the_docs_are_drawn_with_the_defaults() -> None:
    text = (Path(__file__).parents[2] / "docs" / "screenshots.py").read_text()
    assert "rules=" not in text
    assert "nrm.ZPlus" not in text
    assert "bias=" not in text


# ---- cuts ------------------------------------------------------------------------------------------------------------


class Stem(nn.Module):
    """Convolutions and a residual block in the form of ResNet's, whose last pooling has dead columns."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two, self.three = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3)
        self.pool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(4, 2)
        for layer in (self.one, self.two, self.three, self.fc):
            layer.weight.data.abs_()
        self.three.bias.data[0] = -900.0  # a channel that is off everywhere: its mean is a column without a sum

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(x).relu()
        x = (self.two(x) + x).relu()
        return self.fc(self.pool(self.three(x).relu()).flatten(1))


def test_layers_that_every_walk_passes_are_cuts() -> None:
    R = nrm.measure(Stem().eval(), torch.rand(2, 3, 9, 9, generator=torch.Generator().manual_seed(0)))
    assert R.rules == "epsilon-plus-flat"
    table = {row.name: row for row in R.layers}
    for row in table.values():
        assert row.is_cut == all(abs(mass - 1) < 1e-5 for mass in row.mass), row
        assert row.is_cut == (len(R.cut(row.name)) == 1), row
        assert row.is_cut == (row.name != "two"), row  # the skip passes by
    assert len(R.inputs) == 1


def test_networks_of_torchvision_show_their_cuts() -> None:
    models = pytest.importorskip("vision").load().models
    for name, bypassed in (("vgg11", 0), ("resnet18", 46)):
        torch.manual_seed(0)
        R = nrm.measure(getattr(models, name)(weights=None).eval(), torch.rand(1, 3, 64, 64), target=0)
        rows = list(R.layers)
        assert [row.is_cut for row in rows] == [not row.bypassed for row in rows]
        assert [row.is_cut for row in rows] == [abs(row.mass[0] - 1) < 1e-5 for row in rows]
        assert sum(not row.is_cut for row in rows) == bypassed
