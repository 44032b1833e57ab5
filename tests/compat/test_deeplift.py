"""The doors for DeepLIFT and SHAP values: sums, splits by hand, the forms of calls; peers are in tests/peers."""

from __future__ import annotations

import itertools
import math
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import nrm
from nrm.compat.captum import DeepLift, DeepLiftShap
from nrm.compat.shap import Explainer


class Attention(nn.Module):
    """A step of attention, whose softmax is not the last op."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        weights = (self.q(x) @ self.k(x).transpose(1, 2)).softmax(-1)
        return (weights @ self.v(x)).sum(1)


class Recurrent(nn.Module):
    """An LSTM, read at its last step."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(4, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.lstm(x)[0][:, -1])
        return found


class Rotary(nn.Module):
    """Two heads of causal attention, whose queries and keys are turned by their positions, and a norm before them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.RMSNorm(4), nn.Linear(4, 24), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        angle = torch.arange(x.shape[1])[:, None] * torch.tensor([1.0, 0.1]).repeat(2)
        q, k = (turned(part, angle) for part in (q, k))
        found = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        last: Tensor = self.out(found.transpose(1, 2).flatten(2))[:, -1]
        return last


def turned(x: Tensor, angle: Tensor) -> Tensor:
    """The two halves of every position, turned as pairs."""
    one, two = x.chunk(2, -1)
    return x * angle.cos() + torch.cat([-two, one], -1) * angle.sin()


NETWORKS: dict[str, Any] = {
    "layer norm": lambda: nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3)),
    "gelu": lambda: nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3)),
    "softmax": lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3), nn.Softmax(1)),
    "attention": Attention,
    "rotary": Rotary,
    "lstm": Recurrent,
}
SEQUENCES = ("attention", "rotary", "lstm")


def made(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    """A network in float32, three inputs, and five others."""
    torch.manual_seed(0)
    model = NETWORKS[name]().eval()
    shape = (5, 4) if name in SEQUENCES else (4,)
    return model, torch.randn(3, *shape), torch.randn(5, *shape)


@pytest.mark.parametrize("name", NETWORKS)
def test_attributions_sum_to_the_difference(name: str) -> None:
    model, x, others = made(name)
    with torch.no_grad():
        here, there = model(x)[:, 1], model(others)[:, 1]
    found, delta = DeepLift(model).attribute(x, others[:1], target=1, return_convergence_delta=True)
    assert found.shape == x.shape
    assert torch.allclose(found.flatten(1).sum(1), here - there[0], atol=1e-5)
    assert float(delta.abs().max()) < 1e-5
    mean, deltas = DeepLiftShap(model).attribute(x, others, target=1, return_convergence_delta=True)
    assert torch.allclose(mean.flatten(1).sum(1), here - there.mean(), atol=1e-5)
    assert deltas.shape == (15,)
    assert float(deltas.abs().max()) < 1e-5
    each = torch.stack([DeepLift(model).attribute(x, one[None], target=1) for one in others])
    assert torch.allclose(mean, each.mean(0), atol=1e-6)


def test_a_relu_has_the_rescale_rule() -> None:
    torch.manual_seed(0)
    first, last = nn.Linear(4, 6).double(), nn.Linear(6, 2).double()
    x, other = torch.randn(2, 3, 4, dtype=torch.float64)
    with torch.no_grad():
        z, z2 = first(x), first(other)
        slope = (z.relu() - z2.relu()) / (z - z2)
        by_hand = (x - other) * ((slope * last.weight[1]) @ first.weight)
    found = DeepLift(nn.Sequential(first, nn.ReLU(), last)).attribute(x, other, target=1)
    assert torch.allclose(found, by_hand, atol=1e-12)


def test_products_of_two_have_shapley_values() -> None:
    class Product(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x[:, 0] * x[:, 1] + 3 * x[:, 2])[:, None]

    x, other = torch.tensor([[2.0, 5.0, 1.0]]), torch.tensor([[1.0, -1.0, 4.0]])
    (u, v, w), (u2, v2, w2) = x[0], other[0]
    values = torch.stack([(u - u2) * (v + v2) / 2, (v - v2) * (u + u2) / 2, 3 * (w - w2)])
    assert torch.allclose(DeepLift(Product()).attribute(x, other)[0], values, atol=1e-6)


class Gates(nn.Module):
    """Products of sums: every pair of inputs meets in one of them, and none meets a third."""

    def __init__(self) -> None:
        super().__init__()
        self.signal, self.gate, self.straight = (nn.Linear(5, 3) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.signal(x) * self.gate(x) + self.straight(x)


def shapley(model: nn.Module, x: Tensor, background: Tensor) -> Tensor:
    """Shapley values by their definition, over all coalitions: who is not in it has the background's value."""
    n = x.shape[1]
    sets = [frozenset(chosen) for size in range(n + 1) for chosen in itertools.combinations(range(n), size)]
    with torch.no_grad():
        worth = {}
        for members in sets:
            inside = torch.tensor([i in members for i in range(n)])
            worth[members] = model(torch.where(inside, x[:, None], background)).mean(1)
    values = x.new_zeros(len(x), n, next(iter(worth.values())).shape[-1])
    for members in sets:
        weight = math.factorial(len(members)) * math.factorial(n - len(members) - 1) if len(members) < n else 0
        for i in set(range(n)) - members:
            values[:, i] += weight / math.factorial(n) * (worth[members | {i}] - worth[members])
    return values


