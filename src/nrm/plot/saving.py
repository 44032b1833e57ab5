"""New figures, of the kind that saves itself, and pictures that are drawn to be saved."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nrm.extras import extra

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def subplots(needed_by: str, *shape: int, **options: Any) -> tuple[Any, Any]:
    """``plt.subplots`` with a figure and axes that have ``.save(path)``."""
    with extra("viz", needed_by):
        import matplotlib.pyplot as plt
    canvas = importlib.import_module("nrm.plot.canvas")
    return plt.subplots(*shape, FigureClass=canvas.Sheet, subplot_kw={"axes_class": canvas.Panel}, **options)


def new_sheet(needed_by: str, size: tuple[float, float]) -> tuple[Any, Callable[[float, float, float, float], Any]]:
    """A new figure of so many inches, and what puts axes into it: left, top, width, height in inches from its top."""
    with extra("viz", needed_by):
        import matplotlib.pyplot as plt
    canvas = importlib.import_module("nrm.plot.canvas")
    figure = plt.figure(FigureClass=canvas.Sheet, figsize=size)

    def put(left: float, top: float, width: float, height: float) -> Any:
        box = (left / size[0], 1 - (top + height) / size[1], width / size[0], height / size[1])
        return figure.add_axes(box, axes_class=canvas.Panel)

    return figure, put


def new_axes(needed_by: str, size: tuple[float, float], **options: Any) -> Any:
    """Axes alone in a new figure of so many inches."""
    return subplots(needed_by, figsize=size, **options)[1]


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
