"""Law 15: the measure of a difference is exact: mass 1 at every cut, every entry as defined, nothing for constants."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import assume, given, strategies as st
from torch import Tensor, nn

import nrm
from laws.agreement import law, law_of_each
from laws.test_units import carries_units_to_units
from networks import KINDS, Case, cases
from oracles.paired import Run
from recurrent import Fused, Unrolled, layer

pytestmark = pytest.mark.filterwarnings("ignore::nrm.errors.NrmWarning")


def reference(case: Case, seed: int = 7) -> tuple[Tensor, ...]:
    """Other inputs of the same shapes; some entries do not change."""
    random = torch.Generator().manual_seed(seed)
    found = []
    for x in case.inputs:
        other = torch.randn(x.shape, generator=random, dtype=x.dtype)
        found.append(torch.where(torch.rand(x.shape, generator=random) < 0.2, x, other))
    return tuple(found)


def contrast(model: nn.Module, x: object, against: object, **options: object) -> nrm.Measure:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", nrm.NrmWarning)
        return nrm.measure(model, x, against=against, **options)


def single(parts: tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
    return parts[0] if len(parts) == 1 else parts


def differs(R: nrm.Measure) -> bool:
    """Whether there is a difference to explain, beside what the outputs are."""
    return bool((R.value.abs() > 1e-6).all())


def holds_mass(R: nrm.Measure) -> None:
    """Every cut has mass 1, up to 1e-10 of the total variation, and nothing leaks."""
    check = R.check(strict=False)
    largest = max([1.0, *(max(row) for row in check.variation.values())])
    assert check.cut_error is not None
    assert check.cut_error <= 1e-10 * largest
    assert check.sinks == {}
    assert not any(check.biases)
    assert not any(check.offsets)
    assert check.differs is None


@pytest.mark.parametrize("kind", KINDS)
@law_of_each
@given(data=st.data())
def test_every_cut_of_a_contrast_has_mass_1(kind: str, data: st.DataObject) -> None:
    case = data.draw(cases(kind, batch=2))
    R = contrast(case.model, case.argument, single(reference(case)), target=0)
    assume(differs(R))
    carries_units_to_units(R)
    holds_mass(R)


@pytest.mark.parametrize("kind", KINDS)
@law_of_each
@given(data=st.data())
def test_every_entry_of_a_contrast_is_the_one_defined(kind: str, data: st.DataObject) -> None:
    case = data.draw(cases(kind, batch=2))
    other = reference(case)
    R = contrast(case.model, case.argument, single(other), target=0)
    assume(differs(R))
    agrees(R, Run(case.model, tuple(x.clone() for x in case.inputs), other, 0), data)


def agrees(R: nrm.Measure, run: Run, data: st.DataObject | None = None) -> None:
    """All relevances of all modules, and all entries between two of them, are those of the oracle."""
    torch.testing.assert_close(R.value, run.explained.detach(), rtol=1e-9, atol=1e-12)
    known = {row.name for row in R.layers}
    names = [name for name in run.tensors if name in known]
    assert "input" in run.tensors or "input[0]" in run.tensors
    for name in names:
        close(R(R[name]), run.relevance(name))
    if data is not None and len(names) > 1:
        low, high = sorted(data.draw(st.permutations(range(len(names))))[:2])
        table = run.joint(names[low], names[high])
        close(R(R[names[low]], R[names[high]]), table)


def close(answer: Tensor, truth: Tensor) -> None:
    torch.testing.assert_close(answer, truth, rtol=1e-7, atol=1e-9 * max(1.0, float(truth.abs().sum())))


@pytest.mark.parametrize("kind", KINDS)
@law_of_each
@given(data=st.data())
def test_a_contrast_and_its_reverse_are_opposite_in_units_of_the_output(kind: str, data: st.DataObject) -> None:
    case = data.draw(cases(kind, batch=2))
    other = single(reference(case))
    R, back = contrast(case.model, case.argument, other, target=0), contrast(case.model, other, case.argument, target=0)
    assume(differs(R))
    torch.testing.assert_close(back.value, -R.value)
    for layer_ in R.inputs:
        ours, theirs = R.in_units(layer_), back.in_units(layer_)
        torch.testing.assert_close(ours, -theirs, rtol=1e-7, atol=1e-10 * max(1.0, float(ours.abs().max())))


@pytest.mark.parametrize("kind", ["lstm", "gru", "tanh", "relu"])
@pytest.mark.parametrize("options", [{}, {"bidirectional": True}, {"num_layers": 2}], ids=str)
def test_recurrent_cells_have_the_contrast_of_their_algebra(kind: str, options: dict[str, object]) -> None:
    torch.manual_seed(0)
    fused = Fused(layer(kind, batch_first=True, **options))
    unrolled = Unrolled(fused)
    x, other = torch.randn(2, 2, 4, 3, dtype=torch.double)
    count = fused.rnn.num_layers * (2 if fused.rnn.bidirectional else 1)
    begin = (torch.zeros(2, count, 4, dtype=torch.double),) * (2 if kind == "lstm" else 1)  # what none at all means
    R, plain = contrast(fused, x, other, target=0), contrast(unrolled, (x, *begin), (other, *begin), target=0)
    run = Run(unrolled, (x, *begin), (other, *begin), 0)
    for measure, name in ((R, "input"), (plain, "input[0]")):
        carries_units_to_units(measure)
        holds_mass(measure)
        close(measure(measure[name]), run.relevance("input[0]"))
    agrees(plain, run)


class Attending(nn.Module):
    """Attention by hand, rotary as a constant matrix, RMS norms, a gated MLP: what language models are made of."""

    def __init__(self, width: int = 6, causal: bool = True) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.up, self.gate, self.down = nn.Linear(width, 8), nn.Linear(width, 8), nn.Linear(8, width)
        self.first, self.second = nn.RMSNorm(width), nn.LayerNorm(width)
        self.act, self.head = nn.SiLU(), nn.Linear(width, 3)
        self.causal = causal

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        heads = [p(h).reshape(*h.shape[:2], 2, -1).transpose(1, 2) for p in (self.q, self.k, self.v)]
        seen = nn.functional.scaled_dot_product_attention(*heads, is_causal=self.causal)
        x = x + self.o(seen.transpose(1, 2).reshape(x.shape))
        h = self.second(x)
        x = x + self.down(self.act(self.gate(h)) * self.up(h))
        return self.head(x[:, -1])


@pytest.mark.parametrize("causal", [False, True])
@law_of_each
@given(seed=st.integers(0, 2**20))
def test_a_transformer_has_the_contrast_that_is_defined(causal: bool, seed: int) -> None:
    torch.manual_seed(seed)
    model = Attending(causal=causal).double().eval()
    x, other = torch.randn(2, 2, 4, 6, dtype=torch.double)
    other[:, 1] = x[:, 1]
    R = contrast(model, x, other, target=0)
    assume(differs(R))
    carries_units_to_units(R)
    holds_mass(R)
    agrees(R, Run(model, (x,), (other,), 0))
    assert float(R(R.input)[:, 1].abs().max()) == 0


@law
@given(seed=st.integers(0, 2**20))
def test_a_linear_network_gives_exact_contributions(seed: int) -> None:
    """What an input changes by itself is what the output changes by it, in units of the output."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3), nn.Linear(3, 2)).double()
    x, other = torch.randn(2, 2, 4, dtype=torch.double)
    R = contrast(model, x, other, target=1)
    assume(differs(R))
    whole = (model[2].weight @ model[1].weight @ model[0].weight).detach()
    torch.testing.assert_close(R.in_units(R.input), (x - other) * whole[1])


