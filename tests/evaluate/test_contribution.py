"""Joint contributions and removals against plain forward passes of the user's model, on networks of every family."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import nrm
from evaluate.interventions import joint_contribution, outputs, without
from laws.agreement import law_of_each
from networks import KINDS, cases
from nrm.evaluate import contribution, each, occlusion, remove, scores
from nrm.measure.measure import Measure
from recurrent import KINDS as CELLS, Fused, Loop, layer as recurrent_layer


def plain_layers(R: Measure, model: nn.Module) -> list[str]:
    """The layers that hooks can reach: inputs, and modules with one tensor as output."""
    modules = {path for path, _ in model.named_modules() if path}
    names = [row.name for row in R.layers]
    return [n for n in names if n.startswith("input") or n.partition("#")[0] in modules]


def target_value(R: Measure) -> Callable[[Tensor], Tensor]:
    index = R.target
    assert isinstance(index, Tensor)
    return lambda out: out[torch.arange(len(out)), index]


def expected_table(R: Measure, model: nn.Module, inputs: Any, names: list[str], masks: list[list[Tensor]]) -> Tensor:
    """The table of all combinations of masks, one list of masks per layer."""
    read = target_value(R)
    cells = []
    for combination in itertools.product(*masks):
        removals = {name: without(mask) for name, mask in zip(names, combination, strict=True)}
        cells.append(joint_contribution(model, inputs, read, removals))
    return torch.stack(cells, 1).view(len(R), *(len(m) for m in masks))


def channel_masks(values: Tensor) -> list[Tensor]:
    lines = torch.eye(values.shape[1], dtype=torch.bool)
    return [line.view(1, -1, *(1,) * (values.ndim - 2)).expand(values.shape) for line in lines]


@pytest.mark.parametrize("kind", sorted(KINDS))
@law_of_each
@given(data=st.data())
def test_plain_forward_passes_of_every_family(kind: str, data: st.DataObject) -> None:
    case = data.draw(cases(kind, batch=2))
    R = nrm.measure(case.model, case.argument, target=0, rules="lrp-0", bias="input", zero="uniform")
    names = plain_layers(R, case.model)
    order = data.draw(st.integers(1, min(3, len(names))))
    chosen = data.draw(st.permutations(names))[:order]
    table = contribution(R, *(R[name].axis(0) for name in chosen))
    masks = [channel_masks(R.values(name)) for name in chosen]
    expected = expected_table(R, case.model, case.inputs, chosen, masks)
    torch.testing.assert_close(table, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", sorted(CELLS))
def test_recurrent_networks(kind: str) -> None:
    """Inputs and hidden states of an unfolded layer, against the same network as a loop over its cell."""
    model = Fused(recurrent_layer(kind, batch_first=True))
    loop, x = Loop(kind, model), torch.randn(2, 4, 3, dtype=torch.float64)
    R = nrm.measure(model, x, target=1, rules="lrp-0", bias="input")
    steps = [torch.zeros_like(x, dtype=torch.bool).index_fill(1, torch.tensor(t), True) for t in range(4)]
    expected = expected_table(R, model, (x,), ["input"], [steps])
    torch.testing.assert_close(contribution(R, R.input.axis(0)), expected, rtol=1e-9, atol=1e-9)
    if kind == "lstm":  # its cell returns two tensors
        return
    lines = channel_masks(torch.zeros(2, 4))
    expected = expected_table(R, loop, (x,), ["input", "cell#2"], [steps, lines])
    found = contribution(R, R.input.axis(0), R["rnn"].step(2).layer.channels)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    whole = [torch.ones(2, 4, dtype=torch.bool)]
    each_step = [expected_table(R, loop, (x,), [f"cell#{t}", "cell#1"], [whole, lines])[:, 0] for t in (0, 2, 3)]
    found = contribution(R, R["rnn"].steps[[0, 2, 3]], R["rnn"].step(1).layer.channels)
    torch.testing.assert_close(found, torch.stack(each_step, 1), rtol=1e-9, atol=1e-9)


class Block(nn.Module):
    """Attention, norms and gates: what relevance holds constant and an intervention does not."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(6, 6) for _ in range(3))
        self.norm, self.act, self.head = nn.LayerNorm(6), nn.SiLU(), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (2, 3)).transpose(1, 2) for f in (self.q, self.k, self.v))
        h = torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        h = self.norm(x + h)
        h = self.act(h) * (h > 0.1)
        return self.head(nn.functional.rms_norm(h, (6,)).max(1).values)


