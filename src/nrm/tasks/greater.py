"""Greater-than: years that end after they begin, made from a template for any tokenizer."""

from __future__ import annotations

from typing import Any

import torch

from nrm.errors import InputError
from nrm.tasks.pairs import Pairs, TaskPair
from nrm.tasks.tokens import encode, pieces

NOUNS = (
    "war", "siege", "trial", "voyage", "reign", "strike", "study", "project", "festival", "famine", "journey",
    "conflict", "marriage", "treaty", "blockade", "expedition",
)  # fmt: skip
TEMPLATE = "The {noun} lasted from the year {century}{year:02d} to the year {century}"
CENTURIES = range(11, 18)


def greater_than(tokenizer: Any, count: int = 64, seed: int = 0) -> Pairs:
    """Pairs such as "The war lasted from the year 1742 to the year 17", corrupted by a first year that ends with 01.

    A right answer goes on with a larger number, a wrong one with a smaller number; what is explained is the log-odds of
    all right against all wrong ones. How numbers tokenize decides what they are, and is said in ``notes``: where digits
    are tokens, answers are the tens that are larger and those that are smaller (equal tens are neither); where two
    digits are one token, answers are all of 00 to 99.

    >>> pairs = greater_than(lambda text: [ord(letter) for letter in text], count=3, seed=1)
    >>> pairs
    3 pairs of greater-than, 50 to 53 tokens
      'The siege lasted from the year 1745 to the year 17' -> '5', '6', '7', '8' and 1 more against '0', '1', '2', '3'
      'The famine lasted from the year 1667 to the year 16' -> '7', '8', '9' against '0', '1', '2', '3' and 2 more
      answers are single digits, the tens of the year: '42' is 52 + 50 behind '... to the year 11'
    """
    if count < 1:
        raise InputError("no pairs are asked for", got=f"count={count}", expected="1 or more")
    width, note = _width(tokenizer)
    random = torch.Generator().manual_seed(seed)
    every = [(noun, c, y) for noun in NOUNS for c in CENTURIES for y in range(20, 80)]
    found = list[TaskPair]()
    for n in torch.randperm(len(every), generator=random).tolist():
        noun, century, year = every[n]
        pair = _pair(tokenizer, noun, century, year, width)
        found += [] if pair is None else [pair]
        if len(found) == count:
            return Pairs(tuple(found), "greater-than", (note,))
    raise InputError(
        "there are not enough pairs whose years have as many tokens", got=f"count={count}", expected=f"{len(found)}"
    )


def _width(tokenizer: Any) -> tuple[int, str]:
    """How many digits an answer has, and the sentence that says so."""
    prompt = TEMPLATE.format(noun=NOUNS[0], century=CENTURIES[0], year=42)
    before, whole = encode(tokenizer, prompt), encode(tokenizer, f"{prompt}42")
    rest = whole[len(before) :] if whole[: len(before)] == before else []
    said = f"'42' is {pieces(tokenizer, rest)} behind '... to the year {CENTURIES[0]}'"
    if len(rest) == 1:
        return 2, f"answers are two digits, the year in its century: {said}"
    if len(rest) == 2:
        return 1, f"answers are single digits, the tens of the year: {said}"
    raise InputError(
        "the tokenizer does not divide years into centuries and years",
        got=f"{pieces(tokenizer, before[-3:])} at the end, and with '42' behind it {pieces(tokenizer, whole[-3:])}",
        expected="digits one by one, or two by two",
        hint="nrm.tasks.read_pairs reads prompts and answers that fit this tokenizer",
    )  # fmt: skip


def _pair(tokenizer: Any, noun: str, century: int, year: int, width: int) -> TaskPair | None:
    """A pair of two years; None if they do not have as many tokens, or an answer is not one more."""
    texts = tuple(TEMPLATE.format(noun=noun, century=century, year=y) for y in (year, 1))
    clean, corrupted = (encode(tokenizer, text) for text in texts)
    numbers, here = (range(10), year // 10) if width == 1 else (range(100), year)
    words = [f"{n:0{width}d}" for n in numbers]
    ids = [encode(tokenizer, texts[0] + word) for word in words]
    if len(clean) != len(corrupted) or any(i[:-1] != clean for i in ids):
        return None
    right, wrong = ([n for n in numbers if n > here], [n for n in numbers if n < here])
    return TaskPair(
        torch.tensor(clean), torch.tensor(corrupted), tuple(ids[n][-1] for n in right),
        tuple(ids[n][-1] for n in wrong), (texts[0], texts[1]),
        (tuple(words[n] for n in right), tuple(words[n] for n in wrong)),
    )  # fmt: skip


__all__ = ["greater_than"]
