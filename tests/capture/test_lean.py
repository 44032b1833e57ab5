"""Lean tapes: values inside blocks are computed again when they are read, and nothing else is different."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nrm
import vision
from nrm.capture import Combine, capture
from nrm.capture.lean import LeanNode
from nrm.operators import Masking

with suppress(pytest.skip.Exception):
    vision.load()  # before transformers, which imports it

IDS = torch.randint(3, 50, (2, 9), generator=torch.Generator().manual_seed(1))
SIZE = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 32}
TIGHT = 64 * 2**10
"""Bytes of which an eighth is less than the activations of a block."""

LATE = 0.7
"""The share of all activations that is held when the last of three blocks ends."""


def llama(attention: str = "sdpa") -> nn.Module:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SIZE, num_key_value_heads=2)
    config._attn_implementation = attention
    return transformers.LlamaForCausalLM(config).double().eval()


def gpt2() -> nn.Module:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=50, n_embd=16, n_layer=3, n_head=4)
    ).double().eval()  # fmt: skip


def residual() -> nn.Module:
    """Convolutional blocks with skips and batch norms."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 1))

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(x + self.body(x))

    torch.manual_seed(0)
    return nn.Sequential(Block(), Block(), Block(), nn.Flatten(), nn.Linear(4 * 36, 3)).double().eval()


PICTURE = torch.rand(2, 4, 6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
MODELS: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "llama-sdpa": (llama, IDS), "llama-eager": (lambda: llama("eager"), IDS), "gpt2": (gpt2, IDS),
    "residual": (residual, PICTURE),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.filterwarnings("ignore::nrm.NrmWarning")
def test_a_lean_measure_answers_as_the_plain_one(name: str, late: bool) -> None:
    """Also where the bound is reached when most blocks have run already."""
    build, inputs = MODELS[name]
    plain = nrm.measure(build(), inputs, memory="1 GiB")
    lean = nrm.measure(build(), inputs, memory=8 * int(LATE * plain.inner.tape.nbytes) if late else TIGHT)
    tape = lean.inner.network.tape
    assert sum(node.block is not None for node in tape.nodes) > len(tape.nodes) / 2
    assert tape.nbytes < plain.inner.network.tape.nbytes / 2
    for one, other in zip(plain.inner.network.tape.nodes, tape.nodes, strict=True):
        torch.testing.assert_close(other.value, one.value, rtol=1e-12, atol=1e-12, equal_nan=True)
    same(lean, plain, lambda R: R(R.input))
    blocks = ("model.layers.1", "transformer.h.1", "1")
    middle = [node.name for node in tape.nodes if node.name.startswith(blocks) and node.index in plain.base.arrivals]
    for layer in middle:
        same(lean, plain, lambda R, layer=layer: R(R[layer]))  # type: ignore[misc]
    same(lean, plain, lambda R: R(R.input.channels[:3], R[middle[-1]].channels[:3]))
    assert lean.check(strict=False).mass == pytest.approx((1, 1), abs=1e-9)
    assert "computed again" in repr(lean)
    assert "computed again" not in repr(plain)


@pytest.mark.filterwarnings("ignore::nrm.NrmWarning")
def test_heads_edges_walks_and_removal_of_a_lean_measure() -> None:
    plain, lean = (nrm.measure(llama(), IDS[:1], memory=memory) for memory in ("1 GiB", 4 * TIGHT))
    assert any(node.block is not None for node in lean.inner.network.tape.nodes)
    same(lean, plain, lambda R: R(R["model.layers.0.self_attn.o_proj"].input.heads,
                                  R["model.layers.2.self_attn.o_proj"].input.heads))  # fmt: skip
    same(lean, plain, lambda R: R(R["model.layers.1.self_attn"].edges))
    low, high = nrm.layer("model.layers.0").position(2), nrm.layer("model.layers.1").position(8)
    same(lean, plain, lambda R: R(nrm.visits(low) & ~nrm.visits(high)))
    same(lean, plain, lambda R: nrm.evaluate.contribution(R, R["model.layers.0.mlp"].channels[:4]))
    for one, other in zip(plain.walks(k=3)[0], lean.walks(k=3)[0], strict=True):
        assert other.relevance == pytest.approx(one.relevance, rel=1e-9)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.filterwarnings("ignore::nrm.NrmWarning")
def test_a_lean_contrast_answers_as_the_plain_one(name: str, late: bool) -> None:
    """Both runs are lean, and so are the densities of their difference."""
    build, inputs = MODELS[name]
    other = inputs.flip(2) if inputs.is_floating_point() else (inputs + 7) % 50
    plain = nrm.measure(build(), inputs, against=other, memory="1 GiB")
    room = 8 * int(LATE * plain.inner.tape.nbytes) if late else TIGHT
    lean = nrm.measure(build(), inputs, against=other, memory=room)
    tape = lean.inner.network.tape
    assert sum(node.block is not None for node in tape.nodes) > len(tape.nodes) / 2
    assert tape.nbytes < plain.inner.network.tape.nbytes / 2
    for one, two in zip(plain.inner.network.tape.nodes, tape.nodes, strict=True):
        torch.testing.assert_close(two.value, one.value, rtol=1e-12, atol=1e-12, equal_nan=True)
    torch.testing.assert_close(lean(lean.input), plain(plain.input), rtol=1e-7, atol=1e-10)
    blocks = ("model.layers.1", "transformer.h.1", "1")
    for node in tape.nodes:
        if node.name.startswith(blocks) and node.index in plain.base.arrivals:
            torch.testing.assert_close(lean(lean[node.name]), plain(plain[node.name]), rtol=1e-7, atol=1e-10)
    assert lean.check(strict=False).mass == pytest.approx((1, 1), abs=1e-9)
    assert "computed again" in repr(lean)


def test_a_lean_contrast_computes_every_block_three_times_again() -> None:
    """Once while masks are compared, once in the sweep, and once for what comes after it; direct edges agree."""
    other = (IDS[:1] + 7) % 50
    plain, lean = (nrm.measure(llama(), IDS[:1], against=other, memory=memory) for memory in ("1 GiB", TIGHT))
    lean(lean.input.positions)
    for run in lean.inner.network.tape.runs or ():
        node = next(n for n in run.nodes if isinstance(n, LeanNode))
        assert node.rerun.count <= 3 * 3
    same(lean, plain, lambda R: R.in_units(R["model.layers.1.self_attn"].edges))
    torch.testing.assert_close(lean.direct().relevance, plain.direct().relevance, rtol=1e-8, atol=1e-11)


def test_nothing_quadratic_in_tokens_is_kept_by_a_contrast() -> None:
    model, held = llama(), {}
    for tokens in (32, 64, 128):
        ids = torch.randint(3, 50, (1, tokens), generator=torch.Generator().manual_seed(0))
        other = ids.clone()
        other[0, -2] = 49 - other[0, -2]
        R = nrm.measure(model, ids, against=other, memory=TIGHT * 8)
        R(R.input.positions)
        nodes = [n for run in R.inner.network.tape.runs or () for n in run.nodes]
        values = [n.held for n in nodes if n.held is not None and n.inputs]
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in values}
        held[tokens] = sum(storages.values()) + R.inner.kept.nbytes
    assert held[128] - held[64] == pytest.approx(2 * (held[64] - held[32]), rel=0.02)


