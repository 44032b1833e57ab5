"""The networks of the experiments, and how they are trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from nrm.extras import extra
from nrm.reproduce.data import MissingDataError, Split


def mlp(sizes: Sequence[int], bias: bool) -> nn.Sequential:
    """Dense layers with ReLUs between them."""
    layers: list[nn.Module] = []
    for n, m in pairwise(sizes):
        layers += [nn.Linear(n, m, bias=bias), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class VGG(nn.Module):
    """VGG16 in torchvision's layout; ``hidden`` and ``classes`` are the widths of its head."""

    def __init__(self, hidden: int = 4096, classes: int = 1000) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for width, convolutions in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
            for _ in range(convolutions):
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
                channels = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(7)
        self.classifier = nn.Sequential(
            nn.Linear(25088, hidden), nn.ReLU(), nn.Dropout(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Dropout(),
            nn.Linear(hidden, classes),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        logits: Tensor = self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))
        return logits


def small_cnn() -> nn.Sequential:
    """A small convolutional network for 8 x 8 digits, its layers named by their numbers."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip


class Basic(nn.Module):
    """A residual block of two convolutions."""

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
        """The block's output."""
        h = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(h)) + self.shortcut(x))


class ResNet(nn.Module):
    """ResNet18 for images of 32 x 32."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        channels = 64
        stages = []
        for k, width in enumerate((64, 128, 256, 512)):
            stages.append(nn.Sequential(Basic(channels, width, 1 if k == 0 else 2), Basic(width, width, 1)))
            channels = width
        self.layer1, self.layer2, self.layer3, self.layer4 = stages
        self.linear = nn.Linear(512, 10)

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        x = torch.relu(self.bn1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: Tensor = self.linear(nn.functional.avg_pool2d(x, 4).flatten(1))
        return logits


class LinearRNN(nn.Module):
    """A recurrent network without any activation function, and a linear predictor on its last state."""

    def __init__(self, hidden: int = 16) -> None:
        super().__init__()
        self.inner = nn.Linear(hidden, hidden, bias=False)
        self.outer = nn.Linear(3, hidden, bias=False)
        self.predict = nn.Linear(hidden, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        h = self.outer(x[:, 0])
        for t in range(1, x.shape[1]):
            h = self.inner(h) + self.outer(x[:, t])
        logits: Tensor = self.predict(h)
        return logits


def load(model: nn.Module, path: Path) -> nn.Module:
    """A network with the weights of a file, in single precision."""
    if not path.exists():
        raise MissingDataError("no weights", where=str(path), hint="--data PATH")
    model.load_state_dict({key: value.float() for key, value in load_file(path).items()})
    return model.eval()


def torchvision_vgg() -> nn.Module:
    """VGG16 with torchvision's ImageNet weights, which are downloaded once."""
    with extra("vision", "nrm reproduce vgg-channels"):
        from torchvision.models import VGG16_Weights, vgg16
    try:
        model: nn.Module = vgg16(weights=VGG16_Weights.IMAGENET1K_V1)
    except OSError as error:
        raise MissingDataError(
            "no weights of VGG16", got=str(error)[:160], expected="a network to download them, or torch's cache",
            hint="put torchvision's file into $TORCH_HOME/hub/checkpoints",
        ) from error  # fmt: skip
    return model.eval()


def train(
    model: nn.Module, batches: Callable[[int], Split], steps: int, rate: float, decay: float = 0.0
) -> nn.Module:  # fmt: skip
    """Trains a classifier; ``batches`` gives the data of every step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=decay)
    model.train()
    for step in range(steps):
        batch = batches(step)
        loss = nn.functional.cross_entropy(model(batch.inputs), batch.classes)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.eval()


def shuffled(split: Split, size: int, seed: int) -> Callable[[int], Split]:
    """Batches of a data set, in a new order in every epoch."""
    each = len(split.inputs) // size

    def batch(step: int) -> Split:
        order = torch.randperm(len(split.inputs), generator=torch.Generator().manual_seed(seed + step // each))
        rows = order[step % each * size : (step % each + 1) * size]
        return Split(split.inputs[rows], split.classes[rows])

    return batch


def accuracy(model: nn.Module, split: Split) -> float:
    """The share of inputs whose largest logit is their class."""
    with torch.no_grad():
        return float((model(split.inputs).argmax(1) == split.classes).float().mean())