@pytest.mark.parametrize("make", [lambda: nn.Linear(5, 3), Gates], ids=["linear", "products of two"])
def test_doors_have_shapley_values_where_two_inputs_meet_at_most(make: Any) -> None:
    torch.manual_seed(0)
    model, x, background = make().double(), torch.randn(2, 5).double(), torch.randn(4, 5).double()
    exact = shapley(model, x, background)
    assert torch.allclose(torch.tensor(Explainer(model, background).shap_values(x)), exact, atol=1e-12)
    assert torch.allclose(DeepLiftShap(model).attribute(x, background, target=1), exact[..., 1], atol=1e-12)


class Brackets(nn.Module):
    """A product of three, two of them first."""

    def forward(self, x: Tensor) -> Tensor:
        return x[..., :1] * x[..., 1:2] * x[..., 2:]


def test_of_three_that_meet_brackets_count_but_not_for_shapley_values() -> None:
    x, background = torch.tensor([[1.0, 2.0, 3.0]]).double(), torch.zeros(1, 3).double()
    exact = shapley(Brackets(), x, background)
    assert torch.allclose(exact, torch.full_like(exact, 2.0), atol=1e-12)  # the oracle, by hand: a third of 6 each
    found = Explainer(Brackets(), background).shap_values(x)  # half of 6 for the last, the rest for the first two
    assert np.allclose(found[0, :, 0], [1.5, 1.5, 3.0], atol=1e-12)


