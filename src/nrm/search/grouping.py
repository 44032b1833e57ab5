"""Grouping the blocks of a layer by what they hold, k-means over activations; or by hand.

A group is a union of blocks, so grouping is a label map and nothing else: ``layer.groups(labels)``. Every sample has a
map of its own; the measure of one sample gives one map, which fits every measure with that layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nrm.errors import NrmError, QuestionError
from nrm.extras import extra
from nrm.questions import Asked, Blocks, Layer, Partition
from nrm.search.found import read_count

Vectors = npt.NDArray[np.float64]
Fit = Callable[[Vectors], npt.NDArray[np.int64]]

STARTS = 4
"""How often k-means begins anew; the best of them is taken."""


def cluster(R: Asked, layer: Layer | Partition | str, k: int = 8, *, seed: int = 0) -> Partition:
    """The positions of a layer in ``k`` clusters of similar activations, for every sample by itself.

    k-means over the positions, each the vector of its channels; all channels of a position share its cluster. Clusters
    are numbered by decreasing relevance. Where a sample has fewer than ``k`` distinct positions, each of them is a
    cluster, and the other clusters are empty. The same seed gives the same clusters.

    A partition says what else is to be clustered: ``a.channels`` by their maps, ``a.axis(0)``, or some positions only,
    ``a.positions[4:8, 4:8]`` (the others are left out). Needs the extra ``cluster`` (scikit-learn).

    >>> import nrm
    >>> _ = torch.manual_seed(0)
    >>> from torch import nn
    >>> model = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(384, 2))
    >>> R = nrm.measure(model, torch.rand(2, 1, 10, 10))
    >>> parts = nrm.cluster(R, "1", k=3)
    >>> R(parts).shape, R(parts, R["1"].channels).shape
    (torch.Size([2, 3]), torch.Size([2, 3, 6]))
    """
    try:
        partition = _read(layer)
        count = read_count(k, "groups")
        blocks = blocks_of(R, partition)
        vectors = _vectors(R, blocks, partition)
        fit = _k_means(count, seed)
    except NrmError as error:
        raise error.at("nrm.cluster") from None
    labels = np.stack([_joined(one, mine, count, fit) for one, mine in zip(vectors, _owned(R, blocks), strict=True)])
    grouped = grouped_by(R, partition, blocks, torch.from_numpy(labels))
    return grouped_by(R, partition, blocks, ranked(torch.from_numpy(labels), R(grouped)))


def merge(R: Asked, partition: Partition, *groups: Sequence[int]) -> Partition:
    """A partition some of whose blocks are joined, by hand: every list of ``groups`` becomes one block.

    A joined block has the smallest number of its own, all others keep theirs; numbers that are taken up are empty.

    >>> import nrm
    >>> from torch import nn
    >>> R = nrm.measure(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)), torch.ones(1, 4))
    >>> a, joined = R["1"], nrm.merge(R, R["1"].channels, [1, 4], [2, 5])
    >>> torch.allclose(R(joined[1]), R(a.channel([1, 4])))
    True
    """
    try:
        blocks = blocks_of(R, partition)
        labels = torch.arange(blocks.count)
        taken: set[int] = set()
        for group in groups:
            own = [int(n) for n in group]
            if not own or len(set(own)) < len(own) or not all(0 <= n < blocks.count for n in own) or taken & set(own):
                raise QuestionError(
                    "not a group of blocks", got=f"{list(group)!r}"[:80],
                    expected=f"different numbers from 0 to {blocks.count - 1}, each in one group",
                )  # fmt: skip
            taken |= set(own)
            labels[own] = min(own)
    except NrmError as error:
        raise error.at("nrm.merge") from None
    return grouped_by(R, partition, blocks, labels[None])


def _read(layer: Any) -> Partition:
    if isinstance(layer, str):
        layer = Layer(layer)
    if isinstance(layer, Layer):
        return layer.positions
    if not isinstance(layer, Partition):
        raise QuestionError(
            "not a layer", got=repr(layer)[:120], expected="a layer, its name, or a partition such as a.positions"
        )
    return layer


def blocks_of(R: Asked, partition: Partition) -> Blocks:
    """A partition with its geometry in this measure."""
    blocks = Blocks.of(R.resolve(partition.layer)[1], partition)
    blocks.refuse_repeats()
    return blocks


def _vectors(R: Asked, blocks: Blocks, partition: Partition) -> Vectors:
    """The activations of every block: ``(samples, blocks, entries)``."""
    shape = blocks.frame.layer_shape
    if blocks.axes is None or not blocks.axes:
        raise QuestionError(
            f"layer {partition.layer} has no {'blocks along axes' if blocks.axes is None else 'positions'}",
            got=f"{partition}, layer shape {shape}",
            expected="a layer with positions, such as (channels, height, width), or a partition along its axes",
            hint=None if blocks.axes is None else "nrm.cluster(R, a.channels, k), or nrm.coarsen for channels",
        )
    values = R.values(partition.layer)
    values = values.expand(len(R), *shape).permute(0, *(a + 1 for a in blocks.axes), *_others(blocks))
    flat = values.reshape(len(R), math.prod(blocks.full), -1)
    flat = flat if blocks.picked is None else flat[:, blocks.picked.flatten().to(flat.device)]
    if not bool(torch.isfinite(flat).all()):
        raise QuestionError(
            f"layer {partition.layer} has activations that are not finite",
            got=f"{int((~torch.isfinite(flat)).sum())} of {flat.numel()}", expected="finite numbers",
        )  # fmt: skip
    return flat.double().cpu().numpy()


def _others(blocks: Blocks) -> list[int]:
    assert blocks.axes is not None
    return [a + 1 for a in range(len(blocks.frame.layer_shape)) if a not in blocks.axes]


def _owned(R: Asked, blocks: Blocks) -> npt.NDArray[np.bool_]:
    """Which blocks are a sample's own; all of them, unless samples share one tensor."""
    frame = blocks.frame
    if frame.sample is not None or frame.owner is None:
        return np.ones((len(R), blocks.count), dtype=bool)
    mine = frame.owner[None] == torch.tensor(list(R.samples), device=frame.device).view(-1, *(1,) * len(frame.shape))
    return blocks.read(mine[None].long())[0].reshape(len(R), -1).gt(0).cpu().numpy()


