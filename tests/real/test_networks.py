"""Trained networks on real images: right predictions, mass 1 at every cut, enough precision, heat on the object.

The data and weights are not part of the repository; the tests skip with a reason when they are absent.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import nrm
from real import models
from regions import in_one_region

pytestmark = [pytest.mark.data, pytest.mark.slow]

Shared = Callable[[str], Path]
PHOTOS = (
    "0000_n01440764_tench", "0001_n01443537_goldfish", "0022_n01614925_bald_eagle", "0130_n02007558_flamingo",
    "0148_n02071294_killer_whale", "0162_n02088364_beagle", "0292_n02129604_tiger", "0301_n02165456_ladybug",
    "0340_n02391049_zebra",
)  # fmt: skip
LADYBUG = (slice(95, 185), slice(110, 224))
"""Where the ladybug is, in rows and columns of its photo."""
SPRINGER = (slice(30, 140), slice(60, 130))
"""Where the dog's head and chest are, in the tenth springer of the validation set."""


def home(shared: Shared, name: str) -> Path:
    """The folder of the real data, if it has this network."""
    return shared(models.MODELS[name][1]).parents[1]


def inputs(name: str, shared: Shared) -> Tensor:
    """Two images for a network; the middle of a photo is enough, and five times as fast."""
    if name == "ResNet18-CIFAR10":
        return cifar(shared)[0][:2]
    if name == "VGG16-Imagenette":
        return torch.stack([springer(shared), imagenette(shared, 4, 2)])[:, :, 48:144, 64:160]
    folder = shared("imagenet")
    two = torch.stack([models.photo(folder / f"{photo}.jpg") for photo in (PHOTOS[7], PHOTOS[4])])
    return two[:, :, 80:176, 96:192]


def cifar(shared: Shared) -> tuple[Tensor, Tensor]:
    with np.load(shared("resnet18-cifar10/cifar10_test_1000.npz")) as file:
        return torch.from_numpy(file["x"]).permute(0, 3, 1, 2).float() / 255, torch.from_numpy(file["y"]).long()


def imagenette(shared: Shared, label: int, number: int) -> Tensor:
    folder = sorted(shared("imagenette/val").iterdir())[label]
    return models.photo(sorted(folder.iterdir())[number])


def springer(shared: Shared) -> Tensor:
    return imagenette(shared, 1, 9)


@pytest.fixture(scope="module", params=models.MODELS)
def network(request: pytest.FixtureRequest, shared: Shared) -> tuple[str, nn.Module, Tensor]:
    name = request.param
    return name, models.load(name, home(shared, name)), inputs(name, shared)


RULES: dict[str, dict[str, Any]] = {
    "epsilon-plus-flat": {"rules": "epsilon-plus-flat", "zero": "uniform"},
    "alpha2-beta1": {"rules": "epsilon-alpha2-beta1"},
    "lrp-0": {"rules": "lrp-0"},
}


def test_imagenette_predictions(shared: Shared) -> None:
    model = models.load("VGG16-Imagenette", home(shared, "VGG16-Imagenette"))
    batch = torch.stack([imagenette(shared, label, 0) for label in range(10)])
    with torch.no_grad():
        assert (model(batch).argmax(1) == torch.arange(10)).sum() >= 9


@pytest.mark.parametrize("name", ["SqueezeNet", "MobileNetV2"])
def test_imagenet_predictions(name: str, shared: Shared) -> None:
    model, folder = models.load(name, home(shared, name)), shared("imagenet")
    batch = torch.stack([models.photo(folder / f"{photo}.jpg") for photo in PHOTOS])
    with torch.no_grad():
        assert model(batch).argmax(1).tolist() == [int(photo[:4]) for photo in PHOTOS]


def test_cifar_predictions(shared: Shared) -> None:
    model = models.load("ResNet18-CIFAR10", home(shared, "ResNet18-CIFAR10"))
    x, y = cifar(shared)
    with torch.no_grad():
        assert (model(x[:100]).argmax(1) == y[:100]).float().mean() > 0.9


