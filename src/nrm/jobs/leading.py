"""The blocks with the largest sums in every class, in bounded memory, with bounds of what was left out.

A table of 512 x 512 pairs for each of 1,000 classes is too large to keep. Of every sample only the largest shares are
counted, and of every class only the blocks with the largest sums; what is left out is bounded, and the bounds are added
up like the sums themselves. So every sum that is kept comes with an interval that holds the true one, and every other
block of the class with a bound that it cannot exceed.

What is pruned away must not depend on shards, workers or their order. Samples are therefore merged as in a binary tree
over their numbers: samples 0 and 1, samples 2 and 3, then these two, and so on, whoever has explained them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nrm.largest import Floats, IntegerArray, best_first, largest, largest_of_groups

BITS = 32
"""Bits of a key that are the block's."""

ROOM = 1024
"""Shares of a sample, and blocks of a class, that are counted at most."""


@dataclass(frozen=True, eq=False)
class ClassSums:
    """Sums over the samples of every class, of the blocks that were kept.

    A row is a block of a class; rows are sorted by these, which are both in its ``key``. ``values (3, rows)`` are what
    is known of its sum, and by how much the true one may be smaller (``under``) and larger (``over``). Blocks without a
    row have sums between ``-rest[0]`` and ``rest[1]`` of their class. All this holds up to the rounding of float64.
    """

    classes: IntegerArray
    counts: IntegerArray
    rest: Floats
    key: IntegerArray
    values: Floats

    @property
    def labels(self) -> IntegerArray:
        """The class of every row."""
        return self.key >> BITS

    @property
    def blocks(self) -> IntegerArray:
        """The block of every row."""
        return self.key & ((1 << BITS) - 1)

    def merge(self, other: ClassSums) -> ClassSums:
        """The sums of both groups of samples together: known parts are added, and so are the bounds."""
        classes, key = _union(self.classes, other.classes), _union(self.key, other.key)
        places = np.searchsorted(classes, key >> BITS)
        counts, rest, values = np.zeros(len(classes), np.int64), np.zeros((2, len(classes))), np.zeros((3, len(key)))
        for part in (self, other):
            mine = np.searchsorted(classes, part.classes)
            counts[mine] += part.counts
            rest[:, mine] += part.rest
            whole, bounds = np.zeros((3, len(key))), np.zeros((2, len(classes)))
            bounds[:, mine] = part.rest
            whole[1:] = bounds[:, places]
            whole[:, np.searchsorted(key, part.key)] = part.values
            values += whole
        return ClassSums(classes, counts, rest, key, values)

    def prune(self, room: int) -> ClassSums:
        """At most ``room`` rows of every class: those whose sums may be farthest from 0; the rest is bounded."""
        places = np.searchsorted(self.classes, self.labels)
        if not (np.bincount(places, minlength=1) > room).any():
            return self
        total, under, over = self.values
        kept = largest_of_groups(np.maximum(total + over, under - total), self.key, places, room)
        left = ~kept
        rest = self.rest.copy()
        np.maximum.at(rest[0], places[left], (under - total)[left])
        np.maximum.at(rest[1], places[left], (total + over)[left])
        return ClassSums(self.classes, self.counts, rest, self.key[kept], self.values[:, kept])

    def only(self, label: int) -> ClassSums:
        """The sums of one class."""
        mine, rows = self.classes == label, slice(*np.searchsorted(self.labels, [label, label + 1]))
        return ClassSums(
            self.classes[mine], self.counts[mine], self.rest[:, mine], self.key[rows], self.values[:, rows]
        )


def keys(labels: IntegerArray, blocks: IntegerArray) -> IntegerArray:
    """Classes and blocks as one number each."""
    return (labels << BITS) + blocks


def _union(one: IntegerArray, other: IntegerArray) -> IntegerArray:
    """The numbers of two sorted rows, each once."""
    both: IntegerArray = np.sort(np.concatenate([one, other]), kind="stable")
    again = np.flatnonzero(both[1:] == both[:-1])
    return np.delete(both, again)


