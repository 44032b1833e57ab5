"""Weights written by hand: a transformer whose stream has features that somebody decided on."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from nrm.tasks.transformer import SmallTransformer, TransformerBlock, TransformerSize

Reads = tuple[str, Tensor]
"""A space, and a matrix of what is read from its features."""


class Handwriting:
    """Writes weights into a transformer, as features of its stream: its *spaces*, some orthogonal directions each.

    The last space is called ``junk``, and nobody reads it but decoys. The stream is turned at random, so that no
    feature is a channel. Whatever is not written is 0, or a decoy after :meth:`fill`.
    """

    def __init__(self, size: TransformerSize, spaces: dict[str, int], random: torch.Generator) -> None:
        with torch.random.fork_rng(devices=[]):
            self.model = SmallTransformer(size).double().requires_grad_(False)
        for weight in self.model.parameters():
            weight.zero_()
        ends = [0, *torch.tensor(list(spaces.values())).cumsum(0).tolist(), size.width]
        turned, _ = torch.linalg.qr(_normal(random, size.width, size.width))
        self.spaces = {name: turned[:, a:b] for name, (a, b) in zip([*spaces, "junk"], pairwise(ends), strict=True)}
        self._size, self._random = size, random
        self._heads, self._units = set[tuple[int, int]](), set[int]()

    def embed(self, space: str, rows: Tensor, *, places: bool = False) -> None:
        """Adds what tokens (or places) say: rows of features of a space."""
        table = self.model.embed.place if places else self.model.embed.token.weight
        table += rows.double() @ self.spaces[space].T

    def head(self, block: int, head: int, *, q: Reads, k: Reads, v: Reads, to: str, sharp: float = 14.0) -> None:
        """Writes a head: its queries, keys and values are features of spaces, and values go to features of another.

        Where the features of query and key are the same, the score is ``sharp``.
        """
        width, attn = self._size.head_width, self._block(block).attn
        rows = slice(head * width, (head + 1) * width)
        scale = (sharp * width**0.5) ** 0.5
        for part, (space, matrix), factor in ((attn.q, q, scale), (attn.k, k, scale), (attn.v, v, 1.0)):
            part.weight[rows][: len(matrix)] = factor * matrix.double() @ self.spaces[space].T
        attn.o.weight[:, rows][:, : len(v[1])] = self.spaces[to][:, : len(v[1])]
        self._heads.add((block, head))

    def perceptron(self, block: int, reads: Sequence[Reads], bias: float | Tensor, to: str, down: Tensor) -> None:
        """Writes the hidden layer of a block: ``down`` of ``relu(sum of what is read + bias)``."""
        mlp, units = self._block(block).mlp, len(reads[0][1])
        assert mlp is not None
        for space, matrix in reads:
            mlp.up.weight[:units] += matrix.double() @ self.spaces[space].T
        mlp.up.bias[:units] = bias
        mlp.down.weight[:, :units] = self.spaces[to][:, : len(down)] @ down.double()
        self._units.add(block)

    def unembed(self, space: str, matrix: Tensor) -> None:
        """Adds what the logits read."""
        self.model.unembed.weight += matrix.double() @ self.spaces[space].T

    def fill(self, leak: float = 0.0) -> SmallTransformer:
        """The model, with random decoys for all heads and hidden layers that were not written.

        They read everything and write junk, and ``leak`` times as much into every direction of the stream.
        """
        size, junk = self._size, self.spaces["junk"]
        out = junk @ junk.T + leak * torch.eye(size.width)
        for b in range(size.blocks):
            attn, mlp, width = self._block(b).attn, self._block(b).mlp, size.head_width
            for h in range(size.heads):
                if (b, h) not in self._heads:
                    rows = slice(h * width, (h + 1) * width)
                    for part in (attn.q, attn.k, attn.v):
                        part.weight[rows] = _normal(self._random, width, size.width) / size.width**0.5
                    attn.o.weight[:, rows] = out @ _normal(self._random, size.width, width) / width**0.5
            if mlp is not None and b not in self._units:
                mlp.up.weight.copy_(_normal(self._random, size.hidden, size.width) / size.width**0.5)
                mlp.up.bias.copy_(_normal(self._random, size.hidden) / 2)
                mlp.down.weight.copy_(out @ _normal(self._random, size.width, size.hidden) / size.hidden**0.5)
        return self.model.float().eval()

    def _block(self, n: int) -> TransformerBlock:
        found = self.model.blocks[n]
        assert isinstance(found, TransformerBlock)
        return found


def _normal(random: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=random, dtype=torch.float64)


__all__ = ["Handwriting", "Reads"]
