"""Every function that only moves data: the movement on the tape gives its value, and its transpose is the adjoint."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import nrm
from capture.replay import check_capture, numbers
from nrm.capture import Source
from nrm.capture.vocabulary import VOCABULARY, movement, scatter

pytestmark = pytest.mark.filterwarnings("ignore:index_reduce")  # torch calls it a beta, on every first call

Function = Callable[[Tensor], Tensor]

INDEX = torch.tensor([2, 0, 0])
PLACES = torch.tensor([[0, 2], [1, 1]])
MASK = torch.tensor([[True, False, True, False], [False, True, True, False]])
C = numbers(2, 4, seed=3)

# The name of the function in the vocabulary, calls of it, each on an input of the given shape.
CALLS: dict[str, tuple[tuple[int, ...], list[Function]]] = {
    "view": ((2, 6), [lambda x: x.view(2, 3, 2), lambda x: x.view(-1), lambda x: x.view(3, -1)]),
    "reshape": ((2, 6), [lambda x: x.t().reshape(2, 6), lambda x: torch.reshape(x, (4, 3))]),
    "view_as": ((2, 6), [lambda x: x.view_as(torch.zeros(3, 4))]),
    "reshape_as": ((2, 6), [lambda x: x.reshape_as(torch.zeros(12))]),
    "flatten": ((2, 3, 2), [lambda x: x.flatten(), lambda x: torch.flatten(x, 1), lambda x: x.flatten(0, 1)]),
    "unflatten": ((2, 6), [lambda x: x.unflatten(1, (2, 3)), lambda x: x.unflatten(-1, (-1, 2))]),
    "ravel": ((2, 3), [lambda x: x.ravel()]),
    "squeeze": ((2, 1, 3, 1), [lambda x: x.squeeze(), lambda x: x.squeeze(1), lambda x: x.squeeze((1, 3))]),
    "unsqueeze": ((2, 3), [lambda x: x.unsqueeze(0), lambda x: x.unsqueeze(-1)]),
    "contiguous": ((2, 3), [lambda x: x.t().contiguous()]),
    "clone": ((2, 3), [lambda x: x.clone()]),
    "detach": ((2, 3), [lambda x: x.detach()]),
    "get:data": ((2, 3), [lambda x: x.data]),
    "atleast_1d": ((2, 3), [lambda x: torch.atleast_1d(x[0, 0]).expand(2)]),
    "atleast_2d": ((2, 3), [lambda x: torch.atleast_2d(x[0])]),
    "atleast_3d": ((2, 3), [lambda x: torch.atleast_3d(x)]),
    "get:real": ((2, 3), [lambda x: x.real * 1]),
    "real": ((2, 3), [lambda x: torch.real(x) * 1]),
    "deepcopy": ((2, 3), [lambda x: copy.deepcopy(x)]),
    "view_copy": ((2, 6), [lambda x: torch.view_copy(x, (3, 4))]),
    "squeeze_copy": ((2, 1, 3), [lambda x: torch.squeeze_copy(x)]),
    "unsqueeze_copy": ((2, 3), [lambda x: torch.unsqueeze_copy(x, 1)]),
    "detach_copy": ((2, 3), [lambda x: torch.detach_copy(x)]),
    "resolve_conj": ((2, 3), [lambda x: x.resolve_conj() * 1]),
    "resolve_neg": ((2, 3), [lambda x: x.resolve_neg() * 1]),
    "permute": ((2, 3, 4), [lambda x: x.permute(2, 0, 1), lambda x: torch.permute(x, (1, 0, 2))]),
    "transpose": ((2, 3, 4), [lambda x: x.transpose(1, 2), lambda x: torch.transpose(x, 0, -1)]),
    "swapaxes": ((2, 3), [lambda x: x.swapaxes(0, 1)]),
    "swapdims": ((2, 3), [lambda x: x.swapdims(0, 1)]),
    "t": ((2, 3), [lambda x: x.t()]),
    "movedim": ((2, 3, 4), [lambda x: x.movedim(0, 2), lambda x: torch.movedim(x, (0, 1), (1, 2))]),
    "moveaxis": ((2, 3, 4), [lambda x: x.moveaxis(2, 0)]),
    "get:T": ((2, 3), [lambda x: x.T]),
    "get:mT": ((2, 3, 4), [lambda x: x.mT]),
    "get:H": ((2, 3), [lambda x: x.H]),
    "get:mH": ((2, 3), [lambda x: x.mH]),
    "adjoint": ((2, 3), [lambda x: x.adjoint()]),
    "getitem": (
        (2, 4),
        [
            lambda x: x[0],
            lambda x: x[:, 1:3],
            lambda x: x[..., ::2],
            lambda x: x[:, None, -1:],
            lambda x: x[:, INDEX],
            lambda x: x[MASK],
            lambda x: x[torch.tensor(1)],
            lambda x: x[:, [0, 3]],
            lambda x: x[PLACES.clamp(max=1), INDEX[:2]],
        ],
    ),
    "select": (
        (2, 4),
        [lambda x: x.select(1, 2), lambda x: torch.select(x, -1, -1), lambda x: x.select(dim=0, index=1)],
    ),
    "narrow": ((2, 4), [lambda x: x.narrow(1, 1, 2), lambda x: torch.narrow(x, -1, -2, 1)]),
    "chunk": ((2, 5), [lambda x: x.chunk(2, 1)[1], lambda x: torch.chunk(x, 2)[0], lambda x: x.chunk(2, dim=-1)[0]]),
    "split": (
        (2, 5),
        [lambda x: x.split(2, 1)[2], lambda x: torch.split(x, [1, 4], dim=1)[1], lambda x: x.split(1)[1]],
    ),
    "split_with_sizes": ((2, 5), [lambda x: x.split_with_sizes([2, 3], 1)[1]]),
    "tensor_split": ((2, 5), [lambda x: x.tensor_split(3, 1)[2], lambda x: x.tensor_split((1, 3), dim=1)[1]]),
    "unbind": ((2, 2, 2), [lambda x: x.unbind()[1], lambda x: x.unbind(1)[0], lambda x: torch.unbind(x, dim=-1)[1]]),
    "hsplit": ((2, 4), [lambda x: x.hsplit(2)[1]]),
    "vsplit": ((2, 4), [lambda x: x.vsplit(2)[1]]),
    "dsplit": ((2, 2, 4), [lambda x: x.dsplit((1, 3))[1]]),
    "unsafe_chunk": ((2, 4), [lambda x: torch.unsafe_chunk(x, 2, 1)[1]]),
    "unsafe_split": ((2, 4), [lambda x: torch.unsafe_split(x, 3, 1)[1]]),
    "cat": ((2, 4), [lambda x: torch.cat([x, C, x]), lambda x: torch.cat((C, x[:, :1]), -1)]),
    "concat": ((2, 4), [lambda x: torch.concat([x, x], dim=1)]),
    "concatenate": ((2, 4), [lambda x: torch.concatenate([x, C], axis=1)]),
    "stack": ((2, 4), [lambda x: torch.stack([x, C]), lambda x: torch.stack([C, x], -1)]),
    "hstack": ((2, 4), [lambda x: torch.hstack([x, C])]),
    "vstack": ((2, 4), [lambda x: torch.vstack([C, x])]),
    "dstack": ((2, 4), [lambda x: torch.dstack([x, C])]),
    "column_stack": ((2, 4), [lambda x: torch.column_stack([x, C[:, 0]])]),
    "row_stack": ((2, 4), [lambda x: torch.row_stack([x, C])]),
    "block_diag": ((2, 4), [lambda x: torch.block_diag(x, C, x)]),
    "expand": ((2, 1), [lambda x: x.expand(2, 3), lambda x: x.expand(4, -1, 2)]),
    "expand_as": ((2, 1), [lambda x: x.expand_as(C)]),
    "broadcast_to": ((2, 1), [lambda x: torch.broadcast_to(x, (3, 2, 2))]),
    "pad": (
        (2, 1, 4, 4),
        [
            lambda x: F.pad(x, (1, 2)),
            lambda x: F.pad(x, (0, 1, 2, 0), value=1.5),
            lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
            lambda x: F.pad(x, (1, 0, 2, 1), mode="replicate"),
            lambda x: F.pad(x, (2, 1, 0, 1), mode="circular"),
            lambda x: F.pad(x, (-1, 1)),
            lambda x: F.pad(x, (0, 0, 0, 0, 1, 0)),
        ],
    ),
    "flip": ((2, 4), [lambda x: x.flip(1), lambda x: torch.flip(x, (0, 1))]),
    "fliplr": ((2, 4), [lambda x: x.fliplr()]),
    "flipud": ((2, 4), [lambda x: x.flipud()]),
    "roll": ((2, 4), [lambda x: x.roll(1, 1), lambda x: torch.roll(x, (1, 2), (0, 1)), lambda x: x.roll(3)]),
    "repeat": ((2, 4), [lambda x: x.repeat(1, 2), lambda x: x.repeat(3, 1, 2)]),
    "tile": ((2, 4), [lambda x: x.tile(2), lambda x: torch.tile(x, (2, 1))]),
    "repeat_interleave": ((2, 4), [lambda x: x.repeat_interleave(2, 1), lambda x: x.repeat_interleave(2)]),
    "pixel_shuffle": ((2, 8, 2, 2), [lambda x: F.pixel_shuffle(x, 2)]),
    "pixel_unshuffle": ((2, 2, 4, 4), [lambda x: F.pixel_unshuffle(x, 2)]),
    "channel_shuffle": ((2, 4, 2, 2), [lambda x: F.channel_shuffle(x, 2)]),
    "native_channel_shuffle": ((2, 4, 2, 2), [lambda x: torch.native_channel_shuffle(x, 2)]),
    "unfold": ((2, 2, 4, 4), [lambda x: F.unfold(x, 2, padding=1, stride=2), lambda x: x.unfold(2, 2, 1)]),
    "unfold_copy": ((2, 4), [lambda x: torch.unfold_copy(x, 1, 2, 1)]),
    "gather": ((2, 4), [lambda x: x.gather(1, PLACES)]),
    "index_select": ((2, 4), [lambda x: x.index_select(1, INDEX), lambda x: torch.index_select(x, 0, INDEX[1:])]),
    "take": ((2, 4), [lambda x: x.take(torch.tensor([5, 0, 5]))]),
    "take_along_dim": ((2, 4), [lambda x: torch.take_along_dim(x, PLACES, 1)]),
    "rot90": ((2, 4), [lambda x: torch.rot90(x)]),
    "diagonal": ((2, 3, 3), [lambda x: x.diagonal(dim1=1, dim2=2)]),
    "diag": ((3, 3), [lambda x: x.diag(), lambda x: x[0].diag()]),
    "diag_embed": ((2, 3), [lambda x: torch.diag_embed(x)]),
    "diagflat": ((3,), [lambda x: torch.diagflat(x)]),
    "tril": ((3, 3), [lambda x: x.tril()]),
    "triu": ((3, 3), [lambda x: torch.triu(x, 1)]),
    "masked_select": ((2, 4), [lambda x: x.masked_select(MASK)]),
    "as_strided": ((2, 4), [lambda x: (x * 1).as_strided((2, 2), (4, 2)), lambda x: x.t().as_strided((3,), (2,), 1)]),
    "max_unpool1d": ((2, 2, 4), [lambda x: F.max_unpool1d(*F.max_pool1d(x, 2, return_indices=True), 2)]),
    "max_unpool2d": ((1, 2, 4, 4), [lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2)]),
    "max_unpool3d": ((1, 1, 4, 4, 4), [lambda x: F.max_unpool3d(*F.max_pool3d(x, 2, return_indices=True), 2)]),
    "scatter": (
        (2, 4),
        [
            lambda x: x.scatter(1, PLACES, x[:, 2:]),
            lambda x: x.scatter(1, PLACES, C[:, :2]),
            lambda x: torch.scatter(C, 1, PLACES, src=x),
            lambda x: x.scatter(1, PLACES, 0.5),
            lambda x: x.scatter(1, PLACES, value=0.5),
        ],
    ),
    "index_copy": (
        (2, 4),
        [lambda x: x.index_copy(1, torch.tensor([3, 0]), C[:, :2]), lambda x: C.index_copy(0, INDEX[1:2], x[:1])],
    ),
    "index_fill": ((2, 4), [lambda x: x.index_fill(1, INDEX, 2.0)]),
    "index_put": (
        (2, 4),
        [
            lambda x: x.index_put((INDEX[1:2], INDEX[:1]), x[1, :1]),
            lambda x: x.index_put((torch.tensor([0, 0]), torch.tensor([1, 1])), x[1, :2], True),
        ],
    ),
    "put": (
        (2, 4),
        [
            lambda x: x.put(torch.tensor([6, 1]), C[0, :2]),
            lambda x: C.put(torch.tensor([-1, 3]), x[:, 1]),
            lambda x: x.put(torch.tensor([[6], [6]]), x[:, :1], accumulate=True),
        ],
    ),
    "masked_scatter": ((2, 4), [lambda x: x.masked_scatter(MASK, C), lambda x: C.masked_scatter(MASK, x)]),
    "tensor": ((2, 4), [lambda x: torch.tensor([[x[0, 0], 1.0], [x[1, 1], x[0, 3]]], dtype=x.dtype)]),
    "as_tensor": ((2, 4), [lambda x: torch.as_tensor(x) * 1]),
    "asarray": ((2, 4), [lambda x: torch.asarray(x) * 1, lambda x: torch.asarray(x, copy=True)]),
    "new_tensor": ((2, 4), [lambda x: x.new_tensor([x[0, 0], x[1, 1]])]),
    "full": ((2, 4), [lambda x: torch.full((3,), x[0, 1], dtype=x.dtype)]),
    "full_like": ((2, 4), [lambda x: torch.full_like(C, x[0, 1])]),
    "new_full": ((2, 4), [lambda x: x.new_full((3,), fill_value=x[0, 1])]),
    "select_scatter": ((2, 4), [lambda x: x.select_scatter(C[:, 0], 1, 2), lambda x: C.select_scatter(x[0], 0, 1)]),
    "slice_scatter": ((2, 4), [lambda x: x.slice_scatter(C[:, :2], 1, 1, 3)]),
    "diagonal_scatter": ((3, 3), [lambda x: x.diagonal_scatter(x[0])]),
    "index_add": (
        (2, 4),
        [
            lambda x: x.index_add(1, INDEX, x[:, :3]),
            lambda x: torch.index_add(C, 1, INDEX, x[:, :3], alpha=2),
            lambda x: x.index_add(1, INDEX, C[:, :3]),
            lambda x: x.new_zeros(2, 4).index_add(1, INDEX, x[:, :3], alpha=-1),
        ],
    ),
    "scatter_add": ((2, 4), [lambda x: x.scatter_add(1, PLACES, x[:, 1:3]), lambda x: C.scatter_add(1, PLACES, src=x)]),
    "scatter_reduce": (
        (2, 4),
        [
            (lambda x, how=how, own=own: x.new_zeros(2, 4).scatter_reduce(1, PLACES, x, how, include_self=own))
            for how, own in [("sum", True), ("sum", False), ("mean", True), ("mean", False)]
        ] + [
            (lambda x, how=how: C.scatter_reduce(1, PLACES, x[:, 1:3], how, include_self=False))
            for how in ("sum", "mean", "amax", "amin")
        ] + [lambda x: x.new_zeros(2, 2).scatter_reduce(0, 1 - PLACES % 2, x, "amax", include_self=False)] + [
            (lambda x, how=how: x.scatter_reduce(1, PLACES, C[:, 1:3] + x[:, 1:3], how)) for how in ("amax", "amin")
        ],
    ),
    "index_reduce": (
        (2, 4),
        [
            (lambda x, how=how, own=own: x.index_reduce(1, INDEX, (x + C)[:, :3], how, include_self=own))
            for how in ("mean", "amax", "amin") for own in (True, False)
        ],
    ),
}  # fmt: skip

ONE_BY_ONE = {f"{name} {k}": (shape, call) for name, (shape, calls) in CALLS.items() for k, call in enumerate(calls)}


@pytest.mark.parametrize(("shape", "call"), ONE_BY_ONE.values(), ids=ONE_BY_ONE)
def test_movement(shape: tuple[int, ...], call: Function) -> None:
    tape = check_capture(call, numbers(*shape), batch_dim=None)
    assert not any(node.op.kind == "unknown" for node in tape.nodes if not isinstance(node.op, Source))


def test_every_movement_of_the_vocabulary_is_tested() -> None:
    known = {
        name for name, builder in VOCABULARY.items() if builder.__module__ in (movement.__name__, scatter.__name__)
    }
    assert known == set(CALLS)


@pytest.mark.parametrize(("name", "calls"), [(name, calls) for name, (_, calls) in CALLS.items()], ids=list(CALLS))
def test_the_calls_are_read_by_the_builder_they_are_listed_for(name: str, calls: list[Function]) -> None:
    shape = CALLS[name][0]
    recorded = {node.function for call in calls for node in check_capture(call, numbers(*shape), batch_dim=None).nodes}
    same_object = {"as_tensor", "contiguous", "deepcopy", "get:real", "real", "resolve_conj", "resolve_neg"}
    assert name in recorded or name in same_object


@given(st.data())
def test_chains_of_movements(data: st.DataObject) -> None:
    """Any sequence of reshapes, permutations, slices and copies is its composition."""

    def steps(x: Tensor) -> Tensor:
        for step in plan:
            x = step(x)
        return x

    shape = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=4).map(tuple))
    plan: list[Function] = []
    x = numbers(*shape)
    for _ in range(data.draw(st.integers(1, 5))):
        step = data.draw(_step(tuple(steps(x).shape)))
        plan.append(step)
    check_capture(steps, x, batch_dim=None)


@st.composite
def _step(draw: st.DrawFn, shape: tuple[int, ...]) -> Function:
    ndim, size = len(shape), math.prod(shape)
    kind = draw(st.sampled_from(["permute", "reshape", "slice", "flip", "unsqueeze", "repeat", "index", "cat"]))
    axis = draw(st.integers(0, ndim - 1)) if ndim else 0
    if kind == "permute":
        order = draw(st.permutations(range(ndim)))
        return lambda x: x.permute(order)
    if kind == "reshape":
        first = draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0]))
        return lambda x: x.reshape(first, -1)
    if not ndim or kind == "unsqueeze":
        return lambda x: x.unsqueeze(-1)
    if kind == "slice":
        begin = draw(st.integers(0, shape[axis] - 1))
        return lambda x: x.narrow(axis, begin, shape[axis] - begin)
    if kind == "flip":
        return lambda x: x.flip(axis)
    if kind == "repeat":
        return lambda x: x.repeat_interleave(2, axis) if size < 40 else x
    if kind == "index":
        rows = draw(st.lists(st.integers(0, shape[axis] - 1), min_size=1, max_size=3))
        return lambda x: x.index_select(axis, torch.tensor(rows))
    return lambda x: torch.cat([x, x.flip(axis)], axis) if size < 40 else x


@pytest.mark.parametrize(
    ("split", "back"),
    [
        (lambda h: h.view(2, 2, 8, 6, 5), lambda h: h.transpose(1, 2).reshape(2, 16, 6, 5)),  # channels are shuffled
        (lambda h: h.view(2, 4, 2, 2, 6, 5), lambda h: h.permute(0, 1, 4, 2, 5, 3).reshape(2, 4, 12, 10)),  # or unfold
        (lambda h: h.unflatten(1, (16, 1)), lambda h: h.flatten(1, 2)),
    ],
)
def test_channels_are_followed_through_groups(split: Function, back: Function) -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.last = torch.nn.Conv2d(3, 16, 1), torch.nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            return self.last(back(split(self.conv(x).relu()))).mean((2, 3))

    R = nrm.measure(Net().eval(), torch.rand(2, 3, 6, 5))
    h = R["last"]
    assert R(h.channels).shape == (2, R.values(h).shape[1])
    assert R(h.positions).shape == (2, *R.values(h).shape[2:])


def test_channels_of_a_sequence_stay_the_last_axis() -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dense, self.heads = torch.nn.Linear(4, 12), torch.nn.Identity()

        def forward(self, x: Tensor) -> Tensor:
            return self.heads(self.dense(x).view(2, 5, 6, 2).transpose(1, 2)).flatten(1)[:, :3]

    R = nrm.measure(Net().eval(), torch.rand(2, 5, 4))
    assert R(R["heads"].channels).shape == (2, 2)


@pytest.mark.parametrize("against", [False, True])
def test_a_border_of_minus_infinity_before_a_maximum_has_no_share(against: bool) -> None:
    """As TensorFlow's padding is written: the border is never chosen, and is no number times 0."""

    class Same(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.last = nn.Conv2d(1, 2, 3), nn.Linear(18, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            padded = torch.nn.functional.pad(self.conv(x), (0, 1, 0, 1), value=float("-inf"))
            return self.last(torch.nn.functional.max_pool2d(padded, 2, 2).flatten(1))

    torch.manual_seed(0)
    model, x = Same().double(), torch.randn(2, 1, 7, 7, dtype=torch.float64)
    R = nrm.measure(model, x, rules="lrp-0", **({"against": x.flip(0) + 1} if against else {}))
    check = R.check()
    assert check.cut_error == pytest.approx(0.0, abs=1e-12)
    assert all(check.ok)
    assert bool(R(R["/pad"]).isfinite().all())
