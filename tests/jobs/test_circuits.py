"""Circuits of a task: one for many pairs, with intervals, kept in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nrm
from laws.test_direct import DIM, TOKENS, Before, Network
from nrm.errors import JobError, QuestionError, ResultFileError
from nrm.tasks import Pairs

quiet = pytest.mark.filterwarnings(
    "ignore:the predicted mass of this circuit", "ignore:no circuit of mass", "ignore:the model fails this task"
)


class Counted(nn.Module):
    """A network of the laws with two logits, which counts how many inputs were put into it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.network = Network(Before(), Before())
        self.seen = 0

    def forward(self, x: Tensor) -> Tensor:
        self.seen += len(x)
        return self.network(x)


def task() -> tuple[Counted, Pairs]:
    """Pairs of two lengths; right is what the corruption hinders."""
    model, items = Counted().double(), list[Pairs]()
    torch.manual_seed(4)
    for count, tokens in ((4, TOKENS), (3, TOKENS + 1)):
        clean, corrupted = torch.rand(2, count, tokens, DIM).double()
        with torch.no_grad():
            gap = (model(clean) - model(corrupted)).diff().flatten()
        right = (gap > 0).long()
        items.append(Pairs.of(clean, corrupted, right.tolist(), (1 - right).tolist()))
    return model, Pairs((*items[0].items, *items[1].items), "drawn")


@quiet
def test_shares_are_those_of_the_mean_difference() -> None:
    model, pairs = task()
    found = nrm.circuit(model, pairs, top=12, draws=0).circuit
    total, units = 0.0, torch.zeros(())
    masses = list[Tensor]()
    for batch in pairs.by_length():
        R = nrm.measure(model, batch.clean, against=batch.corrupted, output=batch.odds)
        units = units + R.direct().in_units().sum(0)
        total += float(R.value.sum())
        masses.append(R.circuit(edges=found).masses * R.value)  # type: ignore[operator]
    torch.testing.assert_close(found.relevance, units / total * found.inside)
    assert found.mass == pytest.approx(float(torch.cat(masses).sum()) / total)


@quiet
@pytest.mark.parametrize("options", [{"mass": 0.9}, {"top": 6, "by": "flow"}, {"edges": [("*", "output")]}], ids=str)
def test_circuits_are_chosen_as_of_one_measure(options: dict[str, float]) -> None:
    model, pairs = task()
    batch = pairs[:4].by_length()[0]
    R = nrm.measure(model, batch.clean, against=batch.corrupted, output=batch.odds)
    several = nrm.circuit(model, pairs[:4], batch_size=2, draws=0, **options).circuit  # type: ignore[arg-type]
    assert several == R.circuit(**options)  # type: ignore[arg-type]


@quiet
def test_intervals_hold_what_was_found() -> None:
    model, pairs = task()
    found = nrm.circuit(model, pairs, top=12, draws=100, seed=1)
    assert found.low is not None
    assert found.high is not None
    assert found.mass_interval is not None
    assert found.stability is not None
    assert bool((found.low <= found.high).all())
    inside = (found.low <= found.circuit.relevance) & (found.circuit.relevance <= found.high)
    assert float(inside[found.circuit.inside].double().mean()) > 0.9
    assert 0 < found.stability <= 1
    assert found.mass_interval[0] <= (found.circuit.mass or 0) <= found.mass_interval[1]
    again = nrm.circuit(model, pairs, top=12, draws=100, seed=1)
    assert again.stability == found.stability
    assert "stability" in repr(found)


@quiet
def test_one_pair_drawn_again_is_itself() -> None:
    model, pairs = task()
    found = nrm.circuit(model, pairs[:1], top=9, draws=5)
    assert found.stability == 1.0
    assert found.low is not None
    torch.testing.assert_close(found.low * found.circuit.inside, found.circuit.relevance)


