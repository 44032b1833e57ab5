"""The networks whose trained weights are in the real data, in the module layout of the files, and their images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn

MEAN, DEVIATION = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
CIFAR = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
IMAGENETTE = (
    "tench", "springer", "cassette player", "chain saw", "church", "French horn", "garbage truck", "gas pump",
    "golf ball", "parachute",
)  # fmt: skip


class VGG(nn.Module):
    """VGG16 with a head of ten classes."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for width, convolutions in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
            for _ in range(convolutions):
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
                channels = width
            layers.append(nn.MaxPool2d(2, 2))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(7)
        self.classifier = nn.Sequential(
            nn.Linear(25088, 512), nn.ReLU(inplace=True), nn.Dropout(),
            nn.Linear(512, 512), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(512, 10),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


class Fire(nn.Module):
    def __init__(self, channels: int, narrow: int, wide: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(channels, narrow, 1)
        self.expand1x1 = nn.Conv2d(narrow, wide, 1)
        self.expand3x3 = nn.Conv2d(narrow, wide, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.squeeze(x))
        return torch.cat([torch.relu(self.expand1x1(x)), torch.relu(self.expand3x3(x))], 1)


class SqueezeNet(nn.Module):
    """SqueezeNet 1.1."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, 3, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, ceil_mode=True),
            Fire(64, 16, 64), Fire(128, 16, 64), nn.MaxPool2d(3, 2, ceil_mode=True),
            Fire(128, 32, 128), Fire(256, 32, 128), nn.MaxPool2d(3, 2, ceil_mode=True),
            Fire(256, 48, 192), Fire(384, 48, 192), Fire(384, 64, 256), Fire(512, 64, 256),
        )  # fmt: skip
        self.classifier = nn.Sequential(nn.Dropout(), nn.Conv2d(512, 1000, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.flatten(self.classifier(self.features(x)), 1)


def _clipped(channels: int, width: int, size: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(channels, width, size, stride, size // 2, groups=groups), nn.ReLU6(inplace=True))


class Inverted(nn.Module):
    """An inverted residual block whose batch norms are folded into its convolutions."""

    def __init__(self, channels: int, width: int, stride: int, expand: int) -> None:
        super().__init__()
        hidden = channels * expand
        parts: list[nn.Module] = [] if expand == 1 else [_clipped(channels, hidden, 1)]
        self.conv = nn.Sequential(*parts, _clipped(hidden, hidden, 3, stride, hidden), nn.Conv2d(hidden, width, 1))
        self.residual = stride == 1 and channels == width

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.residual else self.conv(x)


class MobileNet(nn.Module):
    """MobileNetV2 without batch norms."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [_clipped(3, 32, 3, 2)]
        channels = 32
        for expand, width, count, stride in (
            (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
        ):  # fmt: skip
            for k in range(count):
                layers.append(Inverted(channels, width, stride if k == 0 else 1, expand))
                channels = width
        self.features = nn.Sequential(*layers, _clipped(channels, 1280, 1))
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(1280, 1000))

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).mean((2, 3)))


class Basic(nn.Module):
    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut = nn.Sequential()
        if stride != 1 or channels != width:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        out += self.shortcut(x)
        return torch.relu(out)


class ResNet(nn.Module):
    """ResNet18 for images of 32 x 32: a 3 x 3 stem without pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        channels = 64
        for k, width in enumerate((64, 128, 256, 512)):
            stride = 1 if k == 0 else 2
            setattr(self, f"layer{k + 1}", nn.Sequential(Basic(channels, width, stride), Basic(width, width, 1)))
            channels = width
        self.linear = nn.Linear(512, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.linear(torch.nn.functional.avg_pool2d(x, 4).flatten(1))


MODELS: dict[str, tuple[type[nn.Module], str]] = {
    "VGG16-Imagenette": (VGG, "vgg16-imagenette/vgg16_imagenette.safetensors"),
    "SqueezeNet": (SqueezeNet, "squeezenet1_1/squeezenet1_1.safetensors"),
    "MobileNetV2": (MobileNet, "mobilenet_v2/mobilenet_v2_bnfolded.safetensors"),
    "ResNet18-CIFAR10": (ResNet, "resnet18-cifar10/resnet18_cifar10_fp16.safetensors"),
}


def load(name: str, data: Path) -> nn.Module:
    """A network with its trained weights, in float32 and eval mode."""
    build, file = MODELS[name]
    model = build()
    model.load_state_dict({key: value.float() for key, value in load_file(data / file).items()})
    return model.eval()


def photo(path: Path) -> Tensor:
    """An image file as a normalized input: short side 256, centre crop 224."""
    image = Image.open(path).convert("RGB")
    scale = 256 / min(image.size)
    image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BILINEAR)
    left, top = (image.width - 224) // 2, (image.height - 224) // 2
    pixels = torch.from_numpy(np.array(image.crop((left, top, left + 224, top + 224)))).float() / 255
    return ((pixels - MEAN) / DEVIATION).permute(2, 0, 1)


def shown(x: Tensor) -> Tensor:
    """A normalized input as a picture with values between 0 and 1."""
    return (x * DEVIATION.view(3, 1, 1) + MEAN.view(3, 1, 1)).clamp(0, 1)


def imagenet_names(data: Path) -> list[str]:
    """The thousand class names, in words before the first comma."""
    names: dict[str, Any] = json.loads((data / "imagenet" / "class_names.json").read_text())
    return [names[str(i)].split(",")[0] for i in range(len(names))]
