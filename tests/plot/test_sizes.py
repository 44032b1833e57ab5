"""Every picture can be had at the size of a column and of a slide, in axes of yours, with dots as fine as you say."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

import nrm
from nrm import plot
from plot.test_saving import circuit, found, measured, written

NOISE = torch.randn(1, 64, 64, generator=torch.Generator().manual_seed(1)) ** 3
PHOTO = torch.rand(3, 64, 64, generator=torch.Generator().manual_seed(2))
NAMES = ["German short-haired pointer", "Old English sheepdog"]
COLUMNS = ["image", "epsilon-plus-flat", "a second name that is rather long"]

DRAW: dict[str, Callable[..., Any]] = {
    "heatmap": lambda R, **size: plot.heatmap(NOISE, PHOTO, title="a title that is rather long", **size),
    "montage": lambda R, **size: plot.montage(
        [(PHOTO, NOISE, NOISE**2), (PHOTO, -NOISE, NOISE)], names=NAMES, columns=COLUMNS, title="a grid", **size
    ),
    "circuit": lambda R, **size: plot.circuit(circuit(), **size),
    "flows": lambda R, **size: plot.flows(R, R["1"].channels, R["3"].channels, **size),
    "gallery": lambda R, **size: plot.gallery(
        found(R), R["1"].channel(0), R["1"].channel(1), k=2, dataset=torch.rand(6, 1, 8, 8), **size
    ),
    "generated": lambda R, **size: plot.generated(written(), **size),
    "graph": lambda R, **size: plot.graph(torch.tensor([[0], [1]]), [0.5, 0.5], **size),
    "parts": lambda R, **size: plot.parts(R, title="all of it", **size),
    "sc_curves": lambda R, **size: plot.sc_curves([1, 10, 1000], {"mine": torch.rand(4, 3)}, **size),
    "scatter": lambda R, **size: plot.scatter(torch.rand(9), torch.rand(9), **size),
    "series": lambda R, **size: plot.series(torch.rand(6, 2), torch.rand(6, 2), channels=["up", "side"], **size),
    "strips": lambda R, **size: plot.strips(R, torch.rand(1, 8, 8), R["1"].channels, R["3"].channels, k=2, **size),
    "table": lambda R, **size: plot.table(torch.rand(3, 4), rows=["a", "b", "c"], columns=["long name"] * 4, **size),
    "text": lambda R, **size: plot.text(torch.rand(30), [f"▁word{i}" for i in range(30)]).draw(**size),
    "waterfall": lambda R, **size: plot.waterfall([0.3, -0.1, 0.8], ["age", "body mass", "glucose"], **size),
}


def test_every_plot_is_here() -> None:
    assert set(DRAW) == {name for name in plot.__all__ if name[0].islower()} - {"diverging"}


def figure_of(drawn: Any) -> Any:
    return drawn if hasattr(drawn, "axes") and hasattr(drawn, "canvas") else drawn.figure


def words(figure: Any) -> list[tuple[str, Any]]:
    """All texts that are seen, with their boxes in pixels."""
    renderer = figure.canvas.get_renderer()
    hidden = {id(text) for ax in figure.findobj(mpl.axes.Axes) for text in unseen_ticks(ax)}
    seen = [
        t for t in figure.findobj(mpl.text.Text) if t.get_visible() and t.get_text().strip() and id(t) not in hidden
    ]
    return [(t.get_text(), t.get_window_extent(renderer)) for t in seen]


def unseen_ticks(ax: Any) -> list[Any]:
    """The names of ticks that are there, and not drawn: beyond the view, or of axes without any."""
    found = []
    for axis in (ax.xaxis, ax.yaxis):
        low, high = sorted(axis.get_view_interval())
        places = zip(axis.get_majorticklocs(), axis.get_majorticklabels(), strict=False)
        found += [text for at, text in places if not ax.axison or not low - 1e-9 <= at <= high + 1e-9]
    return found


@pytest.mark.parametrize("size", [(3.3, 2.6), (10.0, 5.6)], ids=["column", "slide"])
@pytest.mark.parametrize("name", DRAW)
def test_a_figure_has_the_size_that_was_asked_for(name: str, size: tuple[float, float]) -> None:
    figure = figure_of(DRAW[name](measured(), figsize=size, dpi=90))
    assert tuple(figure.get_size_inches()) == pytest.approx(size)
    assert figure.dpi == 90
    figure.canvas.draw()
    box = figure.get_tightbbox()  # of all that is drawn, in inches
    assert min(box.x0, box.y0, size[0] - box.x1, size[1] - box.y1) > -0.05


@pytest.mark.parametrize(
    "name", ["heatmap", "montage", "gallery", "strips", "table", "waterfall", "sc_curves", "parts"]
)
def test_words_do_not_lie_on_each_other(name: str) -> None:
    for size in ({}, {"figsize": (3.3, 2.6)}, {"figsize": (10.0, 5.6)}):
        figure = figure_of(DRAW[name](measured(), **size))
        figure.canvas.draw()
        for (one, a), (other, b) in itertools.combinations(words(figure), 2):
            wide, high = min(a.x1, b.x1) - max(a.x0, b.x0), min(a.y1, b.y1) - max(a.y0, b.y0)
            assert min(wide, high) < 3, f"{one!r} and {other!r} at {size}"
        plt.close("all")


@pytest.mark.parametrize("name", DRAW)
def test_axes_of_yours_are_where_it_is_drawn(name: str) -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    drawn = DRAW[name](measured(), ax=right)
    assert figure_of(drawn) is figure
    figure.canvas.draw()
    assert [left.get_title(), *left.images, *left.patches] == [""]
    assert left.get_position().x1 < min(ax.get_position().x0 for ax in figure.axes if ax is not left) + 0.02
    for given in ({"figsize": (3, 3)}, {"dpi": 100}):
        with pytest.raises(nrm.QuestionError, match="has its size already"):
            DRAW[name](measured(), ax=right, **given)


def test_dots_are_those_of_the_figure_unless_saving_says_other_ones(tmp_path: Path) -> None:
    for asked, saved, dots in ((None, None, 150), (50, None, 50), (50, 200, 200)):
        drawn: Any = plot.scatter(torch.rand(9), torch.rand(9), figsize=(3, 2), dpi=asked)
        drawn.save(tmp_path / "a.png", **({} if saved is None else {"dpi": saved}))
        width = plt.imread(tmp_path / "a.png").shape[1]
        assert width == pytest.approx(3 * dots, rel=0.12)  # empty margins are cut off
    for wrong in ({"figsize": (0, 2)}, {"dpi": -1}):
        with pytest.raises(nrm.QuestionError, match="not the size of a figure"):
            plot.scatter(torch.rand(9), torch.rand(9), **wrong)  # type: ignore[arg-type]


def test_the_default_scale_leaves_out_a_few_extreme_values_and_says_so() -> None:
    ax = plot.heatmap(NOISE)
    limit = ax.images[-1].get_clim()[1]
    sizes = NOISE.abs().flatten()
    assert 0.004 < float((sizes > limit).float().mean()) <= 0.005
    bar: Any = ax.images[-1].colorbar
    assert bar.extend == "both"
    assert bar.ax.get_ylabel().replace("\n", " ").endswith("full colour beyond 99.5 % of values")
    few = plot.heatmap(NOISE[:, :10, :10])
    assert few.images[-1].get_clim()[1] == pytest.approx(float(NOISE[:, :10, :10].abs().max()))
    assert "beyond" not in few.images[-1].colorbar.ax.get_ylabel()  # type: ignore[union-attr]
    assert plot.heatmap(NOISE, scale=None).images[-1].get_clim()[1] == pytest.approx(float(sizes.max()))


def test_panels_of_a_grid_have_one_size_and_stand_in_lines() -> None:
    figure: Any = DRAW["montage"](measured())
    figure.canvas.draw()
    boxes = np.array([ax.get_window_extent().bounds for ax in figure.axes[:6]]).reshape(2, 3, 4)
    assert np.ptp(boxes[..., 2:], axis=(0, 1)).max() < 2
    assert np.ptp(boxes[..., 0], axis=0).max() < 2
    assert np.ptp(boxes[..., 1], axis=1).max() < 2


def test_tiles_of_a_sheet_are_equal_whatever_their_pictures_are(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("nrm.plot.gallery")
    crops = iter([torch.rand(1, 8, 8), torch.rand(1, 4, 8), torch.rand(1, 8, 3), torch.rand(1, 2, 2)])
    monkeypatch.setattr(module, "read_image", lambda picture: np.asarray(next(crops).movedim(0, -1), dtype=float))
    figure: Any = DRAW["gallery"](measured())
    figure.canvas.draw()
    boxes = np.array([ax.get_window_extent().bounds for ax in figure.axes[:4]])
    assert np.ptp(boxes[:, 2:], axis=0).max() < 1
    assert abs(boxes[0, 2] - boxes[0, 3]) < 1
    assert all(title.get_fontsize() >= 7 for title in (ax.title for ax in figure.axes[:4]))
