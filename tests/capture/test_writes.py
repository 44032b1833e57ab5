"""Writing in place: every tensor on the memory sees the new value, every node keeps its old one, nothing is lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import nrm
from capture.replay import Wrapped, check_capture, numbers
from nrm.capture import capture

W = numbers(4, 4, seed=1)


def lin(x: Tensor) -> Tensor:
    return x @ W


def in_place_chain(x: Tensor) -> Tensor:
    y = lin(x)
    y.mul_(2).add_(1).sub_(x).div_(3)
    return y


def augmented(x: Tensor) -> Tensor:
    y = lin(x)
    before = y
    y += x
    y *= 0.5
    y -= 1
    y /= 2
    return y + before


def relu_on_shared(x: Tensor) -> Tensor:
    y = lin(x)
    z = y
    F.relu_(z)
    return y + z


def relu_through_view(x: Tensor) -> Tensor:
    y = lin(x)
    y.view(2, 2, 2).relu_()
    return y


def relu_on_base(x: Tensor) -> Tensor:
    y = lin(x)
    v = y.view(2, 2, 2)[:, 1]
    torch.relu_(y)
    return v


def module_in_place(x: Tensor) -> Tensor:
    y = lin(x)
    z = nn.ReLU(inplace=True)(y)
    return y * z


def functional_in_place(x: Tensor) -> Tensor:
    y = lin(x)
    v = y[:, 1:]
    F.leaky_relu(y, 0.2, inplace=True)
    return v + y[:, :3]


def base_written_after_view(x: Tensor) -> Tensor:
    y = lin(x)
    v = y[:, :2]
    y.add_(x)
    return v


def view_written_then_base(x: Tensor) -> Tensor:
    y = lin(x)
    v = y[:, :2]
    v.add_(x[:, 2:])
    return y


def overlapping_views(x: Tensor) -> Tensor:
    y = lin(x)
    a, b, t = y[:, :3], y[:, 1:], y.t()
    a.mul_(2)
    b.add_(1)
    return torch.cat([a, b, t.t(), y], 1)


def old_value_stays(x: Tensor) -> Tensor:
    y = lin(x)
    kept = torch.tanh(y)
    y.zero_()
    return kept + y


def slice_added(x: Tensor) -> Tensor:
    y = lin(x)
    y[:, 1:3] += x[:, :2]
    return y


def slice_zeroed(x: Tensor) -> Tensor:
    y = lin(x)
    y[:, 0].zero_()
    y[:, 1].fill_(2.0)
    return y


def slice_assigned(x: Tensor) -> Tensor:
    y = lin(x)
    y[:, :2] = x[:, 2:]
    y[0, 3] = 1.5
    return y


def assigned_by_mask(x: Tensor) -> Tensor:
    y = lin(x)
    y[y < 0] = 0
    return y


def assigned_by_index(x: Tensor) -> Tensor:
    y = lin(x)
    y[:, torch.tensor([3, 0])] = x[:, :2]
    return y


def assigned_broadcast(x: Tensor) -> Tensor:
    y = torch.zeros(2, 3, 4, dtype=x.dtype)
    y[:, 1:] = lin(x)[:, None]
    return y


def assigned_to_a_view(x: Tensor) -> Tensor:
    y = lin(x)
    y[0][1:3] = x[0, :2]
    return y


def buffer_filled_step_by_step(x: Tensor) -> Tensor:
    out = torch.zeros(3, 2, 4, dtype=x.dtype)
    h = x
    for t in range(3):
        h = torch.tanh(lin(h))
        out[t] = h
    return out.transpose(0, 1)


def empty_filled(x: Tensor) -> Tensor:
    out = x.new_empty(2, 4)
    out[:, ::2] = x[:, :2]
    out[:, 1::2] = lin(x)[:, :2]
    return out


def view_of_a_constant_copied_into(x: Tensor) -> Tensor:
    out = torch.ones(2, 4, dtype=x.dtype)
    out[:, :2].copy_(lin(x)[:, :2])
    return out * 2


def constant_view_then_base(x: Tensor) -> Tensor:
    out = torch.ones(2, 4, dtype=x.dtype)
    seen = out[:, 1:3]
    out += lin(x)
    return seen * 1


def constant_base_then_view(x: Tensor) -> Tensor:
    out = torch.ones(2, 4, dtype=x.dtype)
    part = out[:, 1:3]
    part += lin(x)[:, :2]
    return out + 0


def constant_never_read_again(x: Tensor) -> Tensor:
    out = torch.ones(2, 4, dtype=x.dtype)
    out.t()[1:].copy_(lin(x).t()[1:])
    return out


def constant_written_twice(x: Tensor) -> Tensor:
    out = torch.zeros(2, 4, dtype=x.dtype)
    early = out[:, :1]
    out[:, :3].copy_(x[:, :3])
    out[:, 1:].add_(lin(x)[:, 1:])
    return torch.cat([early, out], 1)


def untouched_part_of_a_constant(x: Tensor) -> Tensor:
    out = torch.ones(4, 4, dtype=x.dtype)
    rest = out[2:]
    out[:2].copy_(x)
    return x * rest


def shape_in_place(x: Tensor) -> Tensor:
    y = lin(x)
    part = y[:, :2]
    y.unsqueeze_(1)
    y.transpose_(1, 2)
    y.squeeze_(2)
    y.t_()
    return y.t() + F.pad(part, (0, 2))


def out_argument(x: Tensor) -> Tensor:
    out = torch.empty(2, 4, dtype=x.dtype)
    torch.add(lin(x), 1, out=out)
    return out


def data_replaced(x: Tensor) -> Tensor:
    y = lin(x)
    z = lin(y)
    y.data = z
    return y * 1


def dropout_in_place(x: Tensor) -> Tensor:
    y = lin(x)
    v = y[:, :2]
    F.dropout(y, 0.5, False, inplace=True)
    return y[:, 2:] + v


def masked_fill_in_place(x: Tensor) -> Tensor:
    y = lin(x)
    y.masked_fill_(y < 0, 0.1)
    return y


def scatter_in_place(x: Tensor) -> Tensor:
    y = torch.zeros(2, 4, dtype=x.dtype)
    y.scatter_(1, torch.tensor([[0, 2], [3, 1]]), x[:, :2])
    y.index_add_(1, torch.tensor([0, 0]), x[:, 2:])
    return y


def clamped_in_place(x: Tensor) -> Tensor:
    y = lin(x)
    y.clamp_(-0.5, 0.5).tanh_().abs_()
    return y


def cast_makes_a_copy(x: Tensor) -> Tensor:
    y = lin(x)
    z = y.float().double()
    z.add_(1)
    return y * z


def copied_over(x: Tensor) -> Tensor:
    y = lin(x)
    v = y[:, :2]
    y.copy_(torch.ones(4, dtype=x.dtype))
    return torch.cat([x, v], 1)


def input_written(x: Tensor) -> Tensor:
    x.sub_(0.5)
    x[:, 0] = 0
    return lin(x)


CASES: list[Callable[[Tensor], Tensor]] = [
    in_place_chain, augmented, relu_on_shared, relu_through_view, relu_on_base, module_in_place, functional_in_place,
    base_written_after_view, view_written_then_base, overlapping_views, old_value_stays, slice_added, slice_zeroed,
    slice_assigned, assigned_by_mask, assigned_by_index, assigned_broadcast, assigned_to_a_view,
    buffer_filled_step_by_step, empty_filled, view_of_a_constant_copied_into, constant_view_then_base,
    constant_base_then_view, constant_never_read_again, constant_written_twice, untouched_part_of_a_constant,
    shape_in_place, out_argument, data_replaced, dropout_in_place, masked_fill_in_place, scatter_in_place,
    clamped_in_place, copied_over, input_written,
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda f: f.__name__)
class TestWrites:
    def test_values(self, case: Callable[[Tensor], Tensor]) -> None:
        """The tape's output is the plain forward pass's, and every node is explained by its op."""
        tape = check_capture(case, numbers(2, 4))
        assert tape.nodes[tape.output].sample == 0

    def test_mass(self, case: Callable[[Tensor], Tensor]) -> None:
        R = nrm.measure(Wrapped(case), numbers(2, 4), rules="lrp-0")
        check = R.check(strict=False)
        whole = tuple(float(value != 0) for value in R.value)  # nothing is a share of 0
        for mass in (check.mass, *check.cuts.values()):
            assert mass == pytest.approx(whole, abs=1e-9)

    def test_the_input_is_untouched(self, case: Callable[[Tensor], Tensor]) -> None:
        x = numbers(2, 4)
        before = x.clone()
        capture(Wrapped(case), x)
        assert torch.equal(x, before)


def test_a_cast_to_another_precision_is_a_copy() -> None:
    check_capture(cast_makes_a_copy, numbers(2, 4), tolerance=1e-6)


class Stateful(nn.Module):
    """Writes tracked and constant data into its own buffers and parameters."""

    def __init__(self, dtype: torch.dtype = torch.float64):
        super().__init__()
        self.register_buffer("state", torch.ones(2, 4, dtype=dtype))
        self.register_buffer("count", torch.zeros((), dtype=dtype))
        self.gain = nn.Parameter(torch.ones(4, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.count.add_(1)
            self.gain.mul_(2)
            self.state[0] = x[0] * self.gain
            self.state[1:].copy_(x[1:])
        return self.state + x + self.count


def test_buffers_that_are_written_are_followed_and_given_back() -> None:
    model, x = Stateful(), numbers(2, 4)
    with torch.no_grad():
        expected = Stateful()(x)
    memory = {name: (t, t.data_ptr(), t.clone()) for name, t in model.state_dict(keep_vars=True).items()}
    tape = capture(model, x)
    assert torch.allclose(tape.nodes[tape.output].value, expected)
    for name, t in model.state_dict(keep_vars=True).items():
        same, pointer, value = memory[name]
        assert t is same
        assert t.data_ptr() == pointer
        assert torch.equal(t, value)


def test_buffers_of_lower_precision_that_are_written() -> None:
    model, x = Stateful(torch.float16), numbers(2, 4, dtype=torch.float32)
    with torch.no_grad():
        expected = Stateful(torch.float32)(x)
    tape = capture(model, x)
    assert tape.nodes[tape.output].value.dtype == torch.float32
    assert torch.allclose(tape.nodes[tape.output].value, expected)
    assert model.state.dtype == torch.float16
    assert torch.equal(model.state, torch.ones(2, 4, dtype=torch.float16))


def test_float_data_written_into_integers_is_held_constant() -> None:
    def rounded(x: Tensor) -> Tensor:
        steps = torch.zeros(2, 4, dtype=torch.long)
        steps[:] = lin(x) * 3
        return lin(x) * steps

    tape = check_capture(rounded, numbers(2, 4))
    assert any("integers" in note for note in tape.notes)


@given(st.data())
def test_random_programs_of_views_and_writes(data: st.DataObject) -> None:
    """Any program of views and in-place writes, on tracked and on constant memory, has the plain program's values."""
    steps = data.draw(
        st.lists(
            st.tuples(
                st.sampled_from(["view", "add", "mul", "copy", "set", "relu", "zero", "use"]),
                st.integers(0, 5), st.integers(0, 5), st.integers(0, 3), st.integers(1, 4),
            ),
            min_size=2, max_size=7,
        )
    )  # fmt: skip
    constant_first = data.draw(st.booleans())

    def program(x: Tensor) -> Tensor:
        tensors = [torch.full((2, 4), 0.5, dtype=x.dtype)] if constant_first else [lin(x)]
        used = x * 1
        for kind, i, j, begin, length in steps:
            t, other = tensors[i % len(tensors)], tensors[j % len(tensors)]
            width = min(t.shape[1], other.shape[1])
            part = t[:, :width]
            if kind == "view":
                tensors.append(
                    t.narrow(1, min(begin, t.shape[1] - 1), min(length, t.shape[1] - min(begin, t.shape[1] - 1)))
                )
            elif kind == "add":
                part += x[:, :width]
            elif kind == "mul":
                part.mul_(other[:, :width].clone())
            elif kind == "copy":
                part.copy_(x[:, 4 - width :])
            elif kind == "set":
                t[:, begin % t.shape[1]] = used[:, 0]
            elif kind == "relu":
                F.relu(t, inplace=True)
            elif kind == "zero":
                part.zero_()
            else:
                used = used + F.pad(t, (0, 4 - t.shape[1]))
        return used + sum(F.pad(t, (0, 4 - t.shape[1])) for t in tensors)

    check_capture(program, numbers(2, 4))
