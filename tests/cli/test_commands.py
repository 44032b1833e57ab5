"""What commands say and write, against the library itself."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import nrm
from cli.conftest import Run
from factories import small, whole
from nrm.cli.inputs import read_inputs
from nrm.cli.models import load_model
from nrm.jobs import job

WHOLE = "factories:whole"


def measured(folder: Path, name: str = "one.png") -> nrm.Measure:
    (item,) = read_inputs(load_model(WHOLE), [str(folder / name)])
    return nrm.measure(whole()[0], item.load().inputs)


def test_layers_are_those_of_the_measure(folder: Path, run: Run) -> None:
    R = measured(folder)
    rows = run("layers", WHOLE, "one.png", "--json").data["layers"]
    assert [row["name"] for row in rows] == [row.name for row in R.layers]
    assert [row["mass"] for row in rows] == pytest.approx([row.mass[0] for row in R.layers])
    shown = run("layers", "factories:small", "--shape", "3,6,6")
    assert "4x6x6" in shown.out
    assert "noise of shape 3x6x6" in shown.err
    assert all(row["mass"] is None for row in run("layers", WHOLE, "--json").data["layers"])


def test_an_explanation_has_the_numbers_of_the_measure(folder: Path, run: Run) -> None:
    R = measured(folder)
    (result,) = run("explain", WHOLE, "one.png", "-l", "1", "-l", "4", "--nodes", "6", "--json").data["results"]
    assert result["decision"]["index"] == int(R.prediction)
    assert result["decision"]["value"] == pytest.approx(float(R.value))
    channels = R(R["1"].channels)[0]
    for node in result["columns"][0]["nodes"]:
        assert node["share"] == pytest.approx(float(channels[node["block"]]), abs=1e-6)
    low, high = ([node["block"] for node in column["nodes"]] for column in result["columns"])
    pairs = R(R["1"].channels, R["4"].channels)[0]
    assert torch.allclose(torch.tensor(result["joint"][0]["values"]), pairs[low][:, high], atol=1e-6)
    assert result["health"]["level"] == "good"


def test_an_explanation_for_people(run: Run) -> None:
    done = run("explain", WHOLE, "one.png", "-l", "1", "-l", "output", "--target", "dog")
    assert done.code == 0
    assert done.out.startswith("one.png: output 1 'dog' = ")
    assert "channel" in done.out
    assert "can be trusted" in done.out


def test_a_report_is_one_file_with_the_command_inside(folder: Path, run: Run) -> None:
    done = run("explain", WHOLE, "one.png", "-l", "2", "-l", "output", "--out", "report.html")
    assert done.code == 0, done.err
    page = (folder / "report.html").read_text()
    found = re.search(r'<script type="application/json" id="view">(.*?)</script>', page, re.S)
    assert found is not None
    view = json.loads(found[1])
    script = view["script"]
    assert "# python -m nrm explain factories:whole one.png -l 2 -l output --out report.html" in script
    assert view["versions"]["nrm"] == nrm.__version__
    (folder / "script.py").write_text(script.replace("report.html", "again.html"))
    again = runpy.run_path(str(folder / "script.py"))
    assert float(again["heat"].sum()) == pytest.approx(view["heat"]["total"])
    assert (folder / "again.html").exists()


@pytest.mark.parametrize("against", ["zeros", "x.npy"])
def test_a_contrast_is_that_of_the_measure(folder: Path, run: Run, against: str) -> None:
    loaded = load_model(WHOLE)
    other = read_inputs(loaded, [str(folder / against)])[0].load().inputs if against != "zeros" else against
    R = nrm.measure(loaded.model, read_inputs(loaded, [str(folder / "one.png")])[0].load().inputs, against=other)
    given = ("one.png", "--against", against, "--json")
    (result,) = run("explain", WHOLE, "-l", "1", "-l", "4", "--nodes", "6", *given).data["results"]
    assert result["decision"]["value"] == pytest.approx(float(R.value))
    here, there = result["decision"]["runs"]
    assert here - there == pytest.approx(float(R.value), abs=1e-6)
    channels = R(R["1"].channels)[0]
    for node in result["columns"][0]["nodes"]:
        assert node["share"] == pytest.approx(float(channels[node["block"]]), abs=1e-6)
    (found,) = run("query", "a", WHOLE, "--set", "a=1.channel(0)", *given).data["results"]
    assert found["relevance"] == pytest.approx(float(channels[0]), abs=1e-6)
    (found,) = run("flows", WHOLE, "-l", "1", "-k", "1", *given).data["results"]
    assert found["flows"][0]["relevance"] == pytest.approx(float(channels.max()), abs=1e-6)
    (found,) = run("check", WHOLE, *given).data["results"]
    assert found["ok"]
    assert found["decision"]["runs"] == pytest.approx([here, there])


@pytest.mark.parametrize("against", ["zeros", "x.npy"])
def test_the_script_of_a_contrast_repeats_it(folder: Path, run: Run, against: str) -> None:
    done = run("report", WHOLE, "one.png", "-l", "1", "-l", "output", "--against", against, "--fast")
    assert done.code == 0, done.err
    assert "in the reference to" in done.out
    found = re.search(r'id="view">(.*?)</script>', (folder / "report.html").read_text(), re.S)
    assert found is not None
    view = json.loads(found[1])
    (folder / "script.py").write_text(view["script"].replace("report.html", "again.html"))
    again = runpy.run_path(str(folder / "script.py"))
    assert float(again["R"].value) == pytest.approx(view["decision"]["value"])
    assert float(again["heat"].sum()) == pytest.approx(view["heat"]["total"], abs=1e-5)  # of a total variation of 100


def test_several_references_are_averaged(folder: Path, run: Run) -> None:
    loaded = load_model(WHOLE)
    x, other = (read_inputs(loaded, [str(folder / name)])[0].load().inputs for name in ("one.png", "x.npy"))
    R = nrm.measure(loaded.model, x, against=["zeros", other])
    given = ("one.png", "--against", "zeros", "--against", "x.npy", "--json")
    channels = R(R["1"].channels)[0]
    (found,) = run("query", "a", WHOLE, "--set", "a=1.channel(0)", *given).data["results"]
    assert found["relevance"] == pytest.approx(float(channels[0]), abs=1e-6)
    assert found["decision"]["value"] == pytest.approx(float(R.value), abs=1e-6)
    assert found["decision"]["runs"] == pytest.approx([float(R.here), float(R.there)], abs=1e-6)
    (found,) = run("flows", WHOLE, "-l", "1", "-k", "1", *given).data["results"]
    assert found["flows"][0]["relevance"] == pytest.approx(float(channels.max()), abs=1e-6)
    (found,) = run("check", WHOLE, *given).data["results"]
    assert found["ok"]
    rows = {row["name"]: row["mass"] for row in run("layers", WHOLE, *given).data["layers"]}
    assert rows["1"] == pytest.approx(float(R(R["1"].all)), abs=1e-5)
    plan = run("query", "a", WHOLE, "--set", "a=1.channel(0)", "--dry-run", *given).data["plan"]
    once = run("query", "a", WHOLE, "--set", "a=1.channel(0)", "--dry-run", *given[:3], "--json").data["plan"]
    assert plan["passes"] == pytest.approx(2 * once["passes"])
    assert "mean of 2 references" in run("check", WHOLE, *given[:-1]).out


def test_what_takes_one_reference_says_so(run: Run) -> None:
    two = ("--against", "zeros", "--against", "x.npy")
    for command in (("explain", WHOLE), ("report", WHOLE), ("evaluate", WHOLE, "-l", "1")):
        refused = run(*command, "one.png", *two)
        assert refused.code == 2
        assert "takes one reference" in refused.err
    assert "one reference" in run("flows", WHOLE, "one.png", "-l", "1", "--by", "lift", *two).err
    assert "clusters are found for one reference" in run("flows", WHOLE, "one.png", "-l", "1.clusters", *two).err
    assert run("check", WHOLE, "one.png", "--against", "zeros", "--against", "zeroes").code == 2


def test_a_reference_is_one_input_or_a_word(run: Run) -> None:
    several = run("check", WHOLE, "one.png", "--against", "many.npy")
    assert several.code == 2
    assert "a reference is one input" in several.err
    unknown = run("check", WHOLE, "one.png", "--against", "zeroes")
    assert unknown.code == 2
    assert re.search(r"--against[\s\S]*zeros or blur", unknown.err)
    assert run("check", WHOLE, "one.png", "--against", "zeros", "--bias", "input").code == 2


def test_a_folder_of_results(folder: Path, run: Run) -> None:
    done = run("explain", WHOLE, "many.npy", "--single", "--out", "results")
    assert done.code == 2  # four samples cannot be one
    done = run("explain", WHOLE, "one.png", "x.npy", "-l", "1", "-l", "output", "--out", "results")
    assert done.code == 0, done.err
    whole = json.loads((folder / "results" / "index.json").read_text())
    assert whole["schema"] == 2
    for result in whole["results"]:
        assert {Path(file).suffix for file in result["files"]} == {".json", ".safetensors", ".png", ".svg"}
        for file in result["files"]:
            assert (folder / "results" / file).stat().st_size > 200
    own = json.loads((folder / "results" / "one.png" / "result.json").read_text())
    assert own["input"] == "one.png"
    saved = nrm.load(folder / "results" / "one.png" / "relevance.safetensors")
    R = measured(folder)
    assert torch.allclose(saved["input"], R(R.input.positions))
    assert torch.allclose(saved["1.channels"], R(R["1"].channels))
    assert saved.measure is not None
    with Image.open(folder / "results" / "one.png" / "heat.png") as picture:
        assert min(picture.size) > 100


def test_a_bad_file_in_a_folder_is_told_and_the_others_go_on(folder: Path, run: Run) -> None:
    (folder / "data" / "cat" / "0.png").write_bytes(b"no image")
    done = run("check", WHOLE, "data", "--json")
    assert done.code == 1
    results = done.data["results"]
    assert [("error" in result) for result in results] == [True, False, False, False]
    assert results[0]["error"]["what"] == "the image cannot be read"
    assert "cat/0.png: the image cannot be read" in done.err


def test_flows_are_those_of_the_measure(folder: Path, run: Run) -> None:
    R = measured(folder)
    command = ("flows", WHOLE, "one.png", "-l", "1", "-l", "4.channel(2)", "-k", "3", "--json")
    (result,) = run(*command).data["results"]
    flows = R.flows(R["1"].channels, R["4"].channel(2), k=3)[0]
    assert [flow["relevance"] for flow in result["flows"]] == pytest.approx([flow.relevance for flow in flows])
    assert [flow["sets"] for flow in result["flows"]] == [[str(one) for one in flow] for flow in flows]
    assert all(flow["labels"] == [None, None] for flow in result["flows"])
    assert result["certified"]
    assert "of sample" not in run(*command[:-1]).out


def test_flows_say_the_labels_of_outputs(folder: Path, run: Run) -> None:
    (folder / "names.txt").write_text("ant\nbee\ncat\n")
    command = (
        "flows",
        WHOLE,
        "one.png",
        "-l",
        "1",
        "-l",
        "output",
        "-k",
        "2",
        "--labels",
        "names.txt",
        "--target",
        "bee",
    )
    (result,) = run(*command, "--json").data["results"]
    assert all(flow["labels"] == [None, "bee"] for flow in result["flows"])
    assert "output.channel(1) 'bee'" in run(*command).out


def test_layers_are_searched_and_shown_as_blocks(folder: Path, run: Run) -> None:
    names = [row["name"] for row in run("layers", WHOLE, "one.png", "--json").data["layers"]]
    found = run("layers", WHOLE, "one.png", "--find", "1", "--json").data["layers"]
    assert [row["name"] for row in found] == [name for name in names if "1" in name]
    blocks = run("layers", WHOLE, "one.png", "--blocks", "--json").data["layers"]
    assert 0 < len(blocks) <= len(names)


def test_queries_are_those_of_the_measure(folder: Path, run: Run) -> None:
    R = measured(folder)
    a, b = R["1"].channel(0), R["4"].channel(1)
    expected = float(R(nrm.visits(a) & ~nrm.visits(b)))
    (folder / "sets.txt").write_text("a = 1.channel(0)\n")
    command = ("query", "a AND NOT b", WHOLE, "one.png", "--sets", "sets.txt", "-s", "b=4.channel(1)")
    (result,) = run(*command, "--json").data["results"]
    assert result["relevance"] == pytest.approx(expected, abs=1e-6)
    assert f"{100 * expected:.2f} % of it flowed through a & ~b" in run(*command).out


def test_a_check_that_fails_ends_with_1(folder: Path, run: Run) -> None:
    assert run("check", WHOLE, "one.png").code == 0
    np.save(folder / "ones.npy", np.ones(4, dtype=np.float32))
    command = ("check", "factories:leaking", "ones.npy", "--bias", "ignore")
    done = run(*command, "--json")
    assert done.code == 1
    (result,) = done.data["results"]
    assert not result["ok"]
    assert "Do not use these numbers" in result["verdict"]
    assert "Do not use these numbers" in run(*command).out


@pytest.mark.parametrize(
    "command",
    [
        ("explain", WHOLE, "one.png", "--out", "r.html"),
        ("explain", WHOLE, "data", "--out", "r"),
        ("flows", WHOLE, "one.png", "-l", "1", "-l", "4"),
        ("query", "a", WHOLE, "one.png", "-s", "a=1.all"),
        ("check", WHOLE, "one.png"),
        ("relmax", WHOLE, "data", "-a", "1", "--store", "r", "--sheet", "r.png"),
    ],
    ids=lambda command: command[0],
)
def test_a_dry_run_prints_the_cost_and_writes_nothing(command: tuple[str, ...], folder: Path, run: Run) -> None:
    before = sorted(folder.rglob("*"))
    done = run(*command, "--dry-run")
    assert done.code == 0, done.err
    assert "forward passes" in done.out
    assert "Nothing was written" in done.out
    plan = run(*command, "--dry-run", "--json").data["plan"]
    assert plan["passes"] == pytest.approx(sum(line["passes"] for line in plan["lines"]))
    assert plan["seconds"] > 0
    assert plan["items"] == (3 if "data" in command else 1)
    assert sorted(folder.rglob("*")) == before


def test_relmax_ranks_as_the_library_does(folder: Path, run: Run) -> None:
    done = run("relmax", WHOLE, "many.npy", "-a", "1", "-a", "1 x 4.channel(2)", "-k", "2", "--blocks", "3", "--json")
    data = done.data
    samples: Tensor = torch.from_numpy(np.load(folder / "many.npy"))
    one, two = nrm.layer("1"), nrm.layer("4")
    found = nrm.relmax(small().eval(), samples, one.channels, (one.channels, two.channel(2)), k=2, progress=False)
    assert data["samples"] == 4
    for row, ((block,), mean) in zip(data["results"][0]["blocks"], found.best(one.channels, k=3), strict=True):
        assert row["block"] == str(one.channel(block))
        assert row["mean"] == pytest.approx(mean)
        assert [hit["sample"] for hit in row["samples"]] == found.top(one.channel(block)).samples
    pair = data["results"][1]["blocks"][0]
    assert pair["block"].endswith("x 4.channel(2)")


def test_relmax_lists_the_blocks_of_a_class(folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    command = (
        "relmax",
        WHOLE,
        "data",
        "-a",
        "1 x 4",
        "-k",
        "2",
        "--blocks",
        "2",
        "--target",
        "label",
        "--of-class",
        "0",
    )
    exact = run(*command, "--json").data
    result = exact["results"][0]
    assert exact["class"] == 0
    assert result["complete"]
    assert all(row["bounds"] == [row["mean"], row["mean"]] for row in result["blocks"])
    monkeypatch.setattr(job, "CELLS", 1)  # too few for every class
    done = run(*command)
    assert "for class 0" in done.out
    assert "samples_of(0)" in done.out + done.err
    found = run(*command, "--json").data["results"][0]
    assert found["blocks"][0]["block"] == result["blocks"][0]["block"]
    for row in found["blocks"]:
        assert row["bounds"][0] <= row["mean"] <= row["bounds"][1]
    wrong = run(*command[:-1], "9")
    assert wrong.code == 2
    assert "no such class" in wrong.err
    assert "cat" in wrong.err


def test_relmax_keeps_a_store_and_draws_a_sheet(folder: Path, run: Run) -> None:
    pytest.importorskip("duckdb")
    (folder / "data" / "cat" / "0.png").write_bytes(b"no image")
    command = (
        "relmax",
        WHOLE,
        "data",
        "-a",
        "4",
        "-k",
        "2",
        "--target",
        "label",
        "--store",
        "kept",
        "--sheet",
        "s.png",
    )
    refused = run(*command)
    assert refused.code == 1
    assert "bad samples" in refused.err
    done = run(*command, "--max-errors", "1", "--blocks", "2")
    assert done.code == 0, done.err
    assert "left out: cat/0.png" in done.err
    assert "written: kept, s.png" in done.out
    assert nrm.open_store(folder / "kept").count == 3
    with Image.open(folder / "s.png") as picture:
        assert picture.width > 100


def test_errors_are_documents_too(run: Run) -> None:
    done = run("explain", WHOLE, "absent.png", "--json")
    assert done.code == 2
    assert done.data["error"] == {
        "what": "no such file", "where": None, "got": "absent.png", "expected": None, "try": None,
    }  # fmt: skip
    assert done.err.startswith("no such file")


def test_a_missing_extra_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sklearn.datasets", None)
    done = run("demo")
    assert done.code == 1
    assert 'pip install "nrm[cluster]"' in done.err


def test_a_disk_that_refuses_is_a_failure(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("nrm.report.page.write_text", full)
    done = run("explain", WHOLE, "one.png", "-l", "1", "-l", "output", "--out", "r.html")
    assert done.code == 1
    assert "No space left on device" in done.err


def test_the_demo_writes_digits_to_try_other_commands_on(folder: Path, run: Run) -> None:
    pytest.importorskip("sklearn")
    done = run("demo", "-l", "relu1", "-l", "output", "--images", "digits", "--json")
    assert done.code == 0, done.err
    assert len(list((folder / "digits").rglob("*.png"))) == 297
    (made,) = done.data["results"]
    (result,) = run("explain", "nrm.demo:digits", "digits/4/012.png", "-l", "relu1", "-l", "output", "--json").data[
        "results"
    ]
    assert result["decision"]["value"] == pytest.approx(made["decision"]["value"], rel=1e-3)


def test_help_names_every_command(run: Run) -> None:
    done = run("--help")
    assert done.code == 0
    for name in ("demo", "layers", "explain", "flows", "query", "check", "relmax", "explore", "reproduce", "version"):
        assert name in done.out
