"""Kills a job of heat maps at every one of its write points, and finishes it. Run as a script."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import nrm
from jobs.killing import kill_everywhere
from jobs.shop import Squares, network
from nrm.files import HALF


def run(path: Path) -> list[bytes]:
    maps = nrm.heatmaps(network(), Squares(6), target="label", store=path, batch_size=2, progress=False)
    return [one.relevance.numpy().tobytes() for one in maps]


def files(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted((path / "maps").rglob("*")) if file.is_file()}


def main(home: Path) -> None:
    torch.set_num_threads(1)
    maps = run(home / "whole")
    expected = files(home / "whole")

    def finish(path: Path) -> None:
        """The job goes on: finished maps are left as they are, and the end is the same to the last bit."""
        before = {f: f.stat().st_mtime_ns for f in (path / "maps").rglob("*.safetensors")}
        assert run(path) == maps
        assert files(path) == expected
        assert all(f.stat().st_mtime_ns == written for f, written in before.items())
        assert not list(path.rglob(HALF))

    kill_everywhere(home, run, finish)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
