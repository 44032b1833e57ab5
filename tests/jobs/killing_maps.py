"""Kills a job of heat maps at every one of its write points, each time in a fork, and finishes it in another."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from pathlib import Path

import torch

import nrm
from jobs.killing import Killer, forked
from jobs.shop import Squares, network
from nrm.files import HALF


def run(path: Path) -> list[bytes]:
    maps = nrm.heatmaps(network(), Squares(6), target="label", store=path, batch_size=2, progress=False)
    return [one.relevance.numpy().tobytes() for one in maps]


def files(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted((path / "maps").rglob("*")) if file.is_file()}


def killed(path: Path, limit: int) -> None:
    Killer(limit)
    run(path)


def finished(path: Path, maps: list[bytes], expected: dict[str, bytes]) -> None:
    """The job goes on: finished maps are left as they are, and the end is the same to the last bit."""
    before = {f: f.stat().st_mtime_ns for f in (path / "maps").rglob("*.safetensors")}
    assert run(path) == maps
    assert files(path) == expected
    assert all(f.stat().st_mtime_ns == written for f, written in before.items())
    assert not list(path.rglob(HALF))


def main(home: Path) -> None:
    torch.set_num_threads(1)
    maps = run(home / "whole")
    expected = files(home / "whole")
    for limit in itertools.count(1):
        path = home / str(limit)
        status = forked(lambda path=path, limit=limit: killed(path, limit))  # type: ignore[misc]
        if status == 0:
            return
        assert os.WTERMSIG(status) == signal.SIGKILL, status
        assert forked(lambda path=path: finished(path, maps, expected)) == 0, limit  # type: ignore[misc]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
