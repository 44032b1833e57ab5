"""Tokens of models with several embeddings: word, position and type of a token together, in one call."""

from __future__ import annotations

import importlib
import warnings
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nrm
import vision

pytest.importorskip("transformers")
with suppress(pytest.skip.Exception):
    vision.load()  # which transformers imports
transformers: Any = importlib.import_module("transformers")

SIZES: dict[str, Any] = {
    "vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
    "max_position_embeddings": 24, "num_labels": 3,
}  # fmt: skip
OTHER: dict[str, dict[str, Any]] = {
    "Bert": SIZES, "Roberta": SIZES, "Electra": SIZES | {"embedding_size": 16}, "MPNet": SIZES,
    "Albert": SIZES | {"embedding_size": 12}, "DebertaV2": SIZES | {"type_vocab_size": 2},
    "Llama": SIZES | {"num_key_value_heads": 2, "pad_token_id": 0},
    "DistilBert": {"vocab_size": 40, "dim": 16, "hidden_dim": 24, "n_layers": 2, "n_heads": 2},
    "GPT2": {"vocab_size": 40, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 24, "pad_token_id": 0,
             "bos_token_id": 1, "eos_token_id": 2},
}  # fmt: skip
DRAINS = (".bias", ".offset", ".remainder", ".sink")


def ids(batch: int = 2) -> Tensor:
    return torch.randint(5, 40, (batch, 7), generator=torch.Generator().manual_seed(1))


def make(family: str, head: str = "ForSequenceClassification", **changes: Any) -> nn.Module:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some families are still scripted
        config = getattr(transformers, f"{family}Config")(**OTHER[family] | changes)
        model: nn.Module = getattr(transformers, family + head)(config).double().eval()
    return model


def embeddings(R: nrm.Measure) -> list[nrm.Layer]:
    """What walks begin at for every token, without biases and the like."""
    return [part for part in R.inputs if not part.name.endswith(DRAINS) and R(part).ndim == 3]


@pytest.mark.parametrize("family", OTHER)
def test_embeddings_are_joined_by_token(family: str) -> None:
    R = nrm.measure(make(family), {"input_ids": ids()})
    assert len(embeddings(R)) > 1 or family == "Llama"
    together: Any = sum(R(part.positions) for part in embeddings(R))
    assert R(R.tokens).shape == (2, 7)
    torch.testing.assert_close(R(R.tokens), together)
    if family == "Llama":
        torch.testing.assert_close(R(R.tokens), R(R.input.positions))
    else:
        assert not torch.allclose(R(R.tokens), R(R.input.positions), atol=1e-3)
    # An axis like any other: a token is an event, and other questions go with it.
    layer = R["classifier" if family == "Bert" else R.layers[-1].name]
    torch.testing.assert_close(R(R.tokens, layer.channels).sum(2), R(R.tokens))
    torch.testing.assert_close(R(R.tokens[3]), R(R.tokens)[:, 3])


@pytest.mark.parametrize("family", ["Bert", "Llama"])
def test_tokens_have_the_names_of_words(family: str) -> None:
    pytest.importorskip("pandas")
    words = ["a", "dog", "was", "very", "hun", "gry", "."]
    R = nrm.measure(make(family), {"input_ids": ids()}, labels={"input": words})
    assert list(R.table(R.tokens).to_pandas().iloc[:7, 0]) == words
    flow = R.flows(R.tokens, R[R.layers[-1].name].channels, k=1)[0][0]
    assert flow.labels[0] in words


WORDS = ["a", "dog", "was", "very", "hun", "gry", "."]


