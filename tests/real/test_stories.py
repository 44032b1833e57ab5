"""stories15M, a trained language model: mass, variation, tables of heads and tokens, and deletion of tokens."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import nrm
from real.stories import PROMPTS, Tokenizer, deletion_curve, load_stories

pytestmark = [pytest.mark.data, pytest.mark.filterwarnings("ignore::nrm.NrmWarning")]


@pytest.fixture(scope="module")
def stories(shared: Callable[[str], Path]) -> tuple[nn.Module, Tokenizer]:
    home = shared("stories15M")
    pytest.importorskip("transformers", reason="transformers is not installed")
    return load_stories(home), Tokenizer(home / "tokenizer.bin")


def test_twenty_prompts(stories: tuple[nn.Module, Tokenizer]) -> None:
    model, tokenizer = stories
    worst = 0.0
    for prompt in PROMPTS:
        ids = tokenizer.batch(prompt)
        R = nrm.measure(model, {"input_ids": ids})
        check = R.check(strict=False)
        assert all(check.ok), check.verdict
        assert check.mass == pytest.approx((1,), abs=1e-4)
        worst = max(worst, *(max(v) for v in check.variation.values()))
        assert float(R(R.input.positions).sum()) == pytest.approx(1, abs=1e-4)  # no biases: tokens have everything
        heads = [layer.input.heads for layer in R.find("*.self_attn.o_proj")]
        table, every = R(nrm.stack(*heads), nrm.stack(*heads)), torch.cat([R(part) for part in heads], 1)
        assert table.shape == (1, 36, 36)
        torch.testing.assert_close(table.diagonal(dim1=1, dim2=2), every, rtol=1e-3, atol=1e-4)
        tokens, middle = R(R.input.positions, heads[3].layer.positions), R(heads[3].layer.positions)
        torch.testing.assert_close(tokens.sum(1), middle, rtol=1e-3, atol=1e-4)  # every walk begins at a token
    assert worst < 10  # 2.9 to 6.8


def test_tables_of_heads_and_tokens(stories: tuple[nn.Module, Tokenizer]) -> None:
    model, tokenizer = stories
    R = nrm.measure(model, {"input_ids": tokenizer.batch(PROMPTS[2])})
    layers = [layer.input for layer in R.find("*.self_attn.o_proj")]
    assert len(layers) == 6
    for low, high in itertools.combinations(layers, 2):
        table = R(low.heads, high.heads)
        assert table.shape == (1, 6, 6)
        torch.testing.assert_close(table.sum((1, 2)), R(low.all, high.all), rtol=1e-3, atol=1e-4)
    length = R.values(R.input).shape[1]
    tokens = R(R.input.positions, layers[3].positions)
    assert tokens.shape == (1, length, length)
    above = torch.ones(length, length, dtype=torch.bool).tril(-1)
    assert torch.count_nonzero(tokens[0][above]) == 0  # a position hears of earlier tokens only


def test_deleting_relevant_tokens_lowers_the_logit_most(stories: tuple[nn.Module, Tokenizer]) -> None:
    model, tokenizer = stories
    areas: dict[str, list[float]] = {"most": [], "least": [], "random": []}
    for prompt in PROMPTS:
        ids = tokenizer.batch(prompt)
        R = nrm.measure(model, {"input_ids": ids})
        token = int(R.target[0, 1])  # type: ignore[index, call-overload]
        most = R(R.input.positions)[0].argsort(descending=True).tolist()
        shuffled = torch.randperm(len(most), generator=torch.Generator().manual_seed(0)).tolist()
        for name, order in (("most", most), ("least", most[::-1]), ("random", shuffled)):
            curve = deletion_curve(model, ids, order[: len(most) // 2], token)
            areas[name].append(sum(curve) / len(curve) - curve[0])
    mean = {name: sum(values) / len(values) for name, values in areas.items()}
    assert mean["most"] < mean["random"]
    assert mean["most"] < mean["least"]
