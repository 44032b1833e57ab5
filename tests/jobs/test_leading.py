"""Leading blocks of classes: any order and any parts give the same sums, and their intervals hold the true ones."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

import nrm
from jobs.contents import content, tally_content
from jobs.shop import A, B, Flowing, Squares, network
from nrm.jobs import job
from nrm.jobs.leading import ClassSums, Leading, leaders

PAIRS = (A.channels, B.channels)
SMALL = st.integers(1, 6)


def gather(room: int, table: torch.Tensor, classes: np.ndarray, order: np.ndarray, failed: set[int]) -> Leading:
    found = Leading(room)
    for number in order.tolist():
        if number in failed:
            found.skip(number)
        else:
            found.add([number], table[number : number + 1], [int(classes[number])])
    return found


def same(one: ClassSums | None, other: ClassSums | None) -> bool:
    if one is None or other is None:
        return one is other
    return all(
        np.array_equal(getattr(one, name), getattr(other, name))
        for name in ("classes", "counts", "rest", "key", "values")
    )


@given(SMALL, SMALL, st.integers(1, 20), SMALL, st.integers(0, 2**16))
def test_parts_and_their_order_make_no_difference(room: int, blocks: int, samples: int, parts: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    table = torch.from_numpy(random.normal(size=(samples, blocks)))
    classes, failed = random.integers(-1, 2, samples), set(random.choice(samples, samples // 4).tolist())
    whole = gather(room, table, classes, np.arange(samples), failed)
    batch = Leading(room)
    good = [i for i in range(samples) if i not in failed]
    if good:
        batch.add(good, table[good], classes[good].tolist())
    pieces = [gather(room, table, classes, p, failed) for p in np.array_split(random.permutation(samples), parts)]
    merged = Leading(room)
    for piece in pieces:
        merged.absorb(piece)
    assert whole.nodes.keys() == merged.nodes.keys()
    assert len(whole.nodes) == samples.bit_count()
    for label in (-1, 0, 1, 7):
        assert same(whole.total(label), merged.total(label))
        assert same(whole.total(label), batch.total(label))
    assert whole.classes == sorted({int(classes[i]) for i in good})


@given(SMALL, st.integers(1, 9), st.integers(1, 30), SMALL, st.integers(0, 2**16), st.booleans())
def test_intervals_hold_the_truth(room: int, blocks: int, samples: int, k: int, seed: int, positive: bool) -> None:
    random = np.random.default_rng(seed)
    table = random.integers(0 if positive else -6, 7, (samples, blocks)).astype(float)  # exact sums, many ties
    classes = random.integers(0, 2, samples)
    found = gather(room, torch.from_numpy(table), classes, np.arange(samples), set())
    for label in set(classes.tolist()):
        sums, true = found.total(label), table[classes == label].sum(0)
        assert sums is not None
        assert sums.counts.tolist() == [(classes == label).sum()]
        assert len(sums.key) <= room
        total, under, over = sums.values
        assert (total - under <= true[sums.blocks]).all()
        assert (true[sums.blocks] <= total + over).all()
        others = np.delete(true, sums.blocks)
        assert (-sums.rest[0] <= others).all()
        assert (others <= sums.rest[1]).all()
        assert not positive or (under == 0).all()
        mean = true / sums.counts[0]
        best, limit = leaders(sums, blocks, k)
        unlisted = np.delete(mean, [leader.block for leader in best])
        assert (unlisted <= limit).all()
        assert all(leader.low <= mean[leader.block] <= leader.high for leader in best)
        if room >= blocks:
            assert all(leader.low == leader.high for leader in best)
            assert [mean[leader.block] for leader in best] == sorted(mean[sums.blocks], reverse=True)[:k]
            assert limit == max(unlisted, default=-math.inf)


def run_job(data: Any = None, **changes: Any) -> Any:
    options: dict[str, Any] = {"k": 4, "batch_size": 4, "shard_size": 8, "threads": 1, "progress": False} | changes
    return nrm.relmax(network(), Squares(42) if data is None else data, A.channels, PAIRS, target="label", **options)


def test_a_job_bounds_what_it_prunes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "CELLS", 45)  # too few for 20 pairs in each of three classes
    data = Squares(42, broken=(5, 17))
    found = run_job(data, max_errors=2)
    assert (found.facts["per_class"], found.facts["leading"]) == ([True, False], [0, 16])
    assert found.classes(*PAIRS) == [0, 1, 2]
    kinds = set()
    for label in range(3):
        mine = [i for i in range(42) if i % 3 == label and i not in (5, 17)]
        assert found.samples_of(label) == mine
        true = nrm.measure(network(), data.x[mine], target=label)(*PAIRS).double().mean(0)
        for k in (1, 2, 5, 16):
            best = found.best(*PAIRS, k=k, target=label)
            kinds.add(best.complete)
            assert len(best) == k
            assert best[0] == (best.indices[0], best.means[0])
            for (index, mean), (low, high) in zip(best, best.bounds, strict=True):
                assert low - 1e-6 <= true[index] <= high + 1e-6
                assert low <= mean <= high
            others = true.clone()
            others[tuple(zip(*best.indices, strict=True))] = -torch.inf
            assert others.max() <= best.limit + 1e-6
            if best.complete:
                assert min(float(true[index]) for index in best.indices) >= float(others.max()) - 1e-6
            assert "torch.utils.data.Subset(dataset, found.samples_of(" in str(best)
        assert found.best(*PAIRS, k=1, target=label)[0][0] == tuple(divmod(int(true.argmax()), 5))
        exact = nrm.relmax(network(), torch.utils.data.Subset(data, mine), PAIRS, target=label, progress=False)
        best = exact.best(*PAIRS, k=3)
        assert best.complete
        assert [b[0] for b in best] == [divmod(int(i), 5) for i in true.flatten().topk(3).indices]
    assert kinds == {True, False}
    whole = found.best(*PAIRS, k=3)
    assert whole.complete
    assert whole.note == ""
    with pytest.raises(nrm.QuestionError, match=r"(?s)not kept for this question.*\.best\("):
        found.statistics(*PAIRS, target=1)
    with pytest.raises(nrm.QuestionError, match="no samples"):
        found.best(*PAIRS, target=9)
    assert run_job(per_class=7).facts["leading"] == [0, 7]
    assert run_job(per_class=7, k=3).best(*PAIRS, target=2).limit >= found.best(*PAIRS, target=2).limit
    assert run_job(per_class=20).best(*PAIRS, target=2).complete  # room for all
    with pytest.raises(nrm.QuestionError, match="not a number of blocks"):
        run_job(per_class=0)
    assert run_job(per_class=True).statistics(*PAIRS, target=1)["count"] == 14
    with pytest.raises(nrm.QuestionError, match="not kept for this question"):
        run_job(per_class=False).best(*PAIRS, target=1)


def test_shards_stores_and_iterables_make_no_difference(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="the extra `store` is not installed")
    run = partial(run_job, per_class=16)
    expected = run(shard_size=1000)
    memory = tally_content(expected.tally)
    lists = [expected.best(*PAIRS, k=8, target=label) for label in range(3)]
    for changes in ({"shard_size": 4}, {"shard_size": 12}, {"data": Flowing(Squares(42))}):
        found = run(**changes)
        assert [found.best(*PAIRS, k=8, target=label) for label in range(3)] == lists
    for size in (8, 20):
        found = run(store=tmp_path / str(size), shard_size=size)
        assert [found.best(*PAIRS, k=8, target=label) for label in range(3)] == lists
        assert found.classes(*PAIRS) == [0, 1, 2]
        assert found.samples_of(1) == expected.samples_of(1)
        for key, value in content(tmp_path / str(size)).items():
            assert value == memory[key] or "mean" in key or "squares" in key or "absolute" in key  # but for last bits
        assert found.sql("select count(distinct class) from leaders where question = 1").fetchone() == (3,)


def test_half_a_store_is_bounded_too(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="the extra `store` is not installed")
    run = partial(run_job, per_class=16)
    run(store=tmp_path / "s", shards=[0, 3])
    store, data = nrm.open_store(tmp_path / "s"), Squares(42)
    mine = [i for i in (*range(8), *range(24, 32)) if i % 3 == 1]
    assert store.samples_of(1) == mine
    true = nrm.measure(network(), data.x[mine], target=1)(*PAIRS).double().mean(0)
    best = store.best(*PAIRS, k=6, target=1)
    assert all(low - 1e-6 <= true[i] <= high + 1e-6 for (i, _), (low, high) in zip(best, best.bounds, strict=True))
    run(store=tmp_path / "s")
    assert nrm.open_store(tmp_path / "s").best(*PAIRS, target=1) == run().best(*PAIRS, target=1)


def test_a_store_of_the_first_schema_is_read(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="the extra `store` is not installed")
    store = run_job(store=tmp_path / "s", per_class=False)
    hits, best = store.top(A.channel(1)), store.best(*PAIRS, k=3)
    for file in (tmp_path / "s").rglob("*.json"):
        known = json.loads(file.read_text())
        known["schema"] = 1
        if "facts" in known:
            known["facts"] = {key: value for key, value in known["facts"].items() if key != "leading"} | {"schema": 1}
        known.get("files", {}).pop("leaders.parquet", None)
        file.write_text(json.dumps(known))
    for file in (tmp_path / "s").rglob("leaders.parquet"):
        file.unlink()
    old = nrm.open_store(tmp_path / "s")
    old.verify()
    assert old.top(A.channel(1)) == hits
    assert old.best(*PAIRS, k=3) == best
    assert old.samples_of(2) == list(range(2, 42, 3))
    with pytest.raises(nrm.QuestionError, match="not kept for this question"):
        old.best(*PAIRS, target=1)
    with pytest.raises(nrm.NrmError, match=r"(?s)an earlier version of nrm.*another path"):
        run_job(store=tmp_path / "s")
