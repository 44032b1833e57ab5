"""A circuit as a picture: heads and other branches where they act, edges as curves as wide as what flows in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nrm.errors import NrmError, QuestionError
from nrm.measure import Circuit
from nrm.numbers import percent
from nrm.plot.circuit_nodes import PORT, CircuitNode, CircuitPicture, CircuitRibbon, lay_out_circuit
from nrm.plot.colors import ABOVE, BELOW, diverging
from nrm.plot.heat import ENDS, INK, TITLE_POINTS, inches, wrap
from nrm.plot.saving import Size, place

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from nrm.jobs import TaskCircuit

UNIT = 0.62
"""Inches of a column."""
ROW, LOW, HIGH = 0.5, 0.17, 9.0
"""Inches of a row at most and at least, and of all rows together."""
SIDE, HEAD, FOOT = 0.75, 0.75, 0.55
"""Inches beside, above and below the nodes."""

WIDEST, THINNEST = 8.0, 0.35
"""Points of the strongest edge, and of the weakest."""
FAINT, MANY = (0.16, 0.45), 600
"""The opacity of edges that are not among the strongest: of so many edges or more, and of few."""
PINS = {"q": -1.0, "k": 0.0, "v": 1.0, "": 0.0}
"""Where an edge enters a node, from its middle: queries at the left, keys, values at the right."""
PIN, PIN_SMALL = 0.15, 0.05
"""How far from the middle that is, of a node with a name and of others."""
BOW = 0.42
"""How far an edge bends out to pass nodes that lie between its ends in one column."""


def circuit(
    circuit: Circuit | TaskCircuit,
    *,
    k: int = 24,
    labels: Sequence[str] | None = None,
    names: Mapping[str, str] | None = None,
    ax: Axes | None = None,
    figsize: Size | None = None,
    dpi: float | None = None,
    title: str | None = None,
    ends: tuple[str, str] = ENDS,
) -> Axes:
    """Draw a circuit: layers from the bottom up, heads and other branches where they act, edges as curves.

    A circuit with positions has its tokens from left to right; without them, heads stand in the column of their number,
    and other branches at the right. Curves are as wide as the flow of the walks that take an edge and stay inside, red
    for the explained output and blue against it. The strongest edges have the full colour and their nodes a name
    (``23.3`` is head 3 of layer 23), all others are faint. A head is entered by queries at its left, by keys in the
    middle, by values at its right. Keys and values that several heads share, or that are read at another token than
    where the head acts, end at a small ring, with dotted lines to the heads that it is for.

    Args:
        circuit: what ``R.circuit(...)`` or ``nrm.circuit(...)`` gave.
        k: so many of the strongest edges are drawn in full, the others faint.
        labels: the tokens of a circuit with positions.
        names: what some nodes are called instead, by their whole name, as :func:`nrm.report.node_names` has them.
        ax: where to draw; a new figure if None, of a size that fits.
        figsize: width and height of a new figure, in inches.
        dpi: dots per inch of a new figure.
        title: text above the picture; how much of the difference it carries if None, and ``""`` for none.
        ends: the words for the two colours.

    Returns:
        ``ax``; nodes and edges have a ``gid`` such as ``"node 3"`` and ``"edge 7"``.

    >>> import nrm, torch
    >>> from torch import nn
    >>> class Block(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)
    ...     def forward(self, x):
    ...         return x + self.down(self.up(x).relu())
    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(Block(), Block(), nn.Linear(4, 1))
    >>> R = nrm.measure(model, torch.rand(1, 4), against=torch.zeros(1, 4))
    >>> ax = circuit(R.circuit(top=1.0))
    >>> ax.get_title(loc="left")
    '6 of 6 edges carry 100 % of the difference'
    >>> [text.get_text() for text in ax.texts][:-2]
    ['embedding', 'down 0', 'down 1', 'output']
    """
    try:
        found = _read(circuit)
        if k < 1:
            raise QuestionError("not a number of edges", got=f"k={k!r}", expected="a whole number from 1")
        picture = lay_out_circuit(found, labels)
        ax = place("nrm.plot.circuit", ax, _page(picture), figsize, dpi)
    except NrmError as error:
        error.at("nrm.plot.circuit")
        raise
    strongest = sorted(range(len(picture.ribbons)), key=lambda n: -abs(picture.ribbons[n].flow))[:k]
    _prepare(ax, picture)
    named = {n for i in strongest for n in (picture.ribbons[i].low, picture.ribbons[i].high)}
    named |= {high for low, high in picture.links if low in named and picture.nodes[high].kind != PORT}
    _draw_links(ax, picture)
    _draw_edges(ax, picture, strongest, named)
    _draw_nodes(ax, picture, named, names or {})
    _draw_ends(ax, ends)
    text = sentence(found) if title is None else title
    if text:
        lines = wrap(text, max(inches(ax)[0] - 0.7, 1.0), TITLE_POINTS)  # the words for both colours stand beside it
        ax.set_title("\n".join(lines), parse_math=False, color=INK, loc="left", fontsize=TITLE_POINTS)
    return ax


def sentence(circuit: Circuit) -> str:
    """How large a circuit is, and what it carries, in plain words."""
    one = len(circuit) == 1
    size = f"{len(circuit):,} of {circuit.possible:,} edges"
    if circuit.mass is None:
        return size
    what = "difference" if all(w.kind != "constant" for w in circuit.writers) else "output"
    return f"{size} {'carries' if one else 'carry'} {percent(circuit.mass)} of the {what}"


def _read(circuit: Any) -> Circuit:
    """The circuit, of one input or of a task."""
    found = getattr(circuit, "circuit", circuit)
    if not isinstance(found, Circuit):
        raise QuestionError(
            "not a circuit", got=type(circuit).__name__, expected="what R.circuit(...) or nrm.circuit(...) gave"
        )
    if not len(found):
        raise QuestionError("the circuit is empty", got="no edge", expected="at least one edge")
    return found


# ---- the page --------------------------------------------------------------------------------------------------------


def _row_inches(picture: CircuitPicture) -> float:
    return float(np.clip(HIGH / picture.height, LOW, ROW))


def _page(picture: CircuitPicture) -> Size:
    """The size of a new figure, in inches."""
    return max(UNIT * picture.width + 2 * SIDE, 5.6), _row_inches(picture) * picture.height + HEAD + FOOT


def _prepare(ax: Axes, picture: CircuitPicture) -> None:
    """Bounds in columns and rows, bands of tokens or heads, and no frame."""
    ax.set_xlim(-0.2, picture.width + 0.2)
    ax.set_ylim(-0.75, picture.height - 0.35)
    ax.set_yticks([y for y, _ in picture.rows], [text for _, text in picture.rows], parse_math=False)
    ax.set_xticks([x for x, _ in picture.columns], [text for _, text in picture.columns], parse_math=False)
    long = max((len(text) for _, text in picture.columns), default=0) > 7
    tokens = any(node.position is not None for node in picture.nodes)
    ax.tick_params(length=0, labelcolor=INK, labelsize=7)
    ax.tick_params(axis="x", labelrotation=90 if tokens and long else 0)
    for spine in ax.spines.values():
        spine.set_visible(False)
    for word in ax.get_xticklabels():
        word.set_verticalalignment("top" if tokens and long else "baseline")
    ax.tick_params(axis="x", pad=4 if tokens and long else 10)
    for y, _ in picture.rows:
        ax.axhline(y, color="#f0f0f0", linewidth=0.8, zorder=0)


# ---- edges -----------------------------------------------------------------------------------------------------------


def _draw_links(ax: Axes, picture: CircuitPicture) -> None:
    """Dotted lines from what is read to the heads that it is for."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    for low, high in picture.links:
        a, b = picture.nodes[low], picture.nodes[high]
        path = Path([(a.x, a.y), (b.x, a.y), (b.x, b.y)], [Path.MOVETO, Path.CURVE3, Path.CURVE3])
        ax.add_patch(PathPatch(path, facecolor="none", edgecolor="#8a8a8a", linewidth=0.8, linestyle=(0, (1, 1.4)),
                               zorder=2.4))  # fmt: skip


