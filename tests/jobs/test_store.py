"""A store holds what the job in memory gives, survives every kill, and knows its job."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

import nrm
from jobs.contents import content, tally_content
from jobs.shop import A, B, Flowing, Squares, network
from nrm.jobs import merge_stores
from nrm.jobs.likeness import PROBES, spread

pytest.importorskip("pyarrow", reason="the extra `store` is not installed")
pytest.importorskip("duckdb", reason="the extra `store` is not installed")

PAIRS = (A.channels, B.channels)


def run(path: Path | None, data: Any = None, model: Any = None, **changes: Any) -> Any:
    options = {"k": 5, "batch_size": 2, "shard_size": 2, "threads": 1, "rows": 70, "per_class": 16} | changes
    model = network() if model is None else model
    data = Squares(70) if data is None else data
    return nrm.relmax(model, data, A.channels, PAIRS, store=path, **options)


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


def test_later_shards_have_fewer_rows(tmp_path: Path) -> None:
    run(tmp_path / "s", shards=range(14))  # not enough to be folded
    table = pytest.importorskip("pyarrow.parquet")
    parts = sorted((tmp_path / "s" / "parts").iterdir())
    sizes = [table.read_metadata(part / "top.parquet").num_rows for part in parts]
    assert len(sizes) == 14
    assert max(sizes[-3:]) < min(sizes[:2])
    hits = nrm.open_store(tmp_path / "s").top(A.channel(1), B.channel(1))
    alone = run(None, torch.utils.data.Subset(Squares(70), range(28))).top(A.channel(1), B.channel(1))
    assert (hits.samples, hits.complete) == (alone.samples, alone.complete)


def test_a_pruned_pair_says_so(tmp_path: Path) -> None:
    store = run(tmp_path / "s")
    notes = [store.top(A.channel(i), B.channel(j)) for i in range(4) for j in range(5)]
    assert {hits.complete for hits in notes} == {True, False}
    assert all("A scan for this one is exact" in str(hits) for hits in notes if not hits.complete)


def test_an_iterable_data_set(tmp_path: Path, expected: Any) -> None:
    run(tmp_path / "s", Flowing(Squares(70)))
    assert content(tmp_path / "s") == expected


def test_finished_shards_are_not_done_again(tmp_path: Path, expected: Any) -> None:
    trace = tmp_path / "trace"
    data = Squares(70, trace=trace)
    run(tmp_path / "s", data, shards=range(20))
    trace.unlink()
    assert nrm.open_store(tmp_path / "s").count == 40
    run(tmp_path / "s", data)
    probes = set(spread(70, PROBES))
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
        ("another data", {"target": 1}),
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


def test_too_many_errors_stop_and_can_be_allowed_later(tmp_path: Path) -> None:
    data = Squares(70, broken=(5, 30, 31))
    with pytest.raises(nrm.NrmError, match="3 samples failed"):
        run(tmp_path / "s", data, max_errors=2)
    assert 10 <= len(nrm.open_store(tmp_path / "s").shards) < 35
    store = run(tmp_path / "s", data, max_errors=3)
    assert [number for number, _ in store.errors] == [5, 30, 31]
    assert store.count == 67
    assert store.sql("select count(*) from samples where error is not null").fetchone() == (3,)
