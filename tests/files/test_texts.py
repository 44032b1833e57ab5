"""Texts and tensors are read alike wherever they come from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save
from torch import Tensor

from nrm.cli.inputs import read_inputs
from nrm.cli.models import LoadedModel
from nrm.errors import InputError
from nrm.explorer.items import Items
from nrm.files import holds_tensors, read_tensors, read_text


class Words:
    """A tokenizer in the form of those of transformers: a token for every word, its length."""

    def __call__(self, text: str, return_tensors: str) -> dict[str, Tensor]:
        return {"input_ids": torch.tensor([[len(word) for word in text.split()]], dtype=torch.long)}

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return ["x" * i for i in ids]


def test_the_command_line_and_the_explorer_make_the_same_tokens() -> None:
    (item,) = read_inputs(LoadedModel("m", torch.nn.Identity(), tokenizer=Words(), tokens=True), ["one three"])
    ours, theirs = item.load(), Items(["one three"], transform=Words())["0"].load()
    assert torch.equal(ours.inputs["input_ids"], theirs.inputs["input_ids"])
    assert list(ours.tokens or ()) == theirs.labels["input"] == ["xxx", "xxxxx"]


def test_a_text_without_tokens_is_refused_by_both() -> None:
    with pytest.raises(InputError, match="the text is empty"):
        read_inputs(LoadedModel("m", torch.nn.Identity(), tokenizer=Words(), tokens=True), [" "])
    with pytest.raises(InputError, match="the text is empty"):
        Items([" "], transform=Words())["0"].load()


def test_tensors_of_a_file_are_those_of_its_bytes(tmp_path: Path) -> None:
    array, named = tmp_path / "a.npy", tmp_path / "b.safetensors"
    np.save(array, np.arange(6.0).reshape(2, 3))
    named.write_bytes(save({"x": torch.ones(2), "y": torch.zeros(2)}))
    for path in (array, named):
        content = path.read_bytes()
        one, other = read_tensors(path, path.name), read_tensors(content, "-")
        assert holds_tensors(content)
        pairs = [(one, other)] if isinstance(one, Tensor) else [(one[name], other[name]) for name in one]  # type: ignore[index]
        assert pairs
        assert all(torch.equal(a, b) for a, b in pairs)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["a.npy", "a.safetensors"])
def test_what_holds_no_tensors_is_named(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"not a file of tensors")
    with pytest.raises(InputError, match=name):
        read_tensors(path, name)
    path.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(InputError, match="the text cannot be read"):
        read_text(path)
