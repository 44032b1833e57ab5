"""Maps of whole blocks obey the laws of linear maps, and have the entries they say."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd.functional import jacobian

import nrm
from nrm.operators import Ends, Jacobian, PerSample
from nrm.testing import check_map

H = torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
W = torch.randn(4, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def mixed(x: Tensor, place: float = 1.0) -> Tensor:
    """Samples lie along axis 0 below and along axis 1 above; every entry of a sample depends on all of it."""
    return (torch.tanh(x @ W) * x.sum((1, 2), keepdim=True)).transpose(0, 1)


ENDS = Ends(H.shape, torch.Size([2, 3, 5]), 0, 1)
BASE = torch.full_like(H, 0.2)
MAPS = {
    "gradient": Jacobian(ENDS, mixed, H, torch.zeros_like(H)),
    "integrated": Jacobian(ENDS, mixed, H, BASE, (0.25, 0.75)),
    "one matrix": Jacobian(Ends(H.shape, torch.Size([2, 3, 5])), mixed, H, BASE, (0.5,)),
    "fewer below": Jacobian(Ends(H.shape, torch.Size([3, 24]), 0, 0), lambda x, _: x.flatten(1).repeat(1, 3).exp(), H,
                            BASE),
    "matrices": PerSample(ENDS, torch.randn(3, 8, 10, generator=torch.Generator().manual_seed(2), dtype=torch.float64)),
    "constant": Jacobian(ENDS, lambda x, _: torch.ones(2, 3, 5, dtype=torch.float64), H, BASE),
    "linear": Jacobian(ENDS, lambda x, _: (x @ W).transpose(0, 1), H, BASE),
}  # fmt: skip


@pytest.mark.parametrize("map", MAPS.values(), ids=MAPS)
def test_conformance(map: Jacobian | PerSample) -> None:
    check_map(map)


@pytest.mark.parametrize("name", ["gradient", "integrated", "one matrix", "fewer below", "linear"])
def test_entries(name: str) -> None:
    map = MAPS[name]
    assert isinstance(map, Jacobian)
    slopes = [jacobian(lambda x, p=p: map.function(x, p), map.baseline + p * (H - map.baseline)) for p in map.places]
    full = (torch.stack(slopes).mean(0) * (H - map.baseline)).reshape(map.outside.numel(), -1)
    x = torch.randn(2, *H.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    torch.testing.assert_close(map.apply(x).reshape(2, -1), x.reshape(2, -1) @ full.T)
    torch.testing.assert_close(map.entries().apply(x).reshape(2, -1), x.reshape(2, -1) @ full.T)


def test_absolute_sums_of_some_columns() -> None:
    for name in ("gradient", "integrated", "one matrix", "fewer below"):
        map = MAPS[name]
        assert isinstance(map, Jacobian)
        marked = torch.rand(map.outside, generator=torch.Generator().manual_seed(4)) < 0.3
        whole = map.reweight(torch.abs).apply(torch.ones(1, *map.inside, dtype=torch.float64))[0]
        torch.testing.assert_close(map.absolute_sums(marked)[marked], whole[marked])


@pytest.mark.parametrize(("limit", "value"), [("LARGEST", 100), ("AFFORDABLE", 1.0)])
def test_too_many_entries(limit: str, value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"nrm.operators.jacobian.{limit}", value)
    map = Jacobian(ENDS, mixed, H, BASE, effort=1e3)
    with pytest.raises(nrm.RuleError, match="single entries"):
        map.reweight(torch.abs)
    with pytest.raises(nrm.RuleError, match="single entries"):
        map.absolute_sums(torch.ones(map.outside, dtype=torch.bool))


def test_functions_that_cannot_be_differentiated_twice() -> None:
    """Messages go down by gradients, but up only by gradients of gradients."""
    centers = torch.rand(2, 4, dtype=torch.float64)
    map = Jacobian(Ends(H.shape, torch.Size([3, 2, 2]), 0, 0), lambda x, _: torch.cdist(x, centers), H, BASE)
    assert map.transpose(torch.ones(1, 3, 2, 2, dtype=torch.float64)).shape == (1, *H.shape)
    with pytest.raises(nrm.RuleError, match="cannot be differentiated"):
        map.apply(torch.ones(1, *H.shape, dtype=torch.float64))
