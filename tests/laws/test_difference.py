"""The difference of two measures is the difference of their lists of walks, for every question, network and rule."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, strategies as st

from laws.agreement import drawn, law_of_each, visited
from networks import KINDS

pytestmark = pytest.mark.filterwarnings("ignore::nrm.errors.NrmWarning")

every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
@law_of_each
@given(data=st.data())
def test_questions_and_flows(kind: str, data: st.DataObject) -> None:
    it = drawn(data, kind, batch=2)
    D = it.R.sample(0) - it.R.sample(1)
    sites = list(dict.fromkeys(visited(data, it, it.tensors, 2)))
    truth = it.truth(sites)
    layers = [it.layer(site) for site in sites]
    it.close(D(*layers), truth[:1] - truth[1:])
    found = D.flows(*layers, k=3)
    assert found.certified == (True,)
    largest = (truth[0] - truth[1]).abs().flatten()
    largest = largest[largest > 1e-9 * it.scale].sort(descending=True).values[:3]
    shares = torch.tensor([abs(flow.relevance) for flow in found[0]], dtype=torch.float64)[: len(largest)]
    it.close(shares, largest)
