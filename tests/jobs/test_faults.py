"""Whatever stops a job, finished shards stay, and the same call goes on to the same end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import nrm
from jobs.contents import content, tally_content
from jobs.processes import TESTS, start, wait_for
from jobs.shop import Squares
from jobs.test_store import run
from nrm.files import HALF
from nrm.jobs import parts

pytest.importorskip("pyarrow", reason="the extra `store` is not installed")
pytest.importorskip("duckdb", reason="the extra `store` is not installed")


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    return tally_content(run(None).tally)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_kill_at_every_write_point(tmp_path: Path) -> None:
    """Before every file that is made, flushed, renamed or removed, and inside of every table that is written.

    The killed job is finished from every state of its folder; ``killing.py`` says how.
    """
    job = start([sys.executable, str(TESTS / "jobs" / "killing.py"), str(tmp_path)], stdout=subprocess.PIPE)
    points = job.communicate(timeout=600)[0].split()
    assert job.returncode == 0
    assert len(points) > 80
    assert {"write", "fsync", "open", "os.mkdir", "os.rename", "os.remove", "os.rmdir"} <= set(points)


def test_a_full_disk(tmp_path: Path, expected: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    write, count = parts.write_tables, 0

    def full(folder: Path, tally: Any, **options: Any) -> None:
        nonlocal count
        count += 1
        write(folder, tally, **options)
        if count > 9:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(parts, "write_tables", full)
    with pytest.raises(nrm.NrmError, match="No space left"):
        run(tmp_path / "s")
    assert nrm.open_store(tmp_path / "s").shards == set(range(9))
    assert not [name for name in os.listdir(tmp_path / "s" / "parts") if name.startswith(".")]
    monkeypatch.undo()
    run(tmp_path / "s")
    assert content(tmp_path / "s") == expected


def test_a_file_size_limit(tmp_path: Path) -> None:
    script = """
import pathlib, resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from jobs.test_store import run
run(pathlib.Path(sys.argv[1]), shards=range(2))
resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))
run(pathlib.Path(sys.argv[1]))
"""
    done = start([sys.executable, "-c", script, str(tmp_path / "s")], stderr=subprocess.PIPE)
    _, text = done.communicate(timeout=300)
    assert done.returncode == 1
    assert "the store cannot be written" in text
    assert "make room and run again" in text
    assert nrm.open_store(tmp_path / "s").shards >= {0, 1}


def test_two_jobs_on_one_store(tmp_path: Path) -> None:
    script = """
import pathlib, sys
import jobs.slow
from jobs.shop import Squares
from jobs.test_store import run
run(pathlib.Path(sys.argv[1]), Squares(16))
"""
    first = start([sys.executable, "-c", script, str(tmp_path / "s")])
    try:
        wait_for(lambda: len(list((tmp_path / "s").glob("parts/0*"))) >= 2)
        with pytest.raises(nrm.NrmError, match="another job is using this store"):
            run(tmp_path / "s", Squares(16))
        assert nrm.open_store(tmp_path / "s").count >= 4
    finally:
        first.kill()
        first.wait()
    run(tmp_path / "s", Squares(16))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code", "workers"),
    [(signal.SIGINT, -2, 1), (signal.SIGTERM, 1, 1), (signal.SIGINT, -2, 2), (signal.SIGKILL, -9, 2)],
)
def test_signals(tmp_path: Path, number: int, code: int, workers: int) -> None:
    script = f"""
import pathlib, signal, sys
import jobs.slow
from jobs.shop import Squares
from jobs.test_store import run
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background ignores it
    run(pathlib.Path(sys.argv[1]), Squares(16), workers={workers})
"""
    (tmp_path / "job.py").write_text(script)
    job = start([sys.executable, str(tmp_path / "job.py"), str(tmp_path / "s")], stderr=subprocess.PIPE)
    try:
        wait_for(lambda: len(list((tmp_path / "s").glob("parts/0*"))) >= 2)
        job.send_signal(number)
        _, text = job.communicate(timeout=300)
    finally:
        job.kill()
        job.wait()
    assert job.returncode == code
    assert ("run it again to go on" in text) == (number != signal.SIGKILL)
    assert nrm.open_store(tmp_path / "s").shards in ({0, 1}, {0, 2}, {1, 2}, {0, 1, 2})
    run(tmp_path / "s", Squares(16))
    assert content(tmp_path / "s") == tally_content(run(None, Squares(16)).tally)


def test_leftovers_are_removed(tmp_path: Path, expected: Any) -> None:
    run(tmp_path / "s", shards=range(20))
    folder = tmp_path / "s" / "parts"
    for name in (f"{parts.TEMPORARY}0123", HALF.replace("*", "0123")):  # of an earlier version, and of this one
        (folder / name).mkdir()
        (folder / name / "top.parquet").touch()
    shutil.copytree(folder / "00000016-00000017", folder / "00000003-00000004")  # inside of the folded group
    run(tmp_path / "s")
    assert content(tmp_path / "s") == expected
