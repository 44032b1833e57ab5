"""Estimates: what a measure takes is known from shapes alone, to the byte."""

from __future__ import annotations

import copy
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nrm
import vision
from nrm.shapes import Shapes, address_of, is_shape

with suppress(pytest.skip.Exception):
    vision.load()  # before transformers, which imports it

SIZE = {"vocab_size": 300, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 128}  # fmt: skip


class Counted(Shapes):
    """Counts what tensors with numbers take."""

    def _is_large(self, *_: Any) -> bool:
        return False


def config() -> Any:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    return transformers.LlamaConfig(**SIZE)


def llama(dtype: torch.dtype = torch.float32) -> nn.Module:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config()).to(dtype).eval()  # type: ignore[no-any-return]


def images() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3), nn.ReLU(),
        nn.Flatten(), nn.Linear(8 * 49, 10),
    ).eval()  # fmt: skip


class Block(nn.Module):
    """A residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(32, 128), nn.Linear(128, 32)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(x)))  # type: ignore[no-any-return]


class Reader(nn.Module):
    """A small network that reads tokens, in blocks."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens = nn.Embedding(50, 32)
        self.blocks = nn.ModuleList(Block() for _ in range(6))
        self.head = nn.Linear(32, 5)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))  # type: ignore[no-any-return]


def counted(model: nn.Module, inputs: Tensor, ask: Any, **options: Any) -> tuple[int, int, int]:
    """The peaks of a measure and its first question, and what is held then, with numbers."""
    shapes = Counted()
    for tensor in [*model.parameters(), *model.buffers(), inputs]:
        shapes.count(tensor)
    begin = shapes.now
    with shapes:
        shapes.forget_peak()
        R = nrm.measure(model, inputs, **options)
        first = shapes.peak - begin
        shapes.forget_peak()
        answer = ask(R)
        return first, shapes.peak - begin, shapes.now - begin + 0 * answer.numel()


IDS = torch.randint(3, 300, (1, 96), generator=torch.Generator().manual_seed(0))
PICTURE = torch.rand(1, 3, 18, 18, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("dtype", "options"),
    [(torch.float32, {}), (torch.float32, {"memory": 2**20}), (torch.bfloat16, {"memory": 2**20})],
    ids=["kept", "lean", "half"],
)
@pytest.mark.filterwarnings("ignore::nrm.NrmWarning")
def test_an_estimate_is_what_a_language_model_takes(dtype: torch.dtype, options: dict[str, Any]) -> None:
    found = nrm.estimate(llama(dtype), tokens=96, **options)
    first, then, held = counted(llama(dtype), IDS, lambda R: R(R.input.positions), **options)
    assert found.capture == pytest.approx(first, rel=0.02)
    assert found.question == pytest.approx(then, rel=0.02)
    assert found.held == pytest.approx(held, rel=0.02)
    assert (found.blocks > 0) == bool(options)
    assert found.weights == sum(
        p.numel() * p.element_size() for p in [*llama(dtype).parameters(), *llama(dtype).buffers()]
    )


@pytest.mark.filterwarnings("ignore::nrm.NrmWarning")
def test_an_estimate_is_what_a_contrast_takes() -> None:
    other = IDS.clone()
    other[0, -2] = 5
    found = nrm.estimate(llama(), tokens=96, against=True, memory=2**20)
    first, then, _ = counted(llama(), IDS, lambda R: R(R.input.positions), against=other, memory=2**20)
    assert found.capture == pytest.approx(first, rel=0.02)
    assert found.question == pytest.approx(then, rel=0.05)


