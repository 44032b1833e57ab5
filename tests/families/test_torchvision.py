"""The convolutional families that torchvision ships, with random weights at small sizes, in float64.

Each is captured, its value is the model's own, every cut has mass 1, and pulling and pushing are adjoint. A new family
is one line in the table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nrm
import vision

models = vision.load().models


@dataclass(frozen=True)
class Family:
    """A model, the size of its input, and two layers to ask about: ``low`` nearer to the input than ``high``."""

    build: Callable[..., nn.Module]
    size: int
    low: str
    high: str
    options: tuple[tuple[str, Any], ...] = ()


def plain(build: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """Without the auxiliary heads of training and the slow initialization."""
    return lambda **options: build(aux_logits=False, init_weights=False, **options)


SMALL = (("width_mult", 0.35),)


def small_head(build: Callable[..., nn.Module], width: int) -> Callable[..., nn.Module]:
    """With 64 hidden neurons instead of 4096: the convolutions are what differs between families."""

    def built(num_classes: int) -> nn.Module:
        with torch.device("meta"):
            model = build(num_classes=num_classes)
            model.classifier = nn.Sequential(
                nn.Dropout(), nn.Linear(width, 64), nn.ReLU(inplace=True), nn.Linear(64, num_classes)
            )
        model.to_empty(device="cpu")
        for module in model.modules():
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()
        return model

    return built


def resnet(**options: Any) -> nn.Module:
    """A residual network of bottlenecks with one block per stage: all parts of the large ones."""
    return models.resnet.ResNet(models.resnet.Bottleneck, [1, 1, 1, 1], **options)


def densenet(**options: Any) -> nn.Module:
    return models.densenet.DenseNet(8, (2, 2, 2, 2), 16, **options)


def efficientnet_v2(**options: Any) -> nn.Module:
    """The fused and the plain blocks of EfficientNetV2, one stage of each kind and a strided one."""
    parts = models.efficientnet
    stages = [
        parts.FusedMBConvConfig(1, 3, 1, 8, 8, 1), parts.FusedMBConvConfig(4, 3, 2, 8, 16, 2),
        parts.MBConvConfig(4, 3, 2, 16, 24, 2), parts.MBConvConfig(6, 3, 1, 24, 32, 1),
    ]  # fmt: skip
    return parts.EfficientNet(stages, dropout=0.1, last_channel=64, norm_layer=nn.BatchNorm2d, **options)


def convnext(**options: Any) -> nn.Module:
    block = models.convnext.CNBlockConfig
    stages = [block(16, 32, 1), block(32, 48, 1), block(48, None, 1)]
    return models.convnext.ConvNeXt(stages, layer_scale=0.5, **options)


FAMILIES = {
    "alexnet": Family(small_head(models.alexnet, 9216), 64, "features.4", "features.9"),
    "vgg11": Family(small_head(models.vgg11, 25088), 32, "features.4", "features.12"),
    "vgg11_bn": Family(small_head(models.vgg11_bn, 25088), 32, "features.6", "features.17"),
    "squeezenet": Family(models.squeezenet1_1, 64, "features.4", "features.9"),
    "resnet18": Family(models.resnet18, 64, "layer2", "layer3.0.bn1"),
    "resnet, bottlenecks": Family(resnet, 64, "layer2", "layer3.0.conv2"),
    "resnext": Family(resnet, 64, "layer2", "layer3", (("groups", 8), ("width_per_group", 4))),
    "wide resnet": Family(resnet, 32, "layer1", "layer2", (("width_per_group", 128),)),
    "densenet": Family(densenet, 64, "features.transition1", "features.denseblock3"),
    "googlenet": Family(plain(models.googlenet), 64, "inception3a", "inception4a"),
    "inception": Family(plain(models.inception_v3), 96, "Conv2d_4a_3x3", "Mixed_5b"),
    "mobilenet_v2": Family(models.mobilenet_v2, 64, "features.4", "features.8.conv.0", SMALL),
    "mobilenet_v3": Family(models.mobilenet_v3_small, 64, "features.3", "features.5"),
    "mnasnet": Family(models.mnasnet0_5, 64, "layers.8", "layers.9"),
    "shufflenet": Family(models.shufflenet_v2_x0_5, 64, "stage2", "stage3.0"),
    "efficientnet": Family(models.efficientnet_b0, 48, "features.2", "features.4.0"),
    "efficientnet_v2": Family(efficientnet_v2, 48, "features.2", "features.3.0"),
    "regnet_x": Family(models.regnet_x_400mf, 64, "trunk_output.block1", "trunk_output.block2"),
    "regnet_y": Family(models.regnet_y_400mf, 64, "trunk_output.block1", "trunk_output.block2"),
    "convnext": Family(convnext, 64, "features.2", "features.4.0"),
}

RULES = ["auto", "epsilon-plus", "lrp-0"]
SIGNED = {"densenet", "mobilenet_v3", "efficientnet", "efficientnet_v2", "convnext"}
"""Families in which a pooling or a norm reads signed activations: their LRP-0 makes even z+ signed."""


@pytest.fixture(scope="module", params=FAMILIES.values(), ids=FAMILIES)
def subject(request: pytest.FixtureRequest) -> tuple[Family, nn.Module, Tensor]:
    """A family's model with weights and statistics that matter, and one image."""
    family = request.param
    torch.manual_seed(0)
    model = family.build(num_classes=10, **dict(family.options)).double().eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            with torch.no_grad():
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.5, 1.5)
                module.weight.uniform_(0.5, 1.5)
                module.bias.normal_(0, 0.1)
    return family, model, torch.rand(1, 3, family.size, family.size, dtype=torch.float64)


