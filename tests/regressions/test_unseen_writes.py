"""Writes that capture did not see: each is followed, with the relevances of the plain program, or refused by name."""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import nrm
from capture.replay import check_capture, check_tape, numbers
from nrm.capture import Combine, Term, capture


@torch.library.custom_op("nrm_regressions::add_into", mutates_args={"y"})
def add_into(y: Tensor, z: Tensor) -> None:
    y += z


@torch.library.custom_op("nrm_regressions::add_known", mutates_args={"y"})
def add_known(y: Tensor, z: Tensor) -> None:
    y += z


@torch.library.custom_op("nrm_regressions::add_and_sum", mutates_args={"y"})
def add_and_sum(y: Tensor, z: Tensor) -> Tensor:
    y += z
    return y.sum(1)


class Branches(nn.Module):
    """Two branches of which the second is added to the first by a function of one's own."""

    def __init__(self, add: Callable[[Tensor, Tensor], Tensor | None]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.b, self.c, self.h = nn.Conv2d(2, 3, 3), nn.Conv2d(2, 3, 3), nn.Linear(3, 2)
        for p in self.parameters():
            p.data = torch.randn(p.shape, generator=generator)
        self.add = add

    def forward(self, x: Tensor) -> Tensor:
        y, z = self.b(x), self.c(x)
        found = self.add(y, z)
        y = y if found is None else found
        return self.h(y.relu().mean((2, 3)))


def plain(y: Tensor, z: Tensor) -> Tensor:
    return y + z


# ---- writes that are followed ------------------------------------------------------------------------------------


def aten_packet(y: Tensor, z: Tensor) -> None:
    torch.ops.aten.add_(y, z)


def aten_overload(y: Tensor, z: Tensor) -> None:
    torch.ops.aten.add_.Tensor(y, z)


def aten_out(y: Tensor, z: Tensor) -> None:
    torch.ops.aten.add.out(y, z, out=y)


def aten_copy(y: Tensor, z: Tensor) -> None:
    torch.ops.aten.copy_.default(y, torch.ops.aten.add.Tensor(y, z))


def foreach_in_place(y: Tensor, z: Tensor) -> None:
    torch._foreach_add_([y], [z])


def foreach_op(y: Tensor, z: Tensor) -> None:
    torch.ops.aten._foreach_add_.List([y], [z])


def foreach(y: Tensor, z: Tensor) -> Tensor:
    return torch._foreach_add([y, y], [z, y])[0]


def foreach_copied(y: Tensor, z: Tensor) -> None:
    torch._foreach_copy_([y], torch._foreach_mul(torch._foreach_add([y], [z]), 1.0))


def foreach_product(y: Tensor, z: Tensor) -> None:
    torch._foreach_addcmul_([y], [z], [torch.ones_like(z)], 1.0)


def out_of_a_function(y: Tensor, z: Tensor) -> None:
    torch.add(y, z, out=y)


def out_into_nothing(y: Tensor, z: Tensor) -> Tensor:
    out = torch.empty(0)
    torch.add(y, z, out=out)
    return out


def through_data(y: Tensor, z: Tensor) -> None:
    y.data.add_(z)


def through_a_parameter(y: Tensor, z: Tensor) -> None:
    nn.Parameter(y, requires_grad=False).add_(z)


def through_dlpack(y: Tensor, z: Tensor) -> None:
    torch.from_dlpack(y).add_(z)


def through_a_capsule(y: Tensor, z: Tensor) -> None:
    torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(y)).add_(z)


def through_part_of_dlpack(y: Tensor, z: Tensor) -> None:
    for k in range(y.shape[1]):
        torch.from_dlpack(y[:, k]).add_(z[:, k])


def through_an_array_and_back(y: Tensor, z: Tensor) -> None:
    torch.from_numpy(y.numpy()).add_(z)


def through_a_buffer(y: Tensor, z: Tensor) -> None:
    torch.frombuffer(y.numpy(), dtype=y.dtype).view(y.shape).add_(z)


def through_storage(y: Tensor, z: Tensor) -> None:
    torch.empty(0).set_(y.untyped_storage(), 0, y.shape, y.stride()).add_(z)


def through_a_copied_tensor(y: Tensor, z: Tensor) -> None:
    copy.copy(y).add_(z)


def set_to_a_sum(y: Tensor, z: Tensor) -> None:
    y.set_(y + z)