@pytest.mark.parametrize("rules", ["lrp-0", "epsilon-plus-flat"])
@pytest.mark.filterwarnings("ignore::nrm.NrmWarning")
def test_an_estimate_is_what_an_image_network_takes(rules: str) -> None:
    pairs = lambda R: R(R["2"].channels, R["5"].channels)  # noqa: E731
    found = nrm.estimate(images(), (1, 3, 18, 18), question=pairs, rules=rules, memory="1 GiB")
    first, then, _ = counted(images(), PICTURE, pairs, rules=rules, memory="1 GiB")
    assert found.capture == pytest.approx(first, rel=0.05)
    assert found.question == pytest.approx(then, rel=0.1)
    assert nrm.estimate(images(), PICTURE, question=pairs, rules=rules, memory="1 GiB") == found


def test_a_question_is_a_function_or_what_a_measure_takes() -> None:
    layers = nrm.layer("2").channels, nrm.layer("5").channels
    found = [
        nrm.estimate(images(), PICTURE, question=q, memory="1 GiB") for q in (layers, lambda R: R(*layers), nrm.input)
    ]
    assert found[0] == found[1] != found[2]
    assert nrm.estimate(images(), PICTURE, memory="1 GiB") == found[2]


def test_a_configuration_a_model_without_weights_and_a_model_take_the_same() -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    with torch.device("meta"):
        empty = transformers.LlamaForCausalLM(config()).eval()
    model = llama()
    before = {name: (id(p), p._version, p.data_ptr()) for name, p in model.named_parameters()}
    attributes = {name: dict(module.__dict__) for name, module in model.named_modules()}
    found = [nrm.estimate(m, tokens=16, memory="1 GiB") for m in (config(), empty, model)]
    for other in found[1:]:
        numbers, expected = ((f.weights, f.capture, f.question, f.passes) for f in (other, found[0]))
        assert numbers == pytest.approx(expected, rel=0.01)
    assert [f.missing == 0 for f in found] == [False, False, True]
    assert before == {name: (id(p), p._version, p.data_ptr()) for name, p in model.named_parameters()}
    assert attributes == {name: dict(module.__dict__) for name, module in model.named_modules()}
    assert all(p.is_meta and not is_shape(p) for p in empty.parameters())


def test_a_model_without_weights_is_not_measured() -> None:
    with torch.device("meta"):
        model = nn.Linear(3, 2)
    with pytest.raises(nrm.CaptureError, match=r"nrm\.estimate\(model, inputs\)"):
        nrm.measure(model, torch.ones(1, 3))


