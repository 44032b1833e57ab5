"""Pairs from files: columns, answers, and a clear sentence with the line for everything that cannot be used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from nrm.errors import InputError, NrmWarning
from nrm.tasks import Pairs, greater_than, read_pairs


class Words:
    """A tokenizer as those of Hugging Face: words with the space before them; long ones are two tokens."""

    def __init__(self) -> None:
        self.known: list[str] = ["<s>"]

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        ids = [0] if add_special_tokens else []
        for word in text.replace(" ", "\n ").split("\n"):
            for part in filter(None, (word[:6], word[6:])):
                if part not in self.known:
                    self.known.append(part)
                ids.append(self.known.index(part))
        return {"input_ids": ids}

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return [self.known[i] for i in ids]

    def decode(self, ids: list[int]) -> str:
        return "".join(self.known[i] for i in ids)


def write(folder: Path, name: str, *lines: str) -> Path:
    path = folder / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def text(tokenizer: Words, ids: tuple[int, ...]) -> list[str]:
    return tokenizer.convert_ids_to_tokens(list(ids))


def test_json_lines_of_agreement(tmp_path: Path) -> None:
    rows = [
        {
            "clean_prefix": "The dog",
            "patch_prefix": "The dogs",
            "clean_answer": " is",
            "patch_answer": " are",
            "case": 1,
        },
        {"clean_prefix": "The cats", "patch_prefix": "The cat", "clean_answer": " do", "patch_answer": " does"},
    ]
    path, tokenizer = write(tmp_path, "sva.jsonl", *map(json.dumps, [*rows, rows[0]])), Words()
    pairs = read_pairs(path, tokenizer)
    assert len(pairs) == 2
    assert "1 lines repeat earlier ones" in repr(pairs)
    assert [text(tokenizer, p.answers) + text(tokenizer, p.wrong) for p in pairs] == [[" is", " are"], [" do", " does"]]
    assert [p.line for p in pairs] == [1, 2]
    assert pairs[0].clean.tolist() == tokenizer("The dog")["input_ids"]
    assert pairs[0].texts == ("The dog", "The dogs")


def test_answers_follow_from_prompts_that_differ_in_one_token(tmp_path: Path) -> None:
    path = write(
        tmp_path, "ioi.csv", ",clean,corrupted,corrupted_hard,correct_idx,incorrect_idx",
        '4,"Amy and Bob met. Amy gave it to","Amy and Bob met. Eve gave it to","Amy and Bob met. Bob gave it to",7,9',
    )  # fmt: skip
    tokenizer = Words()
    pairs = read_pairs(path, tokenizer)
    assert (text(tokenizer, pairs[0].answers), text(tokenizer, pairs[0].wrong)) == ([" Bob"], [" Amy"])
    assert "ids of another tokenizer: correct_idx, incorrect_idx" in repr(pairs)
    assert "-> ' Bob' against ' Amy'" in repr(pairs)


def test_several_answers_and_ids(tmp_path: Path) -> None:
    tokenizer = Words()
    path = write(tmp_path, "some.csv", "clean,corrupted,answer,wrong", "a b,a c, x| y, z")
    (pair,) = read_pairs(path, tokenizer)
    assert (text(tokenizer, pair.answers), text(tokenizer, pair.wrong)) == ([" x", " y"], [" z"])
    lines = '{"prompt": "a b", "counterfactual": "a c", "answers": [" x", 3]}'
    (pair,) = read_pairs(write(tmp_path, "some.jsonl", lines), tokenizer)
    assert pair.answers == (tokenizer(" x", add_special_tokens=False)["input_ids"][0], 3)
    assert pair.wrong == ()


def test_columns_can_be_named(tmp_path: Path) -> None:
    path = write(tmp_path, "own.csv", "one,two,yes,no", "a b,a c, x, y")
    (pair,) = read_pairs(path, Words(), clean="one", corrupted="two", answer="yes", wrong="no")
    assert pair.texts == ("a b", "a c")
    with pytest.raises(InputError, match=r"no column 'three'\n.*own.csv\n.*one, two, yes, no"):
        read_pairs(path, Words(), clean="three", corrupted="two")


def test_a_tokenizer_may_be_a_function_or_encode() -> None:
    class Encoder:
        def encode(self, words: str) -> list[int]:
            return [ord(c) for c in words]

    assert torch.equal(greater_than(Encoder(), 2)[0].clean, greater_than(Encoder().encode, 2)[0].clean)


HEAD = "clean,corrupted,answer,wrong"
GOOD = "a b,a c, x, y"
LINES = {
    "length": (HEAD, GOOD, "a b,a abcdefgh, x, y", r"different lengths\n.*, line 3\n.*clean 3 tokens, corrupted 4"),
    "answer": (HEAD, GOOD, "a b,a c, abcdefgh, y", r"not one token\n.*line 3\n.*' abcdefgh', .* ' abcde' \+ 'fgh'"),
    "wrong answer": (HEAD, GOOD, "a b,a c, x, abcdefgh", r"not one token\n.*line 3"),
    "fields": (HEAD, GOOD, "a b,a c", r"does not fit the header\n.*line 3\n.*2 fields, not 4"),
    "more fields": (HEAD, GOOD, "a b,a c, x, y, z", r"does not fit the header\n.*line 3\n.*5 fields, not 4"),
    "no prompt": (HEAD, GOOD, ",a c, x, y", r"a prompt is missing\n.*line 3\n.*clean: ''"),
    "no answer": (HEAD, GOOD, "a b,a c,, y", r"an answer is missing\n.*line 3\n.*answer: ''"),
    "both": (HEAD, GOOD, "a b,a c, x, x", r"right and wrong\n.*line 3"),
    "equal": (HEAD, GOOD, "a b,a b, x, y", r"are equal\n.*line 3"),
    "two tokens": ("clean,corrupted", "a b,a c", "a b c,a c d", r"do not follow from the .*\n.*line 3\n.*2 tokens"),
    "quote": (HEAD, GOOD, '"a b,a c, x, y', r"not CSV\n.*line 3"),
}  # fmt: skip


@pytest.mark.parametrize("case", LINES)
def test_a_bad_line_is_named_or_left_out(case: str, tmp_path: Path) -> None:
    *lines, complaint = LINES[case]
    path = write(tmp_path, "pairs.csv", *lines)
    with pytest.raises(InputError, match=complaint):
        read_pairs(path, Words())
    with pytest.warns(NrmWarning, match=r"1 of 2 lines of pairs.csv are left out, the first: line 3"):
        pairs = read_pairs(path, Words(), bad="skip")
    assert [p.line for p in pairs] == [2]
    assert [line for line, _ in pairs.left_out] == [3]
    assert "1 left out, the first: line 3" in repr(pairs)


def test_lines_behind_a_field_of_several_lines_keep_their_numbers(tmp_path: Path) -> None:
    path = write(tmp_path, "pairs.csv", HEAD, '"a\nb","a\nc", x, y', "a b,a c,, y")
    with pytest.raises(InputError, match="line 5"):
        read_pairs(path, Words())


FILES = {
    "empty.csv": ("", "has no pairs"),
    "header.csv": (HEAD, "has no pairs"),
    "empty.jsonl": ("\n\n", "has no pairs"),
    "columns.csv": ("question,answer\na,b", r"no column has the clean .*\n.*columns.csv\n.*question, answer\n.*clean"),
    "half.csv": ("clean,answer\na,b", "no column has the corrupted prompts"),
    "onlywrong.csv": ("clean,corrupted,wrong\na b,a c, d", "wrong answers without right ones"),
    "pairs.txt": (GOOD, "not a file of pairs"),
    "broken.jsonl": ('{"clean": ', r"not JSON\n.*broken.jsonl, line 1"),
    "list.jsonl": ("[1, 2]", r"no JSON object\n.*line 1\n.*list"),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_cannot_be_used_is_refused(name: str, tmp_path: Path) -> None:
    content, complaint = FILES[name]
    with pytest.raises(InputError, match=complaint):
        read_pairs(write(tmp_path, name, content), Words())


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot be read\n.*away.csv\n.*FileNotFoundError"):
        read_pairs(tmp_path / "away.csv", Words())
    (tmp_path / "bytes.csv").write_bytes(b"clean,corrupted\n\xff\xfe,a")
    with pytest.raises(InputError, match="not a text in UTF-8"):
        read_pairs(tmp_path / "bytes.csv", Words())
    with pytest.raises(InputError, match=r"no line of the file can be used(.|\n)*line 2"):
        read_pairs(write(tmp_path, "all.csv", HEAD, "a,,,"), Words(), bad="skip")
    with pytest.raises(InputError, match="bad='ignore'"):
        read_pairs(tmp_path / "all.csv", Words(), bad="ignore")


# ---- greater-than ----------------------------------------------------------------------------------------------------


def letters(text: str) -> list[int]:
    return [ord(c) for c in text]


def two_by_two(text: str) -> list[int]:
    """Digits two by two from the left, other letters one by one."""
    ids: list[int] = []
    while text:
        wide = 2 if text[:2].isdecimal() and len(text[:2]) == 2 else 1
        ids.append(1000 + int(text[:2]) if wide == 2 else ord(text[0]))
        text = text[wide:]
    return ids


def test_greater_than_by_digits() -> None:
    pairs = greater_than(letters, 30, seed=3)
    assert len(pairs) == 30
    assert len({p.texts for p in pairs}) == 30
    for pair in pairs:
        assert pair.texts is not None
        year = pair.texts[0].split(" to ")[0][-4:]
        assert pair.texts[1] == pair.texts[0].replace(year, year[:2] + "01")
        assert [chr(i) for i in pair.answers] == [c for c in "0123456789" if c > year[2]]
        assert [chr(i) for i in pair.wrong] == [c for c in "0123456789" if c < year[2]]
    assert "single digits" in pairs.notes[0]


def test_greater_than_by_years() -> None:
    pairs = greater_than(two_by_two, 5)
    assert "two digits" in pairs.notes[0]
    for pair in pairs:
        assert pair.texts is not None
        year = int(pair.texts[0].split(" to ")[0][-2:])
        assert [i - 1000 for i in pair.answers] == list(range(year + 1, 100))
        assert [i - 1000 for i in pair.wrong] == list(range(year))


def test_greater_than_is_drawn_by_its_seed() -> None:
    one, other, again = (greater_than(letters, 20, seed=seed) for seed in (0, 1, 0))
    assert one.fingerprint == again.fingerprint != other.fingerprint
    assert isinstance(one, Pairs)


def test_a_tokenizer_with_other_years_is_refused() -> None:
    whole = {f"{n}": n for n in range(1000, 2000)}

    def by_words(text: str) -> list[int]:
        return [whole.get(word, sum(map(ord, word))) for word in text.split()]

    with pytest.raises(InputError, match="does not divide years"):
        greater_than(by_words)
    with pytest.raises(InputError, match="no pairs are asked for"):
        greater_than(letters, 0)
