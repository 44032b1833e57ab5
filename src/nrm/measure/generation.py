"""Generated text: what every token that a language model writes owes to those before it.

The model writes on, and is then captured once, on everything but its last token: at every position it predicts the next
one, so all explained outputs are on one tape. Their densities travel down together, as a stack with one element per
token, and no answer of one token is computed before another. A stream does the same piece by piece: it writes some
tokens, explains them, forgets the tape, and goes on.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, final, overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nrm.capture import plain_execution
from nrm.errors import QuestionError, names_options
from nrm.measure.inner import Listener, progress_of
from nrm.measure.making import measure
from nrm.measure.measure import Measure
from nrm.measure.prompts import (
    Answer,
    Prompt,
    check_writing,
    is_over,
    read_answer,
    read_prompt,
    refuse_encoders,
    refuse_longer,
    written,
)
from nrm.measure.reference import FROM_DATA, WORDS
from nrm.measure.written import Generated, WrittenToken
from nrm.memory import fitting
from nrm.questions import Site, pull_to

PIECES = (1, 2, 4, 8)
"""How many tokens the first pieces of a stream have, so that the first row is there soon; all others have PIECE."""
PIECE = 16

MANY = 2**12
"""So many words of the vocabulary are looked up at a time for their mean."""


@final
class Writing(Iterator[WrittenToken]):
    """A text while it is written: gives every token with its shares, as soon as they are known.

    ``generated`` is the table of all that has come; whoever stops before the end has that of the tokens so far.
    Nothing is computed but by ``next``, and of the tapes only the last one is kept.
    """

    def __init__(self, asked: _GrowingText, sizes: Iterable[int], show: bool | Listener | None) -> None:
        self._asked, self._text = asked, asked.begin
        self._names = list(asked.names(asked.begin)[0])
        self._rows: list[Tensor] = []
        self._values: list[Tensor] = []
        self._measure: Measure | None = None
        self._coming: Iterator[WrittenToken] = progress_of(show, "tokens")(self._tokens(sizes), asked.most)

    def __next__(self) -> WrittenToken:
        return next(self._coming)

    @property
    def tokens(self) -> tuple[str, ...]:
        """The tokens of the prompt, and those that have come."""
        return tuple(self._names)

    @property
    def generated(self) -> Generated:
        """What has come so far, as a table."""
        begin, count = self._asked.begin.shape[1], len(self._rows)
        if self._measure is None or not count:
            raise QuestionError("nothing was generated", got=f"{begin} tokens of the prompt, and none behind them",
                                expected="at least one generated token", hint="tokens=32, or answer='...'")  # fmt: skip
        wide = begin + count - 1
        ids = self._text[:, : wide + 1]
        relevance = torch.stack([F.pad(row, (0, wide - len(row))) for row in self._rows])
        texts, special = self._asked.names(ids)
        return Generated(
            relevance, texts, begin, torch.stack(self._values), special, ids, self._measure, self._asked.compared()
        )

    def __repr__(self) -> str:
        return f"Writing: {len(self._rows)} tokens behind {self._asked.begin.shape[1]} of the prompt"

    def _tokens(self, sizes: Iterable[int]) -> Iterator[WrittenToken]:
        for text in self._asked.pieces(sizes):
            yield from self._piece(text)

    def _piece(self, text: Tensor) -> Iterator[WrittenToken]:
        """The tokens that have come since the last piece, all on one tape, which takes the place of the one before."""
        self._measure = None
        begin = self._text.shape[1]
        R, targets = self._asked.captured(text, begin)
        R.inner.be_loud()
        self._measure, self._text = R, text
        texts, _ = self._asked.names(text[:, begin:])
        output = R.inner.tape.nodes[R.inner.tape.output].value
        done = 0
        for part in _apart(targets, _at_once(R)):
            with plain_execution():
                found = _shares(R, part)
            for (at, token), row in zip(part, found, strict=True):
                value = output[0, at, token].clone()
                self._rows.append(row[: begin + done].clone())
                self._values.append(value)
                self._names.append(texts[done])
                yield WrittenToken(texts[done], self._rows[-1], float(value))
                done += 1


@dataclass(frozen=True)
class _GrowingText:
    """A prompt and what comes behind it: written by a model or given, captured, and what it is compared with."""

    model: Any
    tokenizer: Any
    begin: Tensor
    answer: Tensor | None
    tokens: int
    against: Tensor | str | None
    options: Mapping[str, Any]
    how: Mapping[str, Any]

    @property
    def most(self) -> int:
        """How many tokens will come, at most."""
        return self.tokens if self.answer is None else self.answer.shape[1]

    def pieces(self, sizes: Iterable[int]) -> Iterator[Tensor]:
        """The text as it grows, by so many tokens each time."""
        text, start = self.begin, self.begin.shape[1]
        for size in sizes:
            done = text.shape[1] - start
            asked = min(size, self.most - done)
            if self.answer is not None:
                longer = torch.cat([text, self.answer[:, done : done + asked]], 1)
            else:
                longer = written(self.model, self.tokenizer, text, asked, self.options, done)
            new = longer.shape[1] - text.shape[1]
            if new:
                yield longer
            text, done = longer, done + new
            over = self.answer is None and (
                new < asked or is_over(self.model, self.tokenizer, text[0, start:], self.options)
            )
            if over or done >= self.most:
                return

    def captured(self, text: Tensor, begin: int) -> tuple[Measure, list[tuple[int, int]]]:
        """The measure of the first token from ``begin`` on, and the places of all of them in its output."""
        count = text.shape[1] - begin
        inputs, other = self._inputs(text)
        row = begin - 1
        if "logits_to_keep" in inspect.signature(self.model.forward).parameters:
            row = 0  # of the output head, only what is explained
            inputs["logits_to_keep"] = other["logits_to_keep"] = count
        targets = [(row + k, int(text[0, begin + k])) for k in range(count)]
        against = other if self.against is not None else None
        return measure(self.model, inputs, target=targets[0], against=against, **self.how), targets

    def _inputs(self, text: Tensor) -> tuple[dict[str, Any], dict[str, Any]]:
        """The inputs of the model for a text but its last token, and those of its reference."""
        ids, start = text[:, :-1], self.begin.shape[1]
        if isinstance(self.against, str):
            with torch.no_grad():
                words = self.model.get_input_embeddings()(ids)
            twin = words.clone()
            twin[:, [i for i, mark in enumerate(self.names(self.begin)[1]) if not mark]] = self._mean.to(words)
            return {"inputs_embeds": words}, {"inputs_embeds": twin}
        twin = ids if self.against is None else torch.cat([self.against, ids[:, start:]], 1)
        name = _name_of_ids(self.model)
        return {name: ids}, {name: twin}

    @cached_property
    def _mean(self) -> Tensor:
        """The mean of all words that the model knows."""
        words, total = self.model.get_input_embeddings(), torch.zeros(1, device=self.begin.device)
        count: int = words.num_embeddings
        for begin in range(0, count, MANY):
            some = torch.arange(begin, min(begin + MANY, count), device=self.begin.device)
            with torch.no_grad():
                found: Tensor = words(some).sum(0, dtype=torch.float64)
            total = total + found
        return total / count

    def names(self, ids: Tensor) -> tuple[tuple[str, ...], tuple[bool, ...]]:
        """The texts of tokens, and which of them are no text."""
        numbers = ids[0].tolist()
        if self.tokenizer is None:
            return tuple(map(str, numbers)), (False,) * len(numbers)
        marks = set(getattr(self.tokenizer, "all_special_ids", ()))
        return tuple(self.tokenizer.convert_ids_to_tokens(numbers)), tuple(i in marks for i in numbers)

    def compared(self) -> tuple[str, ...] | None:
        """The tokens of the reference."""
        return self.names(self.against)[0] if isinstance(self.against, Tensor) else None


def _name_of_ids(model: nn.Module) -> str:
    """What the model calls its tokens: ``input_ids``, or whatever its first argument is called."""
    arguments = inspect.signature(model.forward).parameters
    takes_any = any(argument.kind is argument.VAR_KEYWORD for argument in arguments.values())
    return "input_ids" if takes_any or "input_ids" in arguments else next(iter(arguments))


@overload
def generated(
    model: nn.Module, tokenizer: Any, prompt: Prompt, *, tokens: int = ..., answer: Answer | None = ...,
    against: Prompt | None = ..., stream: Literal[False] = ..., rules: Any = ..., bias: str = ...,
    dtype: torch.dtype | None = ..., memory: str | int = ..., progress: bool | Listener | None = ...,
    options: Mapping[str, Any] | None = ...,
) -> Generated: ...  # fmt: skip


@overload
def generated(
    model: nn.Module, tokenizer: Any, prompt: Prompt, *, tokens: int = ..., answer: Answer | None = ...,
    against: Prompt | None = ..., stream: Literal[True], rules: Any = ..., bias: str = ...,
    dtype: torch.dtype | None = ..., memory: str | int = ..., progress: bool | Listener | None = ...,
    options: Mapping[str, Any] | None = ...,
) -> Writing: ...  # fmt: skip


@names_options
def generated(
    model: nn.Module,
    tokenizer: Any,
    prompt: Prompt,
    *,
    tokens: int = 32,
    answer: Answer | None = None,
    against: Prompt | None = None,
    stream: bool = False,
    rules: Any = "auto",
    bias: str = "auto",
    dtype: torch.dtype | None = None,
    memory: str | int = "auto",
    progress: bool | Listener | None = None,
    options: Mapping[str, Any] | None = None,
) -> Generated | Writing:
    """What every token that a language model generates owes to every token before it, captured once for all of them.

    ``prompt`` is a text, a conversation (a list of messages, ``{"role": "user", "content": "..."}``, which the
    tokenizer's chat template writes out), token ids, or the tokenizer's encoding of one text, whose padding is left
    out. The model writes up to ``tokens`` tokens, the most probable one each time, or as ``options`` of its
    ``generate`` say; with ``answer`` it writes nothing, and that text is explained. ``tokenizer`` may be None if prompt
    and answer are ids.

    ``against`` is another prompt of as many tokens, or ``"mean"`` (the mean of all words that the model knows in the
    place of every word of the prompt, marks left as they are): then shares are those of the difference between the
    logits behind the two prompts, with the same answer behind both, and all of it begins in tokens that differ. With
    ``stream=True`` the tokens come one by one, as a :class:`Writing`, while the model writes. The other arguments are
    those of :func:`nrm.measure`.

    >>> G = generated(model, tokenizer, "The cat sat on the", tokens=5)  # doctest: +SKIP
    >>> G.relevance.shape, G.written  # doctest: +SKIP
    (torch.Size([5, 9]), (' mat', '.', ...))
    >>> for text, shares, value in generated(model, tokenizer, "Once upon a", stream=True):  # doctest: +SKIP
    ...     print(text, int(shares.argmax()))
    """
    refuse_encoders(model)
    begin = read_prompt(model, tokenizer, prompt)
    given = None if answer is None else read_answer(model, tokenizer, answer)
    if given is None:
        check_writing(model, tokenizer, tokens, options or {}, stream)
    elif options:
        raise QuestionError(
            "a given answer is not written", got=f"options={dict(options)!r}"[:120], hint="leave one out"
        )
    refuse_longer(model, begin.shape[1], tokens if given is None else given.shape[1])
    how = {"rules": rules, "bias": bias, "dtype": dtype, "memory": memory, "progress": progress}
    other = None if against is None else _read_against(model, tokenizer, begin, against)
    asked = _GrowingText(model, tokenizer, begin, given, tokens, other, options or {}, how)
    writing = Writing(asked, itertools.chain(PIECES, itertools.repeat(PIECE)) if stream else [asked.most], progress)
    if stream:
        return writing
    for _ in writing:
        pass
    return writing.generated


def _read_against(model: nn.Module, tokenizer: Any, begin: Tensor, against: Any) -> Tensor | str:
    """The prompt to compare with, which has its counterpart for every token, or a word."""
    if isinstance(against, str) and against in (*WORDS, *FROM_DATA):
        if against != "mean":
            raise QuestionError(f"there is no reference {against!r} for a text", expected="another prompt, or 'mean'")
        return against
    other = read_prompt(model, tokenizer, against)
    if other.shape != begin.shape:
        raise QuestionError(
            "the two prompts do not have as many tokens", got=f"{other.shape[1]} tokens of against=",
            expected=f"{begin.shape[1]}, a counterpart for each", hint="words of as many tokens",
        )  # fmt: skip
    if torch.equal(other, begin):
        raise QuestionError("the two prompts are the same", got=repr(against)[:80], expected="one that differs")
    return other


def _at_once(R: Measure) -> int:
    """How many tokens can be explained at once in the memory of a measure."""
    nodes, output = R.inner.tape.nodes, R.inner.tape.nodes[R.inner.tape.output]
    below = nodes[R.inner.resolve(R.tokens.layer)[0].node]
    widest = max(node.shape.numel() for node in nodes if node.ndim == below.ndim and node is not output)
    return fitting(R.inner.memory, widest * output.value.element_size())


def _shares(R: Measure, targets: Sequence[tuple[int, int]]) -> Tensor:
    """The relevance of every token for some targets, ``(targets, tokens)``."""
    network, tape = R.inner.network, R.inner.tape
    goal, _ = R.inner.resolve(R.tokens.layer)
    below, output = tape.nodes[goal.node], tape.nodes[tape.output]
    axes = [a for a in range(below.ndim) if a not in (below.sample, below.channel)]
    start = torch.zeros_like(output.value)[None]
    for at, token in targets:
        start[0, 0, at, token] = 1.0
    arrived = pull_to(network, Site(tape.output), network.started(start), goal, [token for _, token in targets])
    found = None if arrived is None else network.relevance(arrived)
    if found is None:
        return output.value.new_zeros(len(targets), *(below.shape[a] for a in axes))
    return found.sum([a + 1 for a in range(below.ndim) if a not in axes])


def _apart(targets: Sequence[tuple[int, int]], most: int) -> Iterator[list[tuple[int, int]]]:
    """Targets in their order, so many at once; a token that comes twice begins a new part, as its channel is one."""
    part: list[tuple[int, int]] = []
    for target in targets:
        if len(part) == most or any(target[1] == token for _, token in part):
            yield part
            part = []
        part.append(target)
    if part:
        yield part
