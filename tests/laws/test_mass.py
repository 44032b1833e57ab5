"""Law 1: every cut has mass 1, mass is conserved at every neuron, and the paper's relevance laws (Appendix B) hold."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, strategies as st

import nrm
from laws.agreement import ask, drawn, law, law_of_each, law_of_some, masks
from networks import KINDS, cases
from oracles import brute
from oracles.twin import Rules

pytestmark = pytest.mark.filterwarnings("ignore::nrm.errors.NrmWarning")

every_kind = pytest.mark.parametrize("kind", KINDS)
unsigned = st.sampled_from(["zplus", "alpha1beta0", "flat", "wsquare"]).map(Rules)


@every_kind
@law_of_each
@given(data=st.data())
def test_every_cut_has_mass_one(kind: str, data: st.DataObject) -> None:
    it = drawn(data, kind, batch=2)
    for name in it.tensors:
        it.close(sum(it.R(part.all) for part in it.R.cut(name)), 1.0)
    it.close(sum(it.R(part.all) for part in it.R.inputs), 1.0)


@every_kind
@law_of_each
@given(data=st.data())
def test_a_cut_is_crossed_exactly_once(kind: str, data: st.DataObject) -> None:
    """Mass 1 could be luck; the parts' joint relevances say it is not: no walk crosses two of them."""
    it = drawn(data, kind, rules=unsigned)
    name = data.draw(st.sampled_from(it.tensors))
    parts = list(it.R.cut(name))
    for k, a in enumerate(parts):
        for b in parts[k + 1 :]:
            it.close(it.R(a.all, b.all), 0.0)
    assert any(torch.equal(it.R(part.all), it.R(it.R[name].all)) for part in parts)


@every_kind
@law_of_each
@given(data=st.data())
def test_conservation_at_every_neuron(kind: str, data: st.DataObject) -> None:
    """Mass in = mass out: what arrives from a tensor's consumers is what leaves to its parents."""
    it = drawn(data, kind)
    pairs = {(a, b) for walk, _ in it.walks[0] for (a, _), (b, _) in itertools.pairwise(walk)}  # late sources too
    output = it.twins[0].net.output
    for name in it.tensors:
        mass = it.R(it.R[name])
        if name != output:
            arrives = [it.R(it.R.edge(*pair)) for pair in it.edges if pair[0] == name]
            it.close(sum(arrives, torch.zeros_like(mass)), mass)
        below = {a for a, b in pairs if b == name}
        if below:
            leaves = [
                it.R(it.R[a].all, it.R[name]) if "." in a else it.R(it.R.edge(a, name).all, it.R[name]) for a in below
            ]
            it.close(sum(leaves), mass)


@every_kind
@law_of_each
@given(data=st.data())
def test_sets_of_one_layer(kind: str, data: st.DataObject) -> None:
    """The empty set, the complement, the addition of two and of three sets."""
    it = drawn(data, kind, batch=2)
    a = it.R[data.draw(st.sampled_from(it.inner))]
    x, y, z = (a.where(data.draw(masks(it.shape(a.name)))) for _ in "xyz")
    R = it.R
    assert not R(a.where(torch.zeros(it.shape(a.name), dtype=torch.bool))).any()
    assert not R(x & ~x).any()
    it.close(R(x) + R(~x), R(a.all))
    it.close(R(x | ~x), R(a.all))
    it.close(R(x | y), R(x) + R(y) - R(x & y))
    it.close(R(x | y | z), R(x) + R(y) + R(z) - R(x & y) - R(y & z) - R(x & z) + R(x & y & z))
    it.close(R(x - y), R(x) - R(x & y))
    it.close(R(x ^ y), R(x | y) - R(x & y))
    it.close(R(~(x & y)), R(~x | ~y))
    it.close(R(x, y), R(x & y))


@pytest.mark.parametrize("kind", ["chain", "normed", "conv1d", "reused"])
@law_of_some
@given(data=st.data())
def test_complementary_law(kind: str, data: st.DataObject) -> None:
    """On a proper network every tensor is a cut, and R(S) = 1 - R(~S) as in the paper."""
    it = drawn(data, kind, bias="ignore", zero="uniform")
    a = it.R[data.draw(st.sampled_from(it.inner))]
    x = a.where(data.draw(masks(it.shape(a.name))))
    it.close(it.R(x), 1 - it.R(~x))


@every_kind
@law_of_each
@given(data=st.data())
def test_multiplication_chain_rule_and_bayes(kind: str, data: st.DataObject) -> None:
    it = drawn(data, kind, rules=unsigned)
    names = [data.draw(st.sampled_from(it.inner)) for _ in "abc"]
    a, b, c = (it.R[name].where(data.draw(masks(it.shape(name)))) for name in names)
    R = it.R
    if (R(b) > 1e-6).all():
        it.close(R(a, b), R(a, given=b) * R(b))
        it.close(R(b, given=b), 1.0)
        if (R(a) > 1e-6).all():
            it.close(R(a, given=b) * R(b), R(b, given=a) * R(a))
    if (R(b, c) > 1e-6).all():
        it.close(R(a, b, c), R(a, given=(b, c)) * R(b, given=c) * R(c))
    if not R(b).any():
        assert not R(a, given=b).any()


@law
@given(data=st.data(), kind=st.sampled_from(sorted(KINDS)))
def test_conditioning_on_nothing_is_zero(kind: str, data: st.DataObject) -> None:
    it = drawn(data, kind)
    a, b = (it.R[data.draw(st.sampled_from(it.inner))] for _ in "ab")
    nothing = b.where(torch.zeros(it.shape(b.name), dtype=torch.bool))
    assert not it.R(a, given=nothing).any()


def whole(R: nrm.Measure) -> list[torch.Tensor]:
    """A question that reaches every column that is reached at all."""
    return [R(part.all) for part in R.inputs]


@law
@given(data=st.data(), kind=st.sampled_from(sorted(KINDS)))
def test_error_policy(kind: str, data: st.DataObject) -> None:
    """`zero="error"` raises if and only if some walk reaches a column without mass."""
    case = data.draw(cases(kind))
    rules = data.draw(st.sampled_from(["zplus", "alpha1beta0", "lrp0"]).map(Rules))
    target = data.draw(st.integers(0, case.outputs.shape[1] - 1))
    try:
        brute.walks(case.oracle(rules, target, bias="ignore", zero="error"))
    except brute.ZeroColumn:
        with pytest.raises(nrm.NrmError):
            whole(ask(case, rules, target, bias="ignore", zero="error"))
    else:
        whole(ask(case, rules, target, bias="ignore", zero="error"))
