"""Models that read several things, or write behind an encoder, with small random weights in float64.

Gates are sigmoids, and activations are torch's own functions, so that the gradient form of relevance is defined.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import vision

with suppress(pytest.skip.Exception):
    vision.load()  # before transformers, which imports it

VIEW = {
    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 16,
    "patch_size": 4,
}  # fmt: skip
TEXT = {
    "vocab_size": 50, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 32, "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
WRITER = {**TEXT, "num_key_value_heads": 2, "hidden_act": "sigmoid"}
PAIR = {
    "vocab_size": 50, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "pad_token_id": 1, "bos_token_id": 0,
    "eos_token_id": 2, "decoder_start_token_id": 2,
}  # fmt: skip
SPOTS = {"image_token_id": 40, "video_token_id": 41, "vision_start_token_id": 42, "vision_end_token_id": 43}
WRITTEN = torch.tensor([[2, 5, 6]])


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def words(*shape: int) -> Tensor:
    return torch.randint(3, 39, shape, generator=torch.Generator().manual_seed(4))


class Subject(NamedTuple):
    """A model and its inputs."""

    model: nn.Module
    inputs: dict[str, Tensor]


Maker = Callable[[Any], tuple[nn.Module, dict[str, Tensor]]]
MAKERS: dict[str, Maker] = {}


def kind(make: Maker) -> Maker:
    MAKERS[make.__name__] = make
    return make


def texts() -> Tensor:
    ids = words(3, 7)
    ids[:, -1] = 45
    return ids


@kind
def clip(hub: Any) -> tuple[nn.Module, dict[str, Tensor]]:
    config = hub.CLIPConfig(text_config={**TEXT, "eos_token_id": 45}, vision_config=VIEW, projection_dim=8)
    return hub.CLIPModel(config), {
        "input_ids": texts(), "attention_mask": torch.ones(3, 7).long(), "pixel_values": noise(1, 3, 16, 16),
    }  # fmt: skip


@kind
def siglip(hub: Any) -> tuple[nn.Module, dict[str, Tensor]]:
    act = {"hidden_act": "gelu"}
    config = hub.SiglipConfig(text_config={**TEXT, **act}, vision_config={**VIEW, **act})
    return hub.SiglipModel(config), {"input_ids": texts(), "pixel_values": noise(1, 3, 16, 16)}


@kind
def blip(hub: Any) -> tuple[nn.Module, dict[str, Tensor]]:
    text = {**TEXT, "encoder_hidden_size": 16, "sep_token_id": 2}
    config = hub.BlipConfig(text_config=text, vision_config=VIEW, projection_dim=8)
    return hub.BlipForConditionalGeneration(config), {"pixel_values": noise(1, 3, 16, 16), "input_ids": words(1, 7)}


@kind
def llava(hub: Any) -> tuple[nn.Module, dict[str, Tensor]]:
    vision_config, text_config = hub.CLIPVisionConfig(**VIEW), hub.LlamaConfig(**WRITER)
    config = hub.LlavaConfig(
        vision_config=vision_config, text_config=text_config, image_token_id=40, vision_feature_layer=-1
    )
    ids = torch.tensor([[3, 4, *[40] * 16, 5, 6, 7]])
    return hub.LlavaForConditionalGeneration(config), {
        "input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": noise(1, 3, 16, 16)
    }  # fmt: skip


@kind
def paligemma(hub: Any) -> tuple[nn.Module, dict[str, Tensor]]:
    seen = hub.SiglipVisionConfig(**VIEW, projection_dim=16, hidden_act="gelu").to_dict()
    text = hub.GemmaConfig(**WRITER, head_dim=4, hidden_activation="sigmoid").to_dict()
    config = hub.PaliGemmaConfig(vision_config=seen, text_config=text, image_token_index=40, projection_dim=16)
    ids = torch.tensor([[*[40] * 16, 5, 6, 7, 8]])
    return hub.PaliGemmaForConditionalGeneration(config), {
        "input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids),
        "pixel_values": noise(1, 3, 16, 16),
    }  # fmt: skip


def _qwen(model: Any, config: Any, seen: dict[str, Any]) -> tuple[nn.Module, dict[str, Tensor]]:
    rope = {"rope_type": "default", "mrope_section": [1, 0, 1], "rope_theta": 10000.0}
    made = config(text_config={**WRITER, "rope_parameters": rope}, vision_config=seen, **SPOTS)
    ids = torch.tensor([[3, 42, *[40] * 6, 43, 5, 6, 7]])
    return model(made), {
        "input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": noise(24, 3 * 2 * 4 * 4),
        "image_grid_thw": torch.tensor([[1, 4, 6]]), "mm_token_type_ids": (ids == 40).int(),
    }  # fmt: skip


QWEN = {"depth": 2, "hidden_size": 16, "num_heads": 4, "patch_size": 4, "temporal_patch_size": 2}


@kind
def qwen2vl(hub: Any) -> tuple[nn.Module, dict[str, Tensor]]:
    seen = {**QWEN, "embed_dim": 16, "mlp_ratio": 2}
    return _qwen(hub.Qwen2VLForConditionalGeneration, hub.Qwen2VLConfig, seen)


@kind
def qwen25vl(hub: Any) -> tuple[nn.Module, dict[str, Tensor]]:
    seen = {
        **QWEN, "out_hidden_size": 16, "intermediate_size": 32, "window_size": 8, "fullatt_block_indexes": [1],
        "hidden_act": "sigmoid",
    }  # fmt: skip
    return _qwen(hub.Qwen2_5_VLForConditionalGeneration, hub.Qwen2_5_VLConfig, seen)


@kind
def t5(hub: Any) -> tuple[nn.Module, dict[str, Tensor]]:
    config = hub.T5Config(vocab_size=50, d_model=16, d_kv=4, d_ff=32, num_layers=2, num_heads=4)
    config.decoder_start_token_id = 0
    return hub.T5ForConditionalGeneration(config), {"input_ids": words(1, 7), "decoder_input_ids": WRITTEN}


@kind
def bart(hub: Any) -> tuple[nn.Module, dict[str, Tensor]]:
    config = hub.BartConfig(**PAIR, max_position_embeddings=32)
    return hub.BartForConditionalGeneration(config), {"input_ids": words(1, 7), "decoder_input_ids": WRITTEN}


@kind
def marian(hub: Any) -> tuple[nn.Module, dict[str, Tensor]]:
    config = hub.MarianConfig(**PAIR, max_position_embeddings=32)
    return hub.MarianMTModel(config), {"input_ids": words(1, 7), "decoder_input_ids": WRITTEN}


@kind
def whisper(hub: Any) -> tuple[nn.Module, dict[str, Tensor]]:
    config = hub.WhisperConfig(**PAIR, num_mel_bins=8, max_source_positions=12, max_target_positions=20)
    model = hub.WhisperForConditionalGeneration(config)
    return model, {"input_features": noise(1, 8, 24), "decoder_input_ids": WRITTEN}


@kind
def speech2text(hub: Any) -> tuple[nn.Module, dict[str, Tensor]]:
    config = hub.Speech2TextConfig(
        **PAIR, input_feat_per_channel=8, conv_channels=16, max_source_positions=64, max_target_positions=20
    )
    model = hub.Speech2TextForConditionalGeneration(config)
    return model, {"input_features": noise(1, 24, 8), "decoder_input_ids": WRITTEN}


@kind
def wav2vec2(hub: Any) -> tuple[nn.Module, dict[str, Tensor]]:
    config = hub.Wav2Vec2Config(
        vocab_size=12, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32,
        conv_dim=(8, 8), conv_stride=(4, 4), conv_kernel=(8, 4), num_feat_extract_layers=2, num_conv_pos_embeddings=4,
        num_conv_pos_embedding_groups=2, feat_extract_norm="layer", num_codevectors_per_group=2,
    )  # fmt: skip
    return hub.Wav2Vec2ForCTC(config), {"input_values": noise(1, 400)}


@kind
def captioner(hub: Any) -> tuple[nn.Module, dict[str, Tensor]]:
    seen = hub.ViTModel(hub.ViTConfig(**VIEW, attn_implementation="eager"))
    words = hub.GPT2LMHeadModel(
        hub.GPT2Config(
            vocab_size=50, n_embd=16, n_layer=2, n_head=4, n_positions=32, add_cross_attention=True, is_decoder=True,
            activation_function="gelu", bos_token_id=0, eos_token_id=2,
        )
    )  # fmt: skip
    model = hub.VisionEncoderDecoderModel(encoder=seen, decoder=words)
    model.config.decoder_start_token_id, model.config.pad_token_id = 2, 1
    return model, {"pixel_values": noise(1, 3, 16, 16), "decoder_input_ids": WRITTEN}


@functools.cache
def subject(name: str) -> Subject:
    """A model of a kind, with its own attention written out, and weights that are large enough to matter."""
    hub: Any = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the library, while it is imported
        model, inputs = MAKERS[name](hub)
    model = model.double().eval()
    model.set_attn_implementation("eager")  # type: ignore[operator]
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.copy_(torch.randn_like(parameter) * parameter[0].numel() ** -0.5)
            elif parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return Subject(model, inputs)
