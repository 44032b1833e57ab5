"""What the experiments on VGG16 share: the network, its images, and how pairs of blocks are judged."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nrm.evaluate import compare, contribution, scores
from nrm.measure import Measure, measure
from nrm.questions import Partition
from nrm.reproduce.data import Split, digits, folder_of, imagenet_files, labelled_files, mixed, photo, shown
from nrm.reproduce.drawing import correlation_figure, curves_figure
from nrm.reproduce.experiment import Outcome, Setting, UnitPlan
from nrm.reproduce.networks import VGG, ResNet, load, shuffled, small_cnn, torchvision_vgg, train
from nrm.reproduce.store import Tensors, Unit
from nrm.reproduce.tables import TableRow, as_tensors, rows_of
from nrm.rules import Gamma, composite
from nrm.search import cluster

PAPER = "epsilon-plus-flat"
BEST = replace(composite(PAPER), name="gamma 0.25", conv=Gamma(0.25), add=Gamma(0.25), bias="input")
"""The paper's rules with gamma instead of z+ in the convolutions, and biases as inputs."""
SAMPLES = 100
LOWER = 24
"""Layers of VGG16 up to the end of its fourth block."""

LayerPair = tuple[Partition, Partition]


@dataclass(frozen=True, eq=False)
class ImageSubject:
    """A network with images: which layers are asked about, how an input looks, and how many clusters the last has.

    ``reads`` is what the network reads of a batch of images, if that is not the images themselves.
    """

    name: str
    model: nn.Module
    count: int
    sample: Callable[[int], tuple[Tensor, int]]
    channels: tuple[str, str]
    blocks: tuple[str, str]
    picture: Callable[[Tensor], Tensor]
    coarse: int = 8
    reads: Callable[[Tensor], Tensor] = torch.clone

    def measured(self, index: int, rules: Any, *, bias: str = "auto", zero: str = "uniform") -> Measure:
        """A sample explained for its true class."""
        x, target = self.sample(index)
        inputs = self.reads(x[None])
        return measure(self.model, inputs, target=target, rules=rules, bias=bias, zero=zero, progress=False)


def subject(setting: Setting) -> ImageSubject:
    """VGG16 with the head for Imagenette if its weights are there, else torchvision's; or a small network."""
    if setting.embedded:
        return _small(setting)
    home = setting.data
    if home is not None and (home / "vgg16-imagenette").exists():
        model = load(VGG(512, 10), home / "vgg16-imagenette" / "vgg16_imagenette.safetensors")
        files = mixed(labelled_files(folder_of(home, "imagenette", "Imagenette images") / "val"))
        name = "VGG16-Imagenette"
    else:
        files = mixed(imagenet_files(folder_of(home, "imagenet", "ImageNet images")))
        model, name = torchvision_vgg(), "VGG16 (torchvision)"
    layers = ("features.26", "features.28"), ("features.4", "features.30")
    return ImageSubject(name, model, len(files), lambda i: (photo(files[i][0]), files[i][1]), *layers, shown)


def upper_part(found: ImageSubject) -> ImageSubject:
    """The last convolutions and the head, which read the values of the fourth block: much less work.

    What two layers have in common does not depend on what lies below them: neither their relevance nor their
    contribution.
    """
    model = copy.deepcopy(found.model)
    layers = model.get_submodule("features")
    assert isinstance(layers, nn.Sequential)
    lower = nn.Sequential(*(layers[k] for k in range(LOWER)))
    upper = nn.Sequential(*(nn.Identity() if k < LOWER else layers[k] for k in range(len(layers))))
    model.register_module("features", upper)

    def reads(images: Tensor) -> Tensor:
        with torch.no_grad():
            values: Tensor = lower(images)
            return values

    return replace(found, model=model, reads=reads)


