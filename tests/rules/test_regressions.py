"""Cases that were wrong once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import nrm


def test_columns_whose_inputs_are_all_zero_are_dead_also_behind_a_folded_bias() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 1))
    for seed in range(5):
        torch.manual_seed(seed)
        for p in model.parameters():
            p.data = torch.randn_like(p)
        model[0].weight.data.zero_()
        model[0].bias.data.fill_(-1.0)
        model[3].bias.data.abs_().add_(1.0)
        R = nrm.measure(model.eval(), torch.ones(1, 2), rules="lrp-0", bias="ignore")
        found = R.check(strict=False)
        assert found.mass[0] == pytest.approx(1.0, abs=1e-5)
        assert found.sink[0] >= 1.0 - 1e-5


def test_sinks_of_both_signs_do_not_hide_each_other() -> None:
    model = nn.Sequential(nn.Linear(1, 2, bias=True), nn.Linear(2, 1, bias=False))
    model[0].weight.data.zero_()
    model[0].bias.data.copy_(torch.tensor([1.0, 1.0]))
    model[1].weight.data.copy_(torch.tensor([[6.0, -5.0]]))
    found = nrm.measure(model, torch.ones(1, 1), rules="lrp-0", bias="ignore").check(strict=False)
    assert found.sink[0] == pytest.approx(11.0)
    assert not found.ok[0]


def test_the_bias_of_a_sum_does_not_depend_on_the_order_of_its_branches() -> None:
    class Two(nn.Module):
        def __init__(self, swap: bool) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.a, self.b, self.swap = nn.Linear(3, 3), nn.Linear(3, 3), swap

        def forward(self, x: Tensor) -> Tensor:
            return self.b(x) + self.a(x) if self.swap else self.a(x) + self.b(x)

    rules = {"a": nrm.Flat(), "b": nrm.LRP0()}
    first, second = (nrm.measure(Two(s), torch.ones(1, 3), rules=rules, bias="input") for s in (False, True))
    torch.testing.assert_close(first(first.input), second(second.input))


@pytest.mark.parametrize(("policy", "kept"), [("sink", 0.0), ("uniform", 1.0)])
def test_the_zero_policy_holds_for_elementwise_steps_with_an_offset(policy: str, kept: float) -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.Hardsigmoid(), nn.Linear(1, 1, bias=False))
    model[0].weight.data.fill_(-10.0)
    rules = {"2": nrm.Flat(), "*": "lrp-0"}
    R = nrm.measure(model, torch.ones(1, 1), rules=rules, zero=policy, bias="ignore", target=0)
    assert sum(R.check(strict=False).mass) == pytest.approx(1.0)
    deliveries, _ = R.inner.network.pull(2, R.base.arrivals[2])
    assert float(R.inner.network.relevance(deliveries[0].arrivals)) == pytest.approx(kept)
    with pytest.raises(nrm.MassError, match="sum to 0"):
        nrm.measure(model, torch.ones(1, 1), rules=rules, zero="error", bias="ignore", target=0)(nrm.input)


def test_choices_that_would_do_nothing_are_refused() -> None:
    model, x = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)), torch.ones(1, 2)
    for rules in ({"1": nrm.ZPlus()}, {"0": nrm.Product()}, {nn.Linear: nrm.Sum()}):
        with pytest.raises(nrm.RuleError, match="cannot apply"):
            nrm.measure(model, x, rules=rules)
    with pytest.raises(nrm.RuleError, match="unknown terms"):
        nrm.Sum({"skp": 0.0})


def test_auto_avoids_z_plus_where_convolutions_read_signed_values() -> None:
    torch.manual_seed(0)
    signed = nn.Sequential(nn.Conv2d(1, 4, 3), nn.SiLU(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(64, 2))
    assert nrm.measure(signed, torch.rand(1, 1, 8, 8)).rules == "lrp-0"
    signed[1] = nn.ReLU()
    assert nrm.measure(signed, torch.rand(1, 1, 8, 8)).rules == "epsilon-plus-flat"


def test_modules_may_be_called_skip_and_input() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.input, self.skip, self.head = nn.Linear(2, 3), nn.Linear(3, 3), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            h = torch.relu(self.input(x))
            return self.head(torch.relu(self.skip(h) + h))

    torch.manual_seed(0)
    R = nrm.measure(Net(), torch.ones(1, 2), rules="epsilon-plus", bias="input")
    assert R(R.input).shape == (1, 2)
    assert R(R.edge("/relu#0", "skip").all).shape == (1,)
    torch.testing.assert_close(R(R["/add"].skip.all) + R(R["skip"].all) + R(R["/add.bias"].all), R(R["/add"].all))


def test_changing_the_model_afterwards_does_not_change_the_measure() -> None:
    model, x = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)), torch.ones(1, 2)
    R = nrm.measure(model, x)
    before = R(R.input)
    model.double()
    R.release()
    torch.testing.assert_close(R(R.input), before)
    assert "softmax" in repr(nrm.measure(nn.Sequential(nn.Linear(2, 2), nn.Softmax(1)), x).check(strict=False))


def test_the_check_lists_the_mass_of_every_cut() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    found = nrm.measure(model, torch.rand(2, 3), rules="lrp-0", bias="input").check(strict=False)
    assert list(found.cuts) == ["input", "0", "1", "2", "3"]
    assert all(m == pytest.approx(1.0, abs=1e-5) for masses in found.cuts.values() for m in masses)
    assert found.cut_error is not None
    assert found.cut_error < 1e-5
    assert found.describe()["cuts"]["1"] == pytest.approx([1.0, 1.0], abs=1e-5)
    assert found.reached > 0


def test_a_rule_class_instead_of_a_rule_is_told_apart() -> None:
    with pytest.raises(nrm.RuleError, match=r"nrm\.ZPlus\(\)"):
        nrm.measure(nn.Linear(2, 2), torch.ones(1, 2), rules=nrm.ZPlus)
