"""Kills a job at every one of its write points, and finishes it. Run as a script.

What a killed process leaves is what lies on the disk at that moment. So the job runs once, its folder is copied at
every write point, and it is finished from every state that differs from the one before. At the first point of each kind
a fork is killed for real: it has to leave what was copied there, and is finished too.
"""

from __future__ import annotations

import os
import re
import shutil
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
RANDOM = re.compile(r"[0-9a-f]{16}")
Files = dict[str, bytes | None]


class Watcher:
    """Counts write points, and acts before each of them; inside of a table with its file, which may be torn there."""

    def __init__(self, act: Callable[[int, str, Path | None], None]) -> None:
        self.act, self.count, self.awake = act, 0, True
        sys.addaudithook(self.hear)
        self.flush, self.write = os.fsync, pq.write_table
        os.fsync, pq.write_table = self.flushing, self.writing

    def point(self, name: str, torn: Path | None = None) -> None:
        if self.awake:
            self.awake = False
            self.count += 1
            self.act(self.count, name, torn)
            self.awake = True

    def hear(self, event: str, arguments: tuple[Any, ...]) -> None:
        made = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_CREAT | os.O_TRUNC)
        if event in EVENTS or made:
            self.point(event)

    def flushing(self, descriptor: int) -> None:
        self.point("fsync")
        self.flush(descriptor)

    def writing(self, table: Any, where: Path, **options: Any) -> None:
        self.write(table, where, **options)
        self.point("write", Path(where))


def tear(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def lying(folder: Path) -> Files:
    """Every file and folder that lies there."""
    return {
        os.fspath(one.relative_to(folder)): one.read_bytes() if one.is_file() else None
        for one in sorted(folder.rglob("*"))
    }


def alike(files: Files) -> Files:
    """The same with one name for all temporary ones, which are random."""
    return {RANDOM.sub("*", name): content for name, content in files.items()}


def forked(work: Callable[[], object]) -> int:
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


def kill_everywhere(home: Path, run: Callable[[Path], object], finish: Callable[[Path], None]) -> None:
    """Finishes the job from all that a kill at one of its write points can leave; prints the points' names."""
    first: dict[str, tuple[int, Files]] = {}
    states = 0
    last: Files = {}
    job = home / "job"

    def keep(number: int, name: str, torn: Path | None) -> None:
        nonlocal last, states
        os.write(1, f"{name}\n".encode())
        copy = home / str(number)
        if job.exists():
            shutil.copytree(job, copy)
            if torn is not None:
                tear(copy / torn.relative_to(job))
        files = lying(copy)
        first.setdefault(name, (number, files))
        if files == last:
            shutil.rmtree(copy, ignore_errors=True)
        else:
            last, states = files, states + 1

    watcher = Watcher(keep)
    run(job)
    watcher.awake = False
    copies = [folder for folder in home.iterdir() if folder.name.isdecimal()]
    assert len(copies) == states
    for folder in copies:
        finish(folder)
    for name, (limit, files) in first.items():
        path = home / f"killed at {name}"
        status = forked(lambda path=path, limit=limit: killed(path, run, limit))  # type: ignore[misc]
        assert os.WTERMSIG(status) == signal.SIGKILL, (name, status)
        assert alike(lying(path)) == alike(files), name
        finish(path)


def killed(path: Path, run: Callable[[Path], object], limit: int) -> None:
    """Runs the job until a write point, and kills this process there."""

    def kill(number: int, name: str, torn: Path | None) -> None:
        if number == limit:
            if torn is not None:
                tear(torn)
            os.kill(os.getpid(), signal.SIGKILL)

    Watcher(kill)
    run(path)


# ---- a job of relmax -------------------------------------------------------------------------------------------------


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


def main(home: Path) -> None:
    torch.set_num_threads(1)
    store.GROUP = tally.GROUP = 2
    shards = Shards()
    engines.run_shard = shards  # type: ignore[assignment]
    expected = tally_content(run(None).tally)

    def finish(path: Path) -> None:
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

    finish(home / "whole")
    kill_everywhere(home, run, finish)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
