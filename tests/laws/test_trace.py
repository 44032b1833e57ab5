"""Law 11: explaining a model leaves no trace, on the model, its inputs or the process, whatever happens on the way."""

from __future__ import annotations

import copy
import gc
import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import nrm

pytestmark = pytest.mark.filterwarnings("ignore::nrm.errors.NrmWarning")


@pytest.fixture(autouse=True)
def _prepared() -> None:
    """The same random numbers every time; and what torch imports when first used is not our trace."""
    explain(*everything())
    torch.manual_seed(0)


# --- subjects ---


class Everything(nn.Module):
    """Tied weights, a frozen parameter, buffers, batch norm, dropout, in-place ops, a reused module, user hooks."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.tied = nn.Linear(4, 4)
        self.tied.weight = self.first.weight
        self.norm = nn.BatchNorm1d(4)
        self.act = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.5)
        self.scale = nn.Parameter(torch.ones(4), requires_grad=False)
        self.register_buffer("offset", torch.full((4,), 0.1))
        self.head = nn.Linear(4, 3)
        self.fail: Callable[[], None] | None = None

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.norm(self.first(x)))
        x = self.drop(self.tied(x)) * self.scale + self.offset + x
        if self.fail:
            self.fail()
        return self.head(F.dropout(self.act(x), training=self.training))


class Greedy(nn.Module):
    """Overwrites what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x.mul_(2).relu_()
        return self.head(x)


class Noisy(nn.Module):
    """Draws random numbers in its forward pass, of all three generators."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        scale = 1 + 0.1 * random.random() + 0.1 * np.random.rand()
        return self.head(x * scale + torch.randn(4))


class Diary(nn.Module):
    """Writes on itself: a counting buffer, a counting attribute, a cached activation."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))
        self.count = 0
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        self.count += 1
        self.last = x
        return self.head(x)


class Convolutional(nn.Sequential):
    """A convolutional network in small, channels last."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3)
        )


def everything() -> tuple[nn.Module, Tensor]:
    model = Everything().eval()
    model(torch.randn(2, 4)).sum().backward()  # gradients of an earlier step
    model.first.register_forward_hook(lambda m, a, out: None)
    model.head.register_forward_pre_hook(lambda m, a: None)
    model.head.register_full_backward_hook(lambda m, a, b: None)
    return model, torch.randn(2, 4)


SUBJECTS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "everything": everything,
    "greedy": lambda: (Greedy().eval(), torch.randn(2, 4)),
    "noisy": lambda: (Noisy().eval(), torch.randn(2, 4)),
    "diary": lambda: (Diary().eval(), torch.randn(2, 4)),
    "convolutional": lambda: (Convolutional().eval(), torch.randn(2, 1, 4, 4)),
    "parametrized": lambda: (
        nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), nn.ReLU(), nn.Linear(4, 3)).eval(),
        torch.randn(2, 4),
    ),
    "half": lambda: (
        nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3)).half().eval(),
        torch.randn(2, 4).half(),
    ),
    "leaf": lambda: (
        nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3)).eval(),
        torch.randn(2, 4, requires_grad=True),
    ),
}


# --- what is looked at ---


def tensor_state(t: Tensor | None, rewritten: bool = False) -> object:
    """Everything but the values. What a model itself writes and we put back has seen two more versions."""
    if t is None:
        return None
    version = None if rewritten or t.is_inference() else t._version
    return (
        id(t),
        t.data_ptr(),
        version,
        t.dtype,
        t.device,
        tuple(t.shape),
        t.stride(),
        t.requires_grad,
        t.is_leaf,
        t.grad_fn,
    )


def module_state(module: nn.Module) -> dict[str, object]:
    """Everything in a module's `__dict__`: identity of each entry, and one level into its dictionaries (hooks too)."""
    state: dict[str, object] = {"class": type(module)}
    for key, value in module.__dict__.items():
        state[key] = (id(value), [(k, id(v)) for k, v in value.items()] if isinstance(value, dict) else None)
    return state


def model_state(model: nn.Module) -> dict[str, object]:
    tensors = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))
    return {
        "tensors": {name: tensor_state(t, name.endswith("seen")) for name, t in tensors.items()},
        "gradients": {name: tensor_state(t.grad) for name, t in tensors.items()},
        "modules": {name: module_state(m) for name, m in model.named_modules(remove_duplicate=False)},
        "training": {name: m.training for name, m in model.named_modules()},
    }


