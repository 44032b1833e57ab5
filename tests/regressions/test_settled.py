"""Cases that the definitions settle: products of functions of one tensor, and padding that copies; by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import nrm

Elementwise = Callable[[Tensor], Tensor]
WRITTEN: dict[str, Elementwise] = {
    "z * tanh(z)": lambda z: z * torch.tanh(z),
    "tanh(z) * z": lambda z: torch.tanh(z) * z,
    "gelu by tanh": lambda z: 0.5 * z * (1 + torch.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))),
    "gelu by erf": lambda z: z * 0.5 * (1 + torch.erf(z / math.sqrt(2))),
    "swish": lambda z: z * torch.sigmoid(1.702 * z),
    "mish": lambda z: z * torch.tanh(F.softplus(z)),
    "z * (z + relu(z))": lambda z: z * (z + torch.relu(z)),
    "z * z": lambda z: z * z,
    "three factors": lambda z: z * z * torch.sigmoid(z),
    "an offset": lambda z: torch.exp(z) * torch.sigmoid(z),
}


class Written(nn.Module):
    """An elementwise function between two linear layers without biases."""

    def __init__(self, function: Elementwise) -> None:
        super().__init__()
        self.below, self.above = nn.Linear(3, 4, bias=False), nn.Linear(4, 2, bias=False)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        """Two outputs."""
        made: Tensor = self.above(self.function(self.below(x)))
        return made


def explain(function: Elementwise, **options: Any) -> tuple[nrm.Measure, Tensor, Tensor]:
    """The measure, z, and the relevance of the function's value: each entry's part of the output."""
    torch.manual_seed(0)
    model, x = Written(function).double().eval(), torch.randn(2, 3, dtype=torch.float64)
    R = nrm.measure(model, x, target=0, bias="input", **{"rules": "lrp-0", **options})
    z = model.below(x).detach()
    whole = model.above.weight[0].detach() * function(z) / model(x).detach()[:, :1]
    return R, z, whole


@pytest.mark.parametrize("function", WRITTEN.values(), ids=WRITTEN)
def test_a_product_of_functions_of_one_tensor_is_one_function_of_it(function: Elementwise) -> None:
    R, z, whole = explain(function)
    offset = float(function(torch.zeros(1, dtype=torch.float64)))
    torch.testing.assert_close(R(R["below"]), whole * (1 - offset / function(z)))
    assert [row.name for row in R.layers if row.name.startswith("/")][-1].startswith("/mul")
    assert "can be trusted" in str(R.check())


@pytest.mark.parametrize(
    ("function", "inner"),
    [("z * tanh(z)", ["/tanh"]), ("gelu by tanh", ["/tanh", "/pow", "/add#0", "/add#1"]), ("swish", ["/sigmoid"]),
     ("z * (z + relu(z))", ["/relu", "/add"]), ("mish", ["/softplus", "/tanh"])],
)  # fmt: skip
def test_the_factors_of_such_a_product_get_nothing(function: str, inner: list[str]) -> None:
    R, _, _ = explain(WRITTEN[function])
    for name in inner:
        assert not bool(R(R[name]).any()), name


def test_product_splits_it_by_shares() -> None:
    R, _, whole = explain(lambda z: z * torch.tanh(z), rules={"*/mul": nrm.Product(shares=(1, 3))})
    torch.testing.assert_close(R(R["/tanh"]), whole * 3 / 4)
    torch.testing.assert_close(R(R.edge("below", "/mul")), whole / 4)
    torch.testing.assert_close(R(R["below"]), whole)


def test_product_splits_it_into_signal_and_gate() -> None:
    """The sigmoid is the gate: with a coefficient of its own, half of what it gets is its offset's, in part."""
    R, z, whole = explain(lambda z: z * torch.sigmoid(z), rules={"*/mul": nrm.Product(gate=1, signal=1)})
    gate = torch.sigmoid(z)
    torch.testing.assert_close(R(R["/sigmoid"]), whole / 2)
    torch.testing.assert_close(R(R["below"]), whole / 2 + whole / 2 * (gate - 0.5) / gate)
    R, _, whole = explain(lambda z: z * torch.sigmoid(z), rules={"*/mul": nrm.Product()})
    torch.testing.assert_close(R(R["below"]), whole)
    assert not bool(R(R["/sigmoid"]).any())


def test_product_splits_a_factor_that_is_a_sum() -> None:
    R, z, whole = explain(lambda z: z * (z + torch.relu(z)), rules={"*/mul": nrm.Product(shares=(0, 1))})
    torch.testing.assert_close(R(R["/add"]), whole)
    torch.testing.assert_close(R(R["/relu"]), whole * torch.relu(z) / (z + torch.relu(z)))
    torch.testing.assert_close(R(R["below"]), whole)


def test_only_the_product_that_is_named_is_split() -> None:
    class Two(nn.Module):
        def forward(self, z: Tensor) -> Tensor:
            return z * torch.tanh(z)

    model = nn.Sequential(nn.Linear(3, 4), Two(), nn.Linear(4, 4), Two(), nn.Linear(4, 2)).double().eval()
    x = torch.randn(2, 3, dtype=torch.float64)
    plain = nrm.measure(model, x, target=0, rules="lrp-0", bias="input")
    R = nrm.measure(model, x, target=0, rules={"3": nrm.Product(shares=(1, 1)), "*": "lrp-0"}, bias="input")
    torch.testing.assert_close(R(R["3/tanh"]), plain(plain["3"]) / 2)
    assert not bool(R(R["1/tanh"]).any())
    torch.testing.assert_close(R(R.input), plain(plain.input))


@pytest.mark.parametrize(
    ("mode", "copies"),
    [("reflect", [2, 1, 0, 1, 2, 3, 2]), ("replicate", [0, 0, 0, 1, 2, 3, 3]), ("circular", [2, 3, 0, 1, 2, 3, 0])],
)
def test_copies_of_padding_are_entries_of_their_own(mode: str, copies: list[int]) -> None:
    """An entry and its copies are neurons of the padded layer; the neuron they copy has what they have together."""

    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.tensor([1.0, -2.0, 3.0, 0.5, 1.5, -1.0, 2.0], dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return F.pad(x[:, None], (2, 1), mode=mode)[:, 0] @ self.weight[:, None]

    x = torch.tensor([[1.0, 2.0, -1.0, 4.0], [0.5, 1.0, 3.0, 2.0]], dtype=torch.float64)
    model = Padded().eval()
    R = nrm.measure(model, x, target=0, rules="lrp-0", bias="input")
    each = x[:, copies] * model.weight.detach() / R.value[:, None]
    torch.testing.assert_close(R(R["/pad"])[:, 0], each)
    torch.testing.assert_close(R(R.input), torch.zeros_like(x).index_add(1, torch.tensor(copies), each))
    torch.testing.assert_close(R(R["/pad"][0, 0]), each[:, 0])
    torch.testing.assert_close(R(R.input, R["/pad"][0, 0])[:, copies[0]], each[:, 0])
