"""Circuits as values: chosen by share, mass, flow or hand, joined as sets, written and read."""

from __future__ import annotations

import itertools
import json
from contextlib import suppress
from pathlib import Path

import pytest
import torch

import nrm
import vision
from laws.test_direct import STREAMS, loud, measured
from nrm.errors import QuestionError, ResultFileError
from nrm.questions import feeds

with suppress(pytest.skip.Exception):
    vision.load()  # before transformers, which imports it

quiet = pytest.mark.filterwarnings("ignore:the predicted mass of this circuit", "ignore:no circuit of mass")


def ways(circuit: nrm.Circuit) -> set[tuple[int, int]]:
    """The edges of a circuit that lie on a way from the stream's beginning to the output, one by one."""
    edges = {(w, r) for w, r in circuit.inside.nonzero().tolist()}
    found: set[tuple[int, int]] = set()

    def walk(reader: int, taken: tuple[tuple[int, int], ...]) -> None:
        for w, r in edges:
            if r != reader:
                continue
            writer, way = circuit.writers[w], (*taken, (w, r))
            if writer.kind == "embedding":
                found.update(way)
            for below, end in enumerate(circuit.readers):
                if feeds(end, writer):
                    walk(below, way)

    walk(len(circuit.readers) - 1, ())
    return found


@quiet
@pytest.mark.parametrize("kinds", STREAMS)
@pytest.mark.parametrize("options", [{"top": 1}, {"top": 5}, {"top": 0.1}, {"top": 12, "mass": 0.9}, {"mass": 0.7},
                                     {"top": 6, "by": "flow"}], ids=str)  # fmt: skip
def test_every_edge_of_a_chosen_circuit_is_on_a_way(kinds: str, options: dict[str, float]) -> None:
    circuit = measured(kinds, "contrast", seed=1).circuit(**options)  # type: ignore[arg-type]
    assert 0 < len(circuit) <= circuit.possible
    assert ways(circuit) == {(w, r) for w, r in circuit.inside.nonzero().tolist()}
    if isinstance(options.get("top"), int):
        assert len(circuit) <= options["top"]


@quiet
@pytest.mark.parametrize("options", [{"top": 12}, {"mass": 0.8}], ids=str)
def test_every_edge_at_a_position_is_taken_by_a_walk(options: dict[str, float]) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(2)  # by names alone, two of the twelve first edges would be dead
    size = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "intermediate_size": 32}  # fmt: skip
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**size)).double().eval()
    for parameter in model.parameters():
        parameter.data *= 4 if parameter.ndim > 1 else 1
    ids = torch.tensor([[3, 9, 14, 20, 7, 5]])
    R = nrm.measure(model, ids, against=torch.tensor([[3, 9, 31, 20, 7, 5]]), target=(-1, 8))
    circuit = R.circuit(positions=True, **options)  # type: ignore[arg-type]
    assert circuit.flow is not None
    assert bool((circuit.flow[circuit.inside] != 0).all())
    assert len(circuit) <= options.get("top", circuit.possible)
    assert R.circuit(edges=circuit, positions=True).mass == pytest.approx(circuit.mass)


@quiet
@pytest.mark.parametrize("kinds", STREAMS)
def test_by_share_no_larger_edge_could_come_in(kinds: str) -> None:
    R = measured(kinds, "contrast", seed=1)
    circuit, shares = R.circuit(top=8), R.circuit(top=1.0).relevance.abs()
    weakest = shares[circuit.inside].min()
    stronger = (shares > weakest) & ~circuit.inside
    assert len(circuit) == min(8, circuit.possible) or bool(stronger.any())
    for at in stronger.nonzero().tolist():
        more = circuit.inside.clone()
        more[tuple(at)] = True
        grown = ways(R.circuit(edges=more))
        assert tuple(at) not in grown or len(grown) > 8


@pytest.mark.parametrize("seed", [0, 3])
@pytest.mark.parametrize("wanted", [0.5, 0.9, 1.0])
def test_the_mass_fits(seed: int, wanted: float) -> None:
    R = measured("before", "contrast", seed=seed)
    circuit = R.circuit(mass=wanted)
    assert circuit.mass is not None
    assert abs(circuit.mass - wanted) <= 0.05
    assert circuit.mass == pytest.approx(R.circuit(edges=circuit).mass)


def test_a_mass_that_is_missed_is_said() -> None:
    R = measured("beside", "contrast", seed=3)  # large masses of both signs: few edges have far more than all
    with pytest.warns(nrm.NrmWarning, match=r"no circuit of mass 0\.5 was found"):
        circuit = R.circuit(mass=0.5)
    assert circuit.mass is not None
    assert abs(circuit.mass - 0.5) > 0.05


