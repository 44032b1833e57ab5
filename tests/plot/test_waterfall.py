"""Amounts that add up: every bar begins where the last one ended, in the order of their sizes."""

from __future__ import annotations

import itertools

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from torch import Tensor, nn

import nrm
from nrm.errors import QuestionError
from nrm.plot import waterfall
from nrm.plot.colors import ABOVE, BELOW


def ways(ax: Axes) -> list[tuple[float, float]]:
    """Where every bar begins and ends, from the top down."""
    return [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in ax.patches]


def words(ax: Axes) -> list[str]:
    return [text.get_text() for text in ax.get_yticklabels()]


def numbers(count: int) -> Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize(("count", "most"), [(1, 10), (6, 10), (10, 10), (30, 10), (30, 2)])
def test_bars_lead_from_the_start_to_the_sum(count: int, most: int) -> None:
    amounts = numbers(count)
    ax = waterfall(amounts[None], [f"f{i}" for i in range(count)], start=5.0, most=most)
    found = ways(ax)
    assert len(found) == min(count, most)
    assert found[0][0] == 5.0
    assert found[-1][1] == pytest.approx(5 + float(amounts.sum()))
    for (_, end), (begin, _) in itertools.pairwise(found):
        assert begin == pytest.approx(end)
    sizes = [abs(b - a) for a, b in found[: most - 1]]
    assert sizes == sorted(sizes, reverse=True)
    for name, (begin, end), bar in zip(words(ax), found, ax.patches, strict=True):
        if not name.endswith("others"):
            assert end - begin == pytest.approx(float(amounts[int(name[1:])]))
        assert mpl.colors.to_hex(bar.get_facecolor()) == (ABOVE if end > begin else BELOW)[4]
    assert (words(ax)[-1] == f"{count - most + 1} others") == (count > most)
    ax.figure.canvas.draw()


def test_values_stand_behind_names_and_ends_are_told() -> None:
    ax = waterfall([1.0, -2.0], ["a$", "b"], values=[30.0, -0.5], start=10, ends=("the mean", "this row"), title="t_1$")
    assert words(ax) == ["b = \N{MINUS SIGN}0.5", "a$ = 30"]
    told = [text.get_text() for text in ax.texts]
    assert "the mean 10" in told
    assert "this row 9" in told
    assert ax.get_title("left") == "t_1$"
    assert words(waterfall([1.0, -2.0])) == ["1", "0"]
    ax.figure.canvas.draw()


def test_nothing_but_zeros() -> None:
    ax = waterfall(torch.zeros(3), start=2.0)
    assert ways(ax) == [(2.0, 2.0)] * 3
    ax.figure.canvas.draw()


def test_of_a_contrast() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 1)).double()
    x, other = torch.randn(1, 4).double(), torch.randn(1, 4).double()
    R = nrm.measure(model, x, against=other)
    ax = waterfall(R.in_units(R.input), start=R.there)
    np.testing.assert_allclose(ways(ax)[0][0], model(other).item())
    np.testing.assert_allclose(ways(ax)[-1][1], model(x).item())


def test_on_axes_of_the_user() -> None:
    _, axes = plt.subplots(1, 2)
    assert waterfall(numbers(4), ax=axes[1]) is axes[1]
    assert len(plt.get_fignums()) == 1


@pytest.mark.parametrize(
    ("amounts", "options", "complaint"),
    [
        (torch.ones(2, 3), {}, "relevance[i] for one sample"),
        (torch.tensor([float("nan")]), {}, "not finite"),
        (torch.ones(3), {"names": ["a"]}, "3 names"),
        (torch.ones(3), {"names": "abc"}, "3 names"),
        (torch.ones(3), {"values": [1.0]}, "1 values"),
        (torch.ones(3), {"start": torch.ones(2)}, "one number"),
        (torch.ones(3), {"most": 1}, "2 or more"),
        (torch.ones(3), {"ax": "here"}, "not one matplotlib axes"),
    ],
)
def test_complaints_leave_no_figure(amounts: Tensor, options: dict, complaint: str) -> None:
    with pytest.raises(QuestionError) as caught:
        waterfall(amounts, **options)
    assert complaint in str(caught.value)
    assert "nrm.plot.waterfall" in str(caught.value)
    assert not plt.get_fignums()
