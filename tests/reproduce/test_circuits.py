"""Who finds circuits: the experiment in small, on a transformer that knows induction."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from nrm.errors import NrmError, QuestionError
from nrm.evaluate import EDGE_METHODS
from nrm.reproduce import reproduce
from nrm.reproduce.circuit_rows import MASS, PEERS, PREDICTED, SIGNED
from nrm.reproduce.circuit_tasks import _of_one_shape
from nrm.tasks import Pairs, TaskPair

pytest.importorskip("matplotlib.pyplot")


@pytest.mark.slow
def test_methods_of_circuits(tmp_path: Path) -> None:
    folder = reproduce("circuits", out=tmp_path, samples=2, embedded=True)
    found = json.loads((folder / "results.json").read_text())
    rows = {row["method"]: row for row in found["rows"]}
    assert list(rows) == [*EDGE_METHODS, MASS]
    for method, row in rows.items():
        assert len(row["curves"]["f"]) == (2 if method in (*PEERS, MASS) else 1)
        assert all(curve[-1] == 1 for curve in row["curves"]["f"])
        assert ("mass" in row["curves"]) == (method in PREDICTED)
        assert ("CPR" in row) == (method in SIGNED)
        assert ("stability" in row) == (method != MASS)
    cmd = {method: float(row["CMD"].split()[0]) for method, row in rows.items()}
    assert cmd["contrast"] < 0.2 < cmd["random"]
    assert float(rows["contrast"]["nodes, noise"].partition(",")[0]) > 0.9
    assert found["induction"].startswith("accuracy 1.00 on 96 pairs")
    assert "r 0.9" in found["induction, predictions"] or "r 1.0" in found["induction, predictions"]
    parts = {p: p.stat().st_mtime_ns for p in (folder / "parts").iterdir()}
    reproduce("circuits", out=tmp_path, samples=2, embedded=True)
    assert {p: p.stat().st_mtime_ns for p in (folder / "parts").iterdir()} == parts  # nothing is done twice


def test_pairs_of_the_commonest_shape_are_measured() -> None:
    pairs = [TaskPair(torch.arange(n), torch.zeros(n, dtype=torch.long), (1,)) for n in (4, 3, 4, 3, 5, 3)]
    assert [len(p.clean) for p in _of_one_shape(Pairs(tuple(pairs)))] == [3, 3, 3]
    pairs = [TaskPair(torch.arange(n), torch.zeros(n, dtype=torch.long), (1,) * n) for n in (4, 4, 3)]
    more = [TaskPair(torch.arange(3), torch.zeros(3, dtype=torch.long), (1, 2))] * 3
    assert [len(p.answers) for p in _of_one_shape(Pairs((*pairs, *more)))] == [2, 2, 2]


def test_what_circuits_need_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NRM_DATA", str(tmp_path))
    with pytest.raises(NrmError, match="no weights of SmolLM2-135M"):
        reproduce("circuits", out=tmp_path, data=tmp_path)
    with pytest.raises(QuestionError, match="unknown task 'io'"):
        reproduce("circuits", out=tmp_path, data=tmp_path, tasks=["io"])
    (tmp_path / "smollm2-135m").mkdir()
    (tmp_path / "smollm2-135m" / "config.json").write_text("{}")
    monkeypatch.setattr("nrm.reproduce.circuit_tasks._smollm2", lambda home: (nn.Identity(), None))
    with pytest.raises(NrmError, match="no prompts"):
        reproduce("circuits", out=tmp_path, data=tmp_path)
