"""Inputs that a model of transformers takes: made from the names in its signature and what its settings say."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from nrm.testing.census.shrinking import IMAGE, PATCH

TOKENS, WAVE, FRAMES = 12, 4000, 60
"""Tokens of a text, samples of a sound, frames of a spectrogram."""

Given = dict[str, Tensor]


def candidates(model: nn.Module, generator: torch.Generator) -> Iterator[Given]:
    """Inputs that a model may take, the likeliest first."""
    takes, setting = _Signature(model), Settings(model)
    yield from _gridded(takes, setting, generator, model.config)
    main = str(getattr(model, "main_input_name", "input_ids"))
    text = _text(takes, setting, generator)
    if "decoder_input_ids" in takes and "input_ids" in takes and setting.number(*STARTS, otherwise=-1) < 0:
        yield {**text, "decoder_input_ids": _words(setting, generator, 4)}
    seen = [name for name in MAKERS if name in takes and name not in text]
    for name in sorted(seen, key=lambda n: n != main):
        for made in MAKERS[name](setting, generator):
            yield {**text, name: made} if "input_ids" in takes else {name: made}
            if "input_ids" in takes:
                yield {name: made}
    yield text
    if "decoder_input_ids" in takes:
        begun = {"decoder_input_ids": _words(setting, generator, 4)}
        yield {**text, **begun}
        for name in seen:
            for made in MAKERS[name](setting, generator):
                yield {name: made, **begun}


def _gridded(takes: _Signature, setting: Settings, generator: torch.Generator, config: Any) -> Iterator[Given]:
    """Patches in rows, with the size of the grid that they are from; a text has a place for every square of them."""
    grid = torch.tensor([[1, 4, 4]])
    side = setting.number("patch_size", otherwise=PATCH)
    size = 3 * side * side * setting.number("temporal_patch_size", otherwise=1)
    patches = _noise(generator, 16, size)
    for name in ("hidden_states", "pixel_values"):
        if name in takes and "grid_thw" in takes:
            yield {name: patches, "grid_thw": grid}
    token = getattr(config, "image_token_id", None)
    if "image_grid_thw" in takes and isinstance(token, int):
        places = 16 // setting.number("spatial_merge_size", "merge_size", otherwise=2) ** 2
        start = getattr(config, "vision_start_token_id", None)
        words, begin = _words(setting, generator), [start] if isinstance(start, int) else []
        ids = torch.cat([words[:, :2], torch.tensor([begin + [token] * places]), words[:, 2:]], 1)
        given = {"input_ids": ids, "pixel_values": patches, "image_grid_thw": grid}
        yield {**given, "mm_token_type_ids": (ids == token).long()} if "mm_token_type_ids" in takes else given


STARTS = ("decoder_start_token_id", "forced_bos_token_id")
"""Settings that say with which token a decoder begins."""


class _Signature:
    """What a model's forward takes."""

    def __init__(self, model: nn.Module) -> None:
        self._names = set(inspect.signature(model.forward).parameters)

    def __contains__(self, name: object) -> bool:
        return name in self._names


class Settings:
    """What the settings of a model, and those inside them, say."""

    def __init__(self, model: nn.Module) -> None:
        self._levels = list(_all_levels(model.config.to_dict()))  # type: ignore[union-attr, operator]

    def number(self, *names: str, otherwise: int) -> int:
        """The first of these settings that is a number, the outermost first."""
        for name in names:
            for level in self._levels:
                value = level.get(name)
                value = value[0] if isinstance(value, list | tuple) and value else value
                if isinstance(value, int) and not isinstance(value, bool):
                    return value
        return otherwise


