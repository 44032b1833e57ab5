"""The door for Quantus: arrays in, arrays of the same shape out; its metrics themselves run in tests/peers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import nrm
from nrm.compat.captum import LRP


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_arrays_in_and_out(dtype: type) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    x, y = np.random.default_rng(0).normal(size=(5, 4)).astype(dtype), np.array([0, 1, 2, 1, 0])
    for options in ({}, {"rules": "epsilon-plus", "bias": "input"}):
        found = nrm.compat.quantus(model, inputs=x, targets=y, device="cpu", **options)
        expected = LRP(model, **options).attribute(torch.from_numpy(x).float(), target=y)
        assert isinstance(found, np.ndarray)
        np.testing.assert_array_equal(found, expected.numpy())


def test_errors() -> None:
    model, x = nn.Linear(4, 3), np.ones((2, 4), dtype=np.float32)
    with pytest.raises(nrm.QuestionError, match="unknown option 'method'"):
        nrm.compat.quantus(model, x, np.array([0, 1]), method="Saliency")
    with pytest.raises(nrm.QuestionError, match="targets and samples do not match"):
        nrm.compat.quantus(model, x, np.array([0, 1, 2]))