def sums_of(table: Tensor, classes: Sequence[int], room: int) -> list[ClassSums]:
    """The sums of single samples: the largest shares of each row of ``table (samples, blocks)``, the others bounded."""
    samples = len(table)
    chosen = largest(table.abs(), room).sort(1).values
    left = table.scatter(1, chosen, 0)
    rest = torch.stack([-left.amin(1).clamp(max=0), left.amax(1).clamp(min=0)], 1).double().cpu().numpy()
    values, found = table.gather(1, chosen).double().cpu().numpy(), chosen.cpu().numpy()
    one = np.ones(1, np.int64)
    sums = []
    for sample in range(samples):
        some = values[sample] != 0
        rows = np.zeros((3, int(some.sum())))
        rows[0] = values[sample][some]
        label = classes[sample] * one
        sums.append(ClassSums(label, one, rest[sample][:, None], keys(label, found[sample][some]), rows))
    return sums


TreePlace = tuple[int, int]
"""Height and place in the tree: ``(h, i)`` has the samples from ``i * 2**h`` to before ``(i + 1) * 2**h``."""


class Leading:
    """Gathers the blocks with the largest sums of every class, ``room`` of each.

    Samples come in any order and in any parts, each of them once, those that failed as well (:meth:`skip`): the same
    nodes of the tree are made of them.
    """

    def __init__(self, room: int) -> None:
        self.room = room
        self.nodes: dict[TreePlace, ClassSums | None] = {}

    def add(self, numbers: Sequence[int], table: Tensor, classes: Sequence[int]) -> None:
        """Counts a batch ``(samples, blocks)`` in, each sample to its class."""
        for number, sums in zip(numbers, sums_of(table, classes, self.room), strict=True):
            self.take((0, number), sums)

    def skip(self, number: int) -> None:
        """A sample that could not be explained."""
        self.take((0, number), None)

    def take(self, node: TreePlace, sums: ClassSums | None) -> None:
        """Counts a node of the tree in; as soon as its sibling is there too, both become their parent."""
        height, index = node
        while (height, index ^ 1) in self.nodes:
            sums = _joined(sums, self.nodes.pop((height, index ^ 1)), self.room)
            height, index = height + 1, index // 2
        self.nodes[height, index] = sums

    def absorb(self, other: Leading) -> None:
        """Counts in what another one has gathered."""
        for node in sorted(other.nodes, key=first_sample):
            self.take(node, other.nodes[node])

    def total(self, label: int) -> ClassSums | None:
        """The sums of one class over all samples that came; None if it has none.

        Samples that are missing change nothing: the tree is merged as if they had no relevance.
        """
        nodes = {node: sums.only(label) for node, sums in self.nodes.items() if sums is not None}
        while len(nodes) > 1:
            lowest = min(height for height, _ in nodes)
            for height, index in sorted(node for node in nodes if node[0] == lowest):
                parent, sums = (height + 1, index // 2), nodes.pop((height, index))
                nodes[parent] = sums if parent not in nodes else nodes[parent].merge(sums).prune(self.room)
        whole = next(iter(nodes.values()), None)
        return None if whole is None or not len(whole.classes) else whole

    @property
    def classes(self) -> list[int]:
        """The classes that occur."""
        return sorted({int(label) for sums in self.nodes.values() if sums is not None for label in sums.classes})


def first_sample(node: TreePlace) -> int:
    """The first sample of a node."""
    return node[1] << node[0]


def _joined(one: ClassSums | None, other: ClassSums | None, room: int) -> ClassSums | None:
    if one is None or other is None:
        return other if one is None else one
    return one.merge(other).prune(room)


@dataclass(frozen=True)
class Leader:
    """A block of a class: its number, its mean share, and the interval that holds the true mean."""

    block: int
    mean: float
    low: float
    high: float


def leaders(sums: ClassSums, blocks: int, k: int) -> tuple[list[Leader], float]:
    """The ``k`` blocks of the only class, of so many, with the largest known sums; the mean that no other exceeds."""
    total, under, over = sums.values
    means = np.stack([total, total - under, total + over]) / sums.counts[0]
    order = best_first(total, sums.blocks)
    found = [Leader(int(block), *map(float, row)) for block, row in zip(sums.blocks, means.T, strict=True)]
    others = [found[i].high for i in order[k:]]
    if len(found) < blocks:
        others.append(float(sums.rest[1, 0] / sums.counts[0]))
    return [found[i] for i in order[:k]], max(others, default=-math.inf)
