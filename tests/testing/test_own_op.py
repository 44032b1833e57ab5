"""An op of one's own says what ours say: it is computed again, keeps samples and channels, has receptive fields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import nrm
from nrm.capture import Call, Combine, Exact, Node, OwnOp, Term
from nrm.capture.vocabulary import VOCABULARY
from nrm.evaluate.regions import carried_labels
from nrm.measure import Fields
from nrm.operators import LinearMap, Permute
from nrm.questions.channels import keeps_channels
from nrm.steps import Family, Network, family
from nrm.testing import check_measure, check_op


@dataclass(frozen=True, eq=False)
class Across(OwnOp):
    """``y = sqrt(u^2 + move(v)^2)``: an image, and itself with rows and columns exchanged."""

    move: LinearMap | None = None
    factor: float = 1.0
    is_local = True
    holds = False

    def maps(self, count: int) -> Sequence[LinearMap | None]:
        return (None, self.move)

    def compute(self, below: Sequence[Tensor]) -> Tensor:
        return self.factor * torch.hypot(below[0], below[1] if self.move is None else self.move.apply(below[1]))


@family(Across)
class Acrosses(Family):
    """``y = (u / y) u + (v / y) v``."""

    def connect(self, network: Network, node: Node) -> None:
        assert isinstance(node.op, Across)
        y = node.value
        for j, move in zip(node.inputs, node.op.maps(2), strict=True):
            u = network.tape.nodes[j].value
            moved = u if move is None else move.apply(u[None])[0]
            share = moved / torch.where(y == 0, 1.0, y)
            network.link(network.plain(node.index), network.plain(j), network.local(node.index, j, move, share))


class Mirror(nn.Module):
    """What the op is made from; with ``later`` it is one of two steps of a call."""

    def __init__(self, later: float | None = None) -> None:
        super().__init__()
        self.later = later

    def forward(self, x: Tensor) -> Tensor:
        y = torch.hypot(x, x.transpose(-1, -2))
        return y if self.later is None else y * self.later


def read_mirror(call: Call, x: Tensor) -> Any:
    op = Across(move=Permute(x.shape, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2)))
    if call.module.later is None:
        return call.one(op, x, x)
    i = call.index(x)
    middle = call.recorder.add(op, [i, i], torch.hypot(x, x.transpose(-1, -2)), "across")
    return [(call.result, Combine((Term(scale=call.module.later),), kind="scale"), [middle])]


nrm.register(Mirror, read_mirror)


def network(later: float | None = None) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, (1, 3), bias=False), nn.ReLU(), nn.ZeroPad2d((0, 2, 0, 0)), Mirror(later),
        nn.Conv2d(4, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 36, 3),
    ).double().eval()  # fmt: skip


def measured(later: float | None = None) -> nrm.Measure:
    return nrm.measure(network(later), torch.rand(2, 2, 7, 7).double(), rules="lrp-0", bias="input")


def test_channels_stay_apart() -> None:
    R = measured()
    node = R.inner.tape.find("3")
    assert node.channel == 1
    assert all(keeps_channels(R.inner.network, node, position) for position in range(2))
    pairs = R(R["0"].channels, R["4"].channels)
    by_hand = torch.stack([R(R["0"].channel(c), R["4"].channels) for c in range(4)], 1)
    torch.testing.assert_close(pairs, by_hand)


def test_removed_channels_stay_apart() -> None:
    node = measured().inner.tape.find("3")
    node.recall = None
    labels = torch.arange(4).view(1, 4, 1, 1).expand(2, 4, 7, 7)
    assert torch.equal(carried_labels(node, {node.inputs[0]: labels}), labels)


@pytest.mark.parametrize("later", [None, 0.5])
def test_it_is_computed_again_where_something_is_removed(later: float | None) -> None:
    model = network(later)
    torch.manual_seed(1)
    x = torch.rand(2, 2, 7, 7).double()
    R = nrm.measure(model, x, rules="lrp-0", bias="input")
    found = nrm.evaluate.remove(R, R["0"].channel(1))
    with torch.no_grad():
        kept = torch.tensor([1.0, 0.0, 1.0, 1.0]).double().view(4, 1, 1)
        torch.testing.assert_close(found, model[1:](model[0](x) * kept))


def test_a_wrong_computation_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_wrong(call: Call, u: Tensor, v: Tensor) -> Any:
        return call.one(Across(factor=2.0), u, v)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            h = self.a(x)
            return self.b(torch.hypot(h, h))

    x = torch.rand(2, 3)
    monkeypatch.setitem(VOCABULARY, "hypot", read_wrong)
    with pytest.raises(nrm.CaptureError, match="hypot"):
        nrm.measure(Net(), x).check()
    monkeypatch.setitem(VOCABULARY, "hypot", None)  # put back by the patch, whatever is registered now
    nrm.register("hypot", read_wrong)
    with pytest.raises(nrm.CaptureError, match="read_wrong"):
        nrm.measure(Net(), x)


class Both(OwnOp):
    """``y = hypot(u, v)``, entry by entry."""

    entrywise = True


@family(Both)
class Boths(Family):
    """``y = (u / y) u + (v / y) v``."""

    def connect(self, network: Network, node: Node) -> None:
        for j in node.inputs:
            share = network.tape.nodes[j].value / node.value
            network.link(network.plain(node.index), network.plain(j), network.local(node.index, j, post=share))


def test_samples_that_meet_in_it_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VOCABULARY, "hypot", lambda call, u, v: call.one(Both(), u, v))

    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.hypot(x, x.flip(0))

    with pytest.raises(nrm.CaptureError, match="samples"):
        nrm.measure(Net(), torch.rand(2, 3))


def test_a_constant_that_it_reads_belongs_to_each_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VOCABULARY, "hypot", lambda call, u, v: call.one(Both(), u, v))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            h = self.a(x)
            return self.b(torch.hypot(h, torch.full_like(h, 0.7)))

    R = nrm.measure(Net().double(), torch.rand(2, 3).double(), rules="lrp-0", bias="input")
    (constant,) = (node.name for node in R.inner.tape.sources if node.op.kind == "constant")
    torch.testing.assert_close(R(R["a"].all) + R(R[constant].all), R(R["/hypot"].all))
    check_measure(R)


class Scaled(nn.Module):
    """Every entry times the mean of its row."""

    def forward(self, x: Tensor) -> Tensor:
        return x * x.mean(-1, keepdim=True)


class Alone(OwnOp):
    """What was said of it is not true: entries are made of whole rows."""

    entrywise = True


@family(Alone)
class Alones(Family):
    """Relevance goes to the same entry, whatever it is made of."""

    def connect(self, network: Network, node: Node) -> None:
        (j,) = node.inputs
        share = node.value / network.tape.nodes[j].value
        network.link(network.plain(node.index), network.plain(j), network.local(node.index, j, post=share))


nrm.register(Scaled, lambda call, x: call.one(Alone(), x))


def test_what_is_said_of_entries_is_tested() -> None:
    check_op(Turn(0, 2, 1), torch.randn(2, 3, 4))
    check_op(Mirror(), torch.randn(2, 3, 3))
    with pytest.raises(AssertionError, match="Alone: an entry that is said not to be made of"):
        check_op(Scaled(), torch.randn(2, 4))


@dataclass(frozen=True, eq=False)
class Turned(OwnOp):
    """``y = |x|`` with its axes in another order, which the library would not look for."""

    move: LinearMap | None = None

    def maps(self, count: int) -> Sequence[LinearMap | None]:
        return (self.move,)


@family(Turned)
class Turns(Family):
    """Every entry of y is one entry of x, or its opposite."""

    def connect(self, network: Network, node: Node) -> None:
        assert isinstance(node.op, Turned)
        ((move,), (j,)) = node.op.maps(1), node.inputs
        assert move is not None
        sign = move.apply(network.tape.nodes[j].value.sign()[None])[0]
        network.link(network.plain(node.index), network.plain(j), network.local(node.index, j, move, sign))


class Turn(nn.Module):
    """What the op is made from."""

    def __init__(self, *dims: int) -> None:
        super().__init__()
        self.dims = dims

    def forward(self, x: Tensor) -> Tensor:
        return x.abs().permute(self.dims)


nrm.register(Turn, lambda call, x: call.one(Turned(move=Permute(x.shape, call.module.dims)), x))


def test_samples_and_channels_go_where_its_maps_lead() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.turn, self.b = nn.Linear(5, 4), Turn(1, 2, 0), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.turn(self.a(x)).permute(2, 0, 1)).sum(1)

    R = nrm.measure(Net().double(), torch.rand(3, 3, 5).double(), rules="lrp-0", bias="input")
    node = R.inner.tape.find("turn")
    assert (node.sample, node.channel) == (2, 1)
    torch.testing.assert_close(R(R["turn"].channels), R(R["a"].channels))


def test_receptive_fields_go_where_its_maps_lead() -> None:
    model = nn.Sequential(
        nn.Conv2d(2, 4, (1, 3)), Turn(0, 1, 3, 2), nn.ZeroPad2d(1), nn.Conv2d(4, 1, 3), nn.Flatten(), nn.Linear(35, 2)
    )
    R = nrm.measure(model, torch.rand(1, 2, 7, 7))
    fields = Fields(R, R["1"])  # of 5 by 7: columns of the convolution as rows
    assert fields.of(3 * 7 + 1) == ((1, 2), (3, 6))
    assert Fields(R, R["3"]).of(0) == ((0, 2), (0, 4))  # what is padded with comes from nowhere


class Bend(OwnOp):
    """``y = log(1 + x^2)``, which says what it computes."""

    entrywise = True

    def compute(self, below: Sequence[Tensor]) -> Tensor:
        return torch.log1p(below[0] ** 2)


class Silent(OwnOp):
    """An elementwise op that says nothing."""

    entrywise = True


class Bent(nn.Module):
    """What both are made from; ``leaves`` torch on its way, or has another step behind it."""

    def __init__(self, op: OwnOp, leaves: bool = False, later: float | None = None) -> None:
        super().__init__()
        self.op, self.leaves, self.later = op, leaves, later

    def forward(self, x: Tensor) -> Tensor:
        if self.leaves:
            return torch.from_numpy(np.log1p(x.numpy() ** 2))
        y = torch.log1p(x**2)
        return y if self.later is None else y * self.later


def read_bent(call: Call, x: Tensor) -> Any:
    module = call.module
    if module.later is None:
        return call.one(module.op, x)
    middle = call.recorder.add(module.op, [call.index(x)], torch.log1p(x**2), "bend")
    return [(call.result, Combine((Term(scale=module.later),), kind="scale"), [middle])]


nrm.register(Bent, read_bent)

BENT = [
    Bent(Bend()), Bent(Silent()), Bent(Bend(), leaves=True), Bent(Silent(), leaves=True), Bent(Bend(), later=2.0),
    Bent(Silent(), later=2.0),
]  # fmt: skip


@pytest.mark.parametrize("bent", BENT, ids=lambda b: f"{type(b.op).__name__} {b.leaves} {b.later}")
def test_an_elementwise_op_of_ones_own_has_its_secant_in_a_contrast(bent: Bent) -> None:
    """From its values in both runs; where these are equal, from its derivative, if it is said or torch can find it."""
    torch.manual_seed(1)
    first, last = nn.Linear(4, 5).double(), nn.Linear(5, 2).double()
    model = nn.Sequential(first, bent, last)
    x, other = torch.randn(2, 3, 4, dtype=torch.float64)
    first.weight.data[2] = 0  # a neuron that does not change
    R = nrm.measure(model, x, against=other, target=0)
    u, v = (first(one).detach() for one in (x, other))
    y, z = (torch.log1p(one**2) * (bent.later or 1.0) for one in (u, v))
    expected = (y - z) * last.weight[0].detach()
    torch.testing.assert_close(R.in_units(R["0"]), expected)
    torch.testing.assert_close(R(R.input).sum(1), torch.ones(3, dtype=torch.float64))
    assert all(R.check().ok)
    (op,) = (n.op for n in R.inner.tape.nodes if isinstance(n.op, Exact) and isinstance(n.op.of, OwnOp))
    (piece,) = op.parts[0]()
    known = not bent.leaves if bent.later is None else isinstance(bent.op, Bend)
    slope = 2 * u[:, 2] / (1 + u[:, 2] ** 2) if known else torch.zeros(3, dtype=torch.float64)
    torch.testing.assert_close(piece.post[:, 2], slope)
