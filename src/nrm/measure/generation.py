"""Generated text: what every token that a language model writes owes to those before it.

The model writes on, and is then captured once, on everything but its last token: at every position it predicts the next
one, so all explained outputs are on one tape. Their densities travel down together, as a stack with one element per
token, and no answer of one token is computed before another.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from nrm.capture import plain_execution
from nrm.errors import QuestionError, names_options
from nrm.measure.making import measure
from nrm.measure.measure import Measure
from nrm.memory import fitting
from nrm.questions import Site, pull_to
from nrm.tables import Results


@dataclass(frozen=True, eq=False, repr=False)
class Generated:
    """What generated tokens owe to the tokens before them.

    ``relevance[g, s]`` is the share of source token s in the logit of generated token g: each row sums to 1, less the
    share of biases (``rest``), and is 0 from the token itself on. ``tokens`` are the texts of the prompt's tokens, of
    which there are ``prompt``, and of the generated ones behind them; ``special`` says which are no text (marks of the
    beginning, of turns). ``values`` are the explained logits: of a negative one, shares argue for the negative value.
    """

    relevance: Tensor
    tokens: tuple[str, ...]
    prompt: int
    values: Tensor
    special: tuple[bool, ...]
    ids: Tensor
    measure: Measure
    """The measure of the first generated token, on the tape of all; more can be asked there."""

    @property
    def sources(self) -> tuple[str, ...]:
        """The tokens that something can come from: all but the last one."""
        return self.tokens[:-1]

    @property
    def written(self) -> tuple[str, ...]:
        """The generated tokens."""
        return self.tokens[self.prompt :]

    @property
    def rest(self) -> Tensor:
        """The share of every generated token that is in no token: that of biases and other constants."""
        return 1 - self.relevance.sum(1)

    @property
    def first(self) -> Tensor:
        """The share of the first token, to which attention that is not needed goes in many models."""
        return self.relevance[:, 0]

    @cached_property
    def table(self) -> Results:
        """The shares as a table with the names of the tokens, which becomes one of pandas or xarray."""
        labels = {"generated": self.written, "source": self.sources}
        return Results({"relevance": self.relevance}, {"relevance": ("generated", "source")}, labels=labels)

    def without_first(self) -> Tensor:
        """The shares of all tokens but the first, of what the first one has not: each row sums to 1 less ``rest``."""
        left = (1 - self.first)[:, None]
        return self.relevance[:, 1:] / torch.where(left == 0, torch.ones_like(left), left)

    def __len__(self) -> int:
        return len(self.relevance)

    def __repr__(self) -> str:
        head = f"Generated: {len(self)} tokens from {self.prompt} of the prompt"
        return f"{head}, {float(self.first.mean()):.0%} in the first token\n{self.table}"


@names_options
def generated(
    model: nn.Module,
    tokenizer: Any,
    prompt: str | Sequence[Mapping[str, str]] | Tensor,
    *,
    tokens: int = 32,
    answer: str | Tensor | None = None,
    rules: Any = "auto",
    bias: str = "auto",
    dtype: torch.dtype | None = None,
    memory: str | int = "auto",
    options: Mapping[str, Any] | None = None,
) -> Generated:
    """What every token that a language model generates owes to every token before it, captured once for all of them.

    ``prompt`` is a text, a conversation (a list of messages, ``{"role": "user", "content": "..."}``, which the
    tokenizer's chat template writes out), or token ids. The model writes up to ``tokens`` tokens, the most probable one
    each time, or as ``options`` of its ``generate`` say; with ``answer`` it writes nothing, and that text is explained.
    ``tokenizer`` may be None if prompt and answer are ids. The other arguments are those of :func:`nrm.measure`.

    >>> from transformers import LlamaConfig, LlamaForCausalLM  # doctest: +SKIP
    >>> G = generated(model, tokenizer, "The cat sat on the", tokens=5)  # doctest: +SKIP
    >>> G.relevance.shape, G.written  # doctest: +SKIP
    (torch.Size([5, 9]), (' mat', '.', ...))
    """
    begin = _prompt_ids(tokenizer, prompt).to(_home(model))
    whole = _written(model, tokenizer, begin, tokens, answer, options or {})
    count, start = whole.shape[1] - begin.shape[1], begin.shape[1]
    if count < 1:
        raise QuestionError("nothing was generated", got=f"{start} tokens of the prompt, and none behind them",
                            expected="at least one generated token", hint="tokens=32, or answer='...'")  # fmt: skip
    inputs: dict[str, Any] = {"input_ids": whole[:, :-1]}
    row = start - 1
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        inputs["logits_to_keep"], row = count, 0  # of the output head, only what is explained
    targets = [(row + k, int(whole[0, start + k])) for k in range(count)]
    R = measure(model, inputs, target=targets[0], rules=rules, bias=bias, dtype=dtype, memory=memory)
    R.inner.be_loud()
    with plain_execution():
        relevance = torch.cat(list(_shares(R, targets)))
    output = R.inner.tape.nodes[R.inner.tape.output].value
    values = torch.stack([output[0, at, token] for at, token in targets])
    texts, special = _texts(tokenizer, whole[0].tolist())
    return Generated(relevance, texts, start, values, special, whole, R)


def _shares(R: Measure, targets: Sequence[tuple[int, int]]) -> Iterator[Tensor]:
    """The relevance of every token for some targets, ``(targets, tokens)``, as many at once as memory allows."""
    network, tape = R.inner.network, R.inner.tape
    goal, _ = R.inner.resolve(R.tokens.layer)
    below, output = tape.nodes[goal.node], tape.nodes[tape.output]
    axes = [a for a in range(below.ndim) if a not in (below.sample, below.channel)]
    widest = max(node.shape.numel() for node in tape.nodes if node.ndim == below.ndim and node is not output)
    for part in _apart(targets, fitting(R.inner.memory, widest * output.value.element_size())):
        start = torch.zeros_like(output.value)[None]
        for at, token in part:
            start[0, 0, at, token] = 1.0
        tokens = [token for _, token in part]
        arrived = pull_to(network, Site(tape.output), network.started(start), goal, tokens)
        found = None if arrived is None else network.relevance(arrived)
        if found is None:
            yield output.value.new_zeros(len(part), *(below.shape[a] for a in axes))
        else:
            yield found.sum([a + 1 for a in range(below.ndim) if a not in axes])


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


def _home(model: nn.Module) -> torch.device:
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def _prompt_ids(tokenizer: Any, prompt: Any) -> Tensor:
    """The tokens of the prompt, ``(1, tokens)``."""
    if isinstance(prompt, Tensor):
        ids = prompt if prompt.ndim == 2 else prompt[None]
        if ids.is_floating_point() or ids.shape[0] != 1 or not ids.shape[1]:
            raise QuestionError("not the tokens of one prompt", got=f"{tuple(prompt.shape)} of {prompt.dtype}",
                                expected="integers of shape (tokens,) or (1, tokens)")  # fmt: skip
        return ids.detach().clone()
    if tokenizer is None:
        raise QuestionError("a text needs a tokenizer", got="tokenizer=None", hint="AutoTokenizer.from_pretrained(...)")
    if isinstance(prompt, str):
        found = tokenizer(prompt, return_tensors="pt")["input_ids"]
    else:
        found = _conversation(tokenizer, prompt)
    if not found.shape[1]:
        raise QuestionError("the prompt has no tokens", got=repr(prompt)[:80], expected="a text")
    return torch.as_tensor(found)


def _conversation(tokenizer: Any, messages: Any) -> Tensor:
    alike = isinstance(messages, list | tuple) and all(isinstance(m, Mapping) and "role" in m for m in messages)
    if not alike or not messages:
        raise QuestionError(
            "not a prompt", got=repr(messages)[:80],
            expected='a text, token ids, or messages such as [{"role": "user", "content": "Hello"}]',
        )  # fmt: skip
    if getattr(tokenizer, "chat_template", None) is None:
        raise QuestionError("the tokenizer has no chat template", got=type(tokenizer).__name__,
                            hint="a prompt that is a text")  # fmt: skip
    text = tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, tokenize=False)
    return torch.as_tensor(tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"])


def _written(
    model: Any, tokenizer: Any, begin: Tensor, tokens: int, answer: str | Tensor | None, options: Mapping[str, Any]
) -> Tensor:
    """Prompt and answer, ``(1, tokens)``: given, or generated."""
    if answer is not None:
        if isinstance(answer, str) and tokenizer is None:
            raise QuestionError("a text needs a tokenizer", got="tokenizer=None")
        text = isinstance(answer, str)
        ids = tokenizer(answer, add_special_tokens=False)["input_ids"] if text else answer
        return torch.cat([begin, torch.as_tensor(ids, device=begin.device).reshape(1, -1)], 1)
    if type(tokens) is not int or tokens < 1:
        raise QuestionError("not a number of tokens", got=f"tokens={tokens!r}", expected="1, 2, ...")
    if not hasattr(model, "generate"):
        raise QuestionError("the model cannot write by itself", got=type(model).__name__,
                            expected="a model with generate()", hint="answer='...' explains a given text")  # fmt: skip
    settings = {"do_sample": False, "max_new_tokens": tokens, **options}
    if getattr(model.generation_config, "pad_token_id", None) is None:
        settings.setdefault("pad_token_id", 0)  # one prompt alone has no padding; without it there is a warning
    with torch.no_grad():
        found: Tensor = model.generate(begin, attention_mask=torch.ones_like(begin), **settings)
    return found


def _texts(tokenizer: Any, ids: list[int]) -> tuple[tuple[str, ...], tuple[bool, ...]]:
    if tokenizer is None:
        return tuple(map(str, ids)), (False,) * len(ids)
    marks = set(getattr(tokenizer, "all_special_ids", ()))
    return tuple(tokenizer.convert_ids_to_tokens(ids)), tuple(i in marks for i in ids)