@pytest.mark.parametrize("kind", ["memory", "tokens", "weights"])
def test_what_does_not_fit_says_what_would(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Reader().eval()
    kept, lean = (nrm.estimate(model, tokens=200, memory=memory) for memory in ("1 GiB", 2**16))
    assert kept.fits
    assert not kept.advice
    free = {"memory": (lean.peak + kept.peak) // 2, "tokens": lean.peak // 2, "weights": 10**4}[kind]
    home = sys.modules[nrm.Estimate.__module__]
    monkeypatch.setattr(home, "available", lambda: free)
    monkeypatch.setattr(home, "TIGHT", 2**16)
    with torch.device("meta"):
        empty = Reader().eval()
    found = nrm.estimate(empty if kind == "weights" else model, tokens=200, memory="1 GiB")
    assert not found.fits
    assert "does not fit" in str(found)
    (advice,) = found.advice
    if kind == "tokens":
        longest = int(advice.split("about ")[1].split()[0])
        assert nrm.estimate(model, tokens=longest, memory=2**16).fits
        assert not nrm.estimate(model, tokens=longest + 30, memory=2**16).fits
    assert {"memory": "memory=", "tokens": "tokens", "weights": "weights alone"}[kind] in advice
    assert advice in str(found)


def test_what_does_not_fit_is_refused_before_it_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = Reader().eval(), torch.zeros(1, 300, dtype=torch.long)
    kept, lean = (nrm.estimate(model, ids, memory=memory) for memory in ("1 GiB", 2**16))
    monkeypatch.setattr(sys.modules[nrm.Estimate.__module__], "available", lambda: (kept.peak + lean.peak) // 2)
    monkeypatch.setattr(sys.modules[nrm.Estimate.__module__], "TIGHT", 2**16)
    before = {name: (id(p), p._version) for name, p in model.named_parameters()}
    with pytest.raises(nrm.MemoryLimitError, match="more memory than there is") as caught:
        nrm.measure(model, ids, memory="1 GiB")
    assert "beyond the weights" in str(caught.value)
    assert "memory=" in str(caught.value)
    assert before == {name: (id(p), p._version) for name, p in model.named_parameters()}
    assert nrm.measure(model, ids, memory=2**16).inner.tape.batch == 1
    monkeypatch.setattr(sys.modules[nrm.Estimate.__module__], "available", lambda: 100 * kept.peak)
    assert nrm.measure(model, ids, memory="1 GiB").inner.tape.batch == 1


def test_shapes_that_depend_on_numbers_are_refused() -> None:
    class Chooses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            y = self.layer(x)
            return y.masked_select(y > 0).sum().expand(1, 1) + y

    with pytest.raises(nrm.QuestionError, match="depends on numbers"):
        nrm.estimate(Chooses().eval(), (1, 4))


def test_an_estimate_is_about_one_input() -> None:
    for options in ({}, {"inputs": PICTURE, "tokens": 3}):
        with pytest.raises(nrm.QuestionError, match="about one input"):
            nrm.estimate(images(), **options)  # type: ignore[arg-type]
    with pytest.raises(nrm.QuestionError, match="not a model"):
        nrm.estimate({"hidden_size": 3}, tokens=3)


@pytest.mark.filterwarnings("ignore::nrm.NrmWarning")
def test_a_configuration_of_an_encoder_and_a_decoder_and_a_shape_of_tokens() -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    kinds = {"vocab_size": 50, "d_model": 16, "d_kv": 4, "d_ff": 32, "num_layers": 1, "num_heads": 4}
    t5 = transformers.T5Config(**kinds, decoder_start_token_id=0)
    made = transformers.T5ForConditionalGeneration(t5).eval()
    assert nrm.estimate(t5, tokens=8).peak == nrm.estimate(made, tokens=8).peak
    assert nrm.estimate(llama(), (1, 24)).peak == nrm.estimate(llama(), tokens=24).peak
    with pytest.raises(nrm.QuestionError, match="no model of transformers has this configuration"):
        nrm.estimate(transformers.PretrainedConfig(), tokens=8)


def test_weights_without_a_twin_are_refused(tmp_path: Path) -> None:
    accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
    model = images()
    first = model.get_submodule("0")
    first.weight = type("Packed", (nn.Parameter,), {})(first.get_parameter("weight").detach())
    with pytest.raises(nrm.QuestionError, match="weights of type Packed"):
        nrm.estimate(model, PICTURE)
    with pytest.raises(nrm.QuestionError, match="weights that are offloaded"):
        nrm.estimate(accelerate.disk_offload(images(), tmp_path), PICTURE)


def test_shapes_have_addresses_and_usual_numbers() -> None:
    shapes = Shapes()
    x, y = (shapes.shape_of(torch.empty(3, 4, device="meta")) for _ in range(2))
    assert address_of(x) != address_of(y)
    with shapes:
        assert address_of(x[1:]) == address_of(x)
        assert bool(torch.isfinite(x).all())
        assert not bool(torch.isnan(x).any())
        assert float(x.amin()) < 0
        assert torch.equal(x, y)
        assert len(x.nonzero()) == 12
        large = torch.arange(3000)[:, None] >= torch.arange(3000)
        small = torch.arange(3)[:, None] >= torch.arange(3)
        assert (is_shape(large), is_shape(small)) == (True, False)
        assert int(small.sum()) == 6
        now = shapes.now
        z = x @ y.T
        assert (shapes.now - now, z.shape, shapes.flops) == (36, (3, 3), 72.0)
        del z
        assert shapes.now == now
    assert copy.copy(x.shape) == (3, 4)