def test_one_capture_of_every_sample_serves_all_outputs() -> None:
    calls = []

    class Counted(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            calls.append(len(input))
            return super().forward(input)

    torch.manual_seed(0)
    explainer = Explainer(Counted(4, 6), torch.randn(5, 4))
    x, counts = torch.randn(3, 4), []
    for outputs in ([2], [0, 2, 5]):
        calls.clear()
        explainer.shap_values(x, outputs=outputs)
        counts.append(len(calls))
    assert counts[0] == counts[1]


class Two(nn.Module):
    """Two inputs, and a third argument that is not one."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(4, 5), nn.Linear(3, 5)

    def forward(self, x: Tensor, y: Tensor, scale: float = 1.0) -> Tensor:
        return torch.tanh(self.left(x) * scale + self.right(y))


def test_several_inputs_numbers_and_other_arguments() -> None:
    torch.manual_seed(0)
    model, x, y = Two().double(), torch.randn(2, 4).double(), torch.randn(2, 3).double()
    door = DeepLift(model)
    a, b = door.attribute((x, y), (0.5, y[:1]), target=[0, 2], additional_forward_args=2.0)
    with torch.no_grad():
        change = model(x, y, 2.0) - model(torch.full_like(x, 0.5), y[:1].expand_as(y), 2.0)
    assert torch.allclose(a.sum(1) + b.sum(1), change[[0, 1], [0, 2]], atol=1e-10)
    assert float(b[0].abs().max()) == 0  # what does not differ contributes nothing
    delta = door.compute_convergence_delta((a, b), (0.5, y[:1]), (x, y), [0, 2], 2.0)
    assert float(delta.abs().max()) < 1e-10
    plain = door.attribute((x, y), target=1)
    zeros = door.attribute((x, y), (torch.zeros_like(x), torch.zeros_like(y)), target=1)
    assert all(torch.equal(one, two) for one, two in zip(plain, zeros, strict=True))
    mean = DeepLiftShap(model).attribute((x, y), lambda given: tuple(-part for part in given), target=1)
    assert [part.shape for part in mean] == [x.shape, y.shape]


def test_calls_that_make_no_sense_are_refused() -> None:
    model = nn.Linear(4, 2)
    with pytest.raises(nrm.QuestionError, match="multipliers"):
        DeepLift(model, multiply_by_inputs=False)
    with pytest.raises(nrm.QuestionError, match="every input has a baseline"):
        DeepLift(model).attribute(torch.ones(1, 4), (0, 0), target=0)
    with pytest.raises(nrm.QuestionError, match="baselines are samples"):
        DeepLiftShap(model).attribute(torch.ones(1, 4), 0, target=0)
    with pytest.raises(nrm.QuestionError, match="integers"):
        DeepLift(model).attribute(torch.ones(1, 4).long(), target=0)
    with pytest.raises(nrm.QuestionError, match="a target is needed"):
        DeepLift(model).attribute(torch.ones(1, 4))
    with pytest.raises(nrm.QuestionError, match="needs a reference"):
        nrm.methods.deeplift(nrm.measure(model, torch.ones(1, 4)))


def test_the_method_is_the_door() -> None:
    model, x, others = made("gelu")
    R = nrm.measure(model, x, target=1, against=others[:1])
    assert torch.allclose(nrm.methods.deeplift(R), DeepLift(model).attribute(x, others[:1], target=1))
    assert torch.allclose(nrm.methods.deeplift(R, R.input[:2]), nrm.methods.deeplift(R)[:, :2].sum(1), atol=1e-6)
    many = nrm.measure(model, x, target=1, against=list(others.split(1)))
    mean = DeepLiftShap(model).attribute(x, others, target=1)
    assert torch.allclose(nrm.methods.deeplift(many), mean, atol=1e-6)


@pytest.fixture
def explanations(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for shap, whose explanations keep what they are given."""
    module: Any = ModuleType("shap")
    module.Explanation = lambda values, **rest: SimpleNamespace(values=values, **rest)
    monkeypatch.setitem(sys.modules, "shap", module)


@pytest.mark.usefixtures("explanations")
@pytest.mark.parametrize("name", NETWORKS)
def test_an_explanation_sums_to_the_output(name: str) -> None:
    model, x, others = made(name)
    found = Explainer(model, others, output_names=["a", "b", "c"])(x, outputs=[0, 2] if name != "attention" else None)
    with torch.no_grad():
        outputs = model(x).numpy()[:, [0, 2] if name != "attention" else slice(None)]
        mean = model(others).mean(0).numpy()
    assert found.values.shape == (*x.shape, outputs.shape[1])
    sums = found.values.reshape(len(x), -1, outputs.shape[1]).sum(1)
    assert np.abs(found.base_values + sums - outputs).max() < 1e-5
    assert np.abs(found.base_values[0, 0] - mean[0]) < 1e-6
    assert np.array_equal(found.data, x.numpy())


@pytest.mark.usefixtures("explanations")
def test_arrays_frames_and_one_output() -> None:
    pandas = pytest.importorskip("pandas")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 1), nn.Flatten(0))
    frame = pandas.DataFrame(np.random.default_rng(0).random((4, 3)), columns=["a", "b", "c"])
    found = Explainer(model, frame.to_numpy())(frame)
    assert found.feature_names == ["a", "b", "c"]
    assert found.values.shape == (4, 3)
    assert found.base_values.shape == (4,)
    with pytest.raises(nrm.QuestionError, match="one output"):
        Explainer(model, frame).shap_values(frame, outputs=[0])
    with pytest.raises(nrm.QuestionError, match="no output to explain"):
        Explainer(nn.Linear(3, 2), frame).shap_values(frame, outputs=[])
    with pytest.raises(nrm.QuestionError, match="a batch of samples"):
        Explainer(model, frame).shap_values(torch.rand(3))


def test_without_shap_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "shap", None)
    with pytest.raises(ImportError, match=r"nrm\[shap\]"):
        Explainer(nn.Linear(2, 2), torch.rand(2, 2))(torch.rand(1, 2))
