"""A flow picture: layers as columns, their strongest blocks as nodes, joint relevance as ribbons between them."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nrm.errors import NrmError, QuestionError
from nrm.extras import extra
from nrm.measure import Measure
from nrm.numbers import percent, short, with_minus
from nrm.plot.colors import ABOVE, BELOW, diverging
from nrm.plot.columns import FlowColumn, FlowNode, FlowPicture, Ribbon, needed, read_choice, read_flows, stack
from nrm.plot.heat import ENDS, FRAME, INK, NOTE_POINTS, inches, note_sign, wrap
from nrm.plot.saving import Size, check_axes, place
from nrm.questions import Layer, Partition

if TYPE_CHECKING:
    from matplotlib.axes import Axes


# Inches, on the page.
BODY = 3.8
"""The height of 100 %."""
LINE = 0.17
GAP = 0.07
SPAN = 1.35
"""The length of ribbons."""
LETTER = 0.068
LEGEND = 1.6
"""The width of the words for the hues."""
THIN = 0.12
PAD = 0.06
HEADS = 0.42
"""What stands above a column: its name and its facts."""
HEAD, FOOT, SIDE = HEADS + 0.55, 0.42, 0.18
LONGEST = 22  # letters of a name

TEXT_POINTS = 8.0
RESTS, ELSEWHERE = ("#dddddd", FRAME), ("#f6f6f6", "#e4e4e4")  # face and edge


def flows(
    R: Measure,
    *partitions: Partition | Layer,
    sample: int = 0,
    nodes: int = 8,
    coverage: float | None = None,
    names: Sequence[Sequence[str] | None] | None = None,
    columns: Sequence[str] | None = None,
    ax: Axes | None = None,
    figsize: Size | None = None,
    dpi: float | None = None,
    title: str | None = None,
    labels: tuple[str, str] = ENDS,
) -> Axes:
    """Draw how a decision flowed through the blocks of two or more layers.

    Every partition is a column, from the input at the left to the output at the right whatever their order here. Its
    strongest blocks are nodes with their relevance ``R(block)`` in percent of the explained output; ribbons between
    neighbouring columns are the joint relevance ``R(block, block)``. All other blocks of the layer are one grey node,
    "rest"; what passes the layer by (skips, biases, sinks, or neurons that the partition leaves out) is "elsewhere".

    Heights are absolute: a node is as high as ``|R(block)|``, the rest as the sum of its blocks' ``|R|``, and a column
    adds up to 100 %. The hue has the sign, red for the explained output and blue against it, and the number is the net
    relevance. Where nothing is negative, heights are the relevances themselves, and ribbons have one width. With signed
    relevance a column stands for more than the output, which is noted above it; ribbons of both signs share the height
    of their node in proportion to their size, so that a ribbon may be wider at one end than at the other.

    Args:
        R: the measure; for a batch, ``sample`` says which one is drawn.
        partitions: ``a.channels``, ``nrm.cluster(R, a)``, the groups of ``nrm.coarsen``, or a layer for its neurons.
        sample: which sample of a batch.
        nodes: how many blocks a column shows at most; the strongest by ``|R|``.
        coverage: only as many of them as have this share of the column's absolute relevance.
        names: for each partition the names of its blocks, or None; ``R.labels`` and indices otherwise.
        columns: for each partition the text above it; the layer's name if None.
        ax: where to draw; a new figure if None. It needs about 2.5 inches of width per column.
        figsize: width and height of a new figure, in inches.
        dpi: dots per inch of a new figure.
        title: text above the picture; what was predicted and explained if None, and ``""`` for none.
        labels: the words for the two hues.

    Returns:
        ``ax``; its data coordinates are inches, and nodes and ribbons have a ``gid`` such as ``"node 0 12"``.

    >>> import torch, nrm
    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.ReLU(), torch.nn.Linear(9, 3))
    >>> R = nrm.measure(model, torch.rand(1, 6), rules="epsilon-plus", bias="ignore")
    >>> ax = flows(R, R.input, R["1"].channels, R.output, nodes=4)
    >>> ax.figure.savefig("flows.svg")  # doctest: +SKIP
    >>> [text.get_text() for text in ax.texts if "rest" in text.get_text()]
    ['rest (2)']
    """
    try:
        choice = read_choice(nodes, coverage)
        if not isinstance(R, Measure):
            raise QuestionError(
                "not a measure", got=type(R).__name__, expected="nrm.plot.flows(R, a.channels, b.channels)",
            )  # fmt: skip
        if R.inner.network.normalize is not True:
            raise QuestionError(
                "shares need a normalized measure", got=f"normalize={R.inner.network.normalize!r}",
                expected="nrm.measure(..., normalize=True)",
            )  # fmt: skip
        one = R.sample(sample)
        read = read_flows(one, partitions, choice, names, columns)
        ax = None if ax is None else check_axes(ax, "nrm.plot.flows", figsize, dpi)
    except NrmError as error:
        error.at("nrm.plot.flows")
        raise
    text = _title(one, sample, len(R)) if title is None else title
    return draw_flows(one, read, ax, text, labels, figsize, dpi)


def draw_flows(
    R: Measure, read: FlowPicture, ax: Axes | None = None, title: str | None = None, labels: tuple[str, str] = ENDS,
    figsize: Size | None = None, dpi: float | None = None,
) -> Axes:  # fmt: skip
    """Draw columns and ribbons of one sample's measure that were read before; nothing is asked again."""
    page = _new_page(read, figsize, dpi) if ax is None else _page_of(ax, read)
    _draw(page, read, labels, note_sign(R.value))
    text = _title(R, 0, 1) if title is None else title
    if text:
        _draw_title(page, text)
    return page.ax


