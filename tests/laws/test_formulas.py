"""Laws 3 and 6: formulas about walks equal the list of walks, however they are written, asked and chunked."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import assume, given, strategies as st
from torch import Tensor

import nrm
from laws.agreement import Both, drawn, law, law_of_each, masks, subsets, visited
from networks import KINDS
from nrm.questions import Formula
from oracles import brute
from oracles.brute import Event, Site

pytestmark = pytest.mark.filterwarnings("ignore::nrm.errors.NrmWarning")

every_kind = pytest.mark.parametrize("kind", KINDS)

LOGIC: dict[str, tuple[Callable[[Formula, Formula], Formula], Callable[[bool, bool], bool]]] = {
    "and": (operator.and_, lambda a, b: a and b),
    "or": (operator.or_, lambda a, b: a or b),
    "xor": (operator.xor, lambda a, b: a != b),
    "implies": (lambda a, b: a.implies(b), lambda a, b: not a or b),
}


@dataclass
class Logic:
    """A formula for the library and what it says of a walk, side by side."""

    formula: Formula
    holds: Event

    def __invert__(self) -> Logic:
        return Logic(~self.formula, lambda walk: not self.holds(walk))

    def joined(self, how: str, other: Logic) -> Logic:
        ours, truth = LOGIC[how]
        return Logic(ours(self.formula, other.formula), lambda walk: truth(self.holds(walk), other.holds(walk)))


def atom(data: st.DataObject, it: Both, most: int = 3) -> Logic:
    """Visits of one to three sets of tensors, edges, biases and sinks."""
    sites: list[Site] = visited(data, it, [*it.inner, *it.edges], most)
    sets, events = [], []
    for site in sites:
        mask = data.draw(masks(it.shape(site)))
        sets.append(it.layer(site).where(mask))
        events.append(brute.at(site, mask.flatten().nonzero().flatten().tolist()))
    if it.late and data.draw(st.integers(0, 3)) == 0:
        name = data.draw(st.sampled_from(it.late))
        sets.append(it.R[name].all)
        events.append(brute.at(name))
    return Logic(nrm.visits(*sets), lambda walk: any(event(walk) for event in events))


def logic(data: st.DataObject, it: Both, atoms: int) -> Logic:
    """A random formula of so many atoms, some of them used twice."""
    known = [atom(data, it) for _ in range(atoms)]
    whole = known[0]
    for other in [*known[1:], *data.draw(st.lists(st.sampled_from(known), max_size=2))]:
        other = ~other if data.draw(st.booleans()) else other
        whole = whole.joined(data.draw(st.sampled_from(sorted(LOGIC))), other)
        whole = ~whole if data.draw(st.booleans()) else whole
    return whole


def measure(it: Both, holds: Event, variables: list[Site] | None = None) -> Tensor:
    """The oracle's answer, in the library's shapes."""
    shapes = [it.shape(site) for site in variables or []]
    labelled = [(s, torch.arange(torch.Size(shape).numel())) for s, shape in zip(variables or [], shapes, strict=True)]
    tables = [brute.table(found, labelled, holds) for found in it.walks]
    return torch.stack(tables).reshape(len(it.walks), *(n for shape in shapes for n in shape))


@every_kind
@law_of_each
@given(data=st.data())
def test_dividends_are_the_walks_sorted_by_what_they_visit(kind: str, data: st.DataObject) -> None:
    """Every entry is the sum over the walks that visit just these events; all together are the relevance of all."""
    it = drawn(data, kind, batch=2)
    events = [atom(data, it) for _ in range(data.draw(st.integers(1, 3)))]
    expected = torch.zeros(len(it.walks), *(2,) * len(events), dtype=torch.float64)
    for sample, found in enumerate(it.walks):
        for walk, relevance in found:
            expected[(sample, *(int(event.holds(walk)) for event in events))] += relevance
    table = it.R.dividends(*(event.formula for event in events))
    it.close(table, expected)
    # The game of the docstring: a coalition is worth the walks that avoid every event outside of it.
    value = table
    for axis in range(1, table.ndim):
        value = value.cumsum(axis)
    for coalition in itertools.product((0, 1), repeat=len(events)):
        outside = [event.holds for event, inside in zip(events, coalition, strict=True) if not inside]
        worth = [brute.measure(found, lambda walk, out=outside: not any(h(walk) for h in out)) for found in it.walks]
        it.close(value[(slice(None), *coalition)], torch.tensor(worth, dtype=torch.float64))


@every_kind
@law_of_each
@given(data=st.data())
def test_any_formula(kind: str, data: st.DataObject) -> None:
    it = drawn(data, kind, batch=2)
    one = logic(data, it, data.draw(st.integers(1, 4)))
    it.close(it.R(one.formula), measure(it, one.holds))


@every_kind
@law_of_each
@given(data=st.data())
def test_heat_maps_and_mixtures(kind: str, data: st.DataObject) -> None:
    """Formulas beside sets and up to two free layers, tensors and edges, in any order."""
    it = drawn(data, kind, batch=2)
    one = logic(data, it, data.draw(st.integers(1, 3)))
    arguments: list[nrm.Layer | nrm.Set | Formula] = []
    variables: list[Site] = []
    events = [one.holds]
    for site in dict.fromkeys(visited(data, it, [*it.tensors, *it.edges], 3)):
        if len(variables) < 2 and (site == it.twins[0].net.output or data.draw(st.booleans())):
            arguments.append(it.layer(site))
            variables.append(site)
        if site != it.twins[0].net.output and (site not in variables or data.draw(st.booleans())):
            mask = data.draw(masks(it.shape(site)))
            arguments.append(it.layer(site).where(mask))
            events.append(brute.at(site, mask.flatten().nonzero().flatten().tolist()))
    arguments.insert(data.draw(st.integers(0, len(arguments))), one.formula)
    it.close(it.R(*arguments), measure(it, lambda walk: all(e(walk) for e in events), variables))


@every_kind
@law_of_each
@given(data=st.data())
def test_conditional_formulas(kind: str, data: st.DataObject) -> None:
    it = drawn(data, kind)
    one, condition = logic(data, it, 2), logic(data, it, 2)
    free = data.draw(st.sampled_from(it.tensors))
    whole = float(measure(it, condition.holds))
    inside = sum(abs(r) for w, r in it.walks[0] if condition.holds(w))
    assume(abs(whole) > 1e-2 * inside)
    joint = measure(it, lambda w: one.holds(w) and condition.holds(w), [free])
    answer = it.R(it.R[free], one.formula, given=condition.formula)
    it.close(answer, joint / whole, it.scale / abs(whole))
    one_number = measure(it, lambda w: one.holds(w) and condition.holds(w)) / whole
    it.close(it.R(one.formula, given=[condition.formula]), one_number, it.scale / abs(whole))


@every_kind
@law_of_each
@given(data=st.data())
def test_a_set_and_the_walks_that_avoid_it(kind: str, data: st.DataObject) -> None:
    """R(S) = 1 - R(~visits(S)), and the same jointly with another set."""
    it = drawn(data, kind, batch=2)
    a, b = (
        it.layer(s).where(data.draw(masks(it.shape(s)))) for s in (data.draw(st.sampled_from(it.inner)) for _ in "ab")
    )
    it.close(it.R(nrm.visits(a)), it.R(a))
    it.close(1 - it.R(~nrm.visits(a)), it.R(a))
    it.close(it.R(b, nrm.visits(a)), it.R(a, b))
    it.close(it.R(b) - it.R(b, ~nrm.visits(a)), it.R(a, b))


@law
@given(data=st.data(), kind=st.sampled_from(sorted(KINDS)))
def test_laws_of_logic(kind: str, data: st.DataObject) -> None:
    """De Morgan, double negation, distribution; and inclusion and exclusion."""
    it = drawn(data, kind)
    a, b, c = (atom(data, it).formula for _ in "abc")
    R = it.R
    it.close(R(~(a & b)), R(~a | ~b))
    it.close(R(~(a | b)), R(~a & ~b))
    it.close(R(~~a), R(a))
    it.close(R(a & (b | c)), R((a & b) | (a & c)))
    it.close(R(a.implies(b)), R(~a | b))
    it.close(R(a ^ b), R(a | b) - R(a & b))
    it.close(R(a | b), R(a) + R(b) - R(a & b))
    it.close(R(a | ~a), 1.0)
    it.close(R(a & ~a), 0.0)
    x = R[it.tensors[0]]
    it.close(R(x, ~(a & b)), R(x, ~a | ~b))
    it.close(R(x, a) + R(x, ~a), R(x))


@law
@given(data=st.data(), kind=st.sampled_from(sorted(KINDS)))
def test_formulas_with_equal_truth_tables(kind: str, data: st.DataObject) -> None:
    """A formula and the disjunction of all combinations in which it holds."""
    it = drawn(data, kind)
    one = logic(data, it, 3).formula
    atoms = [Formula(("visits", a)) for a in one.atoms]
    spelled = atoms[0] & ~atoms[0]
    for number, holds in enumerate(one.truth().tolist()):
        if holds:
            term = atoms[0] | ~atoms[0]
            for k, a in enumerate(atoms):
                term = term & (a if number >> k & 1 else ~a)
            spelled = spelled | term
    it.close(it.R(one), it.R(spelled))


@law
@given(data=st.data(), kind=st.sampled_from(sorted(KINDS)))
def test_inclusion_and_exclusion_over_avoiding(kind: str, data: st.DataObject) -> None:
    """Visiting all of some sets, from the masses of walks that avoid every one of some."""
    it = drawn(data, kind)
    atoms = [atom(data, it, 2).formula for _ in range(3)]
    total = 0.0
    for some in subsets(atoms):
        none = atoms[0] | ~atoms[0]
        for a in some:
            none = none & ~a
        total = total + (-1) ** len(some) * it.R(none)
    it.close(it.R(atoms[0] & atoms[1] & atoms[2]), total)


@every_kind
@law_of_each
@given(data=st.data())
def test_little_memory_changes_nothing(kind: str, data: st.DataObject) -> None:
    """Events are told apart one by one where their messages do not fit side by side."""
    it = drawn(data, kind, batch=2)
    one = logic(data, it, 3)
    wide = it.R.plan(one.formula)
    bound = max(4096, wide.peak // 2)
    small = nrm.measure(
        it.case.model, it.case.argument, target=it.R.target, rules=it.rules.library(it.case.model),
        dtype=torch.float64, bias=it.R.inner.network.bias, zero=it.R.inner.network.zero, memory=bound,
    )  # fmt: skip
    free = it.layer(data.draw(st.sampled_from(it.tensors)))
    try:
        answers = small(one.formula), small(free, one.formula)
    except nrm.MemoryLimitError:
        return
    it.close(answers[0], it.R(one.formula))
    it.close(answers[1], it.R(free, one.formula))


def test_nothing_is_left_out_where_relevance_cancels() -> None:
    """Relevances of 0 from messages that are not 0: small integers, so that they cancel exactly."""
    model = torch.nn.Sequential(
        torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 2, bias=False), torch.nn.Linear(2, 1)
    )
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 1.0], [1.0, 3.0]]))
        model[1].weight.copy_(torch.tensor([[2.0, -0.5], [-1.0, 1.0]]))
        model[2].weight.copy_(torch.tensor([[1.0, 2.0]]))
        model[2].bias.zero_()
    R = nrm.measure(model.double(), torch.tensor([[1.0, 1.0]]).double(), rules="lrp-0", bias="ignore")
    x, a, b = R.input, R["0"], R["1"]
    assert float(R(a.channel(0))) == 0.0
    A, B, X = nrm.visits(a.channel(0)), nrm.visits(b.channel(0)), nrm.visits(x.channel(0))
    assert float(R(A)) == 0.0
    for here, there in itertools.product((A, ~A), (B, ~B)):
        assert float(R(here & there)) != 0.0
    assert torch.equal(R(a.channels, B)[0] != 0, torch.tensor([True, True]))
    torch.testing.assert_close(R(A & B), R(a.channel(0), b.channel(0)))
    torch.testing.assert_close(R(A & B & X), R(x.channel(0), a.channel(0), b.channel(0)))
    torch.testing.assert_close(R(b.channels, A), R(b.channels, a.channel(0)))
    table = R(a.channels, x.channels, B)  # every channel of a is carried by itself, the one with relevance 0 too
    torch.testing.assert_close(table, R(a.channels, x.channels, b.channel(0)))
    assert bool((table != 0).all())