class Additive(nn.Module):
    """A network in which the first inputs have a function of their own, added to one of the others."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.rest = (
            nn.Sequential(nn.Linear(n, 6), nn.GELU(), nn.LayerNorm(6), nn.Linear(6, 2)) for n in (2, 3)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.one(x[:, :2]) + self.rest(x[:, 2:])


@law
@given(seed=st.integers(0, 2**20))
def test_removing_what_is_added_is_predicted_exactly(seed: int) -> None:
    torch.manual_seed(seed)
    model = Additive().double()
    x, other = torch.randn(2, 2, 5, dtype=torch.double)
    R = contrast(model, x, other, target=0)
    assume(differs(R))
    mixed = torch.cat([other[:, :2], x[:, 2:]], 1)
    lost = (model(x) - model(mixed))[:, 0].detach()
    torch.testing.assert_close(R.in_units(R.input[:2]), lost, rtol=1e-8, atol=1e-10)
    removed = nrm.evaluate.occlusion(R, R.input[:2], value="reference")
    torch.testing.assert_close(removed, lost, rtol=1e-8, atol=1e-10)


@law
@given(seed=st.integers(0, 2**20))
def test_the_average_over_references_is_that_in_units_of_the_output(seed: int) -> None:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.LayerNorm(6), nn.Linear(6, 2)).double()
    x, *others = torch.randn(4, 2, 4, dtype=torch.double)
    R = contrast(model, x, others, target=0)
    each = [contrast(model, x, other, target=0) for other in others]
    assume(all(map(differs, each)))
    assume(bool((R.value.abs() > 1e-3).all()))
    torch.testing.assert_close(R.value, torch.stack([one.value for one in each]).mean(0))
    units = torch.stack([one.in_units(one.input) for one in each]).mean(0)
    torch.testing.assert_close(R.in_units(R.input), units)
    torch.testing.assert_close(R(R.input), units / R.value[:, None])
    torch.testing.assert_close(R(R.input).sum(1), torch.ones(2, dtype=torch.double))
    a, b = R.input, R["1"]
    joint = R(a, b)
    torch.testing.assert_close(R(a, given=b), joint / R(b)[:, None])
    flows = R.flows(a, b, k=1)
    for sample, (best,) in enumerate(flows):
        assert best.relevance == pytest.approx(float(joint[sample].max()))


@pytest.mark.parametrize("rules", [nrm.ZPlus(), nrm.Gamma(0.25), nrm.AlphaBeta(2, 1), "epsilon-plus-flat"], ids=str)
@pytest.mark.parametrize("kind", ["chain", "residual", "normed stream", "gate", "conv2d", "graph", "token"])
@law_of_each
@given(data=st.data())
def test_other_rules_act_on_the_entries_of_the_difference(rules: object, kind: str, data: st.DataObject) -> None:
    """They convert at their own steps, all others are exact; columns without a sum go to sinks, and mass is 1."""
    case = data.draw(cases(kind, batch=2))
    R = contrast(case.model, case.argument, single(reference(case)), target=0, rules=rules)
    assume(differs(R))
    carries_units_to_units(R)
    check = R.check(strict=False)
    largest = max([1.0, *(max(row) for row in check.variation.values())])
    assert max(abs(m - 1) for m in check.mass) <= 1e-9 * largest
