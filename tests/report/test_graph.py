"""A view of a graph: nodes and edges with their relevance, layers by nodes and by edges."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import nrm
from nrm.report import View
from nrm.report.columns import default_picks
from nrm.report.pictures import unpack_map
from report import subjects


def test_a_graph_is_drawn_with_the_relevance_of_nodes_and_edges() -> None:
    R = subjects.read_molecule()
    facts = View(R).facts()
    picture, heat = facts["picture"], facts["heat"]
    assert picture["kind"] == "graph"
    assert picture["texts"] == list(subjects.ATOMS)
    assert sorted(map(tuple, picture["lines"])) == sorted(tuple(sorted(b)) for b in subjects.BONDS)
    assert not picture["directed"]
    lengths = [np.linalg.norm(np.subtract(*(picture["places"][i] for i in line))) for line in picture["lines"]]
    assert max(lengths) < 2 * min(lengths)
    torch.testing.assert_close(unpack_map(heat), R(R.input.positions)[0], atol=heat["limit"] / 200, rtol=0)
    edges = R(R["second"].edges)[0]
    both = [float(edges[i] + edges[i + len(subjects.BONDS)]) for i in range(len(subjects.BONDS))]
    drawn = dict(zip(map(tuple, picture["lines"]), unpack_map(heat["edges"]).tolist(), strict=True))
    for bond, share in zip(subjects.BONDS, both, strict=True):
        assert drawn[tuple(sorted(bond))] == pytest.approx(share, abs=heat["edges"]["limit"] / 200)


def test_its_layers_are_those_of_the_graph_by_nodes() -> None:
    R = subjects.read_molecule()
    assert [tuple(pick) for pick in default_picks(R)] == [
        ("input", "positions"), ("first", "positions"), ("second", "positions"), ("output", "channels")
    ]  # fmt: skip
    part = View(R).network()
    names = {node["text"] for node in part["columns"][1]["nodes"] if node["kind"] == "block"}
    assert names <= {"C0", "C1", "C2", "C3", "C4", "C5", "N", "O7", "O8"}
    assert "edges" in part["columns"][1]["ways"]


def test_layers_by_edges_have_the_names_of_their_ends() -> None:
    R = subjects.read_molecule()
    view = View(R, layers=[("input", "positions"), ("second", "edges"), "output"], nodes=4)
    part = view.network()
    shares = R(R["second"].edges)[0]
    ends = subjects.molecule()[1].T.tolist()
    for n, node in enumerate(part["columns"][1]["nodes"]):
        if node["kind"] == "block":
            a, b = ends[node["block"]]
            assert node["text"].startswith(subjects.ATOMS[a])
            assert subjects.ATOMS[b] in node["text"].partition("→")[2]
            assert node["share"] == pytest.approx(float(shares[node["block"]]), abs=1e-6)
            found = view.selection([(1, n)])
            assert found["map"]["total"] == pytest.approx(node["share"], abs=1e-5)
            assert found["map"]["edges"]["total"] == pytest.approx(node["share"], abs=1e-5)


def test_a_graph_with_one_way_edges_has_arrows_and_a_large_one_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    x, edges = subjects.molecule()
    R = nrm.measure(subjects.chemist(), (x, edges[:, :9]), rules="epsilon-plus")
    assert View(R).facts()["picture"]["directed"]
    monkeypatch.setattr("nrm.report.graphs.MOST_NODES", 5)
    assert View(R).facts()["picture"]["kind"] == "tokens"
