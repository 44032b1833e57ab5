"""Everything that a model reads in one picture: images, sounds and texts on one colour scale, each with its share."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from torch import Tensor

from nrm.errors import NrmError, QuestionError
from nrm.measure import InputPart
from nrm.numbers import percent, short, with_minus
from nrm.plot.colors import diverging
from nrm.plot.heat import (
    ENDS,
    FRAME,
    INK,
    NOTE_POINTS,
    SCALE,
    Look,
    draw_heat,
    find_limit,
    inches,
    note_sign,
    read_heat,
    wrap_notes,
)
from nrm.plot.pictures import Array, read_finite, read_image
from nrm.plot.saving import Put, Size, check_axes, place_sheet
from nrm.plot.words import Text, lay_bar, text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARGIN, BESIDE, GAP, TITLE, BAR = 0.12, 0.28, 0.12, 0.24, 0.52  # in inches: around panels, between them, titles, bar
SOUND, TICKS = 0.9, 0.35  # the heights of a sound and of the numbers below it
DARK = 0.75  # the grey of the loudest entry of a spectrogram, 1 is black
NAMED = 0.0005  # a share below 0.05 % would read 0.0 %
RUN = 3  # so many equal tokens without relevance are drawn as one


def parts(
    R: Any,
    read: Mapping[str, Any] | None = None,
    *,
    relevance: Tensor | None = None,
    scale: float | str | None = SCALE,
    segments: int = 24,
    seconds: float | None = None,
    alpha: float = 0.7,
    title: str | None = None,
    labels: tuple[str, str] = ENDS,
    width: float = 6.4,
    points: float = 9.0,
    ax: Axes | None = None,
    figsize: Size | None = None,
    dpi: float | None = None,
) -> Figure:
    """Draw all that a model reads side by side, ``R.parts``: image patches, sounds and tokens on one colour scale.

    The title of each says its share of the whole; what biases and other constants of the model have is noted below.

    Args:
        R: the measure of one sample, or an average of contrasts.
        read: what is drawn, by the names of the parts: a picture for an image as :func:`heatmap` takes it, a list of
            tokens for a text (a list of such lists for several texts), a spectrogram ``(bins, frames)`` or a wave for a
            sound, names for numbers. Images and sounds that are not given are those that the model read; tokens are
            their places.
        relevance: an answer to draw instead of ``R(R.parts)``, such as ``R(R.parts, head)``.
        scale: the relevance that has the full colour, of one patch, segment or token: as in :func:`heatmap`.
        segments: a sound is drawn in so many pieces at most, each with the sum of its frames.
        seconds: how long a frame is; without it, frames are counted. What follows the last frame with any relevance is
            left out.
        alpha: opacity of the colours over images and sounds.
        title: text above the picture.
        labels: the words at the ends of the colour bar.
        width: of the picture, in inches.
        points: the size of letters of texts.
        ax: whose place the picture takes; a new figure if None.
        figsize: width and height of a new figure, in inches; by default the height is what the parts need.
        dpi: dots per inch of a new figure.

    >>> import nrm, torch
    >>> from torch import nn
    >>> class Model(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.look, self.words, self.head = nn.Conv2d(1, 4, 4, 4), nn.Embedding(9, 4), nn.Linear(4, 2)
    ...     def forward(self, pixel_values, input_ids):
    ...         seen = [self.look(pixel_values).flatten(2).mT, self.words(input_ids)]
    ...         return self.head(torch.cat(seen, 1).relu().mean(1))
    >>> _ = torch.manual_seed(0)
    >>> x = {"pixel_values": torch.rand(1, 1, 8, 8), "input_ids": torch.tensor([[3, 1, 4]])}
    >>> R = nrm.measure(Model(), x, target=1)
    >>> figure = parts(R, {"text": ["a", "red", "fish"]})
    >>> [ax.get_title(loc="left").split()[0] for ax in figure.axes[:2]]
    ['image', 'text']
    """
    try:
        panels, rest = _read(R, {} if read is None else read, relevance, max(1, segments), seconds)
        limit = find_limit(np.concatenate([panel.values.ravel() for panel in panels]), scale)
        notes = [*note_sign(R.value), *([_note(rest)] if abs(rest) >= NAMED else [])]
        look = Look(diverging(), alpha, limit, False)
        ax = None if ax is None else check_axes(ax, "nrm.plot.parts", figsize, dpi)
        panels = [replace(panel, limit=limit) for panel in panels]
        room = figsize if ax is None else inches(ax)
        page = (
            _lay_out(panels, notes, title, width, points) if room is None else _fit(panels, notes, title, room, points)
        )
        figure, put = place_sheet("nrm.plot.parts", ax, page.size, figsize, dpi)
    except NrmError as error:
        error.at("nrm.plot.parts")
        raise
    _draw(page, put, look, labels, points)
    drawn: Figure = figure
    return drawn


def _note(rest: float) -> str:
    return f"the model's own constants have {with_minus(percent(rest, 1))}"


@dataclass(frozen=True, eq=False)
class PartPanel:
    """One thing that is drawn: its share, the relevance of its units, and what lies under the colours.

    ``edges`` are those of the segments of a sound, ``lines`` the tokens of every text.
    """

    kind: str
    name: str
    values: Array
    share: float
    under: Any = None
    edges: Array | None = None
    timed: bool = False
    lines: tuple[tuple[str, ...], ...] = ()
    limit: float = 1.0

    @property
    def title(self) -> str:
        """The name and the share."""
        return f"{self.name} {with_minus(percent(self.share, 1))}"

    def texts(self) -> list[Text]:
        """The texts, one after the other."""
        rows = self.values.reshape(len(self.lines), -1)
        found = []
        for row, tokens in zip(rows, self.lines, strict=True):
            shown, values = _shorten(tokens, row)
            found.append(text(values, shown, scale=self.limit))
        return found


# ---- reading ---------------------------------------------------------------------------------------------------------


def _read(
    R: Any, given: Mapping[str, Any], relevance: Tensor | None, segments: int, seconds: float | None
) -> tuple[list[PartPanel], float]:
    """The panels, and the share of what is not in them."""
    if len(R) != 1:
        raise QuestionError("a picture shows one sample", got=f"a measure of {len(R)}", hint="R.sample(0)")
    known = R.parts
    unknown = [name for name in given if name not in known.names]
    if unknown:
        raise QuestionError("no such part", got=repr(unknown[0]), expected=", ".join(map(repr, known.names)))
    answer = R(known) if relevance is None else relevance
    if not isinstance(answer, Tensor) or answer.ndim != 2 or len(answer) != 1:
        got = f"shape {tuple(answer.shape)}" if isinstance(answer, Tensor) else type(answer).__name__
        raise QuestionError("not an answer about the parts of one sample", got=got, expected="that of R(R.parts, ...)")
    found = {name: read_finite(part, "the relevance")[0] for name, part in known.split(answer).items()}
    panels = [_panel(R, part, found[part.name], given.get(part.name), segments, seconds) for part in known.read]
    return panels, float(found["constants"])


def _panel(
    R: Any, part: InputPart, values: Array, given: Any, segments: int, seconds: float | None
) -> PartPanel:  # fmt: skip
    panel = PartPanel(part.kind, part.name, values, float(values.sum()))
    try:
        if part.kind == "image":
            return _image(R, part, panel, given)
        if part.kind == "sound":
            return _sound(R, part, panel, given, segments, seconds)
        return _words(panel, given)
    except NrmError as error:
        error.at(f"nrm.plot.parts, part {part.name!r}")
        raise


def _image(R: Any, part: InputPart, panel: PartPanel, given: Any) -> PartPanel:
    """An image with its patches in rows and columns; several tiles lie side by side."""
    values = panel.values
    if values.ndim == 1:
        if given is None:
            raise QuestionError(
                "the model reads the image as a row of patches", got="no image", expected="the image that they are of",
                hint=f"nrm.plot.parts(R, {{{part.name!r}: image}})",
            )  # fmt: skip
        values = _laid_out(values, given, part.square)
    under = R.values(part.partition.layer)[0] if given is None else given
    if values.ndim > 2:
        values = np.concatenate(values.reshape(-1, *values.shape[-2:]), 1)
        if given is None:
            tiles = read_finite(under, "the image")
            under = np.concatenate(tiles.reshape(-1, *tiles.shape[-3:]), 2)
    read_heat(values, under, Look(diverging(), 1.0, None, False))
    return replace(panel, values=values, under=under)


def _laid_out(values: Array, image: Any, side: int) -> Array:
    """A row of patches as rows and columns, in the proportions of the image."""
    height, width = read_image(image).shape[:2]
    count = len(values)
    sizes = [(rows, count // rows) for rows in range(side, count + 1, side) if count % (rows * side) == 0]
    if not sizes:
        raise QuestionError("patches do not make a picture", got=f"{count} patches in squares of {side}")
    rows, columns = min(sizes, key=lambda size: abs(math.log(size[0] * width / (size[1] * height))))
    squares: Array = values.reshape(rows // side, columns // side, side, side)
    return squares.transpose(0, 2, 1, 3).reshape(rows, columns)


def _sound(
    R: Any, part: InputPart, panel: PartPanel, given: Any, segments: int, seconds: float | None
) -> PartPanel:  # fmt: skip
    """A sound in segments, without what follows the last frame that has any relevance."""
    frames = len(panel.values)
    heard = np.flatnonzero(panel.values)
    last = int(heard[-1]) + 1 if len(heard) else frames
    step = math.ceil(last / segments)
    edges = np.append(np.arange(0, last, step), last)
    values = np.add.reduceat(panel.values[:last], edges[:-1])
    under = read_finite(_features(R, part) if given is None else given, "the sound")
    under = under[0] if under.ndim > 1 and len(under) == 1 else under
    if under.ndim > 2 or under.shape[-1] < frames:
        raise QuestionError(
            "what is drawn does not fit the sound", got=f"shape {under.shape}", expected=f"(bins, {frames}) or a wave"
        )
    shown = round(under.shape[-1] * last / frames)
    unit = 1.0 if seconds is None else seconds
    return replace(panel, values=values, under=under[..., :shown], edges=edges * unit, timed=seconds is not None)


def _features(R: Any, part: InputPart) -> Any:
    """What the model read of a sound, frames last."""
    layer = part.partition.layer
    values, channel = R.values(layer)[0], R.resolve(layer)[1].layer_channel
    return values.movedim(channel, 0) if values.ndim > 1 and channel is not None else values


def _words(panel: PartPanel, given: Any) -> PartPanel:
    """Texts by their tokens, or numbers by their names; of several texts those that have any relevance."""
    rows = panel.values.reshape(-1, panel.values.shape[-1])
    if given is None:
        given = [[str(i) for i in range(rows.shape[1])]] * len(rows)
    lists = [given] if all(isinstance(one, str) for one in given) else given
    if isinstance(given, str) or len(lists) != len(rows) or any(len(one) != rows.shape[1] for one in lists):
        got = "one text" if isinstance(given, str) else " + ".join(str(len(one)) for one in lists) + " tokens"
        expected = f"{rows.shape[1]} tokens" + (f" of each of {len(rows)} texts" if len(rows) > 1 else "")
        raise QuestionError("the tokens do not fit the text", got=got, expected=expected)
    kept = [i for i, row in enumerate(rows) if row.any()] or [*range(len(rows))]
    lines = tuple(tuple(map(str, lists[i])) for i in kept)
    return replace(panel, values=rows[kept], lines=lines)


def _shorten(tokens: Sequence[str], values: Array) -> tuple[list[str], Array]:
    """Tokens where a run of one token without any relevance, such as the places of an image, is one.

    >>> _shorten(["a", "<image>", "<image>", "<image>"], np.array([1.0, 0.0, 0.0, 0.0]))
    (['a', '<image> x 3'], array([1., 0.]))
    """
    shown: list[str] = []
    kept: list[float] = []
    for (token, empty), run in itertools.groupby(
        zip(tokens, values, strict=True), key=lambda pair: (pair[0], pair[1] == 0)
    ):
        own = [float(value) for _, value in run]
        if empty and len(own) >= RUN:
            shown.append(f"{token} x {len(own)}")
            kept.append(0.0)
        else:
            shown += [token] * len(own)
            kept += own
    return shown, np.array(kept)


# ---- drawing ---------------------------------------------------------------------------------------------------------


class PartsPage(NamedTuple):
    """Where things stand, in inches: the boxes of panels, the colour bar below them, the title above, notes below.

    ``columns`` is how many letters a line of text has.
    """

    size: Size
    panels: list[tuple[PartPanel, tuple[float, float, float, float]]]
    bar: tuple[float, float, float, float]
    columns: int
    title: str
    notes: list[str]


def _lay_out(
    panels: Sequence[PartPanel], notes: list[str], title: str | None, width: float, points: float,
    page_width: float | None = None,
) -> PartsPage:  # fmt: skip
    """Images in a column at the left, everything else at their right; the colour bar and notes below.

    All of it lies in the middle of a page that may be wider.
    """
    across = width if page_width is None else page_width
    aside = (across - width) / 2
    images = [panel for panel in panels if panel.kind == "image"]
    others = [panel for panel in panels if panel.kind != "image"]
    inner = width - 2 * MARGIN
    left = min(2.4, 0.42 * inner) if others else min(3.6, inner)
    right = inner - left - BESIDE if images else inner
    columns = max(8, int(right * 72 / (0.64 * points)) - 1)
    placed, heights = [], []
    for group, begin, wide in ((images, MARGIN, left), (others, width - MARGIN - right, right)):
        top = MARGIN / 2 + 0.25 * bool(title)
        for panel in group:
            high = _height(panel, wide, columns, points)
            placed.append((panel, (aside + begin, top + TITLE, wide, high)))
            top += TITLE + high + GAP + TICKS * (panel.kind == "sound")
        heights.append(top)
    below = max(heights) + 0.05
    lines = wrap_notes(notes, across - 2 * MARGIN)
    bar = min(2.6, 0.6 * (across - 2 * MARGIN))
    high = below + BAR + len(lines) * 1.5 * NOTE_POINTS / 72 + 0.05
    return PartsPage((across, high), placed, ((across - bar) / 2, below, bar, 0.1), columns, title or "", lines)


def _fit(
    panels: Sequence[PartPanel], notes: list[str], title: str | None, room: Size, points: float
) -> PartsPage:  # fmt: skip
    """As wide as it may be without being higher than the room there is; if nothing is, all of it shrinks."""
    widths = np.linspace(room[0], 0.4 * room[0], 13).tolist()
    pages = [_lay_out(panels, notes, title, width, points, room[0]) for width in widths]
    page = next((page for page in pages if page.size[1] <= room[1]), min(pages, key=lambda page: page.size[1]))
    return page._replace(size=(room[0], max(room[1], page.size[1])))


def _draw(page: PartsPage, put: Put, look: Look, labels: tuple[str, str], points: float) -> None:
    for panel, box in page.panels:
        ax = put(*box)
        _fill(ax, panel, look, page.columns, points)
        ax.set_title(panel.title, parse_math=False, color=INK, loc="left", fontsize="medium")
    width, height = page.size
    words = put(0, 0, width, height)
    words.set(xlim=(0, width), ylim=(height, 0), zorder=-1)
    words.set_axis_off()
    words.text(MARGIN, 0.06, page.title, va="top", color=INK, parse_math=False, weight="bold")
    words.text(width / 2, height - 0.05, "\n".join(page.notes), ha="center", va="bottom", color=INK,
               fontsize=NOTE_POINTS, parse_math=False)  # fmt: skip
    bar = put(*page.bar)
    lay_bar(bar.figure, page.panels[0][0].limit, labels, cax=bar)


def _height(panel: PartPanel, width: float, columns: int, points: float) -> float:
    if panel.kind == "image":
        heat = read_heat(panel.values, panel.under, Look(diverging(), 1.0, 1.0, False))
        return width * heat.size[0] / heat.size[1]
    if panel.kind == "sound":
        return SOUND
    return sum(one.count_lines(columns) for one in panel.texts()) * 1.9 * points / 72


def _fill(ax: Axes, panel: PartPanel, look: Look, columns: int, points: float) -> None:
    if panel.kind == "image":
        draw_heat(ax, read_heat(panel.values, panel.under, look)._replace(notes=[]), look)
    elif panel.kind == "sound":
        _draw_sound(ax, panel, look)
    else:
        begin = 0
        for one in panel.texts():
            begin = one.draw_alone(ax, columns, points, begin)


def _draw_sound(ax: Axes, panel: PartPanel, look: Look) -> None:
    """A spectrogram or a wave in grey, and the colours of its segments over it."""
    assert panel.edges is not None
    first, last = float(panel.edges[0]), float(panel.edges[-1])
    least, span = float(panel.under.min()), float(np.ptp(panel.under)) or 1.0
    low, high = (0.0, float(len(panel.under))) if panel.under.ndim == 2 else (least, least + span)
    if panel.under.ndim == 2:
        grey = 1 - DARK * (panel.under - least) / span
        ax.imshow(grey, cmap="gray", vmin=0.0, vmax=1.0, aspect="auto", origin="lower", extent=(first, last, low, high))
    ax.pcolormesh(
        panel.edges, [low, high], panel.values[None], cmap=look.cmap, vmin=-panel.limit, vmax=panel.limit,
        alpha=look.alpha, linewidth=0,
    )  # fmt: skip
    if panel.under.ndim == 1:
        ax.plot(np.linspace(first, last, len(panel.under)), panel.under, color=INK, linewidth=0.5)
    ax.set(xlim=(first, last), yticks=[])
    ax.tick_params(length=2, color=FRAME, labelsize="small", labelcolor=INK)
    piece = float(panel.edges[1] - panel.edges[0])
    unit = f"seconds, {short(piece)} a colour" if panel.timed else f"frames, {piece:.0f} a colour"
    ax.set_xlabel(unit, color=INK, fontsize=NOTE_POINTS, labelpad=1)
    for spine in ax.spines.values():
        spine.set(color=FRAME, linewidth=0.6)
