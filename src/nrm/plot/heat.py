"""One heat map: read everything first, then draw, so that a complaint leaves no half-drawn figure behind."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nrm.errors import NrmError, QuestionError
from nrm.extras import extra
from nrm.numbers import percent, short, with_minus
from nrm.plot.colors import diverging
from nrm.plot.pictures import Array, Picture, Scalar, check_fit, read_image, read_relevance, read_scalar, to_grey
from nrm.plot.saving import Size, place

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colorbar import Colorbar
    from matplotlib.colors import Colormap
    from matplotlib.image import AxesImage

ENDS = ("against", "for")
FRAME = "#c8c8c8"
INK = "#333333"
NOTE_POINTS, TITLE_POINTS = 8.0, 11.0
LETTER = 0.55  # the width of a letter, in its size
POINTED = 0.03  # the length of a pointed end of a colour bar, beside that of the bar
NOTED_REST = 0.0005  # a share below 0.05 % would read 0.0 %
SCALE = "99.5%"
"""The relevance that has the full colour by default: a few extreme pixels do not pale all others."""


def heatmap(
    relevance: Picture,
    image: Picture | None = None,
    *,
    ax: Axes | None = None,
    figsize: Size | None = None,
    dpi: float | None = None,
    cmap: str | Colormap | None = None,
    alpha: float = 0.7,
    scale: float | str | None = SCALE,
    smooth: bool = True,
    colorbar: bool = True,
    title: str | None = None,
    labels: tuple[str, str] = ENDS,
    value: Scalar | None = None,
    rest: Scalar | None = None,
) -> Axes:
    """Draw relevance as colours: red for the explained output, blue against it, white nothing.

    Args:
        relevance: ``(H, W)``, ``(C, H, W)`` (channels are summed) or a batch of one. A map that is coarser than the
            image is spread over it.
        image: what was explained, drawn in grey under the colours: ``(3, H, W)``, ``(1, H, W)``, ``(H, W)``,
            ``(H, W, 3)`` or a batch of one, in any range (standardized, [0, 1], uint8); a PIL image too.
        ax: where to draw; a new figure if None. The colour bar stands beside it, so make a grid of your own with
            ``plt.subplots(..., layout="constrained")``.
        figsize: width and height of a new figure, in inches.
        dpi: dots per inch of a new figure.
        cmap: a matplotlib colour map or its name; :func:`nrm.plot.diverging` if None.
        alpha: opacity of the colours over the image, 0 to 1.
        scale: the relevance that has the full colour: a percentile of the non-zero ``|r|``, so that a few extreme
            pixels do not pale all others; a number (the same for several pictures that are compared), or None for
            ``max |r|``. What is beyond it is clipped: the colour bar says so, and has pointed ends. Of fewer than 200
            values, 99.5 % is the largest.
        smooth: interpolate a map that is coarser than the image; False shows its cells.
        colorbar: add a colour bar; it is ``ax.images[-1].colorbar``.
        title: text above the picture.
        labels: the words at the lower and upper end of the colour bar.
        value: the explained output (``R.value``). Relevance is a share of it: if it is negative, positive relevance
            argues for the negative value, and the picture says "shares of a negative output".
        rest: the share of the mass that is not in the picture, such as that of the biases; noted below it.

    Returns:
        ``ax``; its data coordinates are pixels of the image (of the relevance without one).

    >>> import torch
    >>> relevance = torch.linspace(-1, 1, 64).reshape(1, 8, 8)
    >>> ax = heatmap(relevance, image=torch.rand(3, 32, 32), title="a gradient", value=-1.5, rest=0.08)
    >>> print(ax.get_xlabel())  # doctest: +ELLIPSIS
    shares of a negative output (...1.5)
    8.0 % of the mass not shown
    >>> ax.images[-1].get_clim()
    (-1.0, 1.0)
    """
    try:
        look = read_look(cmap, alpha, scale, smooth)
        heat = read_heat(relevance, image, look, value, rest)
        ax = place("nrm.plot.heatmap", ax, _page(heat.size, colorbar), figsize, dpi)
    except NrmError as error:
        error.at("nrm.plot.heatmap")
        raise
    drawn = draw_heat(ax, heat, look)
    if title:
        ax.set_title(
            "\n".join(wrap(title, inches(ax)[0], TITLE_POINTS)), parse_math=False, color=INK, size=TITLE_POINTS
        )
    if colorbar:
        add_bar(ax, drawn, heat, labels)
    return ax


class Look(NamedTuple):
    """How relevance becomes colour; the arguments of :func:`heatmap`, checked."""

    cmap: Colormap
    alpha: float
    scale: float | str | None
    smooth: bool


class Heat(NamedTuple):
    """What is drawn: ``limit`` is the relevance that has the full colour, ``size`` the picture's height and width.

    ``percentile`` is that of the limit, if it is one.
    """

    values: Array
    grey: Array | None
    size: tuple[int, int]
    limit: float
    negative: bool
    notes: list[str]
    percentile: str | None = None

    @property
    def meaning(self) -> str:
        """What the numbers of a colour bar are."""
        return "share of a negative output" if self.negative else "share of the output"


def read_look(cmap: str | Colormap | None, alpha: float, scale: float | str | None, smooth: bool) -> Look:
    """Check the arguments that do not depend on a picture."""
    if cmap is None:
        cmap = diverging()
    elif isinstance(cmap, str):
        with extra("viz", "nrm.plot.heatmap"):
            import matplotlib
        if cmap not in matplotlib.colormaps:
            raise QuestionError(
                "unknown colour map", got=repr(cmap), expected="a name matplotlib knows", hint="matplotlib.colormaps"
            )
        cmap = matplotlib.colormaps[cmap]
    if not 0.0 <= alpha <= 1.0:
        raise QuestionError("alpha is out of range", got=repr(alpha), expected="a number from 0 to 1")
    return Look(cmap, alpha, scale, smooth)


def read_heat(
    relevance: Picture, image: Picture | None, look: Look, value: Scalar | None = None, rest: Scalar | None = None
) -> Heat:
    """Check what is drawn, and write the notes that a reader needs to read the colours right."""
    values = read_relevance(relevance)
    grey = None if image is None else to_grey(read_image(image))
    if grey is not None:
        check_fit(values, grey)
    height, width = (values if grey is None else grey).shape
    sign = note_sign(value)
    notes = [*sign, *note_rest(rest), *([] if values.any() else ["no relevance here: all zero"])]
    percentile = look.scale if isinstance(look.scale, str) else None
    return Heat(values, grey, (height, width), find_limit(values, look.scale), bool(sign), notes, percentile)


def note_sign(value: Scalar | None) -> list[str]:
    """Shares of a negative output argue for a negative value; a reader has to be told.

    >>> note_sign(2.0), note_sign(-2.0)  # doctest: +ELLIPSIS
    ([], ['shares of a negative output (...2)'])
    """
    output = 0.0 if value is None else read_scalar(value, "value")
    return [f"shares of a negative output ({short(output)})"] if output < 0 else []


def note_rest(rest: Scalar | None) -> list[str]:
    """The share of the mass that is not in a picture, if it would read as more than 0, and what its sign means.

    >>> note_rest(0.08), note_rest(1.5)
    (['8.0 % of the mass not shown'], ['150.0 % of the mass not shown: for the output, what is shown is against it'])
    """
    share = 0.0 if rest is None else read_scalar(rest, "rest")
    if abs(share) < NOTED_REST:
        return []
    sides = "against the output" if share < 0 else "for the output, what is shown is against it" if share > 1 else ""
    return [f"{with_minus(percent(share, 1))} of the mass not shown{': ' * bool(sides)}{sides}"]


def find_limit(values: Array, scale: float | str | None) -> float:
    """The relevance that gets the full colour; 1 for a map of zeros, so that it stays white.

    >>> find_limit(np.array([[-4.0, 1.0]]), None), find_limit(np.array([[-4.0, 1.0]]), 2)
    (4.0, 2.0)
    >>> find_limit(np.arange(101.0)[None], "50%")
    51.0
    """
    sizes = np.abs(values)
    if scale is None:
        return float(sizes.max()) or 1.0
    if isinstance(scale, str):
        match = re.fullmatch(r"(\d+(?:\.\d*)?) ?%", scale)
        wanted = float(match.group(1)) if match else 0.0
        if not 0.0 < wanted <= 100.0:
            raise QuestionError(
                "scale is not a percentile", got=repr(scale), expected='a number, or a percentile such as "99%"'
            )
        sizes = sizes[sizes > 0]
        return float(np.percentile(sizes, wanted, method="higher")) if sizes.size else 1.0
    limit = read_scalar(scale, "scale")
    if limit <= 0:
        raise QuestionError("scale is not positive", got=repr(scale), expected="the relevance that has the full colour")
    return limit


def draw_heat(ax: Axes, heat: Heat, look: Look) -> AxesImage:
    """The grey image, the colours over it, and the notes below."""
    height, width = heat.size
    opaque = heat.grey is None
    if heat.grey is not None:
        ax.imshow(heat.grey, cmap="gray", vmin=0.0, vmax=1.0, interpolation="antialiased")
    coarser = heat.values.shape != heat.size
    drawn = ax.imshow(
        heat.values,
        cmap=look.cmap,
        vmin=-heat.limit,
        vmax=heat.limit,
        alpha=1.0 if opaque else look.alpha,
        extent=(-0.5, width - 0.5, height - 0.5, -0.5),
        interpolation=("bilinear" if look.smooth else "nearest") if coarser else "antialiased",
    )
    frame(ax, heat.notes)
    return drawn


def frame(ax: Axes, notes: list[str]) -> None:
    """A thin line around the picture instead of axes, and the notes below it, no wider than the picture."""
    ax.set_xticks([])
    ax.set_yticks([])
    for spine in ax.spines.values():
        spine.set(color=FRAME, linewidth=0.6)
    if notes:
        lines = wrap_notes(notes, inches(ax)[0])
        ax.set_xlabel("\n".join(lines), parse_math=False, color=INK, fontsize=NOTE_POINTS)


def inches(ax: Axes) -> tuple[float, float]:
    """The width and the height of axes on the page."""
    return ax.bbox.width / ax.figure.dpi, ax.bbox.height / ax.figure.dpi


def wrap(text: str, width: float, points: float) -> list[str]:
    """Lines that fit ``width`` inches in letters of so many points; what the text has as lines stays so.

    >>> wrap("epsilon-plus-flat with biases", 1.0, 10)
    ['epsilon-plus-', 'flat with', 'biases']
    """
    letters = max(6, int(72 * width / (LETTER * points)))
    return [piece for line in text.split("\n") for piece in textwrap.wrap(line, letters) or [""]]


def fit_points(texts: Sequence[str], width: float, points: float) -> float:
    """The size of letters, at most ``points``, in which every word of some texts fits ``width`` inches; at least 6.

    >>> fit_points(["a few words"], 1.0, 9), fit_points(["features.28.channel(7)"], 1.0, 9)
    (9, 6.0)
    """
    longest = max((len(word) for text in texts for word in re.split(r"[\s-]", text)), default=1)
    return points if LETTER * points * longest <= 72 * width else max(6.0, 72 * width / (LETTER * longest))


def wrap_notes(notes: list[str], width: float) -> list[str]:
    """Notes below a picture that is ``width`` inches wide, none of their lines too short to be read.

    >>> wrap_notes(["-50.0 % of the mass not shown: against the output"], 1.9)
    ['-50.0 % of the mass not shown:', 'against the output']
    """
    return [line for note in notes for line in wrap(note, max(width, 1.1), NOTE_POINTS)]


def find_beyond(heats: Iterable[Heat]) -> str:
    """Which ends of a colour bar have relevance beyond them, in matplotlib's word."""
    clipped = [(heat.values.min() < -heat.limit, heat.values.max() > heat.limit) for heat in heats]
    below, above = any(low for low, _ in clipped), any(high for _, high in clipped)
    return "both" if below and above else "min" if below else "max" if above else "neither"


