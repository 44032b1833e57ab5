"""Weights that are read when they are used: torch computes with them what it computes with their numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import nrm
from nrm.operators import Dense, LateWeight, loaded

NUMBERS = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
X = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def late(numbers: Tensor = NUMBERS) -> tuple[LateWeight, list[int]]:
    reads: list[int] = []

    def read() -> Tensor:
        reads.append(1)
        return numbers

    return LateWeight(read, torch.empty_like(numbers, device="meta"), numbers.device), reads


CALLS: dict[str, Callable[[Tensor], Any]] = {
    "linear": lambda w: torch.nn.functional.linear(X, w),
    "of a transposed one": lambda w: X[..., :3] @ w.T[:3].contiguous(),
    "of a part": lambda w: torch.nn.functional.linear(X, w[2:5]),
    "of one of several parts": lambda w: torch.nn.functional.linear(X, w.chunk(3)[1]),
    "in another precision": lambda w: torch.nn.functional.linear(X.float(), w.to(torch.float32)),
    "convolution": lambda w: torch.nn.functional.conv1d(X.mT, w.reshape(3, 4, 2)),
    "sum": lambda w: X[0, 0] + w,
    "mapped": lambda w: torch.vmap(lambda x: torch.nn.functional.linear(x, w))(X),
    "gradient": lambda w: torch.func.vjp(lambda x: torch.nn.functional.linear(x, w), X)[1](X.new_ones(3, 5, 6)),
    "all of them": lambda w: torch.cat(list(w.unbind(0))),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_torch_computes_the_same(name: str) -> None:
    weight, reads = late()
    torch.testing.assert_close(CALLS[name](weight), CALLS[name](NUMBERS))
    assert reads


def test_views_and_casts_are_not_read() -> None:
    weight, reads = late()
    seen = [weight.detach(), weight.T, weight[1:], weight.view(3, 2, 4), weight.half(), *weight.split(2)]
    assert all(isinstance(one, LateWeight) for one in seen)
    assert not reads
    assert [tuple(one.shape) for one in seen[:4]] == [(6, 4), (4, 6), (5, 4), (3, 2, 4)]
    assert seen[4].dtype == torch.float16
    torch.testing.assert_close(loaded(weight.T[:, 1:3].float()), NUMBERS.T[:, 1:3].float())
    assert len(reads) == 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_layer_reads_its_weights_once_for_each_use(dtype: torch.dtype) -> None:
    many = torch.randn(600, 500, generator=torch.Generator().manual_seed(0)).to(dtype)  # cast in several pieces
    weight, reads = late(many)
    kept = None if dtype == torch.float64 else torch.float64
    layer, plain = Dense(torch.Size((2, 500)), weight, kept), Dense(torch.Size((2, 500)), many, kept)
    x, y = torch.randn(1, 2, 500).double(), torch.randn(1, 2, 600).double()
    assert not reads
    assert torch.equal(layer.apply(x), plain.apply(x))
    assert len(reads) == 1
    assert torch.equal(layer.transpose(y), plain.transpose(y))
    assert len(reads) == 2


def test_writing_is_refused() -> None:
    weight, _ = late()
    with pytest.raises(nrm.NrmError, match="cannot be written"):
        weight.mul_(2)
    with pytest.raises(nrm.NrmError, match="cannot be written"):
        weight[0] = 1.0
