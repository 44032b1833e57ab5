"""Tables that take long say so before they are computed."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import nrm
from nrm.errors import CostWarning


def network(width: int) -> nn.Module:
    torch.manual_seed(0)
    convs = [part for i in (3, width, width) for part in (nn.Conv2d(i, width, 3, padding=1), nn.ReLU())]
    return nn.Sequential(*convs, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 2)).eval()


@pytest.fixture(scope="module")
def large() -> nrm.Measure:
    R = nrm.measure(network(160), torch.rand(1, 3, 32, 32))
    R(R.input)  # the base sweep, which tells how many channels are live
    return R


def test_a_long_table_is_announced_with_its_plan_and_cheaper_questions(large: nrm.Measure) -> None:
    a, c = large["1"], large["5"]
    plan = large.plan(a.channels, c.channels)
    passes = plan.flops / plan.forward
    assert passes > 50
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it stops the question: nothing has been computed yet
        with pytest.raises(CostWarning) as caught:
            large(a.channels, c.channels)
    text = str(caught.value)
    for word in (f"about {passes:.0f} forward passes", "plan: ", "times", "R.flows(", "a.channels[:64]", "R.each("):
        assert word in text, word


def test_conditions_and_formulas_are_announced_too(large: nrm.Measure) -> None:
    a, b, c = large["1"], large["3"], large["5"]
    for ask in (
        lambda: large(a.channels, given=c.channels),
        lambda: large(a.channels, c.channels, nrm.visits(b.channel(3))),
        lambda: large.in_units(a.channels, c.channels),
    ):
        with pytest.raises(CostWarning):
            ask()


def test_what_is_cheap_is_not_announced(large: nrm.Measure) -> None:
    a, b, c = large["1"], large["3"], large["5"]
    large(large.input)
    large(a.channels, b.channels)  # neighbours: one contraction
    large(a.channels[:8], c.channels)


def test_small_networks_are_not_announced() -> None:
    R = nrm.measure(network(16), torch.rand(1, 3, 12, 12))
    plan = R.plan(R.input, R["5"])
    assert plan.flops > 50 * plan.forward
    R(R.input, R["5"])
