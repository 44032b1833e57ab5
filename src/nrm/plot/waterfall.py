"""Amounts that add up: bars from the output of a reference to the output here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nrm.errors import NrmError, QuestionError
from nrm.numbers import with_minus
from nrm.plot.colors import ABOVE, BELOW
from nrm.plot.heat import FRAME, INK, NOTE_POINTS
from nrm.plot.pictures import Array, Picture, Scalar, read_finite, read_line, read_scalar
from nrm.plot.saving import Size, place

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BAR = 0.72
"""The height of a bar, where 1 is the distance between two of them."""


def waterfall(
    amounts: Picture,
    names: Sequence[str] | None = None,
    *,
    start: Scalar = 0.0,
    values: Picture | None = None,
    most: int = 10,
    ax: Axes | None = None,
    figsize: Size | None = None,
    dpi: float | None = None,
    title: str | None = None,
    ends: tuple[str, str] = ("reference", "here"),
) -> Axes:
    r"""Draw amounts as bars that begin where the last one ended: from the output of the reference to the output here.

    The largest amount stands on top, red where it raises the output and blue where it lowers it. Below ``start`` the
    first bar begins, and the last one ends at :math:`start + \sum_i amount_i`.

    Args:
        amounts: ``(T,)`` or a batch of one, in units of the output: ``R.in_units(R.input)`` of a table.
        names: a name for each amount, such as the features of a table.
        start: the output of the reference, ``R.there``; 0 where there is none.
        values: the features themselves, written behind their names.
        most: so many bars, the smaller amounts being one bar together.
        ax: where to draw; a new figure if None.
        figsize: width and height of a new figure, in inches.
        dpi: dots per inch of a new figure.
        title: text above the picture.
        ends: the words for both outputs.

    Returns:
        ``ax``; its x axis is the output, and the bars are at 0, 1, 2 ... from the top down.

    >>> ax = waterfall([3.0, -8.0, 1.0, 0.5], ["age", "bmi", "sex", "glucose"], start=100.0, most=3)
    >>> [text.get_text() for text in ax.get_yticklabels()]
    ['bmi', 'age', '2 others']
    >>> [round(float(bar.get_x() + bar.get_width()), 1) for bar in ax.patches]
    [92.0, 95.0, 96.5]
    """
    try:
        bars = _read(amounts, names, start, values, most)
        ax = place("nrm.plot.waterfall", ax, (7.0, 1.1 + 0.34 * len(bars.amounts)), figsize, dpi)
    except NrmError as error:
        error.at("nrm.plot.waterfall")
        raise
    _draw(ax, bars)
    _dress(ax, bars, ends)
    if title:
        ax.set_title(title, parse_math=False, color=INK, loc="left", pad=22)
    return ax


class Bars(NamedTuple):
    """What is drawn: amounts in their order with their names, and between what outputs each of them leads."""

    amounts: Array
    names: list[str]
    outputs: Array


def _read(
    amounts: Picture, names: Sequence[str] | None, start: Scalar, values: Picture | None, most: int
) -> Bars:  # fmt: skip
    found = read_line(amounts, "amounts", "R.in_units(R.input)")
    words = _names(names, values, len(found))
    if most < 2:
        raise QuestionError("too few bars", got=f"most={most!r}", expected="2 or more")
    order = np.argsort(-np.abs(found), kind="stable")
    kept = order if len(order) <= most else order[: most - 1]
    shown, told = found[kept], [words[i] for i in kept]
    if len(kept) < len(order):
        shown = np.append(shown, found[order[len(kept) :]].sum())
        told.append(f"{len(order) - len(kept)} others")
    return Bars(shown, told, np.concatenate([[0.0], np.cumsum(shown)]) + read_scalar(start, "start"))


def _names(names: Sequence[str] | None, values: Picture | None, count: int) -> list[str]:
    """The name of every amount, with its value behind it."""
    if names is not None and (isinstance(names, str) or len(names) != count):
        got = repr(names)[:80] if isinstance(names, str) else f"{len(names)} names"
        raise QuestionError("the names do not fit the amounts", got=got, expected=f"{count} names")
    words = [str(name) for name in names] if names is not None else [str(i) for i in range(count)]
    if values is None:
        return words
    own = read_finite(values, "values").reshape(-1)
    if len(own) != count:
        raise QuestionError("the values do not fit the amounts", got=f"{len(own)} values", expected=str(count))
    return [f"{word} = {with_minus(f'{value:.4g}')}" for word, value in zip(words, own, strict=True)]


def _draw(ax: Axes, bars: Bars) -> None:
    """Every bar with its number behind it, and thin lines from bar to bar."""
    reach = float(np.ptp(bars.outputs)) or 1.0
    digits = max(0, 2 - int(np.floor(np.log10(reach))))
    for k, (amount, left) in enumerate(zip(bars.amounts, bars.outputs, strict=False)):
        ax.barh(k, amount, BAR, left, color=(ABOVE if amount > 0 else BELOW)[4], linewidth=0, zorder=2)
        ax.plot([left + amount] * 2, [k - BAR / 2, min(k + 1, len(bars.amounts) - 1) + BAR / 2], color=FRAME,
                linewidth=0.8, zorder=1)  # fmt: skip
        side: dict[str, Any] = {"ha": "left", "xytext": (4, 0)} if amount > 0 else {"ha": "right", "xytext": (-4, 0)}
        ax.annotate(
            with_minus(f"{amount:+.{digits}f}"), (left + amount, k), textcoords="offset points", va="center",
            fontsize=NOTE_POINTS, color=INK, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6}, **side,
        )  # fmt: skip


def _dress(ax: Axes, bars: Bars, ends: tuple[str, str]) -> None:
    """The two outputs as lines through all bars, named above and below, and room for the numbers at both sides."""
    first, last, count = float(bars.outputs[0]), float(bars.outputs[-1]), len(bars.amounts)
    for at, word, y, side in ((first, ends[0], -0.75, "bottom"), (last, ends[1], count - 0.25, "top")):
        ax.axvline(at, color=INK, linewidth=0.8, linestyle=(0, (2, 2)), zorder=1)
        ax.text(at, y, f"{word} {with_minus(f'{at:.4g}')}", ha="center", va=side, fontsize=NOTE_POINTS + 1, color=INK,
                parse_math=False)  # fmt: skip
    margin = 0.12 * (float(np.ptp(bars.outputs)) or 1.0)
    ax.set_xlim(float(bars.outputs.min()) - margin, float(bars.outputs.max()) + margin)
    ax.set_ylim(count - 0.25, -0.75)
    ax.set_yticks(range(count), bars.names, parse_math=False)
    ax.tick_params(length=0, labelcolor=INK)
    ax.tick_params(axis="x", length=2, color=FRAME, labelsize="small", pad=14)
    for spine in ax.spines.values():
        spine.set_visible(False)
