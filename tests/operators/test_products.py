"""Products of matrices are those of torch in every layout, whichever kernel makes them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from nrm.operators import products
from nrm.operators.products import product

SHAPES = {
    "matrices": ((130, 90), (90, 140)),
    "rows along more axes": ((3, 50, 90), (90, 140)),
    "one matrix with a stack": ((130, 90), (3, 90, 140)),
    "one matrix with a stack of narrow ones": ((130, 190), (3, 190, 50)),
    "two stacks": ((3, 130, 90), (3, 90, 140)),
    "a stack of one": ((130, 90), (1, 90, 140)),
    "two axes of stacks": ((2, 3, 70, 90), (2, 3, 90, 140)),
    "a row": ((1, 1100), (1100, 1000)),
    "wide": ((40, 90), (90, 600)),
    "small": ((3, 4), (4, 5)),
    "of nothing": ((300, 0), (0, 400)),
}


def turned(x: Tensor) -> Tensor:
    """The same numbers, with the last two axes swapped in memory."""
    return x.mT.contiguous().mT


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_a_product_is_that_of_float64(name: str, left: bool, right: bool) -> None:
    a, b = (torch.randn(shape) for shape in SHAPES[name])
    exact = a.double() @ b.double()
    found = product(turned(a) if left else a, turned(b) if right else b)
    assert found.shape == exact.shape
    assert found.is_contiguous()
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-4)


def test_large_products_take_the_other_kernel_and_leave_gradients_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    if products._KERNEL is None:
        pytest.skip("this build of torch has no oneDNN")
    calls: list[int] = []
    kernel = products._KERNEL
    monkeypatch.setattr(products, "_KERNEL", lambda *given: calls.append(1) or kernel(*given))
    a, b = torch.randn(200, 100), torch.randn(100, 200)
    product(a, b)
    assert calls == [1]
    product(a.double(), b.double())
    weight = b.clone().requires_grad_()
    product(a, weight).sum().backward()  # type: ignore[no-untyped-call]
    assert calls == [1]
    torch.testing.assert_close(weight.grad, a.sum(0)[:, None].expand(-1, 200))
    with torch.no_grad():
        product(a, weight)
    assert calls == [1, 1]
