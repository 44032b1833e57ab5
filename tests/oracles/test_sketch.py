"""The relevance of walks as the paper sketches it for perturbation and gradients, on a network small enough for lists.

The sketch: perturb all neurons that are not on the walk, or differentiate by all neurons on it. Both are functions of
whole walks. If walk relevance were a product of steps, then, given the neuron in the middle, what comes before and what
comes after would be independent: for every middle neuron the table of its outer neurons would have rank 1. It has not,
so that no message passing computes sums of these relevances; walks between chosen layers are defined step by step.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import nrm

SIZES = (3, 4, 3)  # input, first and second hidden layer; one output


def network(act: type[nn.Module], bias: bool) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(3, 4, bias=bias), act(), nn.Linear(4, 3, bias=bias), act(), nn.Linear(3, 1, bias=bias)]
    model = nn.Sequential(*layers).double()
    for p in model.parameters():
        p.data = torch.randn_like(p)
    return model


def run(model: nn.Sequential, x: Tensor, masks: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """The output with every neuron of input and hidden layers times its mask."""
    h = model[1](model[0](x * masks[0])) * masks[1]
    return model[4](model[3](model[2](h)) * masks[2])[0]


def perturbed(model: nn.Sequential, x: Tensor) -> Tensor:
    """The output that is left when everything but the walk is set to 0."""
    found = torch.zeros(SIZES, dtype=torch.float64)
    for walk in itertools.product(*map(range, SIZES)):
        masks = tuple(torch.zeros(n, dtype=torch.float64).index_fill(0, torch.tensor([i]), 1.0)
                      for n, i in zip(SIZES, walk, strict=True))  # fmt: skip
        found[walk] = run(model, x, masks).detach()
    return found / found.sum()


def differentiated(model: nn.Sequential, x: Tensor) -> Tensor:
    """The third derivative by the masks of the walk's neurons."""
    masks = tuple(torch.ones(n, dtype=torch.float64, requires_grad=True) for n in SIZES)
    found = torch.zeros(SIZES, dtype=torch.float64)
    (third,) = torch.autograd.grad(run(model, x, masks), masks[2], create_graph=True)
    for k in range(SIZES[2]):
        (second,) = torch.autograd.grad(third[k], masks[1], create_graph=True)
        for j in range(SIZES[1]):
            (first,) = torch.autograd.grad(second[j], masks[0], retain_graph=True)
            found[:, j, k] = first
    return found / found.sum()


def independence(walks: Tensor) -> float:
    """The largest second singular value beside the first, over the tables of all middle neurons."""
    ratios = [s[1] / s[0] for j in range(SIZES[1]) if (s := torch.linalg.svdvals(walks[:, j]))[0] > 1e-12]
    return float(max(ratios))


def x() -> Tensor:
    return torch.tensor([0.7, -1.1, 0.9], dtype=torch.float64)


@pytest.mark.parametrize("sketch", [perturbed, differentiated])
@pytest.mark.parametrize("act", [nn.Tanh, nn.Softplus])
def test_the_sketch_does_not_factorize(sketch: Callable[[nn.Sequential, Tensor], Tensor], act: type[nn.Module]) -> None:
    assert independence(sketch(network(act, True), x())) > 1e-2


@pytest.mark.parametrize("rule", [nrm.Gradient, nrm.IntegratedGradients, nrm.Occlusion, nrm.Shapley])
@pytest.mark.filterwarnings("ignore::nrm.NrmWarning")
def test_walks_between_layers_do(rule: Callable[..., object]) -> None:
    R = nrm.measure(network(nn.Tanh, True), x()[None], rules=rule(["1", "3"]))
    assert independence(R(R.input, R["1"], R["3"])[0]) < 1e-9


def test_where_second_derivatives_vanish_the_sketch_is_the_gradient() -> None:
    """Of ReLUs without biases: the mixed derivative is a product of slopes and weights, as in walks by gradients."""
    model = network(nn.ReLU, False)
    R = nrm.measure(model, x()[None], rules=nrm.Gradient(["1", "3"]), bias="ignore")
    torch.testing.assert_close(differentiated(model, x()), R(R.input, R["1"], R["3"])[0], rtol=1e-9, atol=1e-9)
