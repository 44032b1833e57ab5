"""Running a census: every case in a process of its own with bounds of time and memory, and findings kept on the way."""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import signal
import time
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from nrm.testing.census.judge import CensusRow, judge
from nrm.testing.census.subject import CensusCase

LIMIT = 60.0
"""Seconds that a case may take."""
ROOM = 2 << 30
"""Bytes of memory that a case may take beyond what the packages take."""

Row = dict[str, Any]


def run(
    cases: Iterable[CensusCase], path: Path, *, limit: float = LIMIT, room: int = ROOM,
    again: Callable[[Row], bool] | None = None, told: Callable[[CensusRow], None] | None = None,
) -> list[Row]:  # fmt: skip
    """Findings about all cases. Each is a line of the file at ``path`` as soon as it is known.

    What is there is not done again, unless ``again`` says so of it: a run that was stopped goes on where it was.
    """
    found = {(row["of"], row["name"]): row for row in read(path)}
    torch.set_num_threads(1)  # what is forked must not wait for threads that are not there
    for case in cases:
        known = found.get((case.of, case.name))
        if known is not None and not (again is not None and again(known)):
            continue
        finding = alone(case, limit, room)
        found[case.of, case.name] = finding.describe()
        _append(path, json.dumps(finding.describe()))
        if told is not None:
            told(finding)
    return list(found.values())


def _append(path: Path, line: str) -> None:
    """Writes a line behind the last whole one."""
    cut = path.exists() and not path.read_bytes().endswith(b"\n")
    with path.open("a", encoding="utf-8") as file:
        file.write(f"\n{line}\n" if cut else f"{line}\n")


def read(path: Path) -> list[Row]:
    """The findings that a file has: of every case the last. A line that was cut off is no finding."""
    found: dict[tuple[str, str], Row] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        if line.endswith("}"):
            row: Row = json.loads(line)
            found[row["of"], row["name"]] = row
    return [found[key] for key in sorted(found)]


def alone(case: CensusCase, limit: float = LIMIT, room: int = ROOM) -> CensusRow:
    """What is found out about a case in a process of its own, which is ended when its time is over."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_inside, args=(there, case, room))
    begin = time.monotonic()
    process.start()
    there.close()
    try:
        if here.poll(limit):
            return here.recv()  # type: ignore[no-any-return]
        seconds = time.monotonic() - begin
        return CensusRow(case.of, case.name, "too large", words=f"not done after {seconds:.0f} seconds")
    except EOFError:
        process.join()
        return CensusRow(case.of, case.name, "failed", words=f"the process ended with code {process.exitcode}")
    finally:
        if process.is_alive():
            process.kill()
        process.join()
        here.close()


def _inside(pipe: Connection, case: CensusCase, room: int) -> None:
    bound = _taken() + room
    resource.setrlimit(resource.RLIMIT_DATA, (bound, bound))
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    pipe.send(judge(case.of, case.name, case.make))
    pipe.close()


def _taken() -> int:
    """Bytes of data that the process has by now, as RLIMIT_DATA counts them."""
    pages = int(Path("/proc/self/statm").read_text().split()[5]) if Path("/proc/self/statm").exists() else 0
    return pages * resource.getpagesize()
