"""stories15M: its trained weights, its tokenizer, and prompts of its kind."""

from __future__ import annotations

import contextlib
import itertools
import json
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import vision

PROMPTS = [
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the",
    "Tom had a red ball. He threw the ball up high. Then he tried to catch the",
    "The dog was very hungry. His mom gave him some",
    "One day, a cat saw a bird in a tree. The cat wanted to catch the",
    "Lily was sad because she lost her favorite",
    "The sun was hot, so they went to swim in the",
    "Ben and Mia are friends. They like to play in the park. One day, Ben said to",
    "It was raining, so Sara took her",
    "The boy was tired. He went to his room and got into",
    "Mom baked a cake for the birthday. The cake was very",
    "The frog jumped into the water with a big",
    "There was a big bear in the woods. The bear liked to eat",
    "Anna drew a picture of a house with her",
    "At night, the little star shone in the",
    "The bunny hopped and hopped until he found a",
    "Max was scared of the dark. His dad turned on the",
    "The old man had a long white",
    "She opened the box and found a shiny",
    "The farmer had a cow, a pig and a",
    "The princess lived in a big",
]


def load_stories(home: Path) -> nn.Module:
    with contextlib.suppress(pytest.skip.Exception):
        vision.load()  # before transformers, which imports it
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig(**json.loads((home / "config.json").read_text())))
    weights = {k: v.float() for k, v in load_file(home / "model.safetensors").items()}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert set(missing) <= {"lm_head.weight"}, missing
    assert not unexpected
    model.tie_weights()
    return model.float().eval()


class Tokenizer:
    """The tokenizer of llama2.c: pieces with scores, the best pair merged first."""

    def __init__(self, path: Path) -> None:
        data, at = path.read_bytes(), 4
        self.pieces: list[str] = []
        self.scores: list[float] = []
        while at < len(data):
            score, length = struct.unpack_from("<fi", data, at)
            self.pieces.append(data[at + 8 : at + 8 + length].decode("utf-8", "replace"))
            self.scores.append(score)
            at += 8 + length
        self._index = {piece: i for i, piece in reversed(list(enumerate(self.pieces)))}

    def encode(self, text: str) -> list[int]:
        ids = [self._index[c] for c in " " + text]
        while True:
            pairs = [(self.scores[j], -k, j) for k, (a, b) in enumerate(itertools.pairwise(ids))
                     if (j := self._index.get(self.pieces[a] + self.pieces[b])) is not None]  # fmt: skip
            if not pairs:
                return [1, *ids]
            _, k, j = max(pairs)
            ids[-k : -k + 2] = [j]

    def batch(self, text: str) -> Tensor:
        return torch.tensor([self.encode(text)])


def deletion_curve(model: nn.Module, ids: Tensor, order: list[int], token: int) -> list[float]:
    """The logit of a token at the last position as tokens are deleted in this order: all walks through them end."""
    weight = model.get_input_embeddings().weight.detach()
    embedded = weight[ids].repeat(len(order) + 1, 1, 1)
    for count, at in enumerate(order, 1):
        embedded[count:, at] = 0.0
    with torch.no_grad():
        curve: list[float] = model(inputs_embeds=embedded).logits[:, -1, token].tolist()
    return curve
