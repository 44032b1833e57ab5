"""Small configurations of transformers: numbers that say how large a model is are made small, by what they are called.

Widths stay in proportion to each other, so that what has to divide still divides; layers stay of every kind that the
model has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from nrm.testing.census.settling import settled

WIDTH, HEADS, LAYERS, WORDS, IMAGE, PATCH, LENGTH, EXPERTS = 32, 4, 2, 100, 32, 8, 64, 4
"""What is left of widths, heads, layers, vocabularies, pixels, patches, positions and experts."""

WIDTHS = ("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "embedding_dim", "emb_dim", "width", "hidden_dim")
HEADED = ("num_attention_heads", "encoder_attention_heads", "n_head", "num_heads", "n_heads", "attention_heads")
LAYERED = ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "depth", "encoder_layers", "layers")
TOKEN = re.compile(r"(token|bos|eos|pad|sep|mask|boi|eoi|boa|cls)\w*_(id|index)$")
SKIPPED = re.compile(
    r"kernel|stride|padding|dilation|scale|factor|rate|theta|ratio|bins|buckets|coefficient|cost|label|type_vocab"
    r"|mask_|ignore|temperature|mel|compress|feat_extract|adapter|window_layers|num_feature_levels|temporal|fps|hertz"
    r"|num_conv_pos|hop|channels$|merge|offset|interval|queries|codebook|quant|sampl|cycles|nextn|speak|audio_channels"
)


def shrunk(config: dict[str, Any], *, narrow: bool = True) -> dict[str, Any]:
    """A configuration as plain data, made small; its widths only if it is to be ``narrow``."""
    return _Shrinking({_first(level, WIDTHS) for level in _levels(config)} - {None}, narrow).of(config)


def _levels(config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield config
    for value in config.values():
        if isinstance(value, dict):
            yield from _levels(value)


def _first(level: dict[str, Any], names: tuple[str, ...]) -> Any:
    return next((level[name] for name in names if _is_count(level.get(name))), None)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


class _Shrinking:
    """How one configuration, with those inside it, is made small: the same width is the same width everywhere."""

    def __init__(self, widths: set[int], narrow: bool) -> None:
        self._widths = {width for width in widths if width > WIDTH}
        self._narrow = narrow
        self._tokens: dict[int, int] = {}

    def of(self, config: dict[str, Any]) -> dict[str, Any]:
        deep, wide = _first(config, LAYERED), _first(config, WIDTHS) or max(self._widths, default=WIDTH)
        kept = self._kept_layers(config, deep)
        small = {name: self._value(name, value, wide, deep, kept) for name, value in config.items()}
        if kept is not None:
            small |= {name: len(kept) for name in config if name in LAYERED and config[name] == deep}
        return settled(small, config) if self._narrow else small

    def _kept_layers(self, config: dict[str, Any], deep: int | None) -> list[int] | None:
        """The layers that are left: the first of every type."""
        types = next((v for k, v in config.items() if re.search("layer_types$|block_type$", k) and v), None)
        if deep is None or deep <= LAYERS or "depths" in config:
            return None
        if types is None or len(types) != deep:
            return list(range(LAYERS))
        first = sorted({kind: i for i, kind in reversed(list(enumerate(types)))}.values())
        return first if len(first) >= LAYERS else [0, 1]

    def _value(self, name: str, value: Any, wide: int, deep: int | None, kept: list[int] | None) -> Any:
        if isinstance(value, dict):
            return self.of(value) if not name.startswith(("id2label", "label2id")) else value
        if isinstance(value, list | tuple):
            return self._entries(name, list(value), wide, deep, kept)
        if name in ("width_coefficient", "depth_coefficient"):
            return value / 8
        return self._number(name, value, wide) if _is_count(value) else value

    def _entries(self, name: str, values: list[Any], wide: int, deep: int | None, kept: list[int] | None) -> list[Any]:
        if kept is not None and len(values) == deep:
            return [values[i] for i in kept]
        if name == "mrope_section":
            return [1, 1, 2] if self._narrow else values
        if re.search(r"ind(ic|ex)es|idxs$|layer_ids", name) and name != "out_indices" and kept is not None:
            return [i for i in values if i < len(kept)] or [len(kept) - 1]
        if name == "depths":
            return [1] * len(values)
        if name in ("image_size", "patch_size"):
            return [self._number(name, v, wide) for v in values]
        return values

    def _number(self, name: str, value: int, wide: int) -> int:
        if TOKEN.search(name):
            return value if value < WORDS // 2 else self._tokens.setdefault(value, WORDS - 2 - len(self._tokens))
        if "vocab_size" in name and value > WORDS:
            return WORDS
        if name.endswith("image_size"):
            return min(value, IMAGE)
        if name.endswith("patch_size"):
            return min(value, PATCH)
        if SKIPPED.search(name):
            return value
        if "positions" in name or name.endswith(("position_embeddings", "context_length", "max_seq_len")):
            return min(value, LENGTH)
        if "expert" in name:
            return self._experts(name, value, wide)
        if name in ("moe_topk", "topk_group", "n_group", "moe_top_k"):
            return 1
        if name == "first_k_dense_replace":
            return 1
        if re.search(r"(layers?|blocks|depth)$", name):
            return min(value, LAYERS)
        if re.search(r"heads?(_per_\w+)?$", name) and value > 1 and not re.search(r"dim", name):
            return self._heads(name, value) if self._narrow else value
        return self._width(name, value, wide) if self._narrow else value

    def _heads(self, name: str, value: int) -> int:
        return min(value, HEADS // 2 if "key_value" in name or "kv" in name else HEADS)

    def _experts(self, name: str, value: int, wide: int) -> int:
        if "size" in name or "dim" in name:
            return self._width(name, value, wide) if self._narrow else value
        return min(value, EXPERTS // 2 if "tok" in name or "top" in name or "shared" in name else EXPERTS)

    def _width(self, name: str, value: int, wide: int) -> int:
        if value in self._widths:
            return WIDTH
        if value < 16 or not re.search(r"size|dim|width|rank|d_|ffn|inner|hidden|channels|embd|scalar", name):
            return value
        if re.search(r"head_?(dim|size)|d_kv|dim_head", name) or (value * 2 <= wide and "head" in name):
            return WIDTH // HEADS
        return min(4 * WIDTH, max(8, round(value * WIDTH / wide / 8) * 8))
