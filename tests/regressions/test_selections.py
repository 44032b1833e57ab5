"""Indexing, assignments, scatters and sums at places: also those that select nothing, which depends on the data."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import nrm
from capture.replay import check_capture
from regressions.piecewise import Function, TwoBranches, check_gradient

NONE = torch.empty(0, dtype=torch.long)
MASKS: dict[str, Callable[[Tensor], Tensor]] = {
    "nothing": lambda y: y > 1e9,
    "some": lambda y: y > 0,
    "everything": lambda y: y > -1e9,
    "no rows": lambda y: y[:, 0] > 1e9,
    "one row": lambda y: torch.arange(len(y)) == 0,
    "a constant mask of nothing": lambda y: torch.zeros(y.shape, dtype=torch.bool),
}
ROWS: dict[str, Tensor] = {"nothing": NONE, "some": torch.tensor([0, 3]), "twice": torch.tensor([2, 2, 0])}


def assign_number(y: Tensor, z: Tensor, mask: Tensor) -> Tensor:
    y[mask] = 0.5
    return y + z


def assign_tensor(y: Tensor, z: Tensor, mask: Tensor) -> Tensor:
    y[mask] = 2 * z[mask]
    return y + z


def scale_in_place(y: Tensor, z: Tensor, mask: Tensor) -> Tensor:
    y[mask] *= 0.1
    return y + z


def add_in_place(y: Tensor, z: Tensor, mask: Tensor) -> Tensor:
    y[mask] += z[mask]
    return y


def assign_at_nonzero(y: Tensor, z: Tensor, mask: Tensor) -> Tensor:
    y[mask.nonzero(as_tuple=True)] = 0.0
    return y + z


def assign_into_buffer(y: Tensor, z: Tensor, mask: Tensor) -> Tensor:
    buffer = torch.ones_like(y)
    buffer[mask] = y[mask]
    return buffer + z


def assign_beside_alias(y: Tensor, z: Tensor, mask: Tensor) -> Tensor:
    view = y.view(-1)
    y[mask] = 3.0
    return view.view(y.shape) + z


def index_put(y: Tensor, z: Tensor, mask: Tensor) -> Tensor:
    return y.index_put((mask,), torch.tensor(0.5, dtype=y.dtype)) + z.index_put((mask,), y[mask])


def accumulate(y: Tensor, z: Tensor, mask: Tensor) -> Tensor:
    constant = y.index_put((mask,), torch.tensor(0.5, dtype=y.dtype), accumulate=True)
    return constant + z.index_put((mask,), y[mask], True)


def masked(y: Tensor, z: Tensor, mask: Tensor) -> Tensor:
    mask = mask if mask.ndim == 2 else mask[:, None].expand_as(y)
    return y.masked_fill(mask, 0.5) + z.masked_scatter(mask, y[mask])


def select_and_put_back(y: Tensor, z: Tensor, mask: Tensor) -> Tensor:
    mask = mask if mask.ndim == 2 else mask[:, None].expand_as(y)
    return torch.zeros_like(y).masked_scatter(mask, torch.masked_select(y, mask).relu()) + z


def experts(y: Tensor, z: Tensor, mask: Tensor) -> Tensor:
    rows = (mask if mask.ndim == 1 else mask.all(1)).nonzero()[:, 0]
    buffer = torch.zeros_like(z)
    buffer.index_add_(0, rows, (y[rows] @ torch.eye(6, dtype=y.dtype)).relu())
    return buffer + z


def sum_of_selected(y: Tensor, z: Tensor, mask: Tensor) -> Tensor:
    return z + (y * mask.view(len(y), -1)).sum(1, keepdim=True) + (y[y > 1e9] * 2).sum()


BY_MASK = [
    assign_number, assign_tensor, scale_in_place, add_in_place, assign_at_nonzero, assign_into_buffer,
    assign_beside_alias, index_put, accumulate, masked, select_and_put_back, experts, sum_of_selected,
]  # fmt: skip


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("function", BY_MASK, ids=lambda f: f.__name__)
def test_a_mask_may_select_nothing(
    function: Callable[[Tensor, Tensor, Tensor], Tensor], mask: Callable[[Tensor], Tensor], samples: int
) -> None:
    check_gradient(lambda y, z: function(y, z, mask(y)), samples)


def fill_columns(y: Tensor, z: Tensor, at: Tensor) -> Tensor:
    y[:, at] = 0.5
    return y.index_fill(1, at, 0.3) + z.scatter(1, at.expand(len(y), -1), 0.2)


def add_columns(y: Tensor, z: Tensor, at: Tensor) -> Tensor:
    y.index_add_(1, at, z[:, : len(at)], alpha=2)
    return y.scatter_add(1, at.expand(len(y), -1), z[:, : len(at)]) + z


def add_constants(y: Tensor, z: Tensor, at: Tensor) -> Tensor:
    ones = torch.ones(len(y), len(at), dtype=y.dtype)
    return y.index_add(1, at, ones) + z.scatter_add(1, at.expand(len(y), -1), 2 * ones)


def put_flat(y: Tensor, z: Tensor, at: Tensor) -> Tensor:
    places = torch.arange(len(y))[:, None] * 6 + at
    return y.put(places, z[:, : len(at)], accumulate=True) + z


def read_columns(y: Tensor, z: Tensor, at: Tensor) -> Tensor:
    wide = at.expand(len(y), -1)
    parts = (y[:, at], y.index_select(1, at), y.gather(1, wide), y.take_along_dim(wide, 1), z)
    return torch.cat(parts, 1)


def largest(y: Tensor, z: Tensor, at: Tensor) -> Tensor:
    wide = at.expand(len(y), -1)
    kept = y.scatter_reduce(1, wide, z[:, : len(at)], "amax") + y.index_reduce(1, at, z[:, : len(at)], "amin")
    return kept + y.scatter_reduce(1, wide, z[:, : len(at)], "amax", include_self=False)


def means(y: Tensor, z: Tensor, at: Tensor) -> Tensor:
    part = z[:, : len(at)]
    return y.index_reduce(1, at, part, "mean") + y.index_reduce(1, at, part, "mean", include_self=False)


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("at", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize(
    "function", [fill_columns, add_columns, add_constants, put_flat, read_columns, largest, means],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_places_may_be_none(function: Callable[[Tensor, Tensor, Tensor], Tensor], at: Tensor, samples: int) -> None:
    check_gradient(lambda y, z: function(y, z, at), samples)


def columns_of_nothing(y: Tensor, z: Tensor) -> Tensor:
    y[:, []] = 0
    y[:, 2:2] = 5
    y[0:0] *= 3
    y[:, 3:3].mul_(2)
    return y + z


def overwritten(y: Tensor, z: Tensor) -> Tensor:
    return y.index_copy(1, ROWS["some"], z[:, :2]) + y.slice_scatter(z[:, :0], 1, 2, 2)


def clipped_and_padded(y: Tensor, z: Tensor) -> Tensor:
    return torch.nn.functional.pad(y, (-2, 3), value=0.3) + z[:, :1]


@pytest.mark.parametrize("samples", [1, 3])
@pytest.mark.parametrize("function", [columns_of_nothing, overwritten, clipped_and_padded], ids=lambda f: f.__name__)
def test_assignments_without_effect_change_nothing(function: Function, samples: int) -> None:
    check_gradient(function, samples)


def test_an_assignment_that_selects_nothing_is_computed_again_for_other_inputs() -> None:
    """The mask is empty for the captured input only: joint contribution and occlusion run the network on others."""

    def clip(y: Tensor, z: Tensor) -> Tensor:
        y = y.abs() + 0.1
        y[y < 0.1] = 7.0
        return y + z

    R = check_gradient(clip, 2)
    assert any(name.endswith("setitem") for name in (layer.name for layer in R.find("*setitem*")))


def test_what_is_all_replaced_keeps_its_samples() -> None:
    def replace(y: Tensor, z: Tensor) -> Tensor:
        y[y > -1e9] = 0.5
        return torch.cat([y, z], 1)

    for samples in (1, 3):
        check_gradient(replace, samples)


def test_the_two_spellings_of_an_assignment_agree_on_a_batch() -> None:
    """A number that is put into several samples is an entry of its own in each: no sample shares it."""

    def by_method(y: Tensor, z: Tensor) -> Tensor:
        return y.index_fill(1, torch.tensor([0, 2]), 0.4) + z

    def by_index(y: Tensor, z: Tensor) -> Tensor:
        y[:, [0, 2]] = 0.4
        return y + z

    x = torch.randn(3, 4, dtype=torch.float64)
    answers = []
    for function in (by_method, by_index):
        torch.manual_seed(5)
        R = nrm.measure(TwoBranches(function).double().eval(), x, target=0, rules="lrp-0", bias="input")
        answers.append(R(R.input))
    torch.testing.assert_close(*answers)


def test_a_buffer_that_is_filled_after_a_piece_of_nothing_is_computed_again() -> None:
    """Rows by degree, as a mixture of experts has them: the first expert gets none."""

    def experts_of_rows(y: Tensor, z: Tensor) -> Tensor:
        buffer = torch.zeros_like(y)
        for scale, rows in ((2.0, y[:, 0] > 1e9), (3.0, y[:, 0] < 1e9)):
            at = rows.nonzero().view(-1)
            buffer.index_copy_(0, at, y.index_select(0, at) * scale)
        return buffer.relu() + z

    R = check_gradient(experts_of_rows, 3)
    torch.manual_seed(0)
    check_capture(TwoBranches(experts_of_rows).double(), torch.randn(3, 4, dtype=torch.float64))
    assert len(R) == 3
