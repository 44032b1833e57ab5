"""A store holds what the job in memory gives, survives every kill, and knows its job."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import nrm
from jobs.shop import A, B, Flowing, Squares, network
from nrm.jobs import merge_stores, parts
from nrm.jobs.parts import read_part
from nrm.jobs.store import Shelf, _limits

pytest.importorskip("pyarrow", reason="the extra `store` is not installed")
pytest.importorskip("duckdb", reason="the extra `store` is not installed")

PAIRS = (A.channels, B.channels)
TESTS = Path(__file__).resolve().parents[1]


def run(path: Path | None, data: Any = None, model: Any = None, **changes: Any) -> Any:
    options = {"k": 5, "batch_size": 2, "shard_size": 2, "threads": 1, "rows": 70} | changes
    model = network() if model is None else model
    data = Squares(70) if data is None else data
    return nrm.relmax(model, data, A.channels, PAIRS, store=path, **options)


def content(path: Path) -> dict[str, Any]:
    """Everything the store holds, bit by bit."""
    store = nrm.open_store(path)
    shelf = Shelf(path, _limits(store.facts))
    (span,) = shelf.spans()
    return tally_content(read_part(shelf.folder(span), shelf.limits))


def tally_content(tally: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    order = np.argsort(tally.samples["sample"], kind="stable")
    for name, values in tally.samples.items():
        found[name] = [values[i] for i in order]
    for (question, by), top in tally.tops.items():
        for name in ("block", "sample", "score", "place"):
            found[f"{question} {by} {name}"] = getattr(top, name).tolist()
    for question, kept in enumerate(tally.moments):
        for label, moments in kept.classes.items():
            for name in parts.ARRAYS:
                found[f"{question} {label} {name}"] = getattr(moments, name).tolist()
    return found


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    return tally_content(run(None).tally)


def test_a_store_is_the_job_in_memory(tmp_path: Path, expected: Any) -> None:
    memory, store = run(None), run(tmp_path / "s")
    assert content(tmp_path / "s") == expected
    again = nrm.open_store(tmp_path / "s")
    for found in (store, again):
        for block in [(A.channel(2),), (A.channel(1), B.channel(3)), (A.channels[0],)]:
            assert str(found.top(*block)) == str(memory.top(*block))
            assert found.top(*block).complete == memory.top(*block).complete
        assert found.top(A.channel(1), by="activation").hits == memory.top(A.channel(1), by="activation").hits
        for name, value in memory.statistics(*PAIRS).items():
            assert torch.equal(torch.as_tensor(found.statistics(*PAIRS)[name]), torch.as_tensor(value))
        assert found.best(*PAIRS, k=3) == memory.best(*PAIRS, k=3)
        assert found.count == 70
    assert "70 samples" in repr(again)
    assert again.sql("select count(*) from samples where label = 1").fetchall() == [(23,)]
    best = again.sql("select max(score) from top where question = 0 and ranking = 'relevance' and block = 2").fetchone()
    assert best == (memory.top(A.channel(2))[0].score,)
    again.verify()


def test_a_pruned_pair_says_so(tmp_path: Path) -> None:
    store = run(tmp_path / "s")
    notes = [store.top(A.channel(i), B.channel(j)) for i in range(4) for j in range(5)]
    assert {hits.complete for hits in notes} == {True, False}
    assert all("A scan for this one is exact" in str(hits) for hits in notes if not hits.complete)


def test_an_iterable_data_set(tmp_path: Path, expected: Any) -> None:
    run(tmp_path / "s", Flowing(Squares(70)))
    assert content(tmp_path / "s") == expected


@pytest.mark.slow
def test_kill_at_every_write_point(tmp_path: Path, expected: Any) -> None:
    """The process is killed when it comes to a write point for the n-th time, and started again until it ends."""
    script = """
import os, pathlib, shutil, signal, sys
import nrm.jobs.parts, nrm.jobs.store
from jobs.test_store import run
count, limit = 0, int(sys.argv[2])
def deadly(owner, name):
    function = getattr(owner, name)
    def wrapped(*args, **kwargs):
        global count
        count += 1
        if count == limit:
            print(name, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)
    setattr(owner, name, wrapped)
