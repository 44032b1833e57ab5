"""Features of boxes, and what detectors do beside: places in another precision, lists that modules are given."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import nrm
import vision
from nrm.capture.vocabulary import COMPOSED

pytestmark = pytest.mark.filterwarnings("ignore::nrm.errors.NrmWarning")
F64 = torch.float64


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("samples", [2, -1])
@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_features_of_boxes_are_torchvisions(aligned: bool, samples: int, scale: float) -> None:
    vision.load()
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(2, 3, 17, 13, generator=generator, dtype=F64)
    corners = torch.rand(12, 2, 2, generator=generator, dtype=F64) * 10 + 1.5
    whose = torch.randint(0, 2, (12, 1), generator=generator)
    boxes = torch.cat([whose, corners.amin(1), corners.amax(1)], 1)
    found = COMPOSED["torchvision::roi_align"](images, boxes, scale, 3, 4, samples, aligned)
    expected = torch.ops.torchvision.roi_align(images, boxes, scale, 3, 4, samples, aligned)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    assert COMPOSED["torchvision::roi_align"](images, boxes[:0], scale, 3, 4, samples, aligned).shape == (0, 3, 3, 4)


class Detector(nn.Module):
    """Scores of two boxes, one of them computed; a module takes a list of features; classes shift boxes apart."""

    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.score = nn.Linear(3 * 4, 5)

        def forward(self, features: list[Tensor], boxes: Tensor) -> Tensor:
            from torchvision.ops import roi_align

            found: Tensor = self.score(roi_align(features[0], [boxes], 2, 1.0, 2).flatten(1))
            return found

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.place, self.head = nn.Conv2d(2, 3, 3, padding=1), nn.Linear(3, 4), self.Head()

    def forward(self, x: Tensor) -> Tensor:
        features = self.conv(x).relu()
        own = self.place(features.mean((2, 3))).sigmoid()
        own = torch.cat([own[:, :2] * 2, 4 + own[:, 2:] * 3], 1)
        boxes = torch.cat([own, torch.tensor([[1.0, 1.0, 6.0, 5.0]]).to(own)])
        scores = self.head([features], boxes)
        best = scores.max(1)
        apart = best.indices.to(scores) * (boxes.amax() + torch.tensor(1).to(scores))
        order = (apart + best.values).argsort(descending=True)
        return best.values[order]


def test_a_box_score_is_explained_and_boxes_are_held() -> None:
    vision.load()
    torch.manual_seed(0)
    model, x = Detector().double(), torch.randn(1, 2, 8, 8, dtype=F64)
    R = nrm.measure(model, x, target=0, rules="lrp-0", bias="input", batch_dim=None)
    assert R.check().cut_error == pytest.approx(0.0, abs=1e-12)
    torch.testing.assert_close(R.value.reshape(1), model(x)[:1].detach(), rtol=1e-12, atol=0.0)
    leaf = x.clone().requires_grad_()
    output = model(leaf)[0]  # torchvision's gradient holds boxes as well
    expected = leaf * torch.autograd.grad(output, leaf)[0] / output
    torch.testing.assert_close(R(R.input).reshape(x.shape), expected.detach(), rtol=1e-9, atol=1e-12)


def test_a_contrast_has_the_same_boxes() -> None:
    vision.load()
    torch.manual_seed(0)
    model, x = Detector().double(), torch.randn(1, 2, 8, 8, dtype=F64)
    R = nrm.measure(model, x, target=0, against=x + 0.01 * torch.rand_like(x), batch_dim=None)
    check = R.check(strict=False)
    assert max(abs(m - 1) for m in check.mass) < 1e-9
    assert all(check.ok)
