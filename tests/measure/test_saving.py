"""A measure and its answers in a file, and back."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

import nrm


@pytest.fixture
def R() -> nrm.Measure:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 4))
    return nrm.measure(model, torch.rand(2, 2, 6, 6), target=[1, 2], labels={"output": ["a", "b", "c", "ü <d>"]})


def test_a_round_trip(R: nrm.Measure, tmp_path: Path) -> None:
    u, y = R["1"], R["2"].axis(0)[:5]
    pairs, heat = R(u.channels, y), R(R.input.positions)
    path = tmp_path / "r.safetensors"
    nrm.save(path, pairs=(pairs, (u.channels, y)), heat=(heat, (R.input.positions,)), plain=pairs, measure=R)
    back = nrm.load(path)
    assert torch.equal(back["pairs"], pairs)
    assert torch.equal(back["plain"], pairs)
    assert back.axes["pairs"] == ("sample", "1.channels", "2.axis(0)[:5]")
    assert back.axes["heat"] == ("sample", "input.positions", "input.positions")
    facts = back.measure
    assert facts is not None
    assert facts["rules"] == R.rules
    assert facts["target"] == [1, 2]
    assert facts["value"] == pytest.approx(R.value.tolist())
    assert facts["labels"]["output"][3] == "ü <d>"
    assert facts["check"]["ok"] == [True, True]
    assert [name for name, _ in facts["layers"]] == [row.name for row in R.layers]
    assert set(facts) >= {"bias", "zero", "normalize", "dtype", "batch", "prediction", "model_digest"}
    assert {"nrm", "torch"} <= set(back.versions)
    nrm.save(tmp_path / "again.safetensors", pairs=back["pairs"], measure=facts)
    assert nrm.load(tmp_path / "again.safetensors").measure == facts


def test_the_short_form_of_the_design(R: nrm.Measure, tmp_path: Path) -> None:
    T = R(R["1"].channels, R.output)
    nrm.save(tmp_path / "r.safetensors", pairs=T, measure=R)
    assert torch.equal(nrm.load(tmp_path / "r.safetensors")["pairs"], T)


def test_every_kind_of_measure_can_be_described(R: nrm.Measure, tmp_path: Path) -> None:
    model, x = nn.Sequential(nn.Linear(3, 3), nn.Sigmoid(), nn.Linear(3, 2)), torch.rand(2, 3)
    model[2].bias.data.fill_(2.0)
    measures = [
        R.sample(1),
        nrm.measure(model, x, target="softmax", rules={"0": nrm.ZPlus(), nn.Linear: nrm.Gamma(0.1)}),
        nrm.measure(model, x, dtype=torch.float64, target=nrm.output.all, rules=nrm.WSquare()),
        nrm.measure(model, x, normalize=False, target=0),
        nrm.measure(model, x, target=0, rules="lrp-0", labels={"input": [["a", "b", "c"], ["d", "e", "f"]]}),
        nrm.measure(copy.deepcopy(model).half(), x.half()),
    ]
    for i, measure in enumerate(measures):
        nrm.save(tmp_path / f"{i}.safetensors", heat=measure(measure["0"].all), measure=measure)
        facts = nrm.load(tmp_path / f"{i}.safetensors").measure
        assert facts is not None
        assert facts["batch"] == len(measure)


def test_the_digest_knows_the_model() -> None:
    x = torch.rand(1, 3)
    torch.manual_seed(0)
    one, two = nn.Linear(3, 2), nn.Linear(3, 2)
    first = nrm.measure(one, x).describe()["model_digest"]
    assert nrm.measure(one, x * 2).describe()["model_digest"] == first
    assert nrm.measure(two, x).describe()["model_digest"] != first
    two.load_state_dict(one.state_dict())
    assert nrm.measure(two, x).describe()["model_digest"] == first
