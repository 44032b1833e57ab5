"""Networks for benchmarks in torchvision's layout, with random weights: time and memory do not depend on them."""

from __future__ import annotations

import torch
from torch import Tensor, nn

VGG16 = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)


class VGG(nn.Module):
    """VGG16 with its thousand-class head; ``features.26`` and ``features.28`` are its last two convolutions."""

    def __init__(self, widths: tuple[int, ...] = VGG16, hidden: int = 4096, classes: int = 1000) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for width in widths:
            if width:
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
                channels = width
            else:
                layers.append(nn.MaxPool2d(2, 2))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d((7, 7))
        self.classifier = nn.Sequential(
            nn.Linear(channels * 49, hidden), nn.ReLU(inplace=True), nn.Dropout(),
            nn.Linear(hidden, hidden), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(hidden, classes),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


def vgg16() -> VGG:
    """VGG16 in eval mode with weights that keep activations alive."""
    torch.manual_seed(0)
    model = VGG().eval()
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            nn.init.zeros_(module.bias)
    return model


class Bottleneck(nn.Module):
    """Three convolutions with batch norms around a skip connection."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride > 1 or inputs != 4 * width:
            convolution = nn.Conv2d(inputs, 4 * width, 1, stride, bias=False)
            self.downsample = nn.Sequential(convolution, nn.BatchNorm2d(4 * width))

    def forward(self, x: Tensor) -> Tensor:
        skip = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.conv2(x)))
        return self.relu(self.bn3(self.conv3(x)) + skip)


class ResNet(nn.Module):
    """ResNet50; ``layer3`` and ``layer4`` are its last two stages."""

    def __init__(self, blocks: tuple[int, ...] = (3, 4, 6, 3)) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        self.relu, self.maxpool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        inputs = 64
        for n, count in enumerate(blocks):
            stage = []
            for block in range(count):
                stage.append(Bottleneck(inputs, 64 * 2**n, 2 if n and not block else 1))
                inputs = 4 * 64 * 2**n
            self.add_module(f"layer{n + 1}", nn.Sequential(*stage))
        self.avgpool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(inputs, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(torch.flatten(self.avgpool(x), 1))


def resnet50() -> ResNet:
    """ResNet50 in eval mode with weights and statistics that keep activations alive."""
    torch.manual_seed(0)
    model = ResNet()
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    model.train()
    with torch.no_grad():
        for _ in range(20):
            model(torch.randn(4, 3, 96, 96))  # running statistics of the batch norms
    return model.eval()


def chain(depth: int, width: int = 64) -> nn.Sequential:
    """So many convolutions of one size, to see how cost grows with depth."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1), nn.ReLU()]
    for _ in range(depth - 1):
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)).eval()
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
    return model
