"""Pairs from files: CSV and JSON lines with prompts and answers, by the tokenizer of a model."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nrm.errors import InputError, readable, warn
from nrm.tasks.pairs import Pairs, TaskPair, check_pair
from nrm.tasks.tokens import answer_token, encode, word

NAMES = {
    "clean": ("clean", "clean_prefix", "clean_prompt", "prompt"),
    "corrupted": ("corrupted_hard", "corrupted", "corrupted_prompt", "patch_prefix", "counterfactual"),
    "answer": ("answer", "answers", "clean_answer", "correct", "right"),
    "wrong": ("wrong", "wrong_answer", "wrong_answers", "patch_answer", "corrupted_answer", "incorrect"),
}
"""What columns are called, the first that is there."""
FOREIGN = ("correct_idx", "incorrect_idx")
"""Columns of public files with ids of another model's tokenizer."""

Line = tuple[int, "Mapping[str, Any] | InputError"]
"""The number of a line, with what it says or why it cannot be read."""


@dataclass(frozen=True)
class PairColumns:
    """The columns that have prompts and answers; where there is none of answers, these follow from the prompts."""

    clean: str
    corrupted: str
    answer: str | None
    wrong: str | None


def read_pairs(
    path: str | Path,
    tokenizer: Any,
    *,
    clean: str | None = None,
    corrupted: str | None = None,
    answer: str | None = None,
    wrong: str | None = None,
    bad: str = "raise",
) -> Pairs:
    r"""The pairs of a file, CSV with a header or JSON lines, as tokens of a model.

    The columns are named, or found by common names: ``clean`` and ``corrupted`` have prompts, ``answer`` and ``wrong``
    have what follows the clean one, rightly and wrongly. Several answers are a list in JSON, and divided by ``|`` in
    CSV; white space in front of an answer belongs to it. Every answer is one token; a number in JSON is its id.
    Without a column of answers, prompts have to differ in one token: that of the corrupted one is right, that of the
    clean one wrong, as in "Amber and Aaron were at work. Aaron gave a drink to". Without wrong answers, the logit of
    the right one is explained. Lines that repeat an earlier one are left out. ``bad="skip"`` goes on behind lines that
    cannot be used, and lists them in ``left_out``.

    ``tokenizer`` is one of Hugging Face, or any function from a text to ids.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> file = Path(folder.name) / "agreement.csv"
    >>> lines = "clean,corrupted,answer,wrong", "the dog,the dogs, runs, run", "the cats,the cat, run, runs"
    >>> _ = file.write_text("\n".join(lines))
    >>> words = ["the", " dog", " dogs", " cat", " cats", " run", " runs"]
    >>> pairs = read_pairs(file, lambda text: [words.index(w) for w in text.replace(" ", "| ").split("|")])
    >>> pairs
    2 pairs of agreement.csv, 2 tokens
      'the dog' -> ' runs' against ' run'
      'the cats' -> ' run' against ' runs'
    >>> pairs[0].clean, pairs[0].answers
    (tensor([0, 1]), (6,))
    >>> folder.cleanup()
    """
    if bad not in ("raise", "skip"):
        raise InputError(f"unknown option bad={bad!r}", expected="'raise' or 'skip'")
    path = Path(path)
    name = readable(path.name)
    lines = _lines(path, name)
    first = next((row for _, row in lines if not isinstance(row, InputError)), {})
    asked = {"clean": clean, "corrupted": corrupted, "answer": answer, "wrong": wrong}
    columns = _columns(name, list(first), asked) if first else PairColumns("clean", "corrupted", None, None)
    read, out = list[TaskPair](), list[tuple[int, str]]()
    for number, row in lines:
        try:
            read.append(_pair(row, columns, tokenizer, number))
        except InputError as error:
            if bad == "raise":
                raise error.at(f"{name}, line {number}") from None
            out.append((number, f"{error.what} ({error.got})" if error.got else error.what))
    if not read:
        raise InputError("no line of the file can be used", where=name, got=f"line {out[0][0]}: {out[0][1]}")
    if out:
        warn(f"{len(out)} of {len(lines)} lines of {name} are left out, the first: line {out[0][0]}, {out[0][1]}")
    found = dict[Any, TaskPair]()
    for pair in read:
        found.setdefault((pair.texts, pair.answers, pair.wrong), pair)
    return Pairs(tuple(found.values()), name, _notes(columns, first, len(read) - len(found)), tuple(out))


# ---- lines -----------------------------------------------------------------------------------------------------------


def _lines(path: Path, name: str) -> list[Line]:
    """The lines of a file that say something."""
    readers = {".csv": _csv_lines, ".jsonl": _json_lines}
    if path.suffix.lower() not in readers:
        raise InputError("not a file of pairs", got=name, expected="a CSV file with a header, or JSON lines (.jsonl)")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text in UTF-8"
        raise InputError("the pairs cannot be read", where=name, got=f"{type(error).__name__}: {reason}") from error
    found = readers[path.suffix.lower()](text)
    if not found:
        raise InputError("the file has no pairs", where=name, got="no line behind the header, or nothing at all")
    return found


