"""Models as other packages make them: quantized, on disk, from GGUF files, with adapters; each beside plain weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nrm
import vision

with suppress(pytest.skip.Exception):
    vision.load()  # before transformers, which imports it

IDS = torch.tensor([[1, 5, 9, 3, 7, 11, 2, 8]])
SIZE = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
pytestmark = [
    pytest.mark.filterwarnings("ignore::nrm.NrmWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the packages' own imports
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


def package(name: str) -> Any:
    return pytest.importorskip(name, reason=f'{name} is not installed: pip install "nrm[large]"')


def hugging() -> Any:
    return pytest.importorskip("transformers", reason="transformers is not installed")


def llama() -> Any:
    torch.manual_seed(0)
    model = hugging().LlamaForCausalLM(hugging().LlamaConfig(**SIZE)).eval()
    for layer in model.model.layers:
        layer.mlp.down_proj.weight.data *= torch.linspace(
            0.2, 3, 128
        )  # so that blocks of weights have scales of their own
    return model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The network as ``from_pretrained`` reads it."""
    path: Path = tmp_path_factory.mktemp("llama")
    llama().save_pretrained(path)
    return path


def with_weights(of: Callable[[nn.Module], Tensor], model: nn.Module) -> Any:
    """The plain network whose linear layers have the weights that another one's stand for."""
    plain = llama()
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear):
            plain.get_submodule(name).weight.data.copy_(of(layer))
    return plain


def state(model: nn.Module) -> list[Any]:
    """All tensors of a model and their versions, and what its modules were given of their own."""
    tensors = [(id(t), t._version, t.data_ptr()) for t in (*model.parameters(), *model.buffers())]
    return [tensors, [sorted(vars(module)) for module in model.modules()]]


def agrees(model: Any, plain: Any, said: str, bound: float = 1e-5) -> nrm.Measure:
    """Measures a model beside its plain twin: same values and shares, mass 1, and the model is as it was."""
    before = state(model)
    R = nrm.measure(model, {"input_ids": IDS})
    wanted = nrm.measure(plain, {"input_ids": IDS}, target=R.target)
    torch.testing.assert_close(R.value, wanted.value, rtol=bound, atol=bound)
    torch.testing.assert_close(R(R.tokens), wanted(wanted.tokens), rtol=0, atol=bound)
    assert float(R(R.tokens).sum()) == pytest.approx(1, abs=1e-5)
    assert said in repr(R)
    assert R.check().ok
    assert state(model) == before
    return R


# ---- quantized -------------------------------------------------------------------------------------------------------

BITS: dict[str, dict[str, Any]] = {
    "8 bits": {"load_in_8bit": True},
    "nf4": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "fp4, scales quantized, too": {
        "load_in_4bit": True, "bnb_4bit_quant_type": "fp4", "bnb_4bit_use_double_quant": True,
    },
}  # fmt: skip


def bitsandbytes_weight(layer: Any) -> Tensor:
    """What a packed weight stands for, by the package's own words: codes times the scale of their row or block."""
    if not hasattr(layer.weight, "quant_state") and not hasattr(layer.weight, "SCB"):
        return layer.weight.data  # the head is not packed
    if getattr(layer.weight, "quant_state", None) is not None:
        from bitsandbytes.functional import dequantize_4bit

        return dequantize_4bit(layer.weight.data, copy.copy(layer.weight.quant_state))
    return layer.weight.data.float() * layer.weight.SCB[:, None] / 127


def packed(folder: Path, bits: str) -> Any:
    package("bitsandbytes")
    package("accelerate")
    how = hugging().BitsAndBytesConfig(**BITS[bits])
    return hugging().LlamaForCausalLM.from_pretrained(folder, quantization_config=how, device_map="cpu").eval()


def contrasts_agree(model: Any, plain: Any) -> None:
    """A contrast has the shares of that of the plain twin."""
    R, wanted = (nrm.measure(m, IDS, against=IDS.flip(1), target=(-1, 3)) for m in (model, plain))
    torch.testing.assert_close(R(R.tokens), wanted(wanted.tokens), rtol=0, atol=1e-5)


@pytest.mark.parametrize("bits", BITS)
def test_contrasts_of_weights_of_bitsandbytes(folder: Path, bits: str) -> None:
    model = packed(folder, bits)
    contrasts_agree(model, with_weights(bitsandbytes_weight, model))


@pytest.mark.parametrize("bits", BITS)
def test_weights_of_bitsandbytes_are_what_they_stand_for(folder: Path, bits: str) -> None:
    model = packed(folder, bits)
    plain = with_weights(bitsandbytes_weight, model)
    kind = "Linear8bitLt" if bits == "8 bits" else "Linear4bit"
    said = f"weights that are quantized (14 {kind})"
    agrees(model, plain, said)
    with torch.no_grad():  # 8 bits round activations in the model's own call, 4 bits go through bfloat16
        torch.testing.assert_close(model(IDS).logits, plain(IDS).logits, rtol=0, atol=2e-2)
    agrees(
        model, plain, said, bound=1e-3
    )  # on some processors a call rounds the scales of 4 bits to bfloat16, for good


@pytest.mark.parametrize("config", ["Int8WeightOnlyConfig", "Float8WeightOnlyConfig", "IntxWeightOnlyConfig"])
def test_weights_of_torchao_are_what_they_stand_for(config: str) -> None:
    package("torchao")
    from torchao import quantization

    model = llama()
    quantization.quantize_(model, getattr(quantization, config)())
    kind = type(model.lm_head.weight).__name__
    agrees(model, with_weights(lambda layer: layer.weight.dequantize(), model), f"15 {kind}")


