"""Capturing a model: names, inputs, outputs, precision, contexts, and what is refused."""

from __future__ import annotations

import collections
import copy
import dataclasses
import gc
import warnings
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import nrm
from capture.replay import Wrapped, check_capture, numbers
from nrm.capture import Linear, Pointwise, Source, capture, uncollected


def mlp(dtype: torch.dtype = torch.float64) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)).to(dtype).eval()


def quietly() -> warnings.catch_warnings[Any]:
    """Without torch's own warnings, which differ between versions and may come once per process."""
    return warnings.catch_warnings(action="ignore")


def names(tape: Any) -> list[str]:
    return [node.name for node in tape.nodes]


# ---- module and functional calls -------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, width: int = 4):
        super().__init__()
        self.first = nn.Linear(width, width)
        self.act = nn.ReLU()
        self.second = nn.Linear(width, width)
        self.drop = nn.Dropout()

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.second(self.act(self.first(x)))) + x


def test_names_of_modules_functions_and_containers() -> None:
    model = nn.Sequential(collections.OrderedDict(a=Block(), b=nn.Sequential(Block(), nn.Tanh()))).double().eval()
    tape = check_capture(model, numbers(2, 4))
    assert names(tape) == [
        "input", "a.first", "a.act", "a.second", "a", "b.0.first", "b.0.act", "b.0.second", "b.0", "b.1",
    ]  # fmt: skip
    assert tape.find("a") is tape.find("a/add")
    assert tape.find("b") is tape.find("b.1")
    assert tape.find("a.drop") is tape.find("a.second")
    assert tape.find("b.0.input") is tape.find("a")
    assert tape.find("output") is tape.find("b.1")
    assert isinstance(tape.find("a.first").op, Linear)
    assert isinstance(tape.find("b.1").op, Pointwise)


def test_a_module_called_several_times_has_numbered_calls() -> None:
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.Linear(4, 4)
            self.act = nn.Tanh()

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(3):
                x = self.act(self.cell(x)) + 1
            return x

    tape = check_capture(Loop().double(), numbers(2, 4))
    assert [tape.find(f"cell#{k}").index for k in range(3)] == [i for i, n in enumerate(tape.nodes) if "cell" in n.name]
    assert tape.find("/add#2").index == tape.output
    assert tape.find("cell#1.input") is tape.find("/add#0")
    with pytest.raises(nrm.QuestionError, match="called 3 times"):
        tape.find("cell")
    with pytest.raises(nrm.QuestionError, match="no call 3"):
        tape.find("cell#3")


def test_the_last_op_of_a_block_has_two_names() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(torch.relu(x) + self.lin(x))

    tape = check_capture(nn.Sequential(Twice()).double(), numbers(2, 4))
    assert names(tape) == ["input", "0/relu#0", "0.lin", "0/add", "0"]
    assert tape.find("0/relu#1") is tape.find("0")


def test_tied_weights_and_shared_modules() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.Linear(4, 3, bias=False)
            self.down = nn.Linear(3, 4, bias=False)
            self.down.weight = nn.Parameter(self.up.weight.detach().T.contiguous())
            self.again = self.up

        def forward(self, x: Tensor) -> Tensor:
            return self.again(self.down(self.up(x))) + F.linear(x, self.up.weight)

    tape = check_capture(Tied().double(), numbers(2, 4))
    assert [n for n in names(tape) if n.startswith("up")] == ["up#0", "up#1"]


