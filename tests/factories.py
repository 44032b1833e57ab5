"""Models for commands of the tests, by name: ``factories:small``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def small() -> nn.Module:
    """A convolutional network for 3 x 8 x 8, in training mode as constructors leave it."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3),
    )  # fmt: skip


def whole() -> tuple[nn.Module, Any, list[str]]:
    """The same with everything beside it."""
    return small().eval(), crop, ["cat", "dog", "fish"]


def crop(image: Any) -> Tensor:
    return (
        torch.tensor(list(image.resize((8, 8)).tobytes()), dtype=torch.float32).reshape(8, 8, 3).permute(2, 0, 1) / 255
    )


def wide() -> nn.Module:
    """The same with a wider head."""
    model = small()
    model[7] = nn.Linear(6, 5)
    return model


def dense() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()


def leaking() -> nn.Module:
    """What ones contribute cancels, and the output is the bias."""
    model = nn.Linear(4, 1).eval()
    model.weight.data = torch.tensor([[1.0, -1.0, 1.0, -1.0]])
    model.bias.data = torch.ones(1)
    return model


def broken() -> nn.Module:
    raise ValueError("no such luck")


def nothing() -> int:
    return 3


def failing(image: Any) -> Tensor:
    raise KeyError("colour")


constant = 7
model = small().eval()
