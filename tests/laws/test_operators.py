"""Law 8: every implicit operator equals its matrix, materialised by the Jacobian.

Conditioning the input on each output neuron of a one-op model reads the operator's columns out of the public API.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import assume, given, strategies as st
from torch import Tensor, nn
from torch.autograd.functional import jacobian
from torch.nn import functional as F

import nrm
from laws.agreement import law
from modules import filled
from oracles.brute import Block, Network, Rule

pytestmark = [
    pytest.mark.filterwarnings("ignore::nrm.errors.NrmWarning"),
    pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths"),
]


class Op(nn.Module):
    """A function as a model, without parameters."""

    def __init__(self, function: Callable[[Tensor], Tensor]):
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


LINEAR: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(4, 3), (4,)),
    "linear on tokens": (lambda: nn.Linear(4, 3), (2, 4)),
    "conv1d": (lambda: nn.Conv1d(2, 3, 3, padding=1), (2, 5)),
    "conv1d stride": (lambda: nn.Conv1d(2, 2, 2, stride=2), (2, 5)),
    "conv1d same": (lambda: nn.Conv1d(2, 2, 2, padding="same"), (2, 4)),
    "conv2d": (lambda: nn.Conv2d(2, 2, 3, padding=1), (2, 3, 3)),
    "conv2d stride padding": (lambda: nn.Conv2d(1, 2, (3, 2), stride=(2, 1), padding=(1, 0)), (1, 4, 3)),
    "conv2d dilation": (lambda: nn.Conv2d(1, 2, 2, dilation=2), (1, 4, 4)),
    "conv2d groups": (lambda: nn.Conv2d(4, 2, 2, groups=2), (4, 3, 3)),
    "conv2d depthwise": (lambda: nn.Conv2d(3, 6, 2, groups=3), (3, 3, 3)),
    "conv3d": (lambda: nn.Conv3d(1, 2, 2, padding=(0, 1, 0)), (1, 2, 2, 3)),
    "transposed 1d": (lambda: nn.ConvTranspose1d(2, 3, 3, stride=2, padding=1, output_padding=1), (2, 3)),
    "transposed 2d": (lambda: nn.ConvTranspose2d(2, 2, 2, stride=2), (2, 2, 2)),
    "transposed groups": (lambda: nn.ConvTranspose2d(2, 4, 2, groups=2, dilation=2), (2, 2, 2)),
    "transposed 3d": (lambda: nn.ConvTranspose3d(1, 1, 2), (1, 2, 2, 2)),
}

AVERAGES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "average 1d": (lambda: nn.AvgPool1d(2), (2, 4)),
    "average 2d": (lambda: nn.AvgPool2d(2, stride=1), (2, 3, 3)),
    "average padding": (lambda: nn.AvgPool2d(2, padding=1), (1, 4, 4)),
    "average without padding in the count": (lambda: nn.AvgPool2d(2, padding=1, count_include_pad=False), (1, 4, 4)),
    "average ceil": (lambda: nn.AvgPool1d(2, ceil_mode=True), (1, 5)),
    "adaptive": (lambda: nn.AdaptiveAvgPool2d((2, 1)), (2, 3, 3)),
    "mean": (lambda: Op(lambda x: x.mean((-2, -1))), (2, 3, 2)),
    "sum": (lambda: Op(lambda x: x.sum(1)), (2, 3)),
    "bilinear": (lambda: Op(lambda x: F.interpolate(x, scale_factor=2, mode="bilinear")), (1, 2, 2)),
    "add": (lambda: Op(lambda x: x[:, :2] + x[:, 2:]), (4,)),
    "subtract": (lambda: Op(lambda x: x[:, :2] - x[:, 2:]), (4,)),
    "three terms": (lambda: Op(lambda x: x[:, :2] + 0.5 * x[:, 2:4] - x[:, 4:] / 3), (6,)),
    "broadcast add": (lambda: Op(lambda x: x[:, :, :1] + x[:, :, 1:]), (2, 4)),
}

MOVEMENT: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...]]] = {
    "flatten": (lambda x: x.flatten(1), (2, 3)),
    "reshape": (lambda x: x.reshape(x.shape[0], 3, 2), (2, 3)),
    "permute": (lambda x: x.permute(0, 2, 1), (2, 3)),
    "transpose": (lambda x: x.transpose(1, 2).contiguous(), (2, 3)),
    "unsqueeze": (lambda x: x.unsqueeze(1).squeeze(1), (3,)),
    "slice": (lambda x: x[:, 1:, ::2], (3, 4)),
    "index": (lambda x: x[:, [2, 0, 0]], (3,)),
    "select": (lambda x: x.select(1, 1), (3, 2)),
    "narrow": (lambda x: x.narrow(1, 1, 2), (4,)),
    "chunk and cat": (lambda x: torch.cat(x.chunk(2, 1)[::-1], 1), (4,)),
    "split": (lambda x: torch.cat(torch.split(x, [1, 3], 1)[::-1], 1), (4,)),
    "stack": (lambda x: torch.stack([x[:, 0], x[:, 1]], 2), (2, 3)),
    "flip": (lambda x: x.flip(1), (4,)),
    "roll": (lambda x: x.roll(1, 1), (4,)),
    "expand": (lambda x: x[:, :, None].expand(-1, -1, 2), (3,)),
    "repeat": (lambda x: x.repeat(1, 2), (3,)),
    "channel shuffle": (lambda x: F.channel_shuffle(x[..., None, None], 2)[..., 0, 0], (4,)),
    "pixel shuffle": (lambda x: F.pixel_shuffle(x, 2), (4, 1, 2)),
    "nearest": (lambda x: F.interpolate(x, scale_factor=2), (1, 2, 2)),
    "crop by padding": (lambda x: F.pad(x, (-1, 0)), (4,)),
    "reflect": (lambda x: F.pad(x, (1, 1), mode="reflect"), (1, 4)),
    "unbind": (lambda x: torch.cat(list(x.unbind(1)), 1), (2, 3)),
}

CHOICE: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...]]] = {
    "max 1d": (lambda x: F.max_pool1d(x, 2), (2, 4)),
    "max 2d": (lambda x: F.max_pool2d(x, 2, stride=1), (1, 3, 3)),
    "max 2d padding dilation": (lambda x: F.max_pool2d(x, 2, padding=1, dilation=2), (1, 4, 4)),
    "max 3d": (lambda x: F.max_pool3d(x, 2), (1, 2, 2, 4)),
    "adaptive max": (lambda x: F.adaptive_max_pool2d(x, (2, 1)), (1, 3, 3)),
    "amax": (lambda x: x.amax(-1), (2, 3)),
    "max over an axis": (lambda x: x.max(1).values, (3, 2)),
}

POINTWISE: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "relu6": F.relu6,
    "leaky relu": F.leaky_relu,
    "elu": F.elu,
    "selu": F.selu,
    "celu": F.celu,
    "gelu": F.gelu,
    "silu": F.silu,
    "mish": F.mish,
    "hardswish": F.hardswish,
    "hardtanh": F.hardtanh,
    "tanh": torch.tanh,
    "softsign": F.softsign,
    "tanhshrink": F.tanhshrink,
    "sin": torch.sin,
    "abs": torch.abs,
    "clamp": lambda x: x.clamp(-0.5, 0.5),
    "scaled": lambda x: 3 * x,
    "negated": lambda x: -x,
    "divided": lambda x: x / 2,
    "masked": lambda x: x * torch.tensor([1.0, 0.0, 2.0]).double(),
}


def sample(shape: tuple[int, ...], seed: int) -> Tensor:
    return torch.randn(1, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def columns(model: nn.Module, x: Tensor, **how: object) -> tuple[nrm.Measure, Tensor]:
    """R(input | output) as a matrix (inputs x outputs), read through the front door."""
    R = nrm.measure(model, x, target="softmax", dtype=torch.float64, **how)
    table = R(R.input, given=R.output)[0]
    return R, table.reshape(x[0].numel(), -1)


def dense(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same op as weights (inputs x outputs), shift and value."""
    y = model(x).detach()
    weight = jacobian(model, x).reshape(y[0].numel(), x[0].numel()).T
    return weight, y.flatten() - x.flatten() @ weight, y


