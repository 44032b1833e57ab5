"""The command that finds the circuit of a task."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import nrm
from cli.conftest import Run
from cli.test_processes import check_form
from nrm.cli.models import load_model

pytestmark = pytest.mark.filterwarnings("ignore::nrm.NrmWarning")

LINES = ["clean,corrupted,answer,wrong", "once upon a,there upon a, time, was", "upon a time,upon a was, there, once",
         "once a time,once a was, upon, there", "a time was,a there was, once, upon"]  # fmt: skip


@pytest.fixture
def pairs(folder: Path) -> Path:
    (folder / "pairs.csv").write_text("\n".join(LINES))
    return folder / "pairs.csv"


def test_a_circuit_is_that_of_the_library(run: Run, reader: Path, pairs: Path, folder: Path) -> None:
    command = ["circuit", f"hf:{reader}", "pairs.csv", "--top", "6", "--draws", "20", "--patch"]
    ended = run(*command, "--json", "--save", "circuit.json", "--plot", "circuit.png", "--out", "circuit.html")
    assert ended.code == 0, ended.err
    check_form("circuit", ended.data)
    loaded = load_model(f"hf:{reader}")
    task = nrm.tasks.read_pairs(pairs, loaded.tokenizer)
    found = nrm.circuit(loaded.model, task, top=6, draws=20, chains=1)
    data = ended.data
    assert data["edges"] == len(found.circuit) <= 6
    assert data["mass"] == pytest.approx(found.circuit.mass)
    assert data["f"] == pytest.approx(nrm.evaluate.patch(loaded.model, found, task).f, abs=1e-5)
    assert data["stability"] == pytest.approx(found.stability)
    assert data["accuracy"]["share"] == found.accuracy.share
    assert [e["writer"] for e in data["strongest"]] == [str(e.writer) for e in found.circuit.top(12)]
    assert data["files"] == ["circuit.json", "circuit.png", "circuit.html"]
    assert nrm.jobs.TaskCircuit.load(folder / "circuit.json").circuit == found.circuit
    assert (folder / "circuit.png").stat().st_size > 1000
    assert '"kind": "circuit"' in (folder / "circuit.html").read_text()
    shown = run(*command, "-k", "2")
    assert "edges carry" in shown.out
    assert "patching measures" in shown.out
    assert "stability" in shown.out
    assert "fails this task" in shown.err or found.accuracy.is_enough


def test_a_job_goes_on_in_its_store(run: Run, reader: Path, pairs: Path, folder: Path) -> None:
    command = ["circuit", f"hf:{reader}", "pairs.csv", "--store", "kept", "--draws", "0", "--json"]
    first = run(*command, "--top", "0.5")
    assert first.code == 0, first.err
    assert list((folder / "kept").glob("batch-*"))
    again = run(*command, "--mass", "0.8", "--top", "8")
    assert again.code == 0, again.err
    assert again.data["edges"] <= 8
    pairs.write_text("\n".join(LINES[:3]))
    other = run(*command)
    assert other.code == 1
    assert "another pairs" in other.err


def test_bad_lines_are_left_out_if_that_is_asked(run: Run, reader: Path, pairs: Path) -> None:
    pairs.write_text("\n".join([*LINES, "once upon,once upon a, time, was"]))
    command = ["circuit", f"hf:{reader}", "pairs.csv", "--top", "4", "--draws", "0", "--json"]
    refused = run(*command)
    assert refused.code == 2
    assert "different lengths" in refused.err
    assert "--skip leaves such lines out" in refused.err
    left = run(*command, "--skip").data["pairs"]
    assert (left["count"], len(left["left_out"])) == (4, 1)


BAD = [
    (["circuit", "{reader}"], "a file of pairs, or --task"),
    (["circuit", "{reader}", "pairs.csv", "--task", "greater-than"], "a file of pairs, or --task"),
    (["circuit", "{reader}", "--task", "arithmetic"], "no such task"),
    (["circuit", "{reader}", "--task", "greater-than"], "centuries and years"),
    (["circuit", "{reader}", "pairs.csv", "--top", "many"], "not a number of edges"),
    (["circuit", "{reader}", "pairs.csv", "--top", "1.5"], "cannot be chosen"),
    (["circuit", "{reader}", "pairs.csv", "--by", "luck"], "by share or by flow"),
    (["circuit", "{reader}", "absent.csv"], "cannot be read"),
    (["circuit", "{reader}", "pairs.csv", "--out", "page.png"], "cannot be written there"),
    (["circuit", "{reader}", "pairs.csv", "--plot", "absent/circuit.png"], "cannot be written there"),
    (["circuit", "factories:whole", "pairs.csv"], "no tokenizer"),
]


@pytest.mark.parametrize(("command", "complaint"), BAD, ids=[c for _, c in BAD])
def test_bad_input_is_one_sentence(
    command: list[str], complaint: str, run: Run, reader: Path, pairs: Path, folder: Path
) -> None:
    before = sorted(folder.iterdir())
    ended = run(*(word.replace("{reader}", f"hf:{reader}") for word in command), "--json")
    assert ended.code == 2, ended.err
    assert complaint in ended.err
    assert complaint in json.dumps(ended.data["error"])
    assert sorted(folder.iterdir()) == before