deadly(pathlib.Path, "rename")
deadly(shutil, "rmtree")
deadly(nrm.jobs.store, "replacing")
deadly(nrm.jobs.parts, "_write_tables")
deadly(nrm.jobs.parts, "_seal")
run(pathlib.Path(sys.argv[1]))
"""
    ended, points = [], set()
    for limit in (1, 2, 14, 131, 9, 10**6):
        done = start([sys.executable, "-c", script, str(tmp_path / "s"), str(limit)], stdout=subprocess.PIPE)
        points.add(done.communicate(timeout=100)[0].strip())
        ended.append(done.returncode)
    assert ended[:4] == [-signal.SIGKILL] * 4, points
    assert ended[-1] == 0
    assert len(points) > 3, points
    assert content(tmp_path / "s") == expected
    assert not [name for name in os.listdir(tmp_path / "s" / "parts") if name.startswith(parts.TEMPORARY)]


def start(command: list[str], **pipes: Any) -> subprocess.Popen[str]:
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, sys.path)])}
    return subprocess.Popen(command, env=env, text=True, **pipes)


def test_finished_shards_are_not_done_again(tmp_path: Path, expected: Any) -> None:
    trace = tmp_path / "trace"
    data = Squares(70, trace=trace)
    run(tmp_path / "s", data, shards=range(20))
    trace.unlink()
    assert nrm.open_store(tmp_path / "s").count == 40
    run(tmp_path / "s", data)
    probes = {round(i * 69 / 7) for i in range(8)} | {0}
    assert {int(line) for line in trace.read_text().split()} - probes == set(range(40, 70)) - probes
    assert content(tmp_path / "s") == expected


def test_stores_merge(tmp_path: Path, expected: Any) -> None:
    for name, shards in (("a", range(20, 35)), ("b", range(5, 25)), ("c", range(5))):
        run(tmp_path / name, shards=shards)
    merged = merge_stores(tmp_path / "all", *(tmp_path / name for name in "abc"))
    assert merged.count == 70
    for key, value in content(tmp_path / "all").items():
        if isinstance(value, list) and value and isinstance(value[0], float):
            assert value == pytest.approx(expected[key], rel=1e-12, abs=1e-15)
        else:
            assert value == expected[key]
    run(tmp_path / "other", data=Squares(70, seed=5), shards=range(1))
    with pytest.raises(nrm.NrmError, match="another data"):
        merge_stores(tmp_path / "more", tmp_path / "a", tmp_path / "other")


def test_another_job_is_refused(tmp_path: Path) -> None:
    run(tmp_path / "s", shards=range(2))
    before = sorted(os.listdir(tmp_path / "s" / "parts"))
    for text, changes in (
        ("another model", {"model": network(3)}),
        ("another data", {"data": Squares(70, seed=9)}),
        ("another data", {"data": Squares(71)}),
        ("another k", {"k": 6}),
        ("another rules", {"rules": "lrp-0"}),
        ("another weight", {"weight": "none"}),
        ("another data", {"targets": 1}),
    ):
        with pytest.raises(nrm.NrmError, match=text):
            run(tmp_path / "s", **changes)
    assert sorted(os.listdir(tmp_path / "s" / "parts")) == before


def test_a_damaged_part_is_done_again(tmp_path: Path, expected: Any) -> None:
    run(tmp_path / "s", shards=range(20))
    folders = sorted((tmp_path / "s" / "parts").iterdir())
    table = folders[-1] / "top.parquet"
    table.write_bytes(table.read_bytes()[:-7] + b"garbage")
    with pytest.raises(nrm.ResultFileError, match="damaged"):
        nrm.open_store(tmp_path / "s").verify()
    (folders[-2] / "part.json").write_text("{")
    with pytest.raises(nrm.ResultFileError, match="damaged"):
        nrm.open_store(tmp_path / "s")
    with pytest.warns(nrm.NrmWarning, match="done again"):
        run(tmp_path / "s")
    assert content(tmp_path / "s") == expected


def test_manifests_of_other_versions_and_other_folders(tmp_path: Path) -> None:
    run(tmp_path / "s", shards=range(1))
    manifest = tmp_path / "s" / "manifest.json"
    facts = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(facts | {"schema": 99}))
    with pytest.raises(nrm.ResultFileError, match="another schema version"):
        nrm.open_store(tmp_path / "s")
    manifest.write_text("nothing")
    with pytest.raises(nrm.ResultFileError, match="manifest is damaged"):
        run(tmp_path / "s")
    with pytest.raises(nrm.ResultFileError, match="not a store"):
        nrm.open_store(tmp_path)


def test_a_full_disk(tmp_path: Path, expected: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    write, count = parts._write_tables, 0

    def full(folder: Path, tally: Any) -> None:
        nonlocal count
        count += 1
        write(folder, tally)
        if count > 9:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(parts, "_write_tables", full)
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
    _, text = done.communicate(timeout=100)
    assert done.returncode == 1
    assert "the store cannot be written" in text
    assert "make room and run again" in text
    assert nrm.open_store(tmp_path / "s").shards >= {0, 1}


def test_two_jobs_on_one_store(tmp_path: Path) -> None:
    script = """
