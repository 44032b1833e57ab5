"""Relevance along a sequence: the series as a line on a background of its relevance, or bars without one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nrm.errors import NrmError, QuestionError
from nrm.extras import extra
from nrm.numbers import short
from nrm.plot.colors import ABOVE, BELOW, diverging
from nrm.plot.heat import FRAME, INK, NOTE_POINTS, SCALE, find_limit, inches, note_rest, note_sign, wrap_notes
from nrm.plot.pictures import Array, Picture, Scalar, read_finite
from nrm.plot.saving import Size, place

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GAP = 0.3  # between the rows of two channels, in heights of a row
BARS = 0.5  # the height of the bars below the lines, beside that of a row
MANY = 12  # so many channels have rows of their own


def series(
    relevance: Picture,
    values: Picture | None = None,
    *,
    ax: Axes | None = None,
    figsize: Size | None = None,
    dpi: float | None = None,
    channels: Sequence[str] | None = None,
    times: Any = None,
    scale: float | str | None = SCALE,
    bars: bool = True,
    title: str | None = None,
    value: Scalar | None = None,
    rest: Scalar | None = None,
) -> Axes:
    """Draw the relevance of a sequence: every channel as a line on a background of colours, and bars of their sum.

    Red argues for the explained output, blue against it, white is nothing. The bars below are the relevance of every
    step, all channels summed; what they add up to is the share of the whole sequence.

    Args:
        relevance: ``(T,)``, ``(T, C)`` or a batch of one, as ``R(R.input)`` gives it for a recurrent network. Turn
            ``(C, T)`` of a convolution around first: ``relevance.mT``.
        values: the sequence itself, in the shape of the relevance; without it, colours and bars only.
        ax: where to draw; a new figure if None.
        figsize: width and height of a new figure, in inches.
        dpi: dots per inch of a new figure.
        channels: the names of the channels, at the left of their rows.
        times: the time of every step, in ascending order; 0, 1, 2 ... if None.
        scale: the relevance that has the full colour, as in :func:`nrm.plot.heatmap`.
        bars: draw the bars; False leaves the rows alone.
        title: text above the picture.
        value: the explained output (``R.value``): if it is negative, the picture says so.
        rest: the share of the mass that is not in the picture, such as that of the biases; noted below it.

    Returns:
        ``ax``; its x axis is time. Rows stand above 0, one unit each and the first channel on top, bars below.

    >>> import torch
    >>> t = torch.linspace(0, 6, 50)
    >>> ax = series(torch.sin(t)[:, None] * torch.tensor([0.02, 0.01]), torch.stack([t.sin(), t.cos()], 1),
    ...             channels=["up", "side"], rest=0.1)
    >>> [text.get_text() for text in ax.get_yticklabels()][:2]
    ['up', 'side']
    >>> print(ax.get_xlabel())
    step
    full colour at ±0.02
    10.0 % of the mass not shown
    """
    try:
        strip = _read(relevance, values, channels, times, scale, value, rest)
        ax = place("nrm.plot.series", ax, _page(strip, bars), figsize, dpi)
    except NrmError as error:
        error.at("nrm.plot.series")
        raise
    tops = _draw_rows(ax, strip)
    height = _draw_bars(ax, strip) if bars else 0.0
    _dress(ax, strip, tops, height)
    if title:
        ax.set_title(title, parse_math=False, color=INK)
    return ax


class Strip(NamedTuple):
    """What is drawn: ``(T, C)`` relevance and values, the edges between steps, and the words around them."""

    relevance: Array
    values: Array | None
    edges: Array
    middle: Array
    limit: float
    channels: list[str]
    is_counted: bool
    notes: list[str]


def _read(
    relevance: Picture, values: Picture | None, channels: Sequence[str] | None, times: Any,
    scale: float | str | None, value: Scalar | None, rest: Scalar | None,
) -> Strip:  # fmt: skip
    found = _read_sequence(relevance, "relevance")
    steps, count = found.shape
    own = None if values is None else _read_sequence(values, "the sequence")
    if own is not None and own.shape != found.shape:
        raise QuestionError(
            "relevance and sequence have different shapes", got=f"{found.shape} and {own.shape}",
            expected="one relevance for every value", hint="R(R.input) has the shape of the input",
        )  # fmt: skip
    if count > MANY:
        raise QuestionError(
            "too many channels for rows of their own", got=f"{count} channels", expected=f"up to {MANY}",
            hint="relevance.sum(-1), or nrm.plot.heatmap(relevance.mT)",
        )  # fmt: skip
    names = [] if channels is None else [str(name) for name in channels]
    if channels is not None and len(names) != count:
        raise QuestionError(
            "the names do not fit the channels", got=f"{len(names)} names", expected=f"{count}, one per channel"
        )
    middle = _read_times(times, steps)
    half = np.diff(middle) / 2 if steps > 1 else np.array([0.5])
    edges = np.concatenate([middle[:1] - half[:1], middle[:-1] + half, middle[-1:] + half[-1:]]) if steps > 1 else (
        np.array([middle[0] - 0.5, middle[0] + 0.5]))  # fmt: skip
    limit = find_limit(found, scale)
    colour = f"full colour at \N{PLUS-MINUS SIGN}{short(limit)}" if found.any() else "no relevance here: all zero"
    return Strip(
        found, own, edges, middle, limit, names, times is None, [colour, *note_sign(value), *note_rest(rest)]
    )  # fmt: skip


def _read_sequence(data: Picture, what: str) -> Array:
    array = read_finite(data, what)
    if array.ndim == 3 and len(array) == 1:
        array = array[0]
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2:
        raise QuestionError(
            f"{what} is not one sequence", got=f"shape {array.shape}", expected="(T,), (T, C) or a batch of one",
            hint="relevance[0] is the first sample",
        )  # fmt: skip
    return array


def _read_times(times: Any, steps: int) -> Array:
    if times is None:
        return np.arange(steps, dtype=np.float64)
    found = read_finite(times, "the times")
    got = "times that do not ascend" if found.shape == (steps,) else f"shape {found.shape}"
    if found.shape != (steps,) or (steps > 1 and not (np.diff(found) > 0).all()):
        raise QuestionError(
            "the times do not fit the steps", got=got, expected=f"{steps} ascending numbers"
        )  # fmt: skip
    return found


def _draw_rows(ax: Axes, strip: Strip) -> list[float]:
    """The channels from the top down; returns the lower edge of every row."""
    with extra("viz", "nrm.plot.series"):
        from matplotlib.patheffects import withStroke
    steps, count = strip.relevance.shape
    lows = [(count - 1 - c) * (1 + GAP) + GAP for c in range(count)]
    for c, low in enumerate(lows):
        ax.pcolormesh(
            strip.edges, [low, low + 1], strip.relevance[None, :, c], cmap=diverging(), vmin=-strip.limit,
            vmax=strip.limit, shading="flat", rasterized=steps > 500,
        )  # fmt: skip
        ax.plot(strip.edges[[0, -1, -1, 0, 0]], [low, low, low + 1, low + 1, low], color=FRAME, linewidth=0.6)
        if strip.values is not None:
            own = strip.values[:, c]
            span = float(own.max() - own.min()) or 1.0
            line = low + 0.1 + 0.8 * (own - own.min()) / span if own.any() else np.full(steps, low + 0.5)
            drawn = ax.plot(
                strip.middle, line, color=INK, linewidth=1.0, marker="" if steps > 60 else ".", markersize=3
            )
            drawn[0].set_path_effects([withStroke(linewidth=2.5, foreground="white", alpha=0.7)])
    return lows


def _draw_bars(ax: Axes, strip: Strip) -> float:
    """The sums over channels, hanging below the rows; returns their height."""
    total = strip.relevance.sum(1)
    above, below = max(float(total.max()), 0.0), max(float(-total.min()), 0.0)
    height: float = BARS * strip.relevance.shape[1] ** 0.5
    unit = height / ((above + below) or 1.0)
    base = -above * unit
    colors = [ABOVE[4] if r > 0 else BELOW[4] for r in total]
    ax.bar(strip.middle, total * unit, np.diff(strip.edges) * 0.9, base, color=colors, linewidth=0)
    ax.plot(strip.edges[[0, -1]], [base, base], color=FRAME, linewidth=0.8)
    end = total.max() if above >= below else total.min()
    ax.annotate(
        short(float(end), plus=True), (strip.edges[-1], base + float(end) * unit), xytext=(4, 0),
        textcoords="offset points", va="center", fontsize=NOTE_POINTS, color=INK, annotation_clip=False,
    )  # fmt: skip
    ax.annotate(
        "sum", (strip.edges[0], base), xytext=(-4, 0), textcoords="offset points", va="center", ha="right",
        fontsize=NOTE_POINTS + 1, color=INK, annotation_clip=False,
    )  # fmt: skip
    return height


def _dress(ax: Axes, strip: Strip, lows: list[float], below: float) -> None:
    ax.set_xlim(strip.edges[0], strip.edges[-1])
    ax.set_ylim(-below - 0.06 * (below > 0), lows[0] + 1)
    ax.set_yticks([low + 0.5 for low in lows] if strip.channels else [], labels=strip.channels or None)
    ax.tick_params(length=0, labelcolor=INK)
    ax.tick_params(axis="x", length=2, color=FRAME, labelsize="small")
    for spine in ax.spines.values():
        spine.set_visible(False)
    if strip.is_counted:
        ax.locator_params(axis="x", integer=True)
    words = wrap_notes(strip.notes, inches(ax)[0])
    ax.set_xlabel("\n".join([*(["step"] if strip.is_counted else []), *words]), parse_math=False, color=INK,
                  fontsize=NOTE_POINTS)  # fmt: skip


def _page(strip: Strip, bars: bool) -> Size:
    """The size of a new figure, in inches."""
    return 7.0, 0.7 + 0.75 * strip.relevance.shape[1] + (0.7 if bars else 0.0)
