"""Law 9: what must not matter does not matter, and what does matter for a rule shows.

Batches, the order of samples and of neurons never matter. Rescaling a ReLU neuron, splitting a neuron and inserting an
identity change nothing about the function; whether they change the relevance depends on the rule, in both directions.
"""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from hypothesis import assume, currently_in_test_context, given, strategies as st
from torch import Tensor, nn

import nrm
from laws.agreement import ask, drawn, law, law_of_each, law_of_some
from modules import filled
from networks import KINDS, Case
from oracles.twin import RULES, Rules

pytestmark = pytest.mark.filterwarnings("ignore::nrm.errors.NrmWarning")

every_kind = pytest.mark.parametrize("kind", KINDS)


@every_kind
@law_of_each
@given(data=st.data())
def test_batch_is_single_in_any_order(kind: str, data: st.DataObject) -> None:
    it = drawn(data, kind, batch=3)
    order = data.draw(st.permutations(range(3)))
    targets = [int(t.net.relevance.argmax()) for t in it.twins]
    how = {"bias": it.twins[0].net.bias, "zero": it.twins[0].net.zero}
    a, b = (data.draw(st.sampled_from(it.tensors)) for _ in "ab")
    answer = it.R(it.R[a], it.R[b])

    mixed = Case(kind, it.case.model, tuple(x[order] for x in it.case.inputs), it.case.trace)
    R = ask(mixed, it.rules, torch.tensor([targets[k] for k in order]), **how)
    it.close(R(R[a], R[b]), answer[order])

    k = data.draw(st.integers(0, 2))
    alone = Case(kind, it.case.model, tuple(x[k : k + 1] for x in it.case.inputs), it.case.trace)
    R = ask(alone, it.rules, targets[k], **how)
    it.close(R(R[a], R[b]), answer[k : k + 1])
    one = it.R.sample(k)
    it.close(one(one[a], one[b]), answer[k : k + 1])


# --- changes that keep the function ---


def network(activation: str = "relu", seed: int = 0, bias: bool = True) -> nn.Sequential:
    act = {"relu": nn.ReLU, "tanh": nn.Tanh}[activation]
    layers = OrderedDict(a=nn.Linear(3, 4, bias=bias), act=act(), b=nn.Linear(4, 4, bias=bias), act2=act())
    return filled(nn.Sequential(layers | {"c": nn.Linear(4, 2, bias=bias)}), seed)


def inputs(seed: int) -> Tensor:
    return torch.randn(2, 3, generator=torch.Generator().manual_seed(seed + 1)).double()


def asked(model: nn.Module, x: Tensor, rule: str | Rules, bias: str) -> nrm.Measure:
    """No column without mass may be reached: what happens to it is a policy, and no law."""
    rules = Rules(rule) if isinstance(rule, str) else rule
    R = ask(Case("by hand", model, (x,), lambda t, i: ""), rules, 0, bias=bias, zero="sink")
    clean = max(R.check(strict=False).sink) == 0
    if currently_in_test_context():
        assume(clean)
    assert clean
    return R


def same(model: nn.Module, other: nn.Module, x: Tensor) -> None:
    torch.testing.assert_close(model(x), other(x))  # or the comparison below would say nothing


def scale(*measures: nrm.Measure) -> float:
    return max(
        1.0, *(float(R(R[name]).abs().flatten(1).sum(1).max()) for R in measures for name in ("input", "a", "b"))
    )


def permuted(model: nn.Sequential, order: list[int]) -> nn.Sequential:
    other = network(type(model.act).__name__.lower())
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        other.a.weight.copy_(model.a.weight[order])
        other.a.bias.copy_(model.a.bias[order])
        other.b.weight.copy_(model.b.weight[:, order])
    return other


def rescaled(model: nn.Sequential, neuron: int, factor: float) -> nn.Sequential:
    other = network()
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        other.a.weight[neuron] *= factor
        other.a.bias[neuron] *= factor
        other.b.weight[:, neuron] /= factor
    return other


