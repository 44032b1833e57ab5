"""Plans: printed without computing, and the same numbers whatever the strategy."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn

import nrm
from nrm.measure.measure import Measure
from nrm.questions.answer import Answerer
from nrm.questions.plan import plan_stops
from nrm.questions.stops import stops_for
from nrm.steps import Network

LAYERS = ("input", "c1", "r1", "c2", "b2", "/add", "c3", "fc")


class Net(nn.Module):
    """Batch norms with gains of both signs, a pool, a residual sum, a grouped and strided convolution, a mean."""

    def __init__(self) -> None:
        super().__init__()
        self.c1, self.b1, self.r1, self.p = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2)
        self.c2, self.b2, self.r2 = nn.Conv2d(6, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU()
        self.c3, self.r3, self.fc = nn.Conv2d(6, 4, 3, stride=2, groups=2), nn.ReLU(), nn.Linear(4, 5)
        for norm in (self.b1, self.b2):
            norm.weight.data, norm.bias.data = torch.randn(6), torch.randn(6) * 0.3
            norm.running_mean = torch.randn(6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.p(self.r1(self.b1(self.c1(x))))
        x = self.r2(self.b2(self.c2(x)) + x)
        return self.fc(self.r3(self.c3(x)).mean((2, 3)))


def network(rules: str, bias: str) -> Measure:
    torch.manual_seed(0)
    model, x = Net().double().eval(), torch.rand(2, 3, 10, 10, dtype=torch.float64)
    return nrm.measure(model, x, rules=rules, bias=bias, target="softmax")


def answers(R: Measure, *arguments: object, memory: int = 10**9) -> dict[str, Tensor]:
    """The answer by every strategy that can give it."""
    stops = stops_for(arguments, R.inner.places.resolve)
    found = {}
    for strategy in ("contract", *(f"{kind} {k}" for k in range(len(stops)) for kind in ("contract", "read"))):
        try:
            plan = plan_stops(R.inner.network, stops, memory=memory, base=R.base, strategy=strategy)
        except AssertionError:
            continue
        answerer = Answerer(R.inner.network, R.base, memory=10**9, progress=lambda chunks, _: chunks)
        with torch.no_grad():
            found[strategy] = answerer.table(stops, plan)
    return found


@pytest.mark.filterwarnings("ignore::nrm.NrmWarning")
@pytest.mark.parametrize(
    ("rules", "bias"),
    [
        ("lrp-0", "input"),
        ("epsilon-plus-flat", "ignore"),
        ("epsilon-gamma-box", "ignore"),
        ("epsilon-alpha2-beta1", "input"),
    ],
)
def test_every_strategy_gives_the_same_numbers(rules: str, bias: str) -> None:
    R = network(rules, bias)
    contracted = 0
    for low, high in itertools.combinations(LAYERS, 2):
        a, b = nrm.layer(low), nrm.layer(high)
        events = [()] + [(e,) for e in (nrm.input[:, :4, :5], nrm.output.channel(2)) if e.layer.name not in (low, high)]
        for event in events:
            found = answers(R, a.channels, b.channels, *event)
            reference = found["read 0"]
            for strategy, table in found.items():
                difference = float((table - reference).abs().max())
                assert difference < 1e-11, f"{low} x {high} {event}: {strategy} differs by {difference}"
            contracted += "contract" in found
    assert contracted > 20


def test_three_layers_and_chosen_blocks_agree() -> None:
    R = network("epsilon-plus", "input")
    a, b, c = (nrm.layer(name) for name in ("r1", "c2", "c3"))
    full = R(a.channels, b.channels, c.channels)
    assert full.shape == (2, 6, 6, 4)
    torch.testing.assert_close(full.sum(1), R(b.channels, c.channels), rtol=0, atol=1e-12)
    for strategy, table in answers(R, a.channels[[5, 1]], b.channels, c.channels[1:3]).items():
        torch.testing.assert_close(table, full[:, [5, 1], :, 1:3], rtol=0, atol=1e-12, msg=strategy)


@pytest.mark.filterwarnings("ignore::nrm.NrmWarning")
@pytest.mark.parametrize("rules", ["epsilon-plus-flat", "epsilon-gamma-box", "lrp-0"])
@pytest.mark.parametrize("memory", [10**9, 30_000])
def test_tables_of_three_layers_agree_at_every_meeting_place(rules: str, memory: int) -> None:
    R = network(rules, "input")
    channel_labels = torch.tensor([2, 0, 0, 1, -1, 2])
    for names in ("r1 c2 c3", "input r1 /add", "c1 b2 fc", "c2 /add c3", "c1 r1 p"):
        layers = [nrm.layer(name) for name in names.split()]
        kinds = [
            [layer.channels for layer in layers],
            [layers[0].channels, layers[1].positions, layers[2].channels],
            [layers[0].positions, layers[1].channels, layers[2]],
            [layers[0].channels, layers[1].groups(mosaic(R, layers[1])), layers[2].channels],
            [layers[0].channels, layers[1].all, layers[2].channels],
        ]
        for partitions in kinds if memory == 10**9 else kinds[:1]:
            if names.endswith("fc") and partitions[0].kind == "positions":
                continue
            found = answers(R, *partitions, memory=memory)
            reference = found["read 0"]
            assert float(reference.abs().max()) > 0
            for strategy, table in found.items():
                difference = float((table - reference).abs().max())
                assert difference < 1e-10, f"{partitions}: {strategy} differs by {difference}"
    pairs = answers(R, nrm.layer("r1").groups(channel_labels[:, None, None]), nrm.layer("c2").channels, memory=memory)
    assert "contract" in pairs
    full = R(nrm.layer("r1").channels, nrm.layer("c2").channels)
    expected = torch.stack([full[:, channel_labels == g].sum(1) for g in range(3)], 1)
    for table in pairs.values():
        torch.testing.assert_close(table, expected, rtol=0, atol=1e-11)


def mosaic(R: Measure, layer: nrm.Layer) -> Tensor:
    """Labels that cut through channels and positions, different for every sample, some neurons left out."""
    shape = R.values(layer).shape
    return torch.randint(-1, 3, shape, generator=torch.Generator().manual_seed(4))


def test_channel_groups_of_each_sample_are_contracted() -> None:
    R = network("epsilon-plus", "input")
    a, b = nrm.layer("r1"), nrm.layer("c2")
    labels = torch.randint(-1, 3, (2, 6, 1, 1), generator=torch.Generator().manual_seed(5)).expand(2, 6, 10, 10)
    found = answers(R, a.groups(labels), b.channels)
    assert set(found) > {"contract", "read 0"}
    for table in found.values():
        torch.testing.assert_close(table, found["read 0"], rtol=0, atol=1e-12)


class Shuffled(nn.Module):
    """Channels change places between two convolutions: by a flip, by a sort."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.fc = nn.Conv2d(2, 4, 3), nn.Conv2d(4, 4, 3), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.flip(torch.relu(self.first(x)), (1,))
        return self.fc(torch.sort(torch.relu(self.second(x)), 1)[0].mean((2, 3)))


