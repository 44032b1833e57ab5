"""Samples are followed: along their axis where there is one, entry by entry where samples are merged with others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import nrm
from capture.replay import Wrapped, check_capture, numbers
from nrm.capture import capture

W = numbers(4, 4, seed=1)
CONV = numbers(3, 2, 2, 2, seed=2)

Function = Callable[[Tensor], Tensor]


def windows(x: Tensor) -> Tensor:
    """(B, T, C) windows as one larger batch, and back."""
    b, t, c = x.shape
    merged = torch.relu(F.linear(x.flatten(0, 1), W))
    assert merged.shape == (b * t, c)
    return merged.view(b, t, c).mean(1)


def windowed_images(x: Tensor) -> Tensor:
    """(B, T, C, H, W): a convolution, pooling and a norm on B*T images, then back."""
    b, t = x.shape[:2]
    y = F.conv2d(x.flatten(0, 1), CONV, padding=1)
    y = F.max_pool2d(F.relu(y), 2)
    y = F.layer_norm(F.adaptive_avg_pool2d(y, 2), (3, 2, 2))
    y = F.pad(y, (1, 0))
    return y.view(b, t, -1).amax(1)


def time_first(x: Tensor) -> Tensor:
    return torch.tanh(x.transpose(0, 1) @ W).permute(1, 2, 0)


def siamese(x: Tensor) -> Tensor:
    a, b = F.linear(torch.cat([x, x * 2], 0), W).chunk(2)
    return a - b


def interleaved(x: Tensor) -> Tensor:
    pairs = F.linear(torch.stack([x, -x], 1).reshape(-1, 4), W)
    return pairs.view(-1, 2, 4)[:, 0]


def augmented_views(x: Tensor) -> Tensor:
    return F.linear(x.repeat(3, 1), W).view(3, -1, 4).mean(0)


def flipped_twice(x: Tensor) -> Tensor:
    return F.linear(x.flip(0), W).flip(0)


def shuffled(x: Tensor) -> Tensor:
    order = torch.arange(len(x)).roll(1)
    return F.linear(x[order], W)[order.argsort()]


def per_sample_loop(x: Tensor) -> Tensor:
    return torch.stack([torch.tanh(one @ W) for one in x])


def class_token(x: Tensor) -> Tensor:
    token = torch.ones(1, 1, 4, dtype=x.dtype).expand(len(x), -1, -1)
    return torch.cat([token, x], 1) @ W


def outer_axis(x: Tensor) -> Tensor:
    return (x[:, :, None] * x[:, None, :] @ W).flatten(1)


def einsum(x: Tensor) -> Tensor:
    return torch.einsum("btc,cd->dbt", x, W).permute(1, 0, 2)


def normalized_columns(x: Tensor) -> Tensor:
    return F.group_norm(x.reshape(-1, 4, 1), 2)[:, :, 0].view(x.shape)


def gated_by_the_batch(x: Tensor) -> Tensor:
    """A gate may look at the whole batch: relevance does not pass it."""
    return F.linear(x, W) * torch.sigmoid(x.mean(0, keepdim=True))


def experts(x: Tensor) -> Tensor:
    """Every token goes to one of four maps; a map may have no token, or those of one sample only."""
    tokens = x.flatten(0, 1)
    kind = (tokens[:, 0].detach() > 0).long() + 2 * (tokens[:, 1].detach() > 0.8)
    added, copied = torch.zeros_like(tokens), torch.zeros_like(tokens)
    for k in range(4):
        rows = (kind == k).nonzero()[:, 0]
        added.index_add_(0, rows, F.linear(tokens[rows], W * (k + 1)).tanh())
        copied.index_copy_(0, rows, tokens[rows] * k)
    return (added + copied).view(x.shape).sum(1)


def padded_loop(x: Tensor) -> Tensor:
    """Every sample is padded by itself, and mixed with its padding."""
    return torch.stack([torch.tanh(F.pad(one, (2, 0, 0, 1)) @ W.repeat(2, 1)[:6]).sum(0) for one in x])


FUNCTIONS: dict[str, tuple[Function, tuple[int, ...]]] = {
    "windows": (windows, (3, 4)),
    "windowed images": (windowed_images, (2, 2, 4, 4)),
    "time first": (time_first, (3, 4)),
    "siamese": (siamese, (4,)),
    "interleaved": (interleaved, (4,)),
    "augmented views": (augmented_views, (4,)),
    "flipped twice": (flipped_twice, (4,)),
    "shuffled": (shuffled, (4,)),
    "per sample loop": (per_sample_loop, (4,)),
    "class token": (class_token, (2, 4)),
    "outer axis": (outer_axis, (4,)),
    "einsum": (einsum, (3, 4)),
    "group norm of rows": (normalized_columns, (4,)),
    "experts": (experts, (3, 4)),
    "padded loop": (padded_loop, (2, 4)),
}


@pytest.mark.parametrize("batch", [1, 2, 3])
@pytest.mark.parametrize(("function", "shape"), FUNCTIONS.values(), ids=FUNCTIONS)
class TestFollowed:
    def test_the_output_has_its_samples_along_an_axis(
        self, function: Function, shape: tuple[int, ...], batch: int
    ) -> None:
        tape = check_capture(function, numbers(batch, *shape))
        assert tape.nodes[tape.output].sample == 0
        for node in tape.nodes:
            assert node.owner is None or not bool(((node.owner < 0) | (node.owner >= batch)).any())
            assert node.sample is None or node.shape[node.sample] == batch

    def test_batch_equals_single(self, function: Function, shape: tuple[int, ...], batch: int) -> None:
        x = numbers(batch, *shape)
        together = nrm.measure(Wrapped(function), x, rules="lrp-0")
        check = together.check(strict=False)
        assert check.mass == pytest.approx((1,) * batch)
        assert check.cut_error == pytest.approx(0, abs=1e-9)
        for i in range(batch):
            alone = nrm.measure(Wrapped(function), x[i : i + 1], rules="lrp-0")
            assert torch.allclose(together(together.input)[i], alone(alone.input)[0], rtol=1e-9, atol=1e-9)

    @pytest.mark.filterwarnings("ignore:.*has additive relevance 0:nrm.NrmWarning")
    def test_formulas_are_answered_sample_by_sample(
        self, function: Function, shape: tuple[int, ...], batch: int
    ) -> None:
        x = numbers(batch, *shape)
        R = nrm.measure(Wrapped(function), x, rules="lrp-0")
        one, x = R.input[0], R.input
        for layer in [R[row.name] for row in R.layers][1:-1]:
            if not R.values(layer).numel():
                continue  # what an expert without tokens computes
            joint, heat = R(one, layer.all), R(x, layer.all)
            some, other = nrm.visits(one), nrm.visits(layer.all)
            for answer, truth in (
                (R(some & other), joint),
                (R(~some & other), R(layer.all) - joint),
                (R(~other, some), R(one) - joint),
                (R(x, ~other), R(x) - heat),
                (R(layer, some), R(layer, one)),
                (R.additive(layer.all, ~one, one), R.additive(layer.all) + R.additive(one) + R.additive(~one)),
                (R.expect({layer: 1.0}, x), heat),
            ):
                assert torch.allclose(answer, truth, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("batch", [1, 3])
def test_batch_axis_in_the_middle(batch: int) -> None:
    """Time-first recurrent nets: samples lie along axis 1."""

    def recur(x: Tensor) -> Tensor:
        h = torch.zeros(x.shape[1], 4, dtype=x.dtype)
        for step in x:
            h = torch.tanh(step @ W + h)
        return h

    x = numbers(5, batch, 4)
    tape = check_capture(recur, x, batch_dim=1)
    assert tape.batch == batch
    assert tape.nodes[tape.inputs[0]].sample == 1
    assert tape.nodes[tape.output].sample == 0
    R = nrm.measure(Wrapped(recur), x, batch_dim=1, rules="lrp-0", target=0)
    assert R(R.input).shape == (batch, 5, 4)
    assert R.check(strict=False).mass == pytest.approx((1,) * batch)


def test_one_sample_without_an_axis() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)).double()
    x = numbers(4)
    tape = capture(model, x, batch_dim=None)
    assert tape.batch == 1
    assert tape.nodes[tape.output].sample is None
    R = nrm.measure(model, x, batch_dim=None, rules="lrp-0")
    assert R(R.input).shape == (1, 4)
    batched = nrm.measure(model, x[None], rules="lrp-0")
    assert torch.allclose(R(R.input), batched(batched.input))


def test_a_whole_graph_is_one_sample() -> None:
    """Nodes along axis 0 mix: with batch_dim=None that is fine."""
    adjacency = (numbers(5, 5, seed=4) > 0).double()

    def graph(x: Tensor) -> Tensor:
        return torch.relu(adjacency @ (x @ W)).sum(0)

    check_capture(graph, numbers(5, 4), batch_dim=None)
    R = nrm.measure(Wrapped(graph), numbers(5, 4), batch_dim=None, rules="lrp-0", target=0)
    assert R.check(strict=False).mass == pytest.approx((1,))
    assert R(R.input).shape == (1, 5, 4)


MIXES: dict[str, Function] = {
    "mean over samples": lambda x: x @ W - (x @ W).mean(0),
    "total": lambda x: (x @ W).sum(),
    "product over samples": lambda x: x.t() @ numbers(3, 4, seed=5),
    "rolled": lambda x: x @ W + (x @ W).roll(1, 0),
    "pairs": lambda x: (x[:, None] - x[None]) @ W,
    "cumulative": lambda x: (x @ W).cumsum(0),
}


@pytest.mark.parametrize("function", MIXES.values(), ids=MIXES)
def test_mixed_samples_are_refused_by_name(function: Function) -> None:
    model = Wrapped(function)
    with pytest.raises(nrm.CaptureError, match="samples of the batch are mixed") as error:
        capture(model, numbers(3, 4))
    assert "batch_dim=None" in str(error.value)
    capture(model, numbers(3, 4), batch_dim=None)


def test_a_gate_may_look_at_the_whole_batch() -> None:
    R = nrm.measure(Wrapped(gated_by_the_batch), numbers(3, 4), rules="lrp-0", target=0)
    assert R.check(strict=False).mass == pytest.approx((1, 1, 1))


def test_an_input_without_samples_is_shared_and_constant() -> None:
    def scaled(x: Tensor, temperature: Tensor) -> Tensor:
        return (x @ W) * temperature

    inputs = (numbers(3, 4), torch.tensor([2.0, 1.0, 1.0, 1.0], dtype=torch.float64))
    tape = capture(Wrapped(scaled), inputs)
    assert len(tape.inputs) == 1
    assert any("held constant" in note for note in tape.notes)
    alone = capture(Wrapped(scaled), (inputs[0][:1], inputs[1]))
    assert len(alone.inputs) == 2
