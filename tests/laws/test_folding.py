"""A batch norm inside the weights of its linear step, and beside them: one answer, at every tensor."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import nrm
from nrm.steps.families.linear import LinearSteps


def made(turned: bool) -> nn.Sequential:
    """Convolutions with few weights and many results, and a dense layer with many weights, each under a batch norm."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 4, 1, bias=False), nn.BatchNorm2d(4),
        nn.ReLU(), nn.Flatten(), nn.Linear(64 * 4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3),
    ).double()  # fmt: skip
    for module in model:
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.uniform_(module.weight, -1.0 if turned else 0.5, 1.0)
            nn.init.uniform_(module.bias, -0.1, 0.0)  # nothing is above 0 by its bias alone: no column without a sum
            nn.init.uniform_(module.running_var, 0.5, 2.0)
            nn.init.uniform_(module.running_mean, 0.0, 0.1)
    nn.init.normal_(model[7].weight, std=0.3)
    nn.init.uniform_(model[10].weight, 0.0, 1.0)  # what is explained is not a small difference
    return model.eval()


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("rules", ["lrp-0", "epsilon-plus-flat", "epsilon-gamma-box", "epsilon-alpha2-beta1"])
def test_norms_inside_the_weights_change_nothing(rules: str, turned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = made(turned), torch.randn(3, 2, 8, 8, dtype=torch.float64)
    folded = nrm.measure(model, x, rules=rules)
    monkeypatch.setattr(LinearSteps, "weights", lambda *_: math.inf)
    beside = nrm.measure(model, x, rules=rules)
    low, high = "0", "3"
    for name in (str(n) for n in range(len(model))):
        torch.testing.assert_close(folded(folded[name]), beside(beside[name]), rtol=1e-9, atol=1e-12)
    pairs = [R(R[low].channels, R[high].channels) for R in (folded, beside)]
    torch.testing.assert_close(*pairs, rtol=1e-9, atol=1e-12)
    event = [R(R.input, R[high][1, :4]) for R in (folded, beside)]
    torch.testing.assert_close(*event, rtol=1e-9, atol=1e-12)


def test_few_weights_are_scaled_in_the_place_of_many_results() -> None:
    model = made(turned=False)
    R = nrm.measure(model, torch.randn(3, 2, 8, 8, dtype=torch.float64), rules="lrp-0")
    network = R.inner.network
    rows = {
        link.map.factors.rows is not None
        for node in network.nodes for link in node.links if hasattr(link.map, "factors")
        if network.tape.nodes[node.tensor].name in ("0", "3")
    }  # fmt: skip
    assert rows == {True}