@quiet
def test_a_job_goes_on(tmp_path: Path) -> None:
    model, pairs = task()
    first = nrm.circuit(model, pairs, top=12, store=tmp_path / "job", batch_size=2, draws=10)
    files = sorted(file.name for file in (tmp_path / "job").glob("batch-*"))
    assert len(files) == 4
    (tmp_path / "job" / files[1]).unlink()
    again = nrm.circuit(model, pairs, top=12, store=tmp_path / "job", batch_size=2, draws=10)
    assert again.circuit == first.circuit
    torch.testing.assert_close(again.circuit.relevance, first.circuit.relevance)
    smaller = nrm.circuit(model, pairs, top=3, store=tmp_path / "job", batch_size=2, draws=0)
    assert len(smaller.circuit) <= 3
    with pytest.raises(JobError, match="another pairs"):
        nrm.circuit(model, pairs[:5], top=12, store=tmp_path / "job", batch_size=2)
    with pytest.raises(JobError, match="another options"):
        nrm.circuit(model, pairs, top=12, store=tmp_path / "job", batch_size=2, rules=nrm.Gamma(0.1))
    (tmp_path / "job" / files[0]).write_bytes(b"no tensors")
    with pytest.raises(ResultFileError, match="damaged"):
        nrm.circuit(model, pairs, top=12, store=tmp_path / "job", batch_size=2)


@quiet
def test_little_memory_makes_measures_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model, pairs = task()
    made = list[nrm.Measure]()

    def counted(*inputs: Any, **options: Any) -> nrm.Measure:
        made.append(nrm.measure(*inputs, **options))
        return made[-1]

    monkeypatch.setattr("nrm.jobs.circuits.measure", counted)
    plenty = nrm.circuit(model, pairs, top=12, batch_size=2, draws=0)
    assert len(made) == 4
    little = nrm.circuit(model, pairs, top=12, batch_size=2, draws=0, memory=1)
    assert len(made) > 8
    assert little.circuit == plenty.circuit
    assert little.circuit.mass == pytest.approx(plenty.circuit.mass)


@quiet
def test_a_circuit_of_a_task_is_written_and_read(tmp_path: Path) -> None:
    model, pairs = task()
    found = nrm.circuit(model, pairs, top=9, draws=10, chains=1)
    found.save(tmp_path / "task.json")
    again = nrm.jobs.TaskCircuit.load(tmp_path / "task.json")
    assert repr(again) == repr(found)
    assert again.circuit == found.circuit
    assert set(found.table()) == {"relevance", "inside", "flow", "low", "high"}
    found.circuit.save(tmp_path / "plain.json")
    with pytest.raises(ResultFileError, match="no circuit of a task"):
        nrm.jobs.TaskCircuit.load(tmp_path / "plain.json")
    with pytest.raises(ResultFileError, match=r"missing\.json"):
        nrm.jobs.TaskCircuit.load(tmp_path / "missing.json")


def test_bad_tasks_are_refused() -> None:
    model, pairs = task()
    with pytest.raises(QuestionError, match="a task has pairs"):
        nrm.circuit(model, pairs[:0], top=3)
    with pytest.raises(QuestionError, match="a task has pairs"):
        nrm.circuit(model, torch.rand(3), top=3)  # type: ignore[arg-type]
    with pytest.raises(QuestionError, match="how large"):
        nrm.circuit(model, pairs)
    with pytest.raises(QuestionError, match="draws"):
        nrm.circuit(model, pairs, top=3, draws=-1)
    assert model.seen == 2 * len(pairs)  # only while the task was made


@pytest.mark.filterwarnings("ignore:the predicted mass of this circuit")
def test_a_task_that_fails_is_said() -> None:
    model, pairs = task()
    with torch.no_grad():
        wrong = [int(model(p.clean[None]).argmin()) for p in pairs]
    failed = Pairs(
        tuple(nrm.tasks.TaskPair(p.clean, p.corrupted, (w,), (1 - w,)) for p, w in zip(pairs, wrong, strict=True))
    )
    with pytest.warns(nrm.NrmWarning, match="fails this task"):
        nrm.circuit(model, failed, top=3, draws=0)
