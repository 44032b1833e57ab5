"""Batch norms with negative gains: the same relevance, and the same work, as if the weights below had the sign."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import nrm
from counting import Counting

Build = Callable[[], tuple[nn.Module, nn.Module, int]]


def _convolution() -> tuple[nn.Module, nn.Module, int]:
    return nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), 0


def _grouped() -> tuple[nn.Module, nn.Module, int]:
    return nn.Conv2d(3, 6, 2, stride=2, groups=3, bias=False), nn.BatchNorm2d(6), 0


def _uneven() -> tuple[nn.Module, nn.Module, int]:
    return nn.Conv2d(3, 4, 2, padding="same"), nn.BatchNorm2d(4), 0


def _pointwise() -> tuple[nn.Module, nn.Module, int]:
    return nn.Conv2d(3, 5, 1), nn.BatchNorm2d(5), 0


def _transposed() -> tuple[nn.Module, nn.Module, int]:
    return nn.ConvTranspose2d(3, 4, 2, stride=2), nn.BatchNorm2d(4), 1


def _dense() -> tuple[nn.Module, nn.Module, int]:
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 6)), nn.BatchNorm1d(6), 0


STEPS: dict[str, Build] = {
    "convolution": _convolution, "grouped": _grouped, "uneven": _uneven, "pointwise": _pointwise,
    "transposed": _transposed, "dense": _dense,
}  # fmt: skip


RULES = (nrm.ZPlus(), nrm.Gamma(0.3), nrm.AlphaBeta(2, 1), nrm.LRP0(), nrm.WSquare(), nrm.ZBox())

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same'")


class Net(nn.Module):
    """A step and its norm between two others; with ``skip``, added to another branch of norms."""

    def __init__(self, build: Build, skip: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.low = nn.Conv2d(3, 3, 3, padding=1)
        (self.step, self.norm, self.axis), (self.other, self.second, _) = build(), build()
        self.skip = skip
        self.head = nn.LazyLinear(3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.low(x))
        y = self.norm(self.step(h))
        y = y + self.second(self.other(h)) if self.skip else y
        return self.head(torch.relu(y).flatten(1))

    def branches(self) -> list[tuple[nn.Module, nn.Module]]:
        return [(self.step, self.norm), (self.other, self.second)]


def twins(build: Build, skip: bool) -> tuple[Net, Net]:
    """A network with gains of both signs, and the same function with the signs in the weights below."""
    one = Net(build, skip).double().eval()
    one(torch.zeros(1, 3, 4, 4, dtype=torch.double))
    with torch.no_grad():
        for p in one.parameters():
            p.normal_()
        for b in one.buffers():
            if b.is_floating_point():
                b.uniform_(0.5, 1.5)
    other = Net(build, skip).double().eval()
    other(torch.zeros(1, 3, 4, 4, dtype=torch.double))
    other.load_state_dict(one.state_dict())
    with torch.no_grad():
        for step, norm in other.branches():
            sign = norm.weight.sign()
            weighted = step[1] if isinstance(step, nn.Sequential) else step
            shape = [1] * weighted.weight.ndim
            shape[other.axis] = -1
            weighted.weight *= sign.reshape(shape)
            if weighted.bias is not None:
                weighted.bias *= sign
            norm.running_mean *= sign
            norm.weight *= sign
    return one, other


@pytest.mark.parametrize("skip", [False, True], ids=["alone", "sum"])
@pytest.mark.parametrize(
    "rule", [nrm.ZPlus(), nrm.Gamma(0.3), nrm.AlphaBeta(2, 1), nrm.LRP0(), nrm.WSquare(), nrm.ZBox()]
)
@pytest.mark.parametrize("step", STEPS)
def test_a_gain_of_either_sign_is_one_with_the_weights_below(step: str, rule: nrm.Rule, skip: bool) -> None:
    x = torch.randn(2, 3, 4, 4, dtype=torch.double, generator=torch.Generator().manual_seed(1))
    one, other = twins(STEPS[step], skip)
    assert any(bool((norm.weight < 0).any()) and bool((norm.weight > 0).any()) for _, norm in one.branches())
    torch.testing.assert_close(one(x), other(x))
    rules = {"head": nrm.LRP0(), "*": rule}
    R, S = (nrm.measure(model, x, rules=rules, target=0, bias="input") for model in (one, other))
    layer = "step.1" if step == "dense" else "step"
    asked = [
        lambda Q: Q(Q.input),
        lambda Q: Q(Q[layer]),
        lambda Q: Q(Q["low"].channels, Q[layer].channels),
        lambda Q: Q(Q["low"].channel(1), Q["norm"]),
        lambda Q: Q(Q["low"].channels, Q["norm"].channels),
    ]
    for question in asked:
        torch.testing.assert_close(question(R), question(S), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("step", [name for name in STEPS if name != "transposed"])
def test_a_negative_gain_costs_no_further_products(step: str) -> None:
    counts = []
    for model in twins(STEPS[step], skip=True):
        x = torch.ones(1, 3, 4, 4, dtype=torch.double)
        R = nrm.measure(model, x, rules={"head": nrm.LRP0(), "*": nrm.ZPlus()}, target=0, bias="input")
        with Counting() as counting:
            R(R.input)
        counts.append(counting.count)
    assert counts[0] == counts[1] > 0
