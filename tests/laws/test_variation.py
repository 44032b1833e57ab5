"""The composite of transformers is bounded: no quotient is left in it, but that by the output.

Hold attention weights and the statistics of norms constant, replace an activation by its factor phi(z) / z and a
product u v by (u' v + u v') / 2 with constant u', v': the network has the same values, and is linear in what it reads,
biases among it. Call its gradient with respect to a tensor h the *held* gradient g. With LRP-0 and biases as inputs
the relevance of h is h g / f. By induction: the message that arrives at a column with the sum z is z g / f, and the
column is divided by z. So the total variation is at most |h| |g| / |f|, and |g| at most a product of norms of weights.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import nrm

pytestmark = pytest.mark.filterwarnings("ignore::nrm.NrmWarning")

WIDTH, HEADS, LENGTH = 16, 4, 6


class Block(nn.Module):
    """Pre-norm attention and perceptron: layer norms and GELU with biases, or RMS norms and SwiGLU without."""

    def __init__(self, gated: bool) -> None:
        super().__init__()
        self.gated = gated
        self.norm1, self.norm2 = (nn.RMSNorm(WIDTH) if gated else nn.LayerNorm(WIDTH) for _ in range(2))
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH, bias=not gated) for _ in range(4))
        self.gate, self.up = (nn.Linear(WIDTH, 2 * WIDTH, bias=not gated) for _ in range(2))
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=not gated)
        self.middle, self.end = nn.Identity(), nn.Identity()

    def weights(self, n: Tensor) -> Tensor:
        q, k = (layer(n).unflatten(-1, (HEADS, -1)).transpose(1, 2) for layer in (self.q, self.k))
        return torch.softmax(q @ k.mT / math.sqrt(WIDTH // HEADS), -1)

    def attend(self, weights: Tensor, n: Tensor) -> Tensor:
        v = self.v(n).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        return self.out((weights @ v).transpose(1, 2).flatten(2))

    def inner(self, n: Tensor) -> Tensor:
        return F.silu(self.gate(n)) * self.up(n) if self.gated else F.gelu(self.up(n))

    def forward(self, x: Tensor) -> Tensor:
        n = self.norm1(x)
        x = self.middle(x + self.attend(self.weights(n), n))
        return self.end(x + self.down(self.inner(self.norm2(x))))


class Model(nn.Module):
    def __init__(self, gated: bool, blocks: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(gated) for _ in range(blocks))
        self.norm = nn.RMSNorm(WIDTH) if gated else nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 5, bias=not gated)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, -1])


def spread(norm: nn.Module, x: Tensor) -> Tensor:
    """What a norm divides by."""
    x = x - x.mean(-1, keepdim=True) if isinstance(norm, nn.LayerNorm) else x
    eps = norm.eps if norm.eps is not None else torch.finfo(x.dtype).eps
    return (x.square().mean(-1, keepdim=True) + eps).sqrt().detach()


def held_norm(norm: nn.Module, x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True) if isinstance(norm, nn.LayerNorm) else x
    n = centred / spread(norm, x) * norm.weight
    return n + norm.bias if isinstance(norm, nn.LayerNorm) else n


def held_inner(block: Block, n: Tensor) -> Tensor:
    u = block.up(n)
    if not block.gated:
        return (F.gelu(u) / u).detach() * u
    v = block.gate(n)
    v = torch.sigmoid(v).detach() * v
    return (u.detach() * v + u * v.detach()) / 2


def held(model: Model, x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The logits of the network with its constants held, and the residual stream at every stop."""
    streams = [x]
    for block in model.blocks:
        n = held_norm(block.norm1, streams[-1])
        streams.append(streams[-1] + block.attend(block.weights(n).detach(), n))
        n = held_norm(block.norm2, streams[-1])
        streams.append(streams[-1] + block.down(held_inner(block, n)))
    return model.head(held_norm(model.norm, streams[-1])[:, -1]), streams


@torch.no_grad()
def gains(model: Model, streams: list[Tensor]) -> list[float]:
    """How much every residual step can lengthen a gradient, from the norms of its weights; the last is the head's."""

    def size(layer: nn.Linear) -> float:
        return float(torch.linalg.matrix_norm(layer.weight, 2))

    def slope(norm: nn.Module, x: Tensor) -> float:
        return float(norm.weight.abs().max() / spread(norm, x).min())

    def inner(block: Block, n: Tensor) -> float:
        if not block.gated:
            return size(block.up)  # GELU is z times a number from 0 to 1, and so is SiLU
        u, v = (float(t.abs().max()) for t in (block.up(n), F.silu(block.gate(n))))
        return (u * size(block.gate) + v * size(block.up)) / 2

    found = []
    for block, x, middle in zip(model.blocks, streams[::2], streams[1::2], strict=False):
        mixing = float(torch.linalg.matrix_norm(block.weights(held_norm(block.norm1, x)), 2).max())
        assert mixing <= LENGTH**0.5 + 1e-9  # its rows sum to 1
        found.append(1 + size(block.out) * mixing * size(block.v) * slope(block.norm1, x))
        found.append(1 + size(block.down) * inner(block, held_norm(block.norm2, middle)) * slope(block.norm2, middle))
    return [*found, slope(model.norm, streams[-1]) * float(model.head.weight[1].norm())]


@pytest.mark.parametrize("gated", [False, True], ids=["layer norm, GELU", "RMS norm, SwiGLU"])
@pytest.mark.parametrize("blocks", [1, 3, 12])
@pytest.mark.parametrize("seed", range(3))
def test_relevance_is_activation_times_held_gradient(gated: bool, blocks: int, seed: int) -> None:
    torch.manual_seed(seed)
    model = Model(gated, blocks).double()
    x = torch.randn(1, LENGTH, WIDTH, dtype=torch.float64)
    R = nrm.measure(model, x, target=1)
    assert R.rules == "transformer"
    logits, streams = held(model, x.requires_grad_())
    gradients = torch.autograd.grad(logits[0, 1], streams)
    logits, streams = logits.detach(), [h.detach() for h in streams]
    torch.testing.assert_close(logits, R.values(R.output))
    f = logits[0, 1]
    stops = [R.input, *(R[f"blocks.{k}.{stop}"] for k in range(blocks) for stop in ("middle", "end"))]
    bound = 1.0
    for stop, h, g, gain in zip(
        *(every[::-1] for every in (stops, streams, gradients, gains(model, streams))), strict=True
    ):
        bound *= gain
        scale = float((h * g / f).abs().sum())
        torch.testing.assert_close(R(stop), h * g / f, rtol=1e-9, atol=1e-12 * scale)
        variation = float(R(stop).abs().sum())
        assert variation <= float(h.norm() * g.norm() / f.abs()) * (1 + 1e-9)
        assert float(g.norm()) <= bound * (1 + 1e-9)


def test_ignored_biases_leave_quotients() -> None:
    """The bound is broken as soon as one of its premises is: columns are divided by less than what arrives."""
    torch.manual_seed(0)
    model = Model(False, 12).double()
    x = torch.randn(1, LENGTH, WIDTH, dtype=torch.float64)
    _, streams = held(model, x)
    R = nrm.measure(model, x, target=1, bias="ignore")
    bound = math.prod(gains(model, streams)) * float(x.norm() / R.value.abs())
    assert float(nrm.measure(model, x, target=1)(nrm.input).abs().sum()) < bound
    assert max(max(v) for v in R.check(strict=False).variation.values()) > 1e6
