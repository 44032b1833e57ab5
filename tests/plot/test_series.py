"""Relevance along a sequence: colours and bars are relevance, lines the sequence, bad input has a clear text."""

from __future__ import annotations

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from torch import Tensor, nn

import nrm
from nrm.errors import QuestionError
from nrm.plot import series
from nrm.plot.colors import ABOVE, BELOW


def rows(ax: Axes) -> list[QuadMesh]:
    """The coloured rows, the first channel first."""
    return [c for c in ax.collections if isinstance(c, QuadMesh)]


def heights(ax: Axes) -> np.ndarray:
    return np.array([bar.get_height() for bar in ax.patches])


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("shape", [(7,), (7, 1), (7, 3), (1, 7, 3)])
def test_colours_and_bars_are_the_relevance(shape: tuple[int, ...]) -> None:
    r = numbers(*shape)
    ax = series(r, numbers(*shape))
    table = r.reshape(7, -1).numpy()
    assert len(rows(ax)) == table.shape[1]
    for c, mesh in enumerate(rows(ax)):
        np.testing.assert_allclose(np.asarray(mesh.get_array()).ravel(), table[:, c])
        assert mesh.get_clim() == (-abs(table).max(), abs(table).max())
    total = table.sum(1)
    scale = heights(ax) / total
    np.testing.assert_allclose(scale, scale[0])
    for bar, r_t in zip(ax.patches, total, strict=True):
        assert mpl.colors.to_hex(bar.get_facecolor()) == (ABOVE if r_t > 0 else BELOW)[4]
    ax.figure.canvas.draw()


def test_lines_are_the_sequence() -> None:
    values = numbers(9, 2)
    ax = series(numbers(9, 2), values, times=np.arange(9) * 0.5)
    lines = [line for line in ax.lines if len(line.get_xdata()) == 9]
    assert len(lines) == 2
    for c, line in enumerate(lines):
        np.testing.assert_allclose(line.get_xdata(), np.arange(9) * 0.5)
        assert np.corrcoef(line.get_ydata(), values[:, c])[0, 1] == pytest.approx(1)
    assert not [line for line in series(numbers(9, 2)).lines if len(line.get_xdata()) == 9]


def test_rows_stand_in_order_and_bars_below() -> None:
    ax = series(numbers(5, 3), channels=["a", "b", "c"])
    heights_of = dict(zip([t.get_text() for t in ax.get_yticklabels()], ax.get_yticks(), strict=True))
    assert heights_of["a"] > heights_of["b"] > heights_of["c"] > 0
    assert all(bar.get_y() + bar.get_height() <= 1e-9 for bar in ax.patches)
    assert not series(numbers(5, 3), bars=False).patches


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_bars_of_one_sign_use_all_the_room(sign: float) -> None:
    ax = series(sign * numbers(5).abs())
    assert np.abs(heights(ax)).max() == pytest.approx(0.5)


def test_notes() -> None:
    ax = series(numbers(4), rest=0.2, value=-3.0, title="a_b$", scale=0.5)
    text = ax.get_xlabel()
    for words in ("step", "full colour at ±0.5", "negative output", "20.0 % of the mass not shown"):
        assert words in text
    assert ax.get_title() == "a_b$"
    assert "all zero" in series(torch.zeros(4)).get_xlabel()
    ax.figure.canvas.draw()


def test_one_step_and_constant_sequences() -> None:
    for r, v in ((numbers(1), numbers(1)), (numbers(3, 2), torch.ones(3, 2)), (numbers(3), torch.zeros(3))):
        series(r, v).figure.canvas.draw()


def test_on_axes_of_the_user() -> None:
    figure, axes = plt.subplots(1, 2)
    assert series(numbers(4), ax=axes[1]) is axes[1]
    assert len(plt.get_fignums()) == 1
    figure.canvas.draw()


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        ((torch.ones(2, 3, 4, 5),), {}, "not one sequence"),
        ((torch.ones(2, 3, 4),), {}, "relevance[0]"),
        ((torch.ones(0),), {}, "empty"),
        ((torch.tensor([1.0, float("nan")]),), {}, "not finite"),
        ((torch.ones(3), torch.ones(4)), {}, "different shapes"),
        ((torch.ones(3, 20),), {}, "too many channels"),
        ((torch.ones(3, 2),), {"channels": ["a"]}, "one per channel"),
        ((torch.ones(3),), {"times": [0, 1]}, "3 ascending numbers"),
        ((torch.ones(3),), {"times": [0, 2, 1]}, "do not ascend"),
        ((torch.ones(3),), {"scale": -1}, "not positive"),
        ((torch.ones(3),), {"ax": "here"}, "not one matplotlib axes"),
        (("text",), {}, "cannot be drawn"),
    ],
)
def test_complaints_leave_no_figure(arguments: tuple, options: dict, words: str) -> None:
    with pytest.raises(QuestionError) as caught:
        series(*arguments, **options)
    assert words in str(caught.value)
    assert "nrm.plot.series" in str(caught.value)
    assert not plt.get_fignums()


def test_of_a_measure() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = nn.LSTM(2, 4, batch_first=True), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.lstm(x)[0][:, -1])

    x = numbers(1, 12, 2).float()
    R = nrm.measure(Model(), x)
    relevance = R(R.input)
    ax = nrm.plot.series(relevance, x, value=R.value, rest=1 - relevance.sum())
    np.testing.assert_allclose(np.asarray(rows(ax)[1].get_array()).ravel(), relevance[0, :, 1])
