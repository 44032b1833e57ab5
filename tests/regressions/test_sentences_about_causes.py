"""A cause is named where it was measured: rounding is not to blame for steps that do not fit, or for lost writes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import nrm
from capture.replay import numbers
from nrm.capture import Linear, Source
from nrm.operators import Dense


class Halved(nn.Module):
    """A layer that computes something else than its weights alone say."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(numbers(3, 4, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        return torch.tensor((x.numpy() @ self.weight.detach().numpy().T) / 2)


class Shifted(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * 2 + 1


class Doubled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.repeat(1, 2)


def read_without_the_half(call, x):  # type: ignore[no-untyped-def]
    return call.one(Linear(Dense(x.shape, call.module.weight.detach()), "linear"), x)


def read_with_another_shape(call, x):  # type: ignore[no-untyped-def]
    return call.one(Linear(Dense(x.shape, torch.eye(x.shape[1])), "linear"), x)


def test_a_builder_that_does_not_reproduce_the_output_is_named() -> None:
    """It was said that rounding has eaten the result."""
    nrm.register(Halved, read_without_the_half)
    with pytest.raises(nrm.CaptureError, match=r"Halved[\s\S]*'read_without_the_half'[\s\S]*off by 100\.0 %"):
        nrm.measure(nn.Sequential(Halved(), nn.Linear(3, 2)), torch.ones(1, 4))


def test_a_builder_of_another_shape_is_named() -> None:
    nrm.register(Doubled, read_with_another_shape)
    with pytest.raises(nrm.CaptureError, match=r"'read_with_another_shape'[\s\S]*another shape"):
        nrm.measure(nn.Sequential(Doubled(), nn.Linear(8, 2)), torch.ones(1, 4))


def test_a_reading_as_linear_is_refused_for_what_is_not() -> None:
    nrm.register(Shifted, "linear")
    with pytest.raises(nrm.CaptureError, match=r"Shifted[\s\S]*'linear_in_first'[\s\S]*of twice its input"):
        nrm.measure(nn.Sequential(Shifted(), nn.Linear(4, 2)), torch.ones(1, 4))


def test_a_lost_write_is_not_called_rounding() -> None:
    torch.manual_seed(0)
    R = nrm.measure(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)), torch.rand(1, 4), rules=nrm.Gamma(0.25))
    hidden = next(n for n in R.inner.tape.nodes if n.index and not isinstance(n.op, Source))
    hidden.value = hidden.value * 1.5 + 1  # as if somebody had written into it unseen
    for ask in (lambda: R(R.input), R.check):
        with pytest.raises(nrm.CaptureError, match=r"Layer '0' does not come out again: its step \(linear\)") as error:
            ask()
        assert "ounding has" not in str(error.value)


def test_rounding_is_named_where_it_was_measured() -> None:
    torch.manual_seed(0)
    layers = [part for _ in range(30) for part in (nn.Linear(20, 20), nn.Tanh())]
    R = nrm.measure(nn.Sequential(*layers, nn.Linear(20, 2)), torch.randn(1, 20), rules="lrp-0", bias="ignore")
    with pytest.raises(nrm.PrecisionError, match="rounding has eaten the result, as was measured"):
        R(R.input)
