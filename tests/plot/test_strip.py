"""Strips of the strongest combinations: what is drawn, in which order, and what is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import nrm

pytest.importorskip("matplotlib")


@pytest.fixture
def measured() -> tuple[nrm.Measure, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(80, 2)
    ).eval()
    x = torch.rand(2, 3, 8, 8)
    return nrm.measure(model, x[:1], rules="epsilon-plus"), x


def test_the_strongest_come_first_with_their_shares(measured: tuple[nrm.Measure, torch.Tensor]) -> None:
    R, x = measured
    asked = R["1"].channels, R["3"].channels
    figure = nrm.plot.strips(R, x[0], *asked, k=3)
    best = R(*asked)[0].flatten().sort(descending=True).values[:3]
    titles = [ax.get_title().splitlines() for ax in figure.axes]
    assert [title[0] for title in titles[2:5]] == [f"{100 * share:.1f} %" for share in best.tolist()]
    assert titles[2][1:] == [str(block) for block in R.flows(*asked, k=1)[0][0]]  # and which pair it is
    (flow, *_), (_, _, drawn, *_) = R.flows(*asked, k=1)[0], figure.axes
    heat = R(R.input, *flow)[0].sum(0)
    top = torch.as_tensor(drawn.images[-1].get_array()).argmax()
    assert int(top) == int(heat.argmax())


def test_what_cannot_be_drawn_is_said(measured: tuple[nrm.Measure, torch.Tensor]) -> None:
    R, x = measured
    with pytest.raises(nrm.QuestionError, match="strips of what"):
        nrm.plot.strips(R, x[0])
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)).eval()
    with pytest.raises(nrm.QuestionError, match="a measure of 2"):
        nrm.plot.strips(nrm.measure(model, x), x[0], nrm.layer("1").channels)
