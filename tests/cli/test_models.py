"""Models by name, with their weights, names and transforms."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

import nrm
import vision
from factories import wide
from nrm.cli import load_model, read_inputs
from nrm.cli.models import read_labels
from nrm.errors import InputError, NrmError


def test_a_factory_may_give_everything_or_only_a_model() -> None:
    whole = load_model("factories:whole")
    assert list(whole.labels or ()) == ["cat", "dog", "fish"]
    assert whole.transform is not None
    assert whole.transform.text == "that of factories:whole"
    assert not whole.notes
    only = load_model("factories:small")
    assert not only.model.training
    assert only.notes[0] == "the model was in training mode; eval() was called"
    assert "RGB, 0 to 1, in its own size" in only.notes[1]
    assert load_model("factories:model").model is not None


def test_a_transform_of_the_user_wins() -> None:
    loaded = load_model("factories:small", transform="factories:crop")
    assert loaded.transform is not None
    assert loaded.transform.of(Image.new("RGB", (30, 20))).shape == (3, 8, 8)
    assert not any("transform" in note for note in loaded.notes)


def test_images_are_grey_where_the_network_takes_one_channel() -> None:
    loaded = load_model("nrm.demo:digits", transform="plain")
    assert loaded.transform is not None
    assert loaded.transform.of(Image.new("RGB", (8, 8))).shape == (1, 8, 8)


@pytest.mark.parametrize("suffix", ["safetensors", "pt", "wrapped.pt"])
def test_weights_come_from_files_and_heads_are_fitted(tmp_path: Path, suffix: str) -> None:
    torch.manual_seed(1)
    source, path = wide(), tmp_path / f"w.{suffix}"
    state = {name: value.half() for name, value in source.state_dict().items()}
    if suffix == "safetensors":
        save_file(state, path)
    else:
        parallel = {f"module.{name}": value for name, value in state.items()}
        torch.save({"epoch": 3, "state_dict": parallel} if suffix == "wrapped.pt" else state, path)
    loaded = load_model("factories:small", weights=str(path))
    assert any(note.startswith("7 has 6 -> 5 as in") for note in loaded.notes)
    x = torch.rand(1, 3, 8, 8)
    assert torch.allclose(loaded.model(x), source.half().float().eval()(x), atol=1e-3)


def test_names_of_classes(tmp_path: Path) -> None:
    lines, listed, mapped, pairs = (tmp_path / name for name in ("a.txt", "b.json", "c.json", "d.json"))
    lines.write_text("cat\ndog\n")
    listed.write_text('["cat", "dog"]')
    mapped.write_text('{"0": "cat", "1": "dog"}')
    pairs.write_text(json.dumps({"0": ["n01", "cat"], "1": ["n02", "dog"]}))
    assert read_labels(lines) == read_labels(listed) == ["cat", "dog"]
    assert read_labels(mapped) == read_labels(pairs) == {0: "cat", 1: "dog"}


def test_torchvision_models() -> None:
    vision.load()
    loaded = load_model("torchvision:squeezenet1_1", weights="none", classes=4)
    assert loaded.transform is not None
    assert "crop 224" in loaded.transform.text
    assert loaded.notes == ("the weights are random: this network knows nothing",)
    sample = loaded.transform.of(Image.new("RGB", (300, 280)))
    assert loaded.model(sample[None]).shape == (1, 4)
    with pytest.raises(InputError, match="torchvision has no such model") as caught:
        load_model("torchvision:squeezenet1_2", weights="none")
    assert "squeezenet1_1" in (caught.value.hint or "")
    with pytest.raises(InputError, match="the default weights have their own classes"):
        load_model("torchvision:squeezenet1_1", classes=4)


def test_torchvision_models_with_a_file_of_another_width(tmp_path: Path) -> None:
    models = vision.load().models
    torch.manual_seed(0)
    path = tmp_path / "w.safetensors"
    save_file(models.squeezenet1_1(num_classes=4).state_dict(), path)
    loaded = load_model("torchvision:squeezenet1_1", weights=str(path))
    assert loaded.notes == ("classifier.1 has 512 -> 4 as in w.safetensors, instead of 512 -> 1000",)
    assert load_model("torchvision:squeezenet1_1", weights=str(path), classes=4).weights == str(path)
    with pytest.raises(InputError, match="the weights are of another model"):
        load_model("torchvision:alexnet", weights=str(path))


def test_weights_that_cannot_be_downloaded_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    models = vision.load().models

    def refuse(*_: object, **__: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr(models, "get_model", refuse)
    with pytest.raises(NrmError, match="the weights cannot be had") as caught:
        load_model("torchvision:squeezenet1_1")
    assert not isinstance(caught.value, InputError)
    assert "--weights FILE" in (caught.value.hint or "")


def test_timm_models() -> None:
    vision.load()
    pytest.importorskip("timm")
    loaded = load_model("timm:test_resnet", weights="none", classes=5)
    assert loaded.transform is not None
    sample = loaded.transform.of(Image.new("RGB", (200, 200)))
    assert loaded.model(sample[None]).shape == (1, 5)
    with pytest.raises(InputError, match="timm has no such model"):
        load_model("timm:absent", weights="none")


def test_texts_are_read_by_the_tokenizer_of_a_hugging_face_model(reader: Path) -> None:
    loaded = load_model(f"hf:{reader}")
    (item,) = read_inputs(loaded, ["once upon a time"])
    sample = item.load()
    assert sample.tokens == ("once", "upon", "a", "time")
    assert sample.inputs["input_ids"].tolist() == [[1, 2, 3, 4]]
    assert loaded.labels is not None
    assert loaded.labels[4] == "time"


def test_without_a_tokenizer_token_ids_are_the_input(reader: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((reader / name).read_bytes())
    loaded = load_model(f"hf:{tmp_path}")
    assert "inputs are token ids" in loaded.notes[0]
    ids = tmp_path / "ids.npy"
    np.save(ids, np.array([1, 2, 3]))
    (item,) = read_inputs(loaded, [str(ids)])
    assert item.load().inputs["input_ids"].tolist() == [[1, 2, 3]]
    with pytest.raises(InputError, match="no tokenizer"):
        read_inputs(loaded, ["once upon a time"])
    for wrong, text in ((np.array([1, 99]), "no such token"), (np.array([0.5]), "not a list of token ids")):
        np.save(ids, wrong)
        with pytest.raises(InputError, match=text):
            read_inputs(loaded, [str(ids)])


@pytest.mark.data
def test_vgg16_with_its_head_for_ten_classes(shared: Callable[[str], Path]) -> None:
    vision.load()
    weights = shared("vgg16-imagenette") / "vgg16_imagenette.safetensors"
    loaded = load_model("torchvision:vgg16", weights=str(weights))
    assert isinstance(loaded.model.classifier, nn.Sequential)
    assert [note.split()[0] for note in loaded.notes] == ["classifier.0", "classifier.3", "classifier.6"]
    photo = next((shared("imagenette") / "val" / "n03028079").iterdir())
    (item,) = read_inputs(loaded, [str(photo)])
    R = nrm.measure(loaded.model, item.load().inputs, rules="epsilon-plus-flat")
    assert R.prediction.tolist() == [4]


@pytest.mark.data
def test_a_language_model_from_a_folder(shared: Callable[[str], Path], tmp_path: Path) -> None:
    vision.load()
    loaded = load_model(f"hf:{shared('stories15M')}")
    np.save(tmp_path / "ids.npy", np.array([1, 9038, 2501, 263]))  # Once upon a
    (item,) = read_inputs(loaded, [str(tmp_path / "ids.npy")])
    R = nrm.measure(loaded.model, item.load().inputs)
    assert R.prediction.tolist() == [[3, 931]]  # time