def test_lists_of_modules_and_modules_that_are_not_called() -> None:
    class Many(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
            self.heads = nn.ModuleDict({"a": nn.Linear(4, 2), "b": nn.Linear(4, 2)})
            self.unused = nn.Linear(7, 7)

        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = torch.relu(layer(x))
            return self.heads["b"](x)

    tape = check_capture(Many().double(), numbers(2, 4))
    assert tape.find("layers.2").index
    assert tape.find("heads.b").index == tape.output
    for missing in ("unused", "heads.a"):
        with pytest.raises(nrm.QuestionError, match="unknown layer"):
            tape.find(missing)


def test_data_dependent_control_flow_takes_its_branch() -> None:
    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.Linear(4, 4)
            self.down = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            if x.sum() > 0:
                return self.up(x)
            while x.norm() > 1:
                x = x * 0.5
            return self.down(x)

    model, x = Branch().double(), numbers(1, 4).abs()
    assert "up" in names(check_capture(model, x))
    other = check_capture(model, -x)
    assert "down" in names(other)
    assert "up" not in names(other)


def test_what_a_module_receives() -> None:
    class Keyword(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.proj = nn.Linear(4, 4)

        def forward(self, *, hidden: Tensor, scale: float = 1.0) -> Tensor:
            return self.proj(hidden * scale)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Linear(4, 4)
            self.inner = Keyword()

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(hidden=torch.relu(self.stem(x)), scale=2.0)

    model = Model().double()
    tape = check_capture(model, numbers(2, 4))
    assert tape.find("inner.input") is tape.find("/relu")
    assert tape.find("inner.proj.input") is tape.find("inner/mul")
    R = nrm.measure(model, numbers(2, 4), rules="lrp-0", target=0)
    assert torch.equal(R.values(R["inner"].input), R.values(R["/relu"]))


def test_a_module_that_fails_inside_a_try_is_left_behind() -> None:
    class Careful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wrong = nn.Linear(7, 4)
            self.right = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            try:
                x = self.wrong(x)
            except RuntimeError:
                x = self.right(x)
            return x + 1

    tape = check_capture(Careful().double(), numbers(2, 4))
    assert names(tape) == ["input", "right", "/add"]


def test_custom_autograd_functions_are_seen_through() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return torch.relu(x) * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad

    check_capture(lambda x: Double.apply(x) + x, numbers(2, 4))


@pytest.mark.parametrize("module", [
    nn.ELU(), nn.Hardshrink(), nn.Hardsigmoid(), nn.Hardtanh(), nn.Hardswish(), nn.LeakyReLU(), nn.LogSigmoid(),
    nn.PReLU(), nn.ReLU(), nn.ReLU6(), nn.RReLU(), nn.SELU(), nn.CELU(), nn.GELU(), nn.GELU("tanh"), nn.Sigmoid(),
    nn.SiLU(), nn.Mish(), nn.Softplus(), nn.Softshrink(), nn.Softsign(), nn.Tanh(), nn.Tanhshrink(),
    nn.Threshold(0.1, 0.0), nn.GLU(), nn.Softmin(1), nn.Softmax(1), nn.LogSoftmax(1), nn.Identity(), nn.Dropout(),
    nn.AlphaDropout(), nn.Dropout1d(),
], ids=repr)  # fmt: skip
def test_every_activation(module: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(4, 4), module).double().eval()
    tape = check_capture(model, numbers(2, 4))
    assert all(node.op.kind != "unknown" for node in tape.nodes if not isinstance(node.op, Source))
    R = nrm.measure(model, numbers(2, 4), rules="lrp-0")
    assert R.check(strict=False).mass == pytest.approx((1, 1))


# ---- inputs and outputs ----------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Batch:
    image: Tensor
    scale: float = 1.0


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


@pytest.mark.parametrize(("inputs", "expected"), [
    (numbers(2, 4), ["input"]),
    ((numbers(2, 4), numbers(2, 4, seed=1)), ["input[0]", "input[1]"]),
    ({"x": numbers(2, 4)}, ["input.x"]),
    ({"x": numbers(2, 4), "y": numbers(2, 4, seed=1)}, ["input.x", "input.y"]),
    ([numbers(2, 4), numbers(2, 4, seed=1)], ["input[0]", "input[1]"]),
    (Pair(numbers(2, 4), numbers(2, 4, seed=1)), ["input[0]", "input[1]"]),
    (Batch(numbers(2, 4)), ["input"]),
    (collections.UserDict(x=numbers(2, 4)), ["input.x"]),
], ids=["tensor", "tuple", "one keyword", "keywords", "list", "named tuple", "dataclass", "mapping"])  # fmt: skip
def test_inputs_of_every_kind(inputs: Any, expected: list[str]) -> None:
    def total(x: Any = None, y: Any = None) -> Tensor:
        if isinstance(x, Batch):
            return x.image * x.scale
        if isinstance(x, list | tuple):
            return x[0] + x[1]
        return x if y is None else x + y

    tape = capture(Wrapped(total), inputs)
    assert [tape.nodes[i].name for i in tape.inputs] == expected
    assert tape.find(expected[0]).index == 0
    if len(expected) == 1:
        assert tape.find("input").index == 0


class Heads(nn.Module):
    def __init__(self, kind: str = "dict"):
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.kind = kind

    def forward(self, x: Tensor) -> Any:
        h = self.body(x)
        a, b = h[:, :2], torch.relu(h[:, 2:])
        if self.kind == "dict":
            return {"first": a, "second": b}
        if self.kind == "tuple":
            return a, b
        if self.kind == "nested":
            return {"all": [a, {"deep": b}]}
        return Outputs(logits=a, hidden=b)


@dataclasses.dataclass
class Outputs:
    logits: Tensor
    hidden: Tensor | None = None


def test_outputs_by_key_index_attribute_and_function() -> None:
    x = numbers(2, 4)
    for kind, output, which in [
        ("dict", "second", 1), ("tuple", 1, 1), ("tuple", -2, 0), ("dataclass", "hidden", 1), ("dataclass", None, 0),
        ("nested", lambda o: o["all"][1]["deep"], 1), ("dict", lambda o: o["second"], 1),
    ]:  # fmt: skip
        model = Heads(kind).double()
        with torch.no_grad():
            h = model.body(x)
            expected = [h[:, :2], torch.relu(h[:, 2:])][which]
        tape = capture(model, x, output=output)
        assert torch.equal(tape.nodes[tape.output].value, expected)


def test_an_output_function_is_captured_with_the_model() -> None:
    model = Heads("tuple").double()
    tape = capture(model, numbers(2, 4), output=lambda o: o[0][:, :1] - o[1][:, 1:])
    assert tape.nodes[tape.output].function == "sub"
    R = nrm.measure(model, numbers(2, 4), output=lambda o: o[0][:, 0] - o[1][:, 1], rules="lrp-0")
    assert R.value.shape == (2,)
    assert R.check(strict=False).mass == pytest.approx((1, 1))


@pytest.mark.parametrize(("kind", "output", "text"), [
    ("dict", None, "several outputs"), ("dict", "third", "no 'third'"), ("tuple", 5, "no 5"),
    ("dataclass", "third", "no 'third'"), ("tuple", lambda o: 3, "not a float tensor"),
    ("tuple", lambda o: o[0].argmax(1), "not a float tensor"),
])  # fmt: skip
def test_outputs_that_cannot_be_explained(kind: str, output: Any, text: str) -> None:
    with pytest.raises(nrm.CaptureError, match=text):
        capture(Heads(kind).double(), numbers(2, 4), output=output)


def test_one_tensor_has_no_keys() -> None:
    with pytest.raises(nrm.CaptureError, match="no 0"):
        capture(mlp(), numbers(2, 4), output=0)


def test_modules_with_several_outputs() -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            return x.argmax(1), x * 2, x + 1

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.two = Two()

        def forward(self, x: Tensor) -> Tensor:
            _, a, b = self.two(x)
            return a * b

    tape = check_capture(Model(), numbers(2, 4))
    assert tape.find("two").function == "mul"
    assert tape.find("two[1]").function == "add"


# ---- sources ---------------------------------------------------------------------------------------------------------


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.position = nn.Parameter(torch.randn(5, 4))
        self.token = nn.Parameter(torch.randn(1, 1, 4))
        self.head = nn.Linear(4, 3)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.embed(ids) + self.position[: ids.shape[1]]
        h = torch.cat([self.token.expand(len(ids), -1, -1), h], 1)
        return self.head(h.mean(1))


def test_an_embedding_is_the_input_of_integers() -> None:
    model, ids = Tokens().double(), torch.tensor([[1, 2, 3], [4, 5, 6]])
    tape = check_capture(model, ids)
    assert [tape.nodes[i].name for i in tape.inputs] == ["embed"]
    assert tape.find("input") is tape.find("embed")
    assert tape.find("input").sample == 0
    R = nrm.measure(model, ids, rules="lrp-0", target=0)
    assert R(R.input).shape == (2, 3, 4)


def test_time_first_integers() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(7, 4)

        def forward(self, ids: Tensor) -> Tensor:
            return self.embed(ids).sum(0)

    tape = check_capture(Model().double(), torch.tensor([[1, 2], [3, 4], [5, 6]]), batch_dim=1)
    assert tape.batch == 2
    assert tape.find("embed").sample == 1


def test_bags_of_integers() -> None:
    model = nn.Sequential(nn.EmbeddingBag(7, 4, mode="sum"), nn.Linear(4, 2)).double()
    tape = check_capture(model, torch.tensor([[1, 2, 3], [4, 5, 6]]))
    assert tape.find("input") is tape.find("0")


def test_parameters_used_as_activations_are_named_sources() -> None:
    tape = capture(Tokens().double(), torch.tensor([[1, 2, 3], [4, 5, 6]]))
    sources = {node.name: node for node in tape.sources}
    assert set(sources) == {"embed", "position", "token"}
    assert all(node.sample == 0 for node in tape.sources)
    R = nrm.measure(Tokens().double(), torch.tensor([[1, 2, 3], [4, 5, 6]]), rules="lrp-0", target=0)
    assert R.check(strict=False).mass == pytest.approx((1, 1))
    assert R(R["token"]).shape == (2, 1, 4)


def test_constants_of_cat_and_pad_are_sources() -> None:
    def model(x: Tensor) -> Tensor:
        return F.pad(torch.cat([x, torch.ones(2, 1, dtype=x.dtype)], 1), (1, 0), value=2.0) @ numbers(6, 3, seed=1)

    tape = check_capture(model, numbers(2, 4))
    assert sorted(node.name for node in tape.sources) == ["/cat.constant", "/pad.constant", "input"]
    R = nrm.measure(Wrapped(model), numbers(2, 4), rules="lrp-0", target=0)
    parts = [R(layer.all) for layer in R.inputs]
    assert sum(parts).tolist() == pytest.approx([1, 1])
    assert float(R(R["/cat.constant"].all).abs().min()) > 0


def test_masks_and_constructors_are_constants() -> None:
    def model(x: Tensor) -> Tensor:
        mask = (x > 0).to(x.dtype)
        return x * mask + torch.zeros_like(x) + x.new_ones(4) + torch.ones_like(x).cumsum(1)

    tape = check_capture(model, numbers(2, 4))
    assert {node.op.kind for node in tape.sources} == {"input"}  # the same for both samples: biases


def test_what_a_constant_is_does_not_depend_on_the_batch() -> None:
    """A constant that is added is a bias if it varies along channels only, an input in the middle if samples differ."""

    def model(x: Tensor) -> Tensor:
        return x + F.linear(x.new_zeros(len(x), 3), weight, bias)

    weight, bias = numbers(4, 3), numbers(4)
    for batch in (1, 2):
        assert [node.op.kind for node in check_capture(model, numbers(batch, 4)).sources] == ["input"]
    own = numbers(2, 4)
    assert {node.op.kind for node in check_capture(lambda x: x + own, numbers(2, 4)).sources} == {"input", "constant"}


# ---- precision, memory formats and contexts --------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_models_run_in_float32(dtype: torch.dtype) -> None:
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(12, 3), nn.Softmax(1)
    )  # fmt: skip
    model.to(dtype).eval()
    before = {name: (t.data_ptr(), t.dtype, t.clone()) for name, t in model.state_dict().items()}
    x = numbers(2, 2, 4, 4, dtype=dtype)
    tape = capture(model, x)
    assert tape.dtype == torch.float32
    assert all(node.value.dtype == torch.float32 for node in tape.nodes)
    assert torch.allclose(tape.nodes[tape.output].value, model(x).float(), atol=2e-2)
    full = capture(copy.deepcopy(model).float(), x.float())
    assert torch.equal(tape.nodes[tape.output].value, full.nodes[full.output].value)
    for name, t in model.state_dict().items():
        assert (t.data_ptr(), t.dtype) == before[name][:2]
        assert torch.equal(t, before[name][2])


def test_casts_inside_a_half_precision_model() -> None:
    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
            self.head = nn.Linear(4, 2, dtype=torch.bfloat16)

        def forward(self, x: Tensor) -> Tensor:
            kind = x.dtype
            y = x.to(torch.float32)
            y += 1  # a copy in the model's own precision: x must not see it
            y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
            z = F.softmax(y, -1, dtype=torch.float32).to(kind)
            return self.head(self.weight * z.type_as(x) + x.bfloat16())

    model, x = Norm().eval(), numbers(2, 4, dtype=torch.bfloat16)
    tape = capture(model, x)
    assert all(node.value.dtype == torch.float32 for node in tape.nodes)
    assert torch.allclose(tape.nodes[tape.output].value, model(x).float(), atol=5e-2)


def test_double_precision_on_request() -> None:
    model, x = mlp(torch.float32), numbers(2, 4, dtype=torch.float32)
    tape = capture(model, x, dtype=torch.float64)
    assert all(node.value.dtype == torch.float64 for node in tape.nodes)
    assert torch.allclose(tape.nodes[tape.output].value, copy.deepcopy(model).double()(x.double()))
    assert all(p.dtype == torch.float32 for p in model.parameters())


def test_double_precision_is_not_lost_to_calls_that_name_their_own() -> None:
    def model(x: Tensor) -> Tensor:
        return F.softmax(x, 1, dtype=torch.float32) + x.sum(1, keepdim=True, dtype=torch.float32) + x.float()

    tape = capture(Wrapped(model), numbers(2, 4), dtype=torch.float64)
    assert all(node.value.dtype == torch.float64 for node in tape.nodes)


def test_autocast_inside_the_model_is_turned_off() -> None:
    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return self.lin(x)

    model, x = Mixed(), numbers(2, 4, dtype=torch.float32)
    tape = capture(model, x)
    assert torch.equal(tape.nodes[tape.output].value, model.lin(x))


CONTEXTS = {
    "no_grad": lambda: torch.no_grad(),
    "inference_mode": lambda: torch.inference_mode(),
    "enable_grad": lambda: torch.enable_grad(),
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
}


@pytest.mark.parametrize("context", CONTEXTS.values(), ids=CONTEXTS)
def test_contexts_change_nothing(context: Any) -> None:
    model, x = mlp(torch.float32), numbers(2, 4, dtype=torch.float32)
    plain = nrm.measure(model, x, rules="lrp-0")
    expected = plain(plain.input)
    with context():
        inside = nrm.measure(model, x * 1, rules="lrp-0")
        answer = inside(inside.input)
    assert torch.equal(answer, expected)
    assert not answer.requires_grad
    assert torch.equal(inside(inside.input), expected)


def test_a_model_made_in_inference_mode() -> None:
    with torch.inference_mode():
        model, x = mlp(torch.float16), numbers(2, 4, dtype=torch.float16)
    R = nrm.measure(model, x, rules="lrp-0")
    assert R.check(strict=False).mass == pytest.approx((1, 1), abs=1e-5)


def test_channels_last_equals_contiguous() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Conv2d(4, 4, 2), nn.Flatten(), nn.Linear(16, 3)
    )
    model.double().eval()
    x = numbers(2, 3, 8, 8)
    plain = nrm.measure(model, x, rules="epsilon-plus")
    turned = copy.deepcopy(model).to(memory_format=torch.channels_last)
    last = nrm.measure(turned, x.to(memory_format=torch.channels_last), rules="epsilon-plus")
    assert torch.allclose(last(last.input), plain(plain.input), rtol=1e-10, atol=1e-12)


