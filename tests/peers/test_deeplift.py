"""DeepLIFT beside captum's, and SHAP values beside shap's: equal where theirs are exact, right sums where not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nrm.compat.captum import DeepLift, DeepLiftShap
from nrm.compat.shap import Explainer

pytestmark = pytest.mark.peer

NETWORKS = {
    "dense": lambda: nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 7), nn.ReLU(), nn.Linear(7, 3)),
    "convolutions": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 4, 3), nn.ReLU(), nn.AvgPool1d(2), nn.Flatten(), nn.Linear(8, 3)
    ),
}


def made(name: str) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    model = NETWORKS[name]().double().eval()
    return model, torch.randn(3, 6, dtype=torch.float64), torch.randn(4, 6, dtype=torch.float64)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NETWORKS)
def test_captum_has_the_same_on_relu_networks(name: str) -> None:
    theirs = pytest.importorskip("captum.attr", reason="captum is not installed: make peers")
    model, x, others = made(name)
    one = theirs.DeepLift(model).attribute(x, others[:1].expand_as(x).contiguous(), target=1).detach()
    assert torch.allclose(DeepLift(model).attribute(x, others[:1], target=1), one, atol=1e-10)
    mean, deltas = theirs.DeepLiftShap(model).attribute(x, others, target=1, return_convergence_delta=True)
    ours, own = DeepLiftShap(model).attribute(x, others, target=1, return_convergence_delta=True)
    assert torch.allclose(ours, mean.detach(), atol=1e-10)
    assert own.shape == deltas.shape


@pytest.mark.filterwarnings("ignore")
def test_shap_takes_the_explanation_and_has_the_same_on_relu_networks() -> None:
    shap = pytest.importorskip("shap", reason="shap is not installed: make peers")
    model, x, others = made("dense")
    found = Explainer(model, others)(x)
    assert isinstance(found, shap.Explanation)
    assert found[0, :, 1].values.shape == (6,)
    theirs = shap.DeepExplainer(model, others).shap_values(x)
    assert torch.allclose(torch.as_tensor(found.values), torch.as_tensor(theirs).double(), atol=1e-6)


class Gates(nn.Module):
    """Products of sums: every pair of inputs meets in one of them, and none meets a third."""

    def __init__(self) -> None:
        super().__init__()
        self.signal, self.gate = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.signal(x) * self.gate(x)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [lambda: nn.Linear(6, 3), Gates], ids=["linear", "products of two"])
def test_shap_counts_all_coalitions_and_has_the_same_where_two_inputs_meet_at_most(make: Any) -> None:
    shap = pytest.importorskip("shap", reason="shap is not installed: make peers")
    torch.manual_seed(0)
    model, x, others = make().double().eval(), torch.randn(2, 6).double(), torch.randn(4, 6).double()

    def called(rows: Any) -> Any:
        with torch.no_grad():
            return model(torch.as_tensor(rows).double()).numpy()

    theirs = shap.ExactExplainer(called, shap.maskers.Independent(others.numpy(), max_samples=4))(x.numpy())
    ours = Explainer(model, others)(x)
    assert torch.allclose(torch.as_tensor(ours.values), torch.as_tensor(theirs.values).double(), atol=1e-10)
    assert torch.allclose(torch.as_tensor(ours.base_values), torch.as_tensor(theirs.base_values), atol=1e-10)


@pytest.mark.filterwarnings("ignore")
def test_shap_draws_the_explanation() -> None:
    shap = pytest.importorskip("shap", reason="shap is not installed: make peers")
    pyplot = pytest.importorskip("matplotlib.pyplot")
    model, x, others = made("dense")
    found = Explainer(model, others, feature_names=list("abcdef"))(x)
    axes = shap.plots.waterfall(found[0, :, 1], show=False)
    assert {text.get_text().rpartition(" = ")[2] for text in axes.get_yticklabels()} & set("abcdef")
    pyplot.close("all")
