"""The page of a circuit: nested sizes with the numbers of the measure, in one file that asks nobody."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import nrm
from jobs.test_circuits import task
from laws.test_direct import TOKENS, measured
from measure.test_circuit import Block
from nrm.errors import QuestionError
from nrm.report import CircuitReport, CircuitView
from nrm.report.page import CIRCUIT, bundle
from report.subjects import HOSTILE

quiet = pytest.mark.filterwarnings(
    "ignore:the predicted mass of this circuit", "ignore:no circuit of mass", "ignore:the model fails this task"
)


def marked(view: dict[str, Any], step: dict[str, Any]) -> set[tuple[str, str, str]]:
    """The edges of a size, by the names of their ends."""
    names = [node["name"] for node in view["nodes"]]
    rows = [view["ribbons"][e] for e in step["edges"]]
    return {(names[low], names[high], read) for low, high, read, _ in rows}


@quiet
@pytest.mark.parametrize("positions", [False, True])
def test_sizes_are_nested_and_have_the_masses_of_the_measure(positions: bool) -> None:
    R = measured("before", "contrast", seed=0).sample(0)
    circuit = R.circuit(top=25, positions=positions)
    made = CircuitView(circuit, R, patch=True, sizes=6)
    view = made.whole()
    circuits = made.nested
    assert len(view["steps"]) == len(circuits) >= 4
    for small, large in itertools.pairwise(circuits):
        assert small <= large
        assert len(small) < len(large)
    assert circuits[-1] == circuit
    for step, one in zip(view["steps"], circuits, strict=True):
        again = R.circuit(edges=one, positions=positions)
        assert step["mass"] == pytest.approx(again.mass)
        ends = [view["nodes"][view["ribbons"][e][1]]["kind"] for e in step["edges"]]
        into = [f for kind, f in zip(ends, step["flows"], strict=True) if kind == "logits"]
        assert sum(into) == pytest.approx(step["mass"])
        assert step["f"] == pytest.approx(nrm.evaluate.patch(R, one).f, abs=1e-6)
        assert len(step["edges"]) == len(one)
    effects = nrm.evaluate.patch_nodes(R)
    for name, found in view["patched"].items():
        assert found["effect"] == pytest.approx(effects[name], abs=1e-6)
    assert {node["name"] for node in view["nodes"] if node["kind"] in ("head", "branch")} <= set(view["patched"])
    assert view["what"] == "difference"


@quiet
def test_a_task_has_its_facts_and_one_network_for_all_sizes() -> None:
    model, pairs = task()
    found = nrm.circuit(model, pairs, top=12, draws=10)
    report = found.report(None, model, pairs, sizes=4, patch=True, batch_size=4)
    steps = report.view["steps"]
    assert len(steps) > 1
    assert steps[-1]["mass"] == pytest.approx(found.circuit.mass)
    assert steps[-1]["f"] == pytest.approx(nrm.evaluate.patch(model, found, pairs).f, abs=1e-5)
    facts = " ".join(report.view["facts"])
    assert "accuracy" in facts
    assert f"{found.stability:.2f}" in facts
    assert report.view["model"] == found.circuit.model


@quiet
def test_a_page_is_one_file(tmp_path: Path) -> None:
    R = measured("before", "contrast", seed=0)
    circuit = R.circuit(top=15, positions=True, chains=2)
    tokens = [HOSTILE, "two", "three"][:TOKENS]
    report = circuit.report(tmp_path / "circuit.html", title=HOSTILE, labels=tokens)
    assert isinstance(report, CircuitReport)
    assert f"{len(circuit)} edges, 1 sizes" in repr(report)
    page = (tmp_path / "circuit.html").read_text(encoding="utf-8")
    assert page == report.html
    assert HOSTILE not in page
    assert not re.search(r"(?:src|href)=[\"']?https?:", page)
    assert "default-src &#x27;none&#x27;" in page
    found = re.search(r'<script type="application/json" id="view">(.*?)</script>', page, re.S)
    assert found is not None
    view = json.loads(found[1])
    assert view["title"] == HOSTILE
    assert len(view["chains"]) == 2
    assert view["chains"][0]["share"] == pytest.approx(circuit.chains[0].relevance)
    assert view["chains"][0]["nodes"][-1] == "output"
    shown = report._repr_html_()
    assert shown.startswith("<iframe sandbox=")
    assert "<script" not in shown
    assert not re.search(r"^(?:import|export) ", bundle(CIRCUIT, ()), re.M)


@quiet
def test_what_cannot_be_a_page_is_said() -> None:
    R = measured("before", "contrast", seed=0)
    circuit = R.circuit(top=9)
    for given, options, complaint in [
        (circuit - circuit, {}, "empty"),
        (circuit, {"patch": True}, "patched in its network"),
        (circuit, {"model": task()[0]}, "measured on pairs"),
        (circuit, {"model": "R"}, "not a measure"),
        (circuit, {"model": R, "sizes": 0}, "number of sizes"),
        (circuit, {"labels": ["a"]}, "no positions"),
        (circuit | R.circuit(top=12), {}, "mass of this circuit is not known"),
    ]:
        with pytest.raises(QuestionError, match=complaint):
            given.report(None, **options)  # type: ignore[arg-type]
    assert (circuit | R.circuit(top=12)).report(None, R, sizes=1).view["steps"]


@quiet
def test_several_references_have_pages_without_patching() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(Block(), Block(), torch.nn.Linear(4, 1))
    R = nrm.measure(model, torch.rand(1, 4), against=[torch.zeros(1, 4), torch.rand(1, 4)])
    circuit = R.circuit(top=5)
    steps = circuit.report(None, R, sizes=3).view["steps"]
    assert steps[-1]["mass"] == pytest.approx(circuit.mass)
    with pytest.raises(QuestionError, match="several references"):
        circuit.report(None, R, patch=True)
