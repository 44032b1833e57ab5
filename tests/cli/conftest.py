"""A folder with inputs for commands, and the commands themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vision
from cli.running import Ended
from nrm.cli import main

Run = Callable[..., Ended]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of commands: an image, tensors, and a folder with two classes of images."""
    fill(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def fill(folder: Path) -> None:
    random = np.random.default_rng(0)
    for name in ("one.png", "data/cat/1.png", "data/cat/2.png", "data/dog/3.png"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(path)
    np.save(folder / "x.npy", torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(0)).numpy())
    np.save(folder / "many.npy", torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(1)).numpy())
    np.save(folder / "rows.npy", torch.rand(2, 4, generator=torch.Generator().manual_seed(2)).numpy())


@pytest.fixture
def run(folder: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in this process, in the folder."""

    def command(*arguments: str) -> Ended:
        capsys.readouterr()
        code = main(arguments)
        return Ended(code, *capsys.readouterr())

    return command


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small language model and its tokenizer."""
    vision.load()
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    words = {word: i for i, word in enumerate(["[UNK]", "once", "upon", "a", "time", "there", "was"])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    path = tmp_path_factory.mktemp("reader")
    transformers.PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]").save_pretrained(path)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, vocab_size=7
    )
    transformers.LlamaForCausalLM(config).save_pretrained(path)
    return path
