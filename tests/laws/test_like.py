"""A measure that follows another one is the measure that is made alone, to the last bit, whatever was done between."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

import nrm
from laws.agreement import law
from networks import KINDS, cases
from nrm.capture import Tape, find_deviation
from nrm.capture.contrast.compare import _same

pytestmark = pytest.mark.filterwarnings("ignore::nrm.errors.NrmWarning")

FACTS = ("name", "module", "function", "inputs", "shape", "sample", "channel", "heads", "dtype")


def assert_same(mine: Tape, alone: Tape) -> None:
    """Two tapes with the same nodes: facts, values, samples of every entry, and all that their ops hold."""
    assert len(mine.nodes) == len(alone.nodes)
    for a, b in zip(mine.nodes, alone.nodes, strict=True):
        assert [getattr(a, fact) for fact in FACTS] == [getattr(b, fact) for fact in FACTS]
        assert torch.equal(a.value, b.value), a.name
        assert type(a.op) is type(b.op)
        assert _same(a.op, b.op), a.name
        assert (a.owner is None) == (b.owner is None)
        assert a.owner is None or torch.equal(a.owner, b.owner)
        assert (a.recall is None) == (b.recall is None)
        assert a.recall is None or a.recall.reads == b.recall.reads
    parts = ("names", "received", "steps", "inputs", "output", "batch", "consumers", "flops", "forward")
    assert [getattr(mine, part) for part in parts] == [getattr(alone, part) for part in parts]
    assert (mine.ends is None) == (alone.ends is None)
    assert find_deviation(mine) is None


def followed(R: nrm.Measure) -> bool:
    """Whether a measure was made by following another one."""
    return "calls are those of an earlier measure" in repr(R)


def asked(R: nrm.Measure, layer: nrm.Layer) -> Tensor:
    """An answer, or nothing where the measure is refused: an output of 0 has no shares."""
    try:
        return R(layer)
    except nrm.MassError:
        return torch.empty(0)


@law
@given(
    data=st.data(), kind=st.sampled_from(sorted(KINDS)), batch=st.sampled_from([1, 2]),
    change=st.sampled_from(["nothing", "in place", "behind autograd", "exchanged"]),
)  # fmt: skip
def test_following_gives_what_recording_gives(data: st.DataObject, kind: str, batch: int, change: str) -> None:
    case = data.draw(cases(kind, batch=batch))
    others = tuple(torch.flip(x, (-1,)) * 0.75 + 0.125 for x in case.inputs)
    first = nrm.measure(case.model, case.inputs)
    for p in case.model.parameters():
        if change == "in place":
            with torch.no_grad():
                p.mul_(1.5)
        elif change == "behind autograd":
            p.data.numpy()[...] *= 1.5
        elif change == "exchanged":
            p.data = p.data * 1.5
    mine, alone = nrm.measure(case.model, others, like=first), nrm.measure(case.model, others)
    assert_same(mine.inner.tape, alone.inner.tape)
    third = nrm.measure(case.model, case.inputs, like=mine)
    assert_same(third.inner.tape, nrm.measure(case.model, case.inputs).inner.tape)
    for part, other in zip(mine.inputs, alone.inputs, strict=True):
        assert torch.equal(asked(mine, part), asked(alone, other))
    assert followed(mine) or any("recorded anew" in note for note in mine.inner.tape.notes)


@law
@given(data=st.data(), kind=st.sampled_from(sorted(KINDS)))
def test_contrasts_follow_as_well(data: st.DataObject, kind: str) -> None:
    case = data.draw(cases(kind))
    x = tuple(i.clone() for i in case.inputs)
    reference = tuple(i * 0.5 for i in x)
    first = nrm.measure(case.model, tuple(i + 0.25 for i in x), against=reference)
    mine, alone = (nrm.measure(case.model, x, against=reference, like=one) for one in (first, None))
    assert_same(mine.inner.tape.here, alone.inner.tape.here)
    assert mine.inner.tape.runs is not None
    assert alone.inner.tape.runs is not None
    assert_same(mine.inner.tape.runs[1], alone.inner.tape.runs[1])
