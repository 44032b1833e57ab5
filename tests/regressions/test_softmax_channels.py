"""A softmax over channels, by its own rule, mixes channels."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import nrm


@pytest.mark.parametrize("dim", [1, 2])
def test_tables_across_a_softmax_have_all_pairs(dim: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Softmax(dim), nn.Linear(5, 2), nn.Flatten(), nn.Linear(6, 2)).double()
    x = torch.randn(2, 3, 4).double()
    R = nrm.measure(model, x, rules={"softmax": nrm.rules.SoftmaxRule(), "*": "lrp-0"}, bias="input")
    a, b = R["0"], R["1"]
    one_by_one = torch.stack([R(a.channel(i), b.channels) for i in range(5)], 1)
    torch.testing.assert_close(R(a.channels, b.channels), one_by_one)
    mixed = (one_by_one - torch.diag_embed(one_by_one.diagonal(dim1=1, dim2=2))).abs().max()
    assert (float(mixed) > 1e-3) == (dim == 2)
