"""Grouping the blocks of several layers by where their relevance goes: few groups that tell most of the pairs.

A pair table ``R(a.channels, b.channels)`` of 512 x 512 numbers says more than a picture can show. Groups of channels
say less; the question is which groups say the most. Read the table as a distribution of three variables: the block in
the one layer, the block in the other, and the sign, ``p(x, y, s) = |T[x, y]| / sum |T|`` for ``s = sign T[x, y]``. Its

    pair information = sum p(x, y, s) log( p(x, y, s) / (p(x) p(y) p(s)) )

is what the three know of each other: 0 if knowing where a walk passes says nothing about where else it does. Without
negative entries it is the mutual information of the two blocks. Grouping can only lose some of it, by the divergence of
the table from what its groups predict (information-theoretic co-clustering, Dhillon, Mallela and Modha 2003). A pair of
groups that holds both signs loses more, as their sum hides the cancellation.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nrm.errors import NrmError, QuestionError
from nrm.largest import best_first
from nrm.numbers import percent
from nrm.questions import Asked, Blocks, Layer, Partition, in_forward_order, read_partitions
from nrm.search.found import read_count
from nrm.search.grouping import blocks_of, grouped_by, ranked
from nrm.tables import Records, html_table

FloatTable = npt.NDArray[np.float64]
GroupNumbers = npt.NDArray[np.int64]

ROUNDS = 20
"""How often blocks are moved at most, all layers in turn; about five are enough."""
CHANCES, SMALL = 8, 256
"""How many random beginnings there are besides the good one, and for how many blocks at most; the best end counts.
They find the optimum of small tables more often. For VGG16's 512 x 512 three of them gained 0 to 3 % and took more
than three times as long."""
SEEDS = 2
"""How many seeds there are for every group; they are merged to the groups that the moves begin with."""


@dataclass(frozen=True, eq=False, repr=False)
class Coarsening(Records):
    """One grouped partition for each that was given, in the same order: ``low, high = nrm.coarsen(...)``.

    ``labels`` says for each of them which group every block is in, ``(samples, blocks)``; ``kept`` is the share of the
    pair information that the groups keep, ``(samples, pairs)``, for the neighbouring pairs from input to output.
    """

    partitions: tuple[Partition, ...]
    labels: tuple[Tensor, ...]
    kept: Tensor

    def __iter__(self) -> Iterator[Partition]:
        return iter(self.partitions)

    def __len__(self) -> int:
        return len(self.partitions)

    def __getitem__(self, index: int) -> Partition:
        return self.partitions[index]

    def members(self, index: int, group: int, sample: int = 0) -> list[int]:
        """The numbers of the blocks in a group of one of the partitions."""
        found: list[int] = (self.labels[index][sample] == group).nonzero()[:, 0].tolist()
        return found

    def records(self) -> list[dict[str, Any]]:
        """The group of every block, partition by partition and sample by sample."""
        return [
            {"layer": str(partition.layer), "sample": sample, "block": block, "group": group}
            for partition, labels in zip(self.partitions, self.labels, strict=True)
            for sample, row in enumerate(labels.tolist())
            for block, group in enumerate(row)
        ]

    def _keys(self) -> Sequence[str]:
        return ("layer", "sample", "block")

    def _repr_html_(self) -> str:
        head, *rows, kept = repr(self).splitlines()
        cells = [row.strip().split(": ", 1) for row in rows]
        return html_table(head, ("layer", "groups"), cells, [kept.strip()])

    def __repr__(self) -> str:
        lines = [
            f"  {partition.layer}: {labels.shape[1]} blocks in {int(labels.max()) + 1} groups"
            for partition, labels in zip(self.partitions, self.labels, strict=True)
        ]
        kept = "; ".join(", ".join(percent(share, 0) for share in row) for row in self.kept[:4].tolist())
        more = " ..." if len(self.kept) > 4 else ""
        return "\n".join(["coarsening", *lines, f"  pair information kept: {kept}{more}"])


def coarsen(R: Asked, *partitions: Partition | Layer, k: int = 8) -> Coarsening:
    """The blocks of two or more layers in ``k`` groups each that keep as much pair information as possible.

    Two blocks belong together if their relevance is shared alike among the blocks of the neighbouring layers (the next
    partition toward the input, and toward the output). The groups of all layers are found together: every block moves
    to the group where it costs the least information of the tables ``R(p, q)`` of neighbours, until none wants to. That
    is a local optimum, the same in every run. Every sample has its own groups, numbered by decreasing relevance. Blocks
    without relevance are in the group with the least.

    >>> import nrm
    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.Sequential(
    ...     torch.nn.Linear(9, 40), torch.nn.ReLU(), torch.nn.Linear(40, 30), torch.nn.ReLU(), torch.nn.Linear(30, 4)
    ... )
    >>> R = nrm.measure(model, torch.rand(1, 9), rules="epsilon-plus")
    >>> groups = nrm.coarsen(R, R["1"].channels, R["3"].channels, k=4)
    >>> R(*groups).shape
    torch.Size([1, 4, 4])
    >>> bool(0 < groups.kept < 1)
    True
    """
    try:
        count = read_count(k, "groups")
        asked = _read(partitions)
        order = in_forward_order(asked, R.resolve)
        blocks = [blocks_of(R, partition) for partition in asked]
        tables = [_table(R, asked, blocks, low, high) for low, high in itertools.pairwise(order)]
        marginals = [R(p).reshape(len(R), -1) for p in asked]
    except NrmError as error:
        raise error.at("nrm.coarsen") from None
    found = [_grouped([table[sample] for table in tables], count) for sample in range(len(R))]
    labels, parts = [], []
    for i, (partition, block, share) in enumerate(zip(asked, blocks, marginals, strict=True)):
        mine = torch.from_numpy(np.stack([sample[order.index(i)] for sample in found]))
        mine = ranked(mine, _summed(share, mine))
        labels.append(mine)
        parts.append(grouped_by(R, partition, block, mine))
    kept = [
        _share_kept(table, labels[low], labels[high])
        for table, (low, high) in zip(tables, itertools.pairwise(order), strict=True)
    ]
    return Coarsening(tuple(parts), tuple(labels), torch.stack(kept, 1))


def pair_information(table: Tensor) -> Tensor:
    """The pair information of signed tables ``(..., x, y)`` in nats; see the module's text.

    >>> pair_information(torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[1.0, 1.0], [1.0, 1.0]]])).exp()
    tensor([2., 1.], dtype=torch.float64)
    """
    return _information(torch.stack(_signs(table), -1))


def _signs(table: Tensor) -> list[Tensor]:
    """Positive and negative entries as shares of the total absolute relevance."""
    table = table.double()
    total = table.abs().sum((-2, -1), keepdim=True)
    share = table / torch.where(total == 0, torch.ones_like(total), total)
    return [share.clamp(min=0), (-share).clamp(min=0)]


def _information(p: Tensor) -> Tensor:
    """Total correlation of ``(..., x, y, s)``."""

    def sums(dims: tuple[int, ...]) -> Tensor:
        part = p.sum(dims) if dims else p
        return torch.xlogy(part, part).flatten(p.ndim - 3).sum(-1)

    return sums(()) - sums((-2, -1)) - sums((-3, -1)) - sums((-3, -2))


def _share_kept(table: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """How much of every sample's pair information its groups keep; 1 where there is none."""
    p = torch.stack(_signs(table), -1)
    rows, columns = (torch.nn.functional.one_hot(g).double() for g in (low, high))
    coarse = torch.einsum("bxys,bxu,byv->buvs", p, rows, columns)
    before, after = _information(p), _information(coarse)
    none = before <= 64 * torch.finfo(torch.float64).eps
    return torch.where(none, torch.ones_like(before), after / torch.where(none, torch.ones_like(before), before))


