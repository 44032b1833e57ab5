"""Language models as people use them: caches, embeddings of their own, other attention, adapters, compiled."""

from __future__ import annotations

import copy
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nrm
import vision

with suppress(pytest.skip.Exception):
    vision.load()  # before transformers, which imports it

pytestmark = pytest.mark.filterwarnings("ignore::nrm.NrmWarning")
IDS = torch.randint(3, 50, (1, 7), generator=torch.Generator().manual_seed(0))
SIZE = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}


def hugging() -> Any:
    return pytest.importorskip("transformers", reason="transformers is not installed")


def llama() -> Any:
    torch.manual_seed(0)
    return hugging().LlamaForCausalLM(hugging().LlamaConfig(**SIZE, num_key_value_heads=2)).double().eval()


def test_embeddings_are_given_directly() -> None:
    model = llama()
    given = model.get_input_embeddings()(IDS).detach()
    R, words = nrm.measure(model, {"inputs_embeds": given}), nrm.measure(model, IDS)
    assert R(R.input.positions).shape == (1, 7)
    torch.testing.assert_close(R(R.input.positions), words(words.input.positions))
    torch.testing.assert_close(R(R.tokens), words(words.tokens))


@pytest.mark.parametrize("kind", ["DynamicCache", "StaticCache"])
def test_a_cache_is_an_input_in_the_middle_and_stays_as_it_was(kind: str) -> None:
    """What was read before is in keys and values; the explained output is that of the whole text, and mass is 1."""
    model, whole = llama(), nrm.measure(llama(), IDS)
    cache = hugging().DynamicCache() if kind == "DynamicCache" else hugging().StaticCache(model.config, max_cache_len=9)
    with torch.no_grad():
        model(IDS[:, :4], past_key_values=cache, use_cache=True)
    before = [layer.keys.clone() for layer in cache.layers]
    for _ in range(2):
        R = nrm.measure(model, {"input_ids": IDS[:, 4:], "past_key_values": cache})
        torch.testing.assert_close(R.value, whole.value)
        assert float(sum(R(part.all) for part in R.inputs)) == pytest.approx(1, abs=1e-9)
        held = [part for part in R.inputs if part.name.startswith("past_key_values.")]
        assert [part.name for part in held] == [f"past_key_values.{i}.values" for i in (0, 1)]
        by_token = sum(R(part.axis(1)) for part in held)
        assert by_token.shape == (1, 4 if kind == "DynamicCache" else 9)
        torch.testing.assert_close(by_token[:, 4:], torch.zeros_like(by_token[:, 4:]))
        assert sum(abs(float(R(part.all))) for part in held) > 1e-4
    assert int(cache.get_seq_length()) == 4
    for layer, keys in zip(cache.layers, before, strict=True):
        assert torch.equal(layer.keys, keys)


@pytest.mark.parametrize("name", ["flash_attention_2", "flex_attention"])
def test_other_attention_is_switched_for_the_captured_call(name: str) -> None:
    model = llama()
    plain = nrm.measure(model, IDS)
    model.config._attn_implementation = name
    R = nrm.measure(model, IDS)
    torch.testing.assert_close(R(R.tokens), plain(plain.tokens))
    assert model.config._attn_implementation == name
    assert f"not by '{name}'" in repr(R)
    with pytest.raises(IndexError):
        nrm.measure(model, IDS + 100)  # no such token
    assert model.config._attn_implementation == name


class Adapted(nn.Module):
    """A layer with an adapter of low rank beside it."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer
        self.down = nn.Linear(layer.in_features, 2, bias=False).double()
        self.up = nn.Linear(2, layer.out_features, bias=False).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.up(self.down(x)) * 2.0


def test_an_adapter_is_a_branch_of_its_own() -> None:
    model = llama()
    merged = copy.deepcopy(model)
    for one, other in zip(model.model.layers, merged.model.layers, strict=True):
        one.mlp.down_proj = Adapted(one.mlp.down_proj)
        added = one.mlp.down_proj.up.weight @ one.mlp.down_proj.down.weight * 2.0
        other.mlp.down_proj.weight.data += added.detach()
    R, whole = nrm.measure(model, IDS), nrm.measure(merged, IDS)
    torch.testing.assert_close(R(R.tokens), whole(whole.tokens))
    layer = "model.layers.1.mlp.down_proj"
    shares = [R(R[f"{layer}.{part}"].all) for part in ("layer", "up")]
    assert abs(float(shares[1])) > 1e-5
    torch.testing.assert_close(shares[0] + shares[1], whole(whole[layer].all))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler's own imports
def test_a_compiled_model_is_explained() -> None:
    model = llama()
    R, plain = nrm.measure(torch.compile(model), IDS), nrm.measure(model, IDS)  # type: ignore[arg-type]
    torch.testing.assert_close(R(R.tokens), plain(plain.tokens))
