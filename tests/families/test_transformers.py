"""Transformers as users hand them over, with small random weights in float64: torch's own, Hugging Face, timm.

Each is captured, its value is the model's own, every cut has mass 1, pulling and pushing are adjoint, heads add up, and
total variation stays small. A new family is one line in the table.
"""

from __future__ import annotations

import copy
import functools
import importlib
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nrm
import vision
from nrm.capture import Linear
from nrm.operators import Dense, Grouped

with suppress(pytest.skip.Exception):
    vision.load()  # before transformers and timm, which import it

IDS = torch.randint(3, 50, (2, 7), generator=torch.Generator().manual_seed(1))
MASK = torch.tensor([[1] * 7, [1] * 5 + [0] * 2])
TEXT = {"input_ids": IDS, "attention_mask": MASK}
TYPED = {"input_ids": IDS, "token_type_ids": torch.tensor([[0] * 4 + [1] * 3] * 2), "attention_mask": MASK}
PICTURE = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
SEQUENCE = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
SIZE = {
    "vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32,
    "max_position_embeddings": 32,
}  # fmt: skip
SHARED = {**SIZE, "num_key_value_heads": 2}
VIT = {
    "image_size": 16, "patch_size": 4, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 32,
}  # fmt: skip
DISTIL = {"vocab_size": 50, "dim": 16, "n_layers": 2, "n_heads": 4, "hidden_dim": 32, "max_position_embeddings": 32}
GPT2 = {"vocab_size": 50, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 32}
SWIN = {"image_size": 16, "patch_size": 2, "embed_dim": 8, "depths": [2, 1], "num_heads": [2, 4], "window_size": 4}


@dataclass(frozen=True)
class Family:
    """A model, its inputs, the pattern of its output projections and how many heads the first one receives."""

    build: Callable[[], nn.Module]
    inputs: Any
    projection: str
    heads: int = 4


