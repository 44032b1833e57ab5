"""Models that read several things: which input has the samples, where a decoder begins, where its last token lies."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nrm.capture.ops import Source
from nrm.capture.tape import Node
from nrm.errors import CaptureError

TEXT = ("input_ids", "attention_mask", "position_ids", "token_type_ids", "inputs_embeds")
"""Inputs that are a text, as models of Hugging Face call them."""
IMAGES = ("pixel_values", "pixel_values_videos")
SOUNDS = ("input_features", "input_values")
SEEN = (IMAGES[0], *SOUNDS)
"""Inputs that are images or sounds."""
PLACES = dict(zip(IMAGES, ("image_token_id", "video_token_id"), strict=True))
"""Inputs that a text keeps places for, and what the settings call the token of these places."""
UNLABELED = -100
"""The label of a position that no loss counts, such as padding."""


def kind_of_input(node: Node) -> str:
    """What a user's input is: ``"text"``, ``"image"``, ``"sound"``, or ``"numbers"`` if nothing says so."""
    name = node.name.rpartition(".")[2]
    if node.op.kind == "embedding" or name.endswith("inputs_embeds"):
        return "text"
    if name in IMAGES or (len(node.layer_shape) == 3 and node.channel == (node.sample is not None)):
        return "image"
    return "sound" if name in SOUNDS else "numbers"


def patch_square(model: nn.Module) -> int:
    """The side of the squares of patches that lie one after the other in a row, as Qwen-VL orders them; else 1."""
    side = getattr(getattr(getattr(model, "config", None), "vision_config", None), "spatial_merge_size", 1)
    return side if isinstance(side, int) else 1


