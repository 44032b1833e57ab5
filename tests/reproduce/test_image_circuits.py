"""Circuits of image networks: channels and blocks as nodes, on embedded data and on a small residual network."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from nrm.reproduce import reproduce
from nrm.reproduce.image_circuits import CircuitImages, _by_blocks, _judged
from nrm.reproduce.networks import Basic

pytest.importorskip("sklearn")
pytest.importorskip("matplotlib.pyplot")


def small() -> CircuitImages:
    torch.manual_seed(0)
    model = nn.Sequential(Basic(3, 4, 1), Basic(4, 6, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3))
    return CircuitImages("small", model.eval(), torch.rand(4, 3, 8, 8), torch.tensor([0, 1, 2, 0]))


def test_channels_of_a_trained_network(tmp_path: Path) -> None:
    folder = reproduce("image-circuits", out=tmp_path, samples=8, embedded=True)
    rows = json.loads((folder / "results.json").read_text())["rows"]
    found = {row["ranking"]: row for row in rows}
    assert found["relevance"]["log_cmd"] < found["random"]["log_cmd"]
    assert found["relevance"]["prediction off by"] < 0.02
    assert (folder / "curves.png").stat().st_size > 10_000


def test_blocks_of_a_residual_network() -> None:
    found = _by_blocks(small())
    for name in ("relevance", "random"):
        assert found[f"{name}/f"][-1] == pytest.approx(1, abs=1e-4)
        assert found[f"{name}/mass"][-1] == pytest.approx(1, abs=1e-4)
    assert len(found["share"]) == 6


def test_all_channels_are_the_whole_network() -> None:
    own = small()
    f, mass = _judged(own.judging(), ("0", "1"), [([0, 1, 2, 3], list(range(6))), ([0], [0])])
    assert f[0] == pytest.approx(1, abs=1e-5)
    assert mass[0] == pytest.approx(1, abs=1e-5)
    assert abs(f[1] - 1) > 1e-3