def compiled(model: nn.Module) -> nn.Module:
    with quietly():
        return torch.compile(model, backend="eager")


def test_compiled_and_parallel_models_are_unwrapped() -> None:
    model, x = mlp(), numbers(2, 4)
    for wrapped in (nn.DataParallel(model), compiled(model), nn.DataParallel(compiled(model))):
        tape = capture(wrapped, x)
        assert names(tape) == ["input", "0", "1", "2"]


def test_a_compiled_part_runs_eagerly() -> None:
    inner = mlp()
    tape = capture(nn.Sequential(compiled(inner), nn.ReLU()), numbers(2, 4))
    assert torch.equal(tape.nodes[tape.output].value, torch.relu(inner(numbers(2, 4))))
    assert sum(isinstance(node.op, Linear) for node in tape.nodes) == 2


# ---- what is refused -------------------------------------------------------------------------------------------------


def refusal(model: Any, *inputs: Any, **options: Any) -> str:
    before = torch.get_rng_state()
    with pytest.raises(nrm.CaptureError) as error:
        capture(model if isinstance(model, nn.Module) else Wrapped(model), inputs, **options)
    assert torch.equal(before, torch.get_rng_state())
    return str(error.value)


def test_not_a_model() -> None:
    with pytest.raises(nrm.CaptureError, match="not a model"):
        capture(lambda x: x, numbers(2, 4))


