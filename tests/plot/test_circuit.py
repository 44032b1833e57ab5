"""Pictures of circuits: every edge is there once, leads upwards, and is as wide as its flow."""

from __future__ import annotations

import dataclasses
import itertools
import math

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import pytest
import torch
from matplotlib.patches import PathPatch

import nrm
from laws.test_direct import STREAMS, TOKENS, measured
from nrm import plot
from nrm.errors import QuestionError
from nrm.plot import PORT, CircuitPicture, lay_out_circuit
from nrm.plot.circuit import WIDEST
from nrm.plot.colors import ABOVE, BELOW
from nrm.questions import feeds

quiet = pytest.mark.filterwarnings("ignore:the predicted mass of this circuit", "ignore:no circuit of mass")


def circuits(kinds: str, rules: str = "contrast") -> list[nrm.Circuit]:
    R = measured(kinds, rules, seed=0)
    found = [R.circuit(top=1.0), R.circuit(top=9)]
    return [*found, R.circuit(top=20, positions=True)] if kinds != "shortcut" else found


@quiet
@pytest.mark.parametrize("kinds", STREAMS)
def test_every_edge_leads_upwards_and_no_two_nodes_lie_together(kinds: str) -> None:
    for circuit in circuits(kinds):
        picture = lay_out_circuit(circuit)
        assert sorted(ribbon.at for ribbon in picture.ribbons) == [tuple(p) for p in circuit.inside.nonzero().tolist()]
        for ribbon in picture.ribbons:
            assert picture.nodes[ribbon.low].y < picture.nodes[ribbon.high].y
        places = [(node.x, node.y) for node in picture.nodes]
        assert all(math.dist(a, b) > 0.3 for a, b in itertools.combinations(places, 2))
        assert all(0 <= x <= picture.width and -0.5 <= y <= picture.height for x, y in places)


@quiet
@pytest.mark.parametrize("kinds", STREAMS)
def test_edges_end_at_what_they_feed(kinds: str) -> None:
    for circuit in circuits(kinds):
        picture = lay_out_circuit(circuit)
        names = [node.name for node in picture.nodes]
        for ribbon in picture.ribbons:
            writer, reader = circuit.writers[ribbon.at[0]], circuit.readers[ribbon.at[1]]
            fed = {str(w) for w in circuit.writers if feeds(reader, w)} or {"output"}
            assert names[ribbon.low] == str(writer)
            ends = [b for a, b in picture.links if a == ribbon.high] or [ribbon.high]
            assert {names[end] for end in ends} <= fed
            assert all(picture.nodes[end].kind != PORT for end in ends)


@quiet
def test_what_flows_into_a_node_leaves_it() -> None:
    for positions in (False, True):
        circuit = measured("before", "contrast", seed=0).sample(0).circuit(top=1.0, positions=positions)
        picture = lay_out_circuit(circuit)
        joined = groups(picture)
        inward, outward = dict.fromkeys(joined, 0.0), dict.fromkeys(joined, 0.0)
        for ribbon in picture.ribbons:
            inward[next(g for g in joined if ribbon.high in g)] += ribbon.flow
            outward[next(g for g in joined if ribbon.low in g)] += ribbon.flow
        for group in joined:
            if not {picture.nodes[n].kind for n in group} & {"embedding", "logits"}:
                assert inward[group] == pytest.approx(outward[group], abs=1e-5)


def groups(picture: CircuitPicture) -> list[frozenset[int]]:
    """Nodes that are linked: what flows into ports leaves some of their heads."""
    found = [frozenset({n}) for n in range(len(picture.nodes))]
    for a, b in picture.links:
        one, other = (next(g for g in found if n in g) for n in (a, b))
        found = [g for g in found if g not in (one, other)] + [one | other]
    return found


