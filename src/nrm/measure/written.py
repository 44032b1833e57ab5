"""What is known of generated text: its tokens, each with what it owes to those before it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, final

import torch
from torch import Tensor

from nrm.measure.measure import Measure
from nrm.tables import Results


@final
class WrittenToken(NamedTuple):
    """A generated token as it comes: its text, the shares of all tokens before it, and the explained logit."""

    text: str
    relevance: Tensor
    value: float


@dataclass(frozen=True, eq=False, repr=False)
class Generated:
    """What generated tokens owe to the tokens before them.

    ``relevance[g, s]`` is the share of source token s in the logit of generated token g: each row sums to 1, less the
    share of biases (``rest``), and is 0 from the token itself on. ``tokens`` are the texts of the prompt's tokens, of
    which there are ``prompt``, and of the generated ones behind them; ``special`` says which are no text (marks of the
    beginning, of turns). ``values`` are the explained logits: of a negative one, shares argue for the negative value.
    Of a contrast they are differences of logits from those behind ``reference``, the tokens of the other prompt.
    """

    relevance: Tensor
    tokens: tuple[str, ...]
    prompt: int
    values: Tensor
    special: tuple[bool, ...]
    ids: Tensor
    measure: Measure
    """The measure of the first generated token, on the tape of all; more can be asked there. Of a stream it is that of
    the first token of the last piece."""
    reference: tuple[str, ...] | None = None

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

    def rows(self) -> Iterator[WrittenToken]:
        """The generated tokens one by one, each with the shares of those before it, as a stream gives them."""
        for g, (text, value) in enumerate(zip(self.written, self.values, strict=True)):
            yield WrittenToken(text, self.relevance[g, : self.prompt + g], float(value))

    def __len__(self) -> int:
        return len(self.relevance)

    def __repr__(self) -> str:
        head = f"Generated: {len(self)} tokens from {self.prompt} of the prompt"
        return f"{head}, {float(self.first.mean()):.0%} in the first token\n{self.table}"
