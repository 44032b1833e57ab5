"""The largest of many: whatever is asked, it is a plain sort by the value, then by the id."""

from __future__ import annotations

import math

import numpy as np
import torch
from hypothesis import given, strategies as st

from nrm.largest import among_largest, best_first, largest, largest_of_groups, reaching
from nrm.search import BestFlows, Request

SEEDS = st.integers(0, 2**16)
SMALL = st.integers(1, 12)


def draw(count: int, tied: bool, seed: int) -> tuple[np.ndarray, np.random.Generator]:
    random = np.random.default_rng(seed)
    return random.integers(-2, 3, count).astype(float) if tied else random.normal(size=count), random


@given(st.integers(0, 60), SMALL, st.booleans(), SEEDS)
def test_dense_values_have_their_places_as_ids(count: int, k: int, tied: bool, seed: int) -> None:
    values, _ = draw(3 * count, tied, seed)
    table = values.reshape(3, count)
    expected = [sorted(range(count), key=lambda i: (-row[i], i))[:k] for row in table]
    assert largest(torch.from_numpy(table), k).tolist() == expected
    assert largest(torch.from_numpy(table[0]), k).tolist() == expected[0]


def test_what_is_no_number_comes_last() -> None:
    values = torch.tensor([math.nan, -1.0, math.nan, 2.0])
    assert largest(values, 4).tolist() == [3, 1, 0, 2]
    assert largest(torch.tensor([5, 7, 7]), 2).tolist() == [1, 2]


@given(st.integers(1, 60), SMALL, st.booleans(), SEEDS)
def test_those_that_reach_are_all_that_can_be_among_the_largest(count: int, k: int, tied: bool, seed: int) -> None:
    values, _ = draw(count, tied, seed)
    least = sorted(values, reverse=True)[min(k, count) - 1]
    assert reaching(torch.from_numpy(values), k).tolist() == [bool(v >= least) for v in values]


@given(st.integers(1, 2**40), st.integers(0, 60), st.booleans(), SEEDS)
def test_the_quick_order_is_that_of_all_three_keys(groups: int, count: int, tied: bool, seed: int) -> None:
    values, random = draw(count, tied, seed)
    group, ids = random.integers(0, groups, count), random.permutation(count)
    expected = sorted(range(count), key=lambda i: (group[i], -values[i], ids[i]))
    assert best_first(values, ids, group).tolist() == expected
    assert best_first(values).tolist() == sorted(range(count), key=lambda i: (-values[i], i))


@given(st.integers(1, 5), st.integers(0, 60), SMALL, st.booleans(), SEEDS)
def test_rows_are_kept_by_group_or_of_all(groups: int, count: int, k: int, tied: bool, seed: int) -> None:
    values, random = draw(count, tied, seed)
    group, ids = random.integers(0, groups, count), random.permutation(count)
    expected = set()
    for g in range(groups):
        expected |= set(sorted((i for i in range(count) if group[i] == g), key=lambda i: (-values[i], ids[i]))[:k])
    assert set(np.flatnonzero(largest_of_groups(values, ids, group, k))) == expected
    best = sorted(range(count), key=lambda i: (-values[i], group[i], ids[i]))[:k]
    assert set(np.flatnonzero(among_largest(values, k, group, ids))) == set(best)


@given(st.integers(1, 40), SMALL, st.booleans(), SEEDS)
def test_flows_come_in_any_parts(count: int, k: int, tied: bool, seed: int) -> None:
    """Their ids are blocks, which are not in the order of places."""
    values, random = draw(count, tied, seed)
    blocks = [(int(i) % 3, int(i)) for i in random.permutation(count)]
    best, request = BestFlows(k), Request.read(k, "+", "exact", 1.0)
    for part in np.array_split(random.permutation(count), 3):
        if len(part):
            best.add(
                request, torch.from_numpy(values[part]),
                lambda at, part=part: [blocks[part[i]] for i in at.tolist()],  # type: ignore[misc]
            )  # fmt: skip
    expected = sorted((-values[i], blocks[i], values[i]) for i in range(count) if values[i] > 0)[:k]
    assert best.found == expected
