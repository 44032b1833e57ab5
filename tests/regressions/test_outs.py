"""Calls that write their results into the tensors of ``out=``: one or several, constant, tracked or empty."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import nrm
from regressions.piecewise import check_gradient

BUFFERS: dict[str, Callable[[Tensor], Tensor]] = {
    "a constant": torch.zeros_like,
    "a tracked tensor": lambda y: y * 2,
    "a view": lambda y: torch.ones(3, *y.shape, dtype=y.dtype)[1],
    "empty": lambda y: y.new_empty(0),
}


def places(y: Tensor) -> Tensor:
    return torch.empty(0, dtype=torch.long)


def sort(y: Tensor, z: Tensor, out: Tensor) -> Tensor:
    order = places(y)
    torch.sort(y, 1, out=(out, order))
    return out + z.gather(1, order)


def returned(y: Tensor, z: Tensor, out: Tensor) -> Tensor:
    result = torch.sort(y, 1, True, out=(out, places(y)))
    return result.values * 2 + out + z


def topk(y: Tensor, z: Tensor, out: Tensor) -> Tensor:
    torch.topk(y, 6, 1, out=(out, places(y)))
    return out + z


def cummax(y: Tensor, z: Tensor, out: Tensor) -> Tensor:
    torch.cummax(y, 1, out=(out, places(y)))
    return out + z


def add(y: Tensor, z: Tensor, out: Tensor) -> Tensor:
    torch.add(y, z, out=out)
    return out


def addcmul(y: Tensor, z: Tensor, out: Tensor) -> Tensor:
    torch.addcmul(y, z, torch.full((6,), 2.0, dtype=y.dtype), value=0.5, out=out)
    return out


def lerp(y: Tensor, z: Tensor, out: Tensor) -> Tensor:
    torch.lerp(y, z, 0.3, out=out)
    return out


def addmm(y: Tensor, z: Tensor, out: Tensor) -> Tensor:
    torch.addmm(y, z, torch.eye(6, dtype=y.dtype) * 2, beta=0.5, out=out)
    return out


def masked(y: Tensor, z: Tensor, out: Tensor) -> Tensor:
    positive = torch.empty(0, dtype=torch.bool)
    torch.gt(y, 0, out=positive)
    torch.where(positive, y, z, out=out)
    return out


def constants(y: Tensor, z: Tensor, out: Tensor) -> Tensor:
    torch.add(torch.ones_like(y), 1, out=out)
    return out + z


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("buffer", BUFFERS.values(), ids=BUFFERS)
@pytest.mark.parametrize(
    "function", [sort, returned, topk, cummax, add, addcmul, lerp, addmm, masked, constants], ids=lambda f: f.__name__
)
def test_results_are_written_into_out(
    function: Callable[[Tensor, Tensor, Tensor], Tensor], buffer: Callable[[Tensor], Tensor], samples: int
) -> None:
    def call(y: Tensor, z: Tensor) -> Tensor:
        if y.requires_grad:  # autograd, which the test compares with, knows no ``out=``
            with torch.no_grad():
                assert function(y.clone(), z.clone(), buffer(y)).shape == y.shape
            return PLAIN[function](y, z)
        return function(y, z, buffer(y))

    check_gradient(call, samples)


EYE = torch.eye(6, dtype=torch.float64)
PLAIN: dict[Callable[..., Tensor], Callable[[Tensor, Tensor], Tensor]] = {
    sort: lambda y, z: y.sort(1).values + z.gather(1, y.argsort(1)),
    returned: lambda y, z: 3 * y.sort(1, descending=True).values + z,
    topk: lambda y, z: y.topk(6, 1).values + z,
    cummax: lambda y, z: y.cummax(1).values + z,
    add: lambda y, z: y + z,
    addcmul: lambda y, z: y + z,
    lerp: lambda y, z: 0.7 * y + 0.3 * z,
    addmm: lambda y, z: 0.5 * y + 2 * z,
    masked: lambda y, z: torch.where(y > 0, y, z),
    constants: lambda y, z: 2 + z,
}


@pytest.mark.parametrize("samples", [1, 3])
def test_the_largest_and_smallest_entries_are_written_into_out(samples: int) -> None:
    def largest(y: Tensor, z: Tensor) -> Tensor:
        if y.requires_grad:
            return y.amax(1, True) + y.amin(1, True) + y.median(1, True).values + z
        total = z
        for function in (torch.max, torch.min, torch.median):
            value, at = y.new_empty(len(y), 1), torch.empty(len(y), 1, dtype=torch.long)
            function(y, 1, True, out=(value, at))
            total = total + value
        return total

    check_gradient(largest, samples)


def test_a_buffer_of_the_model_that_is_written_by_out_is_given_back() -> None:
    class Scratch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(3, 3)
            self.register_buffer("scratch", torch.full((2, 3), 7.0))
            self.register_buffer("ones", torch.ones(2, 3))

        def forward(self, x: Tensor) -> Tensor:
            torch.mul(self.ones, 3, out=self.ones)
            torch.add(self.lin(x), self.ones, out=self.scratch)
            return self.scratch * 2

    model = Scratch().eval()
    R = nrm.measure(model, torch.randn(2, 3), target=0)
    assert R.value.shape == (2,)
    assert bool((model.scratch == 7).all())
    assert bool((model.ones == 1).all())


def test_a_result_of_another_shape_is_refused() -> None:
    class Narrow(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            out = torch.zeros(2, 2)
            torch.sort(x, 1, out=(out, torch.empty(0, dtype=torch.long)))
            return out

    with pytest.raises(nrm.NrmError, match="another shape"):
        nrm.measure(Narrow().eval(), torch.randn(2, 3), target=0)
