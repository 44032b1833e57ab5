"""One heat map: read everything first, then draw, so that a complaint leaves no half-drawn figure behind."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from nrm.errors import NrmError, QuestionError
from nrm.extras import extra
from nrm.numbers import percent, short, with_minus
from nrm.plot.colors import diverging
from nrm.plot.pictures import Array, Picture, Scalar, check_fit, read_image, read_relevance, read_scalar, to_grey
from nrm.plot.saving import new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colorbar import Colorbar
    from matplotlib.colors import Colormap
    from matplotlib.image import AxesImage

ENDS = ("against", "for")
FRAME = "#c8c8c8"
INK = "#333333"
NOTE_POINTS = 8.0
NOTED_REST = 0.0005  # a share below 0.05 % would read 0.0 %


def heatmap(
    relevance: Picture,
    image: Picture | None = None,
    *,
    ax: Axes | None = None,
    cmap: str | Colormap | None = None,
    alpha: float = 0.7,
    scale: float | str | None = None,
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
        cmap: a matplotlib colour map or its name; :func:`nrm.plot.diverging` if None.
        alpha: opacity of the colours over the image, 0 to 1.
        scale: the relevance that has the full colour: None for ``max |r|``, a number (the same for several
            pictures that are compared), or a percentile of the non-zero ``|r|`` such as ``"99%"`` for maps with a few
            extreme pixels; what is beyond it is clipped, and the colour bar shows that by its pointed ends.
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
        ax = _new_axes(heat.size, colorbar) if ax is None else check_axes(ax, "nrm.plot.heatmap")
    except NrmError as error:
        error.at("nrm.plot.heatmap")
        raise
    drawn = draw_heat(ax, heat, look)
    if title:
        ax.set_title(title, parse_math=False, color=INK)
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
    """What is drawn: ``limit`` is the relevance that has the full colour, ``size`` the picture's height and width."""

    values: Array
    grey: Array | None
    size: tuple[int, int]
    limit: float
    negative: bool
    notes: list[str]


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
    return Heat(values, grey, (height, width), find_limit(values, look.scale), bool(sign), notes)


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
    50.5
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
        return float(np.percentile(sizes, wanted)) if sizes.size else 1.0
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
        width = ax.bbox.width / ax.figure.dpi
        ax.set_xlabel("\n".join(wrap_notes(notes, width)), parse_math=False, color=INK, fontsize=NOTE_POINTS)


def wrap_notes(notes: list[str], width: float) -> list[str]:
    """Lines that fit ``width`` inches.

    >>> wrap_notes(["-50.0 % of the mass not shown: against the output"], 1.9)
    ['-50.0 % of the mass not', 'shown: against the output']
    """
    letters = max(16, int(72 * width / (0.6 * NOTE_POINTS)))
    return [line for note in notes for line in textwrap.wrap(note, letters)]


def find_beyond(heats: Iterable[Heat]) -> str:
    """Which ends of a colour bar have relevance beyond them, in matplotlib's word."""
    clipped = [(heat.values.min() < -heat.limit, heat.values.max() > heat.limit) for heat in heats]
    below, above = any(low for low, _ in clipped), any(high for _, high in clipped)
    return "both" if below and above else "min" if below else "max" if above else "neither"


def dress_bar(bar: Colorbar, ticks: dict[float, str], labels: tuple[str, str], text: str) -> None:
    """A quiet colour bar: a few numbers, a word at each end, what the numbers are."""
    low, high = labels
    bar.set_ticks(list(ticks), labels=list(ticks.values()))
    bar.ax.tick_params(length=0, labelsize="small", labelcolor=INK)
    bar.outline.set(edgecolor=FRAME, linewidth=0.6)
    bar.set_label(text, size="small", color=INK)
    bar.ax.set_title(high, parse_math=False, fontsize="small", color=INK, pad=8, loc="left")
    bar.ax.set_xlabel(low, parse_math=False, fontsize="small", color=INK, labelpad=8, loc="left")


def mark_limit(limit: float) -> dict[float, str]:
    """The three numbers of a colour bar."""
    return {-limit: short(-limit), 0.0: "0", limit: short(limit, plus=True)}


def _new_axes(size: tuple[int, int], colorbar: bool) -> Axes:
    height, width = size
    long_side, short_side = 4.0, 1.5
    wide, high = long_side * min(1.0, width / height), long_side * min(1.0, height / width)
    room_for_bar, room_for_text = 1.2 if colorbar else 0.0, 0.7
    figsize = (max(wide, short_side) + room_for_bar, max(high, short_side) + room_for_text)
    axes: Axes = new_axes("nrm.plot.heatmap", figsize, layout="constrained")
    return axes


def check_axes(ax: object, needed_by: str) -> Axes:
    """Refuse what is not one axes, such as a grid of them."""
    with extra("viz", needed_by):
        from matplotlib.axes import Axes
    if not isinstance(ax, Axes):
        raise QuestionError(
            "ax is not one matplotlib axes", got=type(ax).__name__, expected="an Axes", hint="axes[0, 0] of a grid"
        )
    return ax


def add_bar(ax: Axes, drawn: AxesImage, heat: Heat, labels: tuple[str, str]) -> None:
    """A colour bar at the right of a picture."""
    # An inset follows the picture's own box, which a picture of fixed aspect makes smaller than its slot.
    bar = ax.figure.colorbar(drawn, cax=ax.inset_axes((1.05, 0.0, 0.045, 1.0)), extend=find_beyond([heat]))
    dress_bar(
        bar, mark_limit(heat.limit), labels, "share of a negative output" if heat.negative else "share of the output"
    )
