"""Law 3: message passing equals the enumeration of walks, for every question, network and rule."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, strategies as st

import nrm
from laws.agreement import both, drawn, everywhere, law, law_of_each, law_of_some, masks, options, visited
from networks import KINDS, cases
from oracles import brute
from oracles.twin import RULES, Rules

pytestmark = pytest.mark.filterwarnings("ignore::nrm.errors.NrmWarning")

every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
@law_of_each
@given(data=st.data())
def test_marginals_of_every_tensor_and_edge(kind: str, data: st.DataObject) -> None:
    it = drawn(data, kind, batch=2)
    for site in [*it.tensors, *it.edges]:
        it.close(it.R(it.layer(site)), it.truth([site]))


@every_kind
@law_of_each
@given(data=st.data())
def test_any_question(kind: str, data: st.DataObject) -> None:
    """Up to four sets and two variables, of tensors and edges, in any order, the same layer twice among them."""
    it = drawn(data, kind, batch=2)
    sites = visited(data, it, [*it.tensors, *it.edges], 4)
    arguments, variables, events = [], [], []
    for site in sites:
        if len(variables) < 2 and (site == it.twins[0].net.output or data.draw(st.booleans())):
            arguments.append(it.layer(site))
            variables.append(site)
        elif site != it.twins[0].net.output:
            mask = data.draw(masks(it.shape(site)))
            arguments.append(it.layer(site).where(mask))
            events.append((site, mask))
    it.close(it.R(*arguments), it.truth(variables, events))


@every_kind
@law_of_each
@given(data=st.data())
def test_conditionals(kind: str, data: st.DataObject) -> None:
    """R(A | B) = R(A, B) / R(B): sets and variables on both sides; the axes of the condition come last."""
    it = drawn(data, kind)
    sites = visited(data, it, it.inner, 3)
    sets = [(site, data.draw(masks(it.shape(site)))) for site in sites]
    free = data.draw(st.sampled_from(it.tensors))
    joint, whole = it.truth([free], sets), it.truth([], sets)
    inside = sum(abs(r) for w, r in it.walks[0] if all(brute.at(s, _indices(m))(w) for s, m in sets))
    condition = [it.R[site].where(mask) for site, mask in sets]
    if float(whole.abs()) > 1e-2 * inside:
        answer = it.R(it.R[free], given=condition)
        it.close(answer, joint / whole.reshape(-1, *[1] * (joint.dim() - 1)), it.scale / float(whole.abs()))
    elif inside == 0:
        it.close(it.R(it.R[free], given=condition), 0.0)


@every_kind
@law_of_each
@given(data=st.data())
def test_conditional_tables(kind: str, data: st.DataObject) -> None:
    """A variable as the condition: one distribution per neuron, 0 where that neuron has no relevance."""
    it = drawn(data, kind, rules=st.sampled_from(["zplus", "wsquare"]).map(Rules))  # no cancellation
    a, b = data.draw(st.sampled_from(it.tensors)), data.draw(st.sampled_from(it.inner))
    joint, whole = it.truth([a, b]), it.truth([b])
    for_each = whole.reshape(1, *[1] * len(it.shape(a)), *it.shape(b))
    expected = torch.where(for_each == 0, 0.0, joint / torch.where(for_each == 0, 1.0, for_each))
    answer = it.R(it.R[a], given=it.R[b])
    assert answer.shape == expected.shape
    torch.testing.assert_close(answer, expected, rtol=1e-8, atol=1e-8)


@every_kind
@law_of_each
@given(data=st.data())
def test_biases_and_sinks(kind: str, data: st.DataObject) -> None:
    """Mass that enters at a bias or leaves into a sink is found under its name, and nowhere else."""
    it = drawn(data, kind, zero="sink")
    for name in it.late:
        mass = brute.measure(it.walks[0], brute.at(name))
        it.close(it.R(it.R[name].all), mass)
    total = sum(brute.measure(it.walks[0], brute.at(name)) for name in it.late if ".bias" in name)
    it.close(sum((it.R(layer.all) for layer in it.R.biases), torch.zeros(1, dtype=torch.float64)), total)


@pytest.mark.parametrize("kind", ["conv1d", "conv2d", "conv residual"])
@law_of_some
@given(data=st.data())
def test_bias_of_a_channel(kind: str, data: st.DataObject) -> None:
    """One bias neuron per channel: positions are summed."""
    it = drawn(data, kind, biases=True, bias="input", rules=st.sampled_from(["lrp0", "zplus"]).map(Rules))
    for name, value in it.twins[0].net.values.items():
        if name.endswith(".bias"):
            truth = brute.table(it.walks[0], [(name, torch.arange(len(value)))])
            it.close(it.R(it.R[name])[0], truth)


@every_kind
@law_of_each
@given(data=st.data())
def test_parallel_tensors_never_meet(kind: str, data: st.DataObject) -> None:
    it = drawn(data, kind)
    a, b = (data.draw(st.sampled_from(it.tensors)) for _ in "ab")
    if not any({a, b} <= {t for t, _ in walk} for walk, _ in it.walks[0]):
        assert not it.R(it.R[a], it.R[b]).any()


@pytest.mark.parametrize("kind", ["chain", "normed", "residual", "conv1d"])
@law_of_some
@given(data=st.data())
def test_a_rule_per_layer(kind: str, data: st.DataObject) -> None:
    """A mapping from layer names to rules; the others have LRP-0, and a skip has the rule of the branch it joins."""
    names = {"chain": ["lin0", "lin1"], "normed": ["lin0"], "residual": ["lin1", "lin2", "head"], "conv1d": ["conv1"]}[
        kind
    ]
    chosen = st.dictionaries(st.sampled_from(names), st.sampled_from(sorted(RULES)), min_size=1)
    it = drawn(data, kind, rules=chosen.map(lambda layers: Rules("lrp0", layers)))
    for site in it.tensors:
        it.close(it.R(it.layer(site)), it.truth([site]))


@law
@given(data=st.data(), kind=st.sampled_from(sorted(KINDS)))
def test_asking_for_an_excluded_output_is_an_error(kind: str, data: st.DataObject) -> None:
    """It would be 0, and 0 would be read as a finding."""
    it = drawn(data, kind)
    chosen = it.twins[0].net.relevance.bool()
    output = it.R[it.twins[0].net.output]
    it.close(it.R(output.where(chosen)), 1.0)
    if not chosen.all():
        with pytest.raises(nrm.QuestionError):
            it.R(output.where(~chosen))


@pytest.mark.parametrize("spread", ["logits", "softmax"])
@law
@given(data=st.data(), rules=everywhere, options=options)
def test_spread_output(spread: str, data: st.DataObject, rules: Rules, options: dict[str, str]) -> None:
    case = data.draw(cases("chain", batch=2))
    outputs = case.outputs
    assume(bool((outputs.sum(1) > 0.1 * outputs.abs().sum(1)).all()))
    it = both(case, rules, spread, **options)
    out = it.tensors[-1]
    try:
        answer = it.R(it.R.output)
    except nrm.MassError:  # sinks of both signs, which the walks' sum over a step does not show
        assume(False)
    it.close(answer, it.truth([out]))
    it.close(it.R(it.R["input"], it.R.output), it.truth(["input", out]))


def _indices(mask: torch.Tensor) -> list[int]:
    return mask.flatten().nonzero().flatten().tolist()
