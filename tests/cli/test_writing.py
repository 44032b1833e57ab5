"""The command that lets a language model write."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.conftest import Run
from cli.test_processes import check_form

pytestmark = pytest.mark.filterwarnings("ignore::nrm.NrmWarning")


def test_every_token_has_its_sources(run: Run, reader: Path, folder: Path) -> None:
    command = ["generate", f"hf:{reader}", "once upon a", "--tokens", "3", "--out", "table.png"]
    ended = run(*command, "--json")
    assert ended.code == 0, ended.err
    check_form("generate", ended.data)
    table = ended.data["relevance"]
    assert table["source"][:3] == ["once", "upon", "a"]
    assert len(table["values"]) == len(table["generated"]) == 3
    for row, token in zip(table["values"], ended.data["tokens"], strict=True):
        assert sum(row) == pytest.approx(1, abs=1e-4)
        best = max(range(len(row)), key=lambda i: row[i])
        assert token["sources"][0] == {"token": table["source"][best], "number": best, "relevance": row[best]}
    assert (folder / "table.png").stat().st_size > 1000
    shown = run(*command, "--no-first", "-k", "2")
    assert "in the first token 'once', left out" in shown.out


def test_a_given_answer_is_explained(run: Run, reader: Path) -> None:
    ended = run("generate", f"hf:{reader}", "once upon a", "--answer", "time there", "--json")
    assert ended.data["relevance"]["generated"] == ["time", "there"]


def test_tokens_are_printed_as_they_come(run: Run, reader: Path) -> None:
    command = ["generate", f"hf:{reader}", "once upon a", "--tokens", "3"]
    together, streamed = run(*command, "--json"), run(*command, "--stream", "--json")
    assert [one["token"] for one in streamed.data["tokens"]] == [one["token"] for one in together.data["tokens"]]
    lines = run(*command, "--stream").out.splitlines()
    assert [line.split()[0] for line in lines[:3]] == [one["token"] for one in together.data["tokens"]]


def test_another_prompt_is_compared_with(run: Run, reader: Path) -> None:
    ended = run("generate", f"hf:{reader}", "once upon a", "--answer", "time", "--against", "once there a", "--json")
    assert ended.data["reference"] == ["once", "there", "a"]
    assert ended.data["relevance"]["values"][0] == pytest.approx([0, 1, 0], abs=1e-4)
    ended = run("generate", f"hf:{reader}", "once upon a", "--against", "once a")
    assert ended.code == 2
    assert "as many tokens" in ended.err


def test_what_cannot_write_is_refused(run: Run, reader: Path) -> None:
    ended = run("generate", "factories:whole", "once")
    assert ended.code == 2
    assert "no tokenizer" in ended.err
    ended = run("generate", f"hf:{reader}", "once", "--chat")
    assert ended.code == 2
    assert "chat template" in ended.err
