"""Law 14 in small: float32 against float64 in one linear region, also where rounding turns a ReLU or a maximum."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import nrm
from regions import Held, Regions, in_one_region, largest_error

pytestmark = pytest.mark.filterwarnings("ignore::nrm.errors.NrmWarning")

OPTIONS = {"rules": "lrp-0", "bias": "input", "target": 0}


class Turned(nn.Module):
    """Its first neuron is 0 in float32 and ``2 ** -24`` in float64: off in one, on in the other."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([1 + 2**-12, 1.0]))
        self.shift = nn.Parameter(torch.tensor([1 + 2**-11, -1.0]))
        self.last = nn.Linear(2, 1, bias=False)
        nn.init.ones_(self.last.weight)

    def forward(self, x: Tensor) -> Tensor:
        z = x * self.scale
        return self.last(torch.relu(z - self.shift))


class Tied(nn.Module):
    """A window whose entries are equal in float32, and the later one is larger in float64."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([1 + 2**-11, 1 + 2**-12]).view(1, 2))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.max_pool2d(x * self.scale, (1, 2)).flatten(1)


@pytest.mark.parametrize(
    ("model", "x"),
    [(Turned(), torch.tensor([[1 + 2**-12, 1.0]])), (Tied(), torch.tensor([1.0, 1 + 2**-12]).view(1, 1, 1, 2))],
    ids=["relu", "maximum"],
)
def test_what_rounding_turns_is_held(model: nn.Module, x: Tensor) -> None:
    """Two free runs differ by all of an entry; in one region they agree, in the region of the float32 run."""
    free = [nrm.measure(model, x, dtype=dtype, **OPTIONS) for dtype in (torch.float32, torch.float64)]
    assert largest_error(*free) > 0.4
    single, double = in_one_region(model, x, **OPTIONS)
    assert largest_error(single, double) < 1e-6
    torch.testing.assert_close(single(single.input), free[0](free[0].input), rtol=0, atol=0)


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(inplace=True), nn.MaxPool2d(2, ceil_mode=True),
        nn.Conv2d(6, 6, 3, groups=2), nn.ReLU6(), nn.MaxPool2d(3, 1), nn.Hardtanh(-1.0, 2.0), nn.Flatten(),
        nn.Linear(24, 3),
    ).eval()  # fmt: skip


@pytest.mark.parametrize("seed", range(5))
def test_a_run_in_its_own_region_is_itself(seed: int) -> None:
    """In float64 throughout, holding changes nothing: the held network is the network."""
    torch.manual_seed(seed)
    model, x = network().double(), 4 * torch.randn(2, 2, 11, 11).double()
    regions = Regions()
    plain = nrm.measure(Held(model, regions), x, **OPTIONS)
    held = nrm.measure(Held(model, regions.replayed()), x, **OPTIONS)
    assert len(regions.found) == 5
    torch.testing.assert_close(held.value, plain.value, rtol=1e-12, atol=0)
    assert largest_error(held, plain) < 1e-12
    assert all(held.check(strict=False).ok)
