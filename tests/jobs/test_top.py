"""The algebra of best samples: any order, any parts, any repetition give the same rows."""

from __future__ import annotations

import math

import numpy as np
import torch
from hypothesis import given, strategies as st

from nrm.jobs.top import BestSamples, Top, merge


def rows(top: Top) -> list[tuple[float, ...]]:
    return list(zip(top.block, top.sample, top.score, top.place, strict=True))


def batch(k: int, bound: int, scores: np.ndarray, numbers: np.ndarray) -> Top:
    places = np.arange(scores.size).reshape(scores.shape) % 7
    best = BestSamples(k, bound)
    best.add(numbers, torch.from_numpy(scores[numbers]), torch.from_numpy(places[numbers]))
    return best.top()


SMALL = st.integers(1, 5)


@given(SMALL, st.integers(1, 40), SMALL, st.integers(1, 14), st.integers(0, 2**16), SMALL)
def test_merging_is_associative_commutative_and_idempotent(
    k: int, bound: int, blocks: int, samples: int, seed: int, parts: int
) -> None:
    random = np.random.default_rng(seed)
    scores = random.integers(-3, 6, (samples, blocks)).astype(float)  # many ties
    whole = batch(k, bound, scores, np.arange(samples))
    order = random.permutation(samples)
    pieces = [batch(k, bound, scores, np.sort(p)) for p in np.array_split(order, parts) if len(p)]
    random.shuffle(pieces)
    left = pieces[0]
    for piece in pieces[1:]:
        left = merge([left, piece])
    assert rows(left) == rows(whole)
    assert rows(merge(pieces)) == rows(whole)
    assert rows(merge([left, left, pieces[0]])) == rows(whole)
    # the slow truth
    expected = []
    for b in range(blocks):
        ranked = sorted((-scores[s, b], s) for s in range(samples))
        if blocks * k > bound:
            ranked = [(v, s) for v, s in ranked if v < 0]
        expected += [(v, b, s) for v, s in ranked[:k]]
    expected = sorted(sorted(expected)[:bound], key=lambda row: (row[1], row[0], row[2]))
    assert [(-s, b, n) for b, n, s, _ in rows(whole)] == expected


def test_the_cut_tells_what_may_be_missing() -> None:
    random = np.random.default_rng(0)
    scores = random.random((30, 50))
    top = batch(5, 40, scores, np.arange(30))
    assert len(top) == 40
    for block in range(50):
        best = np.sort(scores[:, block])[::-1][:5]
        kept = top.of_block(block).score
        assert (best[best > top.cut] == kept[kept > top.cut]).all()
    assert math.isinf(batch(5, 1000, scores, np.arange(30)).cut)


@given(SMALL, st.integers(1, 60), st.integers(1, 30), st.integers(1, 30), st.integers(0, 2**16))
def test_batches_make_no_difference(k: int, bound: int, blocks: int, size: int, seed: int) -> None:
    scores = np.random.default_rng(seed).integers(-3, 9, (30, blocks)).astype(float)
    places = np.arange(scores.size).reshape(scores.shape) % 7
    best = BestSamples(k, bound)
    for begin in range(0, 30, size):
        part = slice(begin, begin + size)
        best.add(np.arange(30)[part], torch.from_numpy(scores[part]), torch.from_numpy(places[part]))
        if seed % 2:
            best.top()  # to look at it changes nothing
    assert rows(best.top()) == rows(batch(k, bound, scores, np.arange(30)))


@given(SMALL, st.integers(1, 60), st.integers(1, 30), SMALL, st.integers(0, 2**16))
def test_what_is_known_makes_shards_smaller_and_no_difference(
    k: int, bound: int, blocks: int, size: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    scores = random.integers(-3, 9, (30, blocks)).astype(float)
    places = np.arange(scores.size).reshape(scores.shape) % 7
    known, kept, whole = BestSamples(k, bound), BestSamples(k, bound), []
    for numbers in np.array_split(random.permutation(30), 30 // size):
        numbers.sort()
        shard = BestSamples(k, bound, known)
        shard.add(numbers, torch.from_numpy(scores[numbers]), torch.from_numpy(places[numbers]))
        whole += numbers.tolist()
        alone = batch(k, bound, scores, numbers)
        assert set(rows(shard.top())) <= set(rows(alone))
        known.absorb(shard)
        kept.absorb(shard)
        # so far: nothing is missing that the cut does not tell
        expected = batch(k, bound, scores, np.sort(whole))
        assert rows(kept.top()) == rows(expected)
        assert kept.cut == expected.cut
    assert rows(kept.top()) == rows(batch(k, bound, scores, np.arange(30)))