def test_channels_that_change_places_do_not_travel_together() -> None:
    torch.manual_seed(0)
    R = nrm.measure(Shuffled().double(), torch.rand(2, 2, 7, 7, dtype=torch.float64), rules="lrp-0")
    names = ("input", "first", "/relu", "second", "/sort", "fc")
    for low, high in itertools.combinations(names, 2):
        if {low, high} <= set(R.inner.places.names()):
            found = answers(R, nrm.layer(low).channels, nrm.layer(high).channels)
            for strategy, table in found.items():
                masked = [answers(R, nrm.layer(low).channels, nrm.layer(high).channel(c))["read 0"] for c in range(3)]
                expected = torch.stack(masked, 2)
                torch.testing.assert_close(
                    table[:, :, :3], expected, rtol=0, atol=1e-12, msg=f"{low} {high} {strategy}"
                )


def test_blocks_without_any_message_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 7), nn.ReLU(), nn.Linear(7, 3)).double()
    with torch.no_grad():
        model[0].bias[:] = 2.0
        model[0].bias[[1, 4]] = -100.0  # these neurons never fire
    R = nrm.measure(model, torch.rand(2, 5, dtype=torch.float64))
    stacks = []
    pull = Network.pull

    def watched(self: object, i: int, arrivals: object) -> object:
        stacks.extend(len(t) for t in arrivals.tensors)  # type: ignore[attr-defined]
        return pull(self, i, arrivals)  # type: ignore[arg-type]

    R.base
    monkeypatch.setattr(Network, "pull", watched)
    stops = stops_for((R["1"].groups(torch.arange(6)), R.input), R.inner.places.resolve)
    answerer = Answerer(R.inner.network, R.base, memory=10**9, progress=lambda chunks, _: chunks)
    with torch.no_grad():
        table = answerer.table(stops, plan_stops(R.inner.network, stops, memory=10**9, base=R.base, strategy="read 1"))
    assert max(stacks) <= 4
    assert torch.equal(table[:, [1, 4]], torch.zeros(2, 2, 5, dtype=torch.float64))
    lines = plan_stops(R.inner.network, stops, memory=10**9, base=R.base, strategy="read 1").lines
    assert [line.times for line in lines if line.what.startswith(("pull", "push"))] == [4]
    torch.testing.assert_close(table.sum(1), R(R.input, R["1"].all), rtol=0, atol=1e-12)


