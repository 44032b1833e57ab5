"""Interactions in a trained VGG16: tables against masked sweeps, flows against the whole table."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import nrm
from nrm.measure.measure import Measure
from nrm.questions import plan_stops, stops_for
from real import models

pytestmark = [pytest.mark.data, pytest.mark.slow]


@pytest.fixture(scope="module")
def R(shared: Callable[[str], Path]) -> Measure:
    """A photo's middle is enough, and three times as fast."""
    data = shared("vgg16-imagenette").parent
    photo = models.photo(sorted((data / "imagenette" / "val").glob("*/*"))[49])
    return nrm.measure(
        models.load("VGG16-Imagenette", data), photo[None, :, 48:176, 48:176], rules="epsilon-plus-flat", zero="uniform"
    )


def test_rows_of_the_pair_table_are_masked_sweeps(R: Measure) -> None:
    a, b = R["features.26"], R["features.28"]
    pairs = R(a.channels, b.channels)[0]
    strongest = R(b.channels)[0].abs().topk(4).indices.tolist()
    stops = stops_for([a.channels, b.channels[strongest]], R.inner.places.resolve)
    plan = plan_stops(R.inner.network, stops, memory=2**30, base=R.base, strategy="read 1")
    swept = R.inner.answerer().table(stops, plan)[0]
    torch.testing.assert_close(pairs[:, strongest], swept, rtol=1e-3, atol=1e-7)
    for j in strongest[:2]:
        torch.testing.assert_close(pairs[:, j], R(a.channels, b.channel(j))[0], rtol=1e-3, atol=1e-7)


def test_flows_are_the_largest_of_all_triples(R: Measure, monkeypatch: pytest.MonkeyPatch) -> None:
    """By search for every sign, and by the table, which is the same for all of them, once."""
    layers = [R["features.24"].channels[:32], R["features.26"].channels, R["features.28"].channels]
    table = R(*layers)[0]
    assert table.shape == (32, 512, 512)
    found = {"abs by the table": R.flows(*layers, k=10, sign="abs")}
    monkeypatch.setattr("nrm.search.flows.table_cost", lambda plan: math.inf)
    for sign in ("+", "-", "abs"):
        found[sign] = R.flows(*layers, k=10, sign=sign, effort=1e5)
    for how, flows in found.items():
        score = {"+": table, "-": -table}.get(how, table.abs())
        assert flows.certified == (True,), how
        relevances = torch.tensor([abs(flow.relevance) for flow in flows[0]])
        torch.testing.assert_close(relevances, score.flatten().topk(10).values, rtol=1e-4, atol=1e-8)
        best = flows[0][0]
        assert float(R(R.input, *best).sum()) == pytest.approx(best.relevance, rel=1e-3), how
