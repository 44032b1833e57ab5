"""Settings that have to fit each other once a configuration has been made small, and those that have no default."""

from __future__ import annotations

from typing import Any

HEAD = 8
"""The width of a head of attention."""


def settled(level: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """One level of a small configuration with everything in agreement; ``before`` is what it was."""
    small = dict(level)
    for settle in (_heads, _scans, _stages, _layers, _missing):
        settle(small, before)
    return small


def _heads(small: dict[str, Any], before: dict[str, Any]) -> None:
    """Latent attention has as many keys as queries; so has a model that had."""
    heads, keys = small.get("num_attention_heads"), small.get("num_key_value_heads")
    same = before.get("num_attention_heads") == before.get("num_key_value_heads")
    if isinstance(heads, int) and isinstance(keys, int) and (same or "kv_lora_rank" in small):
        small["num_key_value_heads"] = heads
    if "head_dim" in small and small["head_dim"] is None and isinstance(heads, int) and "hidden_size" in small:
        small["head_dim"] = small["hidden_size"] // heads
    lists = small.get("num_heads")
    if isinstance(lists, list | tuple) and isinstance(small.get("embed_dim"), int):
        small["embed_dim"] = HEAD * lists[0]


def _scans(small: dict[str, Any], before: dict[str, Any]) -> None:
    """State-space layers: heads times their width are the expanded width."""
    hidden, names = small.get("hidden_size"), ("mamba_n_heads", "n_mamba_heads", "num_heads")
    expand = next((small[k] for k in ("mamba_expand", "expand") if isinstance(small.get(k), int)), None)
    heads = next((k for k in names if isinstance(small.get(k), int)), None)
    width = next((k for k in ("mamba_d_head", "mamba_headdim", "head_dim") if k in small), None)
    if not isinstance(hidden, int) or expand is None or heads is None or width is None:
        return
    if "mamba_d_ssm" in small:
        small["mamba_d_ssm"] = expand * hidden
    small[heads], small[width] = expand * hidden // HEAD, HEAD
    for name in ("mamba_n_groups", "n_groups", "mamba_ngroups"):
        if name in small:
            small[name] = 1


def _stages(small: dict[str, Any], before: dict[str, Any]) -> None:
    """The features of a backbone of equal layers are taken from the layers that are left."""
    features, deep = before.get("out_features"), small.get("num_hidden_layers")
    if isinstance(small.get("depths"), list | tuple):
        small |= {name: len(small["depths"]) for name in ("num_hidden_layers", "num_layers") if name in small}
        if isinstance(small.get("window_size"), int):
            small |= {"window_size": min(small["window_size"], 2)}
            small |= {"image_size": 64} if isinstance(small.get("image_size"), int) else {}
        return
    small.pop("stage_names", None)
    if not isinstance(features, list) or not isinstance(deep, int):
        return
    if len(features) > 1 and all(str(name).startswith("stage") for name in features):
        small["num_hidden_layers"] = deep = max(deep, len(features))
        small["out_features"] = [f"stage{deep - k}" for k in reversed(range(len(features)))]
    else:
        small.pop("out_features", None)
    small.pop("out_indices", None)


def _layers(small: dict[str, Any], before: dict[str, Any]) -> None:
    """Where layers take turns, both kinds are among those that are left."""
    deep = small.get("num_hidden_layers")
    if "use_cache" in small:
        small["use_cache"] = False
    if "attn_layer_period" in small:
        small |= {"attn_layer_period": 2, "attn_layer_offset": 1}
    if isinstance(small.get("per_layer_config"), dict) and isinstance(deep, int):
        small["per_layer_config"] = {k: v for k, v in small["per_layer_config"].items() if int(k) < deep} or None
    if isinstance(small.get("prediction_length"), type(None)) and "context_length" in small:
        small["prediction_length"] = 4


def with_sections(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration whose rotary embeddings along three axes have a section of a head for each, as code assumes."""
    found = {name: with_sections(value) if isinstance(value, dict) else value for name, value in config.items()}
    return {**found, "mrope_section": [1, 1, 2]} if "rope_type" in config else found


def _missing(small: dict[str, Any], before: dict[str, Any]) -> None:
    """What has no default."""
    for name, value in (("vocab_size", 50), ("num_experts_per_tok", 2)):
        if name in small and small[name] is None:
            small[name] = value
    languages = small.get("languages")
    if "default_language" in small and small["default_language"] is None and languages:
        small["default_language"] = languages[0]
