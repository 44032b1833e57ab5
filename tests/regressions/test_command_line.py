"""The command line as people use it: at once, in pipes, with odd files, and twice in the same folder."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save

import factories
import nrm
from cli.conftest import fill
from cli.running import Ended, environment
from nrm.cli import main
from nrm.cli.asked import EXPERIMENTS
from nrm.cli.commands import COMMANDS, make_command
from nrm.files import files_below
from nrm.report.view import FLOWS, NODES

pytest.importorskip("typer")
WHOLE = "factories:whole"
LAYERS = ("-l", "1", "-l", "output")

Run = Callable[..., Ended]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    fill(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(folder: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    def command(*arguments: str) -> Ended:
        capsys.readouterr()
        code = main(arguments)
        return Ended(code, *capsys.readouterr())

    return command


class Standard:
    """A standard input with these bytes."""

    def __init__(self, content: bytes) -> None:
        self.buffer = io.BytesIO(content)


# ---- help --------------------------------------------------------------------------------------------------------

HELP = """
import sys
sys.argv[0] = "nrm"
from nrm.cli import main
code = main(sys.argv[1:])
heavy = {"torch", "numpy", "matplotlib", "PIL"}
print(sorted({name.partition(".")[0] for name in sys.modules} & heavy), file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.parametrize("command", [["--help"], ["explain", "--help"], ["relmax", "--help"], ["version"], ["flows"]])
def test_help_does_not_import_torch(command: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", HELP, *command], env=environment(), capture_output=True, text=True)
    assert done.returncode == (2 if command == ["flows"] else 0), done.stderr
    assert done.stderr.rstrip().endswith("[]"), done.stderr


def test_the_front_door_is_the_same_in_whatever_order_it_is_used() -> None:
    code = """
import sys, nrm
assert "torch" not in sys.modules
import nrm.measure.labels  # the room of that name
assert callable(nrm.measure) and nrm.layer("a").name == "a" and nrm.input.name == "input"
assert nrm.jobs.Crops and nrm.rules.Factor and nrm.errors.JobError
assert set(nrm.__all__) <= set(dir(nrm))
from nrm import *
assert relmax is nrm.relmax and measure is nrm.measure
try:
    nrm.nothing
except AttributeError:
    print("good")
"""
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True)
    assert done.stdout == "good\n", done.stderr


def test_help_is_written_for_people() -> None:
    for kind in COMMANDS:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("COLUMNS", "200")
            said = io.StringIO()
            patch.setattr(sys, "stdout", said)
            assert main([kind.__name__.removesuffix("Command").lower(), "--help"]) == 0
        assert "Usage" in said.getvalue()
        for role in (":func:", ":class:", ":meth:", "``"):
            assert role not in said.getvalue(), kind.__name__


def test_defaults_that_help_repeats_are_those_of_the_library() -> None:
    reproduce = pytest.importorskip("nrm.reproduce")
    assert ", ".join(reproduce.EXPERIMENTS) == EXPERIMENTS
    options = {p.name: p for p in make_command().commands["explain"].params}
    assert (options["nodes"].default, options["flows"].default) == (NODES, FLOWS)


# ---- inputs ------------------------------------------------------------------------------------------------------


def test_the_standard_input_is_an_image_tensors_or_names(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = torch.from_numpy(np.load(folder / "many.npy"))
    for content, names in (
        ((folder / "one.png").read_bytes(), ["-"]),
        ((folder / "x.npy").read_bytes(), ["-"]),
        (save({"x": many}), [f"-[{i}]" for i in range(4)]),
        (b"one.png\ndata\n", ["one.png", "cat/1.png", "cat/2.png", "dog/3.png"]),
    ):
        monkeypatch.setattr(sys, "stdin", Standard(content))
        done = run("check", WHOLE, "-", "--json")
        assert done.code == 0, done.err
        assert [result["input"] for result in done.data["results"]] == names
    for content, text in ((b"", "the standard input is empty"), (b"GIF\0\1\2", "data of an unknown kind")):
        monkeypatch.setattr(sys, "stdin", Standard(content))
        refused = run("check", WHOLE, "-")
        assert refused.code == 2
        assert text in refused.err


def test_a_page_goes_to_the_standard_output(run: Run) -> None:
    done = run("report", WHOLE, "one.png", *LAYERS, "--fast", "--out", "-")
    assert done.code == 0, done.err
    assert done.out.lstrip().lower().startswith("<!doctype html>")
    assert run("explain", WHOLE, "one.png", "--out", "-", "--json").code == 2


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are bytes there")
def test_a_file_name_that_is_not_utf8(folder: Path, run: Run) -> None:
    odd = os.fsdecode(b"caf\xe9.png")
    (folder / "one.png").rename(folder / "data" / "cat" / odd)
    single = run("explain", WHOLE, os.path.join("data", "cat", odd), *LAYERS, "--out", "results", "--json")
    assert single.code == 0, single.err
    assert single.data["results"][0]["input"] == r"caf\xe9.png"
    assert r"caf\xe9.png" in single.data["line"]
    whole = run("explain", WHOLE, "data", *LAYERS, "--fast", "--json")
    assert [one["input"] for one in whole.data["results"]][2] == r"cat/caf\xe9.png"
    ranked = run("relmax", WHOLE, "data", "-a", "1", "--blocks", "1", "--json")
    assert ranked.code == 0, ranked.err
    found = {sample["name"] for sample in ranked.data["results"][0]["blocks"][0]["samples"]}
    assert r"cat/caf\xe9.png" in found
    assert run("heatmaps", WHOLE, "data", "--out", "maps", "--json").code == 0
    (folder / "data" / "cat" / odd).write_bytes(b"broken")
    bad = run("explain", WHOLE, "data", "--fast")
    assert bad.code == 1
    assert r"cat/caf\xe9.png: the image cannot be read" in bad.err


def test_a_corrupt_image_is_named_by_its_file(folder: Path, run: Run) -> None:
    whole = (folder / "data" / "cat" / "2.png").read_bytes()
    (folder / "data" / "cat" / "2.png").write_bytes(whole[: len(whole) // 2])
    for command in (("explain", WHOLE, "data", "--fast"), ("check", WHOLE, "data")):
        assert "cat/2.png: the image cannot be read" in run(*command).err
    for command in (("relmax", WHOLE, "data", "-a", "1"), ("heatmaps", WHOLE, "data", "--out", "maps")):
        done = run(*command)
        assert done.code == 1
        assert "the image cannot be read where: cat/2.png" in done.err
        assert "--max-errors 100" in done.err
        left = run(*command, "--max-errors", "1", "--json")
        assert left.code == 0, left.err
        assert [error["name"] for error in left.data["errors"]] == ["cat/2.png"]


def test_results_inside_of_the_data_are_not_data(folder: Path, run: Run) -> None:
    explain = ("explain", WHOLE, "data", *LAYERS, "--fast", "--json")
    names = [result["input"] for result in run(*explain).data["results"]]
    for place in ("data/results", "data"):
        assert run(*explain, "--out", place).code == 0
        assert [result["input"] for result in run(*explain, "--out", place).data["results"]] == names
    assert run("heatmaps", WHOLE, "data", "--out", "data/maps").code == 0
    assert run("report", WHOLE, "data", *LAYERS, "--fast", "--out", "data/pages").code == 0
    assert files_below(folder / "data", {".png", ".svg", ".safetensors", ".html"}) == names
    pytest.importorskip("duckdb")
    relmax = ("relmax", WHOLE, "data", "-a", "1", "-k", "2", "--store", "data/store")
    assert run(*relmax).code == 0
    again = run(*relmax, "--json")
    assert again.code == 0, again.err
    assert again.data["samples"] == 3
    refused = run(*relmax, "--sheet", "data/sheet.png")
    assert refused.code == 2
    assert "would become a part of the data set" in refused.err


# ---- results -----------------------------------------------------------------------------------------------------


def test_folders_are_classes_by_name(folder: Path, run: Run) -> None:
    relmax = ("relmax", WHOLE, "data", "-a", "1", "-k", "3", "--blocks", "1", "--target", "label", "--json")
    found = run(*relmax).data["results"][0]["blocks"][0]["samples"]
    assert {(one["name"][:3], one["target"], one["label"]) for one in found} == {("cat", 0, "cat"), ("dog", 1, "dog")}
    (folder / "data" / "dog").rename(folder / "data" / "n02084071")
    (folder / "data" / "cat").rename(folder / "data" / "n02123045")
    refused = run(*relmax)
    assert refused.code == 2
    assert "n02084071, n02123045" in refused.err
    assert "cat, dog, fish" in refused.err
    assert "--class-names" in refused.err
    (folder / "names.json").write_text(json.dumps({"n02084071": "dog", "n02123045": 2}))
    (folder / "index.json").write_text(
        json.dumps({"0": ["n02123045", "cat"], "1": ["n02084071", "dog"], "2": ["n", "x"]})
    )
    for options, targets in ((("--class-names", "names.json"), {1, 2}), (("--labels", "index.json"), {0, 1})):
        done = run(*relmax, *options)
        assert done.code == 0, done.err
        assert {one["target"] for one in done.data["results"][0]["blocks"][0]["samples"]} == targets
    assert run("relmax", WHOLE, "data", "-a", "1", "--class-names", "names.json").code == 2


def test_tables_have_axes_and_labels(run: Run) -> None:
    found = run("explain", WHOLE, "one.png", "-l", "4", "-l", "output", "--nodes", "3", "--json").data
    (result,) = found["results"]
    (table,) = result["joint"]
    assert [axis["layer"] for axis in table["axes"]] == ["4", "output"]
    assert [axis["by"] for axis in table["axes"]] == ["channels", "channels"]
    rows, columns = (axis["labels"] for axis in table["axes"])
    assert len(table["values"]) == len(rows)
    assert {len(row) for row in table["values"]} == {len(columns)}
    assert set(columns) & {"cat", "dog", "fish"}
    assert all(len(flow["labels"]) == 2 for flow in result["flows"])
    flows = run("flows", WHOLE, "one.png", "-l", "4", "-l", "output", "-k", "1", "--json").data
    assert flows["results"][0]["flows"][0]["labels"][1] in ("cat", "dog", "fish")


def test_fast_is_the_cheap_part(folder: Path, run: Run) -> None:
    command = ("explain", WHOLE, "one.png", *LAYERS)
    fast, slow = (run(*command, *more, "--json").data["results"][0] for more in (["--fast"], []))
    assert fast["decision"] == slow["decision"]
    assert fast["layers"] == slow["layers"]
    assert (fast["columns"], fast["flows"], fast["joint"]) == ([], [], [])
    assert run(*command, "--fast", "--out", "results").code == 0
    assert sorted(path.name for path in (folder / "results" / "one.png").iterdir()) == [
        ".nrm-results", "heat.png", "heat.svg", "relevance.safetensors", "result.json",
    ]  # fmt: skip


def test_all_heat_maps_come_first_and_the_network_runs_once_for_each(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = pytest.importorskip("nrm.cli.answers")
    explain = pytest.importorskip("nrm.cli.explain")
    order: list[str] = []
    for module, name in ((answers, "measure"), (explain, "write_heat"), (explain, "write_folder")):
        own: Any = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, own=own, name=name, **k: (order.append(name), own(*a, **k))[1])
    own_check, checks = nrm.Measure.check, []
    monkeypatch.setattr(nrm.Measure, "check", lambda R, **k: (checks.append(R), own_check(R, **k))[1])
    assert run("explain", WHOLE, "data", *LAYERS, "--fast", "--out", "fast").code == 0
    assert not checks  # it takes longer than the heat map
    order.clear()
    assert run("explain", WHOLE, "data", *LAYERS, "--out", "results").code == 0
    assert order == ["measure", "write_heat"] * 3 + ["write_folder"] * 3
    assert len(checks) == 3
    monkeypatch.setattr(answers, "ROOM", 0)  # then measures are made again
    order.clear()
    assert run("explain", WHOLE, "data", *LAYERS, "--out", "results").code == 0
    assert order == ["measure", "write_heat"] * 3 + ["measure", "write_folder"] * 3


def test_what_takes_the_time_is_said(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run("explain", WHOLE, "data", *LAYERS, "--json").data["seconds"]
    assert {"running the network", "the heat map", "the flow through the layers"} <= {one["what"] for one in found}
    assert [one["seconds"] for one in found] == sorted((one["seconds"] for one in found), reverse=True)
    monkeypatch.setattr("nrm.cli.output.LONG", -1.0)
    done = run("explain", WHOLE, "data", *LAYERS)
    assert "cat/2.png (2 of 3): the heat map" in done.err
    assert "s so far" in done.err


def test_a_report_for_every_input(folder: Path, run: Run) -> None:
    done = run("report", WHOLE, "one.png", *LAYERS, "--json")
    assert done.code == 0, done.err
    assert done.data["results"][0]["files"] == ["report.html"]
    assert (folder / "report.html").stat().st_size > 10_000
    assert run("report", WHOLE, "data", *LAYERS).code == 2  # three inputs are no page
    assert run("report", WHOLE, "data", *LAYERS, "--fast", "--out", "pages").code == 0
    assert sorted(path.name for path in (folder / "pages").glob("*.html")) == [
        "cat-1.png.html", "cat-2.png.html", "dog-3.png.html",
    ]  # fmt: skip


def test_evaluate_compares_with_interventions(folder: Path, run: Run) -> None:
    done = run("evaluate", WHOLE, "data", "-l", "1", "-l", "4", "--json")
    assert done.code == 0, done.err
    assert [one["method"] for one in done.data["mean"]] == ["nrm", "lrp", "occlusion", "activation", "random"]
    loaded = pytest.importorskip("nrm.cli.models").load_model(WHOLE)
    image = Image.open(folder / "data" / "cat" / "1.png").convert("RGB")
    R = nrm.measure(loaded.model, loaded.transform.of(image)[None])
    own = nrm.evaluate.compare(R, R["1"].channels, R["4"].channels)
    assert done.data["results"][0]["methods"][0]["pearson"] == pytest.approx(float(own["nrm"].pearson[0]), abs=1e-5)
    assert "joint relevance" in run("evaluate", WHOLE, "one.png", "-l", "1", "-m", "nrm").out
    assert run("evaluate", WHOLE, "one.png", "-l", "1", "-m", "magic").code == 2


def test_heat_maps_of_a_folder(folder: Path, run: Run) -> None:
    command = ("heatmaps", WHOLE, "data", "--target", "label", "--out", "maps")
    done = run(*command, "--json")
    assert done.code == 0, done.err
    assert [(one["name"], one["label"]) for one in done.data["results"]] == [
        ("cat/1.png", "cat"), ("cat/2.png", "cat"), ("dog/3.png", "dog"),
    ]  # fmt: skip
    for one in done.data["results"]:
        saved = nrm.load(folder / "maps" / one["file"])
        assert float(saved["relevance"].sum()) == pytest.approx(one["total"])
        assert (folder / "maps" / one["picture"]).stat().st_size > 500
    before = {path: path.stat().st_mtime_ns for path in (folder / "maps" / "maps").rglob("*.safetensors")}
    assert "written: maps" in run(*command).out
    assert before == {path: path.stat().st_mtime_ns for path in before}
    assert run(*command[:-1], "data").code == 2


def test_a_finished_store_is_read_where_nothing_can_be_written(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("duckdb")
    store = pytest.importorskip("nrm.jobs.store")
    command = ("relmax", WHOLE, "data", "-a", "1", "-k", "2", "--store", "kept", "--json")
    first = run(*command)
    assert first.code == 0, first.err

    def refuse(*_: Any) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr(store, "claim_folder", refuse)  # whoever wants to write takes it first; root may always
    (folder / "kept").chmod(0o555)
    try:
        again = run(*command)
        assert again.code == 0, again.err
        assert again.data["results"] == first.data["results"]
        assert nrm.open_store(folder / "kept").count == 3
    finally:
        (folder / "kept").chmod(0o755)
    assert "another k" in run(*command[:6], "3", *command[7:]).err


# ---- rules and rankings as text ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "rules"),
    [("gamma", nrm.Gamma(0.25)), ("Gamma(0.5)", nrm.Gamma(0.5)), ("nrm.ZPlus()", nrm.ZPlus()), ("z+", nrm.ZPlus()),
     ("AlphaBeta(2, beta=1)", nrm.AlphaBeta(2, 1)), ("lrp-0", "lrp-0")],
)  # fmt: skip
def test_rules_are_written_as_in_python(text: str, rules: Any, run: Run) -> None:
    found = run("flows", WHOLE, "x.npy", *LAYERS, "--rules", text, "--json")
    assert found.code == 0, found.err
    R = nrm.measure(factories.whole()[0], torch.from_numpy(np.load("x.npy"))[None], rules=rules)
    best = R.flows(R["1"].channels, R.output.channels)[0][0]
    assert found.data["results"][0]["flows"][0]["relevance"] == pytest.approx(best.relevance, rel=1e-4)


@pytest.mark.parametrize(
    ("text", "said"),
    [("gama", "no such rules"), ("epsilon_plus", "--rules epsilon-plus"), ("Gamma(open('x'))", "cannot be read"),
     ("Gamma(0.25", "cannot be read"), ("Gamma()(1)", "cannot be read"), ("Gamma(1, 2)", "cannot be read"),
     ("AlphaBeta(1, 2)", "alpha > beta >= 0"), (f"Gamma({'-' * 9000}1)", "cannot be read"), ("", "no such rules")],
)  # fmt: skip
def test_rules_that_cannot_be_read(text: str, said: str, run: Run) -> None:
    found = run("check", WHOLE, "x.npy", "--rules", text)
    assert found.code == 2
    assert said in found.err
    assert "Traceback" not in found.err


@pytest.mark.parametrize("by", ["lift", "excess"])
def test_flows_are_ranked_by_lift(by: str, run: Run) -> None:
    pair = ("-l", "input", "-l", "1")
    found = run("flows", WHOLE, "x.npy", *pair, "--rules", "zplus", "--by", by, "-k", "3", "--json")
    assert found.code == 0, found.err
    amounts = [flow[by] for flow in found.data["results"][0]["flows"]]
    assert amounts == sorted(amounts, reverse=True)
    said = run("flows", WHOLE, "x.npy", *pair, "--rules", "zplus", "--by", by, "-k", "3").out
    assert by in said
    assert f"{amounts[0]:.4g}" in said
    assert run("flows", WHOLE, "x.npy", *LAYERS, "--by", "size").code == 2


def test_hints_are_written_for_the_command_line(run: Run) -> None:
    done = run("flows", WHOLE, "one.png", "-l", "absent")
    assert done.code == 2
    assert "nrm layers --find PATTERN" in done.err
    assert "R.layers" not in done.err