def _csv_lines(text: str) -> list[Line]:
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    found, begin = list[Line](), 2
    while True:
        try:
            row = next(reader, None)
        except csv.Error as error:
            found.append((begin, InputError("the line is not CSV", got=str(error))))
            begin = reader.line_num + 1
            continue
        if row is None:
            return found
        begin, here = reader.line_num + 1, begin
        if None in row or None in row.values():
            fields = len([v for v in row.values() if isinstance(v, str)]) + len(row.get(None) or [])
            wide = len(reader.fieldnames or ())
            found.append((here, InputError("the line does not fit the header", got=f"{fields} fields, not {wide}")))
        else:
            found.append((here, row))


def _json_lines(text: str) -> list[Line]:
    found = list[Line]()
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            found.append((number, InputError("the line is not JSON", got=str(error))))
            continue
        good = isinstance(row, dict)
        wrong = InputError("the line is no JSON object", got=type(row).__name__, expected='{"clean": "...", ...}')
        found.append((number, row if good else wrong))
    return found


# ---- columns ---------------------------------------------------------------------------------------------------------


def _columns(name: str, there: Sequence[str], asked: Mapping[str, str | None]) -> PairColumns:
    """The columns of prompts and answers: those that were asked for, else by their common names."""
    chosen: dict[str, str | None] = {}
    for role, wanted in asked.items():
        if wanted is not None and wanted not in there:
            raise InputError(
                f"the file has no column {wanted!r}", where=name, got=", ".join(filter(None, there)), hint=f"{role}="
            )
        chosen[role] = wanted or next((n for n in NAMES[role] if n in there), None)
    for role in ("clean", "corrupted"):
        if chosen[role] is None:
            raise InputError(
                f"no column has the {role} prompts", where=name, got=", ".join(filter(None, there)),
                expected=" or ".join(NAMES[role]), hint=f"{role}='NAME OF THE COLUMN'",
            )  # fmt: skip
    if chosen["wrong"] is not None and chosen["answer"] is None:
        raise InputError(
            "there are wrong answers without right ones", where=name, got=f"column {chosen['wrong']!r}",
            expected=" or ".join(NAMES["answer"]), hint="answer='NAME OF THE COLUMN'",
        )  # fmt: skip
    return PairColumns(str(chosen["clean"]), str(chosen["corrupted"]), chosen["answer"], chosen["wrong"])


def _notes(columns: PairColumns, row: Mapping[str, Any], repeated: int) -> tuple[str, ...]:
    """What was decided, for everyone who looks at the pairs."""
    found = list[str]()
    if columns.answer is None:
        found.append("answers follow from the prompts: the exchanged token of the corrupted one, not of the clean one")
        ignored = [n for n in FOREIGN if n in row]
        found += [f"not read, as ids of another tokenizer: {', '.join(ignored)}"] if ignored else []
    if repeated:
        found.append(f"{repeated} lines repeat earlier ones and are left out")
    return tuple(found)


# ---- a line ----------------------------------------------------------------------------------------------------------


def _pair(row: Mapping[str, Any] | InputError, columns: PairColumns, tokenizer: Any, line: int) -> TaskPair:
    """The pair of a line, or the complaint about it."""
    if isinstance(row, InputError):
        raise row
    texts = _prompt(row, columns.clean), _prompt(row, columns.corrupted)
    clean, corrupted = (torch.tensor(encode(tokenizer, text), dtype=torch.long) for text in texts)
    if columns.answer is None:
        right, wrong = _exchanged(clean, corrupted)
        words: tuple[Sequence[Any], Sequence[Any]] = [word(tokenizer, right)], [word(tokenizer, wrong)]
        pair = TaskPair(clean, corrupted, (right,), (wrong,), texts, (tuple(words[0]), tuple(words[1])), line)
    else:
        words = _answers(row, columns.answer), _answers(row, columns.wrong) if columns.wrong else []
        ids = [tuple(w if isinstance(w, int) else answer_token(tokenizer, texts[0], w) for w in some) for some in words]
        shown = tuple(map(str, words[0])), tuple(map(str, words[1]))
        pair = TaskPair(clean, corrupted, ids[0], ids[1], texts, shown, line)
    check_pair(pair)
    return pair


def _prompt(row: Mapping[str, Any], column: str) -> str:
    text = row.get(column)
    if not isinstance(text, str) or not text:
        raise InputError("a prompt is missing", got=f"{column}: {text!r}", expected="a text")
    return text


def _answers(row: Mapping[str, Any], column: str) -> list[str | int]:
    """The answers of a line: a text, of which ``|`` divides several, a list of texts, or ids."""
    given = row.get(column)
    some = given.split("|") if isinstance(given, str) else given if isinstance(given, list) else [given]
    if not some or not all(type(a) is int or (isinstance(a, str) and a) for a in some):
        raise InputError("an answer is missing", got=f"{column}: {given!r}", expected="a text, or several")
    return list(some)


def _exchanged(clean: Tensor, corrupted: Tensor) -> tuple[int, int]:
    """The right and the wrong answer of prompts that differ in one token."""
    if clean.shape != corrupted.shape:  # the complaint about lengths is that of every pair
        check_pair(TaskPair(clean, corrupted, (0,)))
    at = (clean != corrupted).nonzero()[:, 0]
    if len(at) != 1:
        raise InputError(
            "the answers do not follow from the prompts", got=f"prompts that differ in {len(at)} tokens",
            expected="prompts that differ in one token, or a column of answers",
            hint=f"a column {' or '.join(NAMES['answer'][:2])}, or answer='NAME OF THE COLUMN'",
        )  # fmt: skip
    return int(corrupted[at]), int(clean[at])


__all__ = ["PairColumns", "read_pairs"]
