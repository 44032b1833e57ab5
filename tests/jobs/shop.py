"""A small network, data sets with faults, and the slow truth. Importable by other processes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset

import nrm

A, B = nrm.layer("1"), nrm.layer("4")


def network(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 5, 3, padding=1), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 3),
        ).eval()  # fmt: skip


class Squares(Dataset[Any]):
    """Random pictures with labels; some numbers are bad, and reading can be slow, or change with a seed."""

    def __init__(
        self, count: int = 50, bad: tuple[int, ...] = (), broken: tuple[int, ...] = (), seed: int = 1, wait: float = 0,
        trace: Path | None = None,
    ) -> None:  # fmt: skip
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.rand(count, 1, 10, 10, generator=generator)
        self.bad, self.broken, self.wait, self.trace = bad, broken, wait, trace
        for number in bad:
            self.x[number] = torch.nan

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        time.sleep(self.wait)
        if number in self.broken:
            raise OSError("image file is truncated")
        if self.trace is not None:
            with self.trace.open("a") as file:
                file.write(f"{number}\n")
        return self.x[number], number % 3


class Deadly(Squares):
    """Kills the process that reads one sample, the first time."""

    def __init__(self, mark: Path, number: int) -> None:
        super().__init__(40)
        self.mark, self.number, self.home = mark, number, os.getpid()

    def __getitem__(self, number: int) -> Any:
        if number == self.number and os.getpid() != self.home and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(number)


class Flowing(IterableDataset[Any]):
    """The same as an iterable."""

    def __init__(self, inner: Squares) -> None:
        self.inner = inner

    def __iter__(self) -> Iterator[Any]:
        return (self.inner[i] for i in range(len(self.inner)))


def truth(question: Any, x: torch.Tensor, *, weight: str = "logit", target: Any = None) -> torch.Tensor:
    """All scores in memory, sample by sample: ``(samples, blocks)``."""
    parts = question if isinstance(question, tuple) else (question,)
    rows = []
    for i in range(len(x)):
        R = nrm.measure(network(), x[i : i + 1], target=None if target is None else int(target[i]))
        share = R(*parts)
        scale = {"logit": R.value, "none": torch.ones(1)}.get(weight)
        if scale is None:
            scale = R.values(R.output).softmax(1)[0, R.target]
        rows.append((share * scale.view(-1, *(1,) * (share.ndim - 1))).reshape(-1).double())
    return torch.stack(rows)
