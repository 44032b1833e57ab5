"""Texts as tokens: of prompts, and of answers, each of which is one token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nrm.errors import InputError
from nrm.files import is_tokenizer


def encode(tokenizer: Any, text: str, *, alone: bool = True) -> list[int]:
    """The ids of a text, by a tokenizer of Hugging Face, an object with ``encode``, or a function from text to ids.

    ``alone=False`` leaves out what a tokenizer of Hugging Face puts around a text, such as a mark of its beginning.
    """
    if is_tokenizer(tokenizer) and not alone:
        made = tokenizer(text, add_special_tokens=False)
    else:
        made = tokenizer(text) if callable(tokenizer) else tokenizer.encode(text)
    ids = made["input_ids"] if isinstance(made, Mapping) else made
    return [int(i) for i in ids]


def pieces(tokenizer: Any, ids: list[int]) -> str:
    """Ids as the tokens that they are, to be shown."""
    named = tokenizer.convert_ids_to_tokens(ids) if is_tokenizer(tokenizer) else ids
    return " + ".join(map(repr, named))


def word(tokenizer: Any, token: int) -> str:
    """The text of a token, or its number if the tokenizer cannot tell."""
    return str(tokenizer.decode([token])) if hasattr(tokenizer, "decode") else str(token)


def answer_token(tokenizer: Any, prompt: str, answer: str) -> int:
    """The one token of an answer, as it follows its prompt.

    It is what is added to the tokens of the prompt. Where the prompt is read differently with the answer behind it, as
    by tokenizers that end every text with a mark, it is the token of the answer by itself.
    """
    before, whole = encode(tokenizer, prompt), encode(tokenizer, prompt + answer)
    ids = whole[len(before) :] if whole[: len(before)] == before else encode(tokenizer, answer, alone=False)
    if len(ids) != 1:
        raise InputError(
            "an answer is not one token", got=f"{answer!r}, which is {pieces(tokenizer, ids) or 'nothing'}",
            expected="one token after the prompt",
            hint="an answer that begins with one token, its white space included (' Mary'); bad='skip' leaves it out",
        )  # fmt: skip
    return ids[0]


__all__ = ["answer_token", "encode", "pieces", "word"]
