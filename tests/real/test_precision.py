"""Law 14 on networks of real size: the heat map of LRP-0 in float32 is that of float64, to 1e-5 of its largest entry.

Biases are inputs, so that every step is proportional: no column is divided by its sum, and nothing is lost but
rounding. The float64 run takes the signs and maxima of the float32 run: one turned ReLU is no rounding error.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import nrm
import vision
from real import models
from real.smollm2 import FOLDER, load_smollm2
from real.stories import PROMPTS, Tokenizer, load_stories
from real.test_networks import home, inputs
from regions import in_one_region, largest_error

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::nrm.NrmWarning")]

Shared = Callable[[str], Path]
BOUND = 1e-5


def agree(single: nrm.Measure, double: nrm.Measure) -> None:
    """The law; and that a proportional step never needed a sink."""
    error = largest_error(single, double)
    print(f"largest error over largest entry: {error:.1e}")
    assert error < BOUND
    assert single.check(strict=False).sinks == {}


@pytest.mark.data
@pytest.mark.parametrize("name", models.MODELS)
def test_trained_vision(name: str, shared: Shared) -> None:
    model, x = models.load(name, home(shared, name)), inputs(name, shared)
    agree(*in_one_region(model, x[:1], rules="lrp-0", bias="input"))


def test_efficientnet() -> None:
    """Squeeze-and-excitation gates, SiLU, depthwise convolutions; random weights, statistics of the photos."""
    model, x = efficientnet(), photos()
    with torch.no_grad():
        spread = model(x).std()
    assert 0.01 < float(spread) < 100  # a signal arrives at the other end
    agree(*in_one_region(model, x[:1], rules="lrp-0", bias="input"))


def efficientnet() -> nn.Module:
    """EfficientNet-B0 with random weights; its batch norms know the mean and variance of what they see."""
    vision.load()
    from torchvision.models import efficientnet_b0

    torch.manual_seed(0)
    model = efficientnet_b0().eval()
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = None  # the average over all passes
        norm.train()
    with torch.no_grad():
        model(photos())
    return model.eval()


def photos() -> Tensor:
    """The two photos that scikit-learn ships, normalized, (2, 3, 224, 224)."""
    datasets = pytest.importorskip("sklearn.datasets", reason="scikit-learn is not installed")
    images = torch.stack([torch.from_numpy(i.copy()) for i in datasets.load_sample_images().images]).float() / 255
    cut = images[:, 100:324, 200:424]
    return ((cut - models.MEAN) / models.DEVIATION).permute(0, 3, 1, 2).contiguous()


@pytest.mark.data
def test_stories(shared: Shared) -> None:
    folder = shared("stories15M")
    pytest.importorskip("transformers", reason="transformers is not installed")
    model, tokenizer = load_stories(folder), Tokenizer(folder / "tokenizer.bin")
    agree(*in_one_region(model, {"input_ids": tokenizer.batch(PROMPTS[0])}, rules="lrp-0", bias="input"))


@pytest.mark.data
def test_smollm2(shared: Shared) -> None:
    """Thirty layers of attention and gated units, and the right answer to explain."""
    folder = shared(FOLDER)
    pytest.importorskip("transformers", reason="transformers is not installed")
    model, ids, answer = load_smollm2(folder)
    with torch.no_grad():
        chance = model(input_ids=ids).logits[0, -1].softmax(-1)
    assert float(chance[answer]) > 0.9
    single, double = in_one_region(model, {"input_ids": ids}, rules="lrp-0", bias="input", target=(-1, answer))
    agree(single, double)