def test_lost_paths() -> None:
    x = numbers(2, 4)
    text = refusal(nn.Sequential(nn.Identity(), Wrapped(lambda x: torch.from_numpy(np.tanh(x.numpy())))), x)
    assert "lost inside a module" in text
    assert "1 (Wrapped)" in text
    assert "numpy" in text
    assert "lost inside" in refusal(lambda x: torch.full((2, 3), x.mean().item()), x)
    assert "lost inside" in refusal(lambda x: torch.tensor(x.tolist()), x)
    assert "vmap" in refusal(lambda x: torch.vmap(torch.relu)(x) + x, x)


def test_a_value_read_on_the_way_is_noted() -> None:
    tape = check_capture(lambda x: x * x.mean().item(), numbers(2, 4))
    assert any("item read a value" in note for note in tape.notes)


def test_ops_without_a_rule_are_named_with_their_place() -> None:
    model = nn.Sequential(nn.Linear(4, 4), Wrapped(lambda x: torch.special.airy_ai(x))).double()
    tape = capture(model, numbers(2, 4))
    assert next(n.op.function for n in tape.nodes if getattr(n.op, "kind", "") == "unknown") == "special_airy_ai"
    with pytest.raises(nrm.CaptureError, match="no rule for special_airy_ai") as error:
        nrm.measure(model, numbers(2, 4), rules="lrp-0", target=0)
    assert "1, " in str(error.value)
    assert "test_capture.py" in str(error.value)


