"""How scores agree with contributions: points, and sums over the highest scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nrm.errors import NrmError, QuestionError
from nrm.extras import extra
from nrm.plot.heat import FRAME, INK
from nrm.plot.pictures import Array, Picture, read_finite
from nrm.plot.saving import Size, place

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PAGE = (4.2, 3.4)  # inches
FEW = 1000  # so many points are large dots
MARKED = 5  # so many numbers are told at an axis
POINTS = 20_000  # more of them are one black spot
LINES = ("#c30f1f", "#0e5ae4", "#2b8a3e", "#b8860b", "#7a7a7a", "#7b3fa0", "#008b8b")


def scatter(
    contributions: Picture, scores: Picture, *, ax: Axes | None = None, figsize: Size | None = None,
    dpi: float | None = None, title: str | None = None, labels: tuple[str, str] = ("score", "joint contribution"),
) -> Axes:  # fmt: skip
    """Draw every combination as a point: its score to the right, its joint contribution upwards.

    Both are of one shape. Of many combinations the strongest in either, and some of the others, are drawn; the
    correlation in the picture is that of all.

    >>> import torch
    >>> C = torch.randn(1, 30, 20)
    >>> ax = scatter(C, 0.5 * C)
    >>> ax.texts[0].get_text()
    'r = 1.000'
    """
    try:
        c, s = (read_finite(values, name).reshape(-1) for values, name in
                ((contributions, "contributions"), (scores, "scores")))  # fmt: skip
        if c.shape != s.shape or len(c) < 2:
            raise QuestionError(
                "contributions and scores do not fit", got=f"{len(c)} and {len(s)}", expected="as many, at least two"
            )
        ax = place("nrm.plot.scatter", ax, PAGE, figsize, dpi)
    except NrmError as error:
        raise error.at("nrm.plot.scatter") from None
    chosen = _some(c, s)
    ax.axhline(0.0, color=FRAME, linewidth=0.8, zorder=0)
    ax.axvline(0.0, color=FRAME, linewidth=0.8, zorder=0)
    few = len(c) <= FEW
    ax.scatter(
        s[chosen], c[chosen], s=18 if few else 5, color=LINES[1], alpha=0.7 if few else 0.35, linewidths=0,
        rasterized=not few,
    )  # fmt: skip
    spread = float(c.std() * s.std())
    r = f"{float(((c - c.mean()) * (s - s.mean())).mean()) / spread:.3f}" if spread > 0 else "undefined"
    ax.text(0.04, 0.96, f"r = {r}", transform=ax.transAxes, va="top", color=INK)
    _dress(ax, labels, title)
    return ax


def sc_curves(
    k: Sequence[int] | Picture, curves: Mapping[str, Picture], *, ax: Axes | None = None,
    figsize: Size | None = None, dpi: float | None = None, title: str | None = None, level: float = 0.95,
    log: bool = True,
) -> Axes:  # fmt: skip
    """Draw SC_k, the sum of the contributions of the k highest scores, for several methods.

    ``curves`` has ``(samples, len(k))`` for every method; lines are means over samples, bands where ``level`` of the
    means lie if samples are drawn anew.

    >>> ax = sc_curves([1, 2, 4], {"a": [[1.0, 2.0, 3.0], [1.0, 3.0, 4.0]], "b": [[0.0, 1.0, 2.0]] * 2})
    >>> [line.get_label() for line in ax.lines]
    ['a', 'b']
    """
    try:
        steps = read_finite(np.asarray(k, dtype=float), "k").reshape(-1)
        tables = {name: read_finite(np.asarray(c, dtype=float), f"curve {name!r}") for name, c in curves.items()}
        for name, table in tables.items():
            if table.ndim != 2 or table.shape[1] != len(steps):
                raise QuestionError(
                    f"the curves of {name!r} do not fit k", got=f"shape {table.shape}",
                    expected=f"(samples, {len(steps)})",
                )  # fmt: skip
        ax = place("nrm.plot.sc_curves", ax, PAGE, figsize, dpi)
    except NrmError as error:
        raise error.at("nrm.plot.sc_curves") from None
    random = np.random.default_rng(0)
    for number, (name, table) in enumerate(tables.items()):
        color = LINES[number % len(LINES)]
        ax.plot(steps, table.mean(0), color=color, label=name, linewidth=1.6)
        if len(table) > 1:
            weights = random.multinomial(len(table), [1 / len(table)] * len(table), size=400) / len(table)
            low, high = np.quantile(weights @ table, [(1 - level) / 2, (1 + level) / 2], axis=0)
            ax.fill_between(steps, low, high, color=color, alpha=0.18, linewidth=0)
    if log:
        ax.set_xscale("log")
        _number_decades(ax, steps)
    ax.legend(frameon=False, fontsize=8)
    _dress(ax, ("k, the number of combinations", "sum of joint contributions"), title)
    return ax


def _number_decades(ax: Axes, steps: Array) -> None:
    """Whole numbers on a log axis: those of the curves if there are few, else the powers of ten."""
    with extra("viz", "nrm.plot.sc_curves"):
        from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
    powers = 10.0 ** np.arange(np.floor(np.log10(steps.min())), np.ceil(np.log10(steps.max())) + 1)
    ax.xaxis.set_major_locator(FixedLocator(steps.tolist() if len(steps) <= MARKED else powers.tolist()))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda k, _: f"{k:,.0f}"))
    ax.xaxis.set_minor_locator(NullLocator())


def _some(c: Array, s: Array) -> Any:
    if len(c) <= POINTS:
        return slice(None)
    strong = np.concatenate([np.argsort(-np.abs(values))[: POINTS // 4] for values in (c, s)])
    rest = np.random.default_rng(0).choice(len(c), POINTS // 2, replace=False)
    return np.unique(np.concatenate([strong, rest]))


def _dress(ax: Axes, labels: tuple[str, str], title: str | None) -> None:
    ax.set_xlabel(labels[0], color=INK)
    ax.set_ylabel(labels[1], color=INK)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    if title:
        ax.set_title(title, parse_math=False, color=INK)