def oracle(weight: Tensor, shift: Tensor | None, x: Tensor, rule: Rule, support: Tensor, **how: str) -> Network:
    net = Network(**how)
    net.source("x", x)
    net.affine("y", [Block("x", weight, rule, support=support)], shift)
    return net


RULES = {
    "lrp0": (lambda: nrm.LRP0(), Rule("lrp0")),
    "gamma": (lambda: nrm.Gamma(0.5), Rule("gamma", 0.5)),
    "zplus": (lambda: nrm.ZPlus(), Rule("zplus")),
    "alphabeta": (lambda: nrm.AlphaBeta(2, 1), Rule("alphabeta", 2, 1)),
    "flat": (lambda: nrm.Flat(), Rule("flat")),
    "wsquare": (lambda: nrm.WSquare(), Rule("wsquare")),
    "zbox": (lambda: nrm.ZBox(-2.0, 3.0), Rule("zbox", -2.0, 3.0)),
    "entry": (lambda: nrm.EntryEpsilon(0.01), Rule("entry", 0.01)),
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("op", LINEAR)
def test_linear_ops(op: str, rule: str) -> None:
    for bias in ("ignore", "input"):
        model = filled(LINEAR[op][0](), seed=3)
        x = sample(LINEAR[op][1], 7)
        weight, shift, _ = dense(model, x)
        ones = LINEAR[op][0]().double()
        nn.init.ones_(ones.weight)
        net = oracle(weight, shift, x, RULES[rule][1], dense(ones, x)[0] != 0, bias=bias, zero="uniform")
        R, table = columns(model, x, rules=RULES[rule][0](), bias=bias, zero="uniform")
        torch.testing.assert_close(table, net.shares["y"][0].matrix, rtol=1e-9, atol=1e-12)
        if bias == "input" and rule in ("lrp0", "gamma", "zplus", "alphabeta", "wsquare"):
            mass = sum(R(layer.all) for layer in R.biases)
            torch.testing.assert_close(mass, (net.shares["y"][1].matrix.sum(0) @ R(R.output)[0].flatten())[None])


@pytest.mark.parametrize("rule", ["lrp0", "gamma", "zplus", "alphabeta", "flat", "entry"])
@pytest.mark.parametrize("op", AVERAGES)
def test_averages_and_sums(op: str, rule: str) -> None:
    model = AVERAGES[op][0]().double()
    x = sample(AVERAGES[op][1], 5)
    weight, _, _ = dense(model, x)
    net = oracle(weight, None, x, RULES[rule][1], weight != 0, zero="uniform")
    _, table = columns(model, x, rules={"*": RULES[rule][0]()}, bias="ignore", zero="uniform")
    torch.testing.assert_close(table, net.shares["y"][0].matrix, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("op", [*MOVEMENT, *CHOICE])
@pytest.mark.parametrize("rule", ["lrp0", "zplus"])
def test_movement_and_choice(op: str, rule: str) -> None:
    """Relevance just moves, whatever the rule and the values."""
    function, shape = (MOVEMENT | CHOICE)[op]
    model, x = Op(function), sample(shape, 5)
    weight, _, _ = dense(model, x)
    assert set(weight.unique().tolist()) <= {0.0, 1.0}
    _, table = columns(model, x, rules=RULES[rule][0]())
    torch.testing.assert_close(table, weight)


@pytest.mark.parametrize("op", POINTWISE)
@pytest.mark.parametrize("rule", ["lrp0", "zplus"])
def test_pointwise_is_one_to_one(op: str, rule: str) -> None:
    """Even where the function is 0 or flat."""
    x = torch.tensor([[0.7, -0.8, 2.0]]).double()
    _, table = columns(Op(POINTWISE[op]), x, rules=RULES[rule][0]())
    torch.testing.assert_close(table, torch.eye(3).double())


@pytest.mark.parametrize(
    "function", [torch.sigmoid, F.softplus, torch.exp, F.hardsigmoid, torch.cos], ids=lambda f: f.__name__
)
def test_offsets(function: Callable[[Tensor], Tensor]) -> None:
    """phi(0) != 0: the share phi(0) / phi(z) belongs to no input."""
    x = torch.tensor([[0.7, -0.8, 1.2]]).double()
    _, table = columns(Op(function), x, rules=nrm.LRP0(), bias="input")
    share = 1 - function(torch.zeros(3).double()) / function(x[0])
    torch.testing.assert_close(table, torch.diag(share))


@pytest.mark.parametrize("bias", ["ignore", "input"])
@pytest.mark.parametrize("kind", ["batch", "layer", "group"])
def test_norms_are_linear_with_constant_statistics(kind: str, bias: str) -> None:
    """Mean subtraction included: not the identity, and not the Jacobian (which moves the statistics)."""
    model = {"batch": nn.BatchNorm1d(4), "layer": nn.LayerNorm((4, 3)), "group": nn.GroupNorm(2, 4)}[kind]
    model, x = filled(model, 4), sample((4, 3), 9)
    y = model(x).detach().flatten()
    axes = {"layer": (1, 2), "group": (2, 3)}.get(kind)
    if kind == "batch":
        scale = (model.weight / (model.running_var + model.eps).sqrt()).detach().repeat_interleave(3)
        weight = torch.diag(scale)
    else:
        groups = x if kind == "layer" else x.reshape(1, 2, 2, 3)
        deviation = (groups.var(axes, unbiased=False, keepdim=True) + model.eps).sqrt().expand_as(groups).flatten()
        size = groups[0].numel() if kind == "layer" else groups[0, 0].numel()
        member = torch.arange(12) // size
        weight = torch.eye(12).double() - (member[:, None] == member[None]).double() / size
        gain = model.weight.detach().flatten() if kind == "layer" else model.weight.detach().repeat_interleave(3)
        weight = weight * (gain / deviation)
    shift = y - x.flatten() @ weight
    net = oracle(weight, shift, x, Rule("lrp0"), weight != 0, bias=bias)
    _, table = columns(model, x, rules=nrm.LRP0(), bias=bias)
    torch.testing.assert_close(table, net.shares["y"][0].matrix, rtol=1e-8, atol=1e-10)


def test_rms_norm_is_one_to_one() -> None:
    model, x = filled(nn.RMSNorm(4), 4), sample((4,), 9)
    _, table = columns(model, x, rules=nrm.LRP0())
    torch.testing.assert_close(table, torch.eye(4).double())


@pytest.mark.parametrize("shares", [(0, 1), (1, 1), (1, 3)])
def test_products_share_by_coefficient(shares: tuple[int, int]) -> None:
    """alpha_u : alpha_v whatever the values. The operand nearest to the sigmoid is the gate."""
    gate, signal = shares
    model = Op(lambda x: torch.tanh(x[:, 2:]) * torch.sigmoid(x[:, :2]))
    x = sample((4,), 3)
    R = nrm.measure(
        model, x, target="softmax", dtype=torch.float64, bias="input",
        rules={"*/mul": nrm.Product(gate=gate, signal=signal), "*": nrm.LRP0()},
    )  # fmt: skip
    out = R(R.output)
    torch.testing.assert_close(R(R["/tanh"]), out * signal / (gate + signal))
    torch.testing.assert_close(R(R["/sigmoid"]), out * gate / (gate + signal))


def test_embedding_output_is_the_input_layer() -> None:
    model = filled(nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 2)), 2)
    ids = torch.tensor([[1, 4]])
    R = nrm.measure(model, ids, target=1, rules=nrm.LRP0(), bias="ignore", dtype=torch.float64)
    h, w = model[0](ids).detach().flatten(), model[2].weight[1].detach()
    torch.testing.assert_close(R(R["0"]).flatten(), h * w / (h @ w))
    torch.testing.assert_close(sum(R(part.all) for part in R.inputs), torch.ones(1).double())