# ---- from files ------------------------------------------------------------------------------------------------------

GGUF_NAMES = {
    "model.embed_tokens": "token_embd", "lm_head": "output", "model.norm": "output_norm", "model.layers": "blk",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "post_attention_layernorm": "ffn_norm", "input_layernorm": "attn_norm",
}  # fmt: skip


def write_gguf(model: Any, file: Path) -> None:
    """The network as llama.cpp keeps it, in 8 bits: halves of rotated queries and keys one after the other."""
    gguf, config = package("gguf"), model.config
    writer, kind = gguf.GGUFWriter(file, "llama"), gguf.GGMLQuantizationType.Q8_0
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for name, tensor in model.state_dict().items():
        for theirs, own in GGUF_NAMES.items():
            name = name.replace(theirs, own)
        count = next((n for part, n in heads.items() if part in name), None)
        if count is not None:
            rows = tensor.shape[0] // count // 2
            tensor = tensor.reshape(count, 2, rows, -1).swapaxes(1, 2).reshape(tensor.shape)
        numbers = tensor.numpy()
        if tensor.ndim == 2:
            writer.add_tensor(name, gguf.quants.quantize(numbers, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_file_through_transformers(tmp_path: Path) -> None:
    plain = llama()
    write_gguf(plain, tmp_path / "tiny.gguf")
    model = hugging().LlamaForCausalLM.from_pretrained(tmp_path, gguf_file="tiny.gguf", dtype=torch.float32).eval()
    R = agrees(model, copy.deepcopy(model), "explains")
    wanted = nrm.measure(plain, {"input_ids": IDS}, target=R.target)  # before it was written in 8 bits
    torch.testing.assert_close(R(R.tokens), wanted(wanted.tokens), rtol=0, atol=2e-2)


def test_weights_that_a_device_map_puts_on_disk(folder: Path, tmp_path: Path) -> None:
    """Layers on disk, and what was generated by them; no weight is in memory before or after."""
    package("accelerate")
    parts = ("model.embed_tokens", "model.rotary_emb", "model.layers.0", "model.layers.1", "model.norm", "lm_head")
    places = dict.fromkeys(parts, "disk") | {"model.layers.0": "cpu", "model.rotary_emb": "cpu"}
    model = hugging().LlamaForCausalLM.from_pretrained(folder, device_map=places, offload_folder=tmp_path).eval()
    away = [name for name, p in model.named_parameters() if p.is_meta]
    assert len(away) == 12
    agrees(model, llama(), "weights are read from where they were offloaded whenever they are used (12 of them)")
    for against in (None, "mean"):
        G, wanted = (nrm.generated(one, None, IDS, tokens=3, against=against) for one in (model, llama()))
        assert torch.equal(G.ids, wanted.ids)
        torch.testing.assert_close(G.relevance, wanted.relevance, rtol=0, atol=1e-5)
    assert [name for name, p in model.named_parameters() if p.is_meta] == away


# ---- adapters --------------------------------------------------------------------------------------------------------


def adapted(model: Any) -> Any:
    """The model with adapters of rank 4 in attention and feed-forward, as if they were trained."""
    peft = package("peft")
    torch.manual_seed(1)
    lora = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"], init_lora_weights=False)
    return peft.get_peft_model(model, lora).eval()


def test_an_adapter_of_peft_is_a_branch_of_its_own() -> None:
    model = adapted(llama())
    R = agrees(model, copy.deepcopy(model).merge_and_unload(), "explains")
    whole = nrm.measure(copy.deepcopy(model).merge_and_unload(), {"input_ids": IDS}, target=R.target)
    layers = [f"layers.{i}.{part}" for i in (0, 1) for part in ("self_attn.v_proj", "mlp.down_proj")]
    for layer in layers:
        name = f"base_model.model.model.{layer}"
        base, branch = (R(R[f"{name}.{part}"].all) for part in ("base_layer", "lora_B.default"))
        assert abs(float(branch)) > 1e-3
        torch.testing.assert_close(base + branch, whole(whole[f"model.{layer}"].all), rtol=1e-4, atol=1e-5)
    adapters = [R[f"base_model.model.model.{layer}.lora_B.default"].all for layer in layers]
    without = R(~nrm.visits(*adapters))  # all that flows past every adapter
    torch.testing.assert_close(R(nrm.visits(*adapters)) + without, torch.ones(1), rtol=0, atol=1e-5)


def test_an_adapter_beside_packed_weights(folder: Path) -> None:
    base = packed(folder, "nf4")
    plain = adapted(with_weights(bitsandbytes_weight, base))
    model = adapted(base)
    R = agrees(model, plain, "weights that are quantized (14 Linear4bit)")
    wanted = nrm.measure(plain, {"input_ids": IDS}, target=R.target)
    layer = "base_model.model.model.layers.1.mlp.down_proj.lora_B.default"
    torch.testing.assert_close(R(R[layer].all), wanted(wanted[layer].all), rtol=0, atol=1e-4)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_or_an_interrupt_leaves_packed_weights_and_adapters_as_they_were(
    folder: Path, error: type[BaseException]
) -> None:
    model = adapted(packed(folder, "nf4"))
    norm = model.get_submodule("base_model.model.model.norm")

    def fail(x: Tensor) -> Tensor:
        raise error("on the way")

    norm.forward = fail
    before = state(model)
    with pytest.raises(error, match="on the way"):
        nrm.measure(model, {"input_ids": IDS})
    assert state(model) == before
    del norm.forward
    assert nrm.measure(model, {"input_ids": IDS}).check().ok