def _k_means(k: int, seed: Any) -> Fit:
    if not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise QuestionError("not a seed", got=f"seed={seed!r}", expected="an integer from 0 to 2**32 - 1")
    with extra("cluster", "nrm.cluster"):
        from sklearn.cluster import KMeans
        from threadpoolctl import threadpool_limits

    def fit(vectors: Vectors) -> npt.NDArray[np.int64]:
        with threadpool_limits(1, "openmp"):  # threads add up in any order, so that rounding would differ
            found: npt.NDArray[np.int64] = KMeans(k, n_init=STARTS, random_state=seed).fit(vectors).labels_
        return found

    return fit


def _joined(vectors: Vectors, mine: npt.NDArray[np.bool_], k: int, fit: Any) -> npt.NDArray[np.int64]:
    """The cluster of every block of one sample, -1 for what is not its own."""
    labels = np.full(len(vectors), -1)
    own = vectors[mine]
    if len(np.unique(own[: 64 * k], axis=0)) > k:  # the usual case, without sorting all of them
        labels[mine] = fit(own)
    elif len(own):
        distinct, which = np.unique(own, axis=0, return_inverse=True)
        labels[mine] = which.reshape(-1) if len(distinct) <= k else fit(own)
    return labels


# ---- label maps ------------------------------------------------------------------------------------------------------


def ranked(labels: Tensor, relevance: Tensor) -> Tensor:
    """Groups ``(samples, blocks)``, numbered by decreasing relevance, ties by their first block."""
    new = torch.full_like(labels, -1)
    for sample, (mine, share) in enumerate(zip(labels.tolist(), relevance.tolist(), strict=True)):
        found = [g for g in dict.fromkeys(mine) if g >= 0]
        numbers = {g: i for i, g in enumerate(sorted(found, key=lambda g: -share[g]))}
        new[sample] = torch.tensor([numbers.get(g, -1) for g in mine])
    return new


def grouped_by(R: Asked, partition: Partition, blocks: Blocks, labels: Tensor) -> Partition:
    """The partition whose groups are unions of blocks: ``labels`` are ``(samples, blocks)``, -1 leaves one out.

    The label map has axes of length 1 wherever blocks have no axis.
    """
    numbers = blocks.numbering().cpu()
    numbers = numbers if len(numbers) == 1 else numbers[list(R.samples)]
    wide = torch.cat([labels.new_full((len(labels), 1), -1), labels], 1)
    numbers = numbers.expand(len(labels), *numbers.shape[1:])
    maps = torch.stack([one[own + 1] for one, own in zip(wide, numbers, strict=True)])
    return partition.layer.groups(maps if len(maps) > 1 else maps[0])
