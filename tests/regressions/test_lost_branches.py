"""A branch that leaves torch beside a live one: tensors are followed or refused by name, numbers are a leak."""

from __future__ import annotations

import copy
import io
import math
import pickle
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import nrm
from capture.replay import numbers


class Branches(nn.Module):
    """Two branches, of which the second takes a way of its own before it is added."""

    def __init__(self, way: Callable[[Tensor], Tensor | float], scale: float = 1.0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.b, self.c, self.h = nn.Linear(4, 3), nn.Linear(4, 3), nn.Linear(3, 2)
        for p in self.parameters():
            p.data = torch.rand(p.shape, generator=generator)
        self.way, self.scale = way, scale

    def forward(self, x: Tensor) -> Tensor:
        return self.h((self.b(x) + self.scale * self.way(self.c(x))).relu())


X = numbers(1, 4, dtype=torch.float32).abs()


# ---- tensors that are followed -----------------------------------------------------------------------------------


def by_dlpack(z: Tensor) -> Tensor:
    return torch.from_dlpack(z)


def by_a_capsule(z: Tensor) -> Tensor:
    return torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(z))


def by_an_array(z: Tensor) -> Tensor:
    return torch.from_numpy(z.numpy())


def by_part_of_an_array(z: Tensor) -> Tensor:
    return torch.cat([torch.from_numpy(z.numpy()[:, :1]), torch.as_tensor(np.asarray(z)[:, 1:])], 1)


def by_storage(z: Tensor) -> Tensor:
    return torch.empty(0).set_(z.untyped_storage(), 0, z.shape, z.stride())


def by_a_buffer(z: Tensor) -> Tensor:
    return torch.frombuffer(z.numpy(), dtype=torch.float32).view(z.shape)


def by_copy(z: Tensor) -> Tensor:
    return copy.copy(z)


def by_deepcopy(z: Tensor) -> Tensor:
    return copy.deepcopy(z)


def by_a_parameter(z: Tensor) -> Tensor:
    return nn.Parameter(z)


