"""Rules as arguments: composites by name, coefficients of sums, Pass, and the unnormalized counterpart."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import assume, given, strategies as st
from torch import Tensor, nn

import nrm
from laws.agreement import ask, both, law, law_of_some
from modules import Residual, filled
from networks import cases
from oracles.twin import Rules

pytestmark = pytest.mark.filterwarnings("ignore::nrm.errors.NrmWarning")


@dataclass(frozen=True)
class Named(Rules):
    """A composite by name on the library's side, written out layer by layer on the oracle's."""

    name: str = ""

    def library(self, model: nn.Module) -> object:
        return self.name


COMPOSITES = {  # the rule of the first step, of convolutions, of linear layers
    "lrp-0": ("lrp0", "lrp0", "lrp0"),
    "epsilon-plus": ("zplus", "zplus", "lrp0"),
    "epsilon-plus-flat": ("flat", "zplus", "lrp0"),
    "epsilon-alpha2-beta1": ("alpha2beta1", "alpha2beta1", "lrp0"),
    "epsilon-alpha2-beta1-flat": ("flat", "alpha2beta1", "lrp0"),
}


@pytest.mark.parametrize("name", COMPOSITES)
@law_of_some
@given(data=st.data(), kind=st.sampled_from(["conv1d", "conv2d", "conv residual"]))
def test_composites(name: str, data: st.DataObject, kind: str) -> None:
    """Average pools and linear layers LRP-0, a skip with the rule of its branch, the first convolution by itself."""
    case = data.draw(cases(kind, batch=2))
    first, conv, linear = COMPOSITES[name]
    layers = {"conv": first, "conv1": first, "conv2": conv, "head": linear}
    targets = data.draw(st.lists(st.integers(0, case.outputs.shape[1] - 1), min_size=2, max_size=2))
    bias = data.draw(st.sampled_from(["ignore", "input"]))
    it = both(case, Named("lrp0", layers, name), targets, bias=bias, zero="uniform")
    for site in [*it.tensors, *it.edges]:
        it.close(it.R(it.layer(site)), it.truth([site]))


@pytest.mark.parametrize("name", [*COMPOSITES, "epsilon-gamma-box"])
def test_bias_follows_the_composite(name: str) -> None:
    """ "auto": ignored with z+ and flat, an input with signed rules."""
    model = filled(nn.Sequential(nn.Conv1d(1, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(6, 2)), 1)
    R = nrm.measure(model, torch.ones(1, 1, 4).double(), target=0, rules=name, zero="uniform")
    assert bool(R.biases) == (name not in ("epsilon-plus", "epsilon-plus-flat"))


def test_box_bounds_from_the_name_are_the_range_of_the_input() -> None:
    """epsilon-gamma-box: ZBox in the first step; explicit bounds in a mapping give the same."""
    model = filled(nn.Sequential(nn.Conv1d(1, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(6, 2)), 1)
    x = torch.tensor([[[0.5, -1.0, 2.0, 0.1]]]).double()
    R = nrm.measure(model, x, target=0, rules="epsilon-gamma-box", bias="ignore")
    Q = nrm.measure(model, x, target=0, rules={"0": nrm.ZBox(-1.0, 2.0), "3": nrm.LRP0()}, bias="ignore")
    torch.testing.assert_close(R(R.input), Q(Q.input))


@pytest.mark.parametrize(("skip", "branch"), [(1.0, 1.0), (0.0, 1.0), (2.0, 0.5), (1.0, 0.0)])
@law_of_some
@given(seed=st.integers(0, 2**20))
def test_coefficients_of_a_sum(skip: float, branch: float, seed: int) -> None:
    """Blocks are multiplied by their alpha before the column is normalized; 0 closes a way."""
    model = filled(Residual(3, 4, 2, bias=False, norm=False, scale=1.0, shortcut=False, act="relu"), seed)
    x = torch.randn(1, 3, generator=torch.Generator().manual_seed(seed)).double()
    h, w = model.act1(model.lin1(x))[0].detach(), model.lin2.weight.detach().T
    through, around = branch * h[:, None] * w, skip * torch.diag(x[0])
    z = through.sum(0) + around.sum(0)
    assume(bool((z.abs() > 1e-3 * (through.abs().sum(0) + around.abs().sum(0))).all()) and bool((z != 0).all()))
    assume(float(model(x)[0, 0].detach()) != 0)
    R = nrm.measure(
        model, x, target=0, dtype=torch.float64, zero="uniform",
        rules={"/add": nrm.Sum(alpha={"skip": skip, "branch": branch}), "*": nrm.LRP0()},
    )  # fmt: skip
    message = R(R["/add"])[0]
    torch.testing.assert_close(R(R["act1"])[0], through / z @ message, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(R(R.edge("input", "/add"))[0], around / z @ message, rtol=1e-8, atol=1e-9)


@law
@given(data=st.data())
def test_skip_is_the_edge_of_the_identity(data: st.DataObject) -> None:
    case = data.draw(cases("residual"))
    R = ask(case, Rules("wsquare"), 0, bias="ignore")
    torch.testing.assert_close(R(R["/add"].skip), R(R.edge("input", "/add")))
    torch.testing.assert_close(R(R["/add"].skip, R["/add"]), R(R.edge("input", "/add"), R["/add"]))


def test_pass_is_the_identity() -> None:
    model = filled(nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2)), 3)
    R = nrm.measure(
        model, torch.ones(1, 3).double(), target=0, rules={"0": nrm.Pass(), "2": nrm.WSquare()}, bias="ignore"
    )
    torch.testing.assert_close(R(R.input), R(R["0"]))
    torch.testing.assert_close(R(R.input, R["0"])[0], torch.diag(R(R["0"])[0]))
    with pytest.raises(nrm.NrmError):  # the shape changes: there is no same position
        nrm.measure(model, torch.ones(1, 3).double(), target=0, rules={"2": nrm.Pass()})(nrm.input)


def test_alpha_beta_needs_a_positive_total() -> None:
    for alpha, beta in ((1, 1), (1, 2), (2, -1)):
        with pytest.raises(nrm.NrmError):
            nrm.AlphaBeta(alpha, beta)
    nrm.AlphaBeta(3, 1)  # alpha - beta need not be 1


@law
@given(data=st.data(), epsilon=st.sampled_from([0.0, 0.25, 2.0]))
def test_the_unnormalized_epsilon_rule_leaks(data: st.DataObject, epsilon: float) -> None:
    """normalize=False: h W / (epsilon + sum h W), as in the paper's appendix on common rules."""
    case = data.draw(cases("chain", biases=False))
    h, steps = case.inputs[0][0], []
    for module in case.model:
        if isinstance(module, nn.Linear):
            steps.append(h[:, None] * module.weight.detach().T)
        h = module(h[None].clone())[0].detach()
    assume(all(bool(((t.sum(0) + epsilon).abs() > 1e-2).all()) for t in steps))
    message: Tensor = torch.zeros(len(h), dtype=torch.float64)
    message[0] = 1.0
    for t in reversed(steps):
        message = t / (epsilon + t.sum(0)) @ message
    R = nrm.measure(
        case.model, case.argument, target=0, rules=nrm.Epsilon(epsilon), normalize=False, dtype=torch.float64
    )
    start = R(R[R.layers[-1].name].all)
    torch.testing.assert_close(R(R.input)[0] / start, message, rtol=1e-7, atol=1e-9 * float(message.abs().sum() + 1))


