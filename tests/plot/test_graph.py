"""Graphs: colours and sizes mean the relevance, directions of an edge are one line, bad input has a clear text."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.colors import to_rgb
from matplotlib.patches import Circle, FancyArrowPatch

from nrm.errors import QuestionError
from nrm.plot import diverging, graph
from nrm.plot.layout import lay_out, lay_out_molecule

RING = torch.tensor([[0, 1, 1, 2, 2, 3, 3, 0], [1, 0, 2, 1, 3, 2, 0, 3]])


def circles(ax: Any) -> list[Circle]:
    return [p for p in ax.patches if isinstance(p, Circle)]


def test_colour_and_size_are_the_relevance_of_nodes() -> None:
    ax = graph(SimpleNamespace(edge_index=RING, num_nodes=4), nodes=torch.tensor([[1.0, -0.5, 0.0, 0.25]]))
    found = circles(ax)
    assert [to_rgb(c.get_facecolor()) for c in found] == [to_rgb(diverging()(x)) for x in (1.0, 0.25, 0.5, 0.625)]
    assert found[0].radius > found[1].radius > found[3].radius > found[2].radius


def test_two_directions_are_one_line_with_their_sum() -> None:
    along = torch.tensor([0.5, 0.25, -1.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    ax = graph(RING, edges=along)
    rim, colour = ax.collections[:2]
    assert len(rim.get_segments()) == 4
    assert sorted(np.round(colour.get_linewidths() / max(colour.get_linewidths()), 6)) == [0, 0, 0.75, 1]
    assert to_rgb(colour.get_colors()[-1]) == to_rgb(diverging()(0.0))  # the strongest is drawn last


def test_edges_in_one_direction_are_arrows() -> None:
    ax = graph(torch.tensor([[0, 1, 2, 2], [1, 2, 0, 2]]), edges=[1.0, -1.0, 0.5, 0.0])
    assert sum(isinstance(p, FancyArrowPatch) for p in ax.patches) == 3
    assert "1 loop not shown" in ax.get_xlabel()
    assert not any(isinstance(p, FancyArrowPatch) for p in graph(RING).patches)


def test_places_of_the_user_are_kept() -> None:
    pos = np.array([[0.0, 0.0], [2.0, 0.0], [2.0, 1.0], [0.0, 1.0]])
    assert np.allclose([c.center for c in circles(graph(RING, pos=pos))], pos)


def test_notes_bar_and_axes() -> None:
    _, ax = plt.subplots()
    assert graph(RING, nodes=[1, 2, 3, 4], ax=ax, value=-1.0, rest=0.25, title="t", scale=2.0) is ax
    assert "negative output" in ax.get_xlabel()
    assert "25.0 % of the mass not shown" in ax.get_xlabel()
    ax.figure.canvas.draw()


@pytest.mark.parametrize("n", [1, 2, 3, 6, 12])
def test_a_ring_is_laid_out_as_a_ring(n: int) -> None:
    pairs = np.array([(i, (i + 1) % n) for i in range(n)] if n > 1 else np.zeros((0, 2), int)).reshape(-1, 2)
    places = lay_out(n, pairs)
    radius = np.linalg.norm(places - places.mean(0), axis=1)
    assert np.ptp(radius) < 0.05 * max(radius.max(), 1)
    assert np.array_equal(places, lay_out(n, pairs))


def test_unconnected_parts_stand_side_by_side() -> None:
    places = lay_out(5, np.array([[0, 1], [2, 3]]))
    assert places[:2, 0].max() < places[2:4, 0].min()
    assert places[2:4, 0].max() < places[4, 0]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"data": RING, "nodes": torch.ones(3)}, "nodes and graph do not fit"),
        ({"data": RING, "nodes": torch.ones(2, 4)}, "not a line of nodes"),
        ({"data": RING, "edges": torch.ones(3)}, "edges and graph do not fit"),
        ({"data": RING, "labels": "AB"}, "labels and graph do not fit"),
        ({"data": RING, "pos": torch.ones(4, 3)}, "not places in a plane"),
        ({"data": RING, "nodes": torch.tensor([1.0, torch.nan, 0, 0])}, "not finite"),
        ({"data": torch.ones(3, 3)}, "not a graph"),
        ({"data": torch.zeros(2, 0)}, "no nodes"),
        ({"data": "graph"}, "cannot be drawn"),
        ({"data": RING, "ax": 3}, "not one matplotlib axes"),
    ],
)
def test_complaints_leave_no_figure(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(QuestionError, match=text) as caught:
        graph(**arguments)
    assert "nrm.plot.graph" in str(caught.value)
    assert not plt.get_fignums()


def test_edges_beside_nodes_have_a_scale_of_their_own() -> None:
    along = torch.tensor([0.01, 0.0, -0.02, 0.0, 0.0, 0.0, 0.0, 0.0])
    ax = graph(RING, nodes=[1.0, 0.0, 0.0, -0.5], edges=along, scale=None)
    assert max(ax.collections[1].get_linewidths()) == pytest.approx(9.0)
    assert "edges have the full colour at 0.02" in ax.get_xlabel()
    one = graph(RING, nodes=[1.0, 0.0, 0.0, -0.5], edges=along, scale=1.0)
    assert max(one.collections[1].get_linewidths()) == pytest.approx(0.18)
    assert "full colour" not in one.get_xlabel()
    half = graph(RING, nodes=[1.0, 0.0, 0.0, -0.5], edges=along, scale=1.0, edge_scale=0.04)
    assert max(half.collections[1].get_linewidths()) == pytest.approx(4.5)


def test_a_subgraph_lies_on_a_band() -> None:
    ax = graph(RING, marked=[0, 1, 3])
    bright = [
        a for a in ax.get_children() if getattr(a, "get_zorder", lambda: 1)() == 0 and hasattr(a, "get_facecolor")
    ]
    assert [type(a).__name__ for a in bright].count("Circle") == 3
    assert [type(a).__name__ for a in bright].count("Polygon") == 2  # 0-1 and 3-0
    graph(RING, marked=SimpleNamespace(nodes=(2, 3)))
    with pytest.raises(QuestionError, match="marked are not nodes"):
        graph(RING, marked=[4])


def test_molecules_are_laid_out_by_rdkit() -> None:
    pytest.importorskip("rdkit", reason="RDKit is absent (pip install nrm[molecules])")
    pairs = np.array([(i, (i + 1) % 6) for i in range(6)] + [(5, 6)])
    places = lay_out_molecule(pairs, ["C"] * 6 + ["Cl"])
    assert places is not None
    lengths = np.linalg.norm(places[pairs[:, 0]] - places[pairs[:, 1]], axis=1)
    assert np.allclose(lengths, 1.0, atol=0.02)  # a regular ring
    assert lay_out_molecule(pairs, ["C"] * 6 + ["ring"]) is None
    edges = torch.tensor(np.concatenate([pairs, pairs[:, ::-1]]).T.copy())
    drawn = np.array([c.center for c in circles(graph(edges, labels=["C"] * 6 + ["Cl"]))])
    assert np.allclose(drawn, places)
    assert not np.allclose([c.center for c in circles(graph(edges, labels=["a"] * 7))], places)
    other = graph(edges, labels=["C"] * 6 + ["Cl"], pos=np.arange(14.0).reshape(7, 2))
    assert circles(other)[0].center == (0.0, 1.0)


def test_molecules_have_places_without_rdkit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert lay_out_molecule(np.array([[0, 1]]), ["C", "O"]) is None
    assert len(circles(graph(torch.tensor([[0, 1], [1, 0]]), labels=["C", "O"]))) == 2