@quiet
def test_a_mass_with_a_size_is_nearer_than_the_size_alone() -> None:
    R = measured("before", "contrast", seed=3)
    plain, fitted = R.circuit(top=20).mass, R.circuit(top=20, mass=1.0).mass
    assert plain is not None
    assert fitted is not None
    assert abs(fitted - 1) <= abs(plain - 1)


@quiet
def test_shrinking_by_flow_stops_before_the_mass_is_lost() -> None:
    R = measured("beside", "contrast", seed=3)
    circuit = R.circuit(mass=0.6, by="flow")
    assert circuit.mass is not None
    assert circuit.mass >= 0.6
    assert len(circuit) < circuit.possible


@quiet
@pytest.mark.parametrize("kinds", STREAMS)
def test_chains_are_the_masses_of_their_edges(kinds: str) -> None:
    R = measured(kinds, "contrast", seed=2)
    circuit = R.circuit(top=10, chains=4)
    assert circuit.chains
    for chain in circuit.chains:
        names = [(str(edge.writer), str(edge.reader)) for edge in chain.edges]
        alone = R.circuit(edges=names)
        assert alone.mass == pytest.approx(chain.relevance, abs=1e-9)
        assert alone <= circuit
        for below, above in itertools.pairwise(chain.edges):
            assert feeds(below.reader, above.writer)
    assert "chain" in repr(circuit)


@quiet
def test_chains_of_a_whole_circuit_add_up() -> None:
    R = measured("shortcut", "contrast", seed=2)
    circuit = R.circuit(top=1.0, chains=50)
    assert sum(chain.relevance for chain in circuit.chains) == pytest.approx(1.0)


@quiet
def test_samples_share_a_circuit_in_units_of_the_output() -> None:
    R = measured("before", "contrast", seed=0)
    circuit = R.circuit(top=9)
    assert circuit.masses is not None
    assert circuit.value is not None
    assert circuit.mass is not None
    assert len(circuit.masses) == len(R) > 1
    assert circuit.mass == pytest.approx(float((circuit.masses * circuit.value).sum() / circuit.value.sum()))
    alone = R.sample(1).circuit(edges=circuit)
    assert alone.mass == pytest.approx(float(circuit.masses[1]))


@quiet
def test_several_references_share_a_circuit() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(Block(), Block(), torch.nn.Linear(4, 1))
    x, references = torch.rand(2, 4), [torch.zeros(1, 4), torch.rand(1, 4)]
    R = nrm.measure(model, x, against=references)
    every = [nrm.measure(model, x, against=reference) for reference in references]
    circuit = R.circuit(top=4)
    alone = [one.circuit(edges=circuit) for one in every]
    units = sum(float((one.masses * one.value).sum()) for one in alone)  # type: ignore[operator]
    assert circuit.mass == pytest.approx(units / sum(float(one.value.sum()) for one in every), rel=1e-5)


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(4, 8), torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(self.up(x).relu())


@quiet
def test_positions_are_chosen_one_by_one() -> None:
    R = measured("before", "contrast", seed=0)
    circuit = R.circuit(top=15, positions=True)
    assert circuit.inside.ndim == 3
    assert len(circuit) <= 15
    assert all(edge.position is not None for edge in circuit.edges)
    assert " at " in str(circuit.edges[0])
    assert circuit == nrm.Circuit.from_json(json.loads(json.dumps(circuit.to_json())))


# ---- sets and files --------------------------------------------------------------------------------------------------


@quiet
def test_circuits_are_sets() -> None:
    R = measured("before", "contrast", seed=0)
    a, b = R.circuit(top=8), R.circuit(top=8, by="flow")
    assert len(a | b) == len(a) + len(b) - len(a & b)
    assert (a - b) | (b - a) == a ^ b
    assert (a & b) <= a <= (a | b)
    assert a.overlap(b) == len(a & b) / len(a | b)
    assert a.overlap(a) == 1.0 == (a - a).overlap(b - b)
    assert (a | b).mass is None
    assert "not known" in repr(a | b)
    assert R.circuit(edges=a | b).mass is not None
    assert a != "circuit"
    with pytest.raises(QuestionError, match="joined with circuits"):
        a | "b"  # type: ignore[operator]
    with pytest.raises(QuestionError, match="edges of another network"):
        a | measured("beside", "contrast", seed=0).circuit(top=8)
    with pytest.raises(QuestionError, match="positions of the circuits"):
        a | R.circuit(top=8, positions=True)


