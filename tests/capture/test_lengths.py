"""Lengths, spreads, products, logarithms of sums, and what is computed from the input: shares by their definition."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import nrm
from nrm.capture.contrast import OWN
from nrm.capture.vocabulary import VOCABULARY
from nrm.operators import WeightedSum
from nrm.testing import check_map, check_op

pytestmark = pytest.mark.filterwarnings("ignore::nrm.errors.NrmWarning")

H = torch.randn(2, 6, generator=torch.Generator().manual_seed(4), dtype=torch.float64)


class Model(nn.Module):
    """A function as a model."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *given: Tensor) -> Tensor:
        return self.function(*given)


def shares(function: Callable[..., Tensor], *given: Tensor, target: int = 0) -> list[Tensor]:
    """The relevance of every input of a function, under LRP-0 with biases as inputs."""
    R = nrm.measure(Model(function), given, target=target, rules="lrp-0", bias="input")
    assert R.check().cut_error == pytest.approx(0.0, abs=1e-12)
    parts = [nrm.layer(f"input[{k}]") for k in range(len(given))] if len(given) > 1 else [R.input]
    return [R(part) for part in parts]


EXPECTED: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "norm": (lambda h: h.norm(dim=1, keepdim=True), lambda h: h**2 / h.square().sum()),
    "norm of order 3": (lambda h: h.norm(3, 1, True), lambda h: h.abs() ** 3 / (h.abs() ** 3).sum()),
    "largest": (lambda h: torch.linalg.vector_norm(h, math.inf, 1, True), lambda h: (h.abs() == h.abs().max())),
    "var": (lambda h: h.var(1, keepdim=True), lambda h: (h - h.mean()) * h / ((h - h.mean()) * h).sum()),
    "std": (lambda h: h.std(1, keepdim=True), lambda h: (h - h.mean()) * h / ((h - h.mean()) * h).sum()),
    "prod": (lambda h: h.prod(1, keepdim=True), lambda h: torch.full_like(h, 1 / 6)),
    "third of cumprod": (lambda h: h.cumprod(1)[:, 2:], lambda h: torch.tensor([1.0, 1, 1, 0, 0, 0]) / 3),
    "logsumexp": (lambda h: h.logsumexp(1, True), lambda h: h.softmax(0) * h / h.logsumexp(0)),
    "mean beside std": (lambda h: torch.std_mean(h, 1, keepdim=True)[1], lambda h: h / h.sum()),
}  # fmt: skip


@pytest.mark.parametrize("name", EXPECTED)
def test_every_entry_has_its_share(name: str) -> None:
    function, expected = EXPECTED[name]
    (found,) = shares(function, H)
    for sample in range(2):
        torch.testing.assert_close(found[sample], expected(H[sample]).double())


def test_products_at_places_share_alike() -> None:
    index = torch.tensor([0, 1, 1, 0, 1, 3])
    (found,) = shares(
        lambda h: h.new_ones(2, 4).scatter_reduce(1, index.expand(2, -1), h, "prod", include_self=False), H, target=1
    )
    torch.testing.assert_close(found, torch.tensor([[0.0, 1, 1, 0, 1, 0]] * 2).double() / 3)


def test_a_weighted_sum_is_a_map() -> None:
    weights = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    check_map(WeightedSum(torch.Size([2, 3, 4]), torch.Size([2, 4]), (1,), weights=weights))


def test_a_rule_with_positive_parts_reads_its_weights() -> None:
    """Under gamma every entry counts by its own weight, positive ones more."""
    gamma = {"*/norm": nrm.Gamma(1.0)}
    R = nrm.measure(Model(lambda h: h.norm(dim=1, keepdim=True)), H, rules=gamma, bias="input")
    expected = H**2 / H.square().sum(1, keepdim=True)  # all entries of a length are positive
    torch.testing.assert_close(R(R.input), expected)


# ---- what is computed from the input ---------------------------------------------------------------------------------


