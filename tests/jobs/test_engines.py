"""Every engine runs the same shards: bit-identical results, whoever dies on the way."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import nrm
from jobs.processes import start, wait_for
from jobs.shop import A, B, Deadly, Squares, network

PAIRS = (A.channels, B.channels)
pytestmark = pytest.mark.slow
LATE = "timed out during startup"
"""What Ray says if the machine is too busy to start it within its half minute."""


def run(data: Any = None, **changes: Any) -> Any:
    options = {"k": 5, "batch_size": 2, "shard_size": 4, "threads": 1, "rows": 70, "per_class": 16} | changes
    return nrm.relmax(network(), Squares(40) if data is None else data, A.channels, PAIRS, **options)


def content(found: Any) -> list[Any]:
    blocks = [(A.channel(i),) for i in range(4)] + [(A.channel(i), B.channel(j)) for i in range(4) for j in range(5)]
    tops = [found.top(*block).hits for block in blocks]
    tables = [found.statistics(*question) for question in ((A.channels,), PAIRS)]
    leading = [found.best(*PAIRS, target=label) for label in found.classes(*PAIRS)]
    return [
        tops,
        leading,
        [{name: value if name == "count" else value.tolist() for name, value in t.items()} for t in tables],
    ]


@pytest.fixture(scope="module")
def expected() -> list[Any]:
    return content(run())


def test_processes_give_the_same(expected: list[Any], tmp_path: Path) -> None:
    """One of them dies on the way, and is replaced."""
    mark = tmp_path / "mark"
    assert content(run(Deadly(mark, 21), workers=2)) == expected
    assert mark.exists()


def test_processes_write_the_same_store(expected: list[Any], tmp_path: Path) -> None:
    pytest.importorskip("duckdb", reason="the extra `store` is not installed")
    assert content(run(workers=2, store=tmp_path / "s")) == expected


def test_errors_of_workers_arrive(tmp_path: Path) -> None:
    with pytest.raises(nrm.NrmError, match="truncated"):
        run(Squares(40, broken=(17,)), workers=2)
    with pytest.raises(nrm.QuestionError, match="cannot be sent"):
        run(Squares(40), workers=2, output=lambda o: o)
    with pytest.raises(nrm.QuestionError, match="unknown engine"):
        run(engine="rays")
    with pytest.raises(nrm.QuestionError, match="cannot be shared out"):
        run(iter(Squares(40)), workers=2)
    assert threading.active_count() < 5


@pytest.mark.parametrize(
    "wrong", ["workers=0", "workers=1.5", "max_errors=-1", "batch_size=0", "shard_size=0", "rows=0"]
)
def test_counts_that_make_no_sense(wrong: str) -> None:
    name, _, value = wrong.partition("=")
    with pytest.raises(nrm.QuestionError, match="not a number of") as error:
        run(**{name: float(value) if "." in value else int(value)})
    assert wrong in str(error.value)


def test_ray_gives_the_same(expected: list[Any], tmp_path: Path, recwarn: Any) -> None:
    ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")
    pytest.importorskip("duckdb", reason="the extra `store` is not installed")
    paths = os.pathsep.join([str(Path(__file__).resolve().parents[1]), *filter(None, sys.path)])
    environment = {"env_vars": {"PYTHONPATH": paths}}
    try:
        ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False, runtime_env=environment)
    except Exception as error:
        pytest.skip("Ray did not start in time") if LATE in str(error) else None
        raise
    try:
        assert content(run(engine="ray", workers=2, store=tmp_path / "s")) == expected
        mark = tmp_path / "mark"
        assert content(run(Deadly(mark, 30), engine="ray", workers=2, store=tmp_path / "t")) == expected
        assert mark.exists()
        with pytest.raises(nrm.NrmError, match="truncated"):
            run(Squares(40, broken=(17,)), engine="ray", workers=1)
    finally:
        ray.shutdown()


def test_the_driver_of_ray_is_killed(expected: list[Any], tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    pytest.importorskip("duckdb", reason="the extra `store` is not installed")
    script = """
import pathlib, sys
from jobs.shop import Squares
from jobs.test_engines import run
run(Squares(40, wait=0.3), engine="ray", workers=1, store=pathlib.Path(sys.argv[1]))
"""
    with (tmp_path / "said").open("w+") as said:
        driver = start([sys.executable, "-c", script, str(tmp_path / "s")], stderr=said)
        try:
            wait_for(lambda: driver.poll() is not None or len(list((tmp_path / "s").glob("parts/0*"))) >= 2)
            ended = driver.poll()
        finally:
            driver.kill()
            driver.wait()
    if LATE in (tmp_path / "said").read_text():
        pytest.skip("Ray did not start in time")
    assert ended is None
    before = nrm.open_store(tmp_path / "s").shards
    assert 2 <= len(before) < 10
    assert content(run(store=tmp_path / "s")) == expected
