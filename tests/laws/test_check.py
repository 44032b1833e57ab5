"""The certificate says what the walks say: where the mass went, how much cancels, how far rounding may reach."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import assume, given, strategies as st
from torch import Tensor, nn

import nrm
from laws.agreement import ask, drawn, law, sinks
from networks import KINDS, cases
from oracles import brute
from oracles.twin import RULES, Rules

pytestmark = pytest.mark.filterwarnings("ignore::nrm.errors.NrmWarning")

EPS = torch.finfo(torch.float32).eps


@law
@given(data=st.data(), kind=st.sampled_from(sorted(KINDS)))
def test_masses_and_variation(data: st.DataObject, kind: str) -> None:
    it = drawn(data, kind, batch=2)
    check = it.R.check(strict=False)
    it.close(torch.tensor(check.mass).double(), 1.0)
    assert check.cut_error <= 1e-9 * it.scale
    for sample, found in enumerate(it.walks):
        biased = sum(r for walk, r in found if ".bias" in walk[0][0])
        assert check.biases[sample] == pytest.approx(biased, rel=1e-8, abs=1e-10 * it.scale)
        for name in it.tensors:
            variation = brute.table(found, [(name, torch.arange(it.truth([name])[0].numel()))]).abs().sum()
            assert check.variation.get(name, (0.0, 0.0))[sample] == pytest.approx(
                float(variation), rel=1e-8, abs=1e-10 * it.scale
            )


@law
@given(data=st.data(), kind=st.sampled_from(sorted(KINDS)), rule=st.sampled_from(["zplus", "alpha1beta0", "lrp0"]))
def test_sinks_are_named(data: st.DataObject, kind: str, rule: str) -> None:
    """However much they hold: above a tenth of the mass no question is answered, but the certificate still is."""
    case = data.draw(cases(kind))
    target = data.draw(st.integers(0, case.outputs.shape[1] - 1))
    network = case.oracle(Rules(rule), target, bias="ignore", zero="sink")
    assume(max(float(c.max()) for c in network.condition.values()) < 1e4)
    found = brute.walks(network)
    assume(sum(abs(r) for _, r in found) < 1e4)
    R = ask(case, Rules(rule), target, bias="ignore", zero="sink")
    check = R.check(strict=False)
    truth = {name.replace(".sink", ""): mass for name, mass in sinks(found).items()}
    for name in truth.keys() | check.sinks.keys():
        assert check.sinks.get(name, (0.0,))[0] == pytest.approx(truth.get(name, 0.0), rel=1e-8, abs=1e-8)
    leak = sum(abs(mass) for mass in truth.values())
    assert check.ok == (leak <= 0.1,)
    if leak > 0.1 + 1e-9:
        with pytest.raises(nrm.MassError):
            R.check()


@law
@given(data=st.data(), kind=st.sampled_from(sorted(KINDS)), rule=st.sampled_from(sorted(RULES)))
def test_the_measured_precision_predicts_the_error(data: st.DataObject, kind: str, rule: str) -> None:
    """Law 10 for all other rules: float32 is as far from float64 as the check of the float32 measure says."""
    case = data.draw(cases(kind))
    model, inputs = copy.deepcopy(case.model).float(), tuple(x.float() for x in case.inputs)
    how = {"target": 0, "rules": Rules(rule).library(case.model), "bias": "ignore", "zero": "uniform"}
    argument = inputs if len(inputs) > 1 else inputs[0]
    rough, exact = nrm.measure(model, argument, **how), nrm.measure(model, argument, dtype=torch.float64, **how)
    check = rough.check(strict=False)
    assume(check.ok[0] and exact.check(strict=False).ok[0] and check.zero == exact.check(strict=False).zero)
    parts = [(rough(a).flatten(), exact(b).flatten()) for a, b in zip(rough.inputs, exact.inputs, strict=True)]
    a, b = (torch.cat([pair[k].double() for pair in parts]) for k in (0, 1))
    error = float((a - b).abs().sum() / b.abs().sum())
    assert error <= 100 * max(check.precision[0], EPS)


class Cancel(nn.Module):
    """Three inputs, of which the first two nearly cancel."""

    def __init__(self, gap: float):
        super().__init__()
        self.lin = nn.Linear(3, 1, bias=False).double()
        with torch.no_grad():
            self.lin.weight.copy_(torch.tensor([[1.0, -1.0 + gap, 1.0]], dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.lin(x)


def test_conditioning_on_what_nearly_cancels() -> None:
    """R(B) below 1e-3 of the variation inside B warns, below 100 eps raises; a plain condition does neither."""
    x = torch.ones(1, 3, dtype=torch.float64)

    def conditioned(gap: float) -> Tensor:
        R = nrm.measure(Cancel(gap), x, target=0, rules=nrm.LRP0())
        return R(R.input, given=R.input[:2])

    torch.testing.assert_close(conditioned(0.5).sum(), torch.tensor(1.0).double())
    with pytest.warns(nrm.NrmWarning):
        conditioned(1e-5)
    with pytest.raises(nrm.NrmError):
        conditioned(1e-15)
