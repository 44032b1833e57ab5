"""The certificate: what it finds, what it says, and that its numbers are true."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import nrm


def mlp(depth: int = 3, width: int = 12, seed: int = 0, act: Callable[[], nn.Module] = nn.Tanh) -> nn.Module:
    torch.manual_seed(seed)
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), act())]
    return nn.Sequential(*layers, nn.Linear(width, 3))


def leaky(share: float) -> tuple[nn.Module, Tensor]:
    """Two hidden neurons; the second has an exactly cancelling column and carries this share of the output."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1, bias=False)).double()
    model[0].weight.data.copy_(torch.tensor([[1.0, 0.0], [1.0, -1.0]]))
    model[0].bias.data.copy_(torch.tensor([0.0, 1.0]))
    model[1].weight.data.copy_(torch.tensor([[1.0 - share, share]]))
    return model, torch.ones(1, 2).double()


def test_a_good_measure() -> None:
    R = nrm.measure(mlp(), torch.rand(3, 12), rules="lrp-0")
    check = R.check()
    assert check.ok == (True, True, True)
    assert "can be trusted" in check.verdict
    assert check.cut_error is not None
    assert check.cut_error < 1e-5
    torch.testing.assert_close(torch.tensor(check.mass), torch.ones(3), rtol=1e-5, atol=1e-5)
    biases = sum(R(layer).sum(1) for layer in R.biases)
    torch.testing.assert_close(torch.tensor(check.biases), biases, rtol=1e-4, atol=1e-5)
    for row in R.layers:
        torch.testing.assert_close(
            torch.tensor(check.variation[row.name]), R(R[row.name]).abs().sum(1), rtol=1e-4, atol=1e-5
        )


def test_it_prints_and_is_data() -> None:
    check = nrm.measure(mlp(), torch.rand(3, 12), rules="lrp-0").check()
    text = repr(check)
    for word in ("verdict", "mass of the input cut", "sinks", "biases", "total variation", "negative columns",
                 "zero columns", "ties", "precision lost", "3 of 3 usable"):  # fmt: skip
        assert word in text, word
    facts = json.loads(json.dumps(check.describe()))
    assert facts["ok"] == [True, True, True]
    assert facts["precision"] == list(check.precision)
    assert facts["verdict"] == check.verdict


def test_offsets_of_functions_are_counted() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Sigmoid(), nn.Linear(4, 2)).double()
    R = nrm.measure(model, torch.rand(2, 3).double(), rules="lrp-0", target=0)
    torch.testing.assert_close(torch.tensor(R.check().offsets).double(), R(R["1.offset"]).sum(1))
    assert torch.tensor(R.check().offsets).abs().min() > 0


# ---- sinks -----------------------------------------------------------------------------------------------------------


def test_a_small_leak_is_said(recwarn: pytest.WarningsRecorder) -> None:
    model, x = leaky(5e-4)
    R = nrm.measure(model, x, rules="lrp-0", bias="ignore")
    check = R.check()
    assert check.ok == (True,)
    assert check.sinks["0"] == pytest.approx((5e-4,))
    assert check.zero[0] == 1
    assert not recwarn.list
    assert "0: 0.0005" in repr(check)


def test_a_leak_warns() -> None:
    model, x = leaky(0.05)
    R = nrm.measure(model, x, rules="lrp-0", bias="ignore")
    with pytest.warns(nrm.NrmWarning, match=r"5\.00 % of the mass is in sinks at 0"):
        check = R.check()
    assert check.ok == (True,)
    assert check.sink == pytest.approx((0.05,))
    assert "Usable with care" in check.verdict
    with pytest.warns(nrm.NrmWarning, match="sinks"):
        R(R.input)
    assert float(R(R["0.sink"]).sum()) == pytest.approx(0.05)
    assert float(sum(R(part.all) for part in R.inputs)) == pytest.approx(1)


def test_a_large_leak_raises() -> None:
    model, x = leaky(0.3)
    R = nrm.measure(model, x, rules="lrp-0", bias="ignore")
    with pytest.raises(nrm.MassError, match=r"cannot be trusted[\s\S]*sample 0[\s\S]*30\.0 %[\s\S]*'0'[\s\S]*try"):
        R.check()
    with pytest.raises(nrm.MassError):
        R(R.input)
    with pytest.raises(nrm.MassError):
        R(R.input)
    check = R.check(strict=False)
    assert check.ok == (False,)
    assert check.sink == pytest.approx((0.3,))
    assert "Do not use" in check.verdict
    even = nrm.measure(model, x, rules="lrp-0", bias="ignore", zero="uniform")
    assert even.check().sink == (0,)
    torch.testing.assert_close(even(even.input), torch.tensor([[0.85, 0.15]]).double())
    with pytest.raises(nrm.MassError, match=r"columns that sum to 0[\s\S]*'?0'?[\s\S]*1 columns[\s\S]*zero='sink'"):
        nrm.measure(model, x, rules="lrp-0", bias="ignore", zero="error")(nrm.input)


