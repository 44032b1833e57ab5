"""Lift and excess against the oracle's list of walks: joint relevances beside products of marginals."""

from __future__ import annotations

import importlib
import math

import pytest
import torch
from hypothesis import assume, given, strategies as st
from torch import Tensor

import nrm
from laws.agreement import Both, drawn, law_of_each, visited
from networks import KINDS
from nrm.search import Flows
from oracles.brute import Site

pytestmark = pytest.mark.filterwarnings("ignore::nrm.errors.NrmWarning")

LIFT = importlib.import_module("nrm.measure.lift")


def chosen(data: st.DataObject, it: Both) -> list[Site]:
    sites = list(dict.fromkeys(visited(data, it, [*it.tensors, *it.edges], 3)))
    assume(len(sites) > 1)
    return sites


def by_hand(it: Both, sites: list[Site]) -> tuple[Tensor, Tensor]:
    """Joint relevances and products of marginals, of all combinations of neurons."""
    joint = it.truth(sites)
    product, left = torch.ones_like(joint), 1
    for site in sites:
        marginal = it.truth([site])
        own = marginal.ndim - 1
        shape = [len(joint), *(1,) * (left - 1), *marginal.shape[1:], *(1,) * (joint.ndim - left - own)]
        product = product * marginal.reshape(shape)
        left += own
    return joint, product


@pytest.mark.parametrize("kind", KINDS)
@law_of_each
@given(data=st.data())
def test_excess_and_lift_are_those_of_the_walks(kind: str, data: st.DataObject) -> None:
    it = drawn(data, kind, batch=2)
    sites = chosen(data, it)
    joint, product = by_hand(it, sites)
    layers = [it.layer(site) for site in sites]
    noise = 1e-10 * it.scale ** len(sites)
    torch.testing.assert_close(it.R.lift(*layers, form="excess"), joint - product, rtol=1e-6, atol=noise)
    lift = it.R.lift(*layers)
    defined = ~lift.isnan()
    torch.testing.assert_close(lift[defined] * product[defined], joint[defined], rtol=1e-5, atol=noise)
    sure = product.abs() > 1e3 * noise
    assert bool(defined[sure].all())


@pytest.mark.parametrize("kind", KINDS)
@law_of_each
@given(data=st.data())
def test_flows_by_excess_and_lift_are_the_largest(kind: str, data: st.DataObject) -> None:
    """Read off the table, and found by a search."""
    it = drawn(data, kind, batch=2)
    sites = chosen(data, it)
    joint, product = (t.flatten(1) for t in by_hand(it, sites))
    by, sign = data.draw(st.sampled_from(["lift", "excess"])), data.draw(st.sampled_from(["+", "-", "abs"]))
    least, k = (0.02 if by == "lift" else 0.0), data.draw(st.sampled_from([1, 4]))
    noise = 1e-10 * it.scale ** len(sites)
    assume(noise < 1e-5)  # else it cannot be told which products are 0
    assume(bool((product.abs() > 1e-4).logical_or(product.abs() < noise).all()) or by == "excess")
    assume(not bool(((joint.abs() - least).abs() < 1e-7).any()) or by == "excess")
    usable = (joint.abs() >= least) & (product.abs() > noise)
    values = joint - product if by == "excess" else torch.where(usable, joint / product, torch.zeros_like(joint))
    scores = {"+": values, "-": -values, "abs": values.abs()}[sign].sort(descending=True, dim=1).values
    for table in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            if not table:
                patch.setattr(LIFT, "table_cost", lambda plan: math.inf)
            flows = it.R.flows(*(it.layer(site) for site in sites), k=k, sign=sign, by=by, least=least)
        agree(it, flows, scores, k, sign, noise, table)


def agree(it: Both, flows: Flows, scores: Tensor, k: int, sign: str, noise: float, table: bool) -> None:
    """Certified flows are the largest; what is missing among others lies within their gap."""
    for found, truth, certified, gap in zip(flows, scores, flows.certified, flows.gap, strict=True):
        mine = [{"+": v, "-": -v, "abs": abs(v)}[sign] for v in (flow.ranked[1] for flow in found if flow.ranked)]
        ahead = truth[:k].tolist()
        tolerance = 1e-6 * max(1.0, *map(abs, ahead)) + noise
        if certified:
            assert mine == pytest.approx(ahead[: len(mine)], abs=tolerance)
            assert all(t <= tolerance for t in ahead[len(mine) :])
        else:  # what is missing lies within the gap
            last = mine[-1] if len(mine) == k else 0.0
            assert ahead[0] <= max([last + gap, *mine]) + tolerance
        assert certified or not table
        for flow in found[:2]:
            it.close(it.R(*flow), flow.relevance)


def test_a_single_way_makes_independence() -> None:
    """Given a layer that has one neuron, what lies above it and below it have nothing to do with each other."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(a, b, bias=False) for a, b in ((3, 1), (1, 4), (4, 2)))).double()
    R = nrm.measure(model, torch.rand(2, 3).double(), rules="lrp-0")
    torch.testing.assert_close(R.lift(R.input, R["1"]), torch.ones(2, 3, 4).double())
    assert float(R.lift(R.input, R["1"], form="excess").abs().max()) < 1e-14