def _all_levels(config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield config
    for value in config.values():
        if isinstance(value, dict):
            yield from _all_levels(value)


def _words(setting: Settings, generator: torch.Generator, count: int = TOKENS) -> Tensor:
    least = min(setting.number("vocab_size", otherwise=50), 50)
    return torch.randint(min(5, least - 1), least, (1, count), generator=generator)


def _text(takes: _Signature, setting: Settings, generator: torch.Generator) -> Given:
    if "input_ids" not in takes:
        return {}
    given = {"input_ids": _words(setting, generator)}
    if "bbox" in takes:
        low = torch.randint(0, 20, (1, TOKENS, 2), generator=generator)
        given["bbox"] = torch.cat([low, low + 5], -1)
    return given


def _noise(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator)


def _pictures(setting: Settings, generator: torch.Generator) -> Iterator[Tensor]:
    channels = setting.number("num_channels", "in_channels", "in_chans", otherwise=3)
    size = setting.number("image_size", "img_size", "input_size", otherwise=2 * IMAGE)
    frames = setting.number("num_frames", "frames_per_clip", otherwise=4)
    for n in dict.fromkeys((size, 2 * IMAGE, 4 * IMAGE, 224)):
        yield _noise(generator, 1, channels, n, n)
    yield _noise(generator, 1, frames, channels, size, size)
    yield _noise(generator, 1, 1, channels, size, size)


def _spectrogram(setting: Settings, generator: torch.Generator) -> Iterator[Tensor]:
    bins = setting.number("num_mel_bins", "input_feat_per_channel", "feature_size", "n_mels", "input_dim", otherwise=80)
    frames = 2 * setting.number("max_source_positions", otherwise=FRAMES // 2)
    for n in dict.fromkeys((frames, FRAMES, 3000)):
        yield _noise(generator, 1, bins, n)
        yield _noise(generator, 1, n, bins)


def _sound(setting: Settings, generator: torch.Generator) -> Iterator[Tensor]:
    bins, frames = setting.number("num_mel_bins", otherwise=80), setting.number("max_length", otherwise=FRAMES)
    yield _noise(generator, 1, WAVE)
    yield _noise(generator, 1, 1, WAVE)
    yield _noise(generator, 1, frames, bins)


def _series(setting: Settings, generator: torch.Generator) -> Iterator[Tensor]:
    length = setting.number("context_length", otherwise=32)
    yield _noise(generator, 1, length, setting.number("num_input_channels", "input_size", otherwise=1))
    yield _noise(generator, 1, length)


MAKERS: dict[str, Callable[[Settings, torch.Generator], Iterator[Tensor]]] = {
    "pixel_values": _pictures, "pixel_values_videos": _pictures, "input_features": _spectrogram,
    "input_values": _sound, "past_values": _series,
}  # fmt: skip
"""What is made for an input, beside a text if the model reads one."""


def with_places(model: nn.Module, given: Given, complaint: str) -> Given | None:
    """The inputs with as many places for an image as a model says that it needs; None if it says nothing of it."""
    wanted = re.search(r"(?:tokens|placeholders)\D+(\d+)\D+(\d+)", complaint)
    config: Any = model.config
    names = ("image_token_id", "image_token_index", "audio_token_id", "audio_token_index", "video_token_id")
    token = next((v for name in names if isinstance(v := getattr(config, name, None), int)), None)
    if wanted is None or token is None or "input_ids" not in given:
        return None
    count = int(wanted[2])
    ids = given["input_ids"]
    if count > 400 or bool((ids == token).any()):
        return None
    places = torch.full((1, count), token, dtype=ids.dtype)
    return {**given, "input_ids": torch.cat([ids[:, :2], places, ids[:, 2:]], 1)}


def others_like(model: nn.Module, given: Given, generator: torch.Generator) -> Given:
    """Other inputs of the same shapes: other words, the same places for images, other noise."""
    least = min(Settings(model).number("vocab_size", otherwise=50), 50)
    low = min(5, least - 1)
    made = dict(given)
    for name, value in given.items():
        if value.is_floating_point():
            made[name] = torch.randn(value.shape, generator=generator)
        elif name in ("input_ids", "decoder_input_ids"):
            made[name] = torch.where(value < 50, (value - low + 3) % max(least - low, 1) + low, value)
    return made
