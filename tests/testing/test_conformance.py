"""The public checks pass on what is right and fail on what is wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import nrm
from nrm.capture import Linear
from nrm.operators import Dense, LinearMap
from nrm.rules import Factor, Key
from nrm.testing import check_map, check_measure, check_op, check_rule, materialize

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


class Table(nn.Module):
    """Elementwise, computed outside torch."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.from_numpy(np.interp(x.numpy(), [-2.0, 0.0, 2.0], [0.1, 0.3, 2.0])).to(x)


class Reverse(nn.Module):
    """A copy, computed outside torch."""

    def forward(self, entries: Tensor) -> Tensor:
        return torch.from_numpy(entries.numpy()[:, ::-1].copy())


class Twice(nn.Module):
    """Linear, of modules of its own; its weights are in the model's precision."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 6, bias=False), nn.Linear(6, 4, bias=False)

    def forward(self, x: Tensor, *, scale: float = 2.0) -> Tensor:
        return self.second(self.first(x)) * scale


class Packed(nn.Module):
    """Linear, with weights of eight bits."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("packed", torch.arange(-6, 6, dtype=torch.int8).view(3, 4))

    def forward(self, x: Tensor) -> Tensor:
        return torch.from_numpy(x.numpy() @ self.packed.numpy().T).to(x)


def read_packed(call: Any, x: Tensor) -> Any:
    return call.one(Linear(Dense(x.shape, call.module.packed.to(x)), "linear"), x)


MODULES: dict[type[nn.Module], Any] = {Table: "activation", Reverse: "move", Twice: "linear", Packed: read_packed}


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    from nrm.capture.vocabulary import VOCABULARY

    for kind, reading in MODULES.items():
        name = f"{kind.__module__}.{kind.__qualname__}"
        monkeypatch.setitem(VOCABULARY, name, None)  # takes out what is registered next
        nrm.register(kind, reading)


@pytest.mark.parametrize("kind", MODULES)
def test_a_module_of_ones_own_is_read_as_a_whole(registered: None, kind: type[nn.Module]) -> None:
    torch.manual_seed(4)
    module = kind()
    before = [p.clone() for p in module.parameters()]
    check_op(module, torch.randn(2, 4))
    assert all(map(torch.equal, before, module.parameters()))
    heir = type("Heir", (kind,), {})()
    check_op(heir, torch.randn(2, 4))


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.turn, self.twice, self.table = nn.Linear(4, 4), Reverse(), Twice(), Table()
        self.packed = Packed()

    def forward(self, x: Tensor) -> Tensor:
        return self.packed(self.table(self.twice(self.turn(entries=self.first(x)), scale=3.0)))


def test_a_network_of_such_modules_has_their_names(registered: None) -> None:
    torch.manual_seed(5)
    model, x = Mixed(), torch.randn(3, 4)
    R = nrm.measure(model, x, target=1)
    assert [row.name for row in R.layers] == ["input", "first", "turn", "twice", "table", "packed"]
    with torch.no_grad():
        torch.testing.assert_close(R.values(R.output), model(x))
    check_measure(R, tolerance=1e-5)
    exact = nrm.measure(model, x, target=1, dtype=torch.float64)
    torch.testing.assert_close(exact(exact.input), R(R.input).double(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(R(R["turn"].channels).flip(1), R(R["first"].channels))
    found = nrm.evaluate.contribution(R, R["turn"].channel(0), R["table"].channel(2))
    assert found.shape == (3,)


def test_modules_that_are_not_registered_or_fail(registered: None) -> None:
    class Lost(Table):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("no table")

    class Other(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.from_numpy(2 * x.numpy())

    x = torch.randn(2, 4)
    with pytest.raises(ValueError, match="no table"):
        nrm.measure(nn.Sequential(nn.Linear(4, 4), Lost()), x)
    with pytest.raises(nrm.CaptureError, match=r"lost inside[\s\S]*nrm\.register\(Other"):
        nrm.measure(nn.Sequential(nn.Linear(4, 4), Other()), x)
    nrm.measure(nn.Sequential(nn.Linear(4, 4), Table()), x)
    for bad, text in ((Table(), "by its class"), (lambda v: v, "are not seen"), (torch.autograd.Function, "not seen")):
        with pytest.raises(nrm.RuleError, match=text):
            nrm.register(bad, "activation")  # type: ignore[arg-type]
