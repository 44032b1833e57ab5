"""Induction: a small transformer that has learned to go on as before; the package carries its weights."""

from __future__ import annotations

import os
from collections.abc import Iterable
from importlib.resources import as_file, files

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from nrm.errors import InputError
from nrm.tasks.pairs import Pairs, TaskPair
from nrm.tasks.transformer import SmallTransformer, TransformerSize

WEIGHTS = files("nrm.tasks") / "induction.safetensors"
TOKENS, LENGTH = 24, 16
UNKNOWN = -1
EXCHANGED = ("before", "after", "last")
SIZE = TransformerSize(TOKENS, TOKENS, LENGTH, width=48, blocks=2, heads=4, head_width=12, hidden=0, norm=True)


def induction(count: int = 64, seed: int = 0, exchange: str = "before") -> tuple[SmallTransformer, Pairs]:
    """A trained transformer of two blocks, and pairs of texts that go on as they did before: "... A B ... A" with B.

    Tokens are random, and none but A occurs twice, so that only the earlier text tells what comes next. In corrupted
    texts something is exchanged with another place of the text: the token ``"before"`` (the earlier A), the token
    ``"after"`` (B), the ``"last"`` token (the later A), or ``"each"`` of them in a third of the pairs.

    The network reads up to 16 of 24 tokens, by four heads in each block and layer norms, without perceptrons. It was
    trained for this alone (``make induction``), and does it as networks do: a head of the first block copies to every
    place the token before it, heads of the second block look for the place whose copy is the last token.

    >>> import nrm
    >>> model, pairs = induction(16)
    >>> found = nrm.circuit(model, pairs, top=0.05, chains=1, draws=0)
    >>> print(found.accuracy.share, found.circuit.chains[0])
    1.0 embed -> blocks.0.attn.v.head(3) -> blocks.1.attn.k.head(3) -> output
    """
    if count < 1:
        raise InputError("no pairs are asked for", got=f"count={count}", expected="1 or more")
    if exchange not in ("each", *EXCHANGED):
        raise InputError(f"unknown option exchange={exchange!r}", expected=" or ".join(map(repr, ("each", *EXCHANGED))))
    model = untrained()
    with as_file(WEIGHTS) as path:
        model.load_state_dict(load_file(path))
    random = torch.Generator().manual_seed(seed)
    kinds = EXCHANGED if exchange == "each" else (exchange,)
    return model.eval(), Pairs(tuple(_pair(random, kinds[n % len(kinds)]) for n in range(count)), "induction")


def _pair(random: torch.Generator, exchange: str) -> TaskPair:
    """A text and one in which something is exchanged, with what comes next in each."""
    text, answer, at = _text(random)
    other = text.clone()
    places = [p for p in range(LENGTH - 2) if abs(p - at) > 1]
    there = places[int(torch.randint(len(places), (), generator=random))]
    if exchange == "after":
        other[at + 1], other[there + 1] = text[there + 1], text[at + 1]
    elif exchange == "before":
        other[at], other[there] = text[there], text[at]
    else:
        other[-1] = text[there]
    return TaskPair(text, other, (answer,), (int(text[there + 1]),))


def _text(random: torch.Generator) -> tuple[Tensor, int, int]:
    """A text without repetition but for its last token: what comes next, and where the token was before."""
    text = torch.randperm(TOKENS, generator=random)[:LENGTH]
    at = int(torch.randint(LENGTH - 2, (), generator=random))
    text[-1] = text[at]
    return text, int(text[at + 1]), at


# ---- training --------------------------------------------------------------------------------------------------------


def untrained(seed: int = 0) -> SmallTransformer:
    """The network with random weights; random numbers of others stay as they are."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = SmallTransformer(SIZE)
        for weight in model.parameters():
            if weight.ndim > 1:
                nn.init.normal_(weight, std=weight.shape[1] ** -0.5)
        for table in (model.embed.token.weight, model.embed.place):
            nn.init.normal_(table)
    return model


def train_induction(steps: Iterable[int], seed: int = 0, batch: int = 64) -> SmallTransformer:
    """A network that has learned to go on as before: 1,500 ``steps`` take about twenty seconds.

    It learns from random tokens that jump back to an earlier place, and go on from there: wherever a token was there
    before, what comes next is known.
    """
    model, random = untrained(seed), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.99))
    for _ in steps:
        texts, following = jumping_back(random, batch)
        logits = model(texts).flatten(0, 1)
        loss = nn.functional.cross_entropy(logits, following.flatten(), ignore_index=UNKNOWN)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model.eval()


def jumping_back(random: torch.Generator, count: int) -> tuple[Tensor, Tensor]:
    """Texts ``(count, LENGTH)`` that jump back somewhere, and what comes next at every place, where it is known."""
    jump = torch.randint(4, LENGTH, (count, 1), generator=random)
    back = (torch.rand(count, 1, generator=random) * (jump - 1)).long()
    place = torch.arange(LENGTH + 1).expand(count, -1)
    tokens = torch.rand(count, TOKENS, generator=random).argsort(1)
    text = tokens.gather(1, torch.where(place < jump, place, back + (place - jump) % (jump - back)))
    return text[:, :-1], text[:, 1:].masked_fill(place[:, :-1] < jump, UNKNOWN)


def save_induction(model: SmallTransformer, path: str | os.PathLike[str]) -> None:
    """Writes the weights as the package carries them."""
    save_file({name: value.contiguous() for name, value in model.state_dict().items()}, path)


__all__ = ["induction", "save_induction", "train_induction"]
