"""What a person asks of a view: several nodes, regions, formulas; and scripts that ask it again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import nrm
from nrm.report import View
from nrm.report.regions import read_region
from report import subjects

pytest.importorskip("starlette")

from nrm.explorer.reading import read_set

LAYERS = [("conv2", "channels"), ("pool#0", "channels"), ("pool#1", "channels"), ("output", "channels")]


@pytest.fixture(scope="module")
def view() -> View:
    made = View(subjects.measured(target=1), layers=LAYERS, nodes=3)
    made.network()
    return made


def place(view: View, column: int, kind: str) -> int:
    return next(i for i, n in enumerate(view.columns[column].column.nodes) if n.kind == kind)


def run(script: str) -> dict[str, Any]:
    space: dict[str, Any] = {"model": subjects.small(), "inputs": subjects.image()}
    exec(script.replace("print(R.check())", ""), space)
    return space


def test_several_nodes_of_a_column_are_any_of_them(view: View) -> None:
    both = view.selection([(1, 0), (1, 1)])
    assert both["share"] == pytest.approx(sum(view.selection([(1, n)])["share"] for n in (0, 1)), abs=1e-6)
    chain = view.selection([(1, 0), (1, 1), (2, 0)])
    R, (low, high) = view.R, view.columns[1:3]
    assert chain["share"] == pytest.approx(float(R(low.event(0) | low.event(1), high.event(0))), abs=1e-6)
    assert [len(given["nodes"]) for given in chain["given"]] == [2, 1]
    assert chain["map"]["total"] == pytest.approx(
        float(R(R.input.all, low.event(0) | low.event(1), high.event(0))), abs=1e-6
    )
    with pytest.raises(nrm.QuestionError, match="bypass"):
        view.selection([(0, 0), (0, place(view, 0, "elsewhere"))])


@pytest.mark.parametrize("kinds", [("block",), ("rest",), ("elsewhere", "block"), ("rest", "block", "block")])
def test_the_script_of_a_selection_gives_its_numbers(view: View, kinds: tuple[str, ...]) -> None:
    chosen = [(c, place(view, c, kind)) for c, kind in enumerate(kinds)]
    found = view.selection(chosen)
    again = run(found["script"])
    assert float(again["share"]) == pytest.approx(found["share"], abs=1e-5)
    assert float(again["heat_of_selection"].sum()) == pytest.approx(found["map"]["total"], abs=1e-5)


def test_the_script_of_a_contrast_names_its_reference() -> None:
    other = subjects.image(1)
    R = nrm.measure(subjects.small(), subjects.image(), target=1, against=other)
    made = View(R, layers=LAYERS, nodes=3).whole()
    assert "reference: what it is compared with" in made["script"]
    space: dict[str, Any] = {"model": subjects.small(), "inputs": subjects.image(), "reference": other}
    exec(made["script"].replace("R.report(", "0 and R.report("), space)
    assert torch.allclose(space["heat"], R(R.input.positions), atol=1e-6)


def test_an_outline_is_filled(view: View) -> None:
    square = [[250, 250], [750, 250], [750, 750], [250, 750]]
    mask = np.zeros((12, 12), bool)
    mask[3:9, 3:9] = True
    assert (read_region(view.canvas, {"lasso": square}).mask == mask).all()
    triangle = read_region(view.canvas, {"lasso": [[0, 0], [1000, 0], [0, 1000]]}).mask
    rows, columns = np.nonzero(triangle)
    assert (rows + columns < 12).all()
    assert triangle.sum() in range(66, 79)
    for wrong in ({"lasso": [[0, 0], [1, 1]]}, {"lasso": "all"}, {"lasso": [[0, 0], [2000, 0], [0, 1]]}, {},
                  {"lasso": [[1, 1], [2, 1], [2, 2]]}, {"positions": [1]}, {"region": [0] * 4}):  # fmt: skip
        with pytest.raises(nrm.QuestionError):
            read_region(view.canvas, wrong)


def test_the_script_of_a_formula_gives_its_numbers(view: View) -> None:
    pytest.importorskip("lark")
    sets = {
        "part": {"nodes": [[1, 0], [1, place(view, 1, "rest")]]},
        "some": {"layer": "pool#1", "channels": [1, 4, 5]},
        "bow": {"lasso": [[0, 0], [900, 100], [400, 1000]]},
        "corner": {"region": [0, 0, 5, 4]},
    }
    named = {name: read_set(view, made) for name, made in sets.items()}
    text = "(part XOR some) AND NOT (bow OR corner)"
    found = view.event(nrm.query(text, {name: one.sets for name, one in named.items()}))
    again = run(view.script.formula(text, {name: one.lines for name, one in named.items()}))
    assert found["share"] == pytest.approx(float(again["share"]), abs=1e-5)
    assert found["map"]["total"] == pytest.approx(float(again["heat_of_formula"].sum()), abs=1e-5)
    assert found["share"] != pytest.approx(0, abs=1e-4)


def test_positions_of_texts_and_graphs_are_regions() -> None:
    for R in (subjects.read_tokens(), subjects.read_molecule()):
        view = View(R)
        named = read_set(view, {"positions": [1, 3]})
        assert float(R(named.sets[0])) == pytest.approx(float(R(R.input.position([1, 3]))), abs=1e-6)
        space = {"R": R, "torch": torch}
        assert float(R(eval(named.lines[0], space))) == pytest.approx(float(R(named.sets[0])), abs=1e-6)


def test_examples_are_the_best_samples_of_a_node_and_of_a_pair() -> None:
    data = torch.cat([subjects.image(seed) for seed in range(6)])
    a, b = nrm.layer("pool#0"), nrm.layer("pool#1")
    found = nrm.relmax(
        subjects.small(), data, a.channels, (a.channels, b.channels), k=4, progress=False, bias="input",
        rules="epsilon-plus",
    )  # fmt: skip
    R = subjects.measured(target=1)
    view = View(R, layers=LAYERS[1:], nodes=3, store=found, dataset=data)
    view.network()
    node = view.columns[0].column.nodes[0]
    shown = view.examples([(0, 0)])
    assert shown is not None
    hits = found.top(a.channel(node.block))
    assert [hit["sample"] for hit in shown["hits"]] == hits.samples
    assert all(hit["picture"]["shape"][0] <= 12 for hit in shown["hits"])
    assert {hit["label"] for hit in shown["hits"]} <= set(subjects.CLASSES)
    pair = view.examples([(0, 0), (1, 0)])
    assert pair is not None
    assert pair["hits"][0]["picture"]["shape"] == [12, 12, 3]
    assert view.examples([(1, 0)]) is None  # which the job did not ask for
    assert view.examples([(0, place(view, 0, "rest"))]) is None
    assert view.examples([(0, 0), (0, 1)]) is None
    report = R.report(layers=LAYERS[1:3], nodes=2, flows=1, store=found, dataset=data)
    assert any("examples" in part for part in report.view["maps"])
    with pytest.raises(nrm.QuestionError, match="another model"):
        subjects.read_molecule().report(store=found)
    with pytest.raises(nrm.QuestionError, match="another data set"):
        View(R, store=found, dataset=data[:5])
    without = View(R, layers=LAYERS[1:], nodes=3, store=found)
    assert without.examples([(0, 0)])["hits"][0]["picture"] is None  # type: ignore[index]
