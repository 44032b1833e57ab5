"""Prompts of language models: texts, conversations and tokens become ids, and the model writes on behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nrm.devices import home_of
from nrm.errors import NrmError, QuestionError, warn

OURS = {
    "max_new_tokens": "tokens=", "max_length": "tokens=", "input_ids": "the prompt", "inputs_embeds": "the prompt",
    "attention_mask": "the prompt, an encoding of the tokenizer", "num_return_sequences": "one text at a time",
    "return_dict_in_generate": "the result's own fields", "streamer": "stream=True",
}  # fmt: skip
"""Options of ``generate`` that are said in another way here."""

WHOLE = (
    "num_beams",
    "max_time",
    "exponential_decay_length_penalty",
    "begin_suppress_tokens",
    "prompt_lookup_num_tokens",
)
"""Options of ``generate`` that are about the whole text, and say something else about its pieces."""

Message = Mapping[str, Any]
Prompt = str | Sequence[Message] | Sequence[int] | Mapping[str, Any] | Tensor
"""A text, a conversation, ids, or the encoding of one text."""

Answer = str | Sequence[int] | Tensor
"""A text, or ids."""


def read_prompt(model: nn.Module, tokenizer: Any, prompt: Any) -> Tensor:
    """The tokens of a prompt, ``(1, tokens)``, where the model is; padding is left out."""
    if isinstance(prompt, Mapping):
        ids = _unpadded(prompt)
    elif isinstance(prompt, Tensor) or _is_list_of(prompt, int):
        ids = _ids(prompt, "not the tokens of one prompt")
        _refuse_padding(tokenizer, ids)
    elif isinstance(prompt, str):
        ids = _unpadded(_known(tokenizer)(prompt, return_tensors="pt"))
        _warn_of_two_beginnings(tokenizer, ids)
    elif _is_list_of(prompt, str):
        raise _several(len(prompt))
    else:
        ids = _conversation(tokenizer, prompt)
    if not ids.shape[1]:
        raise QuestionError("the prompt has no tokens", got=repr(prompt)[:80], expected="a text")
    return _checked(model, ids)


def read_answer(model: nn.Module, tokenizer: Any, answer: Any) -> Tensor:
    """The tokens of a given answer, ``(1, tokens)``; padding behind the token that ends it is left out."""
    if isinstance(answer, str):
        answer = _known(tokenizer)(answer, add_special_tokens=False)["input_ids"]
    ids = _ids(answer, "not the tokens of one answer")
    end, pad = _token(tokenizer, "eos_token_id"), _token(tokenizer, "pad_token_id")
    real = ((ids[0] != end) & (ids[0] != pad)).nonzero()[:, 0]
    stop = int(real[-1]) + 1 if len(real) else 0
    return _checked(model, ids[:, : stop + bool((ids[0, stop : stop + 1] == end).any())])


def _conversation(tokenizer: Any, messages: Any) -> Tensor:
    """A conversation as the tokenizer's chat template writes it; behind a last message of the assistant it goes on."""
    alike = isinstance(messages, list | tuple) and all(isinstance(m, Mapping) and "role" in m for m in messages)
    if not alike or not messages:
        raise QuestionError(
            "not a prompt", got=repr(messages)[:80],
            expected='a text, token ids, or messages such as [{"role": "user", "content": "Hello"}]',
        )  # fmt: skip
    if getattr(_known(tokenizer), "chat_template", None) is None:
        raise QuestionError("the tokenizer has no chat template", got=type(tokenizer).__name__,
                            hint="a prompt that is a text")  # fmt: skip
    begun = messages[-1]["role"] == "assistant"
    how = {"continue_final_message": True} if begun else {"add_generation_prompt": True}
    try:
        text = tokenizer.apply_chat_template(list(messages), tokenize=False, **how)
    except Exception as error:  # templates complain in words of their own, by errors of any class
        raise QuestionError("the chat template refuses this conversation", got=f"{type(error).__name__}: {error}"[:200],
                            hint="roles and their order as the model was trained with") from error  # fmt: skip
    return _unpadded(tokenizer(text, return_tensors="pt", add_special_tokens=False))  # marks are in the template


