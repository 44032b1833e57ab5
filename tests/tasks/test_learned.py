"""The trained transformer of induction: what it does, how its heads attend, and the circuit that is found in it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import nrm
from nrm.errors import InputError
from nrm.tasks import SmallTransformer, induction
from nrm.tasks.learned import EXCHANGED, UNKNOWN, jumping_back, train_induction

MODEL, PAIRS = induction()


def attention(model: SmallTransformer, block: int, ids: Tensor) -> Tensor:
    """The probabilities ``(heads, batch, queries, keys)`` of a block, computed anew from its queries and keys."""
    seen: dict[str, Tensor] = {}
    attn = model.get_submodule(f"blocks.{block}.attn")
    hooks = [part.register_forward_hook(lambda _, given, result, name=name: seen.update({name: result}))
             for name, part in attn.named_children()]  # fmt: skip
    with torch.no_grad():
        model(ids)
    for hook in hooks:
        hook.remove()
    q, k = (seen[name].unflatten(2, (model.size.heads, -1)) for name in "qk")
    scores = torch.einsum("bqhc,bkhc->hbqk", q, k) / model.size.head_width**0.5
    length = ids.shape[1]
    return scores.masked_fill(torch.ones(length, length).triu(1) > 0, -torch.inf).softmax(3)


@pytest.mark.parametrize("exchange", ["each", *EXCHANGED])
def test_it_does_the_task(exchange: str) -> None:
    model, pairs = induction(200, seed=5, exchange=exchange)
    accuracy = pairs.accuracy(model)
    assert accuracy.share >= 0.95
    assert accuracy.clean > 5 > -5 > accuracy.corrupted
    for pair in pairs:
        text, other = pair.clean.tolist(), pair.corrupted.tolist()
        assert text[text.index(text[-1]) + 1] == pair.answers[0]
        assert other[other.index(other[-1]) + 1] == pair.wrong[0]
        assert len(set(text)) == len(text) - 1


def test_the_circuit_is_the_head_that_looks_back_and_the_head_of_induction() -> None:
    ids = torch.stack([pair.clean for pair in PAIRS])
    looks_back = attention(MODEL, 0, ids).diagonal(-1, 2, 3).mean((1, 2))
    behind = torch.tensor([pair.clean.tolist().index(int(pair.clean[-1])) + 1 for pair in PAIRS])
    induces = attention(MODEL, 1, ids)[:, torch.arange(len(ids)), -1, behind].mean(1)
    print("to the token before:", [f"{x:.2f}" for x in looks_back.tolist()])
    print("to the token behind the earlier one:", [f"{x:.2f}" for x in induces.tolist()])
    assert float(looks_back.max()) > 0.85 < float(induces.max())
    one, other = int(looks_back.argmax()), int(induces.argmax())
    found = nrm.circuit(MODEL, PAIRS, top=0.05, draws=0, batch_size=64)
    edges = {str(edge) for edge in found.circuit.edges}
    print(found)
    assert len(edges) <= 4
    assert {
        f"embed -> blocks.0.attn.v.head({one})",
        f"blocks.0.attn.head({one}) -> blocks.1.attn.k.head({other})",
        f"blocks.1.attn.head({other}) -> output",
    } <= edges


def test_its_training_is_repeatable_and_learns() -> None:
    one, other = train_induction(range(25)), train_induction(range(25))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    texts, following = jumping_back(torch.Generator().manual_seed(7), 200)

    def loss(model: SmallTransformer) -> float:
        with torch.no_grad():
            logits = model(texts).flatten(0, 1)
        return float(torch.nn.functional.cross_entropy(logits, following.flatten(), ignore_index=UNKNOWN))

    assert loss(MODEL) < 0.1 < loss(one) < loss(train_induction(range(0)))


def test_what_it_learns_from_is_known_from_what_was_there_before() -> None:
    texts, following = jumping_back(torch.Generator().manual_seed(1), 50)
    assert (following != UNKNOWN).any(1).all()
    for text, wanted in zip(texts.tolist(), following.tolist(), strict=True):
        for place, token in enumerate(wanted):
            if token != UNKNOWN:
                before = text.index(text[place])
                assert before < place
                assert text[before + 1] == token


def test_bad_input() -> None:
    with pytest.raises(InputError, match="no pairs are asked for"):
        induction(0)
    with pytest.raises(InputError, match="exchange='nothing'"):
        induction(exchange="nothing")