def test_a_bad_sample_does_not_spoil_the_others() -> None:
    model, x = leaky(0.3)
    R = nrm.measure(model, torch.stack([x[0], torch.tensor([2.0, 1.0]).double()]), rules="lrp-0", bias="ignore")
    check = R.check(strict=False)
    assert check.ok == (False, True)
    assert "1 of 2 usable, not 0" in repr(check)
    with pytest.raises(nrm.MassError, match="sample 0"):
        R(R.input)
    good = R.sample(1)
    assert good.check().ok == (True,)
    assert good(good.input).shape == (1, 2)
    with pytest.raises(nrm.MassError):
        R.sample(0)(R.input)


# ---- columns and ties ------------------------------------------------------------------------------------------------


def test_negative_columns_are_counted_with_their_weight() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Tanh(), nn.Linear(2, 1, bias=False)).double()
    model[0].weight.data.copy_(torch.tensor([[1.0, 1.0], [-1.0, -2.0]]))
    model[2].weight.data.copy_(torch.tensor([[3.0, -1.0]]))
    R = nrm.measure(model, torch.ones(1, 2).double(), rules="lrp-0")
    check = R.check()
    share = R(R["0"])[0]
    assert check.negative[0] == 1
    assert check.negative[1] == pytest.approx(float(share[1] / (1 + share.sum())))
    assert check.ok == (True,)


@pytest.mark.parametrize(
    "pool", [nn.MaxPool2d(2), nn.MaxPool2d(2, return_indices=False, ceil_mode=True), nn.AdaptiveMaxPool2d(2)]
)
def test_ties_of_maxima_are_counted(pool: nn.Module) -> None:
    picture = torch.tensor([[1.0, 1, 2, 0], [0, 0, 0, 1], [3, 3, 0, 0], [3, 3, 0, 1]])
    R = nrm.measure(nn.Sequential(pool, nn.Flatten(), nn.Linear(4, 2)), picture[None, None], rules="lrp-0")
    assert R.check().ties == (2, 4)
    assert "2 of 4 reached" in repr(R.check())
    none = nrm.measure(nn.Sequential(pool, nn.Flatten(), nn.Linear(4, 2)), torch.rand(1, 1, 4, 4), rules="lrp-0")
    assert none.check().ties == (0, 4)


def test_ties_in_overlapping_windows_and_over_axes() -> None:
    line = torch.tensor([[[2.0, 1, 2, 2, 0]]])
    R = nrm.measure(nn.Sequential(nn.MaxPool1d(3, 1), nn.Flatten(), nn.Linear(3, 1)), line, rules="lrp-0")
    assert R.check().ties == (3, 3)

    class Top(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([x.amax(1), x.min(1).values], 1)

    R = nrm.measure(Top(), torch.tensor([[1.0, 3, 3], [1, 1, 2]]), target=[0, 1])
    assert R.check().ties == (2, 2)


def test_unreached_ties_do_not_count() -> None:
    picture = torch.zeros(1, 1, 4, 4)
    picture[0, 0, 0, 0] = 1
    R = nrm.measure(nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4, 1, bias=False)), picture, rules="lrp-0")
    assert R.check().ties == (0, 1)


# ---- precision -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", ["ignore", "input"])
@pytest.mark.parametrize("act", [nn.Tanh, nn.ReLU])
@pytest.mark.parametrize("rules", ["lrp-0", nrm.Gamma(0.25), nrm.ZPlus()], ids=repr)
def test_the_measured_precision_predicts_the_error(bias: str, act: Callable[[], nn.Module], rules: object) -> None:
    ratios = []
    for seed in range(5):
        model, x = mlp(4, 20, seed, act), torch.randn(1, 20)
        rough, exact = (nrm.measure(model, x, rules=rules, bias=bias, dtype=d) for d in (None, torch.float64))
        heat, right = (R.inner.network.relevance(R.base.arrivals[0]) for R in (rough, exact))
        assert heat is not None
        assert right is not None
        error = float((heat - right).abs().sum() / right.abs().sum())
        ratios.append(rough.check(strict=False).precision[0] / max(error, 1e-8))
    assert 0.1 < torch.tensor(ratios).median() < 10
    assert min(ratios) > 0.02


def test_explosions_raise_instead_of_answering() -> None:
    model, x = mlp(30, 20), torch.randn(2, 20)
    R = nrm.measure(model, x, rules="lrp-0", bias="ignore")
    for ask in (lambda: R(R.input), lambda: R(R["5"].channel(0), R["9"].channels), lambda: R(R.input), R.check):
        with pytest.raises(nrm.PrecisionError, match=r"cannot be trusted[\s\S]*sample 0[\s\S]*(float64|bias='input')"):
            ask()
    check = R.check(strict=False)
    assert not any(check.ok)
    assert max(max(v) for v in check.variation.values()) > 1e6
    cured = nrm.measure(model, x, rules="lrp-0", bias="input")
    assert cured.check().ok == (True, True)