def by_a_new_tensor(z: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.tensor(z)


FOLLOWED = [by_dlpack, by_a_capsule, by_an_array, by_part_of_an_array, by_storage, by_a_buffer, by_copy, by_deepcopy,
            by_a_parameter, by_a_new_tensor]  # fmt: skip


@pytest.mark.parametrize("way", FOLLOWED, ids=lambda f: f.__name__)
def test_a_tensor_is_followed(way: Callable[[Tensor], Tensor]) -> None:
    R, expected = nrm.measure(Branches(way), X), nrm.measure(Branches(lambda z: z), X)
    for layer in ("b", "c", "input"):
        torch.testing.assert_close(R(R[layer]), expected(expected[layer]))
    assert R.check().constants == {}


# ---- tensors that are refused ------------------------------------------------------------------------------------


def by_save(z: Tensor) -> Tensor:
    file = io.BytesIO()
    torch.save(z, file)
    file.seek(0)
    return torch.load(file)


def by_pickle(z: Tensor) -> Tensor:
    return pickle.loads(pickle.dumps(z))


def by_numpy_arithmetic(z: Tensor) -> Tensor:
    return torch.from_numpy(z.numpy() * 2)


def by_a_copied_array(z: Tensor) -> Tensor:
    return torch.tensor(z.numpy().copy())


def by_bytes(z: Tensor) -> Tensor:
    return torch.frombuffer(bytearray(bytes(z.untyped_storage())), dtype=torch.float32).view(z.shape)


def by_scripted_code(z: Tensor) -> Tensor:
    return torch.jit.CompilationUnit("def twice(z):\n    return z * 2\n").twice(z)


def as_a_factor(z: Tensor) -> Tensor:
    return z * torch.from_numpy(np.tanh(z.numpy()))


REFUSED = [by_save, by_pickle, by_numpy_arithmetic, by_a_copied_array, by_bytes, by_scripted_code, as_a_factor]


@pytest.mark.parametrize("way", REFUSED, ids=lambda f: f.__name__)
def test_a_tensor_is_refused_by_name(way: Callable[[Tensor], Tensor]) -> None:
    """Its mass was in a constant, up to 85 % of it, and the verdict was that the numbers can be trusted."""
    how = {"by_scripted_code": "torch does not report", "by_save": "untyped_storage", "by_pickle": "untyped_storage"}
    with pytest.raises(nrm.CaptureError, match=r"made from the input outside torch[\s\S]*in a call of") as error:
        nrm.measure(Branches(way), X)
    assert how.get(way.__name__, "") in str(error.value)


# ---- numbers ------------------------------------------------------------------------------------------------------


def by_item(z: Tensor) -> float:
    return z.sum().item()


def by_float(z: Tensor) -> float:
    return math.sqrt(float(z.sum())) + float(z[0, 0])


def by_int(z: Tensor) -> float:
    return 5 * int(3 * z.sum())


def by_list(z: Tensor) -> Tensor:
    return torch.tensor(z.tolist())


def by_full(z: Tensor) -> Tensor:
    return torch.full((3,), z.sum().item())


def by_items(z: Tensor) -> Tensor:
    return torch.tensor([[v.item() for v in z[0]]])


NUMBERS = [by_item, by_float, by_int, by_list, by_full, by_items]


@pytest.mark.parametrize("way", NUMBERS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("rules", ["lrp-0", "epsilon-plus", nrm.Gamma(0.25)])
@pytest.mark.parametrize("bias", ["input", "ignore"])
def test_numbers_are_a_leak(way: Callable[[Tensor], Tensor | float], rules: object, bias: str) -> None:
    R = nrm.measure(Branches(way), X, rules=rules, bias=bias)
    check = R.check(strict=False)
    assert list(check.constants) == ["/add.constant"]
    assert sum(check.mass) == pytest.approx(1, abs=1e-5)
    share = check.constants["/add.constant"][0]
    torch.testing.assert_close(
        R.inner.tape and share,
        float(R.inner.network.relevance(R.base.arrivals[R.inner.tape.find("/add.constant").index]).sum()),
    )
    assert share > 0.1
    assert "in constants made from the input, most of it at '/add.constant'" in check.verdict
    for ask in (lambda: R(R.input), R.check):
        with pytest.raises(nrm.MassError, match="constants made from the input"):
            ask()


@pytest.mark.parametrize("scale", [0.02, 1e-6])
def test_few_numbers_are_warned_about_and_fewer_are_not(scale: float) -> None:
    R = nrm.measure(Branches(by_item, scale), X)
    check = R.check(strict=False)
    leak = check.constants["/add.constant"][0]
    assert (1e-3 < leak < 0.1) == (scale == 0.02)
    if scale == 0.02:
        with pytest.warns(nrm.NrmWarning, match="constants made from the input"):
            R.check()
    else:
        assert R.check().ok == (True,)


def test_a_number_that_only_decides_or_scales_is_no_leak() -> None:
    def decides(z: Tensor) -> Tensor:
        factor = z.sum().item()
        return (z if factor > 0 else -z) + 1e-3

    def scales(z: Tensor) -> Tensor:
        return z * z.sum().item()

    for way in (decides, scales):
        R = nrm.measure(Branches(way), X)
        assert R.check().constants == {}
        assert any("item read a value" in note for note in R.check().notes)


def test_a_mask_that_is_added_is_a_leak() -> None:
    """It was made from the input, by a comparison that carries no relevance."""
    R = nrm.measure(Branches(lambda z: (z > 0).float()), X)
    assert R.check(strict=False).constants["/add.constant"][0] > 0.1


def test_tensors_from_elsewhere_that_do_not_depend_on_the_input_are_constants() -> None:
    table = numbers(1, 3, dtype=torch.float32)
    for way in (
        lambda z: z + table,
        lambda z: z + torch.from_numpy(table.numpy() * 2),
        lambda z: z + nn.Parameter(table),
    ):
        R = nrm.measure(Branches(way), X)
        assert R.check(strict=False).constants == {}
        assert sum(R.check(strict=False).mass) == pytest.approx(1, abs=1e-5)


def test_what_could_not_be_measured_is_said() -> None:
    def otherwise(z: Tensor) -> Tensor:
        for _ in range(int(1e5 * float(z.detach().sum())) % 89):
            z = z * 1.0
        return z

    R = nrm.measure(Branches(otherwise), X)
    assert "could not be measured" in R.check(strict=False).verdict


# ---- numbers that come back inside a constant ---------------------------------------------------------------------


class Added(nn.Module):
    """What a function adds to the first layer, beside parameters and buffers that it may take or write."""

    def __init__(self, way: Callable[[Added, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.first, self.head, self.way = nn.Linear(4, 3), nn.Linear(3, 2), way
        self.weight, self.own = nn.Parameter(torch.rand(3, 3)), nn.Parameter(torch.rand(3))
        self.register_buffer("kept", torch.zeros(3))
        self.array = self.kept.numpy()

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.head(self.way(self, self.first(x).relu() + 0.1))
        return made


def of_numbers(z: Tensor) -> Tensor:
    return torch.tensor(z.sum(0).tolist())


def through_the_memory(m: Added, z: Tensor) -> Tensor:
    m.array[0] = z.sum().item()
    return z + m.kept


def through_an_array(m: Added, z: Tensor) -> Tensor:
    m.kept.numpy()[0] = z.sum().item()
    return z + m.kept


def by_an_assignment(m: Added, z: Tensor) -> Tensor:
    m.kept[0] = z.sum().item()
    return z + m.kept


def by_filling(m: Added, z: Tensor) -> Tensor:
    m.kept.fill_(float(z.sum()))
    return z + m.kept


def a_bias_in_a_buffer(m: Added, z: Tensor) -> Tensor:
    m.array[:] = z.sum(0).tolist()
    return F.linear(z, m.weight, m.kept)


BIASES: dict[str, Callable[[Added, Tensor], Tensor]] = {
    "linear": lambda m, z: F.linear(z, m.weight, of_numbers(z)),
    "one number": lambda m, z: F.linear(z, m.weight, torch.full((3,), z.sum().item())),
    "addmm": lambda m, z: torch.addmm(of_numbers(z), z, m.weight, beta=0.5),
    "convolution": lambda m, z: F.conv1d(z[:, :, None], m.weight[:, :, None], of_numbers(z))[:, :, 0],
    "norm": lambda m, z: F.layer_norm(z, (3,), m.own, of_numbers(z)),
    "batch norm": lambda m, z: F.batch_norm(z, torch.zeros(3), torch.ones(3), None, of_numbers(z)),
    "memory of a buffer": through_the_memory,
    "array of a buffer": through_an_array,
    "assignment to a buffer": by_an_assignment,
    "filled buffer": by_filling,
    "bias in a buffer": a_bias_in_a_buffer,
}


@pytest.mark.parametrize("dtype", [None, torch.float64])
@pytest.mark.parametrize("way", BIASES.values(), ids=BIASES)
def test_numbers_inside_a_bias_or_a_buffer_are_a_leak(
    way: Callable[[Added, Tensor], Tensor], dtype: torch.dtype | None
) -> None:
    """They passed for parameters, and the verdict was that the numbers can be trusted."""
    model = Added(way).eval()
    R = nrm.measure(model, X, target=0, rules="lrp-0", bias="input", dtype=dtype)
    check = R.check(strict=False)
    assert len(check.constants) == 1
    assert sum(check.mass) == pytest.approx(1, abs=1e-4)
    (name,) = check.constants
    constant = R.inner.tape.find(name)
    assert constant.op.made
    weights = model.head.weight.detach()[0].to(constant.value)  # what was added, by the layer above it: no ReLU between
    made = constant.value.flatten(1) * weights / R.value[:, None]
    assert check.constants[name][0] == pytest.approx(float(made.abs().sum()), rel=1e-4)
    assert "constants made from the input" in check.verdict
    assert not bool(model.kept.any())  # what the pass wrote is taken back


def test_a_bias_beside_a_weight_that_was_made_is_no_leak() -> None:
    def scaled(m: Added, z: Tensor) -> Tensor:
        return F.linear(z, torch.tensor([z[0].tolist()] * 3), m.own)

    assert nrm.measure(Added(scaled).eval(), X, rules="lrp-0", bias="input").check(strict=False).constants == {}


def test_arrays_in_a_buffer_are_refused() -> None:
    def copied(m: Added, z: Tensor) -> Tensor:
        m.kept.numpy()[...] = z.detach().numpy().mean(0)
        return z + m.kept

    for dtype in (None, torch.float64):
        with pytest.raises(nrm.CaptureError, match="made from the input outside torch"):
            nrm.measure(Added(copied).eval(), X, dtype=dtype)


def test_buffers_that_nobody_writes_are_left_alone() -> None:
    model = Added(lambda m, z: z + m.kept * z.sum().item()).eval()
    before = model.kept._version
    R = nrm.measure(model, X)
    assert R.check(strict=False).constants == {}
    assert model.kept._version == before
