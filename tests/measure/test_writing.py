"""Generated text as people ask for it: in a stream, against another prompt, with real tokenizers, lean, in half."""

from __future__ import annotations

import copy
import gc
import warnings
import weakref
from typing import Any

import pytest
import torch

import nrm
from measure.test_generation import PROMPT, SIZE, writer

pytestmark = pytest.mark.filterwarnings("ignore::nrm.NrmWarning")
WORDS = ["<pad>", "<s>", "</s>", "<user>", "<model>", "the", "cat", "sat", "on", "a", "mat", "dog", "."]
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('no system here') }}"
    "{% endif %}{{ '<user> ' if m['role'] == 'user' else '<model> ' }}{{ m['content'] }}{% if not loop.last or "
    "m['role'] == 'user' %} </s> {% endif %}{% endfor %}{% if add_generation_prompt %}<model>{% endif %}"
)


def make_tokenizer() -> Any:
    """A tokenizer of transformers: words, a mark put before every text, padding on the left, a chat template."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    made = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<pad>")  # type: ignore[attr-defined]
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    found = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", pad_token="<pad>", padding_side="left",
        additional_special_tokens=["<user>", "<model>"],
    )  # fmt: skip
    found.chat_template = TEMPLATE
    return found


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return make_tokenizer()


@pytest.mark.parametrize("kind", ["Llama", "GPT2"])
@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({}, 19), ({"do_sample": True, "top_k": 20}, 19),
        ({"do_sample": True, "min_new_tokens": 9, "eos_token_id": list(range(15, 40))}, 10),
    ],
)  # fmt: skip
def test_a_stream_has_the_rows_of_the_table(kind: str, options: dict[str, Any], count: int) -> None:
    model = writer(kind)
    torch.manual_seed(3)
    whole = nrm.generated(model, None, PROMPT, tokens=19, options=options)
    torch.manual_seed(3)
    stream = nrm.generated(model, None, PROMPT, tokens=19, options=options, stream=True)
    rows = []
    for g, (text, shares, value) in enumerate(stream):
        assert text == whole.written[g]
        torch.testing.assert_close(shares, whole.relevance[g, : 6 + g], rtol=1e-6, atol=1e-9)
        assert value == pytest.approx(float(whole.values[g]), rel=1e-9)
        rows.append(shares)
        assert stream.tokens == whole.tokens[: 7 + g]
        assert len(stream.generated) == g + 1
    assert count <= len(rows) == len(whole) <= (19 if count == 19 else 14)
    assert all(torch.equal(a.relevance, b) for a, b in zip(stream.generated.rows(), rows, strict=True))
    found = stream.generated
    torch.testing.assert_close(found.relevance, whole.relevance, rtol=1e-6, atol=1e-9)
    assert (found.tokens, found.prompt) == (whole.tokens, 6)
    assert torch.equal(found.ids, whole.ids)
    assert f"{len(rows)} tokens behind 6" in repr(stream)


def test_a_stream_keeps_one_tape() -> None:
    """What was captured for a piece is gone when the next one is captured."""
    stream = nrm.generated(writer(), None, PROMPT, tokens=12, stream=True)
    seen: list[weakref.ref[Any]] = []
    for _ in stream:
        measure = stream.generated.measure
        if not seen or seen[-1]() is not measure:
            seen.append(weakref.ref(measure))
            gc.collect()
        del measure
        assert sum(one() is not None for one in seen) == 1
    assert len(seen) == 4


def test_a_stream_that_is_left_has_what_came() -> None:
    model = writer()
    stream = nrm.generated(model, None, PROMPT, answer=[5, 9, 5, 7], stream=True)
    with pytest.raises(nrm.QuestionError, match="nothing was generated"):
        _ = stream.generated
    assert next(stream).text == "5"
    next(stream)
    some, whole = stream.generated, nrm.generated(model, None, PROMPT, answer=[5, 9, 5, 7])
    assert some.written == ("5", "9")
    torch.testing.assert_close(some.relevance, whole.relevance[:2, :7], rtol=1e-6, atol=1e-9)


class StopError(Exception):
    """Somebody does not want it any more."""


@pytest.mark.parametrize("error", [StopError, KeyboardInterrupt])
@pytest.mark.parametrize("stream", [False, True])
def test_whoever_stops_finds_the_model_as_it_was(error: type[BaseException], stream: Any) -> None:
    model = writer()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    config, own = model.generation_config.to_dict(), {name: set(vars(m)) for name, m in model.named_modules()}
    told = []

    def listen(done: int, total: int | None) -> None:
        told.append((done, total))
        if done == 3:
            raise error

    def work() -> None:
        found: Any = nrm.generated(model, None, PROMPT, tokens=8, stream=stream, progress=listen)
        list(found)

    with pytest.raises(error):
        work()
    assert told == [(k, 8) for k in range(4)]
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert model.generation_config.to_dict() == config
    assert {name: set(vars(m)) for name, m in model.named_modules()} == own
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert len(nrm.generated(model, None, PROMPT, tokens=2)) == 2


def test_a_bar_is_shown_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    nrm.generated(writer(), None, PROMPT, tokens=3, progress=False)
    assert capsys.readouterr().err == ""
    nrm.generated(writer(), None, PROMPT, tokens=3, progress=True)
    assert "tokens" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["Llama", "GPT2", "Gemma2"])
@pytest.mark.parametrize("memory", ["1 GiB", 2**19])
@pytest.mark.parametrize("stream", [False, True])
def test_against_another_prompt(kind: str, memory: str | int, stream: bool) -> None:
    """Every row is the contrast of one token, as a measure has it; all of it begins in the tokens that differ."""
    model, other = writer(kind), PROMPT.clone()
    other[0, 2], other[0, 4] = 5, 9
    answer = torch.tensor([7, 8, 7, 30])
    found: Any = nrm.generated(model, None, PROMPT, answer=answer, against=other, memory=memory, stream=stream)
    for _ in found if stream else ():
        pass
    G: nrm.Generated = found.generated if stream else found
    assert G.reference == tuple(map(str, other[0].tolist()))
    for k, token in enumerate(answer.tolist()):
        texts = [torch.cat([ids, answer[None, :k]], 1) for ids in (PROMPT, other)]
        R = nrm.measure(model, texts[0], target=(-1, token), against=texts[1])
        torch.testing.assert_close(G.relevance[k, : 6 + k], R(R.tokens)[0], rtol=1e-6, atol=1e-8)
        with torch.no_grad():
            here, there = (model(ids).logits[0, -1, token] for ids in texts)
        torch.testing.assert_close(G.values[k], here - there)
    same = [i for i in range(9) if i not in (2, 4)]
    assert float(G.relevance[:, same].abs().max()) < 1e-9
    assert float(G.first.abs().max()) < 1e-9


def test_against_the_mean_of_all_words(tokenizer: Any) -> None:
    """Words are replaced, marks and the answer are not: the difference begins in the words of the prompt."""
    model = writer()
    G = nrm.generated(model, tokenizer, "the cat sat", answer="on a", against="mean")
    torch.testing.assert_close(G.relevance.sum(1), torch.ones(2, dtype=torch.float64))
    assert float(G.relevance[:, [0, 4]].abs().max()) < 1e-9
    assert bool((G.relevance[:, 1:4] != 0).all())
    words = model.get_input_embeddings()(G.ids)
    twin = words.clone()
    twin[:, 1:4] = model.get_input_embeddings().weight.mean(0)
    with torch.no_grad():
        values = (model(inputs_embeds=words).logits - model(inputs_embeds=twin).logits)[0, 3:5]
    torch.testing.assert_close(G.values, values.gather(1, G.ids[0, 4:, None])[:, 0])


def test_marks_of_a_tokenizer(tokenizer: Any) -> None:
    model = writer()
    G = nrm.generated(model, tokenizer, "the cat sat", answer="on a mat")
    assert G.tokens == (
        "<s>",
        "the",
        "cat",
        "sat",
        "on",
        "a",
        "mat",
    )  # the mark at the beginning, and not in the middle
    assert G.special == (True, *(False,) * 6)
    for given in (G.ids[:, :4], G.ids[0, :4].tolist(), tokenizer("the cat sat"), tokenizer(["the cat sat"])):
        same = nrm.generated(model, tokenizer, given, answer=G.ids[:, 4:])
        assert torch.equal(same.ids, G.ids)
    with pytest.warns(nrm.NrmWarning, match="two marks of the beginning"):
        nrm.generated(model, tokenizer, "<s> the cat", tokens=1)


def test_conversations(tokenizer: Any) -> None:
    model, talk = writer(), [{"role": "user", "content": "the cat"}]
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*two marks")
        G = nrm.generated(model, tokenizer, talk, answer="sat")
    assert G.tokens == ("<s>", "<user>", "the", "cat", "</s>", "<model>", "sat")  # one mark at the beginning
    assert [i for i, mark in enumerate(G.special) if mark] == [0, 1, 4, 5]
    begun = nrm.generated(model, tokenizer, [*talk, {"role": "assistant", "content": "sat on"}], answer="a")
    assert begun.tokens == ("<s>", "<user>", "the", "cat", "</s>", "<model>", "sat", "on", "a")
    against = nrm.generated(model, tokenizer, talk, answer="sat", against=[{"role": "user", "content": "the dog"}])
    assert against.reference is not None
    assert against.reference[3] == "dog"
    assert against.relevance[0].nonzero().flatten().tolist() == [3]
    with pytest.raises(nrm.QuestionError, match="no system here"):
        nrm.generated(model, tokenizer, [{"role": "system", "content": "the"}, *talk])


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_left_out(tokenizer: Any, side: str) -> None:
    """A prompt of a padded batch has the table that it has alone."""
    model = writer()
    batch = tokenizer(["the cat", "the cat sat on a mat"], padding=True, padding_side=side, return_tensors="pt")
    assert bool((batch["attention_mask"][0] == 0).any())
    one = {name: rows[:1] for name, rows in batch.items()}
    padded, alone = (nrm.generated(model, tokenizer, given, tokens=4) for given in (one, "the cat"))
    assert padded.tokens == alone.tokens
    torch.testing.assert_close(padded.relevance, alone.relevance)
    with pytest.raises(nrm.QuestionError, match="one at a time"):
        nrm.generated(model, tokenizer, batch)
    with pytest.raises(nrm.QuestionError, match="has padding"):
        nrm.generated(model, tokenizer, batch["input_ids"][0])


def test_padding_behind_the_end_of_an_answer_is_left_out(tokenizer: Any) -> None:
    model = writer()
    G = nrm.generated(model, tokenizer, "the cat", answer=torch.tensor([[7, 2, 8, 2, 0, 0]]))
    assert G.written == ("sat", "</s>", "on", "</s>")  # an end inside stays: turns of a conversation have one each
    assert G.special[-1]
    assert nrm.generated(model, tokenizer, "the cat", answer="sat </s> </s>").written == ("sat", "</s>")


@pytest.mark.parametrize("stream", [False, True])
def test_writing_ends_where_it_should(stream: Any) -> None:
    """By a token that ends texts, or by a string, wherever a stream's pieces end."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    made = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({c: i for i, c in enumerate("?abcdefghijklmnopqrstuvwxyz")}, "?")
    )
    made.pre_tokenizer, made.decoder = tokenizers.pre_tokenizers.Split("", "isolated"), tokenizers.decoders.Fuse()
    letters = transformers.PreTrainedTokenizerFast(tokenizer_object=made, unk_token="?")
    model, own = writer(), {"suppress_tokens": [0, *range(27, 40)]}
    free = nrm.generated(model, letters, "abcab", tokens=8, options=own)
    free_text = "".join(free.written)
    for count in range(1, 8):
        text = "".join(free.written[:count])
        ends: list[dict[str, Any]] = [
            {"eos_token_id": int(free.ids[0, 4 + count])},
            {"stop_strings": [text[-2:], text]},
        ]
        for option in ends:
            found: Any = nrm.generated(model, letters, "abcab", tokens=8, stream=stream, options={**own, **option})
            written = "".join(row.text for row in found) if stream else "".join(found.written)
            stops = option.get("stop_strings", [text[-1]])
            first = min(free_text.index(stop) + len(stop) for stop in stops)
            assert written == free_text[:first]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("more", [{}, {"stream": True}, {"against": PROMPT.flip(1)}, {"memory": 2**19}])