@pytest.mark.parametrize("names", [("q", "norm"), ("input", "act"), ("k", "v"), ("input", "q", "norm")])
def test_attention_statistics_masks_and_maxima_are_computed_anew(names: tuple[str, ...]) -> None:
    torch.manual_seed(1)
    model, x = Block().double(), torch.randn(2, 4, 6, dtype=torch.float64)
    R = nrm.measure(model, x, target=2)
    table = contribution(R, *(R[name].axis(0) for name in names))
    masks = [channel_masks(torch.zeros(2, 4, 6)) for _ in names]
    torch.testing.assert_close(table, expected_table(R, model, (x,), list(names), masks), rtol=1e-9, atol=1e-9)


def small_vgg() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 6, 3, padding=1, groups=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, 7), nn.ReLU(), nn.Dropout(), nn.Linear(7, 3),
    ).double().eval()  # fmt: skip


@pytest.fixture(scope="module")
def vgg() -> tuple[nn.Sequential, Tensor, Measure]:
    model, x = small_vgg(), torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(1)).double()
    return model, x, nrm.measure(model, x, target=[1, 2], rules="lrp-0", bias="input")


def test_channels_positions_groups_and_sets(vgg: tuple[nn.Sequential, Tensor, Measure]) -> None:
    model, x, R = vgg
    a, b = R["0"], R["3"]
    labels = torch.randint(-1, 3, (2, 4, 4), generator=torch.Generator().manual_seed(2))
    groups = labels[:, None].expand(2, 6, 4, 4)
    channels = channel_masks(R.values(a))
    of_groups = [groups == k for k in range(3)]
    expected = expected_table(R, model, (x,), ["0", "3"], [channels, of_groups])
    parts = b.groups(groups)
    torch.testing.assert_close(contribution(R, a.channels, parts), expected)
    torch.testing.assert_close(contribution(R, parts, a.channels), expected.transpose(1, 2))
    torch.testing.assert_close(contribution(R, a.channels[[2, 0]], parts[1]), expected[:, [2, 0]][..., 1])
    both = a.channel(1) & a[:, :2]
    mask = channels[1] & (torch.arange(4) < 2).view(1, 1, 4, 1)
    alone = expected_table(R, model, (x,), ["0", "3"], [[mask], of_groups])
    torch.testing.assert_close(contribution(R, both, parts), alone[:, 0])
    torch.testing.assert_close(contribution(R, a.channel(1), parts, a[:, :2]), alone[:, 0])
    places = contribution(R, a.channels, a.positions)
    cell = channels[3] & (torch.arange(16).view(1, 1, 4, 4) == 6)
    torch.testing.assert_close(places[:, 3, 1, 2], expected_table(R, model, (x,), ["0"], [[cell]])[:, 0])


@pytest.mark.parametrize("pool", [nn.AvgPool2d(2), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(3), nn.AdaptiveMaxPool2d(1)])
def test_blocks_that_meet_in_a_window(pool: nn.Module) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.ReLU(), pool, nn.Flatten(), nn.LazyLinear(3), nn.Tanh()).double()
    x = torch.rand(2, 1, 4, 4, dtype=torch.float64)
    model(x)
    R = nrm.measure(model, x, target=0)
    labels = torch.arange(16).view(4, 4) % 3
    masks = [(labels == k).expand(2, 2, 4, 4) for k in range(3)]
    expected = expected_table(R, model, (x,), ["1"], [masks])
    torch.testing.assert_close(contribution(R, R["1"].groups(labels)), expected)


def test_outputs_after_removal(vgg: tuple[nn.Sequential, Tensor, Measure]) -> None:
    model, x, R = vgg
    a, b = R["0"], R["8"]
    found = remove(R, a.channels, b.channel(2))
    assert found.shape == (2, 4, 3)
    for k, mask in enumerate(channel_masks(R.values(a))):
        changes = {"0": without(mask), "8": without(channel_masks(R.values(b))[2])}
        torch.testing.assert_close(found[:, k], outputs(model, (x,), changes))
    torch.testing.assert_close(remove(R, a.channel([])), model(x).detach())
    both = without(channel_masks(R.values(b))[2] | channel_masks(R.values(b))[4])
    torch.testing.assert_close(remove(R, b.channel(2), b.channel(4)), outputs(model, (x,), {"8": both}))
    lost = occlusion(R, a.channels, b.channel(2))
    torch.testing.assert_close(lost, R.value[:, None] - found[torch.arange(2), :, R.target])