def _unpadded(encoding: Mapping[str, Any]) -> Tensor:
    """The tokens of an encoding, less those that its mask leaves out: padding on the left or on the right."""
    if "input_ids" not in encoding:
        raise QuestionError("not the encoding of a prompt", got=", ".join(map(str, encoding))[:80],
                            expected="input_ids, and attention_mask if there is padding")  # fmt: skip
    ids = _ids(encoding["input_ids"], "not the tokens of one prompt")
    if encoding.get("attention_mask") is None:
        return ids
    mask = _row(encoding["attention_mask"], "not the mask of one prompt") != 0
    if mask.shape != ids.shape:
        raise QuestionError("tokens and mask do not match", got=f"{mask.shape[1]} of the mask",
                            expected=f"{ids.shape[1]}, one for each token")  # fmt: skip
    kept = mask[0].nonzero()[:, 0]
    if len(kept) and int(kept[-1] - kept[0]) + 1 != len(kept):
        raise QuestionError("the mask leaves out tokens inside the prompt", got=str(mask[0].int().tolist())[:80],
                            expected="padding on the left or on the right")  # fmt: skip
    return ids[:, mask[0]]


def _row(given: Any, complaint: str) -> Tensor:
    """One row of numbers."""
    try:
        row = torch.as_tensor(given).detach().clone()
    except (TypeError, ValueError, RuntimeError):
        raise QuestionError(complaint, got=type(given).__name__, expected="integers of shape (tokens,)") from None
    row = row[None] if row.ndim == 1 else row
    if row.ndim == 2 and row.shape[0] > 1:
        raise _several(len(row), complaint)
    if row.ndim != 2:
        raise QuestionError(complaint, got=f"shape {tuple(row.shape)}", expected="(tokens,) or (1, tokens)")
    return row


def _ids(given: Any, complaint: str) -> Tensor:
    """One row of integers."""
    row = _row(given, complaint)
    if row.numel() and (row.is_floating_point() or row.is_complex() or row.dtype == torch.bool):
        raise QuestionError(complaint, got=str(row.dtype), expected="integers")
    return row.long()


def _several(count: int, complaint: str = "not a prompt") -> QuestionError:
    return QuestionError(
        complaint, got=f"{count} of them", expected="one at a time: nothing is shared between prompts",
        hint="[nrm.generated(model, tokenizer, prompt) for prompt in prompts]; of an encoding, "
        "{name: rows[i : i + 1] for name, rows in encoding.items()}",
    )  # fmt: skip


def _checked(model: nn.Module, ids: Tensor) -> Tensor:
    """Tokens on the model's device, all of which it knows."""
    table = getattr(model, "get_input_embeddings", lambda: None)()
    size = getattr(table, "num_embeddings", None)
    if size is not None and ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < size:
        raise QuestionError("a token that the model does not know", got=f"{int(ids.min())} to {int(ids.max())}",
                            expected=f"0 to {size - 1}", hint="the tokenizer of this model")  # fmt: skip
    return ids.to(home_of(model))


def _refuse_padding(tokenizer: Any, ids: Tensor) -> None:
    """Ids have no mask; the token that pads, if it does nothing else, is none of a prompt."""
    pad = _token(tokenizer, "pad_token_id")
    if pad not in (-1, _token(tokenizer, "bos_token_id"), _token(tokenizer, "eos_token_id")) and bool(
        (ids == pad).any()
    ):
        raise QuestionError("the prompt has padding", got=f"{int((ids == pad).sum())} times token {pad}",
                            hint="the tokenizer's encoding, with its attention_mask")  # fmt: skip


def _warn_of_two_beginnings(tokenizer: Any, ids: Tensor) -> None:
    first = ids[0, :2].tolist()
    if len(first) == 2 and first[0] == first[1] == _token(tokenizer, "bos_token_id"):
        warn(
            "the prompt begins with two marks of the beginning: one is written in the text, one is the tokenizer's; "
            "give the conversation itself, or the text without its mark"
        )


def _token(tokenizer: Any, name: str) -> int:
    """A special token by name; -1 if there is none."""
    found = getattr(tokenizer, name, None)
    return found if isinstance(found, int) else -1


