"""Kills a job at every one of its write points, each time in a fork, and finishes it in another. Run as a script."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch

import nrm
from jobs.contents import content, tally_content
from jobs.shop import A, B, Squares, network
from nrm.files import HALF
from nrm.jobs import engines, store, tally

SHARDS, SIZE = 3, 4
EVENTS = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod"}


def run(path: Path | None) -> Any:
    return nrm.relmax(
        network(), Squares(SHARDS * SIZE), A.channels, (A.channels, B.channels), k=3, rows=40, batch_size=SIZE,
        shard_size=SIZE, threads=1, progress=False, per_class=16, store=path,
    )  # fmt: skip


class Shards:
    """The real tallies of the shards, computed once: what is tried here is how they are written."""

    def __init__(self) -> None:
        self.compute = engines.run_shard
        self.known: dict[int, Any] = {}
        self.asked: list[int] = []

    def __call__(self, job: Any, shard: int, tick: Any, known: Any) -> Any:
        self.asked.append(shard)
        if shard not in self.known:
            self.known[shard] = self.compute(job, shard, tick, known)
        return self.known[shard]


class Killer:
    """Counts write points, and kills this process when it comes to one of them."""

    def __init__(self, limit: int) -> None:
        self.limit, self.count = limit, 0
        sys.addaudithook(self.hear)
        self.flush, self.write = os.fsync, pq.write_table
        os.fsync, pq.write_table = self.flushing, self.writing

    def point(self, name: str) -> bool:
        self.count += 1
        if self.count == self.limit:
            os.write(1, f"{name}\n".encode())
        return self.count == self.limit

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        made = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_CREAT | os.O_TRUNC)
        if (event in EVENTS or made) and self.point(event):
            os.kill(os.getpid(), signal.SIGKILL)

    def flushing(self, descriptor: int) -> None:
        if self.point("fsync"):
            os.kill(os.getpid(), signal.SIGKILL)
        self.flush(descriptor)

    def writing(self, table: Any, where: Path, **options: Any) -> None:
        torn = self.point("write")
        self.write(table, where, **options)
        if torn:
            self.limit = 0
            os.truncate(where, where.stat().st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)


def forked(work: Callable[[], None]) -> int:
    """The exit status of a child that does this."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1]


def killed(path: Path, limit: int) -> None:
    Killer(limit)
    run(path)


def finished(path: Path, shards: Shards, expected: dict[str, Any]) -> None:
    """The job goes on: finished shards are not asked for again, and the end is the same to the last bit."""
    try:
        before = nrm.open_store(path).shards
    except nrm.ResultFileError:
        before = set()
    shards.asked.clear()
    run(path)
    assert not before & set(shards.asked), (before, shards.asked)
    assert content(path) == expected
    assert not list(path.rglob(HALF))


def main(home: Path) -> None:
    torch.set_num_threads(1)
    store.GROUP = tally.GROUP = 2
    shards = Shards()
    engines.run_shard = shards  # type: ignore[assignment]
    expected = tally_content(run(None).tally)
    finished(home / "whole", shards, expected)  # forks find everything imported
    for limit in itertools.count(1):
        path = home / str(limit)
        status = forked(lambda path=path, limit=limit: killed(path, limit))  # type: ignore[misc]
        if status == 0:
            return
        assert os.WTERMSIG(status) == signal.SIGKILL, status
        assert forked(lambda path=path: finished(path, shards, expected)) == 0, limit  # type: ignore[misc]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
