"""Flows, plans and interaction graphs on any network, against the oracle's list of walks."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, strategies as st

import nrm
from laws.agreement import drawn, law_of_each, visited
from networks import KINDS
from nrm.questions.answer import Answerer
from nrm.questions.plan import plan_stops
from nrm.questions.stops import stops_for

pytestmark = pytest.mark.filterwarnings("ignore::nrm.errors.NrmWarning")


@pytest.fixture(autouse=True)
def searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """No table is computed where a search would do."""
    monkeypatch.setattr("nrm.search.flows.table_cost", lambda plan: math.inf)


@pytest.mark.parametrize("kind", KINDS)
@law_of_each
@given(data=st.data())
def test_flows_are_the_largest_sums_of_walks(kind: str, data: st.DataObject) -> None:
    it = drawn(data, kind, batch=2)
    sites = list(dict.fromkeys(visited(data, it, [*it.tensors, *it.edges], 3)))
    k, sign = data.draw(st.sampled_from([1, 4, 1000])), data.draw(st.sampled_from(["+", "-", "abs"]))
    flows = it.R.flows(*(it.layer(site) for site in sites), k=k, sign=sign)
    truth = it.truth(sites).flatten(1)
    noise = 1e-10 * it.scale
    assert flows.certified == (True, True)
    for found, relevances in zip(flows, truth, strict=True):
        scores = {"+": relevances, "-": -relevances, "abs": relevances.abs()}[sign].sort(descending=True).values
        mine = torch.tensor([{"+": f.relevance, "-": -f.relevance, "abs": abs(f.relevance)}[sign] for f in found])
        torch.testing.assert_close(mine.double(), scores[: len(mine)], rtol=1e-6, atol=noise)
        assert len(mine) == k or not bool((scores[len(mine) :] > noise).any())
        for flow in found[:3]:
            it.close(it.R(*flow), flow.relevance)


@pytest.mark.parametrize("kind", KINDS)
@law_of_each
@given(data=st.data())
def test_every_plan_gives_the_oracles_table(kind: str, data: st.DataObject) -> None:
    it = drawn(data, kind)
    sites = list(dict.fromkeys(visited(data, it, [*it.tensors, *it.edges], 3)))
    truth = it.truth(sites)
    arguments = []
    for site in sites:
        layer = it.layer(site)
        shape = it.shape(site)
        arguments.append(layer if len(shape) != 1 else layer.channels)
    stops = stops_for(arguments, it.R.inner.places.resolve)
    memory = data.draw(st.sampled_from([10**9, 2000]))
    answerer = Answerer(it.R.inner.network, it.R.base, memory=10**9, progress=lambda chunks, _: chunks)
    for strategy in (f"{what} {n}" for what in ("read", "contract") for n in range(len(stops))):
        try:
            plan = plan_stops(it.R.inner.network, stops, memory=memory, base=it.R.base, strategy=strategy)
        except AssertionError:
            continue
        with torch.no_grad():
            it.close(answerer.table(stops, plan), truth)


@pytest.mark.parametrize("kind", KINDS)
@law_of_each
@given(data=st.data())
def test_the_interaction_graph_is_all_pairs_of_walks(kind: str, data: st.DataObject) -> None:
    it = drawn(data, kind)
    sites = list(dict.fromkeys(visited(data, it, [*it.tensors, *it.edges], 4)))
    everything = nrm.stack(*(it.layer(site) for site in sites))
    graph = it.R(everything, everything)
    rows = []
    for a in sites:
        line = [it.truth([a, b]).reshape(1, math.prod(it.shape(a)), -1) if a != b
                else it.truth([a]).reshape(1, -1).diag_embed() for b in sites]  # fmt: skip
        rows.append(torch.cat(line, 2))
    it.close(graph, torch.cat(rows, 1))