def huggingface(model: str, config: str, attention: str, **options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        transformers = pytest.importorskip("transformers", reason="transformers is not installed")
        made = getattr(transformers, config)(**options)
        made._attn_implementation = attention
        built: nn.Module = getattr(transformers, model)(made)
        return built

    return build


def torchvision(name: str, *args: Any, **options: Any) -> Callable[[], nn.Module]:
    return lambda: getattr(vision.load().models, name)(*args, **options)


def timm(module: str, name: str, *args: Any, **options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        vision.load()
        pytest.importorskip("timm", reason="timm is not installed")
        return getattr(importlib.import_module(f"timm.models.{module}"), name)(*args, **options)

    return build


class Encoder(nn.Module):
    """A stack of torch's own encoder layers and a head on its first position."""

    def __init__(self, first: bool, layers: int = 2, width: int = 16) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True, norm_first=first, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        return self.head(self.encoder(x, src_key_padding_mask=padding)[:, 0])


class Plain(nn.Module):
    """A layer of multi-head attention by itself."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True, **options)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.attention(x, x, x)[0].mean(1))


def both(
    name: str, model: str, config: str, inputs: Any, projection: str, **options: Any
) -> dict[str, Family]:  # fmt: skip
    """A Hugging Face model with its own attention and with torch's."""
    return {
        f"{name}-{way}": Family(huggingface(model, config, way, **options), inputs, projection)
        for way in ("eager", "sdpa")
    }


PADDED = (SEQUENCE, torch.tensor([[False] * 5, [False] * 3 + [True] * 2]))
FAMILIES: dict[str, Family] = {
    "multihead": Family(Plain, SEQUENCE, "attention.out_proj"),
    "multihead-extra": Family(lambda: Plain(add_bias_kv=True, add_zero_attn=True), SEQUENCE, "attention.out_proj"),
    "encoder-pre": Family(lambda: Encoder(True), SEQUENCE, "*.self_attn.out_proj"),
    "encoder-post": Family(lambda: Encoder(False), PADDED, "*.self_attn.out_proj"),
    **both("bert", "BertForSequenceClassification", "BertConfig", TYPED, "*.attention.output.dense", **SIZE),
    **both("roberta", "RobertaForSequenceClassification", "RobertaConfig", TEXT, "*.attention.output.dense", **SIZE),
    **both("distilbert", "DistilBertForSequenceClassification", "DistilBertConfig", TEXT, "*.out_lin", **DISTIL),
    **both("gpt2", "GPT2LMHeadModel", "GPT2Config", TEXT, "*.attn.c_proj", **GPT2),
    **both("llama", "LlamaForCausalLM", "LlamaConfig", TEXT, "*.o_proj", **SHARED),
    **both("mistral", "MistralForCausalLM", "MistralConfig", TEXT, "*.o_proj", **SHARED, head_dim=4),
    **both("qwen2", "Qwen2ForCausalLM", "Qwen2Config", TEXT, "*.o_proj", **SHARED),
    **both("qwen3", "Qwen3ForCausalLM", "Qwen3Config", TEXT, "*.o_proj", **SHARED, head_dim=8),
    **both("vit", "ViTForImageClassification", "ViTConfig", {"pixel_values": PICTURE}, "*.attention.o*", **VIT),
    **both("deit", "DeiTForImageClassification", "DeiTConfig", {"pixel_values": PICTURE}, "*.attention.o*", **VIT),
    "swin": Family(
        huggingface("SwinForImageClassification", "SwinConfig", "eager", **SWIN), {"pixel_values": PICTURE},
        "*.attention.o*", 2,
    ),
    "torchvision-vit": Family(
        torchvision("VisionTransformer", 16, 4, 2, 4, 16, 32, num_classes=5), PICTURE, "*.self_attention.out_proj"
    ),
    "torchvision-swin": Family(
        torchvision("SwinTransformer", [2, 2], 8, [2, 1], [2, 4], [4, 4], num_classes=5), PICTURE, "*.attn.proj", 2
    ),
    "timm-vit": Family(
        timm("vision_transformer", "VisionTransformer", 16, 4, embed_dim=16, depth=2, num_heads=4, num_classes=5),
        PICTURE, "*.attn.proj",
    ),
    "timm-deit": Family(
        timm("deit", "VisionTransformerDistilled", img_size=16, patch_size=4, embed_dim=16, depth=2, num_heads=4,
             num_classes=5), PICTURE, "*.attn.proj",
    ),
    "timm-swin": Family(
        timm("swin_transformer", "SwinTransformer", 16, 2, embed_dim=8, depths=(2, 1), num_heads=(2, 4), window_size=4,
             num_classes=5), PICTURE, "*.attn.proj", 2,
    ),
}  # fmt: skip


def grown(build: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """A model in float64 whose weights are large enough to matter, biases and norms included."""
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries, while they are imported
        model = build().double().eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.ndim == 1:
                p.copy_(torch.randn_like(p) * 0.1 + ("norm" in name.lower() and name.endswith("weight")))
            elif "embed" not in name and "tok" not in name:
                p.copy_(torch.randn_like(p) * p[0].numel() ** -0.5)
            else:
                p.copy_(torch.randn_like(p))
    return model


def forward(model: nn.Module, inputs: Any) -> Tensor:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if isinstance(inputs, dict):
            result = model(**inputs)
        else:
            result = model(*inputs) if isinstance(inputs, tuple) else model(inputs)
    return result if isinstance(result, Tensor) else result.logits


@pytest.fixture(scope="module", params=FAMILIES.values(), ids=FAMILIES)
def subject(request: pytest.FixtureRequest) -> tuple[Family, nn.Module, nrm.Measure]:
    model = grown(request.param.build)
    return request.param, model, nrm.measure(model, request.param.inputs)


def test_the_value_is_the_models_own(subject: tuple[Family, nn.Module, nrm.Measure]) -> None:
    """Softmax and rotary angles are in single precision in some models, in double in ours."""
    family, model, R = subject
    assert R.rules == "transformer"
    torch.testing.assert_close(R.values(R.output), forward(model, family.inputs), rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore::nrm.NrmWarning")
def test_every_cut_has_mass_one_and_variation_is_bounded(subject: tuple[Family, nn.Module, nrm.Measure]) -> None:
    """Total variation is relative to the explained output, which a random network may have near 0."""
    _, _, R = subject
    check = R.check(strict=False)
    variation = max(max(v) for v in check.variation.values())
    assert check.mass == pytest.approx((1, 1), abs=1e-10)
    assert check.cut_error is not None
    assert check.cut_error < 1e-10
    assert check.sink == (0, 0)
    assert variation < 60 / float(R.value.abs().min().clamp(max=1))
    total = sum(R(part.all) for part in R.inputs)
    torch.testing.assert_close(total, torch.ones(2, dtype=torch.float64))


@pytest.mark.filterwarnings("ignore::nrm.NrmWarning")
def test_heads_add_up_and_pull_is_push(subject: tuple[Family, nn.Module, nrm.Measure]) -> None:
    family, _, R = subject
    low, *more = (layer.input for layer in R.find(family.projection) if _has_heads(R, layer.input))
    heads = R(low.heads)
    assert heads.shape == (2, family.heads)
    torch.testing.assert_close(heads.sum(1), R(low.all))
    torch.testing.assert_close(heads[:, -1], R(low.head(-1)))
    width = R.values(low).shape[-1]
    last = torch.zeros(width, dtype=torch.bool)
    last[width - width // family.heads :] = True
    torch.testing.assert_close(R(low.where(last)), heads[:, -1])
    if more:
        high = more[0]
        table = R(low.heads, high.heads)
        for i in range(2):
            torch.testing.assert_close(R(low.head(i), high.heads), table[:, i])
            torch.testing.assert_close(R(low.heads, high.head(i)), table[:, :, i])


@pytest.mark.filterwarnings("ignore::nrm.NrmWarning")
def test_edges_of_attention_add_up_to_heads(subject: tuple[Family, nn.Module, nrm.Measure]) -> None:
    """Every head has the relevance of its edges, and no walk takes an edge that a mask closes."""
    family, _, R = subject
    low = next(layer for layer in R.find(family.projection) if _has_heads(R, layer.input))
    edges = _edges_below(R, low.name)
    table = R(edges)
    # Windows that are folded into the batch keep the axes of the product; heads are before queries and keys.
    by_head = table.movedim(-3, 1).flatten(2).sum(2)
    torch.testing.assert_close(by_head, R(low.input.heads), rtol=1e-9, atol=1e-12)
    step = R.inner.places.attention(edges.layer)
    assert step is not None
    nodes = R.inner.tape.nodes
    weights = nodes[nodes[step.weights].inputs[0]].value
    if table.shape == weights.shape:
        assert not bool(table[weights == 0].any())


def _edges_below(R: nrm.Measure, name: str) -> nrm.questions.Partition:
    """The edges of the innermost module around an output projection that has an attention step."""
    while name:
        name = name.rpartition(".")[0]
        with suppress(nrm.QuestionError):
            R.plan(R[name].edges)
            return R[name].edges
    raise AssertionError("no module has the attention of this projection")


@pytest.mark.parametrize("name", ["llama-sdpa", "gpt2-eager", "torchvision-swin"])
@pytest.mark.filterwarnings("ignore::nrm.NrmWarning")
def test_edges_of_a_contrast_add_up_to_heads(name: str) -> None:
    family = FAMILIES[name]
    inputs = family.inputs
    text = isinstance(inputs, dict)
    other = {**inputs, "input_ids": torch.where(IDS < 20, IDS + 1, IDS)} if text else inputs.flip(-1)
    R = nrm.measure(grown(family.build), inputs, against=other)
    low = next(layer for layer in R.find(family.projection) if _has_heads(R, layer.input))
    by_head = R(_edges_below(R, low.name)).movedim(-3, 1).flatten(2).sum(2)
    torch.testing.assert_close(by_head, R(low.input.heads), rtol=1e-9, atol=1e-11)


@pytest.mark.filterwarnings("ignore::nrm.NrmWarning")
def test_formulas_and_weights(subject: tuple[Family, nn.Module, nrm.Measure]) -> None:
    """Heads, tokens and their absence; additive relevance of a cut is its share of the levels that it stands for."""
    family, _, R = subject
    low = next(layer.input for layer in R.find(family.projection) if _has_heads(R, layer.input))
    first = next(iter(R.inputs))
    head, part = low.head(0), first.where(torch.arange(R.values(first).shape[-1]) % 2 == 0)
    A, B = nrm.visits(head), nrm.visits(part)
    size = max(max(v) for v in R.check(strict=False).variation.values())
    close = functools.partial(torch.testing.assert_close, rtol=1e-8, atol=1e-10 * size)
    close(R(A), R(head))
    close(1 - R(~B), R(part))
    close(R(A & B), R(head, part))
    close(R(low.heads, A ^ B).sum(1), R(low.all) - R(low.all, A.implies(B) & B.implies(A)))
    close(R(low.heads, B), R(low.heads, part))
    close(R(first, A | B), R(first, head) + R(first, part) - R(first, head, part))
    close(R.dividends(head, part).sum((1, 2)), torch.ones(2, dtype=torch.float64))
    close(R.expect({part: 1.0}, low.heads), R(low.heads, part))
    close(R.additive(head, layers=[low]), R(head))
    close(R.additive(head, ~head), R.additive(low.all))


def _has_heads(R: nrm.Measure, layer: nrm.Layer) -> bool:
    try:
        return "heads" in R[layer].facts
    except nrm.QuestionError:
        return False


@pytest.mark.parametrize(
    "name", ["bert-sdpa", "distilbert-eager", "gpt2-eager", "gpt2-sdpa", "llama-sdpa", "qwen3-eager"]
)
@pytest.mark.filterwarnings("ignore::nrm.NrmWarning")
def test_a_padded_batch_is_its_samples(name: str) -> None:
    family = FAMILIES[name]
    model = grown(family.build)
    R = nrm.measure(model, family.inputs)
    assert torch.count_nonzero(R(R.input)[1, 5:]) == 0
    for sample, length in enumerate((7, 5)):
        one = nrm.measure(model, {k: v[sample : sample + 1, :length] for k, v in family.inputs.items()})
        torch.testing.assert_close(one.value[0], R.value[sample], rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(one(one.input)[0], R(R.input)[sample, :length], rtol=1e-5, atol=1e-6)
        assert one.target.tolist()[0] == R.target.tolist()[sample]  # type: ignore[union-attr]


@pytest.mark.filterwarnings("ignore::nrm.NrmWarning")
@pytest.mark.parametrize(
    ("model", "options"),
    [("Mixtral", {"num_local_experts": 5}),
     ("Qwen3Moe", {"num_experts": 5, "moe_intermediate_size": 6, "decoder_sparse_step": 1, "head_dim": 4})],
)  # fmt: skip
def test_experts_at_once_and_one_by_one_are_the_same(model: str, options: dict[str, int]) -> None:
    """Tokens are sorted by expert, of which some have none, and every group has weights of its own."""
    build = huggingface(f"{model}ForCausalLM", f"{model}Config", "eager", **SHARED, **options, num_experts_per_tok=2)
    network = grown(build).float()
    measured = {}
    for way in ("grouped_mm", "eager"):
        network.config._experts_implementation = way
        measured[way] = nrm.measure(network, TEXT, dtype=torch.float64)
    once, each = measured.values()
    kinds = [{type(node.op.map) for node in R.inner.tape.nodes if isinstance(node.op, Linear)} for R in (once, each)]
    assert Grouped in kinds[0] - kinds[1]
    torch.testing.assert_close(once(once.input), each(each.input), rtol=1e-9, atol=1e-12)
    assert once.check(strict=False).mass == pytest.approx((1, 1), abs=1e-9)
    low, high = (once[f"model.layers.{k}.mlp"] for k in (0, 1))
    table = once(low.positions, high.positions)
    torch.testing.assert_close(table, each(low.positions, high.positions), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(once(low.position(2), high.positions), table[:, 2])


@pytest.mark.filterwarnings("ignore::nrm.NrmWarning")
def test_next_tokens() -> None:
    family = FAMILIES["llama-sdpa"]
    model = grown(family.build)
    logits = forward(model, family.inputs)
    R = nrm.measure(model, family.inputs)
    assert R.target.tolist() == [[6, int(logits[0, 6].argmax())], [4, int(logits[1, 4].argmax())]]  # type: ignore[union-attr]
    last = nrm.measure(model, family.inputs, target=(-1, 3))
    assert last.target.tolist() == [[6, 3], [4, 3]]  # type: ignore[union-attr]
    torch.testing.assert_close(last.value, torch.stack([logits[0, 6, 3], logits[1, 4, 3]]), rtol=1e-5, atol=1e-5)
    middle = nrm.measure(model, family.inputs, target=(2, 3))
    assert torch.count_nonzero(middle(middle.input.positions)[:, 3:]) == 0  # tokens behind it are not seen
    with pytest.raises(nrm.QuestionError, match="5 tokens"):
        nrm.measure(model, family.inputs, target=(-6, 3))
    difference = nrm.measure(model, family.inputs, output=lambda o: o.logits[:, 4, 3] - o.logits[:, 4, 8])
    torch.testing.assert_close(difference.value, logits[:, 4, 3] - logits[:, 4, 8], rtol=1e-5, atol=1e-5)
    parts = [nrm.measure(model, family.inputs, target=(4, token)) for token in (3, 8)]
    shares = [part(part.input) * part.value[:, None, None] for part in parts]
    torch.testing.assert_close(
        difference(difference.input) * difference.value[:, None, None], shares[0] - shares[1], rtol=1e-5, atol=1e-6
    )


def test_the_input_of_integers_is_their_embedding() -> None:
    family = FAMILIES["bert-sdpa"]
    R = nrm.measure(grown(family.build), TYPED)
    assert R.values(R.input).shape == (2, 7, 16)
    names = [str(part) for part in R.inputs]
    assert names[:3] == [
        "bert.embeddings.word_embeddings", "bert.embeddings.token_type_embeddings",
        "bert.embeddings.position_embeddings.weight",
    ]  # fmt: skip
    torch.testing.assert_close(R(R["input.input_ids"]), R(R.input))
    torch.testing.assert_close(R(R["input.token_type_ids"].positions).sum(1), R(R[names[1]].all))


TOKENS = {
    "vit-sdpa": ["vit.embeddings.cls_token", "vit.embeddings.position_embeddings"],
    "deit-eager": ["cls_token", "distillation_token", "position_embeddings"],
    "torchvision-vit": ["class_token", "encoder.pos_embedding"],
    "timm-vit": ["cls_token", "pos_embed"],
    "timm-deit": ["cls_token", "dist_token", "pos_embed"],
}


@pytest.mark.parametrize("name", TOKENS)
@pytest.mark.filterwarnings("ignore::nrm.NrmWarning")
def test_class_tokens_and_positions_are_named_inputs(name: str) -> None:
    R = nrm.measure(grown(FAMILIES[name].build), FAMILIES[name].inputs)
    names = [str(part) for part in R.inputs]
    for token in TOKENS[name]:
        (found,) = [n for n in names if n.endswith(token)]
        assert R(R[found]).shape[0] == 2
        assert bool(R(R[found].all).abs().min() > 1e-4)


def test_a_class_token_has_the_relevance_that_it_has_as_an_input() -> None:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token, self.places = nn.Parameter(torch.randn(1, 1, 16)), nn.Parameter(torch.randn(1, 6, 16))
            self.encoder = Encoder(True)

        def forward(self, x: Tensor, token: Tensor | None = None, places: Tensor | None = None) -> Tensor:
            token = self.token.expand(len(x), -1, -1) if token is None else token
            return self.encoder(torch.cat([token, x], 1) + (self.places if places is None else places))

    model = grown(Reader)
    given = (SEQUENCE, model.token.detach().expand(2, -1, -1), model.places.detach().expand(2, -1, -1))
    R, S = nrm.measure(model, SEQUENCE, target=1), nrm.measure(model, given, target=1)
    for name, entry in (("input", 0), ("token", 1), ("places", 2)):
        torch.testing.assert_close(R(R[name]), S(S[f"input[{entry}]"]))
        assert bool(R(R[name].all).abs().min() > 1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype) -> None:
    family = FAMILIES["llama-sdpa"]
    model = grown(family.build).to(dtype)
    R = nrm.measure(model, family.inputs)
    check = R.check(strict=False)
    assert R(R.input).dtype == torch.float32
    assert check.mass == pytest.approx((1, 1), abs=1e-4)
    assert next(model.parameters()).dtype == dtype


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["llama-sdpa", "gpt2-eager", "bert-sdpa"])
@pytest.mark.filterwarnings("ignore::nrm.NrmWarning")
def test_half_precision_is_exact_and_no_weight_is_there_twice(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    family = FAMILIES[name]
    model = grown(family.build).to(dtype)
    monkeypatch.setattr(nrm.operators.dense, "PIECE", 40)  # pieces of a row or two
    R, exact = nrm.measure(model, family.inputs), nrm.measure(copy.deepcopy(model).float(), family.inputs)
    torch.testing.assert_close(R(R.input), exact(exact.input), rtol=1e-4, atol=1e-5)
    maps = [n.op.map for n in R.inner.network.tape.nodes if isinstance(getattr(n.op, "map", None), Dense)]
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    assert len(maps) > 4
    assert all(m.weight.dtype == dtype and m.weight.untyped_storage().data_ptr() in own for m in maps)


@pytest.mark.parametrize("rules", ["epsilon-plus-flat", nrm.Gamma(0.25)])
@pytest.mark.filterwarnings("ignore::nrm.NrmWarning")
def test_rules_change_the_weights_of_a_model_in_half_precision(rules: str | nrm.rules.Rule) -> None:
    family = FAMILIES["llama-sdpa"]
    model = grown(family.build).to(torch.bfloat16)
    models = model, copy.deepcopy(model).double()
    R, exact = (nrm.measure(m, family.inputs, rules=rules, dtype=torch.float64) for m in models)
    torch.testing.assert_close(R(R.input), exact(exact.input), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("seed", [0, 3, 7])
@pytest.mark.filterwarnings("ignore::nrm.NrmWarning")
def test_twelve_blocks_stay_bounded(seed: int) -> None:
    """Biases as inputs and layer norm as a linear step: both halves of the cure are needed.

    Total variation scales with 1 / |f|, so it is compared at the size of a usual output. Seed 0 explains an output of
    0.06, a fiftieth of that.
    """
    torch.manual_seed(seed)
    model = grown(lambda: Encoder(True, layers=12, width=32), seed)
    x = torch.randn(1, 10, 32, dtype=torch.float64)
    R = nrm.measure(model, x)
    usual = float(R.value.abs() / R.values(R.output).square().mean().sqrt())

    def variation(R: nrm.Measure) -> float:
        return usual * max(max(v) for v in R.check(strict=False).variation.values())

    assert R.check(strict=False).mass == pytest.approx((1,), abs=1e-9)
    assert variation(R) < 30
    assert variation(nrm.measure(model, x, rules="transformer", bias="ignore")) > 1e6
    assert variation(nrm.measure(model, x, rules={"*": "transformer", "norm": nrm.Pass()})) > 2 * variation(R)


def test_heads_that_are_not_known_can_be_told() -> None:
    model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 2)).double()
    R = nrm.measure(model, torch.rand(1, 4, dtype=torch.float64))
    with pytest.raises(nrm.QuestionError, match=r"not known[\s\S]*with_heads"):
        R(R["0"].heads)
    two = R["0"].with_heads(2)
    torch.testing.assert_close(R(two.heads), R(R["0"]).reshape(1, 2, 3).sum(2))
    assert repr(two.head(1)) == "nrm.layer('0').with_heads(2).head(1)"
    with pytest.raises(nrm.QuestionError, match="divides"):
        R(R["0"].with_heads(4).heads)