@pytest.mark.parametrize("options", RULES.values(), ids=RULES)
def test_every_cut_has_mass_one_and_float32_is_good_to_one_per_cent(
    network: tuple[str, nn.Module, Tensor], options: dict[str, Any]
) -> None:
    """Where the certificate trusts the numbers, no more than that is noise, whatever the rules."""
    _, model, x = network
    R = nrm.measure(model, x, **options)
    with torch.no_grad():
        assert torch.allclose(R.values(R.output), model(x), rtol=1e-4, atol=1e-4)
    check = R.check(strict=False)
    assert all(check.ok), check.verdict
    assert check.mass == pytest.approx((1, 1), abs=1e-5)
    assert check.cut_error is not None
    assert check.cut_error < 1e-5
    exact = relevance(nrm.measure(model, x[:1], dtype=torch.float64, **options))
    assert float((relevance(R).double() - exact).abs().sum()) < 0.01 * float(exact.abs().sum())


PRECISE: dict[str, dict[str, Any]] = {
    "z+": {"rules": nrm.ZPlus(), "zero": "uniform"},
    "lrp-0": {"rules": "lrp-0", "bias": "input"},
}


@pytest.mark.parametrize("options", PRECISE.values(), ids=PRECISE)
def test_float32_against_float64(network: tuple[str, nn.Module, Tensor], options: dict[str, Any]) -> None:
    """Non-negative rules, and LRP-0 with biases as inputs: every neuron within 100 eps of the largest variation.

    That is a statement about rounding in one linear region: under signed rules the float64 run takes the signs and
    maxima of the float32 run.
    """
    _, model, x = network
    if options["rules"] == "lrp-0":
        single, double = in_one_region(model, x[:1], **options)
    else:
        single, double = (nrm.measure(model, x[:1], dtype=dtype, **options) for dtype in (None, torch.float64))
    difference = (relevance(single).double() - relevance(double)).abs()
    variation = max(max(v) for v in double.check(strict=False).variation.values())
    assert float(difference.max()) < 100 * torch.finfo(torch.float32).eps * variation


def relevance(R: nrm.Measure) -> Tensor:
    """The heat map of the first sample."""
    return R(R.input)[0]


OBJECTS = {
    "VGG16-Imagenette": (springer, SPRINGER),
    "SqueezeNet": (lambda shared: models.photo(shared("imagenet") / f"{PHOTOS[7]}.jpg"), LADYBUG),
    "MobileNetV2": (lambda shared: models.photo(shared("imagenet") / f"{PHOTOS[7]}.jpg"), LADYBUG),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_relevance_is_on_the_object(name: str, shared: Shared) -> None:
    """Inside a box around the object there is at least twice the relevance that its area would have by chance."""
    photo, box = OBJECTS[name]
    R = nrm.measure(models.load(name, home(shared, name)), photo(shared)[None], **RULES["epsilon-plus-flat"])
    heat = R(R.input.positions)[0]
    area = torch.zeros(heat.shape)
    area[box] = 1
    assert float((heat * area).sum()) > 2 * float(area.mean()) * float(heat.sum())
    assert float(heat.sum()) == pytest.approx(1, abs=1e-4)


def test_an_interaction_of_two_layers_has_a_heat_map(shared: Shared) -> None:
    """The paper's setting: channel pairs of VGG16's last two convolutions, and where in the photo one of them lives."""
    R = nrm.measure(models.load("VGG16-Imagenette", home(shared, "VGG16-Imagenette")), springer(shared)[None],
                    rules="epsilon-plus-flat")  # fmt: skip
    a, b = R["features.26"], R["features.28"]
    pairs = R(a.channels, b.channels)[0]
    assert pairs.shape == (512, 512)
    assert torch.allclose(pairs.sum(1), R(a.channels)[0], atol=1e-5)
    assert torch.allclose(pairs.sum(0), R(b.channels)[0], atol=1e-5)
    i, j = divmod(int(pairs.argmax()), 512)
    heat = R(R.input, a.channel(i), b.channel(j))[0]
    assert float(heat.sum()) == pytest.approx(float(pairs[i, j]), rel=1e-3)
