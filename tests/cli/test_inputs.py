"""Images, folders, tensors and texts as inputs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from nrm.cli import load_model, read_inputs
from nrm.cli.models import LoadedModel
from nrm.errors import NrmError


@pytest.fixture
def loaded() -> LoadedModel:
    return load_model("factories:whole")


def names(loaded: LoadedModel, *given: str, batch: bool | None = None) -> list[str]:
    return [item.name for item in read_inputs(loaded, given, batch=batch)]


def test_folders_files_and_samples_have_names(folder: Path, loaded: LoadedModel) -> None:
    assert names(loaded, "one.png", "data") == ["one.png", "cat/1.png", "cat/2.png", "dog/3.png"]
    assert names(loaded, "x.npy", "many.npy") == ["x.npy", *(f"many.npy[{i}]" for i in range(4))]
    shapes = {item.load().inputs.shape for item in read_inputs(loaded, ["one.png", "data", "x.npy", "many.npy"])}
    assert shapes == {torch.Size([1, 3, 8, 8])}


def test_one_sample_or_many_is_a_choice(folder: Path, loaded: LoadedModel) -> None:
    np.save("steps.npy", np.zeros((5, 2, 3), dtype=np.float32))
    assert names(loaded, "steps.npy") == names(loaded, "steps.npy", batch=False) == ["steps.npy"]
    assert len(names(loaded, "steps.npy", batch=True)) == 5
    assert len(names(loaded, "rows.npy")) == 2
    assert len(names(loaded, "rows.npy", batch=False)) == 1


def test_tensors_of_a_file_are_arguments_by_name(folder: Path, loaded: LoadedModel) -> None:
    save_file({"a": torch.zeros(2, 3), "b": torch.ones(2, 5)}, "two.safetensors")
    first, second = (item.load().inputs for item in read_inputs(loaded, ["two.safetensors"]))
    assert {name: tuple(value.shape) for name, value in first.items()} == {"a": (1, 3), "b": (1, 5)}
    assert torch.equal(second["b"], torch.ones(1, 5))
    save_file({"only": torch.zeros(3, 8, 8)}, "one.safetensors")
    assert read_inputs(loaded, ["one.safetensors"])[0].load().inputs.shape == (1, 3, 8, 8)


def test_what_a_folder_holds_is_read_when_it_is_asked_for(folder: Path, loaded: LoadedModel) -> None:
    (folder / "data" / "cat" / "1.png").write_bytes(b"no image")
    first, *others = read_inputs(loaded, ["data"])
    for item in others:
        item.load()
    with pytest.raises(NrmError, match="the image cannot be read"):
        first.load()


@pytest.mark.parametrize("mode", ["CMYK", "P", "RGBA", "L", "I;16"])
def test_images_of_every_mode_are_read(folder: Path, loaded: LoadedModel, mode: str) -> None:
    image = Image.new("I;16", (9, 9)) if mode == "I;16" else Image.new("RGB", (9, 9)).convert(mode)
    path = folder / ("image.jpg" if mode == "CMYK" else "image.png")
    image.save(path)
    assert read_inputs(loaded, [str(path)])[0].load().inputs.shape == (1, 3, 8, 8)


def test_an_image_of_too_many_pixels_is_not_decoded(
    folder: Path, loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nrm.files.images.MOST_PIXELS", 50)
    with pytest.raises(NrmError, match="too many pixels"):
        read_inputs(loaded, ["one.png"])
