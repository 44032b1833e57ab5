"""Exact splits, op by op: differences below carry to the difference of the result, and what has none is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import nrm
from laws.test_units import carries_units_to_units

pytestmark = pytest.mark.filterwarnings("ignore::nrm.errors.NrmWarning")


class Applied(nn.Module):
    """A function of a tensor and of linear functions of it, summed with signs, so that no entry is alike."""

    def __init__(self, function: Callable[..., Tensor], count: int, width: int) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(width, width) for _ in range(count))
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        y = self.function(*(part(x) for part in self.parts)).flatten(1)
        return torch.stack([(y * torch.linspace(1.0, 2.0, y.shape[1], dtype=y.dtype)).sum(1), y.sum(1)], 1)


INDEX = torch.tensor([0, 1, 1, 0, 2, 2])
ONE: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu, "relu6": F.relu6, "leaky_relu": F.leaky_relu, "elu": F.elu, "selu": F.selu, "gelu": F.gelu,
    "silu": F.silu, "mish": F.mish, "softplus": F.softplus, "softsign": F.softsign, "tanh": torch.tanh,
    "sigmoid": torch.sigmoid, "logsigmoid": F.logsigmoid, "hardswish": F.hardswish, "hardsigmoid": F.hardsigmoid,
    "hardtanh": F.hardtanh, "hardshrink": F.hardshrink, "softshrink": F.softshrink, "abs": torch.abs,
    "clamp": lambda v: v.clamp(-0.3, 0.5), "exp": torch.exp, "square": torch.square, "pow": lambda v: v**3,
    "sqrt": lambda v: (v * v + 0.1).sqrt(), "log": lambda v: (v * v + 0.1).log(), "sin": torch.sin,
    "rsqrt": lambda v: (v * v + 0.1).rsqrt(), "reciprocal": lambda v: (v * v + 0.1).reciprocal(),
    "constant over": lambda v: 2.0 / (v * v + 0.5), "negative power": lambda v: (v * v + 0.1) ** -1.5,
    "handwritten gelu": lambda v: 0.5 * v * (1 + torch.tanh(0.8 * (v + 0.04 * v**3))),
    "itself squared": lambda v: v * v,
    "softmax": lambda v: v.softmax(-1), "log_softmax": lambda v: v.log_softmax(-1),
    "softmin": lambda v: F.softmin(v, -1),
    "masked softmax": lambda v: v.masked_fill(INDEX == 1, -torch.inf).softmax(-1),
    "layer_norm": lambda v: F.layer_norm(v, (6,)), "rms_norm": lambda v: F.rms_norm(v, (6,)),
    "group_norm": lambda v: F.group_norm(v[:, :, None].expand(-1, -1, 4) * torch.arange(1.0, 5.0), 2),
    "instance_norm": lambda v: F.instance_norm(v[:, :, None] * torch.arange(1.0, 5.0) ** 2),
    "normalize": F.normalize, "normalize by 3": lambda v: F.normalize(v, 3.0), "local_response_norm":
        lambda v: F.local_response_norm(v[:, :, None], 3, alpha=2.0),
    "max_pool1d": lambda v: F.max_pool1d(v[:, None], 2), "avg_pool1d": lambda v: F.avg_pool1d(v[:, None], 2),
    "amax": lambda v: v.amax(1, keepdim=True), "min": lambda v: v.min(1, keepdim=True)[0], "max of all":
        lambda v: torch.stack([row.max() for row in v])[:, None],
    "sort": lambda v: v.sort(1)[0], "descending": lambda v: v.sort(1, descending=True)[0],
    "topk": lambda v: v.topk(3, 1)[0], "kthvalue": lambda v: v.kthvalue(2, 1, True)[0], "median":
        lambda v: v.median(1, True)[0], "cummax": lambda v: v.cummax(1)[0],
    "maximum of a constant": lambda v: torch.maximum(v, torch.full((6,), 0.1, dtype=v.dtype)),
    "never the constant": lambda v: torch.maximum(v, torch.full((6,), -9.0, dtype=v.dtype)),
    "scatter amax": lambda v: v.new_zeros(len(v), 3).scatter_reduce(
        1, INDEX.expand(len(v), -1), v, "amax", include_self=False),
    "scatter softmax": lambda v: (e := v.exp()) / v.new_zeros(len(v), 3).scatter_add(
        1, INDEX.expand(len(v), -1), e)[:, INDEX],
    "mean and deviation": lambda v: (v - v.mean(1, keepdim=True)) / (v.pow(2).mean(1, keepdim=True) + 0.1).sqrt(),
    "logsumexp": lambda v: v.logsumexp(1, keepdim=True), "prod": lambda v: v.prod(1, keepdim=True),
    "cumprod": lambda v: v.cumprod(1), "var": lambda v: v.var(1, keepdim=True), "std": lambda v: v.std(1, keepdim=True),
    "norm": lambda v: v.norm(dim=1, keepdim=True),
}  # fmt: skip
TWO: dict[str, Callable[..., Tensor]] = {
    "mul": torch.mul, "div": lambda u, v: u / (v * v + 0.5), "maximum": torch.maximum, "minimum": torch.minimum,
    "matmul": lambda u, v: u[:, :, None] @ v[:, None], "einsum": lambda u, v: torch.einsum("bi,bj->bij", u, v),
    "inner": lambda u, v: torch.einsum("bi,bi->b", u, v)[:, None], "glu": lambda u, v: F.glu(torch.cat([u, v], 1)),
    "attention": lambda u, v: F.scaled_dot_product_attention(u.view(-1, 3, 2), v.view(-1, 3, 2), u.view(-1, 3, 2)),
    "addcmul": lambda u, v: torch.addcmul(u, u, v, value=0.5), "lerp": lambda u, v: torch.lerp(u, v, u.sigmoid()),
}  # fmt: skip
THREE: dict[str, Callable[..., Tensor]] = {
    "product of three": lambda u, v, w: u * v * w,
    "einsum of three": lambda u, v, w: torch.einsum("bi,bi,bj->bj", u, v, w),
}
TABLES = ((ONE, 1), (TWO, 2), (THREE, 3))
CASES = [(name, function, count) for table, count in TABLES for name, function in table.items()]


@pytest.mark.parametrize(("function", "count"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_every_op_is_exact_in_the_difference(function: Callable[..., Tensor], count: int) -> None:
    torch.manual_seed(3)
    model = Applied(function, count, 6).double()
    x, other = torch.randn(2, 3, 6, dtype=torch.double)
    other[:, 2] = x[:, 2]
    R = nrm.measure(model, x, against=other, target=0)
    carries_units_to_units(R)
    check = R.check(strict=False)
    largest = max(max(row) for row in check.variation.values())
    assert check.cut_error is not None
    assert check.cut_error <= 1e-11 * largest
    assert check.sinks == {}
    assert float(R(R.input)[:, 2].abs().max()) == 0
    back = nrm.measure(model, other, against=x, target=0)
    torch.testing.assert_close(R.in_units(R.input), -back.in_units(back.input), rtol=1e-8, atol=1e-10)
