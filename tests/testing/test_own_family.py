"""A family of ops of one's own answers every question, as those of the library do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nrm
from laws.test_units import carries_units_to_units
from nrm.capture import Call, Combine, Node, OwnOp, Term
from nrm.capture.vocabulary import VOCABULARY
from nrm.steps import Family, Network, family
from nrm.testing import check_measure, check_op

RULES: list[Any] = [
    "lrp-0", nrm.Gamma(0.5), nrm.ZPlus(), nrm.AlphaBeta(2, 1), nrm.Flat(), nrm.EntryEpsilon(1e-3),
    {"a": nrm.Flat(), "*": "lrp-0"}, {"head": nrm.WSquare(), "*": "lrp-0"},
]  # fmt: skip


class Hypot(OwnOp):
    """``y = sqrt(u^2 + v^2)``."""

    entrywise = True


@family(Hypot)
class Hypots(Family):
    """``y = (u / y) u + (v / y) v``: each input has the part that is its own."""

    def connect(self, network: Network, node: Node) -> None:
        i, y = node.index, node.value
        safe = torch.where(y == 0, 1.0, y)
        for j in node.inputs:
            u = network.tape.nodes[j].value
            if network.is_one(i):
                entry = torch.where(y == 0, 0.5, (u / safe) ** 2)
            else:
                entry = u * u / safe if network.is_one(j) else u / safe
            network.link(network.plain(i), network.plain(j), network.local(i, j, post=entry))


class Signed(Hypot):
    """``y = 2 hypot(u, v) - hypot(u, v)``, where the first input takes twice and the second pays for it."""


@family(Signed)
class Lending(Family):
    """Shares of 2 and -1, whatever the values."""

    def connect(self, network: Network, node: Node) -> None:
        i, y = node.index, node.value
        for j, share in zip(node.inputs, (2.0, -1.0), strict=True):
            u = network.tape.nodes[j].value
            entry: Any = share if network.is_one(i) else share * y if network.is_one(j) else share * y / u
            network.link(network.plain(i), network.plain(j), network.local(i, j, post=entry))


def read_hypot(call: Call, u: Tensor, v: Tensor) -> Any:
    return call.one(Hypot(), u, v)


def read_lending(call: Call, u: Tensor, v: Tensor) -> Any:
    return call.one(Signed(), u, v)


def read_as_sum(call: Call, u: Tensor, v: Tensor) -> Any:
    """The same as a sum that the library knows, with its scales held constant."""
    terms = tuple(Term(scale=t / call.result) for t in (u, v))
    return call.one(Combine(terms, joins=True, kind="add", held=True), u, v)


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VOCABULARY, "hypot", read_hypot)


class Net(nn.Module):
    """Two branches that meet in a function of two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.act = nn.Linear(4, 5), nn.Linear(4, 5), nn.ReLU()
        self.mid, self.head = nn.Linear(5, 6), nn.Linear(6, 3)
        self.ta, self.tb = nn.Tanh(), nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.mid(self.act(torch.hypot(self.ta(self.a(x)), self.tb(self.b(x))) - 0.2))))


def measured(rules: Any = "lrp-0", **options: Any) -> nrm.Measure:
    torch.manual_seed(0)
    model = Net().double().eval()
    return nrm.measure(model, torch.randn(2, 4).double(), rules=rules, bias="input", **options)


def questions(R: nrm.Measure) -> Iterator[Tensor]:
    a, b, y, act = R["a"], R["b"], R["/hypot"], R["act"]
    yield from (R(layer) for layer in (R.input, a, b, y))
    yield R(a.channels, act.channels)
    yield R(R.input, y.channels)
    yield R(R.input.channels, a.channels, y.channels)
    yield R(R.edge("ta", "/hypot"), act.channel(2), given=R["mid"].channel([0, 3]))
    yield R(nrm.visits(a.channel([0, 1])) ^ nrm.visits(y.channel([1, 2])), R.input)
    yield R.dividends(a.channel([0, 2]), b.channel([1]), act.channel([0, 1]))
    yield R.in_units(b.channels)