class Cancelling(nn.Module):
    """A neuron inside a fused step whose relevance is 0, though messages of both signs pass it."""

    def __init__(self) -> None:
        super().__init__()
        self.l0, self.fc, self.mid, self.out = (nn.Linear(2, n, bias=False) for n in (2, 2, 2, 1))
        self.r0, self.r1, self.r2 = nn.ReLU(), nn.ReLU(), nn.ReLU()
        for layer, weight in (
            (self.l0, [[1.0, 0.0], [0.0, 1.0]]), (self.fc, [[1.0, -1.0], [0.5, 0.5]]),
            (self.mid, [[1.0, 2.0], [3.0, 1.0]]), (self.out, [[1.0, 1.0]]),
        ):  # fmt: skip
            layer.weight.data = torch.tensor(weight)

    def forward(self, x: Tensor) -> Tensor:
        h = self.r0(self.l0(x))
        return self.out(self.r2(self.mid(self.r1(self.fc(h) + h))))


def test_a_block_of_relevance_0_is_not_left_out() -> None:
    R = nrm.measure(Cancelling().double(), torch.ones(1, 2, dtype=torch.float64), rules="lrp-0")
    x, f, top = (R[name].channels for name in ("r0", "fc", "r2"))
    expected = torch.tensor([[[0.4, 0.15], [-0.4, 0.15]]], dtype=torch.float64)
    assert abs(float(R(R["fc"].channel(0)))) < 1e-12
    for strategy, table in answers(R, x, f).items():
        torch.testing.assert_close(table, expected, msg=strategy)
    for strategy, table in answers(R, x, f, top).items():
        torch.testing.assert_close(table.sum(3), expected, msg=strategy)
    s = nrm.stack(x, f, top)
    torch.testing.assert_close(R(s, s)[:, :2, 2:4], expected)
    assert [round(flow.relevance, 3) for flow in R.flows(x, f, k=2, sign="abs")[0]] == [0.4, -0.4]