def values(model: nn.Module, x: Tensor) -> list[Tensor]:
    tensors = [*model.parameters(), *model.buffers(), x]
    return [t.detach().clone() for t in [*tensors, *(t.grad for t in tensors if t.is_leaf and t.grad is not None)]]


def process_state() -> dict[str, object]:
    module = torch.nn.modules.module
    return {
        "functional": {name: id(f) for name, f in vars(F).items()},
        "torch": {name: id(f) for name, f in vars(torch).items() if callable(f)},
        "methods": {name: id(f) for name, f in vars(Tensor).items()},
        "base methods": {name: id(f) for name, f in vars(torch._C.TensorBase).items()},
        "module methods": {name: id(f) for name, f in vars(nn.Module).items()},
        "global hooks": {n: list(vars(module)[n]) for n in vars(module) if n.startswith("_global") and "hooks" in n},
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "fast path": torch.backends.mha.get_fastpath_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "threads": torch.get_num_threads(),
        "function modes": torch._C._len_torch_function_stack(),
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "torch random": torch.get_rng_state().tolist(),
        "python random": random.getstate(),
        "numpy random": [a.tolist() if isinstance(a, np.ndarray) else a for a in np.random.get_state()],
        "warnings": list(warnings.filters),
    }


@contextmanager
def no_trace(model: nn.Module, x: Tensor) -> Iterator[None]:
    """Compares everything before and after, and names all that differs."""

    def everything() -> dict[str, object]:
        return model_state(model) | process_state() | {"input": tensor_state(x), "attributes": dict(x.__dict__)}

    before, contents = everything(), values(model, x)
    yield
    after = everything()
    changed = {what: _difference(before[what], after[what]) for what in before if before[what] != after[what]}
    if not all(torch.equal(a, b) for a, b in zip(contents, values(model, x), strict=True)):
        changed["values"] = "of a parameter, buffer, gradient or input"
    assert not changed


def _difference(old: object, new: object) -> object:
    if isinstance(old, dict) and isinstance(new, dict):
        return {k: _difference(old.get(k), new.get(k)) for k in old | new if old.get(k) != new.get(k)}
    return f"{old!r:.60} -> {new!r:.60}"


def explain(model: nn.Module, x: Tensor, **how: object) -> None:
    """A bit of everything a user does."""
    R = nrm.measure(model, x, **how)
    R(R.input)
    R(R.input, R.output)
    R(R.input, given=R.input.all)
    list(R.layers)
    repr(R)


# --- the law ---


@pytest.mark.parametrize("subject", SUBJECTS)
@pytest.mark.parametrize(
    "how",
    [{}, {"dtype": torch.float64}, {"rules": "epsilon-plus-flat", "target": 1}],
    ids=["plain", "float64", "rules"],
)
def test_no_trace(subject: str, how: dict[str, object]) -> None:
    model, x = SUBJECTS[subject]()
    with no_trace(model, x):
        explain(model, x, **how)