@law
@given(data=st.data())
def test_random_convolutions(data: st.DataObject) -> None:
    """Any geometry, both directions: the pulled matrix above, and its rows by asking pair by pair."""
    groups = data.draw(st.sampled_from([1, 2]))
    geometry = {
        "kernel_size": data.draw(st.tuples(st.integers(1, 3), st.integers(1, 2))),
        "stride": data.draw(st.tuples(st.integers(1, 2), st.integers(1, 2))),
        "dilation": data.draw(st.tuples(st.integers(1, 2), st.integers(1, 2))),
    }
    transposed = data.draw(st.booleans())
    padding = data.draw(st.sampled_from([0, 1]) if geometry["kernel_size"][0] > 1 else st.just(0))
    kind = nn.ConvTranspose2d if transposed else nn.Conv2d
    try:
        model = filled(kind(2, 2, **geometry, padding=(padding, 0), groups=groups), data.draw(st.integers(0, 99)))
        x = sample((2, 5, 3), data.draw(st.integers(0, 99)))
        weight, shift, y = dense(model, x)
    except RuntimeError:  # no output at all
        return
    key = data.draw(st.sampled_from(sorted(RULES)))
    ones = kind(2, 2, **geometry, padding=(padding, 0), groups=groups).double()
    nn.init.ones_(ones.weight)
    support = dense(ones, x)[0] != 0
    assume(bool(support.any(0).all()))  # a transposed convolution can leave holes: outputs that read nothing
    net = oracle(weight, shift, x, RULES[key][1], support, bias="ignore", zero="uniform")
    R, table = columns(model, x, rules=RULES[key][0](), bias="ignore", zero="uniform")
    expected = net.shares["y"][0].matrix
    scale = max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(table, expected, rtol=1e-8, atol=1e-10 * scale)
    pushed = R(R.input.channel(1), R.output)[0].flatten()
    mine = expected[x[0].numel() // 2 :].sum(0) * y.flatten().softmax(0)
    torch.testing.assert_close(pushed, mine, rtol=1e-8, atol=1e-10 * scale)
