"""What the base sweep keeps: messages, not the densities inside fused steps, which are the same when formed anew."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import nrm
from nrm.questions.sweep import Arrived
from nrm.steps import Arrivals


class Residual(nn.Module):
    """Two branches of convolutions and norms that meet in a sum, and a concatenation that is read twice."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = (nn.Conv2d(3, 3, 3, padding=1) for _ in range(3))
        self.norm, self.second, self.third = nn.BatchNorm2d(3), nn.BatchNorm2d(3), nn.BatchNorm2d(6)
        self.head = nn.Linear(6, 2)
        for norm in (self.norm, self.second, self.third):
            nn.init.normal_(norm.weight)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.norm(self.a(x)) + self.second(self.b(x)))
        both = torch.cat([self.c(h), h], 1)
        return self.head(torch.relu(self.third(both)).mean((2, 3)) + both.mean((2, 3)))


def _measured() -> nrm.Measure:
    x = torch.randn(2, 3, 4, 4, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    return nrm.measure(
        Residual().double().eval(), x, rules={"head": nrm.LRP0(), "*": nrm.Gamma(0.5)}, target=0, bias="input"
    )


def _is_inside(R: nrm.Measure, here: Arrivals) -> bool:
    """Whether all that has arrived belongs to columns of sums."""
    return all(R.inner.network.nodes[node].kind == "branch" for node in here.nodes)


def test_densities_are_the_same_when_formed_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    formed = _measured()
    with monkeypatch.context() as patched:
        patched.setattr(Arrived, "keep", lambda self, i, arrivals: self._kept.update({i: arrivals}))
        kept = _measured()
        expected = dict(kept.base.arrivals)
    assert list(formed.base.arrivals) == list(expected)
    assert any(_is_inside(kept, here) for here in expected.values())
    assert formed.base.nbytes < kept.base.nbytes
    for i, here in expected.items():
        assert len(formed.base.arrivals[i].tensors) == len(here.tensors)
        for ours, theirs in zip(formed.base.arrivals[i].tensors, here.tensors, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_densities_are_not_held() -> None:
    R = _measured()
    held = {t.data_ptr() for t in R.base.arrivals.tensors}
    densities = [here for here in R.base.arrivals.values() if _is_inside(R, here)]
    assert densities
    assert not any(t.data_ptr() in held for here in densities for t in here.tensors)
