"""Models of Hugging Face: a folder, or a name of the hub. Weights and settings are read; no code of theirs runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from nrm.cli.imported import describe, using
from nrm.cli.transforms import Transform
from nrm.errors import InputError, NrmError

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json", "vocab.txt", "spiece.model")
"""Files of which a folder with a tokenizer has one."""


@dataclass(frozen=True, eq=False)
class FoundModel:
    """A model, and what makes its input; ``tokens`` says whether that is a text."""

    model: nn.Module
    transform: Transform | None
    tokenizer: Any
    labels: Mapping[int, str] | None
    notes: tuple[str, ...]
    tokens: bool


def load_hugging(name: str) -> FoundModel:
    """The model of a folder, or of the hub by name, in the architecture that its settings say."""
    folder = Path(name).is_dir()
    if not folder and (name.startswith((".", "/", "~")) or name.count("/") > 1):
        raise InputError("no such folder", got=name, expected="a folder with config.json and weights")
    if folder and not (Path(name) / "config.json").is_file():
        raise InputError("the folder has no model", got=name, expected="config.json and weights")
    with using("text", f"hf:{name}"):
        import transformers
    hub: Any = transformers
    config = _had(lambda: hub.AutoConfig.from_pretrained(name), name, folder)
    kind = (getattr(config, "architectures", None) or [None])[0]
    if kind is None:
        raise InputError("the model does not say what it is", where=name, expected="architectures in config.json")
    with using("text", f"hf:{name}"):
        make = getattr(hub, kind, None)
    if make is None:
        raise InputError("transformers does not know this architecture", where=name, got=str(kind))
    model = _had(lambda: make.from_pretrained(name, trust_remote_code=False), name, folder)
    classes = config.id2label if "Classification" in kind else None
    if model.main_input_name == "pixel_values":
        processor = _had(lambda: hub.AutoImageProcessor.from_pretrained(name), name, folder)
        transform = Transform(partial(_pixels, processor), f"that of {name}")
        return FoundModel(model, transform, None, classes, (), tokens=False)
    tokenizer = _tokenizer(hub, name, folder)
    notes = () if tokenizer else (f"{name} has no tokenizer that can be read: inputs are token ids (.npy)",)
    return FoundModel(model, None, tokenizer, classes or _vocabulary(tokenizer), notes, tokens=True)


def _pixels(processor: Any, image: Any) -> dict[str, Any]:
    return {"pixel_values": processor(image.convert("RGB"), return_tensors="pt")["pixel_values"][0]}


def _tokenizer(hub: Any, name: str, folder: bool) -> Any:
    if folder and not any((Path(name) / file).is_file() for file in TOKENIZERS):
        return None
    try:
        return hub.AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError, ImportError, KeyError):
        return None


def _vocabulary(tokenizer: Any) -> dict[int, str] | None:
    """Tokens by number, as they are shown."""
    return None if tokenizer is None else {i: token for token, i in tokenizer.get_vocab().items()}


@contextmanager
def _without_bars() -> Iterator[None]:
    """Commands have a bar of their own."""
    from transformers.utils import logging as talk

    logging: Any = talk
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _had(get: Callable[[], Any], name: str, folder: bool) -> Any:
    try:
        with using("text", f"hf:{name}"), _without_bars():
            return get()
    except NrmError:
        raise
    except Exception as error:  # files and networks can fail in any way
        kind = InputError if folder else NrmError
        hint = None if folder else "a folder with config.json and weights needs no network"
        raise kind("the model cannot be had", where=os.fspath(name), got=describe(error), hint=hint) from error
