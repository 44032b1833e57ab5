"""captum: the same numbers on plain networks, and what it refuses, misreads or leaves behind."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from peers.subjects import (
    TINY,
    CalledTwice,
    FunctionalResidual,
    ReusedCell,
    SharedParameter,
    TiedWeights,
    column,
    gradient_truth,
    images,
    misread,
    plain_cnn,
    relative_error,
    sums,
    top_class,
)

pytestmark = pytest.mark.peer
pytest.importorskip("captum", reason="captum is not installed: make peers")

from captum.attr import LRP  # noqa: E402
from captum.attr._utils.lrp_rules import Alpha1_Beta0_Rule, EpsilonRule, GammaRule, PropagationRule  # noqa: E402

import nrm  # noqa: E402
from nrm.rules import AlphaBeta, Epsilon, Gamma  # noqa: E402

# our rule for convolutions, theirs; dense layers have the epsilon rule
CONVOLUTIONS = {
    "epsilon": (Epsilon(), EpsilonRule),
    "gamma": (Gamma(0.25), lambda: GammaRule(0.25, set_bias_to_zero=True)),
    "alpha1-beta0": (AlphaBeta(1, 0), lambda: Alpha1_Beta0_Rule(set_bias_to_zero=True)),
}


def attach(model: nn.Module, convolution: Callable[[], PropagationRule] = EpsilonRule) -> None:
    """captum reads its rules from the user's modules, and deletes them after one call."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear | nn.MaxPool2d):
            module.rule = convolution() if isinstance(module, nn.Conv2d) else EpsilonRule()
            module.rule.STABILITY_FACTOR = TINY


def explain(model: nn.Module, x: Tensor, target: int | Tensor) -> Tensor:
    """captum's relevance as a share of the output."""
    x = x.clone().requires_grad_()
    relevance = LRP(model).attribute(x, target=target).detach()
    with torch.no_grad():
        value = model(x)[torch.arange(len(x)), target]
    return relevance / column(value, relevance)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_rules_agree(name: str, seed: int) -> None:
    # Inputs are not negative: captum's rules split weights, not products.
    model, x = plain_cnn(seed, bias=False), images(seed, signed=False)
    target = top_class(model, x)
    ours, theirs = CONVOLUTIONS[name]
    attach(model, theirs)
    expected = explain(model, x, target)
    torch.testing.assert_close(sums(expected), torch.ones(len(x), dtype=x.dtype))

    R = nrm.measure(model, x, target=target, rules={nn.Conv2d: ours, nn.Linear: Epsilon()}, bias="ignore")
    assert relative_error(R(R.input), expected) < 1e-11


@pytest.mark.parametrize("seed", range(6))
def test_epsilon_with_biases_is_lrp_0_with_biases_as_inputs(seed: int) -> None:
    model, x = plain_cnn(seed), images(seed)
    target = top_class(model, x)
    attach(model)
    expected = explain(model, x, target)
    R = nrm.measure(model, x, target=target, rules="lrp-0", bias="input")
    assert relative_error(R(R.input), expected) < 1e-11


def test_a_second_call_differs_in_captum_and_not_in_ours() -> None:
    model, x = plain_cnn(0, bias=False), images(0, signed=False)
    target = top_class(model, x)
    before = [set(vars(module)) for module in model.modules()]

    rules = {nn.Conv2d: Gamma(0.25), nn.Linear: Epsilon()}
    first, second = (R(R.input) for R in (nrm.measure(model, x, target=target, rules=rules) for _ in range(2)))
    assert torch.equal(first, second)
    assert [set(vars(module)) for module in model.modules()] == before, "we leave no trace"

    attach(model, CONVOLUTIONS["gamma"][1])
    assert relative_error(explain(model, x, target), first) < 1e-11
    assert relative_error(explain(model, x, target), first) > 1e-2, "captum keeps its rules now"
    assert [set(vars(module)) for module in model.modules()] != before, "captum leaves no trace now"


@pytest.mark.parametrize("kind", [CalledTwice, ReusedCell])
def test_reused_modules_are_refused_by_captum(kind: type[nn.Module]) -> None:
    model, x = misread(kind, 0)
    with pytest.raises(RuntimeError, match="used more than once"):
        explain(model, x, 0)

    model, x = misread(kind, 0)
    R = nrm.measure(model, x, target=0, rules="lrp-0", bias="ignore")
    assert relative_error(R(R.input), gradient_truth(model, x, 0)) < 1e-10


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", [FunctionalResidual, TiedWeights])
def test_networks_that_captum_misreads(kind: type[nn.Module], seed: int) -> None:
    model, x = misread(kind, seed)
    truth = gradient_truth(model, x, 0)
    R = nrm.measure(model, x, target=0, rules="lrp-0", bias="ignore")
    assert relative_error(R(R.input), truth) < 1e-10
    attach(model)
    assert relative_error(explain(model, x, 0), truth) > 0.5, "captum reads this network now: move it to the agreements"


def test_shared_parameters_agree() -> None:
    model, x = misread(SharedParameter, 0)
    R = nrm.measure(model, x, target=0, rules="lrp-0", bias="ignore")
    ours = R(R.input)
    attach(model)
    assert relative_error(ours, explain(model, x, 0)) < 1e-10
