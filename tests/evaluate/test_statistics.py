"""Correlation and sums over the highest scores: by the book, in parts as in one, and with confidence intervals."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from nrm.errors import QuestionError
from nrm.evaluate import Correlation, TopSums, interval, pearson, sc_k


def tables(seed: int = 0, levels: int = 7) -> tuple[Tensor, Tensor]:
    """Contributions and scores with many equal scores."""
    random = torch.Generator().manual_seed(seed)
    C = torch.randn(3, 6, 10, generator=random, dtype=torch.float64) + 5.0
    S = torch.randint(0, levels, (3, 6, 10), generator=random).double()
    return C, S


def test_pearson_is_that_of_numpy() -> None:
    C, S = tables(levels=1000)
    expected = [np.corrcoef(c.flatten(), s.flatten())[0, 1] for c, s in zip(C, S, strict=True)]
    torch.testing.assert_close(pearson(C, S), torch.tensor(expected))
    assert bool(torch.isnan(pearson(C, torch.ones_like(C))).all())


def test_correlation_survives_a_large_mean() -> None:
    C, S = tables(levels=1000)
    torch.testing.assert_close(pearson(C + 1e6, S - 1e7), pearson(C, S), rtol=1e-7, atol=1e-7)


def test_sums_over_the_highest_scores() -> None:
    C, S = tables(levels=100000)
    order = S.flatten(1).argsort(1, descending=True)
    expected = C.flatten(1).gather(1, order).cumsum(1)
    torch.testing.assert_close(sc_k(C, S), expected)
    torch.testing.assert_close(sc_k(C, S, [1, 7, 60]), expected[:, [0, 6, 59]])


def test_equal_scores_count_in_all_orders() -> None:
    C, S = torch.tensor([[1.0, 5.0, 2.0, 7.0]]), torch.tensor([[3.0, 1.0, 1.0, 1.0]])
    sums = []
    for order in itertools.permutations([1, 2, 3]):
        sums.append(C[0, [0, *order]].cumsum(0))
    torch.testing.assert_close(sc_k(C, S)[0].float(), torch.stack(sums).mean(0))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(1, 60), st.integers(1, 12))
def test_parts_are_as_good_as_the_whole(sizes: list[int], keep: int, levels: int) -> None:
    C, S = (t.flatten(1) for t in tables(sum(sizes), levels))
    correlation, top = Correlation(), TopSums(keep)
    begin = 0
    for size in [*sizes, C.shape[1]]:
        if begin < C.shape[1]:
            part = slice(begin, begin + size)
            correlation.update(C[:, part], S[:, part])
            top.update(C[:, part], S[:, part])
            begin += size
    assert correlation.count == top.count == C.shape[1]
    torch.testing.assert_close(correlation.value, pearson(C, S), equal_nan=True)
    torch.testing.assert_close(top.curve(), sc_k(C, S, range(1, keep + 1)))


@pytest.mark.parametrize("levels", [3, 40, 10**9])
def test_large_parts_are_narrowed_before_they_are_sorted(levels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    random = torch.Generator().manual_seed(0)
    C = torch.randn(2, 300_000, generator=random, dtype=torch.float64)
    S = torch.randint(0, levels, (2, 300_000), generator=random).double()
    expected = sc_k(C, S, range(1, 5001))
    monkeypatch.setattr("nrm.evaluate.statistics.PIECE", 1000)
    top = TopSums(5000)
    for part in (slice(0, 200_000), slice(200_000, 300_000)):
        top.update(C[:, part], S[:, part])
    torch.testing.assert_close(top.curve(), expected)
    correlations = [torch.corrcoef(torch.stack([c, s]))[0, 1] for c, s in zip(C, S, strict=True)]
    torch.testing.assert_close(pearson(C, S), torch.stack(correlations))


def test_intervals_cover_the_mean() -> None:
    random = torch.Generator().manual_seed(0)
    covered = 0
    for seed in range(100):
        values = torch.randn(40, generator=random) + 2.0
        low, high = interval(values, seed=seed)
        covered += low <= 2.0 <= high
    assert 85 <= covered <= 100
    assert interval(torch.tensor([0.5])) == (0.5, 0.5)
    assert interval([0.1]) == (0.1, 0.1)
    narrow, wide = (interval(torch.arange(50.0), level) for level in (0.5, 0.99))
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: pearson(torch.ones(2, 3), torch.ones(2, 4)), "do not fit"),
        (lambda: pearson(torch.tensor(1.0), torch.tensor(1.0)), "contributions are a tensor"),
        (lambda: pearson(torch.ones(2, 3), torch.full((2, 3), torch.nan)), "scores are not finite"),
        (lambda: sc_k(torch.ones(1, 3), torch.ones(1, 3), [4]), "from 1 to 3"),
        (lambda: sc_k(torch.ones(1, 3), torch.ones(1, 3), [0.5]), "integers"),
        (lambda: TopSums(0), "to keep"),
        (lambda: Correlation().value, "no contributions yet"),
        (lambda: TopSums(3).curve(), "no contributions yet"),
        (lambda: interval(torch.tensor([])), "finite numbers"),
        (lambda: interval(torch.ones(3), 95), "between 0 and 1"),
    ],
)
def test_bad_input(call: object, text: str) -> None:
    with pytest.raises(QuestionError) as error:
        call()  # type: ignore[operator]
    assert text in str(error.value)


def test_parts_of_another_batch_are_refused() -> None:
    C, S = tables()
    for total in (Correlation(), TopSums(3)):
        total.update(C, S)
        with pytest.raises(QuestionError, match="another batch"):
            total.update(C[:2], S[:2])
