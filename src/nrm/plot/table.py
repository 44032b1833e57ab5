"""A table of shares as coloured cells, with names at its sides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from nrm.errors import NrmError, QuestionError
from nrm.numbers import percent
from nrm.plot.heat import (
    ENDS,
    INK,
    NOTE_POINTS,
    SCALE,
    TITLE_POINTS,
    add_bar,
    draw_heat,
    inches,
    read_heat,
    read_look,
    wrap,
)
from nrm.plot.pictures import Picture, Scalar
from nrm.plot.saving import Size, place
from nrm.plot.words import read_pieces
from nrm.tables import SAMPLE, Results

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from nrm.measure import Generated

CELL = 0.34
"""The height and the width of a cell in inches."""

LETTER = 0.085
"""The width of a letter of a name in inches."""


def table(
    relevance: Picture | Results,
    rows: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    *,
    ax: Axes | None = None,
    figsize: Size | None = None,
    dpi: float | None = None,
    scale: float | str | None = SCALE,
    colorbar: bool = True,
    title: str | None = None,
    labels: tuple[str, str] = ENDS,
    value: Scalar | None = None,
    rest: Scalar | None = None,
) -> Axes:
    """Draw a table of shares: a cell for every row and column, red for the explained output, blue against it.

    Args:
        relevance: ``(rows, columns)``, such as the tokens of a text that each generated token comes from, or
            ``R(a.channels, b.channels)[0]``; or ``R.table(a.channels, b.channels)``, which brings its names along.
        rows: a name for each row, written at its left. Marks of tokenizers are read as :func:`nrm.plot.text` does.
            Those of ``R.table`` by default: the labels of the measure, where it has some, else numbers.
        columns: a name for each column, written above it.
        ax: where to draw; a new figure if None.
        figsize: width and height of a new figure, in inches.
        dpi: dots per inch of a new figure.
        scale: the relevance that has the full colour, as in :func:`nrm.plot.heatmap`.
        colorbar: add a colour bar.
        title: text above the table.
        labels: the words at the lower and upper end of the colour bar.
        value: the explained output (``R.value``); if it is negative, the picture says so.
        rest: the share of the mass that is not in the picture.

    Returns:
        ``ax``; its data coordinates are the numbers of columns and rows.

    >>> ax = table([[0.9, 0.1], [0.2, 0.8]], rows=["▁a", "▁tale"], columns=["▁Once", "▁upon"])
    >>> [text.get_text() for text in ax.get_yticklabels()]
    ['a', 'tale']
    """
    axes: tuple[str, str] | None = None
    try:
        if isinstance(relevance, Results):
            relevance, axes, own = _read_table(relevance)
            rows, columns = (own[n] if given is None else given for n, given in enumerate((rows, columns)))
        look = read_look(None, 1.0, scale, False)
        heat = read_heat(relevance, None, look, value, rest)
        height, width = heat.size
        beside = _names(rows, height, "rows")
        above = _names(columns, width, "columns")
        room = LETTER * max(map(len, beside), default=0), LETTER * max(map(len, above), default=0)
        size = (CELL * width + room[0] + (1.5 if colorbar else 0.3), CELL * height + room[1] + 0.7)
        ax = place("nrm.plot.table", ax, (max(size[0], 2.5), max(size[1], 1.6)), figsize, dpi)
    except NrmError as error:
        error.at("nrm.plot.table")
        raise
    drawn = draw_heat(ax, heat, look)
    ax.tick_params(top=bool(above), labeltop=bool(above), bottom=False, labelbottom=False, left=bool(beside), length=0)
    if beside:
        ax.set_yticks(range(height), beside, color=INK, fontsize="small", parse_math=False)
    if above:
        ax.set_xticks(range(width), above, color=INK, fontsize="small", rotation=90, parse_math=False)
    if axes is not None:
        ax.set_ylabel(axes[0], color=INK, fontsize=NOTE_POINTS, parse_math=False)
        ax.text(0.5, -0.02, axes[1], transform=ax.transAxes, ha="center", va="top", color=INK, fontsize=NOTE_POINTS,
                parse_math=False)  # fmt: skip
    if title:
        lines = wrap(title, max(inches(ax)[0], 2.0), TITLE_POINTS)
        ax.set_title("\n".join(lines), parse_math=False, color=INK, loc="left", size=TITLE_POINTS)
    if colorbar:
        add_bar(ax, drawn, heat, labels)
    return ax


def _read_table(found: Results) -> tuple[Tensor, tuple[str, str], tuple[list[str], list[str]]]:
    """The numbers of a table of one sample, what its two axes are, and the names along them."""
    name = next(iter(found), None)
    front = 1 if name is not None and found.axes[name][:1] == (SAMPLE,) else 0
    if name is None or found[name].ndim != front + 2 or (front and len(found[name]) != 1):
        got = "no tensor" if name is None else " x ".join(map(str, found[name].shape)) + f" of {found.axes[name]}"
        raise QuestionError(
            "not a table of one sample with rows and columns", got=got, expected="two axes beside that of the sample",
            hint="R.sample(0).table(a.channels, b.channels)",
        )  # fmt: skip
    (low, high), tensor = found.axes[name][front:], found[name]
    return tensor[0] if front else tensor, (low, high), (found.names(name, front), found.names(name, front + 1))


def generated(
    found: Generated,
    *,
    first: bool = True,
    ax: Axes | None = None,
    figsize: Size | None = None,
    dpi: float | None = None,
    scale: float | str | None = "98%",
    colorbar: bool = True,
    title: str | None = None,
) -> Axes:
    """Draw what generated tokens owe to those before them: a row for each, a column for every source.

    Args:
        found: what :func:`nrm.generated` gave.
        first: draw the share of the first token, too, in which much of the mass lies in many models. False leaves it
            out, shows the others as shares of what it has not, and says how much it has.
        ax: where to draw; a new figure if None.
        figsize: width and height of a new figure, in inches.
        dpi: dots per inch of a new figure.
        scale: the relevance that has the full colour, as in :func:`nrm.plot.table`.
        colorbar: add a colour bar.
        title: text above the table.

    Returns:
        ``ax``; its data coordinates are the numbers of sources and generated tokens.
    """
    shares, columns = (found.relevance, found.sources) if first else (found.without_first(), found.sources[1:])
    if not first:
        apart = f"{percent(float(found.first.mean()), 0)} in the first token, left out"
        title = apart if title is None else f"{title} ({apart})"
    return table(
        shares, found.written, columns, ax=ax, figsize=figsize, dpi=dpi, scale=scale, colorbar=colorbar, title=title
    )


def _names(given: Sequence[str] | None, count: int, what: str) -> list[str]:
    """A name for each row or column, without the marks of tokenizers."""
    if given is None:
        return []
    if isinstance(given, str) or len(given) != count or not all(isinstance(name, str) for name in given):
        got = repr(given)[:80] if isinstance(given, str) else f"{len(given)} names"
        raise QuestionError(f"{what} do not fit the table", got=got, expected=f"{count} names")
    return [piece.text for piece in read_pieces(given)]
