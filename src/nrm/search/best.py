"""The best way down from every neuron: max-product message passing from the inputs to the output.

``up(j)`` is the largest product of entries along a partial walk from neuron j down to any input or drain, times the
unit there, and ``down(j)`` the largest magnitude of a negative one. With an entry ``T`` from j to i::

    up(j)   = max over i of  T up(i) if T > 0,  -T down(i) if T < 0
    down(j) = max over i of  T down(i) if T > 0,  -T up(i) if T < 0

Only neurons that some walk can reach are looked at: behind a ReLU and a max pooling those are few.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from nrm.memory import refuse_larger
from nrm.operators import Field, Reshape
from nrm.questions import Progress
from nrm.rules import reads_input
from nrm.search.branches import Branch, branches
from nrm.search.windows import best_in_windows, is_apart, signed
from nrm.steps import DRAIN, Factored, Local, Map, Network

COLUMNS = 2**20
"""How many columns are taken apart together."""


class BestBelow(NamedTuple):
    """The best products below every neuron of a tensor, times ``2**-exponent``; ``height`` counts roundings."""

    up: Tensor
    down: Tensor | None
    exponent: int = 0
    height: int = 0


class Terrain:
    """The best ways down of one network, from the output's relevance ``start``. Walks end at ``ends``."""

    def __init__(
        self, network: Network, start: Tensor, *, to_input: bool, memory: int, progress: Progress
    ) -> None:  # fmt: skip
        self.network = network
        self._memory = memory
        self._fields: dict[Map, Field] = {}
        self._best: dict[int, BestBelow] = {}
        self._held = 0
        self.doors = set() if to_input else _flat_doors(network)
        self._one = torch.ones(1, dtype=network.tape.dtype, device=start.device)
        needed = self._reach(start)
        for i in progress(iter(sorted(needed)), len(needed)):
            self._best[i] = self._rise(i, needed.pop(i))

    def is_end(self, node: int) -> bool:
        """Whether walks end at a node of the relevance network."""
        found = self.network.nodes[node]
        return found.kind == DRAIN or found.tensor in self.doors or not self.network.tape.nodes[found.tensor].inputs

    def ways(self, i: int, neurons: Tensor) -> list[Branch]:
        """The ways on from some neurons of a tensor that get anywhere."""
        found = branches(self.network, i, neurons)
        return [way for way in found if self.is_end(way.to) or self.network.nodes[way.to].tensor in self._best]

    def best(self, node: int) -> BestBelow:
        """The best products below the neurons of a node; units where walks end."""
        if not self.is_end(node):
            return self._best[self.network.nodes[node].tensor]
        unit = self.network.unit(node)
        if unit is None:
            return BestBelow(self._one, None)
        down = (-unit).clamp(min=0).reshape(-1)
        return BestBelow(unit.clamp(min=0).reshape(-1), down if bool(down.any()) else None)

    def field(self, map: Map) -> Field:
        """The columns of a map that mixes."""
        if map not in self._fields:
            self._fields[map] = map.field(self.network.tape.dtype)
        return self._fields[map]

    # ---- which neurons matter --------------------------------------------------------------------------------

    def _reach(self, start: Tensor) -> dict[int, Tensor]:
        """The neurons that walks can pass, per tensor at which they arrive; a linear step is passed wherever it reads
        something at all.
        """
        tape = self.network.tape
        reached = {tape.output: (start != 0).reshape(-1)}
        for i in range(tape.output, -1, -1):
            top = self.network.plain_index(i)
            if i not in reached or top is None or self.is_end(top) or not bool(reached[i].any()):
                reached.pop(i, None)
                continue
            for neurons in _chunks(reached[i]):
                for branch in branches(self.network, i, neurons):
                    if self.network.nodes[branch.to].kind == DRAIN:
                        continue
                    j = self.network.nodes[branch.to].tensor
                    size = tape.nodes[j].shape.numel()
                    mask = reached.setdefault(j, torch.zeros(size, dtype=torch.bool, device=start.device))
                    if branch.entry is not None:
                        mask[branch.at[branch.entry != 0]] = True
                    else:
                        mask |= self._reads(branch)
        return reached

    def _reads(self, branch: Branch) -> Tensor:
        """The inputs of a linear step that have any entry."""
        assert branch.windows is not None
        node = self.network.tape.nodes[self.network.nodes[branch.to].tensor]
        found = torch.zeros(node.shape.numel(), dtype=torch.bool, device=node.device)
        for map in branch.windows:
            for share in map.shares():
                a = torch.as_tensor(1.0 if share is None else share, device=found.device)
                found |= (a != 0).expand(node.shape).reshape(-1)
        return found

    # ---- one step up -----------------------------------------------------------------------------------------

    def _rise(self, i: int, mask: Tensor) -> BestBelow:
        below = self._same_below(i)
        if below in self._best:
            return self._best[below]
        node = self.network.tape.nodes[i]
        size = node.shape.numel()
        self._hold(2 * size * self._one.element_size())
        up, down = (torch.zeros(size, dtype=node.dtype, device=node.device) for _ in range(2))
        exponent, height = -(2**30), 0
        for neurons in _chunks(mask):
            for branch in self.ways(i, neurons):
                best = self.best(branch.to)
                if best.exponent > exponent:
                    for total in (up, down):
                        total.mul_(2.0 ** max(exponent - best.exponent, -2000))
                    exponent = best.exponent
                height = max(height, best.height)
                found = self._plain(branch, best) if branch.entry is not None else self._linear(branch, best)
                for total, part in zip((up, down), found, strict=True):
                    if part is not None:
                        part = part * 2.0 ** (best.exponent - exponent)
                        total[neurons] = torch.maximum(total[neurons], part)
        shift = math.frexp(max(float(up.amax()), float(down.amax())))[1]
        if abs(shift) > 16:  # products of many small entries must not run out of numbers
            up.mul_(2.0**-shift)
            down.mul_(2.0**-shift)
            exponent += shift
        if not bool(down.any()):
            self._held -= size * self._one.element_size()
            return BestBelow(up, None, exponent, height + 1)
        return BestBelow(up, down, exponent, height + 1)

    def _same_below(self, i: int) -> int | None:
        """The tensor whose neurons are those of tensor i one by one, in the same order and with entry 1."""
        links = self.network.plain(i).links
        if len(links) != 1 or not isinstance(links[0].map, Local) or self.is_end(links[0].to):
            return None
        map, below = links[0].map, self.network.nodes[links[0].to]
        same = map.pre is None and map.post is None and (map.move is None or isinstance(map.move, Reshape))
        return below.tensor if same and below.index == self.network.plain_index(below.tensor) else None

    @staticmethod
    def _plain(branch: Branch, best: BestBelow) -> tuple[Tensor, Tensor | None]:
        up = _at(best.up, branch.at)
        assert branch.entry is not None
        return signed(up, None if best.down is None else _at(best.down, branch.at), branch.entry)

    def _linear(self, branch: Branch, best: BestBelow) -> tuple[Tensor, Tensor | None]:
        """The best of each neuron's window. Neurons are sorted by which densities they have: under a batch norm with
        negative scales, half of them have another one.
        """
        assert branch.windows is not None
        maps = list(branch.windows)
        pattern = torch.zeros_like(branch.at)
        for k, map in enumerate(maps):
            pattern = pattern + ((branch.windows[map] != 0).long() << k)
        up = torch.zeros(len(branch.at), dtype=self._one.dtype, device=branch.at.device)
        down = torch.zeros_like(up)
        for code in torch.unique(pattern).tolist():
            chosen = [map for k, map in enumerate(maps) if code >> k & 1]
            mine = (pattern == code).nonzero()[:, 0]
            for together in _overlapping(chosen):
                field = self.field(together[0])
                found = best_in_windows(self.network, field, branch, together, mine, best.up, best.down)
                for total, part in zip((up, down), found, strict=True):
                    if part is not None:
                        total[mine] = torch.maximum(total[mine], part)
        return up, down

    def _hold(self, nbytes: int) -> None:
        self._held += nbytes
        refuse_larger(
            "the best products of every neuron need more", self._held, self._memory,
            "fewer samples at once, or raise memory= in nrm.measure",
        )  # fmt: skip