# ---- reading ---------------------------------------------------------------------------------------------------------


def _read(partitions: Sequence[Any]) -> list[Partition]:
    found = read_partitions(partitions)
    if len(found) < 2:
        raise QuestionError(
            "pairs need two layers", got=f"{len(partitions)} partition{'s' * (len(partitions) != 1)}",
            expected="the partitions of two or more layers",
            hint="nrm.coarsen(R, a.channels, b.channels); nrm.cluster groups one layer by its activations",
        )  # fmt: skip
    return found


def _table(R: Asked, asked: list[Partition], blocks: list[Blocks], low: int, high: int) -> Tensor:
    table = R(asked[low], asked[high]).reshape(len(R), blocks[low].count, blocks[high].count)
    empty = table.abs().sum((1, 2)) == 0
    if bool(empty.any()):
        raise QuestionError(
            f"no relevance passes through both {asked[low].layer} and {asked[high].layer}",
            got=f"a table of zeros for sample {int(empty.nonzero()[0, 0])}", expected="layers on a common walk",
        )  # fmt: skip
    return table.cpu()


def _summed(share: Tensor, labels: Tensor) -> Tensor:
    total = share.new_zeros(len(share), int(labels.max()) + 1).cpu()
    return total.scatter_add(1, labels, share.cpu())


# ---- the search ------------------------------------------------------------------------------------------------------


def _grouped(tables: list[Tensor], k: int) -> list[GroupNumbers]:
    """The groups of one sample's layers, from input to output, for the tables between them: the best of all starts."""
    signed = [torch.stack(_signs(table), -1).numpy() for table in tables]
    signed = [p if p[..., 1].any() else p[..., :1] for p in signed]
    sides = [[*([signed[i - 1].swapaxes(0, 1)] if i else []), *signed[i : i + 1]] for i in range(len(tables) + 1)]
    random = np.random.default_rng(0)
    starts = [[_begin(Profiles.of(side), k) for side in sides]]
    if sum(len(side[0]) for side in sides) <= SMALL:
        starts += [[random.integers(k, size=len(side[0])) for side in sides] for _ in range(CHANCES)]
    found = [_settle(sides, labels, k) for labels in starts]
    return max(found, key=lambda labels: _content(signed, labels, k))