def dress_bar(
    bar: Colorbar, ticks: dict[float, str], labels: tuple[str, str], text: str, length: float | None = None
) -> None:
    """A quiet colour bar: a few numbers, a word at each end, what the numbers are.

    ``length`` is how long it will be, in inches, where that is not yet so.
    """
    low, high = labels
    length = inches(bar.ax)[1] if length is None else length
    bar.set_ticks(list(ticks), labels=list(ticks.values()))
    bar.ax.tick_params(length=0, labelsize="small", labelcolor=INK)
    bar.outline.set(edgecolor=FRAME, linewidth=0.6)
    bar.set_label("\n".join(wrap(text, length, NOTE_POINTS)), size=NOTE_POINTS, color=INK)
    pointed = 72 * POINTED * length  # what the ends of a clipped bar take
    above, below = (8 + pointed * (bar.extend in ("both", end)) for end in ("max", "min"))
    bar.ax.set_title(high, parse_math=False, fontsize="small", color=INK, pad=above, loc="left")
    bar.ax.set_xlabel(low, parse_math=False, fontsize="small", color=INK, labelpad=below, loc="left")


def mark_limit(limit: float) -> dict[float, str]:
    """The three numbers of a colour bar."""
    return {-limit: short(-limit), 0.0: "0", limit: short(limit, plus=True)}


