"""What generated tokens owe to those before them: one capture for all, against one measure for each."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import nrm
import vision

with suppress(pytest.skip.Exception):
    vision.load()  # before transformers, which imports it

SIZE = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
GPT2 = {"vocab_size": 40, "n_embd": 16, "n_layer": 2, "n_head": 4, "bos_token_id": 1, "eos_token_id": None}
PROMPT = torch.randint(3, 40, (1, 6), generator=torch.Generator().manual_seed(1))


def writer(kind: str = "Llama", **more: Any) -> Any:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    own = GPT2 if kind == "GPT2" else {**SIZE, "num_key_value_heads": 2, "eos_token_id": None}
    name = "GPT2LMHeadModel" if kind == "GPT2" else f"{kind}ForCausalLM"
    return getattr(transformers, name)(getattr(transformers, f"{kind}Config")(**{**own, **more})).double().eval()


class Letters:
    """A tokenizer of letters, with a mark at the beginning and a template for conversations."""

    chat_template = "..."
    all_special_ids = (0, 1)

    def __call__(self, text: str, return_tensors: str | None = None, add_special_tokens: bool = True) -> Any:
        ids = ([0] if add_special_tokens else []) + [1 if c == "|" else ord(c) % 38 + 2 for c in text]
        return {"input_ids": torch.tensor([ids]) if return_tensors else ids}

    def apply_chat_template(self, messages: Any, tokenize: bool, add_generation_prompt: bool) -> str:
        return "".join(f"|{m['role'][0]}{m['content']}" for m in messages) + "|a"

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return [f"<{i}>" for i in ids]


def one_by_one(model: nn.Module, whole: Tensor, begin: int) -> Tensor:
    """A measure for every generated token, on the text before it."""
    rows = []
    for k in range(begin, whole.shape[1]):
        R = nrm.measure(model, whole[:, :k], target=(-1, int(whole[0, k])))
        rows.append(torch.nn.functional.pad(R(R.tokens)[0], (0, whole.shape[1] - 1 - k)))
    return torch.stack(rows)


@pytest.mark.parametrize("kind", ["Llama", "GPT2", "Gemma2", "Qwen2"])
@pytest.mark.parametrize("memory", ["1 GiB", 2**19])
@pytest.mark.filterwarnings("ignore::nrm.NrmWarning")
def test_all_at_once_is_one_by_one(kind: str, memory: str | int) -> None:
    model = writer(kind)
    G = nrm.generated(model, None, PROMPT, tokens=5, memory=memory)
    assert G.relevance.shape == (5, 10)
    assert G.prompt == 6
    assert len(G.written) == len(G) == 5
    assert torch.equal(G.ids[:, :6], PROMPT)
    torch.testing.assert_close(G.relevance, one_by_one(model, G.ids, 6), rtol=1e-6, atol=1e-9)
    with torch.no_grad():
        logits = model(G.ids).logits[0, 5:-1]
    torch.testing.assert_close(G.values, logits.gather(1, G.ids[0, 6:, None])[:, 0])
    assert bool((torch.ones_like(G.relevance).triu(6) * G.relevance == 0).all())


@pytest.mark.filterwarnings("ignore::nrm.NrmWarning")
def test_rows_sum_to_one_and_the_first_token_can_be_left_out() -> None:
    G = nrm.generated(writer(), None, PROMPT, tokens=4)
    torch.testing.assert_close(G.relevance.sum(1), torch.ones(4, dtype=torch.float64), rtol=0, atol=1e-9)
    torch.testing.assert_close(G.rest, torch.zeros(4, dtype=torch.float64), rtol=0, atol=1e-9)
    torch.testing.assert_close(G.without_first() * (1 - G.first)[:, None], G.relevance[:, 1:])
    assert G.table["relevance"] is G.relevance
    assert "4 tokens from 6" in repr(G)


@pytest.mark.filterwarnings("ignore::nrm.NrmWarning")
def test_a_token_that_is_written_twice_has_two_rows() -> None:
    model, answer = writer(), torch.tensor([7, 7, 3, 7])
    G = nrm.generated(model, None, PROMPT[0], answer=answer)
    torch.testing.assert_close(G.relevance, one_by_one(model, G.ids, 6), rtol=1e-6, atol=1e-9)


@pytest.mark.filterwarnings("ignore::nrm.NrmWarning")
def test_texts_conversations_and_special_tokens() -> None:
    model, letters = writer(), Letters()
    G = nrm.generated(model, letters, "abc", answer="de")
    assert G.special == (True, False, False, False, False, False)
    assert G.sources == tuple(letters.convert_ids_to_tokens(G.ids[0, :-1].tolist()))
    talk = nrm.generated(model, letters, [{"role": "user", "content": "hi"}], tokens=2)
    expected = letters("|uhi|a", add_special_tokens=False)["input_ids"]
    assert talk.ids[0, : talk.prompt].tolist() == expected
    assert talk.special[0]


@pytest.mark.filterwarnings("ignore::nrm.NrmWarning")
def test_only_the_explained_row_of_the_head() -> None:
    """``logits_to_keep`` leaves the other rows out, and changes no number."""
    model, token = writer(), 7
    R = nrm.measure(model, PROMPT, target=(-1, token))
    S = nrm.measure(model, {"input_ids": PROMPT, "logits_to_keep": 1}, target=(-1, token))
    assert S.inner.tape.nodes[S.inner.tape.output].shape == (1, 1, 40)
    torch.testing.assert_close(S(S.tokens), R(R.tokens), rtol=1e-9, atol=1e-12)
    top = nrm.measure(model, {"input_ids": PROMPT, "logits_to_keep": 1})
    assert top.prediction[0, 1] == nrm.measure(model, PROMPT).prediction[0, 1]


def test_the_model_is_as_it_was() -> None:
    model = writer()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    config = model.generation_config.to_dict()
    nrm.generated(model, None, PROMPT, tokens=2)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert model.generation_config.to_dict() == config
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


@pytest.mark.parametrize(
    ("prompt", "options", "text"),
    [
        ("text", {}, "needs a tokenizer"),
        (torch.rand(1, 3), {}, "not the tokens of one prompt"),
        (PROMPT.repeat(2, 1), {}, "one at a time"),
        (torch.zeros(1, 1, 3, dtype=torch.long), {}, "not the tokens of one prompt"),
        ([[1, 2], [3]], {}, "not a prompt"),
        (["a", "b"], {}, "one at a time"),
        ([], {}, "not a prompt"),
        ([3, 99], {}, "does not know"),
        (torch.tensor([-1]), {}, "does not know"),
        (torch.zeros(1, 0, dtype=torch.long), {}, "no tokens"),
        ({"ids": PROMPT}, {}, "not the encoding"),
        ({"input_ids": PROMPT, "attention_mask": torch.ones(1, 3)}, {}, "do not match"),
        ({"input_ids": PROMPT, "attention_mask": torch.tensor([[1, 1, 0, 0, 1, 1]])}, {}, "inside the prompt"),
        ({"input_ids": PROMPT, "attention_mask": torch.zeros(1, 6)}, {}, "no tokens"),
        (PROMPT, {"tokens": True}, "not a number of tokens"),
        (PROMPT, {"tokens": 2048}, "longer than the model reads"),
        (PROMPT, {"answer": "text"}, "needs a tokenizer"),
        (PROMPT, {"answer": [3, 40]}, "does not know"),
        (PROMPT, {"answer": [3], "options": {"top_k": 1}}, "is not written"),
        (PROMPT, {"options": {"max_new_tokens": 3}}, "tokens="),
        (PROMPT, {"options": {"num_return_sequences": 3}}, "one text at a time"),
        (PROMPT, {"options": {"colour": 3}}, "does not write with these options"),
        (PROMPT, {"options": {"stop_strings": ["a"]}}, "needs a tokenizer"),
        (PROMPT, {"options": {"num_beams": 2}, "stream": True}, "piece by piece"),
        (PROMPT, {"against": PROMPT[:, 1:]}, "as many tokens"),
        (PROMPT, {"against": PROMPT}, "the same"),
        (PROMPT, {"against": "blur"}, "another prompt, or 'mean'"),
        (PROMPT, {"against": "text"}, "needs a tokenizer"),
        (PROMPT, {"tokens": 0}, "not a number of tokens"),
        (PROMPT, {"answer": torch.tensor([], dtype=torch.long)}, "nothing was generated"),
        (PROMPT, {"token": 3}, "tokens"),
    ],
)
def test_what_is_refused(prompt: Any, options: dict[str, Any], text: str) -> None:
    with pytest.raises(nrm.NrmError, match=text):
        nrm.generated(writer(), None, prompt, **options)


def test_conversations_that_cannot_be_written_are_refused() -> None:
    letters = Letters()
    with pytest.raises(nrm.QuestionError, match="not a prompt"):
        nrm.generated(writer(), letters, [])
    letters.chat_template = None  # type: ignore[assignment]
    with pytest.raises(nrm.QuestionError, match="no chat template"):
        nrm.generated(writer(), letters, [{"role": "user", "content": "hi"}])
    with pytest.raises(nrm.QuestionError, match="cannot write by itself"):
        nrm.generated(nn.Linear(2, 2), None, PROMPT)


@pytest.mark.filterwarnings("ignore::nrm.NrmWarning")
def test_the_picture_has_names_and_leaves_the_first_token_out() -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    G = nrm.generated(writer(), Letters(), "abcd", tokens=3)
    ax = nrm.plot.generated(G)
    assert [t.get_text() for t in ax.get_yticklabels()] == list(G.written)
    assert len(ax.get_xticklabels()) == 7
    ax = nrm.plot.generated(G, first=False)
    assert len(ax.get_xticklabels()) == 6
    assert "in the first token" in ax.get_title(loc="left")