def test_a_block_whose_message_cancels_is_not_left_out() -> None:
    """The message at a neuron is exactly 0, and is not any more if an event above tells its two halves apart."""
    model = nn.Sequential(*(nn.Linear(2, n, bias=False) for n in (2, 2, 1))).double()
    for layer, weight in zip(model, ([[1.0, 1], [1, 3]], [[2.0, -0.5], [-1, 1]], [[1.0, 2]]), strict=True):
        layer.weight.data = torch.tensor(weight, dtype=torch.float64)
    R = nrm.measure(model, torch.ones(1, 2, dtype=torch.float64), rules="lrp-0")
    x, a, b = R.input, R["0"], R["1"]
    assert float(R(a.channel(0))) == 0
    expected = torch.tensor([[[1 / 3, 1 / 3], [-1 / 12, -1 / 4]]], dtype=torch.float64)
    for strategy, table in answers(R, a.channels, x.channels, b.channel(0)).items():
        torch.testing.assert_close(table, expected, msg=strategy)
    for strategy, table in answers(R, a.channels, x.channels, b.channels).items():
        torch.testing.assert_close(table[..., 0], expected, msg=strategy)


def test_a_plan_computes_nothing_and_says_what_it_would(monkeypatch: pytest.MonkeyPatch) -> None:
    R = network("epsilon-plus", "input")
    monkeypatch.setattr(Network, "pull", None)
    monkeypatch.setattr(Network, "amounts", None)
    plan = R.plan(R["r1"].channels, R["c2"].channels)
    assert plan.strategy == "contract"
    assert plan.shape == (2, 6, 6)
    assert plan.nbytes == 2 * 6 * 6 * 8
    text = repr(plan)
    for word in ("base sweep", "contract c2 x r1", "forward passes", "r1.channels 6", "chunk"):
        assert word in text
    far = R.plan(R.input, R["c3"].channels)
    assert far.strategy == "read"
    assert [line.times for line in far.lines if line.what.startswith("pull")] == [4]
    assert R.plan(R["c1"].channel(0), R["c3"].channels).lines[1].what.startswith("push")


def test_messages_of_fixed_events_are_kept_under_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    R = network("epsilon-plus", "input")
    event, concept = nrm.input[:, :4, :5], nrm.layer("c3").channel(1)
    pairs = (nrm.layer("r1").channels, nrm.layer("c2").channels)
    first = [R(event, *pairs), R(concept, *pairs)]
    kept = R.inner.kept.messages
    nbytes = kept.nbytes
    assert len(kept) == 2
    assert 0 < nbytes <= kept.bound
    assert "kept messages of fixed events: 2" in repr(R.plan(*pairs))
    assert R.nbytes > nbytes
    steps = []
    amounts, pull = Network.amounts, Network.pull
    monkeypatch.setattr(Network, "amounts", lambda *a: steps.append(a[1]) or amounts(*a))
    monkeypatch.setattr(Network, "pull", lambda *a: steps.append(a[1]) or pull(*a))
    assert torch.equal(R(event, *pairs), first[0])
    again = len(steps)
    assert torch.equal(R(concept, *pairs), first[1])
    R.release()
    assert (len(kept), kept.nbytes) == (0, 0)
    steps.clear()
    torch.testing.assert_close(R(event, *pairs), first[0])
    assert len(steps) > again + 5, "computed anew after a release, not before"
    small = nrm.measure(Net().double().eval(), torch.rand(2, 3, 10, 10, dtype=torch.float64), memory=100_000)
    for row in range(10):
        small(nrm.input[:, row], nrm.layer("c2").channels)
        assert small.inner.kept.messages.nbytes <= small.inner.kept.messages.bound


def test_an_event_elsewhere_does_not_change_the_strategy() -> None:
    R = network("epsilon-plus", "input")
    pairs = (R["r1"].channels, R["c2"].channels)
    assert R.plan(*pairs, R.input[:, :3]).strategy == "contract"
    assert R.plan(*pairs, R["c3"].channel(1)).strategy == "contract"
    assert R.plan(*pairs, given=R.output.channel(1)).strategy == "contract"