def test_other_values_for_the_removed(vgg: tuple[nn.Sequential, Tensor, Measure]) -> None:
    model, x, R = vgg
    own = R.values("3")
    mask = channel_masks(own)[4]
    numbers = torch.rand(6, 4, 4, dtype=torch.float64)
    for value, expected in (
        ("mean", own.mean(0)), ("resample", own.flip(0)), (0.5, 0.5), (numbers, numbers), ({"3": numbers}, numbers),
        (numbers.expand(2, 6, 4, 4) + 1, numbers + 1),
    ):  # fmt: skip
        changes = {"3": without(mask, torch.as_tensor(expected, dtype=torch.float64))}
        got = remove(R, R["3"].channel(4), value=value)
        torch.testing.assert_close(got, outputs(model, (x,), changes), msg=str(value)[:20])


def test_chunks_change_nothing(vgg: tuple[nn.Sequential, Tensor, Measure], monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, R = vgg
    layers = [R.input.positions, R["0"].channels, R["3"].channels]
    whole = contribution(R, *layers)
    for largest in (2000, 300, 1):
        monkeypatch.setattr("nrm.evaluate.removal.LARGEST", largest)
        torch.testing.assert_close(contribution(R, *layers), whole)


def test_block_by_block(vgg: tuple[nn.Sequential, Tensor, Measure], monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, R = vgg
    whole = contribution(R, R["0"].channels, R["3"].channels)
    monkeypatch.setattr(R.inner, "memory", 2000)
    found = list(each(R, R["0"].channels, R["3"].channels))
    assert [str(block) for block, _ in found] == [f"0.channel({k})" for k in range(4)]
    torch.testing.assert_close(torch.stack([table for _, table in found], 1), whole)


def test_one_sample_and_flows(vgg: tuple[nn.Sequential, Tensor, Measure]) -> None:
    _, _, R = vgg
    whole = contribution(R, R["0"].channels, R["3"].channels)
    torch.testing.assert_close(contribution(R.sample(1), R["0"].channels, R["3"].channels), whole[1:])
    flow = R.flows(R["0"].channels, R["3"].channels, k=1)[1][0]
    assert contribution(R, *flow).shape == (1,)


def test_edges_are_removed_for_one_consumer() -> None:
    torch.manual_seed(0)

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            h = torch.tanh(self.first(x))
            return self.head(torch.relu(self.second(h) + h))

    model, x = Residual().double(), torch.randn(2, 4, dtype=torch.float64)
    R = nrm.measure(model, x, target=0)
    with torch.no_grad():
        h = torch.tanh(model.first(x))
        rows = [h.index_fill(1, torch.tensor(k), 0.0) for k in range(4)]
        skipped = torch.stack([model.head(torch.relu(model.second(h) + row)) for row in rows], 1)
        whole = torch.stack([model.head(torch.relu(model.second(row) + row)) for row in rows], 1)
    torch.testing.assert_close(remove(R, R.edge("/tanh", "/add").channels), skipped)
    torch.testing.assert_close(remove(R, R["/tanh"].channels), whole)
    both = remove(R, R.edge("/tanh", "/add").channels, R.edge("/tanh", "second").channels)
    torch.testing.assert_close(both.diagonal(0, 1, 2).movedim(-1, 1), whole)


def test_parallel_layers() -> None:
    torch.manual_seed(0)

    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right, self.head = nn.Linear(3, 4), nn.Linear(3, 5), nn.Linear(9, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.relu(torch.cat([self.left(x), self.right(x)], 1))).exp()

    model, x = Branches().double(), torch.randn(2, 3, dtype=torch.float64)
    R = nrm.measure(model, x, target=1)
    masks = [channel_masks(R.values(name)) for name in ("right", "left")]
    expected = expected_table(R, model, (x,), ["right", "left"], masks)
    torch.testing.assert_close(contribution(R, R["right"].channels, R["left"].channels), expected)


@pytest.mark.parametrize("target", ["logits", "softmax", nrm.output.channel([0, 2])])
def test_spread_targets(target: Any) -> None:
    model = small_vgg()
    model[-1].bias.data += 3.0
    x = torch.rand(2, 3, 4, 4, dtype=torch.float64)
    R = nrm.measure(model, x, target=target)
    out = model(x).detach()
    weights = {"logits": torch.ones_like(out), "softmax": out.softmax(1)}.get(target) if isinstance(target, str) else (
        torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64).expand_as(out))  # fmt: skip
    torch.testing.assert_close((weights * out).sum(1), R.value)
    table = contribution(R, R["0"].channels)
    for k, mask in enumerate(channel_masks(R.values("0"))):
        changed = outputs(model, (x,), {"0": without(mask)})
        torch.testing.assert_close(table[:, k], R.value - (weights * changed).sum(1))


# --- laws ---


@given(data=st.data())
def test_a_linear_network_contributes_its_relevance(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=4, max_size=5))
    biases = data.draw(st.booleans())
    torch.manual_seed(data.draw(st.integers(0, 1000)))
    model = nn.Sequential(*(nn.Linear(n, m, bias=biases) for n, m in itertools.pairwise(sizes))).double()
    R = nrm.measure(
        model, torch.randn(2, sizes[0]).double(), target=0, rules="lrp-0", bias="input" if biases else "ignore"
    )
    layers = [R.input, *(R[str(k)].channels for k in range(len(sizes) - 2))]
    for chosen in (layers[:1], layers[:2], layers[1:], layers):
        torch.testing.assert_close(contribution(R, *chosen), scores(R, *chosen), rtol=1e-8, atol=1e-8)


