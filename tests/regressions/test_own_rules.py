"""Own rules beside those of the library: what a rule states counts, not its class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import nrm
from nrm.operators import Identity, LinearMap
from nrm.rules import CONSTANT, Factor, Key
from nrm.testing import check_rule

pytestmark = pytest.mark.filterwarnings("ignore::nrm.errors.NrmWarning")


@dataclass(frozen=True, repr=False)
class Plain(nrm.Rule):
    """``h W``, by somebody who does not know LRP-0."""

    vanishes: ClassVar[bool] = True

    def factors(self, key: Key, map: LinearMap, h: Tensor, nonnegative: bool) -> list[Factor]:
        return [Factor(h, map)]

    def bias(self, b: Tensor) -> tuple[Tensor | None, ...]:
        return (b,)


@dataclass(frozen=True, repr=False)
class Exact(Plain):
    """The same, which also says that its columns sum to the value."""

    proportional: ClassVar[bool] = True


@dataclass(frozen=True, repr=False)
class Careful(Plain):
    """The same, which says nothing about itself."""

    vanishes: ClassVar[bool] = False


@dataclass(frozen=True, repr=False)
class Stay(nrm.Rule):
    """Relevance stays where it is, by somebody who does not know Pass."""

    keys: ClassVar[tuple[Key, ...]] = (CONSTANT,)
    cancels: ClassVar[bool] = False
    signed: ClassVar[bool] = False
    stays: ClassVar[bool] = True

    def factors(self, key: Key, map: LinearMap, h: Tensor, nonnegative: bool) -> list[Factor]:
        return [Factor(1.0, Identity(map.inside))]

    def bias(self, b: Tensor) -> tuple[Tensor | None, ...]:
        return (None,)


@dataclass(frozen=True, repr=False)
class Even(Stay):
    """Every connection alike, by somebody who does not know Flat."""

    flat: ClassVar[bool] = True
    stays: ClassVar[bool] = False

    def factors(self, key: Key, map: LinearMap, h: Tensor, nonnegative: bool) -> list[Factor]:
        return [Factor(1.0, map.support())]


class Residual(nn.Module):
    """Two branches of weights in one sum."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.a, self.b, self.head = nn.Linear(5, 6), nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2)
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        h = self.act(self.first(x))
        return self.head(torch.relu(self.a(h) + self.b(h.tanh())))


def measured(**rules: Any) -> nrm.Measure:
    torch.manual_seed(0)
    model = Residual().double().eval()
    return nrm.measure(model, torch.randn(3, 5).double(), rules={**rules, "*": "lrp-0"}, bias="input")


@pytest.mark.parametrize("rule", [Plain(), Exact(), Careful()], ids=lambda rule: type(rule).__name__)
def test_an_own_signed_rule_is_pooled_beside_alpha_beta(rule: nrm.Rule) -> None:
    """Alpha-beta pools the signs of a whole column, those of every block that has the signs of its contributions."""
    own, known = (measured(a=nrm.AlphaBeta(2, 1), b=other) for other in (rule, nrm.LRP0()))
    for layer in ("act", "b", "first"):
        torch.testing.assert_close(own(own[layer]), known(known[layer]), rtol=1e-9, atol=1e-12)
    pairs = [R(R["act"].channels, R["a"].channels, R["head"].all) for R in (own, known)]
    torch.testing.assert_close(*pairs, rtol=1e-9, atol=1e-12)
    apart = measured(a=nrm.LRP0(), b=rule)
    assert not torch.allclose(own(own["act"]), apart(apart["act"]))


@pytest.mark.parametrize("rule", [Plain(), Exact(), Careful()], ids=lambda rule: type(rule).__name__)
def test_what_a_rule_does_not_say_costs_time_and_no_digits(rule: nrm.Rule) -> None:
    check_rule(rule)
    own, known = (measured(a=other, b=other, first=other) for other in (rule, nrm.LRP0()))
    torch.testing.assert_close(own(own.input), known(known.input), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(
        own(own.input, own["a"].channels), known(known.input, known["a"].channels), rtol=1e-9, atol=1e-12
    )


def test_an_own_rule_that_keeps_places_has_tables_of_channels() -> None:
    """Pairs of channels on both sides of such a step come from walks, not from its weights."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 2)).double()
    x, tables = torch.rand(2, 4).double(), []
    for rule in (Stay(), nrm.Pass()):
        R = nrm.measure(model, x, rules={"2": rule}, bias="ignore")
        tables.append(R(R["1"].channels, R["3"].channels))
        assert bool((tables[-1] == tables[-1].diagonal(dim1=1, dim2=2).diag_embed()).all())
    torch.testing.assert_close(*tables)


def test_walks_end_at_an_own_rule_that_tells_inputs_not_apart() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)).double()
    x = torch.rand(1, 4).double()
    own, known = (nrm.measure(model, x, rules={"0": rule}, bias="ignore").walks(3) for rule in (Even(), nrm.Flat()))
    assert str(own) == str(known)
    assert all(str(walk.steps[-1]).startswith("0[") for walk in own[0])
