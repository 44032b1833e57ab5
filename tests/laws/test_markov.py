"""Law 4: the Markov property, the theorem on constant-sum rules, and the epsilon that cancels."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import assume, given, strategies as st
from torch import Tensor, nn

import nrm
from laws.agreement import ask, drawn, law, law_of_some
from modules import Residual, filled
from networks import KINDS, Case, cases
from oracles.brute import Rule
from oracles.twin import Rules

pytestmark = pytest.mark.filterwarnings("ignore::nrm.errors.NrmWarning")

signed = st.sampled_from(["lrp0", "gamma", "wsquare"]).map(Rules)


def linears(case: Case) -> list[tuple[str, nn.Linear]]:
    return [(name, m) for name, m in case.model.named_modules() if isinstance(m, nn.Linear)]


@pytest.mark.parametrize("kind", ["chain", "normed", "conv1d"])
@law_of_some
@given(data=st.data())
def test_markov(kind: str, data: st.DataObject) -> None:
    """R(below | here, above) = R(below | here): what lies above a neuron says nothing more about what lies below."""
    it = drawn(data, kind, rules=st.sampled_from(["zplus", "wsquare", "flat"]).map(Rules))
    names = sorted(data.draw(st.sets(st.integers(0, len(it.inner) - 1), min_size=3, max_size=3)))
    below, here, above = (it.R[it.tensors[k]] for k in names)
    n = data.draw(st.integers(0, it.R(here).numel() - 1))
    m = data.draw(st.integers(0, it.R(above).numel() - 1))
    one = (torch.arange(it.R(here).numel()) == n).reshape(it.shape(here.name))
    two = (torch.arange(it.R(above).numel()) == m).reshape(it.shape(above.name))
    h, a = here.where(one), above.where(two)
    assume(bool((it.R(h, a).abs() > 1e-6).all()))
    it.close(it.R(below, given=(h, a)), it.R(below, given=h), it.scale * 1e3)


def test_a_bypassed_tensor_does_not_separate() -> None:
    """The chain's statement needs a cut: inside a residual block, part of the mass goes around the middle tensor."""
    model = filled(Residual(3, 4, 2, bias=True, norm=False, scale=1.0, shortcut=False, act="tanh"), seed=1)
    R = ask(Case("residual", model, (torch.ones(1, 3).double(),), lambda t, x: ""), Rules("wsquare"), 0)
    x, h, y = R["input"], R["act1"], R["/add"]
    assert (R(x, y[0]) - R(x, h.all, y[0])).abs().max() > 1e-3


@law
@given(data=st.data())
def test_full_joint_is_the_product_of_conditionals(data: st.DataObject) -> None:
    """R(n0, ..., nL) = prod R(n_l-1 | n_l) R(n_L), for every walk of a small chain at once."""
    it = drawn(data, "chain", rules=signed, biases=False, zero="uniform")
    names = ["input", *(name for name, _ in linears(it.case))]
    assume(len(names) <= 4)
    layers = [it.R[name] for name in names]
    full = it.R(*layers)
    it.close(full, it.truth(names))
    product = it.R(layers[-1])
    for lower, upper in itertools.pairwise(reversed(layers)):  # (upper, lower) in walking order
        marginal = it.R(lower)
        assume(bool((marginal.abs() > 1e-6).all()))
        step = it.R(upper, given=lower)[0]
        product = product.unsqueeze(1) * step.reshape(1, *step.shape, *[1] * (product.dim() - 2))
    it.close(full, product, it.scale * 1e4)


@law
@given(data=st.data(), key=st.sampled_from(["alpha2beta1", "alpha3beta1"]))
def test_constant_sum_rules(data: st.DataObject, key: str) -> None:
    """Theorem 2: with columns of both signs, R(walk) is the original walk relevance, normalized once at the end."""
    case = data.draw(cases("chain", biases=False))
    rule = Rules(key).brute("")
    matrices, h = [], case.inputs[0][0]
    for module in case.model:
        if isinstance(module, nn.Linear):
            matrices.append(_original(rule, h, module.weight.detach().T))
        h = module(h[None].clone())[0].detach()
    assume(len(matrices) <= 3 and all(m is not None for m in matrices))
    target = data.draw(st.integers(0, len(h) - 1))
    walks = torch.zeros(len(h), dtype=torch.float64)
    walks[target] = 1.0
    for matrix in reversed(matrices):
        walks = matrix.reshape(*matrix.shape, *[1] * (walks.dim() - 1)) * walks
    R = ask(case, Rules(key), target)
    answer = R(*(R[name] for name in ["input", *(n for n, _ in linears(case))]))[0]
    torch.testing.assert_close(answer, walks / walks.sum(), rtol=1e-8, atol=1e-9 * float(walks.abs().sum()))
    raw = ask(case, Rules(key), target, normalize=False)
    answer = raw(*(raw[name] for name in ["input", *(n for n, _ in linears(case))]))[0]
    torch.testing.assert_close(
        answer / answer.sum(), walks / walks.sum(), rtol=1e-8, atol=1e-9 * float(walks.abs().sum())
    )


def test_one_sided_columns_break_the_theorem() -> None:
    """A column of one sign sums to alpha instead of alpha - beta: then normalizing once or at each step differ."""
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False)).double()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 2.0], [3.0, -1.0]]))
        model[1].weight.copy_(torch.tensor([[1.0, 1.0]]))
    case = Case("two steps", model, (torch.ones(1, 2, dtype=torch.float64),), lambda t, x: "")
    R = ask(case, Rules("alpha3beta1"), 0)
    first = torch.tensor([[3 * 1 / 3, 3.0], [3 * 2 / 3, -1.0]]).double()  # the first column has no negative part
    once = first * torch.tensor([3 * 3 / 5, 3 * 2 / 5]).double()
    assert (R(R["input"], R["0"])[0] - once / once.sum()).abs().max() > 1e-2
    each = first / first.sum(0) * torch.tensor([3 / 5, 2 / 5]).double()
    torch.testing.assert_close(R(R["input"], R["0"])[0], each)


@law
@given(data=st.data(), kind=st.sampled_from(sorted(KINDS)), epsilon=st.sampled_from([0.0, 1e-6, 0.25]))
def test_epsilon_is_lrp0(data: st.DataObject, kind: str, epsilon: float) -> None:
    """Normalizing the epsilon rule gives LRP-0: its epsilon is a factor of the whole column and cancels."""
    it = drawn(data, kind, rules=st.just(Rules("lrp0")))
    target = int(it.twins[0].net.relevance.argmax())
    R = nrm.measure(
        it.case.model, it.case.argument, target=target, rules=nrm.Epsilon(epsilon), dtype=torch.float64,
        bias=it.twins[0].net.bias, zero=it.twins[0].net.zero,
    )  # fmt: skip
    for name in it.tensors:
        it.close(R(R[name]), it.R(it.R[name]))


def _original(rule: Rule, h: Tensor, w: Tensor) -> Tensor | None:
    """The paper's alpha-beta matrix, None if a column lacks a sign."""
    z = h[:, None] * w
    up, down = z.clamp(min=0), (-z).clamp(min=0)
    if (up.sum(0) == 0).any() or (down.sum(0) == 0).any():
        return None
    return rule.p * up / up.sum(0) - rule.q * down / down.sum(0)
