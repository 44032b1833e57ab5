"""The largest of many, by one law: the larger value comes first, and of equal values the one with the smaller id.

An id is whatever tells things apart: a place, a block, the number of a sample. As it settles every tie, what is among
the ``k`` largest depends neither on the order nor on the parts in which things come.

Dense values, whose ids are their places, are tensors (:func:`largest`); rows with ids of their own are arrays
(:func:`best_first`, :func:`among_largest`, :func:`largest_of_groups`). Where ids are costly, :func:`reaching` tells
first who can be among the largest at all.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

IntegerArray = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


def largest(values: Tensor, k: int) -> Tensor:
    """The places of the ``k`` largest values along the last axis, the largest first; what is no number comes last.

    >>> largest(torch.tensor([1.0, 3.0, torch.nan, 3.0, 1.0]), 3)
    tensor([1, 3, 0])
    """
    if values.is_floating_point():
        values = values.where(~values.isnan(), -torch.inf)
    k = min(k, values.shape[-1])
    # torch.topk alone settles ties as it likes. After it only the k that are left are sorted.
    least = values.topk(k).values[..., -1:] if k else values[..., :0]
    above, tied = values > least, values == least
    kept = above | (tied & (tied.cumsum(-1) <= k - above.sum(-1, keepdim=True)))
    places = kept.nonzero()[:, -1].view(*values.shape[:-1], k)
    order = values.gather(-1, places).argsort(dim=-1, descending=True, stable=True)
    return places.gather(-1, order)


def reaching(values: Tensor, k: int) -> Tensor:
    """Whether a value is as large as the ``k``-th largest: more than ``k`` are, where that one occurs several times.

    >>> reaching(torch.tensor([1.0, 3.0, 1.0, 0.0]), 2)
    tensor([ True,  True,  True, False])
    """
    if values.numel() <= k:
        return torch.ones_like(values, dtype=torch.bool)
    return values >= values.flatten().topk(k).values[-1]


def best_first(values: Floats, ids: IntegerArray | None = None, groups: IntegerArray | None = None) -> IntegerArray:
    """The order of rows by their group, the largest value first, of equal ones the smaller id, by default their place.

    >>> best_first(np.array([1.0, 2.0, 2.0]), np.array([5, 7, 6])).tolist()
    [2, 1, 0]
    """
    ids = np.arange(len(values)) if ids is None else ids
    groups = np.zeros(len(values), np.int64) if groups is None else groups
    order = np.argsort(-values)
    # Digits of groups are sorted in linear time; only ties are compared by all three keys.
    for shift in range(0, max(int(groups.max(initial=0)).bit_length(), 1), 16):
        order = order[np.argsort((groups[order] >> shift & 0xFFFF).astype(np.uint16), kind="stable")]
    group, value = groups[order], values[order]
    same = np.zeros(len(order) + 1, bool)
    same[1:-1] = (group[1:] == group[:-1]) & (value[1:] == value[:-1])
    ties = np.flatnonzero(same[1:] | same[:-1])
    some = order[ties]
    order[ties] = some[np.lexsort((ids[some], -values[some], groups[some]))]
    return order


def largest_of_groups(values: Floats, ids: IntegerArray, groups: IntegerArray, k: int) -> Flags:
    """Whether a row is among the ``k`` largest of its group."""
    kept = np.ones(len(values), bool)
    many = np.flatnonzero((np.bincount(groups) > k)[groups])  # small groups need no order
    order = many[best_first(values[many], ids[many], groups[many])]
    group = groups[order]
    kept[order[np.arange(len(order)) - np.searchsorted(group, group) >= k]] = False
    return kept


def among_largest(values: Floats, k: int, *ids: IntegerArray) -> Flags:
    """Whether a row is among the ``k`` largest of all; of equal ones the first in the order of their ``ids``."""
    if len(values) <= k:
        return np.ones(len(values), bool)
    least = np.partition(values, len(values) - k)[len(values) - k]
    kept: Flags = values > least
    ties = np.flatnonzero(values == least)
    order = np.lexsort([column[ties] for column in reversed(ids)])
    kept[ties[order[: k - int(kept.sum())]]] = True
    return kept
