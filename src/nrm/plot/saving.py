"""Pictures as files, there as a whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nrm.errors import QuestionError
from nrm.extras import extra
from nrm.results import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 150


def save_figure(figure: Figure, path: str | os.PathLike[str], *, dpi: float = DPI) -> None:
    """Writes a figure in the format that the name of the file tells: ``.png``, ``.svg``, ``.pdf``, ``.jpg`` ..."""
    kind = Path(path).suffix[1:].lower()
    known = sorted(figure.canvas.get_supported_filetypes())
    if kind not in known:
        raise QuestionError(
            "not the name of a picture", got=os.fspath(path), expected=f"a file that ends in {', '.join(known)}"
        )
    with replacing(path) as temporary:
        figure.savefig(temporary, format=kind, dpi=dpi, bbox_inches="tight")


def draw_and_save(path: str | os.PathLike[str], draw: Callable[..., Axes], **options: Any) -> None:
    """Draws a new figure, writes it, and closes it again, so that a thousand pictures take the memory of one."""
    with extra("viz", "pictures"):
        import matplotlib.pyplot as plt
    figure: Any = draw(**options).figure
    try:
        save_figure(figure, path)
    finally:
        plt.close(figure)
