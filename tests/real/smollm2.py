"""SmolLM2-135M-Instruct, a language model of thirty layers: as ``make smollm2`` has fetched it."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import vision

FOLDER = "smollm2-135m"
PROMPT, ANSWER = "When Mary and John went to the store, John gave a drink to", " Mary"


def load_smollm2(home: Path) -> tuple[nn.Module, Tensor, int]:
    """The network in float32, the tokens of the prompt, and the token of its answer."""
    with contextlib.suppress(pytest.skip.Exception):
        vision.load()  # before transformers, which imports it
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(home, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(home)
    (answer,) = tokenizer(ANSWER, add_special_tokens=False)["input_ids"]
    return model, tokenizer(PROMPT, return_tensors="pt")["input_ids"], answer
