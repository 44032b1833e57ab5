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


class Chemist(nn.Module):
    """A small graph network in plain torch: nodes hear their neighbours twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Neighbours(3, 8), Neighbours(8, 8)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.second(self.first(x, edge_index), edge_index)
        return self.head(x.sum(0, keepdim=True))


class Neighbours(nn.Module):
    """A graph layer: a node and the sum of its neighbours."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, out, bias=False)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        heard = torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])
        return torch.relu(self.linear(x + heard))


ATOMS = "CCCCCCNOO"
BONDS = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0), (5, 6), (6, 7), (6, 8)]

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


def chemist() -> nn.Module:
    torch.manual_seed(1)
    return Chemist().eval()


def molecule() -> tuple[Tensor, Tensor]:
    """Nitrobenzene without its hydrogens: atoms, and bonds in both directions."""
    return torch.eye(3)[["CNO".index(a) for a in ATOMS]], torch.tensor(BONDS + [(b, a) for a, b in BONDS]).T


def read_molecule(**options: Any) -> nrm.Measure:
    options = {"rules": "epsilon-plus", "target": 1, "labels": {"input": list(ATOMS)}, **options}
    return nrm.measure(chemist(), molecule(), **options)


def reader() -> nn.Module:
    torch.manual_seed(0)
    return Reader().eval()