@quiet
def test_a_circuit_is_written_and_read(tmp_path: Path) -> None:
    circuit = measured("before", "contrast", seed=0).circuit(top=9, chains=2)
    circuit.save(tmp_path / "circuit.json")
    again = nrm.Circuit.load(tmp_path / "circuit.json")
    assert again == circuit
    assert again.mass == circuit.mass
    assert again.model == circuit.model
    assert repr(again) == repr(circuit)
    assert again.flow is not None
    assert circuit.flow is not None
    torch.testing.assert_close(again.flow, circuit.flow.double())
    (tmp_path / "broken.json").write_text("[")
    with pytest.raises(ResultFileError, match=r"broken\.json"):
        nrm.Circuit.load(tmp_path / "broken.json")
    facts = circuit.to_json()
    with pytest.raises(ResultFileError, match="not whole"):
        nrm.Circuit.from_json({**facts, "relevance": [0.1]})
    with pytest.raises(ResultFileError, match="no circuit"):
        nrm.Circuit.from_json({"edges": []})


@quiet
@pytest.mark.parametrize("kinds", ["before", "beside"])
def test_the_form_of_the_benchmark_goes_out_and_in(kinds: str) -> None:
    circuit = measured(kinds, "contrast", seed=0).circuit(top=9)
    facts = json.loads(json.dumps(circuit.to_mib()))
    assert set(facts) == {"cfg", "nodes", "edges"}
    assert facts["nodes"]["input"]["in_graph"]
    assert facts["nodes"]["logits"]["in_graph"]
    assert {"a0.h0", "m0", "a1.h1"} <= set(facts["nodes"])
    assert "input->a0.h0<q>" in facts["edges"]
    assert "a0.h0->logits" in facts["edges"]
    assert "a1.h0->a0.h0<q>" not in facts["edges"]
    used = [name for name, edge in facts["edges"].items() if edge["in_graph"]]
    assert len(used) >= len(circuit)
    assert nrm.Circuit.from_mib(facts, circuit) == circuit
    with pytest.raises(QuestionError, match="another network"):
        nrm.Circuit.from_mib({"edges": {"input->m77": {"in_graph": True}}}, circuit)
    with pytest.raises(ResultFileError, match="no circuit of the MIB"):
        nrm.Circuit.from_mib({"kind": "nrm circuit"}, circuit)


@loud
def test_biases_are_no_nodes_of_the_benchmark() -> None:
    circuit = measured("before", "lrp-0", seed=0).circuit(top=1.0)
    with pytest.raises(QuestionError, match="biases are no nodes"):
        circuit.to_mib()


# ---- tables, errors, warnings ----------------------------------------------------------------------------------------


@quiet
def test_a_circuit_has_a_table_and_nodes() -> None:
    circuit = measured("before", "contrast", seed=0).circuit(top=9)
    table = circuit.table()
    assert int(table["inside"].sum()) == len(circuit)
    assert table.labels["writer"] == tuple(map(str, circuit.writers))
    assert circuit.nodes[0] == str(circuit.writers[0])
    assert circuit.nodes[-1] == "output"
    assert len(circuit.top(3)) == 3
    assert circuit.top(3)[0].flow == pytest.approx(max((e.flow or 0 for e in circuit.edges), key=abs))


BAD = [
    ({}, "how large"),
    ({"top": 0}, "cannot be chosen"),
    ({"top": 1.5}, "cannot be chosen"),
    ({"top": True}, "cannot be chosen"),
    ({"mass": -1.0}, "mass of a circuit"),
    ({"mass": float("nan")}, "mass of a circuit"),
    ({"top": 3, "by": "luck"}, "by share or by flow"),
    ({"top": 3, "edges": [("*", "*")]}, "given or chosen"),
    ({"edges": [("nobody", "output")]}, "has these names"),
    ({"edges": ["output"]}, "pair of names"),
    ({"edges": []}, "empty"),
    ({"edges": torch.ones(2, 2)}, "marks of edges"),
]


@pytest.mark.parametrize(("options", "message"), BAD, ids=[m for _, m in BAD])
def test_bad_questions_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(QuestionError, match=message):
        measured("before", "contrast", seed=0).circuit(**options)  # type: ignore[arg-type]


def test_edges_of_another_network_are_refused() -> None:
    other = measured("beside", "contrast", seed=0).circuit(top=5)
    with pytest.raises(QuestionError, match="edges of another network"):
        measured("before", "contrast", seed=0).circuit(edges=other)


def test_a_mass_beyond_saturation_is_said() -> None:
    R = measured("after", "contrast", seed=0)
    with pytest.warns(nrm.NrmWarning, match="saturate"):
        R.circuit(top=5)


def test_a_network_without_a_stream_has_no_circuit() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
    with pytest.raises(QuestionError, match="no residual stream"):
        nrm.measure(model, torch.rand(1, 3), against=torch.zeros(1, 3)).circuit(top=3)
