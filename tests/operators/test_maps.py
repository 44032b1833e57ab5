"""Every linear map, as the capture builds it from a torch call, against the Jacobian of that call (float64).

A case is one line: a function that is linear (or, for maxima, locally linear) in its input, and the input's shape.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nrm.capture import Combine, Linear, Select, Tape, capture
from nrm.errors import RuleError
from nrm.operators import (
    Dense,
    Function,
    Grouped,
    Identity,
    LinearMap,
    Matmul,
    apply_by_channel,
    channel_table,
    transpose_by_channel,
)

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")


def weight(*shape: int) -> Tensor:
    """Fixed numbers of both signs, none of them near 0."""
    values = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))
    return values + 0.2 * values.sign()


class Wrapped(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]):
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


@dataclass(frozen=True)
class Case:
    function: Callable[[Tensor], Tensor]
    shape: tuple[int, ...]

    @cached_property
    def x(self) -> Tensor:
        return weight(*self.shape) if self.shape else torch.tensor(0.7, dtype=torch.float64)

    @cached_property
    def tape(self) -> Tape:
        return capture(Wrapped(self.function), self.x, batch_dim=None)

    @cached_property
    def maps(self) -> list[LinearMap]:
        """The maps from the input to the output, one per step."""
        maps: list[LinearMap] = []
        index = self.tape.output
        while self.tape.nodes[index].inputs:
            node = self.tape.nodes[index]
            assert len(node.inputs) == 1 or isinstance(node.op, Combine)
            op = node.op
            if isinstance(op, Linear | Select):
                maps.append(op.map)
            else:
                assert isinstance(op, Combine)
                maps.append(op.terms[0].move or Identity(node.shape))
            index = node.inputs[0]
        return maps[::-1]

    @cached_property
    def matrix(self) -> Tensor:
        """The truth: the Jacobian, (outputs, inputs)."""
        jacobian = torch.autograd.functional.jacobian(self.function, self.x, vectorize=False)
        return jacobian.reshape(-1, self.x.numel())


def apply(maps: list[LinearMap], x: Tensor) -> Tensor:
    for map in maps:
        x = map.apply(x)
    return x


def transpose(maps: list[LinearMap], y: Tensor) -> Tensor:
    for map in reversed(maps):
        y = map.transpose(y)
    return y


W = weight
ODD = torch.tensor([[0.1, 0.4]], dtype=torch.float64)  # the random samples of a fractional pooling

KNOWN_BY_WEIGHT = {
    "linear": Case(lambda x: F.linear(x, W(4, 3), W(4)), (2, 3)),
    "linear, unbatched": Case(lambda x: F.linear(x, W(4, 3)), (3,)),
    "linear, more axes": Case(lambda x: F.linear(x, W(4, 3)), (2, 3, 3)),
    "matmul, right": Case(lambda x: x @ W(3, 4), (2, 3)),
    "matmul, left": Case(lambda x: W(4, 2) @ x, (2, 3)),
    "matmul, right, batch of constants": Case(lambda x: x @ W(5, 3, 4), (5, 2, 3)),
    "matmul, right, constant broadcast": Case(lambda x: x @ W(3, 4), (5, 2, 3)),
    "matmul, right, x broadcast": Case(lambda x: x @ W(5, 3, 4), (2, 3)),
    "matmul, left, x broadcast": Case(lambda x: W(5, 4, 2) @ x, (2, 3)),
    "matmul, left, both broadcast": Case(lambda x: W(5, 1, 4, 2) @ x, (3, 2, 3)),
    "bmm": Case(lambda x: torch.bmm(x, W(2, 3, 4)), (2, 3, 3)),
    "addmm": Case(lambda x: torch.addmm(W(4), x, W(3, 4), beta=0.5, alpha=2), (2, 3)),
    "conv1d": Case(lambda x: F.conv1d(x, W(4, 3, 3), W(4)), (2, 3, 7)),
    "conv1d, unbatched": Case(lambda x: F.conv1d(x, W(4, 3, 3), padding=1), (3, 7)),
    "conv1d, stride dilation": Case(lambda x: F.conv1d(x, W(2, 3, 3), stride=2, padding=2, dilation=2), (2, 3, 9)),
    "conv2d": Case(lambda x: F.conv2d(x, W(4, 3, 3, 2), stride=(1, 2), padding=(1, 0)), (2, 3, 5, 6)),
    "conv2d, unbatched": Case(lambda x: F.conv2d(x, W(4, 3, 3, 3), padding=1), (3, 4, 4)),
    "conv2d, input not covered": Case(lambda x: F.conv2d(x, W(2, 2, 2, 2), stride=3), (1, 2, 6, 7)),
    "conv2d, groups": Case(lambda x: F.conv2d(x, W(6, 2, 3, 3), padding=1, groups=2), (2, 4, 4, 3)),
    "conv2d, depthwise": Case(lambda x: F.conv2d(x, W(3, 1, 3, 3), padding=1, groups=3), (2, 3, 4, 4)),
    "conv2d, depth multiplier": Case(lambda x: F.conv2d(x, W(6, 1, 3, 3), groups=3), (1, 3, 4, 4)),
    "conv2d, dilation": Case(lambda x: F.conv2d(x, W(2, 2, 3, 3), dilation=(2, 1), padding=(2, 1)), (1, 2, 5, 4)),
    "conv2d, same": Case(lambda x: F.conv2d(x, W(2, 2, 3, 3), padding="same"), (1, 2, 4, 4)),
    "conv2d, valid": Case(lambda x: F.conv2d(x, W(2, 2, 3, 3), padding="valid"), (1, 2, 4, 4)),
    "conv3d": Case(lambda x: F.conv3d(x, W(2, 2, 2, 2, 3), stride=(1, 2, 1), padding=(0, 1, 1)), (1, 2, 3, 4, 3)),
    "conv_transpose1d": Case(lambda x: F.conv_transpose1d(x, W(3, 2, 3), stride=2, output_padding=1), (2, 3, 4)),
    "conv_transpose2d": Case(
        lambda x: F.conv_transpose2d(x, W(2, 3, 3, 3), W(3), stride=2, padding=1, output_padding=1), (2, 2, 3, 3)
    ),
    "conv_transpose2d, groups dilation": Case(
        lambda x: F.conv_transpose2d(x, W(4, 2, 2, 2), groups=2, dilation=2), (1, 4, 3, 3)
    ),
    "conv_transpose2d, unbatched": Case(lambda x: F.conv_transpose2d(x, W(2, 3, 2, 2), stride=2), (2, 3, 3)),
    "conv_transpose3d": Case(lambda x: F.conv_transpose3d(x, W(2, 1, 2, 2, 2), stride=2), (1, 2, 2, 2, 2)),
    "sum": Case(lambda x: x.sum(), (2, 3)),
    "sum, axes": Case(lambda x: x.sum((0, -1)), (2, 3, 4)),
    "sum, numpy names": Case(lambda x: x.sum(axis=1, keepdims=True), (2, 3, 4)),
    "mean": Case(lambda x: x.mean((2, 3)), (2, 3, 4, 2)),
    "mean, kept": Case(lambda x: torch.mean(x, 1, True), (2, 3)),
}

EVEN_SAME = {
    "conv1d, same, even": Case(lambda x: F.conv1d(x, W(2, 2, 4), padding="same"), (1, 2, 6)),
    "conv2d, same, even": Case(lambda x: F.conv2d(x, W(2, 2, 2, 4), padding="same", dilation=(1, 3)), (1, 2, 4, 9)),
    "conv2d, same, even, unbatched": Case(lambda x: F.conv2d(x, W(2, 2, 2, 2), padding="same"), (2, 3, 4)),
    "conv3d, same, even": Case(lambda x: F.conv3d(x, W(1, 1, 2, 3, 2), padding="same"), (1, 1, 3, 3, 3)),
}

KNOWN_AS_WHOLE = {
    "avg_pool1d": Case(lambda x: F.avg_pool1d(x, 3, 2, 1), (2, 2, 7)),
    "avg_pool1d, unbatched": Case(lambda x: F.avg_pool1d(x, 2), (2, 6)),
    "avg_pool2d": Case(lambda x: F.avg_pool2d(x, 2), (2, 2, 4, 5)),
    "avg_pool2d, ceil": Case(lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), (1, 2, 6, 6)),
    "avg_pool2d, without padding": Case(lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), (1, 2, 5, 5)),
    "avg_pool2d, divisor": Case(lambda x: F.avg_pool2d(x, 2, divisor_override=3), (1, 2, 4, 4)),
    "avg_pool2d, unbatched": Case(lambda x: F.avg_pool2d(x, 2), (2, 4, 4)),
    "avg_pool3d": Case(lambda x: F.avg_pool3d(x, 2, 1), (1, 1, 3, 3, 3)),
    "adaptive_avg_pool1d": Case(lambda x: F.adaptive_avg_pool1d(x, 3), (2, 2, 7)),
    "adaptive_avg_pool2d": Case(lambda x: F.adaptive_avg_pool2d(x, (3, 2)), (2, 2, 5, 5)),
    "adaptive_avg_pool2d, larger": Case(lambda x: F.adaptive_avg_pool2d(x, 3), (1, 2, 2, 2)),
    "adaptive_avg_pool3d": Case(lambda x: F.adaptive_avg_pool3d(x, 2), (1, 1, 3, 4, 3)),
    "interpolate, nearest": Case(lambda x: F.interpolate(x, scale_factor=2), (1, 2, 3, 3)),
    "interpolate, nearest-exact": Case(lambda x: F.interpolate(x, 5, mode="nearest-exact"), (1, 2, 3)),
    "interpolate, area": Case(lambda x: F.interpolate(x, (2, 2), mode="area"), (1, 2, 5, 4)),
    "interpolate, linear": Case(lambda x: F.interpolate(x, 5, mode="linear"), (2, 2, 3)),
    "interpolate, bilinear": Case(lambda x: F.interpolate(x, 5, mode="bilinear", align_corners=True), (1, 2, 3, 3)),
    "interpolate, antialias": Case(lambda x: F.interpolate(x, 3, mode="bilinear", antialias=True), (1, 1, 6, 6)),
    "interpolate, trilinear": Case(lambda x: F.interpolate(x, 3, mode="trilinear"), (1, 1, 2, 2, 2)),
    "nn.Upsample": Case(nn.Upsample(scale_factor=2, mode="nearest"), (1, 2, 2, 3)),
    "fold": Case(lambda x: F.fold(x, (4, 4), 2), (2, 4, 9)),
    "fold, unbatched": Case(lambda x: F.fold(x, (3, 3), 2), (4, 4)),
    "cumsum": Case(lambda x: x.cumsum(1), (2, 4, 2)),
    "cumsum, first": Case(lambda x: torch.cumsum(x, 0), (4, 2)),
    "grid_sample": Case(lambda x: F.grid_sample(x, W(1, 2, 2, 2).clamp(-1, 1), align_corners=False), (1, 2, 3, 3)),
}

SIGNED_WHOLE = {
    "interpolate, bicubic": Case(lambda x: F.interpolate(x, 5, mode="bicubic"), (1, 1, 4, 4)),
    "matvec": Case(lambda x: x @ W(3), (2, 3)),
    "matvec, left": Case(lambda x: W(2, 3) @ x, (3,)),
    "dot": Case(lambda x: torch.dot(x, W(3)), (3,)),
    "einsum": Case(lambda x: torch.einsum("bij,jk->bik", x, W(3, 2)), (2, 2, 3)),
    "einsum, constant first": Case(lambda x: torch.einsum("ij,bj->bi", W(2, 3), x), (2, 3)),
    "tensordot": Case(lambda x: torch.tensordot(x, W(3, 4), dims=1), (2, 3)),
}

CHOICES = {
    "max_pool1d": Case(lambda x: F.max_pool1d(x, 3, 2, 1), (2, 2, 7)),
    "max_pool1d, unbatched": Case(lambda x: F.max_pool1d(x, 2), (2, 6)),
    "max_pool2d": Case(lambda x: F.max_pool2d(x, 2), (2, 2, 4, 5)),
    "max_pool2d, dilation": Case(lambda x: F.max_pool2d(x, 2, 1, 1, 2), (1, 2, 5, 5)),
    "max_pool2d, ceil": Case(lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True), (1, 2, 6, 6)),
    "max_pool2d, unbatched": Case(lambda x: F.max_pool2d(x, 2), (2, 4, 4)),
    "max_pool2d, indices": Case(lambda x: F.max_pool2d(x, 2, return_indices=True)[0], (1, 2, 4, 4)),
    "nn.MaxPool2d, indices": Case(lambda x: nn.MaxPool2d(3, 2, 1, return_indices=True)(x)[0], (1, 2, 5, 5)),
    "torch.max_pool2d": Case(lambda x: torch.max_pool2d(x, 2), (1, 2, 4, 4)),
    "max_pool3d": Case(lambda x: F.max_pool3d(x, 2, 1), (1, 2, 3, 3, 3)),
    "adaptive_max_pool1d": Case(lambda x: F.adaptive_max_pool1d(x, 3), (2, 2, 7)),
    "adaptive_max_pool2d": Case(lambda x: F.adaptive_max_pool2d(x, (3, 2)), (2, 2, 5, 5)),
    "adaptive_max_pool2d, indices": Case(lambda x: F.adaptive_max_pool2d(x, 2, return_indices=True)[0], (1, 2, 4, 4)),
    "adaptive_max_pool3d": Case(lambda x: F.adaptive_max_pool3d(x, 2), (1, 1, 3, 4, 3)),
    "fractional_max_pool2d": Case(
        lambda x: F.fractional_max_pool2d(x, 2, (3, 3), _random_samples=ODD.expand(2, 2, 2)), (2, 2, 6, 6)
    ),
    "fractional_max_pool3d": Case(
        lambda x: F.fractional_max_pool3d(x, 2, (2, 2, 2), _random_samples=W(1, 2, 3).abs() % 1), (1, 2, 4, 4, 4)
    ),
    "max": Case(lambda x: x.max(), (2, 3)),
    "max, axis": Case(lambda x: x.max(1).values, (2, 3, 2)),
    "min, axis kept": Case(lambda x: torch.min(x, -1, keepdim=True)[0], (2, 3)),
    "amax": Case(lambda x: x.amax((1, 2)), (2, 3, 2)),
    "amin": Case(lambda x: x.amin(0), (2, 3)),
    "topk": Case(lambda x: x.topk(2, 1).values, (2, 4)),
    "sort": Case(lambda x: x.sort(dim=0, descending=True)[0], (4, 2)),
    "median": Case(lambda x: x.median(1).values, (2, 5)),
    "median, all": Case(lambda x: x.median(), (5,)),
    "kthvalue": Case(lambda x: x.kthvalue(2, 1)[0], (2, 5)),
    "cummax": Case(lambda x: x.cummax(1)[0], (2, 5)),
}


def normed(function: Callable[[Tensor], Tensor], x: Tensor, dims: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    """The norm with its statistics held at their values for ``x``: the linear step that the norm is read as."""
    groups = function(x)

    def held(v: Tensor) -> Tensor:
        centred = v.reshape(groups.shape)
        spread = groups.var(dims, unbiased=False, keepdim=True)
        return (centred - centred.mean(dims, keepdim=True)) / torch.sqrt(spread + 1e-5)

    return held


@dataclass(frozen=True)
class Norm:
    """A norm, the view in which it normalizes, the axes of a group, and the shape of its affine weights."""

    function: Callable[[Tensor, Tensor, Tensor], Tensor]
    shape: tuple[int, ...]
    view: tuple[int, ...]
    dims: tuple[int, ...]
    affine: tuple[int, ...]


NORMS = {
    "layer_norm": Norm(lambda x, w, b: F.layer_norm(x, (4,), w, b), (2, 3, 4), (2, 3, 4), (2,), (4,)),
    "layer_norm, two axes": Norm(
        lambda x, w, b: F.layer_norm(x, (3, 4), w.view(3, 4), b.view(3, 4)), (2, 3, 4), (2, 3, 4), (1, 2), (3, 4)
    ),
    "group_norm": Norm(lambda x, w, b: F.group_norm(x, 2, w, b), (2, 4, 3), (2, 2, 2, 3), (2, 3), (4, 1)),
    "group_norm, images": Norm(
        lambda x, w, b: F.group_norm(x, 1, w, b), (2, 2, 2, 3), (2, 1, 2, 2, 3), (2, 3, 4), (2, 1, 1)
    ),
    "instance_norm": Norm(
        lambda x, w, b: F.instance_norm(x, None, None, w, b), (2, 3, 4), (2, 3, 1, 4), (2, 3), (3, 1)
    ),
}

SINGLE = {**KNOWN_BY_WEIGHT, **KNOWN_AS_WHOLE, **SIGNED_WHOLE, **CHOICES}
ALL = {**SINGLE, **EVEN_SAME}
STACKS = (1, 3)


@pytest.mark.parametrize("case", ALL.values(), ids=ALL)
class TestEveryMap:
    def test_value(self, case: Case) -> None:
        assert torch.equal(case.tape.nodes[case.tape.output].value, case.function(case.x))

    def test_shapes(self, case: Case) -> None:
        assert case.maps[0].inside == case.x.shape
        assert case.maps[-1].outside == case.function(case.x).shape

    def test_apply(self, case: Case) -> None:
        for stack in STACKS:
            x = weight(stack, *case.x.shape)
            expected = x.reshape(stack, -1) @ case.matrix.T
            assert torch.allclose(apply(case.maps, x).reshape(stack, -1), expected, rtol=1e-12, atol=1e-12)

    def test_transpose(self, case: Case) -> None:
        for stack in STACKS:
            y = weight(stack, *case.maps[-1].outside)
            expected = y.reshape(stack, -1) @ case.matrix
            assert torch.allclose(transpose(case.maps, y).reshape(stack, -1), expected, rtol=1e-12, atol=1e-12)


CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "positive": lambda w: w.clamp(min=0),
    "negative": lambda w: w.clamp(max=0),
    "square": torch.square,
    "absolute": torch.abs,
    "flipped": torch.neg,
}


def matrix_of(map: LinearMap) -> Tensor:
    units = torch.eye(map.inside.numel(), dtype=torch.float64).reshape(-1, *map.inside)
    return map.apply(units).reshape(len(units), -1).T


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("case", KNOWN_BY_WEIGHT.values(), ids=KNOWN_BY_WEIGHT)
def test_reweight_changes_every_entry(case: Case, change: Callable[[Tensor], Tensor]) -> None:
    (map,) = case.maps
    changed = map.reweight(change)
    assert torch.allclose(matrix_of(changed), change(case.matrix), rtol=1e-12, atol=1e-12)
    y = weight(2, *map.outside)
    expected = y.reshape(2, -1) @ change(case.matrix)
    assert torch.allclose(changed.transpose(y).reshape(2, -1), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("case", KNOWN_BY_WEIGHT.values(), ids=KNOWN_BY_WEIGHT)
def test_a_bound_is_above_the_absolute_sums_and_reaches_them(case: Case) -> None:
    (map,) = case.maps
    for x in (weight(1, *map.inside).abs(), torch.ones(1, *map.inside, dtype=torch.float64)):
        exact = (x.reshape(1, -1) @ case.matrix.abs().T).reshape(1, *map.outside)
        bound = map.bound(x)
        assert bool((bound >= exact * (1 - 1e-12)).all())
        assert float((bound / exact)[exact > 0].min()) < len(case.matrix[0]) ** 0.5 + 1e-9


@pytest.mark.parametrize("case", {**KNOWN_BY_WEIGHT, **CHOICES}.values(), ids={**KNOWN_BY_WEIGHT, **CHOICES})
def test_support_has_ones_where_there_is_a_connection(case: Case) -> None:
    (map,) = case.maps
    support = map.support()
    ones = (case.matrix != 0).to(torch.float64)
    assert torch.equal(matrix_of(support), ones)
    y = weight(2, *map.outside)
    assert torch.allclose(support.transpose(y).reshape(2, -1), y.reshape(2, -1) @ ones, rtol=1e-12, atol=1e-12)
    assert torch.equal(matrix_of(support.reweight(torch.square)), ones)


@pytest.mark.parametrize("case", KNOWN_AS_WHOLE.values(), ids=KNOWN_AS_WHOLE)
def test_a_pooling_is_non_negative_and_knows_it(case: Case) -> None:
    (map,) = case.maps
    assert map.nonnegative
    assert bool((case.matrix >= 0).all())
    assert torch.equal(matrix_of(map.reweight(CHANGES["positive"])), matrix_of(map))
    assert torch.equal(matrix_of(map.reweight(CHANGES["absolute"])), matrix_of(map))
    assert not matrix_of(map.reweight(CHANGES["negative"])).any()


@pytest.mark.parametrize("case", SIGNED_WHOLE.values(), ids=SIGNED_WHOLE)
def test_single_weights_of_a_signed_function_are_refused(case: Case) -> None:
    (map,) = case.maps
    assert isinstance(map, Function)
    if map.space:  # acts alike on all samples and channels: its weights can be had
        assert torch.allclose(matrix_of(map.reweight(CHANGES["positive"])), CHANGES["positive"](case.matrix))
        return
    with pytest.raises(RuleError, match="known as a whole only"):
        map.reweight(CHANGES["positive"])


@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
class TestNorms:
    """Statistics held constant, the mean subtracted, the weights as gains and the shift as a bias."""

    def parts(self, norm: Norm) -> tuple[Case, Linear, Tensor]:
        x = weight(*norm.shape)
        count = torch.Size(norm.affine).numel()
        gain, shift = weight(count), weight(count, 1).flatten()
        case = Case(lambda v: norm.function(v, gain, shift), norm.shape)
        op = case.tape.nodes[case.tape.output].op
        assert isinstance(op, Linear)
        held = normed(lambda v: v.reshape(norm.view), x, norm.dims)
        jacobian = torch.autograd.functional.jacobian(lambda v: held(v).reshape(norm.shape) * gain.view(norm.affine), x)
        return case, op, jacobian.reshape(-1, x.numel())

    def test_value(self, norm: Norm) -> None:
        case, op, matrix = self.parts(norm)
        linear = (matrix @ case.x.flatten()).view(norm.shape)
        assert op.bias is not None
        assert torch.allclose(linear + op.bias, case.function(case.x), rtol=1e-12, atol=1e-12)

    def test_both_directions(self, norm: Norm) -> None:
        _, op, matrix = self.parts(norm)
        for stack in STACKS:
            x, y = weight(stack, *norm.shape), weight(stack, 1, *norm.shape)[:, 0]
            up, down = op.map.apply(x).reshape(stack, -1), op.map.transpose(y).reshape(stack, -1)
            assert torch.allclose(up, x.reshape(stack, -1) @ matrix.T, rtol=1e-12, atol=1e-12)
            assert torch.allclose(down, y.reshape(stack, -1) @ matrix, rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
    def test_reweight(self, norm: Norm, change: Callable[[Tensor], Tensor]) -> None:
        _, op, matrix = self.parts(norm)
        assert torch.allclose(matrix_of(op.map.reweight(change)), change(matrix), rtol=1e-12, atol=1e-12)


def test_batch_norm_is_a_scale_and_a_shift() -> None:
    norm = nn.BatchNorm2d(3).double().eval()
    with torch.no_grad():
        for tensor in (norm.weight, norm.bias, norm.running_mean):
            tensor.copy_(weight(3))
        norm.running_var.copy_(weight(3).abs())
    x = weight(2, 3, 2, 2)
    tape = capture(norm, x)
    op = tape.nodes[tape.output].op
    assert isinstance(op, Combine)
    assert op.joins
    (term,) = op.terms
    assert torch.allclose(x * term.scale + op.shift, norm(x), rtol=1e-12, atol=1e-12)
    running = nn.InstanceNorm1d(3, track_running_stats=True).double().eval()
    tape = capture(running, x[..., 0])
    assert isinstance(tape.nodes[tape.output].op, Combine)
    assert torch.allclose(tape.nodes[tape.output].value, running(x[..., 0]))


POWER = {
    "lp_pool1d": (lambda x: F.lp_pool1d(x, 2, 3, 2), (2, 2, 7)),
    "lp_pool2d": (lambda x: F.lp_pool2d(x, 2, 2), (2, 2, 4, 4)),
    "lp_pool2d, p 1": (lambda x: F.lp_pool2d(x.abs(), 1, 2, 1), (2, 2, 3, 4)),
    "lp_pool2d, p 3, ceil": (lambda x: F.lp_pool2d(x.abs(), 3.0, (2, 3), ceil_mode=True), (1, 2, 5, 5)),
    "lp_pool3d": (lambda x: F.lp_pool3d(x, 2, 2), (1, 1, 4, 4, 4)),
    "glu": (lambda x: F.glu(x, 1), (2, 4)),
    "addcmul": (lambda x: torch.addcmul(x, x, W(3), value=0.5), (2, 3)),
    "addcdiv": (lambda x: torch.addcdiv(W(2, 3), x, W(3)), (2, 3)),
    "lerp": (lambda x: torch.lerp(x, x * x, 0.25), (2, 3)),
    "einsum, scores": (lambda x: torch.einsum("bqhd,bkhd->bhqk", x, x * x), (2, 3, 2, 4)),
    "einsum, values": (lambda x: torch.einsum("bijn, bjnd -> bind", x @ x.mT, x * x), (3, 4, 4, 4)),
    "einsum, in a list": (lambda x: torch.einsum("bkd,bqd->qbk", [x, x**2]), (3, 2, 4)),
}


@pytest.mark.parametrize(("function", "shape"), POWER.values(), ids=POWER)
def test_composed_functions_are_recorded_part_by_part(
    function: Callable[[Tensor], Tensor], shape: tuple[int, ...]
) -> None:
    x = weight(*shape)
    tape = capture(Wrapped(function), x)
    assert torch.allclose(tape.nodes[tape.output].value, function(x), rtol=1e-14, atol=1e-14)
    assert len(tape.nodes) > 2


def test_groups_of_rows_have_matrices_of_their_own() -> None:
    matrices, x, y = weight(3, 4, 2), weight(5, 6, 4), weight(5, 6, 2)
    map = Grouped(torch.Size([6, 4]), matrices, (2, 2, 5))  # the second group has no rows, the last row no group
    expected = torch.cat([x[:, :2] @ matrices[0], x[:, 2:5] @ matrices[2], x.new_zeros(5, 1, 2)], 1)
    torch.testing.assert_close(map.apply(x), expected)
    torch.testing.assert_close((map.transpose(y) * x).sum(), (y * expected).sum())
    torch.testing.assert_close(map.reweight(torch.abs).apply(x)[:, :2], x[:, :2] @ matrices[0].abs())
    assert map.outside == (6, 2)
    assert map.flops == 2 * 6 * 2 * 4


SHAPES = [
    ((4,), (4, 3), False), ((4,), (2, 4, 3), False), ((4,), (5, 2, 4, 3), False), ((4,), (3, 4), True),
    ((4,), (2, 3, 4), True), ((5, 4), (4, 3), False), ((5, 4), (2, 4, 3), False), ((4, 5), (3, 4), True),
    ((2, 5, 4), (4, 3), False), ((2, 5, 4), (2, 4, 3), False), ((1, 5, 4), (6, 4, 3), False),
    ((7, 1, 5, 4), (6, 4, 3), False), ((7, 1, 4, 5), (1, 6, 3, 4), True), ((6, 4, 5), (7, 1, 3, 4), True),
    ((2, 0, 4), (4, 3), False), ((2, 4, 5), (3, 4), True),
]  # fmt: skip


@pytest.mark.parametrize(("inside", "constant", "left"), SHAPES)
def test_a_product_of_matrices_has_the_shape_of_matmul(inside: tuple[int, ...], constant: tuple[int, ...], left: bool):
    x, c = torch.ones(inside), torch.ones(constant)
    expected = torch.matmul(c, x) if left else torch.matmul(x, c)
    map = Matmul(torch.Size(inside), c, left)
    assert map.outside == expected.shape
    if len(inside) > 1:
        assert map.apply(x[None])[0].shape == expected.shape


def test_flat_dense_layers_multiply_with_no_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    full = Dense(torch.Size([2, 3, 300]), torch.randn(400, 300))
    flat, ones = full.support(), Dense(full.inside, torch.ones(400, 300))
    x, y = torch.rand(5, 2, 3, 300), torch.rand(5, 2, 3, 400)
    rows = [3, 7]
    expected = (
        ones.apply(x), ones.transpose(y), channel_table(ones, x, y), transpose_by_channel(ones, y, rows),
        apply_by_channel(ones, x, rows),
    )  # fmt: skip
    monkeypatch.setattr("nrm.operators.dense.product", None)  # calling it would fail
    found = (
        flat.apply(x), flat.transpose(y), channel_table(flat, x, y), transpose_by_channel(flat, y, rows),
        apply_by_channel(flat, x, rows),
    )  # fmt: skip
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    assert flat.weight.untyped_storage().nbytes() == 4
    assert flat.nonnegative
    assert not flat.reweight(torch.neg).nonnegative
    assert torch.equal(flat.reweight(lambda w: 2 * w).apply(x), 2 * flat.apply(x))
