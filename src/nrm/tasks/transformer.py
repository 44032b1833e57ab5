"""A small transformer in plain torch ops: for weights that are written by hand, and for one that is trained."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class TransformerSize:
    """The sizes of a small transformer.

    There are so many ``tokens``, ``outputs`` and places of the input (``length``); the stream has ``width`` channels,
    every block ``heads`` heads of ``head_width`` channels and, unless it is 0, a hidden layer of ``hidden`` channels.
    """

    tokens: int
    outputs: int
    length: int
    width: int
    blocks: int
    heads: int
    head_width: int
    hidden: int
    norm: bool = False
    """Whether branches and output read the stream through layer norms."""


class Embedded(nn.Module):
    """A vector for every token, plus one for every place."""

    def __init__(self, size: TransformerSize) -> None:
        super().__init__()
        self.token = nn.Embedding(size.tokens, size.width)
        self.place = nn.Parameter(torch.zeros(size.length, size.width))

    def forward(self, ids: Tensor) -> Tensor:
        """The stream that blocks begin with, ``(batch, length, width)``."""
        embedded: Tensor = self.token(ids)
        return embedded + self.place[: ids.shape[1]]


class CausalAttention(nn.Module):
    """Attention of several heads, each place to itself and those before it."""

    def __init__(self, size: TransformerSize) -> None:
        super().__init__()
        inner, self.heads = size.heads * size.head_width, size.heads
        self.q, self.k, self.v = (nn.Linear(size.width, inner, bias=False) for _ in range(3))
        self.o = nn.Linear(inner, size.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """What all heads write, ``(batch, length, width)``."""
        q, k, v = (part(x).unflatten(2, (self.heads, -1)).transpose(1, 2) for part in (self.q, self.k, self.v))
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        scores = (q @ k.transpose(2, 3)) / q.shape[3] ** 0.5
        mixed = scores.masked_fill(later, -torch.inf).softmax(3) @ v
        written: Tensor = self.o(mixed.transpose(1, 2).flatten(2))
        return written


class Perceptron(nn.Module):
    """A hidden layer with ReLU."""

    def __init__(self, size: TransformerSize) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(size.width, size.hidden), nn.Linear(size.hidden, size.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """What it writes, ``(batch, length, width)``."""
        written: Tensor = self.down(self.up(x).relu())
        return written


class TransformerBlock(nn.Module):
    """Attention and a perceptron, both added to the stream that they read."""

    def __init__(self, size: TransformerSize) -> None:
        super().__init__()
        self.attn, self.mlp = CausalAttention(size), Perceptron(size) if size.hidden else None
        self.norm1, self.norm2 = (nn.LayerNorm(size.width) if size.norm else nn.Identity() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """The stream behind the block."""
        x = x + self.attn(self.norm1(x))
        return x if self.mlp is None else x + self.mlp(self.norm2(x))


class SmallTransformer(nn.Module):
    """Tokens to logits at every place, ``(batch, length)`` to ``(batch, length, outputs)``."""

    def __init__(self, size: TransformerSize) -> None:
        super().__init__()
        self.size = size
        self.embed = Embedded(size)
        self.blocks = nn.ModuleList(TransformerBlock(size) for _ in range(size.blocks))
        self.norm = nn.LayerNorm(size.width) if size.norm else nn.Identity()
        self.unembed = nn.Linear(size.width, size.outputs, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """The logits."""
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.unembed(self.norm(x))
        return logits


__all__ = ["SmallTransformer", "TransformerBlock", "TransformerSize"]
