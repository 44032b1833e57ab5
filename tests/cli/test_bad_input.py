"""Bad input for every argument: a clear text, exit code 2, and nothing written."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from cli.conftest import Run
from factories import small, wide

WHOLE = "factories:whole"
EXPLAIN = ("explain", WHOLE, "one.png")
FLOWS = ("flows", WHOLE, "one.png", "-l", "1", "-l", "4")
QUERY = ("query", "a", WHOLE, "one.png", "-s", "a=1.channel(0)")
RELMAX = ("relmax", WHOLE, "data", "-a", "1")

CASES = [
    # the model
    (("explain", "vgg16", "one.png"), "not a model"),
    (("explain", "", "one.png"), "not a model"),
    (("explain", "absent.module:net", "one.png"), "the model cannot be imported"),
    (("explain", "factories:absent", "one.png"), "the model cannot be imported"),
    (("explain", "factories:broken", "one.png"), "ValueError: no such luck (factories.py, line"),
    (("explain", "factories:nothing", "one.png"), "not a model"),
    (("explain", "factories:constant", "one.png"), "a function that makes a model"),
    (("explain", "hf:./absent", "one.png"), "no such folder"),
    (("explain", "hf:data", "one.png"), "the folder has no model"),
    (("explain", "hf:data", "one.png", "--weights", "none"), "brings its weights"),
    ((*EXPLAIN, "--weights", "absent.pt"), "no such file of weights"),
    ((*EXPLAIN, "--weights", "one.png"), "not a file of weights"),
    ((*EXPLAIN, "--weights", "broken.safetensors"), "the weights cannot be read"),
    ((*EXPLAIN, "--weights", "broken.pt"), "broken.pt"),
    ((*EXPLAIN, "--weights", "model.pt"), "it would run code"),
    ((*EXPLAIN, "--weights", "list.pt"), "the file has no weights"),
    ((*EXPLAIN, "--weights", "other.safetensors"), "the weights are of another model"),
    ((*EXPLAIN, "--weights", "kernel.safetensors"), "the weights have another shape"),
    ((*EXPLAIN, "--weights", "DEFAULT"), "only torchvision and timm"),
    ((*EXPLAIN, "--classes", "0"), "not a number of classes"),
    ((*EXPLAIN, "--classes", "7"), "a factory decides"),
    ((*EXPLAIN, "--labels", "absent.txt"), "the names of the classes cannot be read"),
    ((*EXPLAIN, "--labels", "empty.txt"), "the file has no names"),
    ((*EXPLAIN, "--labels", "two.txt"), "the names do not fit"),
    ((*EXPLAIN, "--labels", "broken.json"), "the names of the classes cannot be read"),
    ((*EXPLAIN, "--transform", "sepia"), "no such transform"),
    ((*EXPLAIN, "--transform", "factories:absent"), "the transform cannot be imported"),
    ((*EXPLAIN, "--transform", "factories:constant"), "not a transform"),
    ((*EXPLAIN, "--transform", "factories:failing"), "KeyError"),
    ((*EXPLAIN, "--device", "abacus"), "the device cannot be used"),
    # the input
    (("explain", WHOLE, "absent.png"), "no such file"),
    (("explain", WHOLE, "absent"), "no such file or folder"),
    (("explain", WHOLE, "a text that no image is called"), "no such file or folder"),
    (("explain", WHOLE, "broken.png"), "the image cannot be read"),
    (("explain", WHOLE, "two.txt"), "no such file or folder"),
    (("explain", WHOLE, "other.xyz"), "a file of an unknown kind"),
    (("explain", WHOLE, "nowhere"), "the folder has nothing to explain"),
    (("explain", WHOLE, "objects.npy"), "the array cannot be read"),
    (("explain", WHOLE, "empty.npy"), "the file has no samples"),
    (("explain", WHOLE, "broken.npy"), "the array cannot be read"),
    (("explain", WHOLE, "broken.safetensors"), "the tensors cannot be read"),
    (("explain", WHOLE, "uneven.safetensors"), "the tensors do not belong together"),
    (("explain", WHOLE, "rows.npy"), "the model does not take this input"),
    (("explain", WHOLE, "nan.npy"), "the input contains NaN"),
    (("explain", "factories:dense", "one.png"), "the model does not take this input"),
    # how it is measured
    ((*EXPLAIN, "--target", "7"), "7"),
    ((*EXPLAIN, "--target", "horse"), "no such class"),
    ((*EXPLAIN, "--target", "1,2"), "target"),
    ((*EXPLAIN, "--rules", "magic"), "magic"),
    ((*EXPLAIN, "--bias", "always"), "unknown option bias"),
    ((*EXPLAIN, "--zero", "one"), "unknown option zero"),
    ((*EXPLAIN, "--dtype", "float16"), "no such precision"),
    # what is shown
    ((*EXPLAIN, "--layer", "absent", "--layer", "output"), "unknown layer 'absent'"),
    ((*EXPLAIN, "--layer", "1"), "two layers"),
    ((*EXPLAIN, "--layer", "1.channel(0)", "--layer", "output"), "a set is no divided layer"),
    ((*EXPLAIN, "--nodes", "0"), "nodes"),
    ((*EXPLAIN, "--nodes", "few"), "'--nodes'"),
    ((*EXPLAIN, "--flows", "-1", "-l", "1", "-l", "output"), "flows"),
    ((*EXPLAIN, "--out", "absent/report.html"), "the report cannot be written there"),
    ((*EXPLAIN, "--out", "data.html"), "the report cannot be written there"),
    ((*EXPLAIN, "--out", "two.txt"), "a file in the place of the folder"),
    (("explain", WHOLE, "many.npy", "--out", "report.html"), "a report is about one input"),
    # layers, flows, query, check
    (("layers", WHOLE, "--shape", "0,3"), "not a shape"),
    (("layers", WHOLE, "--shape", "3,8"), "the model does not take this input"),
    (("layers", WHOLE, "one.png", "x.npy"), "layers are those of one input"),
    (("layers", WHOLE, "absent.png"), "no such file"),
    (("flows", WHOLE, "one.png"), "--layer"),
    (("flows", WHOLE, "one.png", "-l", "absent"), "unknown layer 'absent'"),
    (("flows", WHOLE, "one.png", "-l", "1.channel(0)"), "flows go through divided layers"),
    (("flows", WHOLE, "one.png", "-l", "1.channels[x]"), "the layer cannot be read"),
    ((*FLOWS, "-k", "0"), "k=0"),
    ((*FLOWS, "--sign", "most"), "most"),
    ((*FLOWS, "--effort", "-3"), "effort"),
    ((*FLOWS, "-l", "2.clusters", "--nodes", "0"), "k=0"),
    (("flows", WHOLE, "absent.png", "-l", "1"), "no such file"),
    (("query", "a AND", *QUERY[2:]), "the query cannot be read"),
    (("query", "b", *QUERY[2:]), "the query has no set for 'b'"),
    ((*QUERY, "-s", "b"), "a set needs a name"),
    ((*QUERY, "-s", "b=1"), "not a set of neurons"),
    ((*QUERY, "-s", "b=1.channel(__import__('os'))"), "the set cannot be read"),
    ((*QUERY, "-s", "a=1.channel(99)"), "99"),
    ((*QUERY, "-s", "a=absent.all"), "unknown layer 'absent'"),
    ((*QUERY, "--sets", "absent.json"), "the sets cannot be read"),
    ((*QUERY, "--sets", "broken.json"), "the sets cannot be read"),
    ((*QUERY, "--sets", "two.txt"), "a set needs a name"),
    (("query", "a", WHOLE, "absent.png", "-s", "a=1.all"), "no such file"),
    (("check", WHOLE, "absent.png"), "no such file"),
    # data sets
    (("relmax", WHOLE, "absent", "-a", "1"), "not a data set"),
    (("relmax", WHOLE, "one.png", "-a", "1"), "not a data set"),
    (("relmax", WHOLE, "nowhere", "-a", "1"), "the folder has no images"),
    (("relmax", WHOLE, "data"), "--ask"),
    (("relmax", WHOLE, "data", "-a", "absent"), "unknown layer 'absent'"),
    (("relmax", WHOLE, "data", "-a", "1.clusters"), "differ from sample to sample"),
    ((*RELMAX, "-k", "0"), "k=0"),
    ((*RELMAX, "--blocks", "0"), "not a number of blocks"),
    ((*RELMAX, "--sheet", "sheet.txt"), "the contact sheet cannot be written there"),
    ((*RELMAX, "--sheet", "absent/sheet.png"), "the contact sheet cannot be written there"),
    (("relmax", "factories:dense", "rows.npy", "-a", "1", "--sheet", "s.png"), "a contact sheet needs pictures"),
    ((*RELMAX, "--weight", "gold"), "gold"),
    ((*RELMAX, "--engine", "steam"), "steam"),
    ((*RELMAX, "--workers", "0"), "'--workers'"),
    ((*RELMAX, "--batch-size", "0"), "0"),
    ((*RELMAX, "--shard-size", "0"), "0"),
    ((*RELMAX, "--max-errors", "-1"), "'--max-errors'"),
    ((*RELMAX, "--store", "two.txt"), "a file in the place of the store"),
    # pages
    (("explore", WHOLE, "--data", "absent"), "no such file or folder"),
    (("explore", WHOLE, "--port", "0"), "not a port"),
    (("explore", WHOLE, "--target", "1"), "the class is picked on the page"),
    (("explore", "vgg16"), "not a model"),
    (("explore", WHOLE, "--store", "absent"), "not a store"),
    (("explore", WHOLE, "--dataset", "absent"), "not a data set"),
    (("demo", "--sample", "297"), "no such digit"),
    (("demo", "--images", "two.txt"), "a file in the place of the folder"),
    (("demo", "--out", "absent/r.html"), "the report cannot be written there"),
    (("demo", "--port", "99999"), "not a port"),
    # experiments, and commands that are none
    (("reproduce", "nothing"), "unknown experiment"),
    (("reproduce", "mlp", "--samples", "0"), "not a number of samples"),
    (("reproduce", "mlp", "--data", "absent"), "no such data folder"),
    (("paint",), "paint"),
    (("version", "--loud"), "--loud"),
]


@pytest.fixture
def rubbish(folder: Path) -> Path:
    """Files that nobody can use."""
    for name in ("broken.png", "broken.npy", "broken.pt", "broken.safetensors", "broken.json", "other.xyz"):
        (folder / name).write_bytes(b"\x89PNG and then nothing")
    (folder / "empty.txt").write_text("\n\n")
    (folder / "two.txt").write_text("cat\ndog\n")
    (folder / "nowhere").mkdir()
    (folder / "data.html").mkdir()
    np.save(folder / "objects.npy", np.array([{}], dtype=object))
    np.save(folder / "empty.npy", np.zeros((0, 3, 8, 8), dtype=np.float32))
    np.save(folder / "nan.npy", np.full((3, 8, 8), np.nan, dtype=np.float32))
    save_file({"x": torch.zeros(2, 3), "y": torch.zeros(3, 3)}, folder / "uneven.safetensors")
    torch.save(small(), folder / "model.pt")
    torch.save([1, 2], folder / "list.pt")
    save_file(nn.Linear(2, 2).state_dict(), folder / "other.safetensors")
    kernel = {**small().state_dict(), "0.weight": torch.zeros(4, 3, 5, 5)}
    save_file(kernel, folder / "kernel.safetensors")
    return folder


@pytest.mark.parametrize(
    ("command", "text"), CASES, ids=lambda part: " ".join(part) if isinstance(part, tuple) else None
)
def test_bad_input_is_said_and_nothing_is_written(command: tuple[str, ...], text: str, rubbish: Path, run: Run) -> None:
    before = sorted(rubbish.rglob("*"))
    done = run(*command)
    assert done.code == 2, (done.out, done.err)
    assert text in done.err
    assert "Traceback" not in done.err
    assert not done.out
    assert sorted(rubbish.rglob("*")) == before


def test_code_inside_a_file_of_weights_does_not_run(rubbish: Path, run: Run) -> None:
    class Hostile:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path.touch, (rubbish / "ran",))

    (rubbish / "hostile.pt").write_bytes(pickle.dumps(Hostile()))
    for command in (("--weights", "hostile.pt"), ("--weights", "hostile.safetensors")):
        assert run(*EXPLAIN, *command).code == 2
    assert not (rubbish / "ran").exists()


def test_the_other_number_of_classes_is_named(rubbish: Path, run: Run) -> None:
    save_file(wide().state_dict(), rubbish / "wide.safetensors")
    done = run(*EXPLAIN, "--weights", "wide.safetensors")
    assert done.code == 2
    assert "3 names" in done.err
