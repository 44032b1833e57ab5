"""The first sentence of a view, and what a person is told about its numbers: shares of the measure, never more."""

from __future__ import annotations

import base64

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import nrm
from nrm.report import View, health
from nrm.report.story import place, story_text
from report import subjects


def spotted(weight: Tensor, bias: float = 0.0, **options: object) -> View:
    """A linear network on a picture of ones: the relevance of a pixel is its weight."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(weight.numel(), 1))
    model.load_state_dict({"1.weight": weight.reshape(1, -1), "1.bias": torch.tensor([bias])})
    R = nrm.measure(model, torch.ones(1, 1, *weight.shape), rules="lrp-0", bias="input", **options)
    return View(R, layers=[("input", "channels"), "output"])


def told(view: View) -> str:
    return story_text({**view.facts(), **view.layout()}["story"])


def test_a_part_is_called_after_the_place_of_its_relevance() -> None:
    weight = torch.zeros(9, 9)
    weight[0:3, 0:3], weight[6:, 3:6] = 7 / 9, 3 / 9
    assert told(spotted(weight)) == "Mostly the upper left (70 %) and the lower part (30 %)."
    weight[3:6, 6:] = -1 / 9
    assert told(spotted(weight)).endswith("; the right side (−11 %) speaks against it.")


def test_what_is_more_than_everything_is_told_as_shares_of_itself_and_biases_are_named() -> None:
    weight = torch.zeros(9, 9)
    weight[:3, :3], weight[:3, 6:] = 3 / 9, 2 / 9
    expected = (
        "Of what speaks for it, mostly the upper left (60 %) and the upper right (40 %). "
        "The network's own biases speak against it (−400 %)."
    )
    assert told(spotted(weight, bias=-4.0)) == expected


def test_relevance_that_is_everywhere_has_no_parts() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(40, 1, bias=False))
    nn.init.ones_(model[1].weight)
    view = View(nrm.measure(model, torch.ones(1, 40)))
    assert told(view) == "Spread widely: no part of these values has 5 % of it."


def test_parts_of_a_picture_are_nodes_and_have_their_shares() -> None:
    pytest.importorskip("sklearn")
    R = subjects.measured()
    view = View(R, layers=[("pool#0", "clusters"), ("pool#1", "channels"), "output"], nodes=5)
    story = view.layout()["story"]
    assert story["parts"]
    for part in story["parts"]:
        share = sum(float(R(view.columns[c].event(n))) for c, n in part["nodes"])
        assert part["share"] * story["whole"] == pytest.approx(share, abs=1e-6)


def test_cells_are_the_positions_of_the_nodes() -> None:
    pytest.importorskip("sklearn")
    R = subjects.measured()
    view = View(R, layers=[("pool#0", "clusters"), ("pool#1", "positions"), ("fc", "channels")], nodes=4)
    columns = view.layout()["columns"]
    assert columns[2]["cells"] is None
    for column, shown in zip(columns[:2], view.columns, strict=False):
        cells = np.frombuffer(base64.b64decode(column["cells"]["data"]), np.uint8).reshape(column["cells"]["shape"])
        shares = R(shown.partition.layer.positions)[0].numpy()
        for n, node in enumerate(column["nodes"]):
            if node["kind"] != "elsewhere":
                assert shares[cells == n].sum() == pytest.approx(node["share"], abs=1e-5)


def test_texts_and_molecules_are_told_in_their_own_words() -> None:
    view = View(subjects.read_tokens())
    assert view.facts()["noun"] == "this text"
    assert "“" in told(view)
    graph = View(subjects.read_molecule())
    assert graph.facts()["noun"] == "this molecule"
    heat = graph.R(graph.R[graph.canvas.layer.name].positions)[0]
    best = int(heat.argmax())
    assert f"{subjects.ATOMS[best]}{best}" in told(graph) or f"{subjects.ATOMS[best]} (" in told(graph)


def test_sides_add_up_to_the_decision() -> None:
    weight = torch.zeros(6, 6)
    weight[0, 0], weight[5, 5] = 3.0, -1.0
    sides = spotted(weight, bias=-1.0).facts()["sides"]
    assert sides == pytest.approx({"for": 3.0, "against": -1.0, "biases": -1.0, "elsewhere": 0.0}, abs=1e-6)


def test_an_edge_is_no_middle() -> None:
    frame = np.ones((9, 9))
    frame[1:8, 1:8] = 0
    assert place(frame) == "the edges"
    assert place(np.zeros((4, 4))) == "the middle"


def test_a_person_is_answered_first() -> None:
    weight = torch.zeros(4, 4)
    weight[0, 0] = 1.0
    assert health(spotted(weight).R.check())["said"].startswith("Yes. ")
    weight[3, 3] = -0.95
    careful = health(spotted(weight).R.check())
    assert careful["level"] == "care"
    assert careful["said"].startswith("With care: what speaks for the decision")
    report = spotted(torch.eye(3)).R.report()
    assert "Mostly" in repr(report)
