"""Following an earlier pass: what differs is noticed, whatever it is, and recorded anew; nothing is left behind."""

from __future__ import annotations

import gc
import pickle
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import nrm
from laws.test_like import assert_same, followed
from nrm.errors import NrmWarning
from nrm.measure import Loop


@contextmanager
def silent() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NrmWarning)
        yield


class Base(nn.Module):
    """Two layers with something between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)
        self.register_buffer("table", torch.rand(6))
        self.power = 2
        self.other: Tensor = torch.rand(6)

    def middle(self, h: Tensor) -> Tensor:
        return h.relu()

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(self.middle(self.first(x)))
        return found


def model_with(middle: Callable[[Base, Tensor], Tensor]) -> Base:
    """A model with this function between its layers."""
    torch.manual_seed(0)
    kind = type("Own", (Base,), {"middle": middle})
    found: Base = kind().eval()
    return found


def both(model: nn.Module, one: Tensor, other: Tensor) -> tuple[nrm.Measure, nrm.Measure]:
    """The second measure of two, like the first and by itself; they have the same tape."""
    with silent():
        first = nrm.measure(model, one)
        mine, alone = nrm.measure(model, other, like=first), nrm.measure(model, other)
    assert_same(mine.inner.tape, alone.inner.tape)
    return mine, alone


X, Y = torch.tensor([[0.5, -1.0, 2.0, 0.25]]), torch.tensor([[-0.5, 1.5, -2.0, 1.0]])


def by_sign(self: Base, h: Tensor) -> Tensor:
    return h.relu() if bool(h.sum() > 0) else h.tanh()


def by_place(self: Base, h: Tensor) -> Tensor:
    return h * F.one_hot(h.argmax(-1), 6).to(h.dtype) + h


def by_mask(self: Base, h: Tensor) -> Tensor:
    return h.masked_fill(h < 0, 0.0) + torch.where(h > 0.5, h, h * 0.5)


def by_index(self: Base, h: Tensor) -> Tensor:
    return h[:, h[0].argsort()] + h.sort(-1).values


def by_top(self: Base, h: Tensor) -> Tensor:
    return F.pad(h.topk(3).values, (0, 3)) + h.cummax(-1).values


def by_number(self: Base, h: Tensor) -> Tensor:
    return h.relu() * float(h.abs().max())


def by_count(self: Base, h: Tensor) -> Tensor:
    return F.pad(h[h > 0], (0, 6))[:6].view(1, 6) + h


def in_pieces(self: Base, h: Tensor) -> Tensor:
    made = torch.zeros_like(h)
    made[:, ::2] = h[:, ::2].tanh()
    made[:, 1::2] += h[:, 1::2]
    return made


def in_place(self: Base, h: Tensor) -> Tensor:
    h = F.relu(h + 1, inplace=True)
    h += self.table
    return h.mul_(0.5).clamp_(max=2.0)


def seen_twice(self: Base, h: Tensor) -> Tensor:
    kept = h.view(2, 3)
    h.mul_(2.0)
    return h + kept.sum()


def with_norms(self: Base, h: Tensor) -> Tensor:
    return F.layer_norm(h, (6,)) * h.softmax(-1) + F.normalize(h) + h * torch.rsqrt(h.square().mean(-1, True) + 1e-5)


def with_products(self: Base, h: Tensor) -> Tensor:
    a, b = h.view(1, 2, 3), torch.einsum("bij,bkj->bik", h.view(1, 2, 3), h.view(1, 2, 3))
    return (b.softmax(-1) @ a).flatten(1) + F.scaled_dot_product_attention(a, a, a, is_causal=True).flatten(1)


def with_constants(self: Base, h: Tensor) -> Tensor:
    places = torch.arange(6, dtype=h.dtype)
    return h * places.cos() + torch.cat([h[:, 3:], h[:, :3]], 1) * places.sin() + self.other


def drawing(self: Base, h: Tensor) -> Tensor:
    return h + torch.rand(6)


def made_and_lost(self: Base, h: Tensor) -> Tensor:
    return h + torch.from_numpy(h.detach().numpy()).abs().max().item()


FOLLOWED = [by_place, by_mask, by_index, by_top, in_place, with_norms, with_products, with_constants]
NOTICED = [by_sign, by_number, by_count, in_pieces, seen_twice, drawing]


@pytest.mark.parametrize("middle", FOLLOWED, ids=lambda f: f.__name__)
def test_what_is_computed_from_the_input_is_computed_again(middle: Callable[[Base, Tensor], Tensor]) -> None:
    mine, _ = both(model_with(middle), X, Y)
    assert followed(mine)


@pytest.mark.parametrize("middle", NOTICED, ids=lambda f: f.__name__)
def test_what_cannot_be_followed_is_recorded_with_a_warning(middle: Callable[[Base, Tensor], Tensor]) -> None:
    model = model_with(middle)
    with silent():
        first = nrm.measure(model, X)
    torch.manual_seed(1)
    with pytest.warns(NrmWarning, match="recorded anew"):
        mine = nrm.measure(model, Y, like=first)
    assert not followed(mine)
    torch.manual_seed(1)
    with silent():
        assert_same(mine.inner.tape, nrm.measure(model, Y).inner.tape)


def test_the_same_branch_is_followed_and_another_one_is_named() -> None:
    model = model_with(by_sign)
    first = nrm.measure(model, X)
    ways = {bool(model.first(x).sum() > 0) for x in (X, X * 1.1)}
    assert len(ways) == 1
    assert followed(nrm.measure(model, X * 1.1, like=first))
    with pytest.warns(NrmWarning, match="tanh, where it was relu|relu, where it was tanh"):
        nrm.measure(model, -X, like=first)


def change_in_place(model: Base) -> None:
    with torch.no_grad():
        model.first.weight.mul_(2.0)
        model.table.add_(1.0)


def change_data(model: Base) -> None:
    model.first.bias.data.add_(1.0)
    model.table.numpy()[...] = 3.0  # nothing counts this write


def exchange(model: Base) -> None:
    model.first.weight.data = model.first.weight.data * 2


def replace_parameter(model: Base) -> None:
    model.first.weight = nn.Parameter(torch.rand(6, 4))


def replace_attribute(model: Base) -> None:
    model.other = model.other * 2


def write_attribute(model: Base) -> None:
    model.other.mul_(2)


def freeze(model: Base) -> None:
    model.first.requires_grad_(False)


def hook(model: Base) -> None:
    model.first.register_forward_hook(lambda module, args, output: output.abs())


def patch(model: Base) -> None:
    model.first.forward = lambda x: F.linear(x, model.first.weight)  # type: ignore[method-assign]


def load(model: Base) -> None:
    model.load_state_dict({k: v * 1.5 for k, v in model.state_dict().items()})


def move_module(model: Base) -> None:
    model.first = nn.Sequential(model.first)  # type: ignore[assignment]


def set_power(model: Base) -> None:
    model.power = 3


def powered(self: Base, h: Tensor) -> Tensor:
    return (h * self.table + self.other) ** self.power


CHANGES = [change_in_place, change_data, exchange, replace_parameter, replace_attribute, write_attribute, freeze, hook,
           patch, load, move_module, set_power]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda f: f.__name__)
def test_the_model_is_the_one_of_now(change: Callable[[Base], None]) -> None:
    model = model_with(powered)
    with silent():
        first = nrm.measure(model, X)
        change(model)
        second = nrm.measure(model, Y, like=first)
        alone = nrm.measure(model, Y)
        assert_same(second.inner.tape, alone.inner.tape)
        assert_same(nrm.measure(model, X, like=second).inner.tape, nrm.measure(model, X).inner.tape)
        assert torch.equal(second(second.input), alone(alone.input))


def test_training_mode_is_refused_as_ever() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2)).eval()
    first = nrm.measure(model, X)
    model.train()
    with pytest.raises(nrm.CaptureError, match="training mode"):
        nrm.measure(model, Y, like=first)


def test_other_shapes_types_options_and_models_are_recorded() -> None:
    model = model_with(Base.middle)
    first = nrm.measure(model, X)
    others = [
        lambda: nrm.measure(model, X.expand(2, 4), like=first),
        lambda: nrm.measure(model, X, dtype=torch.float64, like=first),
        lambda: nrm.measure(model, X, batch_dim=None, like=first),
        lambda: nrm.measure(model_with(Base.middle), X, like=first),
        lambda: nrm.measure(model, X, output=lambda o: o.relu(), like=first),
        lambda: nrm.measure(model, X, against=Y, like=first),
    ]
    for other in others:
        with pytest.warns(NrmWarning, match="recorded anew"):
            assert not followed(other())
    with pytest.raises(nrm.QuestionError, match="not a measure to be like"):
        nrm.measure(model, X, like="first")  # type: ignore[arg-type]


def test_how_much_memory_there_is_may_change_as_long_as_values_fit() -> None:
    model = model_with(with_products)
    first = nrm.measure(model, X, memory="1 GiB")
    assert followed(nrm.measure(model, Y, memory="2 GiB", like=first))
    assert followed(nrm.measure(model, Y, memory="1 MiB", like=first))
    with pytest.warns(NrmWarning, match="less memory"):
        nrm.measure(model, Y, memory=first.inner.tape.nbytes, like=first)  # an eighth of it is not enough


def test_a_function_that_is_registered_meanwhile_counts() -> None:
    from nrm.capture.vocabulary import VOCABULARY

    model = model_with(lambda self, h: torch.sinc(h))
    first, before = nrm.measure(model, X), VOCABULARY["sinc"]
    try:
        nrm.register("sinc", "activation")
        with pytest.warns(NrmWarning, match="registered since"):
            nrm.measure(model, X, like=first)
    finally:
        VOCABULARY["sinc"] = before


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_half_precision_and_batches(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 2)
    ).eval().to(dtype)  # fmt: skip
    one, other = torch.rand(3, 2, 6, 6, dtype=dtype), torch.rand(3, 2, 6, 6, dtype=dtype)
    assert followed(both(model, one, other)[0])


def test_attention_recurrence_and_embeddings() -> None:
    torch.manual_seed(0)
    encoder = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, dropout=0.0).eval()
    assert followed(both(encoder, torch.rand(2, 5, 4), torch.rand(2, 5, 4))[0])

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.cell, self.head = nn.Embedding(9, 4), nn.GRU(4, 3, batch_first=True), nn.Linear(3, 2)

        def forward(self, ids: Tensor) -> Tensor:
            found: Tensor = self.head(self.cell(self.table(ids))[0][:, -1])
            return found

    assert followed(both(Reader().eval(), torch.randint(0, 9, (2, 5)), torch.randint(0, 9, (2, 5)))[0])


def test_errors_and_interrupts_leave_no_trace() -> None:
    fail: list[BaseException] = []

    def middle(self: Base, h: Tensor) -> Tensor:
        self.table.add_(1.0)
        if fail:
            raise fail[0]
        return h.relu()

    model = model_with(middle)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    first = nrm.measure(model, X)
    for error in (ValueError("no"), KeyboardInterrupt()):
        fail[:] = [error]
        with pytest.raises(type(error)):
            nrm.measure(model, Y, like=first)
        assert torch.overrides._get_current_function_mode() is None  # type: ignore[attr-defined]
        assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    fail.clear()
    assert followed(nrm.measure(model, Y, like=first))
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_a_model_that_hides_errors_does_not_hide_differences() -> None:
    def middle(self: Base, h: Tensor) -> Tensor:
        try:
            return by_sign(self, h)
        except Exception:
            return h.sigmoid()

    mine, _ = both(model_with(middle), X, -X)
    assert not followed(mine)


def test_a_loop_keeps_neither_models_nor_values_alive() -> None:
    loop, model = Loop(), model_with(with_products)
    R = loop.measure(model, X)
    value = weakref.ref(R.inner.tape.nodes[3].value)
    assert followed(loop.measure(model, Y))
    module = weakref.ref(model)
    del R, model
    gc.collect()
    assert value() is None
    assert module() is None
    assert pickle.loads(pickle.dumps(loop))._script is None  # a worker begins with none