def split(model: nn.Sequential, share: float) -> nn.Sequential:
    """The last neuron of layer a twice: the same input weights, its output weights shared out."""
    other = network()
    other.a, other.b = nn.Linear(3, 5).double(), nn.Linear(5, 4).double()
    with torch.no_grad():
        other.a.weight.copy_(torch.cat([model.a.weight, model.a.weight[-1:]]))
        other.a.bias.copy_(torch.cat([model.a.bias, model.a.bias[-1:]]))
        last = model.b.weight[:, -1:]
        other.b.weight.copy_(torch.cat([model.b.weight[:, :-1], last * share, last * (1 - share)], 1))
        other.b.bias.copy_(model.b.bias)
    for name in ("act", "act2"):
        other.add_module(name, getattr(model, name))
    other.c.load_state_dict(model.c.state_dict())
    return other


def with_identity(model: nn.Sequential) -> nn.Sequential:
    layers = OrderedDict((n, m) for n, m in model.named_children())
    eye = nn.Linear(4, 4, bias=False).double()
    nn.init.eye_(eye.weight)
    names = list(layers)
    at = names.index("act") + 1
    return nn.Sequential(
        OrderedDict([(n, layers[n]) for n in names[:at]] + [("eye", eye)] + [(n, layers[n]) for n in names[at:]])
    )


def joint(R: nrm.Measure) -> Tensor:
    """Something that sees every layer: input x hidden pairs inside one event."""
    return R(R["input"], R["a"], R["b"])


seeds = st.integers(0, 2**20)
biases = st.sampled_from(["ignore", "input"])


@pytest.mark.parametrize("rule", sorted(RULES))
@law_of_some
@given(seed=seeds, bias=biases, order=st.permutations(range(4)), activation=st.sampled_from(["relu", "tanh"]))
def test_order_of_neurons(rule: str, seed: int, bias: str, order: list[int], activation: str) -> None:
    model, x = network(activation, seed), inputs(seed)
    other = permuted(model, order)
    same(model, other, x)
    R, Q = asked(model, x, rule, bias), asked(other, x, rule, bias)
    atol = 1e-9 * scale(R, Q) ** 2
    torch.testing.assert_close(joint(Q), joint(R)[:, :, order], rtol=1e-7, atol=atol)


@pytest.mark.parametrize("rule", ["lrp0", "gamma", "zplus", "alpha2beta1", "alpha3beta1", "flat"])
@law_of_some
@given(seed=seeds, bias=biases, neuron=st.integers(0, 3), factor=st.sampled_from([0.1, 3.0]))
def test_rescaling_a_relu(rule: str, seed: int, bias: str, neuron: int, factor: float) -> None:
    model, x = network("relu", seed), inputs(seed)
    other = rescaled(model, neuron, factor)
    same(model, other, x)
    R, Q = asked(model, x, rule, bias), asked(other, x, rule, bias)
    torch.testing.assert_close(joint(Q), joint(R), rtol=1e-7, atol=1e-9 * scale(R, Q) ** 2)


@pytest.mark.parametrize("rule", ["wsquare", "zbox", "entry"])
def test_rescaling_matters(rule: str) -> None:
    model, x = network("relu", 5), inputs(5)
    R, Q = asked(model, x, rule, "ignore"), asked(rescaled(model, 1, 10.0), x, rule, "ignore")
    assert (joint(R) - joint(Q)).abs().max() > 1e-4


@pytest.mark.parametrize("rule", ["lrp0", "gamma", "zplus", "alpha2beta1", "alpha3beta1"])
@law_of_some
@given(seed=seeds, bias=biases, share=st.sampled_from([0.5, 0.2]))
def test_splitting_a_neuron(rule: str, seed: int, bias: str, share: float) -> None:
    model, x = network("relu", seed), inputs(seed)
    other = split(model, share)
    same(model, other, x)
    R, Q = asked(model, x, rule, bias), asked(other, x, rule, bias)
    merged = joint(Q)
    merged = torch.cat([merged[:, :, :3], merged[:, :, 3:].sum(2, keepdim=True)], 2)
    torch.testing.assert_close(merged, joint(R), rtol=1e-7, atol=1e-9 * scale(R, Q) ** 2)


