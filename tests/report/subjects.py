"""Small networks whose measures are shown."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import nrm

HOSTILE = "</script><img src=x onerror=\"document.title='broken'\">"
"""A name that breaks out of markup where it is not escaped."""


class Small(nn.Module):
    """A convolutional network with a residual block, for images of 3 x 12 x 12 and four classes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 12, 3, padding=1)
        self.conv2 = nn.Conv2d(12, 12, 3, padding=1)
        self.conv3 = nn.Conv2d(12, 10, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.fc = nn.Linear(10 * 9, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.conv1(x))
        x = self.pool(torch.relu(self.conv2(x) + x))
        return self.fc(self.pool(torch.relu(self.conv3(x))).flatten(1))


class Reader(nn.Module):
    """A small recurrent network over tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.fc = nn.Linear(8, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.fc(self.encoder(self.embed(ids)).mean(1))


CLASSES = ("cat", "dog", "bird", HOSTILE)


def small() -> nn.Module:
    torch.manual_seed(3)
    return Small().eval()


def image(seed: int = 0) -> Tensor:
    """Blocks of colour."""
    generator = torch.Generator().manual_seed(seed)
    return nn.functional.interpolate(torch.rand(1, 3, 4, 4, generator=generator), size=12)


def measured(**options: Any) -> nrm.Measure:
    options = {"rules": "epsilon-plus", "bias": "input", "labels": {"output": CLASSES}, **options}
    return nrm.measure(small(), image(), **options)


def read_tokens() -> nrm.Measure:
    torch.manual_seed(0)
    words = ["▁the", "▁cat", "▁s", "at", "▁down"]
    return nrm.measure(Reader().eval(), torch.tensor([[1, 4, 7, 2, 9]]), labels={"input": words})
