"""Channel tables, and steps on one channel at a time, against the materialised matrix."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nrm import operators
from nrm.operators import Convolution, Dense, LinearMap, apply_by_channel, channel_table, field_of, transpose_by_channel
from nrm.testing import materialize


def conv(
    inputs: int, outputs: int, groups: int, stride: int, padding: int, dilation: int, transposed: bool
) -> Convolution:
    generator = torch.Generator().manual_seed(0)
    sizes = (inputs, outputs // groups) if transposed else (outputs, inputs // groups)
    weight = torch.randn(*sizes, 3, 2, dtype=torch.float64, generator=generator)
    x = torch.zeros(2, inputs, 6, 5, dtype=torch.float64)
    function = F.conv_transpose2d if transposed else F.conv2d
    y = function(x, weight, stride=stride, padding=padding, dilation=dilation, groups=groups)
    return Convolution(x.shape, y.shape, weight, (stride,) * 2, (padding,) * 2, (dilation,) * 2, groups, transposed)


def brute(map: LinearMap, a: Tensor, d: Tensor, channel: int) -> Tensor:
    """Every entry of the matrix times both fields, summed over everything but the channels."""
    entries = (materialize(map) * a.flatten() * d.flatten()[:, None]).reshape(*map.outside, *map.inside)
    tables = []
    for b in range(map.inside[0]):
        one = entries.select(0, b).select(len(map.outside) - 1, b)
        kept = (channel - 1, len(map.outside) - 1 + channel - 1)
        drop = [axis for axis in range(one.ndim) if axis not in kept]
        tables.append((one.sum(drop) if drop else one).T)
    return torch.stack(tables)


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize(
    "shape",
    [(3, 4, 1, 1, 0, 1, False), (4, 6, 2, 2, 1, 1, False), (4, 4, 4, 1, 1, 2, False), (4, 6, 2, 2, 1, 1, True),
     (3, 2, 1, 1, 0, 1, True), (2, 3, 1, 3, 0, 1, False), (3, 3, 1, 2, 2, 2, False), (2, 2, 1, 2, 3, 1, True)],
)  # fmt: skip
def test_convolutions(shape: tuple[int, int, int, int, int, int, bool], flat: bool) -> None:
    map = conv(*shape)
    check(map.support() if flat else map, 1)


@pytest.mark.parametrize("inside", [(2, 3), (2, 5, 3)])
def test_dense(inside: tuple[int, ...]) -> None:
    weight = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    check(Dense(torch.Size(inside), weight), len(inside) - 1)


def check(map: LinearMap, channel: int) -> None:
    generator = torch.Generator().manual_seed(2)
    a = torch.randn(3, *map.inside, dtype=torch.float64, generator=generator)
    d = torch.randn(3, *map.outside, dtype=torch.float64, generator=generator)
    expected = torch.stack([brute(map, a[k], d[k], channel) for k in range(3)])
    torch.testing.assert_close(channel_table(map, a, d), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(channel_table(map, a[:1], d)[1], brute(map, a[0], d[1], channel), rtol=0, atol=1e-12)
    check_by_channel(map, a, d, channel)


def check_by_channel(map: LinearMap, a: Tensor, d: Tensor, channel: int) -> None:
    rows = [2, 0] if min(map.inside[channel], map.outside[channel]) > 2 else [1, 0]

    def only(field: Tensor, row: int) -> Tensor:
        kept = torch.zeros_like(field)
        kept.select(channel + 1, row).copy_(field.select(channel + 1, row))
        return kept

    down = torch.stack([map.transpose(only(d, r)) for r in rows], 1).flatten(0, 1)
    torch.testing.assert_close(transpose_by_channel(map, d, rows), down, rtol=0, atol=1e-12)
    up = torch.stack([map.apply(only(a, r)) for r in rows]).flatten(0, 1)
    torch.testing.assert_close(apply_by_channel(map, a, rows), up, rtol=0, atol=1e-12)


@pytest.mark.parametrize("transposed", [False, True])
def test_one_channel_at_a_time_without_batch_axis(transposed: bool) -> None:
    batched = conv(4, 6, 2, 2, 1, 1, transposed)
    map = Convolution(batched.inside[1:], batched.outside[1:], batched.weight, (2, 2), (1, 1), (1, 1), 2, transposed)
    generator = torch.Generator().manual_seed(3)
    a, d = (torch.randn(2, *s, dtype=torch.float64, generator=generator) for s in (map.inside, map.outside))
    check_by_channel(map, a, d, 0)


def test_one_channel_at_a_time_with_more_output_padding_than_stride() -> None:
    weight = torch.randn(2, 6, 2, 2, dtype=torch.float64)
    x = torch.zeros(2, 2, 4, 4, dtype=torch.float64)
    y = F.conv_transpose2d(x, weight, stride=1, dilation=2, output_padding=1)
    map = Convolution(x.shape, y.shape, weight, (1, 1), (0, 0), (2, 2), 1, True, (1, 1))
    a, d = (torch.randn(3, *s, dtype=torch.float64) for s in (map.inside, map.outside))
    check_by_channel(map, a, d, 1)


@pytest.mark.parametrize("inside", [(3,), (2, 3), (2, 4, 3)])
def test_dense_weights_kept_in_half_precision(inside: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators.dense, "PIECE", 7)  # two rows at a time, and one that is left over
    weight = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    half = Dense(torch.Size(inside), weight, torch.float64)
    whole = Dense(torch.Size(inside), weight.double())
    x, y = (torch.randn(2, *shape, dtype=torch.float64) for shape in (half.inside, half.outside))
    for one, other in (
        (half.apply(x), whole.apply(x)), (half.transpose(y), whole.transpose(y)),
        (half.bound(x.abs()), whole.bound(x.abs())),
        (half.reweight(torch.abs).apply(x), whole.reweight(torch.abs).apply(x)),
        (channel_table(half, x, y), channel_table(whole, x, y)),
        (apply_by_channel(half, x, [0, 2]), apply_by_channel(whole, x, [0, 2])),
        (transpose_by_channel(half, y, [1, 4]), transpose_by_channel(whole, y, [1, 4])),
        (field_of(half, torch.float64).rows(torch.tensor([3])), field_of(whole, torch.float64).rows(torch.tensor([3]))),
    ):  # fmt: skip
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("live", [[], [1], [0, 3], [0, 1, 2, 3]])
def test_rows_of_zeros_are_left_out(live: list[int], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators.dense, "WORK", 1)
    weight = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)).to(dtype)
    map = Dense(torch.Size((2, 2, 3)), weight, None if dtype == torch.float64 else torch.float64)
    y = torch.zeros(3, 4, 5, dtype=torch.float64)
    y[:, live] = torch.randn(3, len(live), 5, dtype=torch.float64)
    y[0, :, :4] = 0  # at first sight these rows are zeros, and they are not
    y = y.view(3, 2, 2, 5)
    torch.testing.assert_close(map.transpose(y), torch.matmul(y, weight.double()), rtol=1e-12, atol=1e-12)
