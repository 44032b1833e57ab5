"""Trained networks in the explorer, in a real browser: photos, small images, stories by tokens and heads, molecules."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest
import torch

import nrm
import vision
from explorer.browser import launched, opened
from real import models, stories

pytest.importorskip("starlette")

pytestmark = [pytest.mark.data, pytest.mark.slow, pytest.mark.filterwarnings("ignore::nrm.NrmWarning")]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launched() as found:
        yield found


def looked_at(browser: Any, explorer: Any, layers: list[list[str]]) -> dict[str, Any]:
    """What the page shows of some layers; a click on a node must change the picture."""
    drawn = """() => { const c = document.querySelector('#picture canvas');
                       return c ? c.toDataURL() : document.getElementById('picture').innerHTML; }"""
    with explorer, opened(browser, f"{explorer.url}#{urlencode({'layers': json.dumps(layers)})}") as page:
        page.wait_for_selector(".ribbon")
        before = page.evaluate(drawn)
        page.locator('[data-node="0:0"]').click()
        page.wait_for_function(f"old => ({drawn})() !== old", arg=before)
        return {
            "decision": page.locator("#decision strong").inner_text(), "ribbons": page.locator(".ribbon").count(),
            "kinds": page.locator("#network .subhead").all_text_contents(),
            "tokens": page.locator("#picture .tokens span").all_inner_texts(),
            "atoms": page.locator("#picture .atom").count(), "bonds": page.locator("#picture .bond").count(),
        }  # fmt: skip


def test_vgg16_on_photos(browser: Any, shared: Callable[[str], Path]) -> None:
    model = models.load("VGG16-Imagenette", shared("vgg16-imagenette").parent)
    photos = sorted(shared("imagenette").glob("val/*/*"))[5:6]
    inputs = [models.photo(photo) for photo in photos]
    explorer = nrm.explore(model, inputs, labels=models.IMAGENETTE, open=False, block=False)
    found = looked_at(browser, explorer, [["features.29", "channels"], ["output", "channels"]])
    assert found["decision"] == "tench"
    assert found["kinds"] == ["512 channels", "10 channels"]


def test_resnet18_on_small_images(browser: Any, shared: Callable[[str], Path]) -> None:
    model = models.load("ResNet18-CIFAR10", shared("resnet18-cifar10").parent)
    with np.load(shared("resnet18-cifar10/cifar10_test_1000.npz")) as file:
        images = torch.from_numpy(file["x"][:2]).permute(0, 3, 1, 2).float() / 255
    explorer = nrm.explore(model, images, labels=models.CIFAR, open=False, block=False)
    found = looked_at(browser, explorer, [["layer3.1", "channels"], ["layer4.1", "channels"], ["output", "channels"]])
    assert found["decision"] in models.CIFAR
    assert found["ribbons"] > 8


def test_stories_by_tokens_and_heads(browser: Any, shared: Callable[[str], Path]) -> None:
    pytest.importorskip("transformers")
    vision.load()  # which transformers imports
    home = shared("stories15M")
    tokenizer = stories.Tokenizer(home / "tokenizer.bin")
    explorer = nrm.explore(
        stories.load_stories(home), stories.PROMPTS[2:4], labels=tokenizer.pieces, open=False, block=False,
        transform=lambda text: {"input_ids": tokenizer.batch(text)},
        names=lambda inputs: [tokenizer.pieces[i] for i in inputs["input_ids"][0].tolist()],
    )  # fmt: skip
    heads = [[f"model.layers.{i}.self_attn/reshape", "heads"] for i in (3, 5)]
    found = looked_at(browser, explorer, [["input", "positions"], *heads, ["output", "channels"]])
    assert "dog" in [token.strip() for token in found["tokens"]]
    assert found["kinds"][1] == "6 heads"


def test_molecules(browser: Any, shared: Callable[[str], Path]) -> None:
    home = shared("graphs/MUTAG")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("torch_geometric", reason="torch_geometric is absent (pip install nrm[graph])")
        from real.molecules import ATOMS, read_mutag, train

        graphs = read_mutag(home)
        model = train(graphs[:120], seed=0, epochs=4)
    explorer = nrm.explore(
        model, [(g.x, g.edge_index) for g in graphs[120:123]], labels=["harmless", "mutagenic"],
        names=lambda inputs: [ATOMS[i] for i in inputs[0].argmax(1).tolist()], open=False, block=False,
    )  # fmt: skip
    found = looked_at(browser, explorer, [["input", "positions"], ["convs.2", "edges"], ["output", "channels"]])
    assert found["atoms"] == graphs[120].num_nodes
    assert found["bonds"] == graphs[120].num_edges // 2
    assert "edges" in found["kinds"][1]