def _page(size: tuple[int, int], colorbar: bool) -> Size:
    """The size of a new figure for a picture of so many pixels, in inches."""
    height, width = size
    long_side, short_side = 4.0, 1.5
    wide, high = long_side * min(1.0, width / height), long_side * min(1.0, height / width)
    room_for_bar, room_for_text = 1.2 if colorbar else 0.0, 0.7
    return max(wide, short_side) + room_for_bar, max(high, short_side) + room_for_text


def add_bar(ax: Axes, drawn: AxesImage, heat: Heat, labels: tuple[str, str]) -> None:
    """A colour bar at the right of a picture."""
    # An inset follows the picture's own box, which a picture of fixed aspect makes smaller than its slot.
    inch = 1 / max(inches(ax)[0], 1.0)
    bar = ax.figure.colorbar(
        drawn,
        cax=ax.inset_axes((1 + 0.16 * inch, 0.0, 0.16 * inch, 1.0)),
        extend=find_beyond([heat]),
        extendfrac=POINTED,
    )
    dress_bar(bar, mark_limit(heat.limit), labels, f"{heat.meaning}{note_clipped([heat])}")


def note_clipped(heats: Sequence[Heat]) -> str:
    """What a colour bar says of relevance beyond its ends: at what percentile they are."""
    percentile = next((heat.percentile for heat in heats if heat.percentile and find_beyond([heat]) != "neither"), None)
    return "" if percentile is None else f"\nfull colour beyond {percentile.replace('%', ' %')} of values"