@pytest.fixture(scope="module", params=RULES)
def measured(
    request: pytest.FixtureRequest, subject: tuple[Family, nn.Module, Tensor]
) -> tuple[str, Family, nrm.Measure]:
    family, model, x = subject
    return request.param, family, nrm.measure(model, x, rules=request.param, zero="uniform")


def test_the_value_is_the_models_own(subject: tuple[Family, nn.Module, Tensor]) -> None:
    _, model, x = subject
    with torch.no_grad():
        expected = model(x)
    R = nrm.measure(model, x)
    assert torch.allclose(R.values(R.output), expected, rtol=1e-10, atol=1e-12)
    assert R.prediction.tolist() == expected.argmax(1).tolist()


@pytest.mark.filterwarnings("ignore::nrm.NrmWarning")
def test_the_defaults_are_usable_on_every_family(subject: tuple[Family, nn.Module, Tensor]) -> None:
    """No options at all: the check accepts, and the answers do not raise."""
    _, model, x = subject
    R = nrm.measure(model.float(), x.float())
    model.double()
    found = R.check(strict=False)
    assert all(found.ok), found.verdict
    assert bool(torch.isfinite(R(R.input)).all())


def test_every_cut_has_mass_one(measured: tuple[str, Family, nrm.Measure]) -> None:
    _, _, R = measured
    check = R.check(strict=False)
    variation = max(max(v) for v in check.variation.values())
    assert check.mass == pytest.approx((1,), abs=1e-13 * variation + 1e-12)
    assert check.cut_error is not None
    assert check.cut_error < 1e-13 * variation + 1e-12


def test_pull_and_push_agree(measured: tuple[str, Family, nrm.Measure]) -> None:
    """The joint relevance of two channels, carried down from above, up from below, and read off a table."""
    _, family, R = measured
    low, high = R[family.low], R[family.high]
    i = int(R(low.channels)[0].abs().argmax())
    row = R(low.channel(i), high.channels)[0]
    j = int(row.abs().argmax())
    column = R(low.channels, high.channel(j))[0]
    scale = float(row.abs().sum() + column.abs().sum())
    assert float(row[j]) == pytest.approx(float(column[i]), abs=1e-11 * scale)
    assert float(R(low.channel(i), high.channel(j))[0]) == pytest.approx(float(row[j]), abs=1e-11 * scale)
    assert float(row.sum()) == pytest.approx(float(R(low.channel(i), high.all)[0]), abs=1e-11 * scale)
    assert float(column.sum()) == pytest.approx(float(R(low.all, high.channel(j))[0]), abs=1e-11 * scale)
    heat = R(R.input, low.channel(i), high.channel(j))[0]
    assert heat.shape == (3, family.size, family.size)


def test_z_plus_is_a_probability(subject: tuple[Family, nn.Module, Tensor]) -> None:
    family, model, x = subject
    R = nrm.measure(model, x, rules=nrm.ZPlus(), zero="uniform")
    check = R.check(strict=False)
    variation = max(max(v) for v in check.variation.values())
    assert (variation < 1 + 1e-9) == (family not in [FAMILIES[name] for name in SIGNED])
    assert check.mass == pytest.approx((1,))
