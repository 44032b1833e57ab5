"""The public checks pass on what is right and fail on what is wrong."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import nrm
from nrm.operators import Dense, LinearMap
from nrm.rules import Factor, Key
from nrm.testing import check_map, check_op, check_rule, materialize

RULES = [
    nrm.LRP0(), nrm.Epsilon(), nrm.Gamma(0.25), nrm.ZPlus(), nrm.AlphaBeta(2, 1), nrm.AlphaBeta(1.5, 0), nrm.Flat(),
    nrm.WSquare(), nrm.ZBox(-5.0, 5.0), nrm.Pass(), nrm.EntryEpsilon(1e-3),
]  # fmt: skip


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_our_rules_conform(rule: nrm.Rule) -> None:
    check_rule(rule)


@dataclass(frozen=True, repr=False)
class Lopsided(nrm.LRP0):
    """Claims to scale like LRP-0, but uses the positive weights only."""

    def factors(self, key: Key, map: LinearMap, h: Tensor, nonnegative: bool) -> list[Factor]:
        return [Factor(h, map.reweight(lambda w: w.clamp(min=0)))]


def test_a_rule_that_breaks_its_promise_is_found() -> None:
    with pytest.raises(AssertionError, match="under scale"):
        check_rule(Lopsided())


class Crooked(Dense):
    """A dense map whose transpose is not its transpose."""

    def transpose(self, y: Tensor) -> Tensor:
        return super().transpose(y) * 1.01


def test_a_map_that_is_not_adjoint_is_found() -> None:
    weight = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    check_map(Dense(torch.Size([2, 3]), weight))
    with pytest.raises(AssertionError, match="adjoint"):
        check_map(Crooked(torch.Size([2, 3]), weight))


def test_materialize_is_the_matrix() -> None:
    weight = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(materialize(Dense(torch.Size([3]), weight)), weight)


@pytest.mark.parametrize("function", [torch.tanh, torch.sigmoid, lambda x: x.flip(1), lambda x: x.abs() * 2 + 1])
def test_known_ops_conform(function: object) -> None:
    check_op(function, torch.randn(2, 4, generator=torch.Generator().manual_seed(1)))  # type: ignore[arg-type]


def test_an_unknown_op_can_be_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    from nrm.capture.vocabulary import VOCABULARY

    example = torch.randn(2, 4, generator=torch.Generator().manual_seed(2))
    monkeypatch.delitem(VOCABULARY, "sinc", raising=False)
    with pytest.raises(nrm.CaptureError, match="no rule for sinc"):
        check_op(torch.sinc, example)
    nrm.register("sinc", "activation")
    check_op(torch.sinc, example)
    with pytest.raises(nrm.RuleError, match="unknown reading"):
        nrm.register("sinc", "magic")
    with pytest.raises(nrm.RuleError, match="no function"):
        nrm.register("not_a_function", "activation")
    monkeypatch.delitem(VOCABULARY, "sinc")


def test_an_op_of_another_library_is_not_taken_for_one_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    from nrm.capture.vocabulary import VOCABULARY

    @torch.library.custom_op("nrm_tests::tanh", mutates_args=())
    def tanh(x: Tensor) -> Tensor:
        return x.clamp(-1, 1)

    example = torch.randn(2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    for call in (tanh, torch.ops.nrm_tests.tanh, torch.ops.nrm_tests.tanh.default):
        with pytest.raises(nrm.CaptureError, match=r"nrm\.register\('nrm_tests::tanh'"):
            check_op(call, example)
        nrm.register(call, "activation")
        check_op(tanh, example)
        monkeypatch.delitem(VOCABULARY, "nrm_tests::tanh")
    nrm.register("nrm_tests::tanh", "activation")
    check_op(torch.ops.nrm_tests.tanh, example)
    monkeypatch.delitem(VOCABULARY, "nrm_tests::tanh")
    check_op(torch.ops.aten.tanh, example)
    check_op(torch.ops.aten.tanh.default, example)
    with pytest.raises(nrm.RuleError, match="no function"):
        nrm.register("nrm_tests::absent", "activation")