def _draw_title(page: Page, text: str) -> None:
    letters = int((page.left(len(page.boxes)) - page.span) / (1.25 * LETTER))
    lines = textwrap.wrap(text, letters)
    page.ax.set_title("\n".join(lines), parse_math=False, color=INK, fontsize="medium", pad=72 * (HEADS + 0.08))


def _title(R: Measure, sample: int, count: int) -> str:
    """What was explained, and what was predicted if that is something else."""
    value = short(float(R.value))
    which = f" (sample {sample})" if count > 1 else ""
    if isinstance(R.target, str):
        return f"explained: {R.target} = {value}; predicted: {_output(R, R.prediction)}{which}"
    if bool((R.target == R.prediction).all()):
        return f"predicted and explained: {_output(R, R.target)} = {value}{which}"
    return f"explained: {_output(R, R.target)} = {value}; predicted: {_output(R, R.prediction)}{which}"


def _output(R: Measure, at: Any) -> str:
    index = at[0].tolist()
    names = R.labels.get("output", ())
    names = names[0] if names and isinstance(names[0], tuple) else names
    last = index[-1] if isinstance(index, list) else index
    text = f"output {tuple(index) if isinstance(index, list) else index}"
    return f"{names[last]} ({text})" if last < len(names) else text


# ---- the page --------------------------------------------------------------------------------------------------------


class Page(NamedTuple):
    """Where things stand, in inches: the width of every column's boxes, the ribbons' length, and the body's height."""

    ax: Axes
    boxes: list[float]
    span: float
    body: float
    room: float

    def left(self, column: int) -> float:
        """The left end of a column's boxes."""
        return sum(self.boxes[:column]) + column * self.span


def _widths(read: FlowPicture) -> list[float]:
    """The width of the boxes of every column: its longest name and number, or what stands above it."""
    found = []
    for column in read.columns:
        letters = max(len(shorten(node.text)) + len(percent(node.share)) + 2 for node in column.nodes)
        head = max(1.3 * len(_tail(column.name)), 0.93 * len(_facts(column)))
        found.append(max(letters, head) * LETTER + 2 * PAD)
    return found


def shorten(text: str) -> str:
    """A name that fits into a box.

    >>> shorten("Old English sheepdog, bobtail")
    'Old English sheepdog,…'
    """
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _tail(name: str) -> str:
    """The end of a layer's name, which tells more than its beginning."""
    return name if len(name) <= LONGEST else f"…{name[1 - LONGEST :]}"


def _facts(column: FlowColumn) -> str:
    return column.what + (f" · Σ|R| {percent(column.absolute)}" if column.absolute > 1.005 else "")