@pytest.mark.parametrize("mode", [nullcontext, torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_no_trace_in_any_grad_mode(mode: Callable) -> None:
    model, x = everything()
    with mode(), no_trace(model, x):
        R = nrm.measure(model, x)
        answer = R(R.input)
        assert not answer.requires_grad


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_no_trace_after_an_error_in_forward(error: type[BaseException]) -> None:
    model, x = everything()

    def fail() -> None:
        raise error("in the middle")

    model.fail = fail
    with no_trace(model, x), pytest.raises((error, nrm.NrmError)) as caught:
        nrm.measure(model, x)
    if error is KeyboardInterrupt:
        assert caught.type is KeyboardInterrupt  # Ctrl-C is nobody's to wrap
    model.fail = None
    nrm.measure(model, x)  # and the next call works


@pytest.mark.parametrize("subject", ["noisy", "greedy", "diary"])
def test_no_trace_when_an_error_meets_side_effects(subject: str) -> None:
    """What the forward pass had already written when it broke is put back, too."""
    model, x = SUBJECTS[subject]()

    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: Tensor) -> Tensor:
            self.inner(x)
            raise KeyboardInterrupt

    broken = Broken().eval()
    with no_trace(broken, x), pytest.raises(KeyboardInterrupt):
        nrm.measure(broken, x)


def test_no_trace_after_bad_questions() -> None:
    model, x = everything()
    with no_trace(model, x):
        for bad in ({"target": 99}, {"rules": "no such composite"}, {"output": "missing"}, {"zero": "nonsense"}):
            with pytest.raises((nrm.NrmError, ValueError)):
                nrm.measure(model, x, **bad)
        R = nrm.measure(model, x)
        with pytest.raises(nrm.NrmError):
            R["no such layer"]


def live_tensors() -> int:
    return sum(issubclass(type(o), Tensor) for o in gc.get_objects())


@contextmanager
def without_collector() -> Iterator[None]:
    """What reference counting alone does not free, stays."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.parametrize("subject", ["everything", "convolutional"])
def test_memory_is_flat(subject: str) -> None:
    """No reference cycles, no growing caches: after 40 explanations as many tensors live as after two."""
    model, x = SUBJECTS[subject]()
    with without_collector():
        for _ in range(2):
            explain(model, x)
        before = live_tensors()
        for _ in range(40):
            explain(model, x)
        assert live_tensors() == before


def live_storages() -> set[int]:
    tensors = [o for o in gc.get_objects() if issubclass(type(o), Tensor)]
    return {t.untyped_storage().data_ptr() for t in tensors if t.layout == torch.strided and not t.is_meta}


def test_deleting_the_measure_frees_its_tensors() -> None:
    """At once, without the collector; an answer holds no more than itself, a layer holds no tensors at all."""
    model, x = SUBJECTS["convolutional"]()
    with without_collector():
        before = live_storages()
        R = nrm.measure(model, x)
        layer = R["0"]
        answer = R(layer.channels, R["2"].channels)
        assert len(live_storages() - before) > 3
        del R
        assert live_storages() - before == {answer.untyped_storage().data_ptr()}
    assert answer.untyped_storage().nbytes() == answer.nbytes
    assert layer.name == "0"


def test_memory_is_flat_after_errors() -> None:
    model, x = everything()

    def fail() -> None:
        raise ValueError

    model.fail = fail
    with without_collector():
        counts = []
        for _ in range(5):
            with suppress(ValueError, nrm.NrmError):
                nrm.measure(model, x)
            counts.append(live_tensors())
    assert counts[-1] == counts[1]


def test_training_goes_on_as_if_nothing_had_happened() -> None:
    """A step with dropout, batch norm and momentum after explaining: the same loss and the same weights, bit by bit."""

    def train(explaining: bool) -> tuple[list[float], list[Tensor]]:
        torch.manual_seed(0)
        model = Everything()
        twin = copy.deepcopy(model)
        assert twin.first.weight is twin.tied.weight
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        x, y = torch.randn(8, 4), torch.randint(0, 3, (8,))
        losses = []
        for _ in range(3):
            model.train()
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            if explaining:  # between backward and step: gradients are alive
                model.eval()
                explain(model, x)
                model.train()
            optimizer.step()
            losses.append(loss.item())
        return losses, [p.detach().clone() for p in model.parameters()]

    plain, explained = train(False), train(True)
    assert plain[0] == explained[0]
    assert all(torch.equal(a, b) for a, b in zip(plain[1], explained[1], strict=True))


def test_a_graph_through_the_input_survives() -> None:
    """The user's own autograd graph ends in the input we are given: it must still run backward afterwards."""
    model, _ = everything()
    leaf = torch.randn(2, 4, requires_grad=True)
    x = leaf * 2
    with no_trace(model, x):
        explain(model, x)
    model(x).sum().backward()
    assert leaf.grad is not None


def test_the_tests_can_fail() -> None:
    """The snapshot sees a hook, a version, a random number and a replaced parameter."""

    def hook(model: nn.Module, x: Tensor) -> None:
        model.head.register_forward_hook(lambda m, a, o: None)

    def version(model: nn.Module, x: Tensor) -> None:
        with torch.no_grad():
            model.head.weight.mul_(1)

    def draw(model: nn.Module, x: Tensor) -> None:
        torch.rand(1)

    def replace(model: nn.Module, x: Tensor) -> None:
        model.head.weight = nn.Parameter(model.head.weight.detach().clone())

    def attribute(model: nn.Module, x: Tensor) -> None:
        model.head.note = 1

    def mark(model: nn.Module, x: Tensor) -> None:
        x.note = 1

    for change in (hook, version, draw, replace, attribute, mark):
        model, x = everything()
        with pytest.raises(AssertionError), no_trace(model, x):
            change(model, x)