@quiet
def test_widths_and_colours_are_those_of_the_flows() -> None:
    circuit = measured("before", "contrast", seed=0).circuit(top=15)
    picture = lay_out_circuit(circuit)
    ax = plot.circuit(circuit, k=4)
    drawn = {p.get_gid(): p for p in ax.patches if isinstance(p, PathPatch) and p.get_gid()}
    limit = max(abs(ribbon.flow) for ribbon in picture.ribbons)
    assert len(drawn) == len(circuit)
    faint = 0
    for n, ribbon in enumerate(picture.ribbons):
        patch = drawn[f"edge {n}"]
        assert patch.get_linewidth() == pytest.approx(max(WIDEST * abs(ribbon.flow) / limit, 0.35))
        assert mpl.colors.to_hex(patch.get_edgecolor()) == (ABOVE if ribbon.flow >= 0 else BELOW)[4]
        faint += patch.get_alpha() < 0.5
    assert faint == len(circuit) - 4
    assert ax.get_title(loc="left").startswith(f"{len(circuit)} of {circuit.possible} edges carry")
    ax.figure.canvas.draw()
    plt.close("all")


@quiet
def test_tokens_stand_in_their_order() -> None:
    circuit = measured("before", "contrast", seed=0).circuit(top=30, positions=True)
    head = next(node.name for node in lay_out_circuit(circuit).nodes if node.kind == "head")
    ax = plot.circuit(circuit, labels=["Ġone", "Ġtwo", " "][:TOKENS], names={head: "mover"})
    assert "mover" in [text.get_text() for text in ax.texts]
    assert [text.get_text() for text in ax.get_xticklabels()] == ["one", "two", "␣"]
    picture = lay_out_circuit(circuit)
    means = [sum(n.x for n in picture.nodes if n.position == p) for p in range(TOKENS)]
    counts = [sum(n.position == p for n in picture.nodes) for p in range(TOKENS)]
    centres = [m / c for m, c in zip(means, counts, strict=True)]
    assert centres == sorted(centres)
    with pytest.raises(QuestionError, match="do not fit the positions"):
        plot.circuit(circuit, labels=["one"])
    plt.close("all")


@quiet
def test_circuits_without_numbers_of_layers_are_drawn() -> None:
    class Odd(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down, self.head = (torch.nn.Linear(4, n) for n in (4, 4, 1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x + self.up(x).relu()
            return self.head(x + self.down(x).tanh())

    torch.manual_seed(0)
    circuit = nrm.measure(Odd(), torch.rand(1, 4), against=torch.zeros(1, 4)).circuit(top=1.0)
    picture = lay_out_circuit(circuit)
    assert {node.text for node in picture.nodes} >= {"embedding", "output"}
    assert not picture.rows
    plt.close(plot.circuit(circuit).figure)


@quiet
def test_a_plain_measure_has_biases_at_the_right() -> None:
    picture = lay_out_circuit(measured("before", "lrp-0", seed=0).circuit(top=1.0))
    biases = [node.x for node in picture.nodes if node.kind == "constant"]
    assert biases
    assert min(biases) > max(node.x for node in picture.nodes if node.kind != "constant")


@quiet
def test_complaints_leave_no_figure() -> None:
    circuit = measured("before", "contrast", seed=0).circuit(top=5)
    for given, options, complaint in [
        (circuit, {"k": 0}, "number of edges"),
        (circuit, {"labels": ["a"]}, "no positions"),
        (circuit - circuit, {}, "empty"),
        ("circuit", {}, "not a circuit"),
        (circuit, {"ax": 3}, "axes"),
    ]:
        with pytest.raises(QuestionError, match=complaint) as caught:
            plot.circuit(given, **options)  # type: ignore[arg-type]
        assert "nrm.plot.circuit" in str(caught.value)
    assert not plt.get_fignums()
    figure, ax = plt.subplots()
    assert plot.circuit(circuit, ax=ax, title="mine") is ax
    assert ax.get_title(loc="left") == "mine"
    plt.close(figure)


@quiet
def test_what_all_heads_read_at_once_ends_at_a_ring() -> None:
    """A reader that is not told apart by heads: its edges are for every head that acts."""
    circuit = measured("before", "contrast", seed=0).circuit(top=1.0)
    whole = tuple(dataclasses.replace(r, kind="branch", head=None, heads=None) if r.kind == "q" else r
                  for r in circuit.readers)  # fmt: skip
    picture = lay_out_circuit(dataclasses.replace(circuit, readers=whole))
    rings = [n for n, node in enumerate(picture.nodes) if node.name == "blocks.1.attn"]
    assert [picture.nodes[n].kind for n in rings] == [PORT]
    linked = {picture.nodes[b].name for a, b in picture.links if a == rings[0]}
    assert linked == {f"blocks.1.attn.head({h})" for h in range(4)}
