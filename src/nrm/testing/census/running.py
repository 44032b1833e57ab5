"""Running a census: every case in a process of its own with a time limit, and results that are kept on the way."""

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

from nrm.files import write_text
from nrm.testing.census.judge import CensusRow, judge
from nrm.testing.census.subject import CensusCase

LIMIT = 60.0
"""Seconds that a case may take."""
ROOM = 8 << 30
"""Bytes of memory that a case may take."""


def run(
    cases: Iterable[CensusCase], path: Path, *, limit: float = LIMIT,
    again: Callable[[dict[str, Any]], bool] | None = None, told: Callable[[CensusRow], None] | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """CensusRows of all cases, those that a file has from an earlier run among them; it is written after every case.

    ``again`` says which of them are found out anew.
    """
    found = {(row["of"], row["name"]): row for row in read(path)}
    torch.set_num_threads(1)  # what is forked must not wait for threads that are not there
    for case in cases:
        known = found.get((case.of, case.name))
        if known is not None and not (again is not None and again(known)):
            continue
        finding = alone(case, limit)
        found[case.of, case.name] = finding.describe()
        write_text(path, json.dumps(sorted(found.values(), key=lambda row: (row["of"], row["name"])), indent=1))
        if told is not None:
            told(finding)
    return list(found.values())


def read(path: Path) -> list[dict[str, Any]]:
    """The findings that a file has."""
    rows: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
    return rows


def alone(case: CensusCase, limit: float = LIMIT) -> CensusRow:
    """What is found out about a case in a process of its own, which is ended when its time is over."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_inside, args=(there, case))
    begin = time.monotonic()
    process.start()
    there.close()
    try:
        if here.poll(limit):
            return here.recv()  # type: ignore[no-any-return]
        return CensusRow(
            case.of, case.name, "timed out", words=f"not done after {time.monotonic() - begin:.0f} seconds"
        )
    except EOFError:
        process.join()
        return CensusRow(case.of, case.name, "failed", words=f"the process ended with code {process.exitcode}")
    finally:
        if process.is_alive():
            process.kill()
        process.join()
        here.close()


def _inside(pipe: Connection, case: CensusCase) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (ROOM, ROOM))
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    pipe.send(judge(case.of, case.name, case.make))
    pipe.close()