def test_overflow_is_no_answer() -> None:
    R = nrm.measure(mlp(90, 20), torch.randn(1, 20), rules="lrp-0", bias="ignore")
    with pytest.raises(nrm.PrecisionError):
        R(R.input)
    assert R.check(strict=False).ok == (False,)


def test_float64_helps_where_float32_warns() -> None:
    def asked(dtype: torch.dtype) -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            nrm.measure(mlp(5, 20, 1), torch.ones(1, 20), rules="lrp-0", bias="ignore", dtype=dtype).check(
                strict=False
            ).speak()
        return [str(w.message) for w in caught]

    assert len(asked(torch.float64)) <= len(asked(torch.float32))


# ---- half precision --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_how_far_the_outputs_moved(dtype: torch.dtype) -> None:
    model, x = mlp(3, 30).to(dtype), torch.rand(4, 30).to(dtype)
    R = nrm.measure(model, x, rules="lrp-0", target=0)
    calls: list[int] = []
    handle = model.register_forward_hook(lambda *_: calls.append(1))
    check = R.check()
    handle.remove()
    assert calls == [1]
    with torch.no_grad():
        own = model(x).float()
    wanted = (R.values(R.output) - own).abs().amax(1) / own.abs().amax(1)
    assert check.moved is not None
    torch.testing.assert_close(torch.tensor(check.moved), wanted)
    assert 0 < max(check.moved) < 0.1
    assert "outputs moved" in repr(check)
    assert check.describe()["moved"] == list(check.moved)


def test_moved_is_about_other_precisions_only() -> None:
    assert nrm.measure(mlp(), torch.rand(1, 12)).check().moved is None
    up = nrm.measure(mlp(), torch.rand(1, 12), dtype=torch.float64).check().moved
    assert up is not None
    assert 0 < up[0] < 1e-5
    mixed = nrm.measure(mlp().half(), {"input": torch.rand(2, 12)}, output=lambda o: o[:, :2]).check().moved
    assert mixed is not None
    assert len(mixed) == 2


def test_the_models_own_pass_leaves_no_trace() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 2)
            self.register_buffer("seen", torch.zeros(1))
            self.calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            self.seen += 1
            x += 0
            return self.linear(x)

    model, x = Counting().half(), torch.rand(2, 3).half()
    R = nrm.measure(model, x)
    before, state = x.clone(), torch.get_rng_state()
    assert R.check().moved is not None
    assert model.calls == 0
    assert float(model.seen) == 0
    assert torch.equal(x, before)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.linear.weight.dtype == torch.float16


def test_a_changed_model_has_not_moved() -> None:
    model = mlp().half()
    R = nrm.measure(model, torch.rand(1, 12).half())
    with torch.no_grad():
        model[0].bias.mul_(2)
    assert R.check().moved is None
    with torch.no_grad():
        model[0].weight.mul_(2)  # which the measure reads
    with pytest.raises(nrm.NrmError, match="weights have changed"):
        R.check()


def test_another_top_class_is_worth_a_word() -> None:
    model = nn.Linear(2, 2, bias=False).half()
    model.weight.data.copy_(torch.tensor([[2048.0, 0.0], [2048.0, 0.6]]))
    R = nrm.measure(model, torch.ones(1, 2).half())
    assert R.prediction.tolist() == [1]
    with pytest.warns(nrm.NrmWarning, match="own precision the top class of sample 0"):
        R.check()


def test_the_verdict_speaks_of_cancellation() -> None:
    """Two large contributions of opposite sign to a small output: exact, and still hard to read one by one."""
    model = nn.Sequential(nn.Linear(2, 1, bias=False)).double()
    model[0].weight.data.copy_(torch.tensor([[50.0, -49.0]]))
    check = nrm.measure(model, torch.ones(1, 2).double(), rules="lrp-0").check()
    assert check.ok == (True,)
    assert "add up to 99" in check.verdict
    model[0].weight.data.copy_(torch.tensor([[3.0, -2.0]]))
    assert "cancel" not in nrm.measure(model, torch.ones(1, 2).double(), rules="lrp-0").check().verdict


def test_the_verdict_says_that_almost_all_mass_is_in_biases() -> None:
    model = nn.Sequential(nn.Linear(2, 1)).double()
    model[0].weight.data.copy_(torch.tensor([[1.0, 1.0]]))
    model[0].bias.data.fill_(500.0)
    check = nrm.measure(model, torch.ones(1, 2).double(), rules="lrp-0").check()
    assert check.ok == (True,)
    assert "99.60 % of the mass is in biases" in check.verdict
    model[0].bias.data.fill_(5.0)
    assert "biases" not in nrm.measure(model, torch.ones(1, 2).double(), rules="lrp-0").check().verdict
