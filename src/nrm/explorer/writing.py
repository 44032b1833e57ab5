"""Generated text in the explorer: the model writes behind a prompt, every token says what it owes to those before."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nrm.errors import NrmWarning, QuestionError
from nrm.explorer.items import MOST_LETTERS, Items
from nrm.explorer.reading import GoneError
from nrm.explorer.worker import PageJob, Worker
from nrm.measure import WrittenToken, generated
from nrm.plot import read_pieces

KEPT = 4
"""How many texts are remembered."""
MOST_WRITTEN = 64
"""How many tokens the model may write."""
PASSED_ON = ("rules", "bias", "dtype", "memory")
"""The options of a measure that generated text has, too."""

Question = Mapping[str, Any]


class _TypedPrompt(NamedTuple):
    """A text that was written: its prompt, whether that was a conversation, and the tokens that came behind it."""

    prompt: Any
    chat: bool
    tokens: tuple[str, ...]


class SessionWriting:
    """What the model of a session writes."""

    def __init__(self, worker: Worker, model: Any, items: Items, options: Mapping[str, Any]) -> None:
        self._worker, self._model, self._items = worker, model, items
        self._options = {name: options[name] for name in PASSED_ON if name in options}
        self._known: dict[str, _TypedPrompt] = {}

    @property
    def facts(self) -> dict[str, Any] | None:
        """What the page is told: whether conversations can be written; None if the model writes no text."""
        tokenizer, config = self._items.tokenizer, getattr(self._model, "config", None)
        able: Any = getattr(self._model, "can_generate", None)
        if tokenizer is None or not callable(able) or not able() or getattr(config, "is_encoder_decoder", False):
            return None
        return {"chat": getattr(tokenizer, "chat_template", None) is not None, "most": MOST_WRITTEN}

    def write(self, question: Question) -> PageJob:
        """Writes behind a prompt, or explains a text that was written as a difference; token by token."""
        if self.facts is None:
            raise QuestionError("this model writes no text", expected="a language model and its tokenizer")
        of = question.get("of")
        if of is not None:
            return self._compare(of, question.get("against"))
        chat, tokens = question.get("chat") is True, question.get("tokens", 16)
        if type(tokens) is not int or not 1 <= tokens <= MOST_WRITTEN:
            raise QuestionError("not a number of tokens", got=repr(tokens)[:80], expected=f"1 to {MOST_WRITTEN}")
        prompt = self._prompt(question, chat)
        return self._worker.submit(lambda job: self._work(job, prompt, chat, {"tokens": tokens}))

    def _prompt(self, question: Question, chat: bool) -> Any:
        """The text that was typed, or the chosen input."""
        text = question.get("prompt")
        if text is None or text == "":
            inputs = self._items[question.get("item", "")].load().inputs
            if not isinstance(inputs, Mapping) or "input_ids" not in inputs:
                raise QuestionError("the chosen input is no text", expected="a prompt")
            return dict(inputs)
        return _as_prompt(text, chat)

    def _compare(self, of: Any, against: Any) -> PageJob:
        text = self._known.get(of) if isinstance(of, str) else None
        if text is None:
            raise GoneError("this text is not there any more", hint="let it be written again")
        other = "mean" if against == {"mean": True} else _as_prompt(against, text.chat)
        answer = self._items.tokenizer.convert_tokens_to_ids(list(text.tokens))
        return self._worker.submit(lambda job: self._work(job, text.prompt, text.chat, {"answer": answer}, other))

    def _work(self, job: PageJob, prompt: Any, chat: bool, what: dict[str, Any], against: Any = None) -> None:
        """Tells the page the prompt, then every token with its shares, then what is left to say."""
        most = what.get("tokens", len(what.get("answer", ())))
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", NrmWarning)
            job.tell("reading the prompt")
            writing = generated(
                self._model, self._items.tokenizer, prompt, against=against, stream=True, progress=False, **what,
                **self._options,
            )  # fmt: skip
            count, shown = len(writing.tokens), 0
            job.patient = True
            for n, token in enumerate(writing, 1):
                if against is None:  # whoever stops before the end can go on with what is there
                    self._keep(job.id, _TypedPrompt(prompt, chat, writing.tokens[count:]))
                pieces = _pieces(writing.tokens)
                job.add({"of": job.id, "text": pieces[shown:], "prompt": count, "row": _row(token)})
                shown = len(pieces)
                job.tell(f"token {min(n + 1, most)} of {most}")
        texts = [str(one.message) for one in said if issubclass(one.category, NrmWarning)]
        job.add({"end": {"notes": texts, "script": _script(prompt, what, against, count)}})

    def _keep(self, id: str, text: _TypedPrompt) -> None:
        self._known[id] = text
        while len(self._known) > KEPT:
            del self._known[next(iter(self._known))]


def _as_prompt(text: Any, chat: bool) -> Any:
    if not isinstance(text, str) or not text.strip() or len(text) > MOST_LETTERS:
        raise QuestionError("not a prompt", got=repr(text)[:80], expected=f"some words, at most {MOST_LETTERS} letters")
    return [{"role": "user", "content": text}] if chat else text


def _pieces(tokens: tuple[str, ...]) -> list[dict[str, Any]]:
    """Tokens as the page shows them."""
    return [{"text": p.text, "space": p.space, "ends": p.ends} for p in read_pieces(tokens)]


def _row(token: WrittenToken) -> dict[str, Any]:
    return {"shares": _rounded(token.relevance), "value": round(token.value, 4)}


def _rounded(shares: Tensor) -> list[float]:
    return [round(share, 5) for share in shares.to(torch.float64).tolist()]


def _script(prompt: Any, what: Mapping[str, Any], against: Any, count: int) -> str:
    """How Python says what the page was asked."""
    written = f"{count} tokens of an input" if isinstance(prompt, Mapping) else repr(prompt)
    asked = f"tokens={what['tokens']}" if "tokens" in what else "answer=written"
    other = "" if against is None else f", against={against!r}"
    begin = f"prompt = ...  # {written}" if isinstance(prompt, Mapping) else f"prompt = {written}"
    return f"{begin}\nG = nrm.generated(model, tokenizer, prompt, {asked}{other})\nnrm.plot.generated(G)"
