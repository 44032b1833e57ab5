"""The doors for DeepLIFT and SHAP values: sums, splits by hand, the forms of calls; peers are in tests/peers."""

from __future__ import annotations

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


NETWORKS: dict[str, Any] = {
    "layer norm": lambda: nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3)),
    "gelu": lambda: nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 3)),
    "softmax": lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3), nn.Softmax(1)),
    "attention": Attention,
    "lstm": Recurrent,
}


def made(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    """A network in float32, three inputs, and five others."""
    torch.manual_seed(0)
    model = NETWORKS[name]().eval()
    shape = (5, 4) if name in ("attention", "lstm") else (4,)
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
    with pytest.raises(nrm.QuestionError, match="a batch of samples"):
        Explainer(model, frame).shap_values(torch.rand(3))


def test_without_shap_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "shap", None)
    with pytest.raises(ImportError, match=r"nrm\[shap\]"):
        Explainer(nn.Linear(2, 2), torch.rand(2, 2))(torch.rand(1, 2))