def same(lean: nrm.Measure, plain: nrm.Measure, ask: Callable[[nrm.Measure], Tensor]) -> None:
    torch.testing.assert_close(ask(lean), ask(plain), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("share", [0.1, LATE])
def test_a_sweep_runs_every_block_once_more(share: float) -> None:
    model = llama()
    R = nrm.measure(model, IDS, memory=8 * int(share * nrm.measure(model, IDS).inner.tape.nbytes))
    node = next(n for n in R.inner.network.tape.nodes if isinstance(n, LeanNode))
    before = node.rerun.count
    R(R.input.positions)
    assert node.rerun.count - before <= 3


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_nothing_quadratic_in_tokens_is_kept(attention: str) -> None:
    model = llama(attention)
    held = {}
    for tokens in (32, 64, 128):
        ids = torch.randint(3, 50, (1, tokens), generator=torch.Generator().manual_seed(0))
        R = nrm.measure(model, ids, memory=TIGHT * 8)
        R(R.input.positions)
        nodes = R.inner.network.tape.nodes
        values = [n.held for n in nodes if n.held is not None and n.inputs]  # the mask is the model's own
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in values}
        held[tokens] = sum(storages.values()) + R.inner.kept.nbytes
    assert held[128] - held[64] == pytest.approx(2 * (held[64] - held[32]), rel=0.02)


@pytest.mark.parametrize("memory", ["1 GiB", TIGHT])
def test_a_tape_goes_with_its_measure(memory: str | int) -> None:
    model = llama()
    gc.collect()
    gc.disable()
    try:
        R = nrm.measure(model, IDS, memory=memory)
        R(R.input.positions)
        nodes = [weakref.ref(n.value) for n in R.inner.network.tape.nodes[:40]]
        del R
        assert not any(ref() is not None for ref in nodes)
    finally:
        gc.enable()


def test_what_the_model_holds_stays_tracked() -> None:
    """A model that reads a value of an earlier block again, which is not its output."""

    class Block(nn.Module):
        def __init__(self, seen: list[Tensor]) -> None:
            super().__init__()
            self.layer, self.seen = nn.Linear(4, 4), seen

        def forward(self, x: Tensor) -> Tensor:
            inner = torch.relu(self.layer(x))
            self.seen.append(inner)
            return x + inner * 2

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[Tensor] = []
            self.blocks = nn.ModuleList(Block(self.seen) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            self.seen.clear()
            for block in self.blocks:
                x = block(x)
            return x + self.seen[0] + self.seen[1]

    torch.manual_seed(0)
    model, x = Model().double(), torch.rand(1, 4, dtype=torch.float64)
    plain, lean = (capture(model, x, bound=bound) for bound in (None, 1))
    assert any(node.block is not None for node in lean.nodes)
    assert len(plain.nodes) == len(lean.nodes)
    for one, other in zip(plain.nodes, lean.nodes, strict=True):
        torch.testing.assert_close(other.value, one.value)
        assert one.inputs == other.inputs


def test_random_draws_are_kept() -> None:
    class Noisy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2 + torch.randn_like(x) * x

    model = nn.Sequential(Noisy(), Noisy()).eval()
    tape = capture(model, torch.rand(1, 4), bound=1)
    assert all(node.block is None for node in tape.nodes)


def test_causal_masks_are_held_once_for_all_layers() -> None:
    """Of what is quadratic in tokens, layers share what none of them changes."""
    attention = [nn.functional.scaled_dot_product_attention] * 4

    class Layers(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            for attend in attention:
                x = x + attend(x, x, x, is_causal=True)
            return x[:, 0, -1]

    tape = capture(Layers(), torch.rand(1, 2, 8, 4))
    masks = {
        id(term.move.mask)
        for node in tape.nodes if isinstance(node.op, Combine)
        for term in node.op.terms if isinstance(term.move, Masking)
    }  # fmt: skip
    assert len(masks) == 1
