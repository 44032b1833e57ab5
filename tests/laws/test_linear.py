"""Law 7: on a linear network, taking neurons away and asking for their relevance are the same thing.

The joint contribution of sets S1, S2, ... is the inclusion-exclusion sum of outputs with the sets set to zero. With
LRP-0, no biases (or biases as inputs) it equals output x R(S1, S2, ...), exactly.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from hypothesis import assume, given, strategies as st
from torch import Tensor, nn

import nrm
from laws.agreement import law_of_some, masks, subsets
from modules import filled

pytestmark = pytest.mark.filterwarnings("ignore::nrm.errors.NrmWarning")


class Chain(nn.Module):
    def __init__(self, bias: bool):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(i, o, bias=bias) for i, o in ((3, 4), (4, 3), (3, 2)))

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.b(self.a(x)))

    def without(self, x: Tensor, kept: Mapping[str, Tensor]) -> Tensor:
        """The forward pass with every tensor multiplied by what is kept of it."""
        x = x * kept["input"]
        return self.c(self.b(self.a(x) * kept["a"]) * kept["b"])


class Skips(nn.Module):
    """Two residual blocks, one with a linear shortcut, a norm and a concatenation."""

    def __init__(self, bias: bool):
        super().__init__()
        self.a, self.b, self.d = (nn.Linear(3, 3, bias=bias) for _ in "abd")
        self.norm = nn.BatchNorm1d(3)
        self.short = nn.Linear(3, 3, bias=bias)
        self.c = nn.Linear(6, 2, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.b(self.a(x))) + x
        y = self.d(h) + self.short(h)
        return self.c(torch.cat([y, h], 1))

    def without(self, x: Tensor, kept: Mapping[str, Tensor]) -> Tensor:
        x = x * kept["input"]
        a = self.a(x) * kept["a"]
        h = (self.norm(self.b(a)) + x) * kept["/add#0"]
        y = (self.d(h) * kept["d"] + self.short(h)) * kept["/add#1"]
        return self.c(torch.cat([y, h], 1))


LAYERS = {Chain: {"input": 3, "a": 4, "b": 3}, Skips: {"input": 3, "a": 3, "/add#0": 3, "d": 3, "/add#1": 3}}


def prepared(kind: type[nn.Module], bias: bool, seed: int) -> tuple[nn.Module, Tensor]:
    model = filled(kind(bias), seed)
    if kind is Skips and not bias:  # a norm's shift is a bias too
        model.norm.running_mean.zero_()
        nn.init.zeros_(model.norm.bias)
    return model, torch.randn(1, 3, generator=torch.Generator().manual_seed(seed + 1)).double()


def contribution(model: nn.Module, x: Tensor, sets: Mapping[str, Tensor], target: int) -> Tensor:
    """sum over B of (-1)^|B| f(x without the sets in B)."""
    total = torch.zeros(1, dtype=torch.float64)
    with torch.no_grad():
        for removed in subsets(list(sets)):
            kept = {
                n: 1.0 - sets[n].double() if n in removed else torch.ones(w) for n, w in LAYERS[type(model)].items()
            }
            total = total + (-1) ** len(removed) * model.without(x, kept)[:, target]
    return total


@pytest.mark.parametrize("kind", [Chain, Skips])
@pytest.mark.parametrize("bias", [False, True])
@law_of_some
@given(data=st.data(), seed=st.integers(0, 2**20), target=st.integers(0, 1))
def test_joint_contribution_is_output_times_relevance(
    kind: type[nn.Module], bias: bool, data: st.DataObject, seed: int, target: int
) -> None:
    model, x = prepared(kind, bias, seed)
    f = model(x)[:, target].detach()
    assume(float(f.abs()) > 0.05)
    # Inside a fused step (d), the walk of the step's one bias neuron takes no branch, but removal takes d's bias too.
    layers = sorted(LAYERS[kind].keys() - ({"d"} if bias else set()))
    names = data.draw(st.lists(st.sampled_from(layers), min_size=1, max_size=3, unique=True))
    sets = {name: data.draw(masks((LAYERS[kind][name],))) for name in names}
    R = nrm.measure(model, x, target=target, rules="lrp-0", bias="input", dtype=torch.float64)
    torch.testing.assert_close(R.value, f)
    relevance = R(*(R[name].where(mask) for name, mask in sets.items()))
    torch.testing.assert_close(f * relevance, contribution(model, x, sets, target), rtol=1e-8, atol=1e-9)


def test_it_fails_with_ignored_biases_and_with_other_rules() -> None:
    """Neither the biases nor the rule may be changed: the law can fail."""
    model, x = prepared(Chain, True, 3)
    sets = {"input": torch.tensor([True, False, False]), "b": torch.tensor([True, True, False])}
    truth = contribution(model, x, sets, 0)

    def error(**how: object) -> float:
        R = nrm.measure(model, x, target=0, dtype=torch.float64, zero="uniform", **how)
        relevance = R(*(R[name].where(mask) for name, mask in sets.items()))
        return float((model(x)[:, 0].detach() * relevance - truth).abs())

    assert error(rules="lrp-0", bias="input") < 1e-9
    assert error(rules="lrp-0", bias="ignore") > 1e-3
    assert error(rules=nrm.ZPlus(), bias="input") > 1e-3
    assert error(rules=nrm.Gamma(0.25), bias="input") > 1e-3
