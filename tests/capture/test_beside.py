"""A run that is recorded beside another one is the same as one that is recorded by itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from nrm.capture import capture_batch


class Branching(nn.Module):
    """Takes another way for inputs of another sign, behind a layer that is the same for both."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        found: Tensor = h.tanh().view(-1, 2, 3).sum(2) if float(x.sum()) > 0 else h.view(-1, 3, 2).sigmoid().sum(1)
        return found


class Recurrent(nn.Module):
    """The last state of a fused recurrent layer."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRU(4, 3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        state: Tensor = self.cell(x)[0][:, -1]
        return state


def images() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 2)
    )  # fmt: skip


KINDS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "images": (images, (3, 2, 6, 6)),
    "attention": (lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, dropout=0.0), (3, 5, 4)),
    "recurrent": (Recurrent, (3, 5, 4)),
    "another way": (Branching, (3, 4)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch", [1, 3])
def test_samples_channels_and_heads_lie_where_they_lie_alone(kind: str, batch: int) -> None:
    make, shape = KINDS[kind]
    torch.manual_seed(0)
    model = make().eval()
    x = torch.rand(batch, *shape[1:])
    first = capture_batch(model, x, whole=True)
    alone, beside = (capture_batch(model, -x, whole=True, beside=tape) for tape in (None, first))
    assert len(alone.nodes) == len(beside.nodes)
    for mine, other in zip(beside.nodes, alone.nodes, strict=True):
        facts = [(n.name, n.function, n.sample, n.channel, n.heads, n.owner is None) for n in (mine, other)]
        assert facts[0] == facts[1]
        assert torch.equal(mine.value, other.value)
        assert mine.owner is None or other.owner is None or torch.equal(mine.owner, other.owner)