import pathlib, sys
from jobs.shop import Squares
from jobs.test_store import run
run(pathlib.Path(sys.argv[1]), Squares(70, wait=0.2))
"""
    first = start([sys.executable, "-c", script, str(tmp_path / "s")])
    try:
        wait_for(lambda: len(list((tmp_path / "s").glob("parts/0*"))) >= 2)
        with pytest.raises(nrm.NrmError, match="another job is using this store"):
            run(tmp_path / "s")
        assert nrm.open_store(tmp_path / "s").count >= 4
    finally:
        first.kill()
        first.wait()
    run(tmp_path / "s")


def wait_for(condition: Any, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code", "workers"), [(signal.SIGINT, -2, 1), (signal.SIGTERM, 1, 1), (signal.SIGINT, -2, 2)]
)
def test_signals(tmp_path: Path, expected: Any, number: int, code: int, workers: int) -> None:
    script = f"""
import pathlib, signal, sys
from jobs.shop import Squares
from jobs.test_store import run
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background ignores it
    run(pathlib.Path(sys.argv[1]), Squares(70, wait=0.1), workers={workers})
"""
    (tmp_path / "job.py").write_text(script)
    job = start([sys.executable, str(tmp_path / "job.py"), str(tmp_path / "s")], stderr=subprocess.PIPE)
    wait_for(lambda: len(list((tmp_path / "s").glob("parts/0*"))) >= 2)
    job.send_signal(number)
    _, text = job.communicate(timeout=60)
    assert job.returncode == code
    assert "run it again to go on" in text
    done = nrm.open_store(tmp_path / "s").shards
    assert 2 <= len(done) < 35
    run(tmp_path / "s")
    assert content(tmp_path / "s") == expected


def test_too_many_errors_stop_and_can_be_allowed_later(tmp_path: Path) -> None:
    data = Squares(70, broken=(5, 30, 31))
    with pytest.raises(nrm.NrmError, match="3 samples failed"):
        run(tmp_path / "s", data, max_errors=2)
    assert 10 <= len(nrm.open_store(tmp_path / "s").shards) < 35
    store = run(tmp_path / "s", data, max_errors=3)
    assert [number for number, _ in store.errors] == [5, 30, 31]
    assert store.count == 67
    assert store.sql("select count(*) from samples where error is not null").fetchone() == (3,)


def test_leftovers_are_removed(tmp_path: Path, expected: Any) -> None:
    run(tmp_path / "s", shards=range(20))
    folder = tmp_path / "s" / "parts"
    (folder / f"{parts.TEMPORARY}0123").mkdir()
    shutil.copytree(folder / "00000016-00000017", folder / "00000003-00000004")  # inside of the folded group
    run(tmp_path / "s")
    assert content(tmp_path / "s") == expected
