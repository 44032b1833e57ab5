"""A trained language model writes: what its tokens owe to the prompt, in float32, bfloat16, and lean."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import nrm
from real.smollm2 import FOLDER, load_smollm2

pytestmark = [pytest.mark.slow, pytest.mark.data, pytest.mark.filterwarnings("ignore::nrm.NrmWarning")]


def test_smollm2_writes(shared: Callable[[str], Path]) -> None:
    home = shared(FOLDER)
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    model, _, _ = load_smollm2(home)
    tokenizer = transformers.AutoTokenizer.from_pretrained(home)
    talk = [{"role": "user", "content": "What is the capital of France?"}]
    G = nrm.generated(model, tokenizer, talk, tokens=8)
    assert "Paris" in tokenizer.decode(G.ids[0, G.prompt :])
    assert float((G.relevance.sum(1) - 1).abs().max()) < 1e-4
    assert G.special[0]
    for k in (0, 6):
        before = G.ids[:, : G.prompt + k]
        R = nrm.measure(model, before, target=(-1, int(G.ids[0, G.prompt + k])))
        row = G.relevance[k, : before.shape[1]]
        torch.testing.assert_close(row, R(R.tokens)[0], rtol=1e-3, atol=1e-4)
    lean = nrm.generated(model, tokenizer, talk, answer=tokenizer.decode(G.ids[0, G.prompt :]), memory="32 MiB")
    assert "computed again" in repr(lean.measure)
    torch.testing.assert_close(lean.relevance, G.relevance, rtol=1e-3, atol=1e-4)
    half = copy.deepcopy(model).to(torch.bfloat16)
    raised = copy.deepcopy(half).float()
    one, two = (nrm.generated(m, None, G.ids[:, : G.prompt], answer=G.ids[0, G.prompt :]) for m in (half, raised))
    torch.testing.assert_close(one.relevance, two.relevance, rtol=1e-3, atol=1e-3)