def test_gradients_inside_a_forward_pass_are_refused_by_name() -> None:
    def force(x: Tensor) -> Tensor:
        with torch.enable_grad():
            energy = x.square().sum()
            return torch.autograd.grad(energy, x)[0]

    with pytest.raises(nrm.CaptureError, match="in its own forward pass cannot be followed"):
        nrm.measure(nn.Sequential(nn.Linear(4, 4), Wrapped(force)).double(), numbers(2, 4), target=0)


def test_the_least_number_of_the_working_precision_fills_a_mask() -> None:
    """As XGLM masks attention: ``torch.full`` has the default precision, and the scores that of the measure."""

    def masked(x: Tensor) -> Tensor:
        least = torch.full((), torch.finfo(x.dtype).min)
        return torch.softmax(torch.maximum(x + torch.tensor([0.0, 0, 0, least]), least), -1)

    model = nn.Sequential(nn.Linear(4, 4), Wrapped(masked), nn.Linear(4, 2))
    R = nrm.measure(model, numbers(2, 4).float(), target=0, dtype=torch.float64)
    assert R.check(strict=False).cut_error == pytest.approx(0.0, abs=1e-9)


def test_scripted_code() -> None:
    x = numbers(2, 4)
    with quietly():
        scripted = torch.jit.script(mlp())
    assert "scripted" in refusal(scripted, x)
    assert "scripted" in refusal(nn.Sequential(nn.Linear(4, 4), scripted), x)
    with quietly():
        traced = torch.jit.trace(torch.tanh, (x,))
    assert "lost" in refusal(lambda x: traced(x), x)