def _overlapping(maps: list[Map]) -> list[list[Map]]:
    """Maps whose entries may meet: positive and negative parts never do, so each has a maximum of its own."""
    asked = [map.factors for map in maps if isinstance(map, Factored)]
    one_key = len({factors.key for factors in asked}) == 1 or not any(factors.rule.pools for factors in asked)
    return [[map] for map in maps] if is_apart(maps) and one_key else [maps] if maps else []


def _at(values: Tensor, neurons: Tensor) -> Tensor:
    return values.expand(neurons.shape) if values.numel() == 1 else values[neurons]


def _chunks(mask: Tensor) -> Iterator[Tensor]:
    """The marked neurons, not too many at once."""
    neurons = mask.nonzero()[:, 0]
    for first in range(0, len(neurons), COLUMNS):
        yield neurons[first : first + COLUMNS]


def _flat_doors(network: Network) -> set[int]:
    """The first hidden layers under the Flat rule: all of their inputs have the same share, whatever they are."""
    tape = network.tape
    first = reads_input(tape)
    doors: set[int] = set()
    for node in tape.nodes:
        if node.index == tape.output or network.plain_index(node.index) is None:
            continue
        ways = branches(network, node.index, torch.zeros(1, dtype=torch.long, device=node.device))
        if ways and all(way.leaf in first and _is_flat(way) for way in ways):
            doors.add(node.index)
    return doors


def _is_flat(way: Branch) -> bool:
    return way.windows is not None and all(isinstance(map, Factored) and map.factors.rule.flat for map in way.windows)