def set_to_the_storage_of_a_sum(y: Tensor, z: Tensor) -> None:
    s = y + z
    y.set_(s.untyped_storage(), 0, s.shape, s.stride())


def swapped(y: Tensor, z: Tensor) -> None:
    torch.utils.swap_tensors(y, y + z)


def written_after_it_was_shared(y: Tensor, z: Tensor) -> Tensor:
    seen = torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(y))
    y.add_(z)
    return seen


def array_of_what_is_written_later(y: Tensor, z: Tensor) -> Tensor:
    seen = y.numpy()
    y.add_(z)
    return torch.from_numpy(seen)


def filled_with_a_tensor(y: Tensor, z: Tensor) -> Tensor:
    total = y + z
    for k in range(total.shape[1]):
        total[0, k, 0, 0].fill_((y + z)[0, k, 0, 0])
    return total


FOLLOWED: list[Callable[[Tensor, Tensor], Tensor | None]] = [
    aten_packet, aten_overload, aten_out, aten_copy, foreach_in_place, foreach_op, foreach, foreach_copied,
    foreach_product, out_of_a_function, out_into_nothing, through_data, through_a_parameter, through_dlpack,
    through_a_capsule, through_part_of_dlpack, through_an_array_and_back, through_a_buffer, through_storage,
    through_a_copied_tensor, set_to_a_sum, set_to_the_storage_of_a_sum, swapped, written_after_it_was_shared,
    array_of_what_is_written_later, filled_with_a_tensor,
]  # fmt: skip


@pytest.mark.parametrize("add", FOLLOWED, ids=lambda f: f.__name__)
def test_a_write_is_followed(add: Callable[[Tensor, Tensor], Tensor | None]) -> None:
    x = numbers(1, 2, 6, 6, dtype=torch.float32)
    expected = nrm.measure(Branches(plain), x)
    R = nrm.measure(Branches(add), x)
    for layer in ("b", "c", "input"):
        torch.testing.assert_close(R(R[layer]), expected(expected[layer]))
    check_tape(R.inner.tape, 1e-5)
    assert R.check().ok == (True,)


# ---- writes that are refused -------------------------------------------------------------------------------------


def into_an_array(y: Tensor, z: Tensor) -> None:
    y.numpy()[...] += z.numpy()


def into_np_asarray(y: Tensor, z: Tensor) -> None:
    np.asarray(y)[...] += np.asarray(z)


def into_np_dlpack(y: Tensor, z: Tensor) -> None:
    s = y + z
    ctypes.memmove(np.from_dlpack(y).ctypes.data, np.from_dlpack(s).ctypes.data, s.numel() * s.element_size())


def into_storage(y: Tensor, z: Tensor) -> None:
    y.untyped_storage().copy_((y + z).untyped_storage(), False)


def into_an_address(y: Tensor, z: Tensor) -> None:
    s = y + z
    ctypes.memmove(y.data_ptr(), s.data_ptr(), s.numel() * s.element_size())


def by_scripted_code(y: Tensor, z: Tensor) -> None:
    torch.jit.CompilationUnit("def add(y, z):\n    return y.add_(z)\n").add(y, z)


REFUSED: list[tuple[Callable[[Tensor, Tensor], None], str]] = [
    (into_an_array, "handed out by numpy"),
    (into_np_asarray, "handed out by __array__"),
    (into_np_dlpack, "handed out by __dlpack__"),
    (into_storage, "handed out by untyped_storage"),
    (into_an_address, "handed out by data_ptr"),
    (by_scripted_code, "the result of 'conv2d' in b"),
]


@pytest.mark.parametrize(("add", "text"), REFUSED, ids=lambda f: getattr(f, "__name__", ""))
def test_a_write_is_refused_by_name(add: Callable[[Tensor, Tensor], None], text: str) -> None:
    with pytest.raises(nrm.CaptureError, match=text):
        nrm.measure(Branches(add), numbers(1, 2, 6, 6, dtype=torch.float32))


def test_a_write_that_nobody_reads_is_refused_all_the_same() -> None:
    """Its node would have another value than the one that was computed with."""

    def forward(x: Tensor) -> Tensor:
        y = x * 2
        z = y.tanh()
        y.numpy()[...] = 0
        return z

    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return forward(x)

    with pytest.raises(nrm.CaptureError, match="handed out by numpy"):
        capture(Model(), numbers(2, 3))