def test_questions_are_answered_as_those_of_a_known_op(monkeypatch: pytest.MonkeyPatch) -> None:
    own = measured()
    monkeypatch.setitem(VOCABULARY, "hypot", read_as_sum)
    known = measured()
    for ours, theirs in zip(questions(own), questions(known), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)
    for sign in ("+", "-", "abs"):
        for find in (
            lambda R, sign=sign: R.flows(R["a"].channels, R["act"].channels, R["mid"].channels, k=12, sign=sign),
            lambda R, sign=sign: R.walks(k=12, sign=sign),
        ):
            ours, theirs = find(own), find(known)
            for mine, other in zip(ours, theirs, strict=True):
                torch.testing.assert_close([f.relevance for f in mine], [f.relevance for f in other])
    assert own.check().variation.keys() == known.check().variation.keys()
    assert all(own.check().ok)


@pytest.mark.filterwarnings("ignore::nrm.errors.NrmWarning")
@pytest.mark.parametrize("read", [read_hypot, read_lending])
@pytest.mark.parametrize("rules", RULES, ids=str)
def test_laws_hold_under_every_rule(rules: Any, read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VOCABULARY, "hypot", read)
    R = measured(rules)
    carries_units_to_units(R)
    check_measure(R)
    parts = (R.input, R["a"], R["act"])
    table = R(*parts)[0]
    for sign, best in (("+", table), ("-", -table), ("abs", table.abs())):
        found = R.flows(*parts, k=5, sign=sign)
        assert found.certified[0]
        want = best.flatten().topk(5).values.clamp(min=0)
        want = want[: len(found[0])] if not bool(want[len(found[0]) :].any()) else want  # what is 0 is not listed
        size = torch.tensor([f.relevance for f in found[0]], dtype=torch.double)
        torch.testing.assert_close(size.abs() if sign == "abs" else size * (1 if sign == "+" else -1), want)


@pytest.mark.filterwarnings("ignore::nrm.errors.NrmWarning")
@pytest.mark.parametrize("read", [read_hypot, read_lending])
def test_walks_are_the_largest_of_all(read: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VOCABULARY, "hypot", read)
    R = measured(nrm.Gamma(0.3)).sample(0)
    best = float(R(R.input, R["a"], R["mid"]).max())  # of every three neurons, one walk
    among = [w for w in R.walks(k=200)[0] if "a" in {p.layer.name for p in w} and "input" in {p.layer.name for p in w}]
    assert among[0].relevance == pytest.approx(best, rel=1e-9)


def test_a_function_of_an_own_family_conforms() -> None:
    check_op(lambda h: torch.hypot(h, h.flip(1)), torch.randn(2, 4))


def test_an_entry_of_zero_loses_nothing() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), Halves(), nn.Linear(1, 2)).double()
    model[0].weight.data.zero_()
    R = nrm.measure(model, torch.ones(1, 2).double(), rules=nrm.Flat(), target=0)
    torch.testing.assert_close(R(R["0"]), torch.full((1, 2), 0.5).double())


class Halves(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.hypot(x[:, :1], x[:, 1:])


def test_own_ops_are_computed_again_where_something_is_removed() -> None:
    R = measured()
    without = nrm.evaluate.remove(R, R["a"].all)
    with torch.no_grad():
        torch.manual_seed(0)
        model = Net().double().eval()
        x = torch.randn(2, 4).double()
        nn.init.zeros_(model.a.weight)
        nn.init.zeros_(model.a.bias)
        want = model(x)
    torch.testing.assert_close(without, want)


class Homeless(OwnOp):
    """An op for which nobody has registered a family."""


def test_an_op_without_a_family_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VOCABULARY, "hypot", lambda call, u, v: call.one(Homeless(), u, v))
    with pytest.raises(nrm.RuleError, match=r"Homeless belong to no family(.|\n)*nrm\.steps\.family\(Homeless\)"):
        measured()
