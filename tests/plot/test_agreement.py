"""Scores beside contributions: the points and curves are the numbers that were given, bad input has a clear text."""

from __future__ import annotations

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from nrm.errors import QuestionError
from nrm.plot import sc_curves, scatter


def test_every_combination_is_a_point() -> None:
    C, S = torch.randn(1, 5, 7), torch.randn(1, 5, 7)
    ax = scatter(C, S, title="a title", labels=("relevance", "contribution"))
    points = np.asarray(ax.collections[0].get_offsets())
    np.testing.assert_allclose(points, np.stack([S.flatten(), C.flatten()], 1), rtol=1e-6)
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_title()) == ("relevance", "contribution", "a title")
    expected = float(np.corrcoef(C.flatten(), S.flatten())[0, 1])
    assert ax.texts[0].get_text() == f"r = {expected:.3f}"


def test_of_many_points_the_strongest_are_drawn() -> None:
    C = torch.randn(1, 300, 300)
    S = torch.randn(1, 300, 300)
    C[0, 7, 8] = 100.0
    S[0, 9, 9] = -100.0
    ax = scatter(C, S)
    points = np.asarray(ax.collections[0].get_offsets())
    assert len(points) <= 20_000
    assert points[:, 1].max() == pytest.approx(100.0)
    assert points[:, 0].min() == pytest.approx(-100.0)
    assert ax.texts[0].get_text() == f"r = {float(np.corrcoef(C.flatten(), S.flatten())[0, 1]):.3f}"


def test_constant_scores_have_no_correlation() -> None:
    assert scatter(torch.randn(1, 4), torch.ones(1, 4)).texts[0].get_text() == "r = undefined"


def test_lines_are_means_and_bands_hold_them() -> None:
    curves = {"nrm": torch.rand(30, 4).cumsum(1), "random": torch.zeros(30, 4)}
    ax = sc_curves([1, 10, 100, 1000], curves)
    line = ax.lines[0]
    np.testing.assert_allclose(line.get_ydata(), curves["nrm"].mean(0), rtol=1e-6)
    assert ax.get_xscale() == "log"
    band = ax.collections[0].get_paths()[0].vertices
    for x, y in zip([1, 10, 100, 1000], curves["nrm"].mean(0).tolist(), strict=True):
        mine = band[band[:, 0] == x][:, 1]
        assert mine.min() < y < mine.max()
    assert sc_curves([1, 2], {"one": [[1.0, 2.0]]}, log=False).get_xscale() == "linear"


def test_an_axes_of_the_users_is_drawn_on() -> None:
    _, axes = plt.subplots(1, 2)
    assert scatter(torch.randn(1, 4), torch.randn(1, 4), ax=axes[0]) is axes[0]
    assert sc_curves([1, 2], {"a": [[1.0, 2.0]]}, ax=axes[1]) is axes[1]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: scatter(torch.ones(1, 3), torch.ones(1, 4)), "do not fit"),
        (lambda: scatter(torch.ones(1, 1), torch.ones(1, 1)), "at least two"),
        (lambda: scatter(torch.full((1, 3), torch.nan), torch.ones(1, 3)), "contributions"),
        (lambda: sc_curves([1, 2], {"a": [[1.0, 2.0, 3.0]]}), "do not fit k"),
        (lambda: sc_curves([1, 2], {"a": [1.0, 2.0]}), "(samples, 2)"),
    ],
)
def test_bad_input(call: object, text: str) -> None:
    with pytest.raises(QuestionError) as error:
        call()  # type: ignore[operator]
    assert text in str(error.value)