@pytest.mark.parametrize("family", OTHER)
def test_layers_with_a_position_for_each_token_have_their_names(family: str) -> None:
    """Blocks, norms, perceptrons and what attention gives; what tokens lie on is never another axis of that size."""
    R = nrm.measure(make(family), {"input_ids": ids()}, labels={"input": WORDS})
    reached = R.inner.network.rules.reached
    rows = [
        n.name
        for n in R.inner.tape.nodes
        if reached[n.index] and n.sample == 0 and n.shape[1:2] == (7,) and n.value.ndim == 3
    ]
    assert len(rows) > 12
    for name in rows:
        assert [list(names) for names in R.table(R[name].positions).labels.values()] == [WORDS], name
    inner = R[rows[len(rows) // 2]]
    flow = R.flows(R.tokens, inner.positions, k=1, sign="abs")[0][0]
    at = [WORDS.index(str(label)) for label in flow.labels]
    assert R(R.tokens[at[0]], inner.position(at[1]))[0].item() == pytest.approx(flow.relevance)


@pytest.mark.parametrize(
    ("mix", "named"),
    [
        (lambda x: x + x.flip(1), True), (lambda x: x.transpose(1, 2).relu().transpose(1, 2), True),
        (lambda x: (x.reshape(-1, 4) * 2).relu().reshape(x.shape), True),
        (lambda x: torch.softmax(x @ x.mT, -1) @ x, True), (lambda x: x.mT @ x, False),
        (lambda x: x.flip(1), False), (lambda x: x.roll(1, 1), False), (lambda x: x.cumsum(1), False),
        (lambda x: x[:, [2, 0, 1, 3]], False), (lambda x: x.sort(1)[0], False), (lambda x: x.mT + x, False),
        (lambda x: torch.cat([x[:, 1:], x[:, :1]], 1), False),
    ],
)  # fmt: skip
def test_only_places_of_tokens_have_their_names(mix: Any, named: bool) -> None:
    """Four tokens with four channels: the size of an axis says nothing. What was turned round has other names."""

    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.last, self.head = nn.Embedding(9, 4), nn.Identity(), nn.Linear(4, 2)

        def forward(self, ids: Tensor) -> Tensor:
            made: Tensor = self.head(self.last(mix(self.words(ids))).relu().mean(1))
            return made

    R = nrm.measure(
        Turned().double(), torch.tensor([[3, 1, 4, 1], [5, 2, 6, 5]]), rules="lrp-0", bias="input",
        labels={"input": ["one", "two", "three", "four"]},
    )  # fmt: skip
    found = R.table(R["last"]).labels
    assert found == ({"last axis 0": ("one", "two", "three", "four")} if named else {})


def test_types_of_tokens_are_joined() -> None:
    types = torch.tensor([[0, 0, 0, 1, 1, 1, 1]] * 2)
    R = nrm.measure(make("Bert"), {"input_ids": ids(), "token_type_ids": types, "attention_mask": torch.ones(2, 7)})
    names = ("word_embeddings", "token_type_embeddings", "position_embeddings.weight")
    together: Any = sum(R(R[f"bert.embeddings.{name}"].positions) for name in names)
    torch.testing.assert_close(R(R.tokens), together)
    assert str(R.tokens) == "bert.embeddings/add#1.positions"


class Bag(nn.Module):
    """Words and what a function adds to them."""

    def __init__(self, mix: Any) -> None:
        super().__init__()
        self.words, self.places, self.mix = nn.Embedding(9, 4), nn.Embedding(6, 4), mix
        self.kinds, self.dense, self.head = nn.Embedding(2, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, ids: Tensor) -> Tensor:
        places = self.places(torch.arange(ids.shape[1]))
        mixed: Tensor = self.mix(self, self.words(ids), places)
        logits: Tensor = self.head(mixed.relu().mean(1))
        return logits


@pytest.mark.parametrize(
    ("mix", "joined"), [
        (lambda m, w, p: w + p, True),
        (lambda m, w, p: p + w, True),
        (lambda m, w, p: (p + m.kinds(torch.zeros(3, dtype=torch.long))) * 0.5 + w * 2, True),
        (lambda m, w, p: w + m.dense(w), False),
        (lambda m, w, p: w.flip(1) + p, False),
        (lambda m, w, p: m.dense(w) + p, False),
        (lambda m, w, p: torch.cat([w, p.expand(len(w), -1, -1)], 1), False),
    ], ids=["words first", "places first", "scaled", "residual", "turned round", "behind a layer", "side by side"],
)  # fmt: skip
def test_only_sums_of_embeddings_are_joined(mix: Any, joined: bool) -> None:
    torch.manual_seed(0)
    R = nrm.measure(Bag(mix).double(), torch.tensor([[3, 1, 4], [1, 5, 2]]), rules="lrp-0", bias="input")
    tokens = R(R.tokens)
    assert tokens.shape == (2, 3)
    expected: Any = sum(R(part.positions) for part in (embeddings(R) if joined else [R.input]))
    torch.testing.assert_close(tokens, expected)


def test_what_has_no_tokens() -> None:
    R = nrm.measure(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(18, 2)), torch.rand(1, 1, 5, 5))
    with pytest.raises(nrm.QuestionError, match=r"not a sequence of tokens[\s\S]*positions"):
        _ = R.tokens
    torch.manual_seed(0)
    config = transformers.T5Config(vocab_size=40, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2)
    T5 = transformers.T5ForConditionalGeneration(config).double().eval()
    T = nrm.measure(T5, {"input_ids": ids(), "decoder_input_ids": ids()[:, :3]}, target=(2, 7))
    with pytest.raises(nrm.QuestionError, match=r"several sequences of tokens[\s\S]*try: +R\["):
        _ = T.tokens


# ---- heads -----------------------------------------------------------------------------------------------------------


def test_heads() -> None:
    x = {"input_ids": ids()}
    word = nrm.measure(make("Bert", "ForMaskedLM"), x, target=(3, 17))
    assert word(word.tokens).abs().argmax(1).tolist() == [3, 3]
    label = nrm.measure(make("Bert", "ForTokenClassification"), x, target=([2, 5], 1))
    assert label(label.tokens).abs().argmax(1).tolist() == [2, 5]
    answer = make("Bert", "ForQuestionAnswering", num_labels=2)
    begin = nrm.measure(answer, x, output="start_logits")
    assert begin.target.shape == (2,)  # type: ignore[union-attr]
    span = nrm.measure(answer, x, output=lambda o: o.start_logits[:, 2] + o.end_logits[:, 4])
    both = span(span.tokens).abs().topk(2, dim=1).indices.sort(1).values
    assert both.tolist() == [[2, 4], [2, 4]]


def test_every_generated_token_has_its_sources() -> None:
    model = make("Llama", "ForCausalLM", eos_token_id=None)
    prompt = ids(1)
    whole = model.generate(prompt, max_new_tokens=4, do_sample=False, attention_mask=torch.ones_like(prompt))  # type: ignore[operator]
    places = list(range(7, 11))
    R = nrm.measure(model, {"input_ids": whole.repeat(4, 1)}, target=([p - 1 for p in places], whole[0, 7:].tolist()))
    table = R(R.tokens)
    assert table.shape == (4, 11)
    for row, place in zip(table, places, strict=True):
        assert not row[place:].any()  # a token comes from those before it
        alone = nrm.measure(model, {"input_ids": whole[:, :place]}, target=(-1, int(whole[0, place])))
        torch.testing.assert_close(row[:place], alone(alone.tokens)[0])
