"""A small network for the digits of scikit-learn: its layers, its training, and weights that the package carries."""

from __future__ import annotations

import os
from collections.abc import Iterable
from importlib.resources import as_file, files
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from nrm.extras import extra

WEIGHTS = files("nrm.demo") / "digits.safetensors"
LEARNED = 1500
"""How many of the 1,797 digits the network has learned from; the others are for explaining."""
SIDE, BRIGHTEST = 8, 16
"""The width of a digit in pixels, and its largest value in scikit-learn's table."""


class DigitNet(nn.Module):
    """Two convolutions with a residual block between them, and a linear classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 16, 3, padding=1)
        self.conv3 = nn.Conv2d(16, 32, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.relu1, self.relu2, self.relu3 = nn.ReLU(), nn.ReLU(), nn.ReLU()
        self.fc = nn.Linear(32 * 2 * 2, 10)

    def forward(self, x: Tensor) -> Tensor:
        """The logits."""
        x = self.relu1(self.conv1(x))
        x = self.pool(self.relu2(self.conv2(x) + x))
        x = self.pool(self.relu3(self.conv3(x)))
        logits: Tensor = self.fc(x.flatten(1))
        return logits


def digits() -> tuple[DigitNet, Any, list[str]]:
    """The trained network, what makes its input of an image, and the names of its classes."""
    model = DigitNet()
    with as_file(WEIGHTS) as path:
        model.load_state_dict(load_file(path))
    return model.eval(), picture, [f"digit {i}" for i in range(10)]


def picture(image: Any) -> Tensor:
    """An image as the network takes it: grey, 8 x 8, bright ink on black: ``(1, 8, 8)``."""
    grey = image.convert("L")
    small = grey if grey.size == (SIDE, SIDE) else grey.resize((SIDE, SIDE))
    return torch.from_numpy(np.array(small, dtype=np.float32) / 255)[None]


def read_digits() -> tuple[Tensor, Tensor]:
    """All 1,797 digits, ``(N, 1, 8, 8)`` from 0 to 1, and their classes."""
    with extra("cluster", "the digits of scikit-learn"):
        from sklearn.datasets import load_digits
    pixels, classes = load_digits(return_X_y=True)
    images = torch.from_numpy(pixels).float().reshape(-1, 1, SIDE, SIDE) / BRIGHTEST
    return images, torch.from_numpy(classes).long()


def train(images: Tensor, classes: Tensor, epochs: Iterable[int]) -> DigitNet:
    """A network that has learned these digits; a few seconds for a dozen ``epochs``."""
    model = DigitNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in epochs:
        for batch in torch.split(torch.randperm(len(images)), 64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), classes[batch]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return model.eval()


def save_weights(model: DigitNet, path: str | os.PathLike[str]) -> None:
    """Writes the weights as the package carries them."""
    save_file({name: value.contiguous() for name, value in model.state_dict().items()}, path)