def cifar(setting: Setting) -> ImageSubject:
    """ResNet18 on the test images of CIFAR-10."""
    home = folder_of(setting.data, "resnet18-cifar10", "CIFAR ResNet18")
    model = load(ResNet(), home / "resnet18_cifar10_fp16.safetensors")
    with np.load(home / "cifar10_test_1000.npz") as kept:
        arrays = [torch.from_numpy(kept[key]) for key in kept.files]
    images = next(a for a in arrays if a.ndim == 4)
    classes = next(a for a in arrays if a.ndim == 1)
    images = images.permute(0, 3, 1, 2) if images.shape[-1] == 3 else images
    images = images.float() / 255 if images.dtype == torch.uint8 else images.float()
    layers = ("layer4.0", "layer4.1"), ("layer1", "layer4")
    sample: Callable[[int], tuple[Tensor, int]] = lambda i: (images[i], int(classes[i]))  # noqa: E731
    return ImageSubject("ResNet18-CIFAR10", model, len(images), sample, *layers, lambda x: x)


def _small(setting: Setting) -> ImageSubject:
    learn, test = (Split(split.inputs.view(-1, 1, 8, 8), split.classes) for split in digits())
    model = small_cnn()

    def work() -> Tensors:
        torch.manual_seed(0)
        fresh = train(small_cnn(), shuffled(learn, 64, 0), 300, 3e-3)
        return dict(fresh.state_dict())

    model.load_state_dict(setting.store.keep("weights", work))
    pairs = ("3", "5"), ("2", "7")
    sample: Callable[[int], tuple[Tensor, int]] = lambda i: (test.inputs[i], int(test.classes[i]))  # noqa: E731
    return ImageSubject("small CNN on digits", model.eval(), 500, sample, *pairs, lambda x: x, coarse=4)


def clusters(found: ImageSubject, R: Measure) -> LayerPair:
    """Pairs of clusters of positions in the outputs of the two blocks."""
    return cluster(R, found.blocks[0], 8), cluster(R, found.blocks[1], found.coarse)


def plan(
    setting: Setting,
    judge: Callable[[ImageSubject, int], Tensors],
    finish: Callable[[ImageSubject, list[Tensors]], Outcome],
) -> UnitPlan:
    """A unit of work for every image."""
    found = subject(setting)
    count = min(setting.samples or SAMPLES, found.count)
    keys = [f"sample-{i:05d}" for i in range(count)]
    units = [Unit(key, partial(judge, found, i)) for i, key in enumerate(keys)]
    return units, lambda: finish(found, [setting.store.read(key) for key in keys])


def scored(found: ImageSubject, i: int, R: Measure, asked: LayerPair) -> dict[str, Tensor]:
    """The scores of what propagates relevance, under the paper's rules and under gamma, and of activations."""
    own = {name: scores(R, *asked, method=name) for name in ("nrm", "lrp", "activation")}
    return own | {f"nrm ({BEST.name})": scores(found.measured(i, BEST), *asked)}


def judged(R: Measure, asked: LayerPair, own: dict[str, Tensor], value: Any = "zero") -> Tensors:
    """All methods against one table of joint contributions."""
    return as_tensors(compare(R, *asked, methods=("occlusion", "random"), scores=own, value=value))


def rows_for(found: ImageSubject, table: Tensors, **facts: Any) -> list[TableRow]:
    """A row for every method, and for the measure under both rules."""
    rows = rows_of(table, order=2, model=found.name, bias="ignore", rules=PAPER, **facts)
    return [{**row, "bias": "ignore" if row["rules"] == PAPER else "input"} for row in rows]


def common_figures(
    found: ImageSubject, tables: Mapping[str, Tensors], asking: Callable[[Measure], LayerPair]
) -> dict[str, Any]:
    """SC_k of all samples, and the points of the first one."""
    R = found.measured(0, PAPER)
    asked = asking(R)
    own = {name: scores(R, *asked, method=name) for name in ("nrm", "lrp", "occlusion", "activation")}
    scattered = {"first sample": (contribution(R, *asked), own)}
    return {"sc_k": curves_figure(tables), "scatter": correlation_figure(scattered)}


def firsts(found: ImageSubject, count: int) -> list[int]:
    """Samples to draw, those of the first classes first."""
    return sorted(range(min(count, 10)), key=lambda i: found.sample(i)[1])


def heat_of(relevance: Tensor) -> Tensor:
    """Relevance ``(1, C, H, W)`` of the input as a picture."""
    return relevance[0].sum(0)
