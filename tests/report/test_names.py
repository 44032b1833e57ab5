"""Names of nodes belong to a model, and come back."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn

import nrm
from laws.test_direct import measured
from nrm.errors import QuestionError, ResultFileError
from nrm.report import (
    View,
    input_digest,
    input_notes,
    keep_notes,
    name_node,
    named_sets,
    names_file,
    node_names,
    read_key,
    write_key,
)
from report import subjects

pytestmark = pytest.mark.filterwarnings("ignore:the predicted mass of this circuit")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NRM_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_names_are_those_of_a_model(home: Path) -> None:
    R = measured("before", "contrast", seed=0)
    circuit, model = R.circuit(top=5), R.inner.origin.model
    node = circuit.nodes[1]
    assert node_names(model) == {}
    assert name_node(circuit, node, " mover ") == {node: "mover"}
    assert node_names(model) == node_names(R) == node_names(circuit) == node_names(circuit.model) == {node: "mover"}
    assert [path.parent.parent for path in home.rglob("*.json")] == [home]
    assert node_names(nn.Linear(2, 2)) == {}
    assert circuit.report().view["names"] == {node: "mover"}
    assert name_node(R, node, "") == {}
    assert node_names(R) == {}


def test_named_sets_are_events_of_the_measure(home: Path) -> None:
    R = subjects.measured(target=3)
    model, input = R.inner.origin.model, input_digest(R)
    made = {"layer": "pool#0", "channels": [7, 2]}
    key = write_key(made)
    assert key == "pool#0.channel([2, 7])"
    assert read_key(key) == {"layer": "pool#0", "channels": [2, 7]}
    name_node(model, key, "wheels")
    name_node(model, "nowhere.channel(3)", "lost")  # of another version of the network
    sets = {"corner": {"region": [0, 0, 6, 4]}, "cells": {"layer": "pool#1", "cells": {"shape": [3, 3], "on": [4]}}}
    keep_notes(model, input, {"sets": sets, "note": "look here"})
    assert input_notes(model, input) == {"sets": sets, "note": "look here"}
    assert node_names(model) == {key: "wheels", "nowhere.channel(3)": "lost"}
    found = named_sets(R)
    assert set(found) == {"wheels", "corner", "cells"}
    expected = {"wheels": R["pool#0"].channel([2, 7]), "corner": R.input[:, :4, :6], "cells": R["pool#1"][:, 1, 1]}
    for name, event in expected.items():
        assert float(R(found[name])) == pytest.approx(float(R(event)), abs=1e-6)
    other = nrm.measure(subjects.small(), subjects.image(1))
    assert set(named_sets(other)) == {"wheels"}  # the rest belongs to its input
    view = View(R, layers=[("pool#0", "channels"), "output"], names=node_names(model), sets=sets)
    layout = view.layout()
    (node,) = [one for one in layout["columns"][0]["nodes"] if one.get("name") == "wheels"]
    assert node["members"] == [2, 7]
    assert node["share"] == pytest.approx(float(R(expected["wheels"])), abs=1e-6)
    assert sum(one["share"] for one in layout["columns"][0]["nodes"]) == pytest.approx(1, abs=1e-5)
    keep_notes(model, input, {"sets": {}, "note": ""})
    assert "inputs" not in names_file(R.inner.origin.digest()).read_text()


def test_the_folder_is_where_the_system_keeps_such_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NRM_HOME")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert names_file("abc/../x") == tmp_path / "data" / "nrm" / "names" / "abc----x.json"
    monkeypatch.setattr("sys.platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert names_file("a").parent.parent == tmp_path / "local" / "nrm"
    monkeypatch.setattr("sys.platform", "darwin")
    assert "Application Support" in str(names_file("a"))


def test_bad_names_and_files_are_said() -> None:
    for name in ("x" * 61, "two\nlines"):
        with pytest.raises(QuestionError, match="not a name"):
            name_node("digest", "node", name)
    circuit = measured("before", "contrast", seed=0).circuit(top=5)
    nameless = nrm.Circuit.from_mib(circuit.to_mib(), measured("before", "contrast", seed=0).direct())
    with pytest.raises(QuestionError, match="does not say of which model"):
        name_node(nameless, "node", "name")
    file = names_file("digest")
    file.parent.parent.mkdir()
    file.parent.write_text("a file in the place of the folder")
    with pytest.raises(ResultFileError, match="cannot be kept"):
        name_node("digest", "node", "name")
    file.parent.unlink()
    name_node("digest", "node", "name")
    for text in ("[", "[]", '{"schema": 7, "names": {}}', '{"schema": 1, "names": [1]}'):
        file.write_text(text)
        with pytest.raises(ResultFileError, match=r"digest\.json"):
            node_names("digest")