def _draw_edges(ax: Axes, picture: CircuitPicture, strongest: Sequence[int], named: set[int]) -> None:
    """Edges as curves, the strongest on top."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    limit = max(abs(ribbon.flow) for ribbon in picture.ribbons) or 1.0
    full, faint = set(strongest), float(np.clip(0.16 * (MANY / len(picture.ribbons)) ** 0.5, *FAINT))
    for n in sorted(range(len(picture.ribbons)), key=lambda n: abs(picture.ribbons[n].flow)):
        ribbon = picture.ribbons[n]
        strength = abs(ribbon.flow) / limit
        path = Path(_curve(picture, ribbon, ribbon.high in named), [Path.MOVETO, *[Path.CURVE4] * 3])
        ax.add_patch(PathPatch(
            path, facecolor="none", edgecolor=(ABOVE if ribbon.flow >= 0 else BELOW)[4], capstyle="butt",
            linewidth=max(WIDEST * strength, THINNEST), alpha=0.5 + 0.35 * strength if n in full else faint,
            zorder=2 if n in full else 1, gid=f"edge {n}",
        ))  # fmt: skip


def _curve(picture: CircuitPicture, ribbon: CircuitRibbon, is_named: bool) -> list[tuple[float, float]]:
    """The four points of an edge: it leaves upwards and enters from below, and bends out around what lies between."""
    low, high = picture.nodes[ribbon.low], picture.nodes[ribbon.high]
    pin = 0.0 if high.kind == PORT else PIN if is_named else PIN_SMALL
    x0, x1, rise = low.x, high.x + pin * PINS[ribbon.read], high.y - low.y
    bow = 0.0
    if rise > 1.2 and abs(x1 - x0) < 0.7:
        bow = BOW * min(rise / 4, 1.6) * (1 if x1 >= picture.width / 2 or ribbon.read == "v" else -1)
    reach = max(0.42 * rise, 0.3)
    return [(x0, low.y), (x0 + bow, low.y + reach), (x1 + bow, high.y - reach), (x1, high.y)]


# ---- nodes and words -------------------------------------------------------------------------------------------------


def _draw_nodes(ax: Axes, picture: CircuitPicture, named: set[int], names: Mapping[str, str]) -> None:
    """Named nodes as boxes in the colour of their share, others as dots, ports as rings."""
    points = float(np.clip(72 * _row_inches(picture) * 0.3, 4.5, 7.0))
    limit = max(abs(node.share) for node in picture.nodes) or 1.0
    for n, node in enumerate(picture.nodes):
        colour, dark = _face(node, limit)
        if node.kind == PORT or (n not in named and node.name not in names):
            size, face = (3.0, "white") if node.kind == PORT else (3.5 + 3.0 * abs(node.share) / limit, colour)
            ax.plot(node.x, node.y, "o", markersize=size, markerfacecolor=face, markeredgecolor="#777777",
                    markeredgewidth=0.7, zorder=3, gid=f"node {n}")  # fmt: skip
            continue
        ax.text(
            node.x, node.y, names.get(node.name, node.text), ha="center", va="center", fontsize=points, zorder=4,
            parse_math=False, color="white" if dark else INK, gid=f"node {n}",
            bbox={"boxstyle": "round,pad=0.28,rounding_size=0.25", "facecolor": colour, "edgecolor": "#777777",
                  "linewidth": 0.6},
        )  # fmt: skip


def _face(node: CircuitNode, limit: float) -> tuple[Any, bool]:
    """The colour of a node, and whether it is a dark one; the ends of all walks are plain."""
    if node.kind in ("embedding", "logits"):
        return "#eeeeee", False
    level = 0.8 * float(np.clip(node.share / limit, -1.0, 1.0))
    level = np.sign(level) * abs(level) ** 0.7
    return diverging()(0.5 + level / 2), abs(level) > 0.6


def _draw_ends(ax: Axes, ends: tuple[str, str]) -> None:
    """The two colours, told at the right above the picture."""
    against, pro = ends
    for left, word, colour in ((0, pro, ABOVE[4]), (5.5 * len(pro) + 6, against, BELOW[4])):
        ax.annotate(
            word, (1.0, 1.0), xycoords="axes fraction", xytext=(-left, 4), textcoords="offset points", ha="right",
            va="baseline", fontsize=8, color=colour, parse_math=False,
        )  # fmt: skip


__all__ = ["circuit", "sentence"]
