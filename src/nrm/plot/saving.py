"""Where pictures are drawn: new figures, of the kind that saves itself, or axes of the user's; and saving them."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from nrm.errors import QuestionError
from nrm.extras import extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Size = tuple[float, float]
"""Width and height in inches."""
MARGIN = 0.08
"""What is left free around panels, in inches."""
Put = Callable[[float, float, float, float], Any]
"""Puts axes into a sheet: left, top, width, height in inches from its top."""


def place(
    needed_by: str, ax: object, size: Size, figsize: Size | None, dpi: float | None, *,
    fits: bool = True,
) -> Any:  # fmt: skip
    """The user's axes, or axes alone in a new figure, of ``size`` inches unless ``figsize`` says otherwise.

    It ``fits`` if axes become as small as the words around them ask for.
    """
    if ax is not None:
        return check_axes(ax, needed_by, figsize, dpi)
    return _new_figure(needed_by, size, figsize, dpi, fits).subplots(subplot_kw=_panels())


def place_grid(
    needed_by: str, shape: tuple[int, int], ax: object, size: Size, figsize: Size | None, dpi: float | None,
    heights: Sequence[float] | None = None,
) -> tuple[Any, Any]:  # fmt: skip
    """A figure and a grid of axes, ``(rows, columns)``: a new figure, or in the place of the user's axes."""
    if ax is None:
        figure = _new_figure(needed_by, size, figsize, dpi, True)
        return figure, figure.subplots(*shape, squeeze=False, height_ratios=heights, subplot_kw=_panels())
    mine: Any = check_axes(ax, needed_by, figsize, dpi)
    spec, figure = mine.get_subplotspec(), mine.figure
    if spec is None:
        raise QuestionError(
            "ax has no place in a grid of matplotlib, so that it cannot be divided", where=needed_by,
            got="axes that were put somewhere by hand", expected="one of plt.subplots(...)",
        )  # fmt: skip
    mine.set_axis_off()
    inner = spec.subgridspec(*shape, height_ratios=heights)
    return figure, inner.subplots(squeeze=False, subplot_kw=_panels())


def place_sheet(
    needed_by: str, ax: object, size: Size, figsize: Size | None, dpi: float | None
) -> tuple[Any, Put]:  # fmt: skip
    """A figure, and what puts axes anywhere into it, or into the user's axes.

    Distances are inches of ``size``; where the figure, or the user's axes, are larger or smaller, they grow or shrink.
    """
    mine: Any = None if ax is None else check_axes(ax, needed_by, figsize, dpi)
    figure = _new_figure(needed_by, size, figsize, dpi, False) if mine is None else mine.figure
    add = figure.add_axes if mine is None else mine.inset_axes
    if mine is not None:
        mine.set_axis_off()

    def put(left: float, top: float, width: float, height: float) -> Any:
        box = (left / size[0], 1 - (top + height) / size[1], width / size[0], height / size[1])
        return add(box, **_panels())

    return figure, put


def check_axes(ax: object, needed_by: str, figsize: Size | None = None, dpi: float | None = None) -> Axes:
    """Refuse what is not one axes, such as a grid of them, and the size of a figure that there is already."""
    with extra("viz", needed_by):
        from matplotlib.axes import Axes
    if not isinstance(ax, Axes):
        raise QuestionError(
            "ax is not one matplotlib axes", got=type(ax).__name__, expected="an Axes", hint="axes[0, 0] of a grid"
        )
    if figsize is not None or dpi is not None:
        raise QuestionError(
            "the figure of ax= has its size already", got="figsize= or dpi= beside ax=", expected="one of them",
            hint="plt.subplots(figsize=..., dpi=...)",
        )  # fmt: skip
    return ax


def _new_figure(needed_by: str, size: Size, figsize: Size | None, dpi: float | None, fits: bool) -> Any:
    with extra("viz", needed_by):
        import matplotlib.pyplot as plt
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    wanted = size if figsize is None else figsize
    if min(wanted) <= 0 or (dpi is not None and dpi <= 0):
        raise QuestionError(
            "not the size of a figure", got=f"figsize={figsize!r}, dpi={dpi!r}", expected="(width, height) in inches"
        )
    canvas = importlib.import_module("nrm.plot.canvas")
    layout = ConstrainedLayoutEngine(w_pad=MARGIN, h_pad=MARGIN) if fits else None
    return plt.figure(FigureClass=canvas.Sheet, figsize=wanted, dpi=dpi, layout=layout, resolution=dpi)


def _panels() -> dict[str, Any]:
    return {"axes_class": importlib.import_module("nrm.plot.canvas").Panel}


def draw_and_save(path: str | os.PathLike[str], draw: Callable[..., Axes], **options: Any) -> None:
    """Draws a new figure, writes it, and closes it again, so that a thousand pictures take the memory of one."""
    save_and_close(draw(**options).figure, path)


def save_and_close(figure: Any, *paths: str | os.PathLike[str], **options: Any) -> None:
    """Writes a figure to files, each there as a whole or not at all, and lets go of it: pyplot keeps it open otherwise.

    ``options`` are ``dpi`` and ``tight``, which cuts off empty margins.
    """
    with extra("viz", "nrm.plot"):
        import matplotlib.pyplot as plt
    try:
        for path in paths:
            importlib.import_module("nrm.plot.canvas").save_figure(figure, path, **options)
    finally:
        plt.close(figure)