@pytest.mark.parametrize("rule", ["flat", "wsquare", "entry"])
def test_splitting_matters(rule: str) -> None:
    model, x = network("relu", 5), inputs(5)
    R, Q = asked(model, x, rule, "ignore"), asked(split(model, 0.2), x, rule, "ignore")
    merged = Q(Q["a"])
    merged = torch.cat([merged[:, :3], merged[:, 3:].sum(1, keepdim=True)], 1)
    assert (merged - R(R["a"])).abs().max() > 1e-4


@pytest.mark.parametrize(
    ("rule", "activation"),
    [
        ("lrp0", "relu"),
        ("lrp0", "tanh"),
        ("gamma", "relu"),
        ("zplus", "relu"),
        ("alpha2beta1", "relu"),
        ("alpha3beta1", "relu"),
    ],
)
@law_of_some
@given(seed=seeds, bias=biases)
def test_inserting_an_identity(rule: str, activation: str, seed: int, bias: str) -> None:
    model, x = network(activation, seed), inputs(seed)
    other = with_identity(model)
    same(model, other, x)
    R, Q = asked(model, x, rule, bias), asked(other, x, rule, bias)
    torch.testing.assert_close(joint(Q), joint(R), rtol=1e-7, atol=1e-9 * scale(R, Q) ** 2)


@pytest.mark.parametrize("rule", ["flat", "entry"])
def test_an_identity_matters(rule: str) -> None:
    """Flat and the per-entry epsilon see every connection of the new step, not only its diagonal."""
    model, x = network("relu", 5), inputs(5)
    R = asked(model, x, "lrp0", "input")
    Q = asked(with_identity(model), x, Rules("lrp0", {"eye": rule}), "input")
    assert (joint(R) - joint(Q)).abs().max() > 1e-5


def test_an_identity_drops_negative_activations_under_zplus() -> None:
    """max(0, h) of a negative activation is 0: the identity's column is dead, though the step above it was reached."""
    model, x = network("tanh", 5), inputs(5).abs()
    with torch.no_grad():  # two negative signs: z+ reaches negative activations through negative weights
        model.b.weight.copy_(-model.b.weight.abs())
        model.a.weight.copy_(-model.a.weight.abs())
        model.a.bias.zero_()
    case = Case("by hand", with_identity(model), (x,), lambda t, i: "")
    assert min(ask(case, Rules("zplus"), 0, bias="ignore").check(strict=False).sink) > 0.5


@law
@given(seed=seeds, order=st.permutations(range(3)), rule=st.sampled_from(["lrp0", "zplus", "flat"]))
def test_order_of_channels(seed: int, order: list[int], rule: str) -> None:
    """The same for a convolution: channels may change places, tables change with them."""
    layers = OrderedDict(a=nn.Conv2d(2, 3, 2, bias=True), act=nn.ReLU(), b=nn.Conv2d(3, 2, 2), flat=nn.Flatten())
    model = filled(nn.Sequential(layers | {"c": nn.Linear(8, 2)}), seed)
    x = torch.randn(2, 2, 4, 4, generator=torch.Generator().manual_seed(seed)).double()
    other = filled(nn.Sequential(OrderedDict(
        a=nn.Conv2d(2, 3, 2, bias=True), act=nn.ReLU(), b=nn.Conv2d(3, 2, 2), flat=nn.Flatten(), c=nn.Linear(8, 2)
    )), seed)  # fmt: skip
    with torch.no_grad():
        other.a.weight.copy_(model.a.weight[order])
        other.a.bias.copy_(model.a.bias[order])
        other.b.weight.copy_(model.b.weight[:, order])
    same(model, other, x)
    R, Q = asked(model, x, rule, "input"), asked(other, x, rule, "input")
    atol = 1e-9 * scale(R, Q) ** 2
    pairs = R(R["a"].channels, R["b"].channels)
    torch.testing.assert_close(Q(Q["a"].channels, Q["b"].channels), pairs[:, order], rtol=1e-7, atol=atol)
    torch.testing.assert_close(Q(Q["input"]), R(R["input"]), rtol=1e-7, atol=atol)