PRODUCTS = {
    "lrp0": (nrm.LRP0(), lambda z: z),
    "gamma": (nrm.Gamma(0.5), lambda z: z + 0.5 * z.clamp(min=0)),
    "zplus": (nrm.ZPlus(), lambda z: z.clamp(min=0)),
    "alpha 2, beta 1": (nrm.AlphaBeta(2, 1), lambda z: 2 * z.clamp(min=0) + z.clamp(max=0)),
    "alpha 3, beta 0.5": (nrm.AlphaBeta(3, 0.5), lambda z: 3 * z.clamp(min=0) + 0.5 * z.clamp(max=0)),
    "alpha 2, beta 0": (nrm.AlphaBeta(2, 0), lambda z: 2 * z.clamp(min=0)),
}
"""Rules, and their entries as plain products: alpha-beta weighs contributions by their sign."""


@pytest.mark.parametrize("rule", PRODUCTS)
@law
@given(data=st.data())
def test_raw_entries_are_plain_products(rule: str, data: st.DataObject) -> None:
    """normalize="raw": the entries themselves, divided by nothing."""
    case = data.draw(cases("chain", biases=False))
    ours, entries = PRODUCTS[rule]
    h, steps = case.inputs[0][0], []
    for module in case.model:
        if isinstance(module, nn.Linear):
            steps.append(entries(h[:, None] * module.weight.detach().T))
        h = module(h[None].clone())[0].detach()
    message: Tensor = torch.zeros(len(h), dtype=torch.float64)
    message[0] = 1.0
    sizes = message.clone()
    for t in reversed(steps):
        message, sizes = t @ message, t.abs() @ sizes
    R = nrm.measure(case.model, case.argument, target=0, rules=ours, normalize="raw", dtype=torch.float64)
    start = R(R[R.layers[-1].name].all)
    torch.testing.assert_close(R(R.input)[0] / start, message, rtol=1e-7, atol=1e-10 * float(sizes.sum() + 1))
