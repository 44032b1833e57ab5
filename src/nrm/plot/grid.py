"""A grid of images and their heat maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from nrm.errors import NrmError, QuestionError
from nrm.plot.heat import (
    ENDS,
    INK,
    NOTE_POINTS,
    POINTED,
    SCALE,
    Heat,
    Look,
    draw_heat,
    dress_bar,
    find_beyond,
    fit_points,
    frame,
    inches,
    mark_limit,
    note_clipped,
    note_sign,
    read_heat,
    read_look,
    wrap,
    wrap_notes,
)
from nrm.plot.pictures import Array, Picture, Scalar, read_image
from nrm.plot.saving import Size, place_grid

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

BAR_LENGTH = 2.5  # inches
NAME_POINTS, LINE = 9.0, 0.17  # the size of names, and the height of one of their lines in inches


def montage(
    rows: Sequence[Sequence[Picture]],
    *,
    names: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    values: Sequence[Scalar] | None = None,
    rests: Sequence[Sequence[Scalar]] | None = None,
    overlay: bool = True,
    cmap: str | Colormap | None = None,
    alpha: float = 0.7,
    scale: float | str | None = SCALE,
    smooth: bool = True,
    colorbar: bool = True,
    labels: tuple[str, str] = ENDS,
    title: str | None = None,
    size: float = 1.9,
    ax: Axes | None = None,
    figsize: Size | None = None,
    dpi: float | None = None,
) -> Figure:
    """Draw one row per image: the image in its colours, then its heat maps.

    Args:
        rows: for each row the image and one or more relevances, all as :func:`nrm.plot.heatmap` takes them.
        names: a text per row, left of it; long ones are wrapped.
        columns: a text per column, above it (the image's column first); long ones are wrapped.
        values: the explained output of each row; a negative one is noted.
        rests: for each row and heat map, the share of the mass that is not in the picture.
        overlay: draw heat maps over the grey image; False draws them on white.
        cmap: as in :func:`nrm.plot.heatmap`.
        alpha: as in :func:`nrm.plot.heatmap`.
        scale: as in :func:`nrm.plot.heatmap`. Unless it is a number, every heat map has a scale of its own, and the
            colour bar says so.
        smooth: as in :func:`nrm.plot.heatmap`.
        colorbar: one colour bar for the whole grid.
        labels: the words at the lower and upper end of the colour bar.
        title: text above the grid.
        size: width of a panel in inches.
        ax: whose place the grid takes; a new figure if None.
        figsize: width and height of a new figure, in inches, instead of ``size``.
        dpi: dots per inch of a new figure.

    >>> import torch
    >>> image, relevance = torch.rand(3, 16, 16), torch.randn(3, 16, 16)
    >>> figure = montage([(image, relevance, relevance**2)], names=["noise"], columns=["image", "signed", "squared"])
    >>> [ax.get_title() for ax in figure.axes[:3]]
    ['image', 'signed', 'squared']
    """
    try:
        look = read_look(cmap, alpha, scale, smooth)
        count = _check_lengths(rows, names, columns, values, rests)
        images, heats = _read_rows(rows, look, rests, overlay)
        signs = [note_sign(None if values is None else values[i]) for i in range(len(rows))]
    except NrmError as error:
        error.at("nrm.plot.montage")
        raise
    room = figsize[0] if figsize is not None else None if ax is None else inches(ax)[0]
    room_for_bar = 0.8 if colorbar else 0.0
    wide = size if room is None else max(room - 0.6 - 1.6 * room_for_bar, 0.5) / count
    high = [wide * image.shape[0] / image.shape[1] for image in images]
    words = Words.fitting(names or (), columns or (), wide, high)
    notes = [_note_height([sign, *(heat.notes for heat in row)], wide) for sign, row in zip(signs, heats, strict=True)]
    lines = words.lines_above + (len(wrap(title, wide * count, 12)) + 1 if title else 0)
    page = (
        count * size + room_for_bar + LINE * max(map(len, words.beside), default=0),
        sum(high) + sum(notes) + LINE * lines + 0.1 * len(rows),
    )
    figure: Figure
    figure, grid = place_grid("nrm.plot.montage", (len(rows), count), ax, page, figsize, dpi, high)
    for axes, image, sign, row in zip(grid, images, signs, heats, strict=True):
        axes[0].imshow(image, cmap="gray", vmin=0.0, vmax=1.0, interpolation="antialiased")
        frame(axes[0], sign)
        for panel, heat in zip(axes[1:], row, strict=True):
            drawn = draw_heat(panel, heat, look)
    words.write(grid)
    if title:
        draw_title(figure, ax, title, wide * count, words.lines_above)
    if colorbar:
        _add_bar(grid, drawn, [heat for row in heats for heat in row], look, labels, sum(high) + sum(notes))
    return figure


class Words(NamedTuple):
    """What stands above the columns and beside the rows of a grid, as lines that fit, and the size of letters above."""

    above: list[list[str]]
    beside: list[list[str]]
    points: float

    @classmethod
    def fitting(cls, names: Sequence[str], columns: Sequence[str], wide: float, high: Sequence[float]) -> Words:
        """Names in lines as long as panels are wide, or high."""
        points = fit_points(columns, wide, NAME_POINTS)
        beside = [wrap(text, height, NAME_POINTS) for text, height in zip(names, high, strict=False)]
        return cls([wrap(text, wide, points) for text in columns], beside, points)

    @property
    def lines_above(self) -> int:
        """How many lines the names of the columns have."""
        return max(map(len, self.above), default=0)

    def write(self, grid: Any) -> None:
        """Writes them at the first row and the first column of axes."""
        for panel, lines in zip(grid[:, 0], self.beside, strict=False):
            panel.set_ylabel("\n".join(lines), parse_math=False, fontsize=NAME_POINTS, color=INK)
        for panel, lines in zip(grid[0], self.above, strict=False):
            panel.set_title("\n".join(lines), parse_math=False, fontsize=self.points, color=INK)


def _add_bar(grid: Any, drawn: Any, heats: list[Heat], look: Look, labels: tuple[str, str], height: float) -> None:
    """One colour bar for all heat maps of a grid of this height."""
    length = min(BAR_LENGTH, height)
    bar = grid[0, 0].figure.colorbar(
        drawn, ax=grid, shrink=length / height, aspect=22, pad=0.02, extend=find_beyond(heats), extendfrac=POINTED
    )
    alone = look.scale is None or isinstance(look.scale, str)
    ticks = {0.0: "0"} if alone else mark_limit(heats[-1].limit)
    meaning = "each map on its own scale" if alone else "share of the output"
    dress_bar(bar, ticks, labels, f"{meaning}{note_clipped(heats)}", length)


def draw_title(figure: Figure, ax: Axes | None, title: str, width: float, names: int) -> None:
    """The title above the grid and so many lines of names: of the whole figure, or of the user's axes."""
    lines = "\n".join(wrap(title, width, 12))
    if ax is None:
        figure.suptitle(lines, parse_math=False, color=INK, fontsize=12)
    else:
        ax.set_title(lines, parse_math=False, color=INK, fontsize=12, pad=72 * LINE * names + 10)


def _note_height(notes: list[list[str]], width: float) -> float:
    lines = max(len(wrap_notes(each, width)) for each in notes)
    return lines * 1.35 * NOTE_POINTS / 72


def _read_rows(
    rows: Sequence[Sequence[Picture]],
    look: Look,
    rests: Sequence[Sequence[Scalar]] | None,
    overlay: bool,
) -> tuple[list[Array], list[list[Heat]]]:
    images, heats = [], []
    for i, (image, *relevances) in enumerate(rows):
        row = []
        for j, relevance in enumerate(relevances):
            try:
                heat = read_heat(relevance, image, look, rest=None if rests is None else rests[i][j])
            except NrmError as error:
                error.at(f"nrm.plot.montage, row {i}, heat map {j}")
                raise
            row.append(heat if overlay else heat._replace(grey=None))
        images.append(read_image(image))
        heats.append(row)
    return images, heats


def _check_lengths(
    rows: Sequence[Sequence[Picture]],
    names: Sequence[str] | None,
    columns: Sequence[str] | None,
    values: Sequence[Scalar] | None,
    rests: Sequence[Sequence[Scalar]] | None,
) -> int:
    counts = {len(row) for row in rows}
    if len(counts) != 1 or min(counts) < 2:
        raise QuestionError(
            "the rows are not a grid",
            got=f"rows of {', '.join(map(str, sorted(counts)))} pictures" if counts else "no rows",
            expected="(image, relevance, ...) with the same number of pictures in every row",
        )
    (count,) = counts
    wanted: list[tuple[str, Sequence[Any] | None, int]] = [
        ("names", names, len(rows)),
        ("columns", columns, count),
        ("values", values, len(rows)),
        ("rests", rests, len(rows)),
        *((f"rests[{i}]", row, count - 1) for i, row in enumerate(() if rests is None else rests)),
    ]
    for name, given, length in wanted:
        if given is not None and len(given) != length:
            raise QuestionError(f"{name} does not fit the grid", got=f"{len(given)} entries", expected=f"{length}")
    return count
