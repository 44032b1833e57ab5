"""Peaks of blocks and receptive fields, against brute force."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import nrm
from nrm.measure.peaks import Fields, peaks


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3, stride=2, bias=False),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3),
    ).eval()  # fmt: skip


def test_the_peak_of_every_block_is_its_largest_entry(model: nn.Module) -> None:
    R = nrm.measure(model, torch.rand(3, 2, 13, 11))
    a = R["1"]
    values = R(a)
    labels = torch.randint(-1, 5, values.shape[1:])
    for partition in (a.channels, a.channels[[2, 0]], a.positions, a, a.groups(labels)):
        best, at = peaks(R, partition, values)
        table = R(partition).flatten(1)
        assert best.shape == at.shape == table.shape
        flat = values.flatten(1)
        torch.testing.assert_close(flat.gather(1, at), best)
    best, at = peaks(R, a.channels, values)
    torch.testing.assert_close(best, values.flatten(2).amax(2))
    best, at = peaks(R, a.groups(labels), values)
    for group in range(5):
        torch.testing.assert_close(best[:, group], values[:, labels == group].amax(1))
        assert bool((labels.flatten()[at[:, group]] == group).all())
    best, at = peaks(R, a.channel(1) & a[:, :3, :], values)
    torch.testing.assert_close(best[:, 0], values[:, 1, :3].flatten(1).amax(1))


def test_fields_are_where_gradients_can_come_from(model: nn.Module) -> None:
    x = torch.rand(1, 2, 13, 11)
    R = nrm.measure(model, x)
    # The oracle: positive weights and a mean instead of the maximum let every path through.
    open_model = nn.Sequential(*[nn.AvgPool2d(2) if isinstance(m, nn.MaxPool2d) else m for m in model[:5]])
    for p in open_model.parameters():
        p.data = torch.ones_like(p)
    x.requires_grad_()
    out = open_model(x)
    fields = Fields(R, R["4"])
    shape = out.shape[1:]
    for neuron in range(out[0].numel()):
        c, i, j = (int(v) for v in torch.unravel_index(torch.tensor(neuron), shape))
        (g,) = torch.autograd.grad(out[0, c, i, j], x, retain_graph=True)
        there = g[0].sum(0).nonzero()
        low, high = there.amin(0).tolist(), (there.amax(0) + 1).tolist()
        assert fields.of(neuron) == tuple(zip(low, high, strict=True))
    assert Fields(R, R["7"]).of(0) == ((0, 13), (0, 11))


def test_fields_pass_skips(model: nn.Module) -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv1d(2, 2, 3, padding=1)
            self.head = nn.Linear(18, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.cat([x, x + self.conv(torch.relu(self.conv(x)))], 1)
            return self.head(y[:, :2].flatten(1) + y[:, 2:].flatten(1))

    R = nrm.measure(Block().eval(), torch.rand(1, 2, 9))
    assert Fields(R, R["conv#1"]).of(4) == ((2, 7),)
    assert Fields(R, R["conv#1"]).of(0) == ((0, 3),)
    added = R.find("*add*")[0]
    assert Fields(R, added).of(4) == ((2, 7),)