def _settle(sides: list[list[FloatTable]], labels: list[GroupNumbers], k: int) -> list[GroupNumbers]:
    """Moves blocks of all layers in turn until none wants to."""
    for _ in range(ROUNDS):
        moved = 0
        for i, side in enumerate(sides):
            near = [*([labels[i - 1]] if i else []), *labels[i + 1 : i + 2]]
            seen = [_add_up(p.swapaxes(0, 1), g, k).swapaxes(0, 1) for p, g in zip(side, near, strict=True)]
            moved += _move(Profiles.of(seen), labels[i], k)
        if not moved:
            break
    return labels


def _content(tables: list[FloatTable], labels: list[GroupNumbers], k: int) -> float:
    """The pair information of all grouped tables."""
    total = 0.0
    for p, low, high in zip(tables, labels, labels[1:], strict=False):
        coarse = _add_up(_add_up(p, low, k).swapaxes(0, 1), high, k).swapaxes(0, 1)
        total += float(_information(torch.from_numpy(coarse)))
    return total


@dataclass(frozen=True, eq=False)
class Profiles:
    """How the blocks of a layer share their relevance: ``rows`` for all neighbours side by side, ``sides`` by whom."""

    rows: FloatTable
    sides: FloatTable

    @classmethod
    def of(cls, tables: list[FloatTable]) -> Profiles:
        """The profiles of the first axis of some tables ``(x, y, sign)``."""
        flat = [p.reshape(len(p), -1) for p in tables]
        sides = np.repeat(np.eye(len(flat)), [p.shape[1] for p in flat], axis=0)
        return cls(np.concatenate(flat, 1), sides)

    def content(self, rows: FloatTable) -> FloatTable:
        """What groups with these summed profiles add to the pair information of their neighbours' tables."""
        total: FloatTable = _xlogx(rows).sum(-1) - _xlogx(rows @ self.sides).sum(-1)
        return total

    def price(self, row: FloatTable, others: FloatTable, content: FloatTable | None = None) -> FloatTable:
        """The information that is lost if a group with one profile is united with one of the others."""
        return self.content(row) + (self.content(others) if content is None else content) - self.content(row + others)


def _begin(profiles: Profiles, k: int) -> GroupNumbers:
    """The first groups: blocks far from each other as seeds, the others to their nearest, and the seeds merged to k."""
    rows, content = profiles.rows, profiles.content(profiles.rows)
    near = np.zeros(len(rows), dtype=np.int64)
    price = profiles.price(rows[rows.sum(1).argmax()], rows, content)
    for seed in range(1, SEEDS * k):
        far = int(price.argmax())
        if price[far] <= 1e-12:
            break
        new = profiles.price(rows[far], rows, content)
        near[new < price] = seed
        price = np.minimum(price, new)
    near = np.unique(near, return_inverse=True)[1].reshape(-1)
    return _merge(profiles, near, k)


def _merge(profiles: Profiles, labels: GroupNumbers, k: int) -> GroupNumbers:
    """Unites the two groups whose union costs least, until k are left."""
    count = int(labels.max()) + 1
    sums = _add_up(profiles.rows, labels, count)
    price = np.full((count, count), np.inf)
    for i in range(count - 1):
        price[i, i + 1 :] = profiles.price(sums[i], sums[i + 1 :])
    alive = np.ones(count, dtype=bool)
    for _ in range(count - k):
        i, j = divmod(int(price.argmin()), count)
        labels = np.where(labels == j, i, labels)
        sums[i] += sums[j]
        alive[j] = False
        price[j], price[:, j] = np.inf, np.inf
        others = np.flatnonzero(alive & (np.arange(count) != i))
        price[np.minimum(i, others), np.maximum(i, others)] = profiles.price(sums[i], sums[others])
    return np.unique(labels, return_inverse=True)[1].reshape(-1)


def _move(profiles: Profiles, labels: GroupNumbers, k: int) -> int:
    """Moves blocks one by one to where they cost least, in place; says how many moved."""
    rows, mass = profiles.rows, profiles.rows.sum(1)
    heavy = [int(x) for x in best_first(mass) if mass[x] > 0]
    total = 0
    for _ in range(ROUNDS):
        moved = 0
        sums = _add_up(rows, labels, k)
        content = profiles.content(sums)
        for x in heavy:
            here = labels[x]
            without = np.maximum(sums[here] - rows[x], 0)
            gain = profiles.content(sums + rows[x]) - content
            gain[here] = content[here] - profiles.content(without)
            best = int(gain.argmax())
            if gain[best] <= gain[here] + 1e-12:
                continue
            sums[here] = without
            sums[best] += rows[x]
            content[[here, best]] = profiles.content(sums[[here, best]])
            labels[x] = best
            moved += 1
        total += moved
        if not moved:
            break
    labels[mass == 0] = _add_up(mass, labels, k).argmin()
    return total


def _add_up(rows: FloatTable, labels: GroupNumbers, k: int) -> FloatTable:
    total = np.zeros((k, *rows.shape[1:]))
    np.add.at(total, labels, rows)
    return total


def _xlogx(p: FloatTable) -> FloatTable:
    return p * np.log(np.maximum(p, 1e-300))
