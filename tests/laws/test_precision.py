"""Law 10: how far float32 may be from float64, and that the check knows when it is farther."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import assume, given, strategies as st

import nrm
from laws.agreement import law_of_some
from networks import KINDS, Case, cases
from oracles.twin import Rules

pytestmark = pytest.mark.filterwarnings("ignore::nrm.errors.NrmWarning")

EPS = torch.finfo(torch.float32).eps


def single(case: Case) -> Case:
    """The same network stored in float32."""
    return Case(case.kind, copy.deepcopy(case.model).float(), tuple(x.float() for x in case.inputs), case.trace)


def measured(case: Case, rules: Rules, **how: object) -> nrm.Measure:
    return nrm.measure(case.model, case.argument, target=0, rules=rules.library(case.model), zero="uniform", **how)


@pytest.mark.parametrize(
    ("rule", "bias"),
    [("zplus", "ignore"), ("zplus", "input"), ("flat", "ignore"), ("wsquare", "input"), ("lrp0", "input")],
)
@law_of_some
@given(data=st.data(), kind=st.sampled_from(sorted(KINDS)))
def test_float32_against_float64(rule: str, bias: str, data: st.DataObject, kind: str) -> None:
    """Within 100 eps x the largest total variation of a layer: non-negative rules, LRP-0 with biases as inputs."""
    case = single(data.draw(cases(kind, batch=2)))
    exact = measured(case, Rules(rule), bias=bias, dtype=torch.float64)
    assume(bool((exact.value != 0).all()))  # nothing is a share of 0
    names = list(case.twin(Rules(rule), bias=bias).shapes)
    tables = {name: exact(exact[name]).flatten(1) for name in names}
    variation = max(float(t.abs().sum(1).max()) for t in tables.values())
    if not math.isfinite(variation) or variation > 1e3:
        return  # beyond that, check() has the word
    rough = measured(case, Rules(rule), bias=bias)
    for name, table in tables.items():
        answer = rough(rough[name])
        assert answer.dtype == torch.float32
        error = (answer.flatten(1).double() - table).abs().sum(1).max()
        assert error <= 100 * EPS * max(1.0, variation), name


def test_the_model_runs_in_its_own_dtype_and_results_follow() -> None:
    case = single(_fixed())
    assert measured(case, Rules("zplus")).value.dtype == torch.float32
    assert measured(case, Rules("zplus"), dtype=torch.float64).value.dtype == torch.float64
    assert {p.dtype for p in case.model.parameters()} == {torch.float32}


def _fixed() -> Case:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    return Case("fixed", model, (torch.ones(1, 3),), lambda t, x: "")
