"""Samples per second of a RelMax job, against the bare questions and the model's own forward pass.

python benchmarks/relmax.py [--samples 64] [--workers 2] [--size 96]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

import nrm


def network() -> nn.Module:
    layers: list[nn.Module] = []
    channels = 3
    for width in (32, 64, 128):
        layers += [
            nn.Conv2d(channels, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
        ]
        layers += [nn.MaxPool2d(2)]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)).eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--size", type=int, default=96)
    given = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, x = network(), torch.rand(given.samples, 3, given.size, given.size)
    a, b = nrm.layer("11"), nrm.layer("13")
    questions = (a.channels, b.channels, (a.channels, b.channels))
    options = {"rules": "epsilon-plus"}

    def forward() -> None:
        with torch.no_grad():
            for part in x.split(8):
                model(part)

    def bare() -> None:
        for part in x.split(8):
            R = nrm.measure(model, part, progress=False, **options)
            R(a.channels), R(b.channels), R(a.channels, b.channels)

    def job(**changes: object) -> None:
        nrm.relmax(model, x, *questions, batch_size=8, shard_size=16, threads=1, progress=False, **options, **changes)

    rows = [("forward pass", forward), ("bare questions", bare), ("relmax in memory", job)]
    try:
        import duckdb  # noqa: F401
        import pyarrow  # noqa: F401
    except ImportError:
        print("(the extra `store` is not installed: no store)")
    else:
        folder = Path(tempfile.mkdtemp())
        rows.append(("relmax with a store", lambda: job(store=folder / "one")))
        rows.append((f"relmax, {given.workers} workers", lambda: job(store=folder / "many", workers=given.workers)))
    first = 0.0
    for name, run in rows:
        start = time.perf_counter()
        run()
        rate = given.samples / (time.perf_counter() - start)
        first = first or rate
        print(f"{name:<24} {rate:8.1f} samples/s  {first / rate:6.2f} forward passes")


if __name__ == "__main__":
    main()