def cached(named: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Keys and values of earlier tokens in the caches among the inputs, by the names that they have as inputs."""
    for name, cache in named.items():
        for i, layer in enumerate(getattr(cache, "layers", None) or () if hasattr(cache, "get_seq_length") else ()):
            for part in ("keys", "values"):
                tensor = getattr(layer, part, None)
                if isinstance(tensor, Tensor):
                    yield f"{name}.{i}.{part}", tensor


def compares(model: nn.Module, named: Mapping[str, Any]) -> bool:
    """Whether a model compares images or sounds with texts, as CLIP does: both are given, and there is a scale.

    Then texts are what the outputs stand for, common to all samples, and each image or sound is a sample.
    """
    scaled = any(name.startswith(("logit_scale", "temperature")) for name, _ in model.named_parameters(recurse=False))
    return scaled and "input_ids" in named and any(name in named for name in SEEN)


def sample_input(model: nn.Module, named: Mapping[str, Any]) -> str | None:
    """The input by keyword that has one entry per sample along its first axis; None: the first one given.

    Patches of images may lie in one long row, so that a text says best how many samples there are.
    """
    known = SEEN if compares(model, named) else ("input_ids", "inputs_embeds")
    return next((name for name in known if isinstance(named.get(name), Tensor)), None)


def compares_many(model: nn.Module, named: Mapping[str, Any]) -> bool:
    """Whether several images or sounds are compared with texts; texts are common to all, so it is all one sample."""
    seen = sample_input(model, named) if compares(model, named) else None
    return seen is not None and named[seen].ndim > 0 and len(named[seen]) > 1


def is_common(model: nn.Module, name: str, named: Mapping[str, Any]) -> bool:
    """Whether an input is the same for all samples: the texts that images are compared with."""
    return name.removeprefix("input.") in TEXT and compares(model, named)


def patch_owners(model: nn.Module, named: Mapping[str, Any]) -> dict[int, Tensor]:
    """The sample of every row of images that do not lie along samples, by the tensor's identity.

    Patches of all images in one row, or several images per text: they go to the places that texts keep for them, in
    their order, so that every sample has as many rows as it has such places.
    """
    ids, config = named.get("input_ids"), getattr(model, "config", None)
    if not isinstance(ids, Tensor) or ids.ndim != 2 or len(ids) < 2:
        return {}
    found: dict[int, Tensor] = {}
    for name, token in PLACES.items():
        rows, place = named.get(name), getattr(config, token, None)
        if not isinstance(rows, Tensor) or not isinstance(place, int) or len(rows) == len(ids):
            continue
        places = (ids == place).sum(1)
        counts = places * len(rows) // places.sum().clamp(min=1)
        if int(counts.sum()) == len(rows):
            owner = torch.arange(len(ids), device=rows.device).repeat_interleave(counts.to(rows.device))
            found[id(rows)] = owner.view(-1, *(1,) * (rows.ndim - 1)).expand(rows.shape)
    return found


# ---- decoders --------------------------------------------------------------------------------------------------------


def begin_decoder(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[dict[str, Any], str | None]:  # fmt: skip
    """The keyword arguments of a call, with tokens for a decoder that was given none, and a note that says which.

    They are the labels, moved by one as the model does it for training, else the token that its texts begin with.
    """
    if not _writes_behind_encoder(model):
        return kwargs, None
    given = _bound(model, args, kwargs)
    if any(given.get(name) is not None for name in ("decoder_input_ids", "decoder_inputs_embeds")):
        return kwargs, None
    start, labels = _start_token(model), given.get("labels")
    if isinstance(labels, Tensor):
        own = {k: v for k, v in kwargs.items() if k != "labels"} | {"decoder_input_ids": _moved(model, labels, start)}
        if bool((labels == UNLABELED).any()):
            own.setdefault("decoder_attention_mask", (labels != UNLABELED).long())
        return own, "the decoder reads the labels, moved by one"
    first = next((t for t in (*kwargs.values(), *args) if isinstance(t, Tensor)), None)
    if first is None:
        return kwargs, None
    if start is None:
        raise _no_start()
    ids = torch.full((first.shape[0], 1), start, dtype=torch.long, device=first.device)
    return {**kwargs, "decoder_input_ids": ids}, f"the decoder begins with the model's start token {start}"


def _moved(model: nn.Module, labels: Tensor, start: int | None) -> Tensor:
    """Labels moved by one position, as the model does it if it says so, else behind its start token."""
    known: Any = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    if known is not None:
        found: Tensor = known(labels)
        return found
    if start is None:
        raise _no_start()
    padding = getattr(getattr(model, "config", None), "pad_token_id", None)
    whole = torch.cat([torch.full_like(labels[:, :1], start), labels[:, :-1]], 1)
    return whole.masked_fill(whole == UNLABELED, start if padding is None else padding)


def _no_start() -> CaptureError:
    return CaptureError(
        "the decoder has no token to begin with", got="no decoder_input_ids, and no start token in the settings",
        expected="tokens of the decoder", hint='{..., "decoder_input_ids": torch.tensor([[START]])}',
    )  # fmt: skip


def _start_token(model: nn.Module) -> int | None:
    for config in (getattr(model, "generation_config", None), getattr(model, "config", None)):
        start = getattr(config, "decoder_start_token_id", None)
        if isinstance(start, int):
            return start
    return None


def _writes_behind_encoder(model: nn.Module) -> bool:
    """Whether a model writes a text with a decoder behind an encoder."""
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False)) and _writes(model)


def _writes(model: nn.Module) -> bool:
    """Whether a model of Hugging Face writes texts."""
    can: Any = getattr(model, "can_generate", None)
    return callable(can) and bool(can())


def _bound(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name."""
    try:
        bound = inspect.signature(model.forward).bind_partial(*args, **kwargs).arguments
    except (TypeError, ValueError):
        return dict(kwargs)
    return {**kwargs, **bound}


# ---- the last token --------------------------------------------------------------------------------------------------


def find_ends(
    model: nn.Module, inputs: tuple[tuple[Any, ...], dict[str, Any]], nodes: Sequence[Node], first: Node, output: Node
) -> Tensor | None:  # fmt: skip
    """Each sample's last position in the output that is not padding, where the output has a position for each token.

    ``first`` is the first of the user's inputs. Of an encoder and a decoder the output's tokens are the decoder's. A
    model that writes, and whose output has more positions than the text (an image before it) or fewer (only the last
    ones are computed), has the text's positions at its end.
    """
    behind = _writes_behind_encoder(model)
    found = [node for node in nodes if _is_sequence(node)]
    length = output.shape[1] if output.ndim == 3 else None
    same = next((node for node in found if node.shape[1] == length), None)
    if behind and same is None:
        return None
    if same is None:
        text = next((node for node in found if node is first or _writes(model)), None)
        if text is None:
            return None
        return _last(text, _mask(model, inputs, behind), None if length is None or not _writes(model) else length)
    return _last(same, _mask(model, inputs, behind), None)


def _is_sequence(node: Node) -> bool:
    """Whether a source is a sequence of tokens, ``(samples, positions, channels)``."""
    if not isinstance(node.op, Source) or node.ndim != 3 or node.sample != 0:
        return False
    return node.op.kind == "embedding" or node.name.endswith("inputs_embeds")


def _mask(model: nn.Module, inputs: tuple[tuple[Any, ...], dict[str, Any]], behind: bool) -> Tensor | None:
    mask = _bound(model, *inputs).get("decoder_attention_mask" if behind else "attention_mask")
    return mask if isinstance(mask, Tensor) and mask.ndim == 2 else None


def _last(text: Node, mask: Tensor | None, outputs: int | None) -> Tensor | None:
    """The last positions of a text that are not padding; counted from the end of so many ``outputs`` if given."""
    batch, length = text.shape[:2]
    if mask is None or mask.shape != (batch, length):
        ends = torch.full((batch,), length - 1, device=text.value.device)
    else:
        ends = ((mask != 0) * torch.arange(1, length + 1, device=mask.device)).amax(1) - 1
    if outputs is None:
        return ends
    moved = ends + outputs - length
    return moved if bool((moved >= 0).all()) else None
