"""What the column of a neuron is made of: every way on from it, one step toward the inputs.

A sweep carries whole densities; here the same step is taken from single neurons, because the best walk through a neuron
depends on its entries one by one. A fused step is seen through down to its blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from nrm.errors import QuestionError
from nrm.steps import COLUMN, DRAIN, Map, Network, RelevanceNode, Softmaxed

Via = tuple[tuple[int, Tensor], ...]


@dataclass(frozen=True, eq=False)
class Branch:
    """One way on from some neurons: to one neuron each of node ``to``, or through a step that mixes to its window.

    ``at`` is the neuron below, of ``to`` or of that step's output, and ``entry`` the entry between. Through a step
    that mixes there are such entries for each of its maps (``windows``), which its own entries are multiplied with.
    ``leaf`` is that step's tensor; ``via`` are the tensors inside the fused step, each with its neurons.
    """

    to: int
    at: Tensor
    entry: Tensor | None = None
    windows: dict[Map, Tensor] | None = None
    leaf: int | None = None
    via: Via = ()

    @property
    def route(self) -> tuple[int, int | None, tuple[int, ...]]:
        """Which tensors it passes. Entries of one neuron on the same route, by the same neurons, are one entry."""
        return self.to, self.leaf, tuple(i for i, _ in self.via)

    @property
    def entries(self) -> list[Tensor]:
        """Everything that entries are, or are multiplied with."""
        return [self.entry] if self.entry is not None else list((self.windows or {}).values())

    def times(self, change: Tensor) -> Branch:
        """The branch with its entries multiplied, neuron by neuron."""
        windows = None if self.windows is None else {map: d * change for map, d in self.windows.items()}
        return replace(self, entry=None if self.entry is None else self.entry * change, windows=windows)

    def plus(self, other: Branch) -> Branch:
        """Two branches by the same neurons as one."""
        if self.entry is not None and other.entry is not None:
            return replace(self, entry=self.entry + other.entry)
        mine, yours = self.windows or {}, other.windows or {}
        total = {**mine, **{map: d + mine[map] if map in mine else d for map, d in yours.items()}}
        return replace(self, windows=total)


def branches(network: Network, i: int, neurons: Tensor) -> list[Branch]:
    """Every way on from some neurons (flat indices) of tensor i that relevance arrives at."""
    ones = torch.ones(len(neurons), dtype=network.tape.dtype, device=neurons.device)
    return _merged(_below(network, network.plain(i), neurons, ones, ()))


def _below(network: Network, node: RelevanceNode, at: Tensor, entry: Tensor, via: Via) -> Iterator[Branch]:
    for to, map in node.links:
        lower = network.nodes[to]
        if map.mixes:
            yield Branch(to, at, windows={map: entry}, leaf=node.tensor, via=via)
            continue
        if isinstance(map, Softmaxed):
            raise QuestionError(
                "single walks are not searched through a softmax under its own rule",
                where=network.tape.nodes[node.tensor].name, got="nrm.SoftmaxRule",
                expected="a softmax whose normalizer is held", hint="rules='transformer', or R.flows(...) over layers",
            )  # fmt: skip
        for below, inner in map.ways(at):
            total = entry * inner
            if lower.kind == COLUMN:
                yield from _below(network, lower, below, total, via)
            elif lower.kind == DRAIN or lower.index == network.plain_index(lower.tensor):
                yield Branch(to, below, total, via=via)
            else:
                yield from _below(network, lower, below, total, (*via, (lower.tensor, below)))


def _merged(found: Iterator[Branch]) -> list[Branch]:
    """Terms of one sum that are the same tensor are one way: where they pass the same neurons, entries add up."""
    result: list[Branch] = []
    for new in found:
        for k, old in enumerate(result):
            if new.route == old.route:
                same = new.at == old.at
                for (_, mine), (_, other) in zip(new.via, old.via, strict=True):  # an edge twice: two walks
                    same = same & (mine == other)
                result[k] = old.plus(new.times(same.to(new.entries[0])))
                new = new.times((~same).to(new.entries[0]))
        if any(bool((d != 0).any()) for d in new.entries):
            result.append(new)
    return result