def _known(tokenizer: Any) -> Any:
    if tokenizer is None:
        raise QuestionError("a text needs a tokenizer", got="tokenizer=None", hint="AutoTokenizer.from_pretrained(...)")
    return tokenizer


def _is_list_of(given: Any, kind: type) -> bool:
    return isinstance(given, list | tuple) and len(given) > 0 and all(type(one) is kind for one in given)


# ---- writing -----------------------------------------------------------------------------------------------------


def check_writing(model: nn.Module, tokenizer: Any, tokens: Any, options: Mapping[str, Any], in_pieces: bool) -> None:
    """Refuses what cannot be written, before anything is."""
    if type(tokens) is not int or tokens < 1:
        raise QuestionError("not a number of tokens", got=f"tokens={tokens!r}", expected="1, 2, ...")
    if not hasattr(model, "generate"):
        raise QuestionError("the model cannot write by itself", got=type(model).__name__,
                            expected="a model with generate()", hint="answer='...' explains a given text")  # fmt: skip
    for name in options:
        if name in OURS:
            raise QuestionError("generate's option is said in another way here", got=f"options={{{name!r}: ...}}",
                                hint=OURS[name])  # fmt: skip
    whole = [name for name in options if in_pieces and name in WHOLE]
    if whole:
        raise QuestionError("this option is about the whole text, which a stream writes piece by piece",
                            got=f"options={{{whole[0]!r}: ...}}", hint="stream=False")  # fmt: skip
    if "stop_strings" in options:
        _known(tokenizer)


def refuse_longer(model: nn.Module, prompt: int, more: int) -> None:
    """Refuses texts that have more tokens than the model has places."""
    most = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    if isinstance(most, int) and prompt + more > most:
        room = most - prompt
        raise QuestionError("the text is longer than the model reads", got=f"{prompt} tokens of the prompt and {more}",
                            expected=f"{most} together",
                            hint=f"tokens={room}" if room > 0 else "a shorter prompt")  # fmt: skip


def refuse_encoders(model: nn.Module) -> None:
    """Refuses models whose prompt and text are read by different halves."""
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        raise QuestionError(
            "a decoder behind an encoder does not write on", got=type(model).__name__, expected="a decoder alone",
            hint="nrm.measure(model, {'input_ids': ..., 'decoder_input_ids': ...}, target=(position, token))",
        )  # fmt: skip


def written(model: Any, tokenizer: Any, text: Tensor, tokens: int, options: Mapping[str, Any], before: int) -> Tensor:
    """The text and up to so many tokens behind it, of which it has some ``before``, as the model's generate says."""
    settings = {"do_sample": False, **options, "max_new_tokens": tokens}
    if getattr(model.generation_config, "pad_token_id", None) is None:
        settings.setdefault("pad_token_id", 0)  # one prompt alone has no padding; without it there is a warning
    if "stop_strings" in settings:
        settings.setdefault("tokenizer", tokenizer)
    if "min_new_tokens" in settings:
        settings["min_new_tokens"] = min(tokens, max(0, settings["min_new_tokens"] - before))
    try:
        with torch.no_grad():
            found: Tensor = model.generate(text, attention_mask=torch.ones_like(text), **settings)
    except (TypeError, ValueError) as error:
        if not options or isinstance(error, NrmError):
            raise
        raise QuestionError("the model does not write with these options", got=str(error)[:200],
                            expected=f"options of {type(model).__name__}.generate") from error  # fmt: skip
    return found


def is_over(model: Any, tokenizer: Any, answer: Tensor, options: Mapping[str, Any]) -> bool:
    """Whether a text has come to its end: by a token that ends it, or a string at which it stops."""
    ends = options.get("eos_token_id", model.generation_config.eos_token_id)
    stops = options.get("stop_strings", ())
    if int(answer[-1]) in (ends if isinstance(ends, list | tuple) else [ends]):
        return True
    text = tokenizer.decode(answer.tolist()) if stops else ""
    return any(text.endswith(stop) for stop in ([stops] if isinstance(stops, str) else stops))
