"""Figures and axes of matplotlib that save themselves. Imported when the first picture is drawn."""

from __future__ import annotations

import os
from typing import Any

from nrm.errors import QuestionError
from nrm.extras import extra
from nrm.files import replacing

with extra("viz", "nrm.plot"):
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 150


def save_figure(figure: Any, path: str | os.PathLike[str], dpi: float | None = None, tight: bool = True) -> None:
    """Writes a figure, in the format that the name of the file tells; it is there as a whole or not at all.

    ``dpi`` is that with which it was drawn if None, else 150; ``tight`` cuts off its empty margins.
    """
    kind = os.path.splitext(path)[1][1:].lower()
    known = sorted(figure.canvas.get_supported_filetypes())
    if kind not in known:
        expected = f"a file that ends in {', '.join(known)}"
        raise QuestionError("not the name of a picture", got=os.fspath(path), expected=expected)
    dots = dpi or getattr(figure, "resolution", None) or DPI
    with replacing(path) as temporary:
        figure.savefig(temporary, format=kind, dpi=dots, bbox_inches="tight" if tight else None)


class Sheet(Figure):
    """A figure of matplotlib that saves itself, with as many dots per inch as were asked for."""

    def __init__(self, *args: Any, resolution: float | None = None, **options: Any) -> None:
        super().__init__(*args, **options)
        self.resolution = resolution

    def save(self, path: str | os.PathLike[str], *, dpi: float | None = None) -> None:
        """Writes the picture, in the format that the name of the file tells: ``.png``, ``.svg``, ``.pdf`` ..."""
        save_figure(self, path, dpi)


class Panel(Axes):
    """Axes of matplotlib that save the figure they are in."""

    def save(self, path: str | os.PathLike[str], *, dpi: float | None = None) -> None:
        """Writes the whole picture, in the format that the name of the file tells: ``.png``, ``.svg``, ``.pdf`` ..."""
        save_figure(self.figure, path, dpi)
