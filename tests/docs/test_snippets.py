"""Blocks of tutorials that are shown and not run there, because they want a download: here with small stand-ins."""

from __future__ import annotations

import importlib
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import nrm
import vision

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def snippet(name: str) -> str:
    """The block of a tutorial that is shown and not run, because it needs a download."""
    text = (EXAMPLES / name).read_text()
    found = re.findall(r"^# ```py\n(.*?)^# ```", text, re.M | re.S)
    assert len(found) == 1
    return re.sub(r"^# ?", "", found[0], flags=re.M)


def test_what_is_said_of_a_language_model_works() -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("transformers")
    with suppress(pytest.skip.Exception):
        vision.load()  # which transformers imports
    transformers = importlib.import_module("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=30, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
                                      num_attention_heads=4, num_key_value_heads=2)  # fmt: skip

    class Model:
        @staticmethod
        def from_pretrained(name: str) -> Any:
            return transformers.LlamaForCausalLM(config)

    class Tokenizer:
        @staticmethod
        def from_pretrained(name: str) -> Any:
            return Tokenizer()

        def __call__(self, text: str, return_tensors: str) -> dict[str, torch.Tensor]:
            return {"input_ids": torch.arange(3, 3 + len(text.split()))[None]}

        def convert_ids_to_tokens(self, ids: torch.Tensor) -> list[str]:
            return [f"word {int(i)}" for i in ids]

    names: dict[str, Any] = {"nrm": nrm, "NAME": "any", "AutoModelForCausalLM": Model, "AutoTokenizer": Tokenizer}
    exec(snippet("sequence.py"), names)
    assert len(names["heads"]) == 2
    assert names["R"](names["R"].input.positions).shape == (1, 5)


def test_what_is_said_of_a_large_data_set_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    image = pytest.importorskip("PIL.Image")
    for k in range(4):
        home = tmp_path / "imagenet" / "train" / f"class {k % 2}"
        home.mkdir(parents=True, exist_ok=True)
        image.new("RGB", (8, 8), (60 * k, 20, 90)).save(home / f"{k}.png")
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2)]

    class Weights:
        @staticmethod
        def transforms() -> Any:
            return lambda picture: torch.tensor(list(picture.tobytes())).view(8, 8, 3).permute(2, 0, 1) / 255

    names = {"nrm": nrm, "model": nn.Sequential(*layers).eval(), "weights": Weights, "a": nrm.layer("1"),
             "b": nrm.layer("3"), "classes": {"class 0": 0, "class 1": 1}}  # fmt: skip
    exec("found = " + snippet("relmax.py").replace("workers=8", "workers=1"), names)
    found: Any = names["found"]
    best = found.top(nrm.layer("1").channel(0))
    assert len(best) > 1
    assert len(best) + len(found.errors) == 4
