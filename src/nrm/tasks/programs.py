"""Known programs: transformers whose weights are written by hand, so that their circuit is known by construction.

Each computes its answer by some heads and hidden layers that are written for it; all others are decoys with random
weights. **An edge is true** if the program hands along it what the pairs exchange. Whether it does shows in the clean
run: if its reader alone is given what its writer wrote in the corrupted run, and everything above is computed again,
the log-odds of some pair change by more than :data:`FELT` of what the whole corruption changes. A pair exchanges one
thing, and everything that the program reads is exchanged in some of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from nrm.errors import InputError, QuestionError
from nrm.tasks.handwriting import Handwriting
from nrm.tasks.pairs import Pairs
from nrm.tasks.ranking import auroc
from nrm.tasks.transformer import TransformerSize

FELT = 0.1
"""A true edge changes the answer of some pair by more than this share of what the whole corruption changes."""

LEAK = 0.05
"""How much of what decoys write is not junk, but felt by everybody."""

BOUNDARY = 0
"""The token at the first place of every input."""

Maker = Callable[[torch.Generator, int], "Drawn"]
"""What draws the n-th pair of a program, by a source of random numbers."""


@dataclass(frozen=True)
class Drawn:
    """A pair as it was drawn: tokens without the first one, the answer and a wrong one."""

    clean: Sequence[int]
    corrupted: Sequence[int]
    answer: int
    wrong: int


@dataclass(frozen=True, eq=False)
class Program:
    """A transformer with a known program: its weights, pairs of inputs, and the true edges of its circuit.

    ``edges`` are names of writers and readers, as ``R.direct()`` has them.

    >>> program = programs()[0]
    >>> program
    induction: 5 true edges
      embed -> blocks.0.attn.v.head(1)
      blocks.0.attn.head(1) -> blocks.1.attn.k.head(2)
      embed -> blocks.1.attn.q.head(2)
      embed -> blocks.1.attn.v.head(2)
      blocks.1.attn.head(2) -> output
    >>> program.pairs(6).accuracy(program.model).share
    1.0
    """

    name: str
    what: str
    """What it computes, in a sentence."""
    model: nn.Module = field(repr=False)
    edges: tuple[tuple[str, str], ...]
    make: Maker = field(repr=False)

    def pairs(self, count: int = 24, seed: int = 0) -> Pairs:
        """So many pairs; neighbours exchange different things."""
        if count < 1:
            raise InputError("no pairs are asked for", got=f"count={count}", expected="1 or more")
        random = torch.Generator().manual_seed(seed)
        drawn = [self.make(random, n) for n in range(count)]
        clean, corrupted = (
            torch.tensor([[BOUNDARY, *side] for side in sides])
            for sides in ([d.clean for d in drawn], [d.corrupted for d in drawn])
        )
        return Pairs.of(clean, corrupted, [d.answer for d in drawn], [d.wrong for d in drawn], self.name)

    def truth(self, table: Any) -> tuple[Tensor, Tensor]:
        """Which entries ``(writers, readers)`` of a table of direct edges are true, and which are edges at all."""
        places = [{str(end): n for n, end in enumerate(ends)} for ends in (table.writers, table.readers)]
        lost = [name for edge in self.edges for name, known in zip(edge, places, strict=True) if name not in known]
        if lost:
            raise QuestionError(
                f"the edges are not those of {self.name!r}", got=f"no end of the name {lost[0]!r}",
                expected="R.direct() with all writers and readers, of a measure of the program's own model",
            )  # fmt: skip
        possible = torch.tensor([[w.crossing <= r.crossing for r in table.readers] for w in table.writers])
        true = torch.zeros_like(possible)
        for writer, reader in self.edges:
            true[places[0][writer], places[1][reader]] = True
        return true, possible

    def auroc(self, table: Any, scores: Tensor | None = None) -> float:
        """How well scores of direct edges tell the true ones from all others, see :func:`nrm.tasks.auroc`.

        ``table`` is ``R.direct()``; ``scores`` are ``(writers, readers)`` for it, or the absolute mean over samples of
        its relevance in units of the output.
        """
        true, possible = self.truth(table)
        if scores is None:
            scores = table.in_units().mean(0).abs()
        return auroc(scores[possible], true[possible])

    def __repr__(self) -> str:
        return "\n".join([f"{self.name}: {len(self.edges)} true edges", *(f"  {w} -> {r}" for w, r in self.edges)])


def programs() -> tuple[Program, ...]:
    """All known programs, from two heads that copy to three blocks of which most is decoys.

    >>> import nrm
    >>> for program in programs():
    ...     batch = program.pairs(24).by_length(24)[0]
    ...     R = nrm.measure(program.model, batch.clean, against=batch.corrupted, output=batch.odds)
    ...     table = R.direct()
    ...     print(f"{program.name:9}  {len(program.edges)} of {len(table):3} edges, AUROC {program.auroc(table):.3f}")
    induction  5 of 110 edges, AUROC 1.000
    marked     4 of 110 edges, AUROC 1.000
    majority   5 of 110 edges, AUROC 1.000
    pointer    5 of 110 edges, AUROC 1.000
    same       4 of 110 edges, AUROC 1.000
    crowded    7 of 496 edges, AUROC 1.000
    """
    return tuple(make() for make in (_induction, _marked, _majority, _pointer, _same, _crowded))


# ---- parts of programs -----------------------------------------------------------------------------------------------


def _at(block: int, head: int, word: str = "") -> str:
    return f"blocks.{block}.attn{word and '.'}{word}.head({head})"


def _letters(count: int, tokens: int) -> Tensor:
    """The rows of an embedding whose tokens 1, 2, ... are letters: which letter a token is."""
    return torch.eye(tokens)[:, 1 : count + 1]


def _behind(length: int) -> Tensor:
    """Of a place, the one before it."""
    return torch.eye(length).roll(1, 0) * (torch.arange(length)[:, None] > 0)


def _shuffled(random: torch.Generator, some: int, of: int) -> list[int]:
    """Some of the numbers from 1 on, in a random order."""
    return [n + 1 for n in torch.randperm(of, generator=random)[:some].tolist()]


def _draw(random: torch.Generator, low: int, high: int) -> int:
    return int(torch.randint(low, high, (), generator=random))


def _exchanged(items: Sequence[int], one: int, other: int) -> list[int]:
    """A list with the items at two places exchanged."""
    found = list(items)
    found[one], found[other] = found[other], found[one]
    return found


# ---- programs --------------------------------------------------------------------------------------------------------


def _induction_pair(random: torch.Generator, n: int) -> Drawn:
    """... A B ... C D ... A: keys, the query or values are exchanged."""
    a, b, c, d, *rest = _shuffled(random, 7, 8)
    parts = [[a, b], [c, d], *([r] for r in rest)]
    order = torch.randperm(len(parts), generator=random).tolist()
    body = [token for p in order for token in parts[p]]
    clean = [*body, a]
    if n % 3 == 0:
        return Drawn(clean, [*_exchanged(body, body.index(a), body.index(c)), a], b, d)
    if n % 3 == 1:
        return Drawn(clean, [*body, c], b, d)
    return Drawn(clean, [*_exchanged(body, body.index(b), body.index(d)), a], b, d)


def _induction() -> Program:
    letters, length = 8, 9
    size = TransformerSize(letters + 1, letters + 1, length, 64, blocks=2, heads=4, head_width=12, hidden=24)
    spaces = {"letter": letters, "place": length, "before": letters, "found": letters}
    hand, eye = Handwriting(size, spaces, torch.Generator().manual_seed(0)), torch.eye(letters)
    hand.embed("letter", _letters(letters, size.tokens))
    hand.embed("place", torch.eye(length), places=True)
    to_before, here = ("place", _behind(length).T), ("place", torch.eye(length))
    hand.head(0, 1, q=to_before, k=here, v=("letter", eye), to="before")
    hand.head(1, 2, q=("letter", eye), k=("before", eye), v=("letter", eye), to="found")
    hand.unembed("found", 6 * _letters(letters, size.outputs))
    edges = (
        ("embed", _at(0, 1, "v")), (_at(0, 1), _at(1, 2, "k")), ("embed", _at(1, 2, "q")),
        ("embed", _at(1, 2, "v")), (_at(1, 2), "output"),
    )  # fmt: skip
    what = "the letter behind the earlier place of the last one: a head looks back, another one matches and copies"
    return Program("induction", what, hand.fill(LEAK), edges, _induction_pair)


def _marked_pair(random: torch.Generator, n: int) -> Drawn:
    """Letters, one of them bold and red: another one becomes red in its place, or letters are exchanged."""
    letters = _shuffled(random, 6, 6)
    one, bold, red = (at - 1 for at in _shuffled(random, 3, 6))
    marks = [0] * 6
    marks[one], marks[bold], marks[red] = 3, 1, 2
    clean = [1 + 4 * (letter - 1) + mark for letter, mark in zip(letters, marks, strict=True)]
    if n % 2:
        marks[one], marks[bold] = 1, 3
    else:
        letters = _exchanged(letters, one, bold)
    corrupted = [1 + 4 * (letter - 1) + mark for letter, mark in zip(letters, marks, strict=True)]
    answer, wrong = (clean[one] - 1) // 4, (clean[bold] - 1) // 4
    return Drawn(clean, corrupted, answer, wrong)


def _marked() -> Program:
    letters, length = 6, 7
    size = TransformerSize(1 + 4 * letters, letters, length, 48, blocks=2, heads=4, head_width=12, hidden=24)
    spaces = {"letter": letters, "bold": 1, "red": 1, "place": length, "both": 1, "found": letters}
    hand, token = Handwriting(size, spaces, torch.Generator().manual_seed(1)), torch.arange(size.tokens)
    real, mark = (token != BOUNDARY).float(), (token - 1) % 4
    hand.embed("letter", torch.eye(letters)[(token - 1).clamp(min=0) // 4] * real[:, None])
    hand.embed("bold", ((mark % 2 == 1) * real)[:, None])
    hand.embed("red", ((mark >= 2) * real)[:, None])
    hand.embed("place", torch.eye(length), places=True)
    two = torch.full((1, 1), 2.0)
    hand.perceptron(0, [("bold", two), ("red", two)], -3.0, to="both", down=torch.ones(1, 1))
    everywhere, eye = torch.ones(1, length), torch.eye(letters)
    hand.head(1, 0, q=("place", everywhere), k=("both", torch.ones(1, 1)), v=("letter", eye), to="found")
    hand.unembed("found", 6 * eye)
    edges = (
        ("embed", "blocks.0.mlp"), ("blocks.0.mlp", _at(1, 0, "k")), ("embed", _at(1, 0, "v")),
        (_at(1, 0), "output"),
    )  # fmt: skip
    what = "the letter that is bold and red: a hidden layer finds it, a head looks there"
    return Program("marked", what, hand.fill(LEAK), edges, _marked_pair)


A, B, NEITHER = 1, 2, 3


def _majority_pair(random: torch.Generator, n: int) -> Drawn:
    """One more of one letter than of the other; then one less: one is rarer, the other more frequent, or both."""
    more, less = (A, B) if n % 2 else (B, A)
    clean = [more] * 3 + [less] * 2 + [NEITHER] * 3
    body = [clean[p - 1] for p in _shuffled(random, 8, 8)]
    other = list(body)
    swaps = ([(more, NEITHER)] * 2, [(NEITHER, less)] * 2, [(more, less)])[n // 2 % 3]
    for old, new in swaps:
        places = [p for p, token in enumerate(other) if token == old]
        other[places[_draw(random, 0, len(places))]] = new
    return Drawn(body, other, more - 1, less - 1)


def _majority() -> Program:
    length = 9
    size = TransformerSize(4, 2, length, 40, blocks=2, heads=4, head_width=8, hidden=24)
    spaces = {"letter": 3, "place": length, "count of a": 1, "count of b": 1, "verdict": 2}
    hand = Handwriting(size, spaces, torch.Generator().manual_seed(2))
    hand.embed("letter", torch.eye(4)[:, 1:])
    hand.embed("place", torch.eye(length), places=True)
    nothing = ("place", torch.zeros(1, length))
    for head, letter, to in ((0, 0, "count of a"), (2, 1, "count of b")):
        hand.head(0, head, q=nothing, k=nothing, v=("letter", torch.eye(3)[letter, None]), to=to)
    # relu(a - b + 1/2) - relu(a - b - 1/2) of counts is 0 up to -1/2, and 1 from 1/2 on
    sides, down = torch.tensor([[1.0], [1.0], [-1.0], [-1.0]]), torch.tensor([[1.0, -1, 0, 0], [0, 0, 1, -1]])
    reads = [("count of a", length * sides), ("count of b", -length * sides)]
    hand.perceptron(0, reads, torch.tensor([0.5, -0.5, 0.5, -0.5]), to="verdict", down=down)
    hand.unembed("verdict", 6 * torch.eye(2))
    edges = (
        ("embed", _at(0, 0, "v")), ("embed", _at(0, 2, "v")), (_at(0, 0), "blocks.0.mlp"), (_at(0, 2), "blocks.0.mlp"),
        ("blocks.0.mlp", "output"),
    )  # fmt: skip
    what = "which of two letters is more frequent: two heads count, a hidden layer compares"
    return Program("majority", what, hand.fill(LEAK), edges, _majority_pair)


def _pointer_pair(random: torch.Generator, n: int) -> Drawn:
    """The last token points to a place, whose token points to a letter: a pointer or the letter is exchanged."""
    letters = [letter + 7 for letter in _shuffled(random, 4, 6)]
    places = _shuffled(random, 6, 6)
    one, other, here, there = places[:4]
    body = [0] * 6
    for place, token in zip(places, (here, there, *letters), strict=True):
        body[place - 1] = token
    answer, wrong = letters[0] - 8, letters[1] - 8
    clean = [*body, one]
    if n % 3 == 0:
        return Drawn(clean, [*body, other], answer, wrong)
    at = (one - 1, other - 1) if n % 3 == 1 else (here - 1, there - 1)
    return Drawn(clean, [*_exchanged(body, *at), one], answer, wrong)


def _pointer() -> Program:
    letters, length, numbers = 6, 8, 7
    tokens = 1 + numbers + letters  # the boundary, places from 1 to 7, letters
    size = TransformerSize(tokens, letters, length, 56, blocks=2, heads=4, head_width=12, hidden=24)
    spaces = {"letter": letters, "number": length, "place": length, "pointer": length, "found": letters}
    hand = Handwriting(size, spaces, torch.Generator().manual_seed(3))
    hand.embed("letter", torch.eye(tokens)[:, 1 + numbers :])
    number = torch.eye(tokens)[:, :length]
    number[BOUNDARY] = 0
    hand.embed("number", number)
    hand.embed("place", torch.eye(length), places=True)
    eye, here = torch.eye(letters), torch.eye(length)
    hand.head(0, 3, q=("number", here), k=("place", here), v=("number", here), to="pointer")
    hand.head(1, 1, q=("pointer", here), k=("place", here), v=("letter", eye), to="found")
    hand.unembed("found", 6 * eye)
    edges = (
        ("embed", _at(0, 3, "q")), ("embed", _at(0, 3, "v")), (_at(0, 3), _at(1, 1, "q")), ("embed", _at(1, 1, "v")),
        (_at(1, 1), "output"),
    )  # fmt: skip
    what = "the letter at the end of two pointers: a head follows the first one, another head the second"
    return Program("pointer", what, hand.fill(LEAK), edges, _pointer_pair)


def _same_pair(random: torch.Generator, n: int) -> Drawn:
    """The first letter and the last are equal or not: one of them is exchanged, so that they are not, or are."""
    one, other = _shuffled(random, 2, 6)
    middle = [_draw(random, 1, 7) for _ in range(4)]
    equal, different = [one, *middle, one], ([other, *middle, one] if n % 2 else [one, *middle, other])
    return Drawn(equal, different, 1, 0) if n // 2 % 2 else Drawn(different, equal, 0, 1)


def _same() -> Program:
    letters, length = 6, 7
    size = TransformerSize(1 + letters, 2, length, 40, blocks=2, heads=4, head_width=8, hidden=24)
    spaces = {"letter": letters, "place": length, "first": letters, "equal": 1}
    hand, eye = Handwriting(size, spaces, torch.Generator().manual_seed(4)), torch.eye(letters)
    hand.embed("letter", _letters(letters, size.tokens))
    hand.embed("place", torch.eye(length), places=True)
    everywhere, first = ("place", torch.ones(1, length)), ("place", torch.eye(length)[1, None])
    hand.head(0, 2, q=everywhere, k=first, v=("letter", eye), to="first")
    hand.perceptron(0, [("letter", 2 * eye), ("first", 2 * eye)], -3.0, to="equal", down=torch.ones(1, letters))
    hand.unembed("equal", torch.tensor([[-6.0], [6.0]]))
    hand.unembed("place", torch.tensor([[3.0], [-3.0]]).expand(2, length))
    edges = (
        ("embed", _at(0, 2, "v")), (_at(0, 2), "blocks.0.mlp"), ("embed", "blocks.0.mlp"), ("blocks.0.mlp", "output")
    )  # fmt: skip
    what = "whether the last letter equals the first one: a head fetches it, a hidden layer compares"
    return Program("same", what, hand.fill(LEAK), edges, _same_pair)


def _crowded_pair(random: torch.Generator, n: int) -> Drawn:
    """The pairs of induction, whose answers are the letters next in the alphabet."""
    drawn = _induction_pair(random, n)
    return Drawn(drawn.clean, drawn.corrupted, drawn.answer % 8 + 1, drawn.wrong % 8 + 1)


def _crowded() -> Program:
    letters, length = 8, 9
    size = TransformerSize(letters + 1, letters + 1, length, 96, blocks=3, heads=6, head_width=16, hidden=48)
    spaces = {"letter": letters, "place": length, "before": letters, "copy": letters, "found": letters, "next": letters}
    hand, eye = Handwriting(size, spaces, torch.Generator().manual_seed(5)), torch.eye(letters)
    hand.embed("letter", _letters(letters, size.tokens))
    hand.embed("place", torch.eye(length), places=True)
    to_before, here = ("place", _behind(length).T), ("place", torch.eye(length))
    hand.head(0, 4, q=to_before, k=here, v=("letter", eye), to="before")
    hand.head(0, 1, q=here, k=here, v=("letter", eye), to="copy")
    hand.head(1, 3, q=("letter", eye), k=("before", eye), v=("copy", eye), to="found")
    hand.perceptron(2, [("found", 2 * eye)], -1.0, to="next", down=eye.roll(1, 0))
    hand.unembed("next", 6 * _letters(letters, size.outputs))
    edges = (
        ("embed", _at(0, 4, "v")), ("embed", _at(0, 1, "v")), (_at(0, 4), _at(1, 3, "k")), ("embed", _at(1, 3, "q")),
        (_at(0, 1), _at(1, 3, "v")), (_at(1, 3), "blocks.2.mlp"), ("blocks.2.mlp", "output"),
    )  # fmt: skip
    what = "the letter that follows, in the alphabet, the one behind the earlier place of the last one"
    return Program("crowded", what, hand.fill(LEAK), edges, _crowded_pair)


__all__ = ["FELT", "Program", "programs"]