def test_where_is_held_and_what_is_read_there_has_the_relevance() -> None:
    image = torch.randn(1, 2, 3, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    grid = torch.rand(1, 2, 2, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64) - 0.5

    def read(x: Tensor, at: Tensor) -> Tensor:
        return F.grid_sample(x, at, align_corners=False).flatten(1)

    of_image, of_grid = shares(read, image, grid, target=3)
    leaf = image.clone().requires_grad_()
    y = read(leaf, grid)[0, 3]
    (gradient,) = torch.autograd.grad(y, leaf)
    torch.testing.assert_close(of_image, image * gradient / y.detach())
    assert float(of_grid.abs().max()) == 0


def test_computed_weights_and_what_they_weigh_share_alike() -> None:
    x = torch.randn(1, 2, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    w = torch.randn(1, 3, 2, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)

    def convolved(x: Tensor, w: Tensor) -> Tensor:
        return F.conv1d(x, w[0]).flatten(1)

    found = shares(convolved, x, w, target=1)
    leaves = [t.clone().requires_grad_() for t in (x, w)]
    y = convolved(*leaves)[0, 1]
    for part, leaf, gradient in zip(found, leaves, torch.autograd.grad(y, leaves), strict=True):
        torch.testing.assert_close(part, (leaf * gradient / y / 2).detach())


def test_an_inverse_divides() -> None:
    matrix = torch.eye(3, dtype=torch.float64)[None] * 2 + 0.1
    vector = H[:1, :3, None]

    def solved(A: Tensor, b: Tensor) -> Tensor:
        return torch.linalg.solve(A, b).flatten(1)

    of_matrix, of_vector = shares(solved, matrix, vector)
    row = torch.linalg.inv(matrix)[0, 0]
    torch.testing.assert_close(of_vector[0, :, 0], row * vector[0, :, 0] / (row @ vector[0, :, 0]))
    assert float(of_matrix.abs().max()) == 0


def test_functions_of_steps_pass_relevance_on() -> None:
    for function in (torch.round, torch.floor, torch.sign, lambda h: h // 0.3, lambda h: h % 0.3):
        check_op(function, H * 3)


# ---- norms of one's own ----------------------------------------------------------------------------------------------


class OwnNorm(nn.Module):
    """A norm along an axis that torch does not know, with or without a mean."""

    def __init__(self, axis: int, centers: bool, width: int) -> None:
        super().__init__()
        self.axis, self.centers = axis, centers
        self.weight, self.bias = nn.Parameter(torch.rand(width) + 0.5), nn.Parameter(torch.randn(width))

    def forward(self, x: Tensor) -> Tensor:
        c = x - x.mean(self.axis, keepdim=True) if self.centers else x
        shape = [-1 if d == self.axis % x.ndim else 1 for d in range(x.ndim)]
        y = c / (c.square().mean(self.axis, keepdim=True) + 1e-5).sqrt()
        return y * self.weight.view(shape) + self.bias.view(shape)


@pytest.fixture
def registered() -> Iterator[None]:
    nrm.register(OwnNorm, "norm")
    yield
    for table in (VOCABULARY, OWN):
        table.pop(f"{OwnNorm.__module__}.{OwnNorm.__qualname__}")


def of_images(axis: int, centers: bool) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(2, 4, 2), OwnNorm(axis, centers, 4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)
    ).double()


@pytest.mark.usefixtures("registered")
def test_a_norm_of_ones_own_is_a_layer_norm() -> None:
    torch.manual_seed(1)
    own, known = OwnNorm(-1, True, 4).double(), nn.LayerNorm(4).double()
    known.load_state_dict(own.state_dict())
    first, last = nn.Linear(6, 4).double(), nn.Linear(4, 2).double()
    R, S = (nrm.measure(nn.Sequential(first, norm, last), H) for norm in (own, known))
    torch.testing.assert_close(R(R.input), S(S.input))
    other = H.flip(0)
    C, D = (nrm.measure(nn.Sequential(first, norm, last), H, against=other, target=0) for norm in (own, known))
    torch.testing.assert_close(C(C.input), D(D.input))


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("centers", [True, False])
def test_norms_of_channels_of_images_hold_their_mass(centers: bool) -> None:
    model = of_images(1, centers)
    x, other = torch.randn(2, 2, 2, 3, 3, dtype=torch.float64)
    assert nrm.measure(model, x, rules="lrp-0").check().cut_error == pytest.approx(0.0, abs=1e-11)
    check = nrm.measure(model, x, against=other).check()
    assert all(check.ok)
    assert check.cut_error == pytest.approx(0.0, abs=1e-11)


@pytest.mark.usefixtures("registered")
def test_what_is_no_norm_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OwnNorm, "forward", lambda self, x: x * x.sum(-1, keepdim=True))
    with pytest.raises(nrm.CaptureError, match="OwnNorm"):
        nrm.measure(of_images(1, False), torch.randn(2, 2, 3, 3, dtype=torch.float64))
