"""Direct edges are formulas: the writer, then the reader, and no other writer of the stream between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import nrm

DIM, HEADS, KEYS, TOKENS = 8, 4, 2, 3


class Norm(nn.Module):
    """An RMS norm, written out as language models have it."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.rand(DIM) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Attention(nn.Module):
    """Attention in which two queries share a key."""

    def __init__(self) -> None:
        super().__init__()
        size = DIM // HEADS
        self.wq, self.o = nn.Linear(DIM, DIM, bias=False), nn.Linear(DIM, DIM)
        self.wk, self.wv = nn.Linear(DIM, KEYS * size, bias=False), nn.Linear(DIM, KEYS * size)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (-1, DIM // HEADS)).transpose(1, 2) for layer in (self.wq, self.wk, self.wv))
        k, v = (t.repeat_interleave(HEADS // KEYS, 1) for t in (k, v))
        weights = (q @ k.mT / 1.5).softmax(-1)
        return self.o((weights @ v).transpose(1, 2).flatten(2))


class Perceptron(nn.Module):
    def __init__(self, activation: Callable[[Tensor], Tensor] = torch.relu) -> None:
        super().__init__()
        self.up, self.down, self.activation = nn.Linear(DIM, 6), nn.Linear(6, DIM), activation

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.up(x)))


class Before(nn.Module):
    """A block with norms before its branches, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.attn, self.mlp = Norm(), Norm(), Attention(), Perceptron(F.silu)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.one(x))
        return x + self.mlp(self.two(x))


class After(nn.Module):
    """A block with norms on the stream."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.attn, self.mlp = Attention(), Perceptron()

    def forward(self, x: Tensor) -> Tensor:
        x = self.one(x + self.attn(x))
        return self.two(self.mlp(x) + x)


class Beside(nn.Module):
    """A block whose branches read the same norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.attn, self.mlp = Norm(), Attention(), Perceptron()

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm(x)
        return x + (self.attn(inner) + self.mlp(inner))


class Shortcut(nn.Module):
    """A residual block with weights in the skip, and a ReLU on the stream."""

    def __init__(self) -> None:
        super().__init__()
        self.branch, self.skip = Perceptron(), nn.Linear(DIM, DIM, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.skip(x) + self.branch(x))


class Network(nn.Module):
    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.stem, self.blocks, self.head = nn.Linear(DIM, DIM), nn.Sequential(*blocks), nn.Linear(DIM, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean(1))


def drawn(*kinds: type[nn.Module], seed: int = 0) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(seed)
    model = Network(*(kind() for kind in kinds)).double()
    return model, torch.rand(2, TOKENS, DIM).double(), torch.rand(2, TOKENS, DIM).double()


STREAMS: dict[str, tuple[type[nn.Module], ...]] = {
    "before": (Before, Before), "after": (After, After), "beside": (Beside, Beside), "shortcut": (Shortcut, Shortcut),
    "mixed": (Shortcut, Before),
}  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "contrast": {}, "gamma contrast": {"rules": nrm.Gamma(0.1)}, "lrp-0": {"rules": "lrp-0"},
    "z+": {"rules": nrm.ZPlus(), "bias": "ignore"}, "gamma": {"rules": nrm.Gamma(0.3)},
    "alpha-beta": {"rules": nrm.AlphaBeta(2, 1)}, "sums": {"rules": {"*add*": nrm.Sum(alpha={"skip": 2, "branch": 1})}},
}  # fmt: skip


# Under z+ alone, branches of both signs that meet have columns without a sum: only where activations are positive.
EVERY = [(k, c) for k in STREAMS for c in CASES if c != "z+" or k == "shortcut"]
loud = pytest.mark.filterwarnings("ignore::nrm.errors.NrmWarning")  # about cancellation and sinks in random networks


def measured(kinds: str, case: str, seed: int = 0) -> nrm.Measure:
    model, x, other = drawn(*STREAMS[kinds], seed=seed)
    against = {"against": other} if "contrast" in case else {}
    return nrm.measure(model, x, target=0, **CASES[case], **against)


def event(R: nrm.Measure, end: Any) -> nrm.Set:
    """A writer or reader as a set of neurons, by the names of layers."""
    if end.kind in ("q", "k", "v"):
        group = HEADS // KEYS if end.kind in ("k", "v") else 1
        return R[f"{end.name}.{end.kind}"].head([end.head * group + n for n in range(group)])
    return R[f"{end.name}.o"].input.head(end.head) if end.kind == "head" else R[end.name].all


@loud
@pytest.mark.parametrize(("kinds", "case"), EVERY)
def test_edges_are_formulas(kinds: str, case: str) -> None:
    R = measured(kinds, case)
    edges = R.direct()
    for j, r in enumerate(edges.readers):
        if r.kind in ("q", "k", "v") and r.head:
            continue  # one head of each: the others are the same step of the stack
        for i, w in enumerate(edges.writers):
            if w.crossing > r.crossing:
                assert bool((edges.relevance[:, i, j] == 0).all())
                continue
            formula = nrm.visits(event(R, w))
            if r.kind != "logits":
                formula = formula & nrm.visits(event(R, r))
            between: dict[str, nrm.Set] = {}
            for other in edges.writers:
                if w.crossing < other.crossing <= r.crossing:
                    chosen = event(R, other)
                    name = str(chosen.layer)
                    between[name] = between[name] | chosen if name in between else chosen
            for others in between.values():
                formula = formula & ~nrm.visits(others)
            want = R(formula)
            torch.testing.assert_close(edges.relevance[:, i, j], want, rtol=1e-9, atol=1e-11)


@loud
@pytest.mark.parametrize(("kinds", "case"), EVERY)
def test_edges_into_a_reader_add_up(kinds: str, case: str) -> None:
    R = measured(kinds, case, seed=1)
    edges = R.direct()
    total = edges.relevance.sum(1)
    top = R.inner.tape.nodes[edges.readers[-1].site.node].name  # what the bias of the head takes is not in the stream
    torch.testing.assert_close(total[:, -1], R(R[top].all), rtol=1e-9, atol=1e-11)
    if case == "contrast":  # no biases inside the readers take a share
        for j, r in enumerate(edges.readers[:-1]):
            torch.testing.assert_close(total[:, j], R(event(R, r)), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("kinds", STREAMS)
def test_positions_add_up_to_edges(kinds: str) -> None:
    R = measured(kinds, "contrast")
    edges, along = R.direct(), R.direct(positions=True)
    assert along.relevance.shape == (*edges.relevance.shape, TOKENS)
    torch.testing.assert_close(along.relevance.sum(-1), edges.relevance)
    # the stream of a block with attention: what the output reads at a position was written there
    at = R(R["blocks"].positions)
    torch.testing.assert_close(along.relevance[:, :, -1].sum(1), at)
