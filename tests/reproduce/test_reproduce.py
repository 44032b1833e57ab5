"""The experiments in small, on embedded data: files, schema, resuming, the command line, and clear complaints."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from nrm.cli import main
from nrm.errors import JobError, NrmError, QuestionError, ResultFileError
from nrm.evaluate import contribution
from nrm.files import claim
from nrm.reproduce import reproduce
from nrm.reproduce.contrast import of_images
from nrm.reproduce.data import MissingDataError, imagenet_files, labelled_files, mixed, mnist, sequences
from nrm.reproduce.networks import VGG
from nrm.reproduce.store import ExperimentFolder, Unit
from nrm.reproduce.vgg import PAPER, ImageSubject, upper_part

pytest.importorskip("sklearn")
plt = pytest.importorskip("matplotlib.pyplot")


def results(folder: Path) -> dict:
    return json.loads((folder / "results.json").read_text())


@pytest.fixture(scope="module")
def perceptron(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return reproduce("mlp", out=tmp_path_factory.mktemp("out"), samples=4, third=1, embedded=True)


def test_the_schema_of_results(perceptron: Path) -> None:
    found = results(perceptron)
    assert (found["schema"], found["experiment"]) == (1, "mlp")
    rows = found["rows"]
    assert {(r["order"], r["model"], r["bias"]) for r in rows} == {
        (order, model, bias) for order in (2, 3) for model, bias in (("no-bias", "ignore"), ("bias", "ignore"),
                                                                     ("bias", "input"))
    }  # fmt: skip
    assert {r["method"] for r in rows} == {"nrm", "lrp", "occlusion", "activation", "random"}
    for row in rows:
        assert row["samples"] == (4 if row["order"] == 2 else 1)
        low, high = row["pearson_ci"]
        assert low <= row["pearson_mean"] <= high
        assert len(row["sc"]["k"]) == len(row["sc"]["mean"])
        assert row["rules"] == "lrp-0"


def test_the_measure_is_more_faithful_than_the_baselines(perceptron: Path) -> None:
    rows = {(r["order"], r["model"], r["bias"], r["method"]): r for r in results(perceptron)["rows"]}
    for order, model, bias in ((2, "no-bias", "ignore"), (2, "bias", "input"), (3, "no-bias", "ignore")):
        own = rows[order, model, bias, "nrm"]
        assert own["pearson_mean"] > (0.9 if order == 2 else 0.3)
        for other in ("lrp", "occlusion", "activation", "random"):
            theirs = rows[order, model, bias, other]
            assert own["pearson_mean"] > theirs["pearson_mean"] + 0.2
            assert own["sc_area"] > theirs["sc_area"]


def test_tables_and_figures(perceptron: Path) -> None:
    table = (perceptron / "table.md").read_text()
    assert "| 2 | no-bias | ignore | lrp-0 | nrm | 4 |" in table
    for name in ("sc_k", "scatter"):
        assert (perceptron / f"{name}.png").stat().st_size > 10_000


def test_a_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    started: list[str] = []

    def interrupted(units: object) -> object:
        for unit in units:  # type: ignore[attr-defined]
            if started:
                raise KeyboardInterrupt
            started.append(unit.key)
            yield unit

    with pytest.raises(KeyboardInterrupt):
        reproduce("vgg-clusters", out=tmp_path, samples=2, embedded=True, track=interrupted)  # type: ignore[arg-type]
    parts = tmp_path / "vgg-clusters" / "parts"
    before = {p.name: p.stat().st_mtime_ns for p in parts.iterdir()}
    assert not (tmp_path / "vgg-clusters" / "results.json").exists()
    rest: list[str] = []

    def watched(units: object) -> object:
        for unit in units:  # type: ignore[attr-defined]
            rest.append(unit.key)
            yield unit

    folder = reproduce("vgg-clusters", out=tmp_path, samples=2, embedded=True, track=watched)  # type: ignore[arg-type]
    assert rest == ["sample-00001"]
    assert {n: (parts / n).stat().st_mtime_ns for n in before} == before
    whole = reproduce("vgg-clusters", out=tmp_path / "again", samples=2, embedded=True)
    assert results(whole)["rows"] == results(folder)["rows"]
    assert (folder / "strips-0.png").stat().st_size > 10_000


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vgg-channels", "additive", "rnn", "gnn", "rules"])
def test_the_other_experiments_in_small(name: str, tmp_path: Path) -> None:
    open_before = plt.get_fignums()
    folder = reproduce(name, out=tmp_path, samples=1, embedded=True)
    assert plt.get_fignums() == open_before
    rows = results(folder)["rows"]
    assert rows
    if name == "rnn":
        by = {(r["method"], r["rules"], r["output"]): r for r in rows}
        assert by["unnormalized", "alpha-beta 1.5, 0", "logit"]["largest_elsewhere"] > 1e8
        assert by["nrm", "lrp-0", "logit"]["on_top"] == 1.0
        assert abs(by["nrm", "lrp-0", "logit"]["share_of_the_event"] - 1) < 0.5
    elif name == "additive":
        alike = {r["method"]: r["likeness_of_two_sets"] for r in rows}
        assert alike["additive"] > alike["joint"]
    else:
        assert {r["method"] for r in rows} >= {"nrm", "occlusion", "activation", "random"}


@pytest.mark.slow
def test_known_bonds_in_small(tmp_path: Path) -> None:
    folder = reproduce("gnn-bonds", out=tmp_path, samples=1, embedded=True)
    rows = results(folder)["rows"]
    assert {r["half"] for r in rows} == {"chooses", "reports"}
    found = {(r["half"], r["method"], r["bonds of"]): r for r in rows}
    for half in ("chooses", "reports"):
        assert found[half, "z+, head lrp-0", "sum"]["auc"] > 0.9  # the motif that was planted
        assert found[half, "removal", "sum"]["auc"] > 0.9
        assert found[half, "removal", "sum"]["agreement with removal"] == pytest.approx(1.0)
        assert found[half, "lrp-0", "layer 3"]["samples"] == 3
    assert (folder / "bonds.png").stat().st_size > 5_000


def test_contrasts_beside_the_plain_measure(tmp_path: Path) -> None:
    rows = results(reproduce("contrast", out=tmp_path, samples=2, third=1, embedded=True))["rows"]
    assert {r["removal"] for r in rows} == {"to 0", *(f"to the values of {name}" for name in ("zeros", "mean", "blur"))}
    found = {(r["model"], r["removal"], r["method"], r.get("against")): r["pearson_mean"] for r in rows}
    plain, zeros = (found["MLP, no biases, order 2", "to 0", *one] for one in (("nrm", None), ("contrast", "zeros")))
    assert plain == pytest.approx(zeros, abs=1e-6)  # without biases all values there are 0: it is LRP-0
    for name in ("zeros", "mean", "blur"):
        for model in ("MLP, no biases, order 2", "MLP, biases, order 2"):
            assert found[model, f"to the values of {name}", "contrast", name] > 0.8
    assert {r["samples"] for r in rows if r["order"] == 3} == {1}


def test_references_of_an_upper_part_are_images() -> None:
    torch.manual_seed(0)
    images, mean = torch.randn(1, 3, 32, 32), torch.full((1, 3, 32, 32), 0.3)
    layers = ("features.26", "features.28")
    whole = ImageSubject("VGG16", VGG(8, 4).eval(), 1, lambda i: (images[i], 2), layers, layers, torch.abs)
    tables = []
    for subject in (whole, upper_part(whole)):
        network = of_images(subject, mean, 1, lambda R: (R[layers[0]].channels[:3], R[layers[1]].channels[:4]))
        samples = network.samples(range(1))
        for there in samples.references.values():
            R = network.measured(samples, against=there)
            tables.append(R.in_units(*network.asked(R)))
    for one, other in zip(tables[:3], tables[3:], strict=True):
        assert bool(one.any())
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-6)


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("typer")
    pytest.importorskip("rich")
    arguments = ["reproduce", "vgg-clusters", "--samples", "1", "--embedded", "--out", str(tmp_path)]
    assert main(arguments) == 0
    assert "results.json" in capsys.readouterr().out
    assert main(["reproduce", "nothing"]) == 2
    assert "unknown experiment 'nothing'" in capsys.readouterr().err
    assert main(["reproduce", "mlp", "--samples", "many"]) == 2
    assert main(["version"]) == 0
    done = subprocess.run([sys.executable, "-m", "nrm", "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    assert "reproduce" in done.stdout


def test_all_goes_on_where_one_cannot_be_run(
    perceptron: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    experiments = pytest.importorskip("nrm.cli.experiments")
    monkeypatch.setattr(experiments, "EXPERIMENTS", ("vgg-channels", "mlp"))

    def run(name: str, **options: object) -> Path:
        return perceptron if name == "mlp" else reproduce(name, data=tmp_path, out=tmp_path)

    monkeypatch.setattr(experiments, "run_experiment", run)
    assert main(["reproduce", "all", "--out", str(tmp_path / "out"), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [result["experiment"] for result in found["results"]] == ["mlp"]
    assert found["notes"][0].startswith("vgg-channels: ")


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    for call, kind, text in (
        (lambda: reproduce("mlpp", out=tmp_path), QuestionError, "mlp"),
        (lambda: reproduce("mlp", out=tmp_path, samples=0), QuestionError, "number of samples"),
        (lambda: reproduce("mlp", out=tmp_path, data=tmp_path / "absent"), QuestionError, "no such data folder"),
        (lambda: reproduce("vgg-channels", out=tmp_path), MissingDataError, "--data PATH"),
        (lambda: reproduce("vgg-channels", out=tmp_path, data=tmp_path), MissingDataError, "imagenet"),
    ):
        with pytest.raises(kind) as error:
            call()
        assert text in str(error.value)
    (tmp_path / "mnist").mkdir()
    with pytest.raises(MissingDataError, match="no MNIST"):
        mnist(tmp_path)


def test_a_folder_belongs_to_one_run(tmp_path: Path) -> None:
    ExperimentFolder(tmp_path, {"experiment": "a"})
    ExperimentFolder(tmp_path, {"experiment": "a"})
    with pytest.raises(NrmError, match="another run lies in this folder") as error:
        ExperimentFolder(tmp_path, {"experiment": "b"})
    assert "experiment='a'" in str(error.value)


def test_one_run_at_a_time_has_a_folder(tmp_path: Path) -> None:
    with claim(tmp_path / "mlp"), pytest.raises(JobError, match="another job is using this store"):
        reproduce("mlp", out=tmp_path, embedded=True)


def test_damaged_settings_are_told(tmp_path: Path) -> None:
    ExperimentFolder(tmp_path, {"experiment": "a"})
    (tmp_path / "settings.json").write_text("{")
    with pytest.raises(ResultFileError, match="damaged"):
        ExperimentFolder(tmp_path, {"experiment": "a"})


def test_parts_are_whole_or_not_there(tmp_path: Path) -> None:
    store = ExperimentFolder(tmp_path, {})

    def fails() -> dict:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.finish([Unit("a", lambda: {"x": torch.ones(2)}), Unit("b", fails)], iter)
    assert store.has("a")
    assert not store.has("b")
    store.path("c").write_bytes(b"damaged")
    with pytest.raises(ResultFileError, match="cannot be read"):
        store.read("c")


def test_samples_have_all_classes_in_every_beginning(tmp_path: Path) -> None:
    for c in ("n1", "n2", "n3"):
        (tmp_path / c).mkdir()
        for k in range(4):
            (tmp_path / c / f"{k}.jpg").touch()
    files = mixed(labelled_files(tmp_path))
    assert len(files) == 12
    for begin in range(0, 12, 3):
        assert {label for _, label in files[begin : begin + 3]} == {0, 1, 2}
    assert files == mixed(labelled_files(tmp_path))


def test_classes_of_imagenet_are_known_or_refused(tmp_path: Path) -> None:
    for name in ("0007_n01514668_cock.jpg", "0391_n02536864_coho.JPEG", "class_names.json"):
        (tmp_path / name).touch()
    assert [label for _, label in imagenet_files(tmp_path)] == [7, 391]
    for k in range(1000):
        (tmp_path / "whole" / "val" / f"n{k:08d}").mkdir(parents=True)
        (tmp_path / "whole" / "val" / f"n{k:08d}" / "a.jpg").touch()
    assert [label for _, label in imagenet_files(tmp_path / "whole")] == list(range(1000))
    (tmp_path / "some" / "n01440764").mkdir(parents=True)
    (tmp_path / "some" / "n01440764" / "a.jpg").touch()
    with pytest.raises(MissingDataError, match="1 folders with images"):
        imagenet_files(tmp_path / "some")


def test_pairs_of_upper_layers_do_not_depend_on_what_lies_below() -> None:
    torch.manual_seed(0)
    images = torch.randn(1, 3, 32, 32)
    whole = ImageSubject(
        "VGG16", VGG(8, 4).eval(), 1, lambda i: (images[i], 2), ("features.26", "features.28"), ("", ""), torch.abs
    )
    asked = []
    for found in (whole, upper_part(whole)):
        R = found.measured(0, PAPER)
        pairs = R["features.26"].channels[:3], R["features.28"].channels[:4]
        asked.append((R(*pairs), contribution(R, *pairs)))
    for one, other in zip(*asked, strict=True):
        assert torch.allclose(one, other, atol=1e-6)
        assert bool(one.any())


def test_the_toy_sequences() -> None:
    split = sequences(50, 0)
    assert torch.equal(split.inputs.sum(2), torch.ones(50, 100))
    assert torch.equal(split.inputs[:, 80, 1:].argmax(1), split.classes)
    assert bool((split.inputs[:, [*range(80), *range(81, 100)], 0] == 1).all())