def test_training_mode() -> None:
    x = numbers(4, 4)
    for layer in (nn.Dropout(), nn.BatchNorm1d(4)):
        text = refusal(nn.Sequential(nn.Linear(4, 4), layer).double().train(), x)
        assert "training mode" in text
        assert "model.eval()" in text
        assert "1 (" in text
    assert "dropout is active" in refusal(lambda x: F.dropout(x, 0.5), x)
    capture(nn.Sequential(nn.Linear(4, 4), nn.ReLU()).double().train(), x)
    capture(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.0)).double().train(), x)


def test_random_numbers() -> None:
    class Noisy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x + torch.randn_like(x)

    assert "draws random numbers" in refusal(Noisy().train(), numbers(2, 4))
    tape = capture(Noisy().eval(), numbers(2, 4))
    assert any("one draw" in note for note in tape.notes)


def test_weights_that_are_not_dense_and_real() -> None:
    x = numbers(2, 4)
    with torch.device("meta"):
        empty = nn.Linear(4, 4)
    assert "no data" in refusal(empty, x)
    model = nn.Linear(4, 4).double()
    model.register_buffer("extra", torch.eye(4).to_sparse())
    assert "sparse weights" in refusal(model, x)


@pytest.mark.parametrize(("inputs", "options", "text"), [
    (lambda: numbers(2, 4).to("meta"), {}, "meta inputs"),
    (lambda: numbers(2, 4).to_sparse(), {}, "sparse inputs"),
    (lambda: numbers(2, 4).to(torch.complex64), {}, "complex inputs"),
    (lambda: numbers(2, 4).index_fill(1, torch.tensor(1), torch.nan), {}, "contains NaN"),
    (lambda: numbers(2, 4).index_fill(1, torch.tensor(1), torch.inf), {}, "contains inf"),
    (lambda: torch.zeros(0, 4), {}, "is empty"),
    (lambda: numbers(4), {"batch_dim": 1}, "no axis 1"),
    (lambda: numbers(2, 4), {"batch_dim": -1}, "batch_dim=-1"),
    (lambda: numbers(2, 4), {"dtype": torch.float16}, "float16"),
    (lambda: torch.ones(2, 4, dtype=torch.long), {}, "reach no embedding"),
    (lambda: "text", {}, "no tensor among the inputs"),
])  # fmt: skip
def test_inputs_without_a_meaning(inputs: Any, options: dict[str, Any], text: str) -> None:
    model = Wrapped(lambda x: x.to(torch.float64) @ numbers(4, 2))
    assert text in refusal(model, inputs(), **options)


