"""LRP-0 with biases as inputs is a gradient form: the same heat maps by autograd on the network with held factors."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import nrm
from oracles.gradient import HeldFactors, gradient_form
from recurrent import Fused, Unrolled, layer

pytestmark = pytest.mark.filterwarnings("ignore::nrm.errors.NrmWarning")


class Block(nn.Module):
    """A pre-norm transformer block: two heads of attention, and a unit with a sigmoid gate."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.RMSNorm(width)
        self.q, self.k, self.v, self.o, self.gate = (nn.Linear(width, width) for _ in range(5))
        self.up, self.down = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        q, k, v = (f(h).unflatten(-1, (2, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        weights = torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, -1)
        x = x + self.o((weights @ v).transpose(1, 2).flatten(2))
        h = self.norm2(x)
        return x + self.down(torch.sigmoid(self.gate(h)) * F.gelu(self.up(h)))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.blocks = nn.Linear(4, 8), nn.Sequential(Block(8), Block(8), Block(8))
        self.norm, self.last = nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.blocks(self.first(x))).mean(1))


class Convolutions(nn.Module):
    """Batch norms before and after functions with and without an offset, a skip, both kinds of pooling, a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = nn.Conv2d(4, 4, 3, padding=1, groups=2), nn.BatchNorm2d(4)
        self.conv3, self.bn3 = nn.Conv2d(4, 6, 2, stride=2, bias=False), nn.BatchNorm2d(6)
        self.squeeze, self.last = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.silu(self.bn1(self.conv1(x))), 2)
        x = x + self.bn2(F.softplus(self.conv2(x)))
        x = F.relu(self.bn3(self.conv3(x)))
        x = x * torch.sigmoid(self.squeeze(x.mean((2, 3))))[..., None, None]
        return self.last(F.adaptive_avg_pool2d(x, 1).flatten(1))


def drawn(model: nn.Module) -> nn.Module:
    """The network in float64, with parameters and statistics that leave nothing at 0 or 1."""
    model = model.double().eval()
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            if tensor.is_floating_point():
                tensor.copy_(torch.randn_like(tensor) * (0.5 if tensor.ndim > 1 else 1.0))
        for name, buffer in model.named_buffers():
            if name.endswith("running_var"):
                buffer.copy_(buffer.abs() + 0.5)
    return model


def agrees(model: nn.Module, x: Tensor, layers: tuple[str, ...] = (), twin: nn.Module | None = None) -> None:
    """Input and layers have the relevance of the gradient form; ``twin`` is the network as autograd is to see it.

    Terms of a sum are no such layers: the one bias neuron of the sum has what their own biases would have.
    """
    R = nrm.measure(model, x, target=1, rules="lrp-0", bias="input")
    form = gradient_form(twin or model, x, 1, {name: model.get_submodule(name) for name in layers})
    for name, expected in form.items():
        found = R(R.input if name == "input" else R[name])
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9 * float(expected.abs().max()), msg=name)
    assert R.check(strict=False).sinks == {}


@pytest.mark.parametrize("seed", range(3))
def test_transformer(seed: int) -> None:
    torch.manual_seed(seed)
    layers = ("blocks.0", "blocks.1.v", "blocks.1.up", "blocks.2.norm1", "norm")
    agrees(drawn(Transformer()), torch.randn(2, 5, 4).double(), layers)


@pytest.mark.parametrize("seed", range(3))
def test_convolutions_with_batch_norm(seed: int) -> None:
    torch.manual_seed(seed)
    agrees(drawn(Convolutions()), torch.randn(2, 2, 12, 12).double(), ("bn1", "conv2", "bn3"))


@pytest.mark.parametrize("kind", ["lstm", "gru", "tanh"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_recurrent(kind: str, bidirectional: bool) -> None:
    """Torch's fused layers; autograd sees them written out, with sigmoids held as gates and tanh by its secant."""
    fused = Fused(layer(kind, num_layers=2, bidirectional=bidirectional, batch_first=True, bias=kind != "gru"))
    agrees(fused, torch.randn(2, 6, 3).double(), twin=Unrolled(fused))


@pytest.mark.parametrize("model", [Transformer(), Convolutions()], ids=["transformer", "convolutions"])
def test_held_factors_leave_the_values(model: nn.Module) -> None:
    x = torch.randn(2, 5, 4).double() if isinstance(model, Transformer) else torch.randn(2, 2, 12, 12).double()
    model = drawn(model)
    with HeldFactors():
        held = model(x)
    torch.testing.assert_close(held, model(x), rtol=1e-12, atol=1e-12)
