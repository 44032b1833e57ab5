"""Texts: of files, and as the tokens of a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nrm.errors import InputError

TEXTS = (".txt",)
"""The endings of files of text."""


def read_text(path: Path) -> str:
    """The text of a file in UTF-8, without white space around it."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError("the text cannot be read", got=f"{path.name}: {type(error).__name__}") from error


def is_tokenizer(given: Any) -> bool:
    """Whether something reads texts as the tokenizers of transformers do."""
    return hasattr(given, "convert_ids_to_tokens")


def tokenize(tokenizer: Any, text: str) -> Mapping[str, Any]:
    """The inputs of a model for a text, a batch of one."""
    made: Mapping[str, Any] = tokenizer(text, return_tensors="pt")
    if not made["input_ids"].numel():
        raise InputError("the text is empty", got=repr(text[:60]))
    return made


def token_names(tokenizer: Any, inputs: Any) -> tuple[str, ...] | None:
    """The texts of the tokens in the inputs of a batch of one; None if these are no tokens, or nobody knows them."""
    if not is_tokenizer(tokenizer) or not isinstance(inputs, Mapping) or "input_ids" not in inputs:
        return None
    return tuple(map(str, tokenizer.convert_ids_to_tokens(inputs["input_ids"][0].tolist())))