# ---- ops of one's own --------------------------------------------------------------------------------------------


def test_an_op_that_writes_is_refused_by_name() -> None:
    """With the default rules the second branch got 0 of 0.217, and the verdict was that the numbers can be trusted."""
    with pytest.raises(nrm.CaptureError, match="no rule for nrm_regressions::add_into"):
        nrm.measure(Branches(add_into), numbers(1, 2, 6, 6, dtype=torch.float32))
    check_capture(Branches(add_into).double(), numbers(1, 2, 6, 6))


def test_an_op_that_writes_and_returns_is_refused_by_name() -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x * 2
            total = add_and_sum(y, x)
            return y + total[:, None]

    tape = check_capture(Model(), numbers(2, 3))
    assert sum(node.function == "nrm_regressions::add_and_sum" for node in tape.nodes) == 2
    with pytest.raises(nrm.CaptureError, match="no rule for nrm_regressions::add_and_sum"):
        nrm.measure(Model(), numbers(2, 3))


def test_an_op_that_writes_can_be_registered() -> None:
    nrm.register(add_known, lambda c, y, z: c.one(Combine((Term(), Term()), joins=True, kind="add"), y, z))
    x = numbers(1, 2, 6, 6, dtype=torch.float32)
    R, expected = nrm.measure(Branches(add_known), x), nrm.measure(Branches(plain), x)
    torch.testing.assert_close(R(R["c"].all), expected(expected["c"].all))
    assert float(R(R["c"].all)) != 0


def test_an_op_that_writes_into_a_buffer_leaves_no_trace() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("state", torch.ones(2, 3, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            add_into(self.state, torch.ones_like(self.state))
            torch._foreach_add_([self.state], 1.0)
            torch.ops.aten.add_.Scalar(self.state, 1.0)
            return x * self.state

    model = Model()
    capture(model, numbers(2, 3))
    assert torch.equal(model.state, torch.ones(2, 3, dtype=torch.float64))


def test_constant_data_over_another_part_of_a_buffer() -> None:
    """A view that holds no tracked data is written with a constant: the buffer beside it is not what it was."""

    def program(x: Tensor) -> Tensor:
        out = torch.ones(2, 4, dtype=x.dtype)
        part = out[:, 2:]
        out[:, :2].copy_(x[:, :2])
        part.fill_(3.0)
        return out * 2

    check_capture(program, numbers(2, 4))


def test_several_results_into_out() -> None:
    def program(x: Tensor) -> Tensor:
        values, places = torch.empty_like(x), torch.empty(x.shape, dtype=torch.long)
        torch.sort(x, 1, out=(values, places))
        return values * torch.arange(1.0, 5.0, dtype=x.dtype) + x.gather(1, places)

    check_capture(program, numbers(2, 4))


def composed_into_out(x: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    torch.addcmul(x, x, x.tanh(), value=0.5, out=out)
    return out


def composed_in_place(x: Tensor) -> Tensor:
    y = x * 2
    y.addcmul_(x, x.tanh())
    y.lerp_(x.sigmoid(), 0.25)
    return y


def new_tensor(x: Tensor) -> Tensor:
    return x.new_tensor(x * 2) + x


def filled_with_an_entry(x: Tensor) -> Tensor:
    return torch.full_like(x[:1], x[0, 1]) + x.new_full((1, 4), x[0, 0]) * torch.full((4,), x[0, 2], dtype=x.dtype)


def tensor_of_entries(x: Tensor) -> Tensor:
    return torch.tensor([[x[0, 0], x[0, 1]], [1.0, x[0, 3]]], dtype=x.dtype) * 2


def floored_in_place(x: Tensor) -> Tensor:
    y = x * 2
    y //= 0.5
    return y


COPIES = [composed_into_out, composed_in_place, new_tensor, filled_with_an_entry, tensor_of_entries, floored_in_place]


@pytest.mark.filterwarnings("ignore:To copy construct", "ignore:Converting a tensor with requires_grad")
@pytest.mark.parametrize("program", COPIES, ids=lambda f: f.__name__)
def test_a_tensor_made_of_tensors_is_followed(program: Callable[[Tensor], Tensor]) -> None:
    check_capture(program, numbers(1, 4), batch_dim=None)
