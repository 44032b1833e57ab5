"""Sentences that were false or misled: what is said about shares, causes and remedies is what was measured."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import nrm
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
    told = "biases and offsets have -400%, against the explained value, and everything else has 500%, for it"
    check = R.check()
    assert check.ok == (True,)
    assert told in check.verdict
    assert told in repr(check)
    assert any(told in fact["text"] for fact in health(check)["facts"])
    assert "together they are 100%" in check.verdict


def test_an_input_against_the_output_is_explained_by_signs() -> None:
    """-5 + 9 = 4: the bias has 225 %, the input -125 %."""
    check = nrm.measure(one_weight(9.0, -5.0), torch.ones(1, 1)).check()
    assert "have 225%, for the explained value, and everything else has -125%, against it" in check.verdict


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
    assert "-800%, against the explained value, and everything else has 900%, for it" in said
    assert "would say" not in said


def test_almost_all_mass_in_biases_says_what_was_not_tried() -> None:
    R = nrm.measure(one_weight(1000.0), torch.ones(1, 1))
    verdict = R.check().verdict
    assert "99.50% of the mass is in biases" in verdict
    assert "not tried; nrm.evaluate.remove(R, R.input.all) tries it" in verdict
    assert nrm.evaluate.remove(R, R.input.all).item() == 1000.0


def test_samples_are_told_apart() -> None:
    R = nrm.measure(one_weight(-4.0), torch.tensor([[1.0], [100.0]]))
    assert "of sample 0 biases and offsets have -400%" in R.check().verdict
    assert "biases" not in R.sample(1).check().verdict
    assert "have -400%" in R.sample(0).check().verdict


def test_the_light_check_does_not_speak_of_layers() -> None:
    R = nrm.measure(one_weight(-4.0), torch.ones(1, 1))
    R(R.input)
    assert R._light is not None
    mass = health(R._light)["facts"][0]["text"]
    assert "layers were not measured" in mass
    assert "no layer is off" in health(R.check())["facts"][0]["text"]


# ---- outputs of 0, and close to it -----------------------------------------------------------------------------------


def test_an_output_of_zero_has_no_shares_and_no_remedy_that_is_in_use() -> None:
    R = nrm.measure(one_weight(-5.0), torch.ones(1, 1))
    for ask in (R, R.in_units):
        with pytest.raises(nrm.NrmError) as caught:
            ask(R.input)
        text = str(caught.value)
        assert "The explained output is 0" in text
        assert "explain another output" in text
        for wrong in ("zero='uniform'", "bias='input'", "float64", "sinks", "in_units"):
            assert wrong not in text, wrong


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
    for ask in (R, R.in_units):
        with pytest.raises(nrm.MassError, match="0 up to rounding"):
            ask(R.input)


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