def _room(read: FlowPicture, body: float) -> float:
    return max(needed([n.height for n in c.nodes], body, LINE, GAP) for c in read.columns)


def _new_page(read: FlowPicture, figsize: Size | None, dpi: float | None) -> Page:
    """A page of its own, in which everything has its size; or one of the size that is asked for."""
    boxes, room = _widths(read), _room(read, BODY)
    wide, high = sum(boxes) + SPAN * (len(boxes) - 1) + 2 * SIDE, room + HEAD + FOOT
    ax = place("nrm.plot.flows", None, (wide, high), figsize, dpi, fits=False)
    wide, high = (wide, high) if figsize is None else figsize
    ax.set_position((SIDE / wide, FOOT / high, 1 - 2 * SIDE / wide, 1 - (HEAD + FOOT) / high))
    return Page(ax, boxes, SPAN, BODY, room) if figsize is None else _page_of(ax, read)


def _page_of(ax: Axes, read: FlowPicture) -> Page:
    """The page on the user's axes: texts keep their size, ribbons and heights take what is left."""
    wide, high = inches(ax)
    boxes = _widths(read)
    span = max(0.3, (wide - sum(boxes)) / max(1, len(boxes) - 1))
    low, top = 0.2 * high, high
    for _ in range(40):
        middle = (low + top) / 2
        low, top = (middle, top) if _room(read, middle) <= high else (low, middle)
    return Page(ax, boxes, span, low, max(high, _room(read, low)))


# ---- drawing ---------------------------------------------------------------------------------------------------------


def _draw(page: Page, read: FlowPicture, labels: tuple[str, str], notes: list[str]) -> None:
    ax = page.ax
    ax.set_xlim(0, page.left(len(page.boxes)) - page.span)
    ax.set_ylim(page.room, 0)
    ax.set_axis_off()
    tops = [stack([n.height for n in c.nodes], page.body, LINE, GAP, page.room) for c in read.columns]
    strongest = max((abs(r.share) for r in read.ribbons if _is_plain(r, read)), default=1.0)
    for ribbon, ends in sorted(_ends(page, read, tops), key=lambda pair: (_is_plain(pair[0], read), -min(pair[1][2:]))):
        _draw_ribbon(page, ribbon, ends, read, strongest)
    for i, (column, places) in enumerate(zip(read.columns, tops, strict=True)):
        for node, top in zip(column.nodes, places, strict=True):
            _draw_node(page, i, node, top)
        _draw_head(page, i, column)
    _draw_foot(ax, read, labels, notes)


def _is_plain(ribbon: Ribbon, read: FlowPicture) -> bool:
    """Whether both ends are blocks."""
    ends = read.columns[ribbon.column].nodes[ribbon.source], read.columns[ribbon.column + 1].nodes[ribbon.target]
    return all(node.kind == "block" for node in ends)


def _ends(
    page: Page, read: FlowPicture, tops: list[list[float]]
) -> list[tuple[Ribbon, tuple[float, float, float, float]]]:
    """For every ribbon its upper ends at the left and at the right, and its widths there."""
    out = [list(places) for places in tops]
    into = [list(places) for places in tops]
    left: dict[Ribbon, float] = {}
    for r in sorted(read.ribbons, key=lambda r: (r.column, r.source, r.target, -r.share)):
        left[r] = out[r.column][r.source]
        out[r.column][r.source] += page.body * r.widths[0]
    found = []
    for r in sorted(read.ribbons, key=lambda r: (r.column, r.target, r.source, -r.share)):
        right = into[r.column + 1][r.target]
        into[r.column + 1][r.target] += page.body * r.widths[1]
        found.append((r, (left[r], right, page.body * r.widths[0], page.body * r.widths[1])))
    return found