def test_moebius_the_contributions_of_all_subsets_add_up_to_the_loss(
    vgg: tuple[nn.Sequential, Tensor, Measure],
) -> None:
    """Occlusion of several sets is the sum of the contributions of their subsets, with alternating signs."""
    _, _, R = vgg
    sets = [R.input[0], R["0"].channel(1), R["3"].channel([2, 4])]
    total: Any = 0.0
    for size in range(1, 4):
        for subset in itertools.combinations(sets, size):
            total = total + (-1) ** (size + 1) * contribution(R, *subset)
    torch.testing.assert_close(total, occlusion(R, *sets))


def test_the_model_is_not_touched(vgg: tuple[nn.Sequential, Tensor, Measure]) -> None:
    model, _, R = vgg
    calls = []
    handles = [m.register_forward_hook(lambda *_: calls.append(1)) for m in model]
    before = {k: v.clone() for k, v in model.state_dict().items()}
    contribution(R, R["0"].channels, R["3"].channels)
    for handle in handles:
        handle.remove()
    assert not calls
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_all_pairs_cost_a_hundredth_of_a_loop_of_tails() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 40, 3, padding=1), nn.ReLU(), nn.Conv2d(40, 40, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(640, 32), nn.ReLU(), nn.Linear(32, 10),
    ).eval()  # fmt: skip
    x = torch.rand(1, 3, 8, 8)
    R = nrm.measure(model, x, target=0)
    with FlopCounterMode(display=False) as tail, torch.no_grad():
        model[1:](model[:1](x))
    with FlopCounterMode(display=False) as head, torch.no_grad():
        model[:1](x)
    with FlopCounterMode(display=False) as all_pairs:
        contribution(R, R["0"].channels, R["2"].channels)
    assert all_pairs.get_total_flops() < 40 * 40 * (tail.get_total_flops() - head.get_total_flops()) / 100


def test_arguments_of_one_layer_without_common_neurons_are_refused(vgg: tuple[nn.Sequential, Tensor, Measure]) -> None:
    """Nothing would be removed, so the answer would be 0 although the formula of a contribution is not."""
    _, _, R = vgg
    a, b = R["0"], R["3"]
    for ask in (contribution, occlusion):
        for pair in ((a.channel(0), a.channel(1)), (a.channels, a.channels), (a.channels, a.channel(2))):
            with pytest.raises(nrm.errors.QuestionError, match="nothing in common") as caught:
                ask(R, *pair, b.channels)
            assert "A | B" in str(caught.value)
    with pytest.raises(nrm.errors.QuestionError, match="nothing in common"):
        remove(R, a.channels, a.channel(2))
    both = a.channel(0) | a.channel(1)
    torch.testing.assert_close(remove(R, a.channel(0), a.channel(1)), remove(R, both))
    together = occlusion(R, a.channel(0)) + occlusion(R, a.channel(1)) - occlusion(R, both)  # what the error says
    outs = [remove(R, *sets)[torch.arange(2), R.target] for sets in ((a.channel(0),), (a.channel(1),), (both,))]
    torch.testing.assert_close(together, R.value - outs[0] - outs[1] + outs[2])
