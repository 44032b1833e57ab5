"""Pairs: what a task of circuit finding is made of, a clean and a corrupted input with their right and wrong answers.

The explained number of a pair is the log-odds of its right answers against its wrong ones, at the last position:
``logsumexp(logits of the right) - logsumexp(logits of the wrong)``. With one answer on each side that is a difference
of two logits, and without wrong answers it is the logit of the right one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from nrm.devices import home_of
from nrm.errors import InputError, QuestionError, warn
from nrm.tasks.accuracy import ENOUGH, Accuracy

DRAWS = 100
"""How often pairs are dealt anew if groups of them are so large that a half gets too few."""


@dataclass(frozen=True, eq=False)
class TaskPair:
    """A clean and a corrupted input of one shape, without a batch axis, with right and wrong answers of the clean one.

    Answers are numbers of outputs: ids of tokens, or classes. ``texts`` and ``words`` are the prompts and the answers
    as they were written, ``line`` is where they stand in their file.
    """

    clean: Tensor
    corrupted: Tensor
    answers: tuple[int, ...]
    wrong: tuple[int, ...] = ()
    texts: tuple[str, str] | None = None
    words: tuple[tuple[str, ...], tuple[str, ...]] | None = None
    line: int | None = None

    def __str__(self) -> str:
        right, wrong = self.words or (self.answers, self.wrong)
        prompt = repr(self.texts[0]) if self.texts else f"input of shape {tuple(self.clean.shape)}"
        against = f" against {_listed(wrong)}" if wrong else ""
        return f"{prompt} -> {_listed(right)}{against}"


@dataclass(frozen=True, eq=False)
class PairBatch:
    """Some pairs of one shape as tensors: what one measure explains.

    ``nrm.measure(model, batch.clean, against=batch.corrupted, output=batch.odds)`` is the contrast of these pairs.
    ``rows`` are their numbers among all pairs of the task.
    """

    clean: Tensor
    corrupted: Tensor
    answers: Tensor
    wrong: Tensor
    rows: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def odds(self, output: Any) -> Tensor:
        """The log-odds of right against wrong answers ``(batch,)``, of what the model returns.

        >>> batch = Pairs.of(torch.zeros(1, 2), torch.ones(1, 2), answers=[[0, 1]], wrong=[[2]]).by_length()[0]
        >>> batch.odds(torch.tensor([[1.0, 1.0, 1.0]]))  # two against one
        tensor([0.6931])
        """
        logits = last_logits(output)
        right = _joined(logits, self.answers)
        return right - _joined(logits, self.wrong) if self.wrong.shape[1] else right

    def to(self, device: torch.device) -> PairBatch:
        """The batch on a device."""
        clean, corrupted, answers, wrong = (
            t.to(device) for t in (self.clean, self.corrupted, self.answers, self.wrong)
        )
        return PairBatch(clean, corrupted, answers, wrong, self.rows)


def last_logits(output: Any) -> Tensor:
    """The logits ``(batch, outputs)`` of what a model returns, at the last position if there are positions."""
    logits = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if not isinstance(logits, Tensor) or logits.ndim not in (2, 3):
        shape = f" of shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else ""
        raise QuestionError(
            "the model does not return logits", got=f"{type(output).__name__}{shape}",
            expected="a tensor (batch, outputs) or (batch, positions, outputs), or an object that has it as .logits",
        )  # fmt: skip
    return logits[:, -1] if logits.ndim == 3 else logits


def _joined(logits: Tensor, chosen: Tensor) -> Tensor:
    """The logits of chosen outputs, added up as probabilities are: ``log(sum(exp(logits)))``."""
    found = logits.gather(1, chosen)
    return found[:, 0] if chosen.shape[1] == 1 else found.logsumexp(1)


@dataclass(frozen=True, eq=False)
class Pairs(Sequence[TaskPair]):
    """The pairs of a task, and where they come from.

    ``notes`` say what was decided when they were read; ``left_out`` has the line and the reason of each that could not
    be used, if the reader was told to go on.

    >>> pairs = Pairs.of(torch.tensor([[1, 2], [2, 1]]), torch.tensor([[2, 2], [1, 1]]), answers=[2, 1], wrong=[1, 2])
    >>> pairs
    2 pairs, shape (2,)
      input of shape (2,) -> 2 against 1
      input of shape (2,) -> 1 against 2
    """

    items: tuple[TaskPair, ...]
    name: str = ""
    notes: tuple[str, ...] = ()
    left_out: tuple[tuple[int, str], ...] = ()

    def __post_init__(self) -> None:
        for n, pair in enumerate(self.items):
            try:
                check_pair(pair)
            except InputError as error:
                raise error.at(f"pair {n}" if pair.line is None else f"line {pair.line}") from None

    @classmethod
    def of(cls, clean: Tensor, corrupted: Tensor, answers: Any, wrong: Any = None, name: str = "") -> Pairs:
        """Pairs from tensors, samples along the first axis; answers are one number for each, or several.

        Images and their classes are such pairs too: ``Pairs.of(images, nrm.reference("blur", images), classes)``.
        """
        right, other = _sets(answers, len(clean), "answers"), _sets(wrong, len(clean), "wrong")
        if len(corrupted) != len(clean):
            raise InputError(
                "clean and corrupted inputs are no pairs", got=f"{len(clean)} and {len(corrupted)} of them",
                expected="one corrupted input for every clean one",
            )  # fmt: skip
        return cls(tuple(map(TaskPair, clean, corrupted, right, other)), name)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: Any) -> Any:
        return replace(self, items=self.items[index]) if isinstance(index, slice) else self.items[index]

    def __iter__(self) -> Iterator[TaskPair]:
        return iter(self.items)

    def take(self, rows: Sequence[int]) -> Pairs:
        """Some of the pairs, by their numbers."""
        return replace(self, items=tuple(self.items[n] for n in rows))

    def by_length(self, batch: int = 16) -> list[PairBatch]:
        """All pairs in batches of one shape, and of as many answers: nothing is padded."""
        groups: dict[tuple[Any, ...], list[int]] = {}
        for n, pair in enumerate(self.items):
            key = (tuple(pair.clean.shape), len(pair.answers), len(pair.wrong))
            groups.setdefault(key, []).append(n)
        rows = [some[k : k + batch] for some in groups.values() for k in range(0, len(some), batch)]
        return [self._batch(some) for some in rows]

    def _batch(self, rows: list[int]) -> PairBatch:
        some = [self.items[n] for n in rows]
        return PairBatch(
            torch.stack([p.clean for p in some]),
            torch.stack([p.corrupted for p in some]),
            torch.tensor([p.answers for p in some], dtype=torch.long),
            torch.tensor([p.wrong for p in some], dtype=torch.long).view(len(some), -1),
            tuple(rows),
        )

    def split(self, score: int = 20, judge: int = 12, *, seed: int = 0) -> tuple[Pairs, Pairs]:
        """Pairs to find a circuit with, and others to judge it by: drawn by ``seed``, with no input in both.

        >>> one, other = Pairs.of(torch.arange(40.0).view(40, 1), -torch.ones(40, 1), range(40)).split(20, 12, seed=1)
        >>> len(one), len(other), {p.answers for p in one} & {p.answers for p in other}
        (20, 12, set())
        """
        random = torch.Generator().manual_seed(seed)
        groups = self._related()
        for _ in range(DRAWS):
            first, second = _dealt(groups, score, judge, random)
            if len(first) >= score and len(second) >= judge:
                return self.take(first[:score]), self.take(second[:judge])
        raise InputError(
            "there are not enough pairs to split", where=self.name or None,
            got=f"{len(self)} pairs in {len(groups)} groups without a common input",
            expected=f"{score} to score and {judge} to judge", hint="smaller score= and judge=, or more pairs",
        )  # fmt: skip

    def _related(self) -> list[list[int]]:
        """The numbers of pairs in groups: pairs of different groups have no input in common."""
        home: dict[bytes, int] = {}
        groups: dict[int, list[int]] = {}
        for n, pair in enumerate(self.items):
            keys = [_digest(pair.clean), *([_digest(pair.corrupted)] if not pair.clean.is_floating_point() else [])]
            met = {home[key] for key in keys if key in home}
            groups[n] = [m for g in sorted(met) for m in groups.pop(g)] + [n]
            home = {key: n if g in met else g for key, g in home.items()} | dict.fromkeys(keys, n)
        return list(groups.values())

    def accuracy(self, model: nn.Module, batch: int = 16) -> Accuracy:
        """How well a model does the task; below 0.75 it is warned, as a circuit of a task that fails explains little.

        A pair is right if its log-odds are positive, or without wrong answers if a right one has the largest logit.
        """
        device = home_of(model)
        clean, corrupted, right = list[Tensor](), list[Tensor](), list[Tensor]()
        with torch.no_grad():
            for some in (one.to(device) for one in self.by_length(batch)):
                output = model(some.clean)
                clean.append(some.odds(output))
                corrupted.append(some.odds(model(some.corrupted)))
                top = last_logits(output).argmax(1, keepdim=True)
                right.append(clean[-1] > 0 if some.wrong.shape[1] else (top == some.answers).any(1))
        share, one, other = (float(torch.cat(part).double().mean()) for part in (right, clean, corrupted))
        found = Accuracy(share, len(self), one, other, self.name)
        if not found.is_enough:
            warn(f"the model fails this task, so that a circuit of it explains little: {found} (at least {ENOUGH})")
        return found

    @property
    def fingerprint(self) -> str:
        """A name for inputs and answers: pairs that differ in any of them have another one."""
        whole = hashlib.sha256()
        for pair in self.items:
            whole.update(_digest(pair.clean) + _digest(pair.corrupted) + repr((pair.answers, pair.wrong)).encode())
        return whole.hexdigest()[:16]

    def __repr__(self) -> str:
        shapes = sorted({tuple(p.clean.shape) for p in self.items})
        sizes = [s[0] for s in shapes if len(s) == 1]
        token = bool(self.items) and not self.items[0].clean.is_floating_point() and len(sizes) == len(shapes)
        span = (
            f"{sizes[0]} to {sizes[-1]} tokens" if token and len(sizes) > 1 else f"{sizes[0]} tokens" if token else ""
        )
        if self.items and self.items[0].texts is None:
            span = ", ".join(f"shape {s}" for s in shapes[:3])
        lines = [", ".join(filter(None, (f"{len(self)} pairs{f' of {self.name}' if self.name else ''}", span)))]
        lines += [f"  {pair}" for pair in self.items[:2]]
        lines += [f"  {note}" for note in self.notes]
        if self.left_out:
            lines.append(
                f"  {len(self.left_out)} left out, the first: line {self.left_out[0][0]}, {self.left_out[0][1]}"
            )
        return "\n".join(lines)


def _dealt(groups: list[list[int]], score: int, judge: int, random: torch.Generator) -> list[list[int]]:
    """Groups of pairs dealt to two halves in a random order, each to where more is missing; pairs mixed in each."""
    halves, wanted = [list[int](), list[int]()], (score, judge)
    for g in torch.randperm(len(groups), generator=random).tolist():
        missing = [1 - len(half) / max(want, 1) for half, want in zip(halves, wanted, strict=True)]
        halves[missing[1] > missing[0]].extend(groups[g])
    return [[half[i] for i in torch.randperm(len(half), generator=random).tolist()] for half in halves]


def check_pair(pair: TaskPair) -> None:
    """Refuses a pair whose inputs cannot be compared, or without a right answer."""
    if pair.clean.shape != pair.corrupted.shape:
        one, other = (tuple(t.shape) if t.ndim != 1 else f"{len(t)} tokens" for t in (pair.clean, pair.corrupted))
        raise InputError(
            "the inputs of a pair have different lengths", got=f"clean {one}, corrupted {other}",
            expected="as many on both sides, so that every position has its counterpart",
            hint="exchange words for others of as many tokens; bad='skip' leaves such lines out and lists them",
        )  # fmt: skip
    if not pair.clean.numel():
        raise InputError("an input is empty", expected="a text with tokens")
    if not pair.answers:
        raise InputError("a pair has no answer", expected="one right answer or several")
    if both := set(pair.answers) & set(pair.wrong):
        raise InputError("an answer is right and wrong", got=f"{sorted(both)} on both sides")
    if torch.equal(pair.clean, pair.corrupted):
        raise InputError(
            "the inputs of a pair are equal", expected="inputs that differ, as the difference is explained"
        )


def _listed(answers: Sequence[Any]) -> str:
    shown = [repr(a) for a in answers[:4]]
    return ", ".join(shown) + (f" and {len(answers) - 4} more" if len(answers) > 4 else "")


def _sets(answers: Any, count: int, what: str) -> list[tuple[int, ...]]:
    """Answers as one set of numbers per sample."""
    if answers is None:
        return [()] * count
    rows = answers.tolist() if isinstance(answers, Tensor) else list(answers)
    if len(rows) != count:
        raise InputError(f"{what} and inputs do not match", got=f"{len(rows)} and {count} of them")
    return [tuple(map(int, row)) if isinstance(row, list | tuple) else (int(row),) for row in rows]


def _digest(tensor: Tensor) -> bytes:
    plain = tensor.detach().cpu().contiguous()
    return hashlib.sha256(f"{plain.dtype}{tuple(plain.shape)}".encode() + plain.numpy().tobytes()).digest()


__all__ = ["PairBatch", "Pairs", "TaskPair", "check_pair", "last_logits"]