def test_half_precision(dtype: torch.dtype, more: dict[str, Any]) -> None:
    """A model in half precision has the table of the same weights in float32, and stays as it is."""
    half = writer().to(dtype)
    raised = copy.deepcopy(half).float()
    answer = torch.tensor([7, 8, 7, 30])
    tables = []
    for model in (half, raised):
        found: Any = nrm.generated(model, None, PROMPT, answer=answer, **more)
        for _ in found if "stream" in more else ():
            pass
        tables.append(found.generated if "stream" in more else found)
    assert tables[0].relevance.dtype == torch.float32
    torch.testing.assert_close(tables[0].relevance, tables[1].relevance, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(tables[0].values, tables[1].values, rtol=1e-4, atol=1e-5)
    assert {p.dtype for p in half.parameters()} == {dtype}
    assert len(nrm.generated(half, None, PROMPT, tokens=3)) == 3


def test_lean_measures() -> None:
    model = writer(num_hidden_layers=4)
    lean, plain = (nrm.generated(model, None, PROMPT, tokens=5, memory=memory) for memory in (2**14, "1 GiB"))
    assert "computed again" in repr(lean.measure)
    assert "computed again" not in repr(plain.measure)
    torch.testing.assert_close(lean.relevance, plain.relevance, rtol=1e-6, atol=1e-9)


def test_models_that_cannot_be_asked() -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    size = {"vocab_size": 40, "d_model": 16, "d_ff": 16, "num_layers": 1, "num_heads": 2, "d_kv": 8}
    both = transformers.T5ForConditionalGeneration(transformers.T5Config(decoder_start_token_id=0, **size)).eval()
    with pytest.raises(nrm.QuestionError, match="behind an encoder"):
        nrm.generated(both, None, PROMPT)
    short = writer(max_position_embeddings=8)
    with pytest.raises(nrm.QuestionError, match="longer than the model reads") as caught:
        nrm.generated(short, None, PROMPT, tokens=3)
    assert caught.value.hint == "tokens=2"
    assert SIZE["vocab_size"] == 40