def _draw_ribbon(
    page: Page, ribbon: Ribbon, ends: tuple[float, float, float, float], read: FlowPicture, strongest: float
) -> None:
    with extra("viz", "nrm.plot.flows"):
        from matplotlib.patches import PathPatch
        from matplotlib.path import Path
    left, right, wide, narrow = ends
    x0 = page.left(ribbon.column) + page.boxes[ribbon.column]
    x1 = page.left(ribbon.column + 1)
    middle = (x0 + x1) / 2
    points = [(x0, left), (middle, left), (middle, right), (x1, right), (x1, right + narrow), (middle, right + narrow),
              (middle, left + wide), (x0, left + wide), (x0, left)]  # fmt: skip
    codes = [Path.MOVETO, *[Path.CURVE4] * 3, Path.LINETO, *[Path.CURVE4] * 3, Path.CLOSEPOLY]
    low, high = read.columns[ribbon.column].nodes[ribbon.source], read.columns[ribbon.column + 1].nodes[ribbon.target]
    plain = _is_plain(ribbon, read)
    depth = 0.22 + 0.4 * np.sqrt(abs(ribbon.share) / strongest) if plain else 0.1
    color = diverging()(0.5 + 0.5 * np.sign(ribbon.share) * depth)
    gid = f"ribbon {ribbon.column} {_key(low)} {_key(high)} {'+' if ribbon.share > 0 else '-'}"
    patch = PathPatch(Path(points, codes), facecolor=color, edgecolor="none", alpha=0.72 if plain else 0.6, gid=gid)
    page.ax.add_patch(patch)


def _key(node: FlowNode) -> str:
    return node.kind if node.block is None else str(node.block)


def _draw_node(page: Page, column: int, node: FlowNode, top: float) -> None:
    with extra("viz", "nrm.plot.flows"):
        from matplotlib.patches import Rectangle
    x, width, height = page.left(column), page.boxes[column], page.body * node.height
    hue = {"rest": RESTS, "elsewhere": ELSEWHERE}.get(node.kind) or (ABOVE if node.share > 0 else BELOW)[1:4:2]
    thin = height < THIN  # lines around so low a box would strike out the text
    box = Rectangle((x, top), width, height, facecolor=hue[0], edgecolor="none" if thin else hue[1], linewidth=0.6)
    box.set(gid=f"node {column} {_key(node)}", clip_on=False, hatch="////" if hue is ELSEWHERE and not thin else None)
    page.ax.add_patch(box)
    y = top + height / 2
    style: dict[str, Any] = {"color": INK, "fontsize": TEXT_POINTS, "va": "center_baseline", "parse_math": False}
    page.ax.text(x + PAD, y, shorten(node.text), ha="left", **style)
    page.ax.text(x + width - PAD, y, with_minus(percent(node.share)), ha="right", **style)


def _draw_head(page: Page, i: int, column: FlowColumn) -> None:
    x = page.left(i) + page.boxes[i] / 2
    style: dict[str, Any] = {"ha": "center", "va": "bottom", "color": INK, "parse_math": False, "clip_on": False}
    page.ax.text(x, -0.23, _tail(column.name), fontsize=TEXT_POINTS + 1, fontweight="bold", **style)
    page.ax.text(x, -0.08, _facts(column), fontsize=NOTE_POINTS - 0.5, **style)


def _draw_foot(ax: Axes, read: FlowPicture, labels: tuple[str, str], notes: list[str]) -> None:
    with extra("viz", "nrm.plot.flows"):
        from matplotlib.patches import Patch
    low, high = labels
    shown = [(ABOVE[3], high), *([(BELOW[3], low)] if any(r.share < 0 for r in read.ribbons) else [])]
    handles = [Patch(facecolor=color, label=word) for color, word in shown]
    ax.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(0, -0.01), ncols=2, frameon=False, fontsize=NOTE_POINTS,
        labelcolor=INK, handlelength=1.2, handleheight=0.9, borderpad=0, columnspacing=1.2,
    )  # fmt: skip
    if notes:
        text, wide = "; ".join(notes), inches(ax)[0]
        under = wide < LEGEND + LETTER * len(text)  # there is no room beside the words for the hues
        ax.annotate(
            "\n".join(wrap(text, wide, NOTE_POINTS)), (1, 0), (0, -20 if under else -6), xycoords="axes fraction",
            textcoords="offset points", ha="right", va="top", fontsize=NOTE_POINTS, color=INK, parse_math=False,
            annotation_clip=False,
        )  # fmt: skip