def test_compressed_sparse_inputs() -> None:
    with quietly():
        x = numbers(2, 4).to_sparse_csr()
    assert "sparse inputs" in refusal(mlp(), x)


def test_quantized_inputs() -> None:
    with quietly():
        x = torch.quantize_per_tensor(numbers(2, 4, dtype=torch.float32), 0.1, 0, torch.qint8)
    assert "quantized inputs" in refusal(mlp(), x)


def test_device_mismatch(device: torch.device) -> None:
    if device.type == "cpu":
        pytest.skip("needs a second device")
    assert "different devices" in refusal(mlp().to(device), numbers(2, 4))


def test_numbers_that_overflow_are_named_where_they_begin() -> None:
    model = nn.Sequential(nn.Linear(4, 4), Wrapped(lambda x: x * 1e308 * 1e10), nn.Tanh()).double()
    model[0].weight.data.fill_(1)
    x = numbers(1, 4).abs()
    capture(model, x)  # tanh(inf) is finite: the prediction is fine
    with torch.no_grad():
        model[0].weight[0, 0] = torch.nan
    text = refusal(model, x)
    assert "computes NaN" in text
    assert "first at layer '0'" in text


def test_an_exception_in_forward_leaves_no_trace() -> None:
    class Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(4, 4)
            self.register_buffer("state", torch.zeros(4))

        def forward(self, x: Tensor) -> Tensor:
            self.state.add_(1)
            self.extra = self.lin(x)
            raise KeyboardInterrupt

    model = Fails()
    with pytest.raises(KeyboardInterrupt):
        capture(model, numbers(2, 4, dtype=torch.float32))
    assert not model.state.any()
    assert not hasattr(model, "extra")
    assert not nn.modules.module._global_forward_hooks
    assert not nn.modules.module._global_forward_pre_hooks


@pytest.mark.parametrize("before", [True, False])
def test_the_garbage_collector_is_left_as_it_was(before: bool) -> None:
    """Nested, after an exception, and where somebody has turned it off before."""
    was = gc.isenabled()
    try:
        (gc.enable if before else gc.disable)()
        with uncollected():
            assert not gc.isenabled()
            with pytest.raises(KeyError), uncollected():
                raise KeyError
            assert not gc.isenabled(), "the inner one does not end the outer one"
        assert gc.isenabled() == before
        with pytest.raises(nrm.NrmError):
            nrm.measure(nn.Sequential(nn.Linear(4, 4), Raising()), torch.ones(1, 4))
        assert gc.isenabled() == before
        nrm.measure(mlp(torch.float32), torch.ones(1, 4), against=torch.zeros(1, 4))
        assert gc.isenabled() == before
    finally:
        (gc.enable if was else gc.disable)()


class Raising(nn.Module):
    """Fails at an op that is not known, with the collector paused."""

    def forward(self, x: Tensor) -> Tensor:
        assert not gc.isenabled()
        return torch.linalg.eigvals(x.T @ x).real
