"""Answers in units of the output: shares times the explained output of every sample."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import nrm


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)).double()


X = torch.rand(3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_it_is_the_answer_times_the_output() -> None:
    R = nrm.measure(network(), X)
    a, b = R["1"], R["3"]
    for question in ((a,), (a.channels, b.channels), (R.input, b.channel(2)), (nrm.visits(a.channel(1)),),
                     (nrm.stack(a.channels, b.channels), R.input)):  # fmt: skip
        share = R(*question)
        expected = share * R.value.reshape(-1, *(1,) * (share.ndim - 1))
        torch.testing.assert_close(R.in_units(*question), expected)


def test_everything_is_the_output_itself() -> None:
    R = nrm.measure(network(), X, rules="lrp-0", target=[0, 1, 2])
    total = sum(R.in_units(part.all) for part in R.inputs)
    torch.testing.assert_close(total, network()(X).gather(1, torch.tensor([[0], [1], [2]]))[:, 0])


def test_one_sample_and_sets_that_know_theirs() -> None:
    R = nrm.measure(network(), X)
    torch.testing.assert_close(R.sample(2).in_units(R.input), R.in_units(R.input)[2:])
    flow = R.flows(R["1"].channels, R["3"].channels, k=1)[1][0]
    torch.testing.assert_close(R.in_units(*flow), R(*flow) * R.value[1])


def test_differences_are_differences_of_outputs() -> None:
    D = nrm.measure(network(), X, target=0) - nrm.measure(network(), X, target=1)
    torch.testing.assert_close(sum(D.in_units(part.all) for part in D.inputs), D.value)
    torch.testing.assert_close(D.in_units(D["1"]), D.first.in_units(D["1"]) - D.second.in_units(D["1"]))


def test_nothing_asked() -> None:
    with pytest.raises(nrm.NrmError, match="nothing was asked"):
        nrm.measure(network(), X).in_units()


def test_a_linear_network_gives_products_of_weights_and_inputs() -> None:
    """Also where the outputs are as good as 0, which no share of them survives."""
    model = nn.Linear(4, 1).double()
    model.bias.data = -(X @ model.weight.T)[:1, 0] * (1 - 1e-13)
    R = nrm.measure(model, X[:1])
    torch.testing.assert_close(R.in_units(R.input), model.weight * X[:1])
