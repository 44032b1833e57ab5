"""A tape explains itself: computed again from what it reads, every node has the value that the model computed."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, strategies as st

import nrm
from capture.replay import needed_nodes
from laws.agreement import law
from networks import KINDS, cases
from nrm.capture import Source, capture, find_deviation

pytestmark = pytest.mark.filterwarnings("ignore::nrm.errors.NrmWarning")


@law
@given(data=st.data(), kind=st.sampled_from(sorted(KINDS)), dtype=st.sampled_from([torch.float32, torch.float64]))
def test_random_networks_come_out_again(data: st.DataObject, kind: str, dtype: torch.dtype) -> None:
    case = data.draw(cases(kind, batch=2))
    tape = capture(case.model.to(dtype), tuple(x.to(dtype) for x in case.inputs))
    assert find_deviation(tape) is None


@law
@given(data=st.data(), kind=st.sampled_from(sorted(KINDS)))
def test_a_node_that_does_not_come_out_is_named_and_refused(data: st.DataObject, kind: str) -> None:
    case = data.draw(cases(kind))
    R = nrm.measure(case.model, case.inputs)
    tape = R.inner.tape
    node = data.draw(st.sampled_from([n for n in needed_nodes(tape) if not isinstance(n.op, Source)]))
    node.value = node.value + 0.25 * node.value.abs().max() + 1e-3
    check = R.check(strict=False)
    assert check.differs is not None
    assert check.differs[0] == node.name
    assert not any(check.ok)
    with pytest.raises(nrm.CaptureError, match="does not come out again"):
        R.check()
