"""A graph with the relevance of its nodes and edges: everything is read first, then drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nrm.errors import NrmError, QuestionError
from nrm.plot.colors import diverging
from nrm.plot.heat import ENDS, INK, POINTED, SCALE, dress_bar, find_limit, frame, mark_limit, note_rest, note_sign
from nrm.plot.layout import lay_out, lay_out_molecule
from nrm.plot.pictures import Array, Picture, Scalar, read_line, read_numbers, refuse_nonfinite
from nrm.plot.saving import Size, place

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.patches import Circle

BOND = "#b4b4b4"
RIM = "#8c8c8c"
SMALL, LARGE = 0.16, 0.34  # radius of a node, in lengths of an edge
BRIGHT, BAND = "#ffe08a", 0.44  # behind marked nodes; half its width, in lengths of an edge
THIN, THICK = 1.0, 9.0  # width of an edge, in points
FAINT, DARK = 0.1, 0.6  # shares of the full colour: below, an arrow is grey; above, a label is white


def graph(
    data: Any,
    nodes: Picture | None = None,
    edges: Picture | None = None,
    *,
    pos: Picture | None = None,
    labels: Sequence[str] | None = None,
    directed: bool | None = None,
    marked: Any = None,
    ax: Axes | None = None,
    figsize: Size | None = None,
    dpi: float | None = None,
    scale: float | str | None = SCALE,
    edge_scale: float | str | None = None,
    colorbar: bool = True,
    title: str | None = None,
    value: Scalar | None = None,
    rest: Scalar | None = None,
) -> Axes:
    """Draw a graph with the relevance of its nodes and edges: red for the explained output, blue against it.

    Args:
        data: anything with an ``edge_index`` (PyG ``Data``), or the ``edge_index`` itself, ``(2, edges)``.
        nodes: relevance of the nodes, ``(N,)`` or ``(1, N)``, as ``R(layer.positions)`` gives it: colour and size.
        edges: relevance of the edges in the order of ``edge_index``, as ``R(layer.edges)`` gives it: colour and width.
            The two directions of an undirected edge are one line with the sum of both.
        pos: places of the nodes, ``(N, 2)``; by default those that RDKit gives the atoms, where it is installed and
            all labels are symbols of elements, else those whose distances are most like the graph's.
        labels: a short text for every node, such as the symbol of an atom.
        directed: draw arrows; by default where an edge has no counterpart in the other direction.
        marked: nodes that belong together, as numbers or as what :meth:`nrm.Measure.subgraphs` has found: they and the
            edges between them lie on a bright band.
        ax: where to draw; a new figure if None.
        figsize: width and height of a new figure, in inches.
        dpi: dots per inch of a new figure.
        scale: the relevance that has the full colour and size, as for :func:`nrm.plot.heatmap`.
        edge_scale: the same for edges beside nodes, whose relevances are often much smaller: by default found among
            them alone, and noted below the picture; ``scale`` if that is a number.
        colorbar: add a colour bar.
        title: text above the picture.
        value: the explained output (``R.value``); if it is negative, the picture says so.
        rest: the share of the mass that is not in the picture, such as that of the biases; noted below it.

    Returns:
        ``ax``; an edge is about 1 long in its coordinates (as long as ``pos`` says, if that is given).

    >>> import torch
    >>> triangle = torch.tensor([[0, 1, 1, 2, 2, 0], [1, 0, 2, 1, 0, 2]])
    >>> ax = graph(triangle, nodes=[0.5, -0.2, 0.7], edges=torch.ones(6) / 6, labels="CNO", title="a ring of three")
    >>> [text.get_text() for text in ax.texts]
    ['C', 'N', 'O']
    """
    try:
        drawing = _read(data, nodes, edges, pos, labels, directed, marked, (scale, edge_scale), value, rest)
        ax = place("nrm.plot.graph", ax, _page(drawing.places, colorbar), figsize, dpi)
    except NrmError as error:
        error.at("nrm.plot.graph")
        raise
    _fit(ax, drawing)
    _draw_band(ax, drawing)
    _draw_edges(ax, drawing, _draw_nodes(ax, drawing))
    if title:
        ax.set_title(title, parse_math=False, color=INK)
    if colorbar and (drawing.nodes is not None or drawing.edges is not None):
        _add_bar(ax, drawing)
    return ax


class Drawing(NamedTuple):
    """What is drawn. ``unit`` is the length of a usual edge; ``edges`` and ``pairs`` are lines, directions joined.

    ``limit`` and ``edge_limit`` have the full colour, ``marked`` are nodes on the band.
    """

    places: Array
    unit: float
    nodes: Array | None
    pairs: npt.NDArray[np.int64]
    edges: Array | None
    labels: Sequence[str] | None
    directed: bool
    marked: list[int]
    limit: float
    edge_limit: float
    negative: bool
    notes: list[str]


def _read(
    data: Any, nodes: Picture | None, edges: Picture | None, pos: Picture | None, labels: Sequence[str] | None,
    directed: bool | None, marked: Any, scales: tuple[float | str | None, float | str | None], value: Scalar | None,
    rest: Scalar | None,
) -> Drawing:  # fmt: skip
    pairs = _read_pairs(data)
    values = None if nodes is None else read_line(nodes, "nodes", "R(layer.positions)")
    places = None if pos is None else _read_places(pos)
    known = [len(x) for x in (values, places, labels) if x is not None]
    known += [int(n)] if (n := getattr(data, "num_nodes", None)) is not None else []
    count = max([*known, int(pairs.max()) + 1 if len(pairs) else 0])
    for what, given in (("nodes", values), ("pos", places), ("labels", labels)):
        if given is not None and len(given) != count:
            raise QuestionError(
                f"{what} and graph do not fit", got=f"{len(given)} of {what}", expected=f"{count}, one per node",
                hint="in a batch, every graph is a picture of its own: batch[i], R.sample(i)",
            )  # fmt: skip
    if count == 0:
        raise QuestionError("the graph has no nodes", got=type(data).__name__, expected="at least one node")
    along = None if edges is None else read_line(edges, "edges", "R(layer.edges)", empty=True)
    if along is not None and len(along) != len(pairs):
        raise QuestionError(
            "edges and graph do not fit", got=f"{len(along)} values", expected=f"{len(pairs)}, one per edge",
            hint="R(layer.edges) of the same edge_index",
        )  # fmt: skip
    both = {(a, b) for a, b in pairs.tolist()}
    directed = any((b, a) not in both for a, b in both) if directed is None else directed
    lines, sums = join_lines(pairs, along, directed)
    if places is None and labels is not None and not directed:
        places = lay_out_molecule(pairs, list(labels))
    places = lay_out(count, pairs) if places is None else places
    lengths = np.linalg.norm(places[lines[:, 0]] - places[lines[:, 1]], axis=1)
    unit = float(np.median(lengths[lengths > 0])) if (lengths > 0).any() else 1.0
    limit, edge_limit = _limits(values, sums, *scales)
    loops = int((lines[:, 0] == lines[:, 1]).sum())
    left_out = [f"{loops} {'loop' if loops == 1 else 'loops'} not shown"] if loops else []
    own = [f"edges have the full colour at {edge_limit:.2g}"] if edge_limit != limit else []
    sign = note_sign(value)
    return Drawing(
        places, unit, values, lines, sums, labels, directed, _read_marked(marked, count), limit, edge_limit, bool(sign),
        [*sign, *note_rest(rest), *own, *left_out],
    )  # fmt: skip


def _limits(
    nodes: Array | None, edges: Array | None, scale: float | str | None, edge_scale: float | str | None
) -> tuple[float, float]:
    """What has the full colour: of nodes, and of edges, which have a scale of their own unless a number is given."""
    edge_scale = scale if edge_scale is None else edge_scale
    own = None if edges is None else find_limit(np.append(edges, 0.0)[None], edge_scale)
    if nodes is None:
        return (own, own) if own is not None else (1.0, 1.0)
    limit = find_limit(np.append(nodes, 0.0)[None], scale)
    return limit, limit if own is None else own


def _read_marked(marked: Any, count: int) -> list[int]:
    """The numbers of nodes on the band."""
    found = [] if marked is None else list(getattr(marked, "nodes", marked))
    if not all(isinstance(i, int) and 0 <= i < count for i in found):
        raise QuestionError(
            "marked are not nodes of the graph", got=repr(found)[:80], expected=f"numbers from 0 to {count - 1}",
            hint="in a batch, nodes of a graph are counted from its first one",
        )  # fmt: skip
    return found


def _read_pairs(data: Any) -> npt.NDArray[np.int64]:
    index = getattr(data, "edge_index", data)
    numbers = read_numbers(index, "edge_index")
    whole = numbers.ndim == 2 and len(numbers) == 2 and bool((numbers == numbers.round()).all())
    if not whole or (numbers.size and numbers.min() < 0):
        raise QuestionError(
            "not a graph", got=f"{type(data).__name__}, edge_index of shape {numbers.shape}",
            expected="something with an edge_index, or (2, edges) numbers of nodes", hint="nrm.plot.graph(data, ...)",
        )  # fmt: skip
    return numbers.T.astype(np.int64)


def _read_places(pos: Picture) -> Array:
    numbers = read_numbers(pos, "pos")
    if numbers.ndim != 2 or numbers.shape[1] != 2:
        raise QuestionError("pos are not places in a plane", got=f"shape {numbers.shape}", expected="(nodes, 2)")
    refuse_nonfinite(numbers, "pos")
    return numbers


def join_lines(
    pairs: npt.NDArray[np.int64], along: Array | None, directed: bool
) -> tuple[npt.NDArray[np.int64], Array | None]:
    """The edges that are drawn, each once, with the sum of the relevances that lie on it."""
    if not len(pairs):
        return pairs, along
    ends = pairs if directed else np.sort(pairs, axis=1)
    lines, which = np.unique(ends, axis=0, return_inverse=True)
    return lines, None if along is None else np.bincount(which.reshape(-1), along, len(lines)).astype(np.float64)


def _page(places: Array, colorbar: bool) -> Size:
    """The size of a new figure, in inches."""
    wide, high = np.ptp(places, axis=0)
    longest = max(wide, high, 1e-9)
    inches = min(max(0.55 * np.sqrt(len(places)) * 1.6, 3.0), 9.0)
    return max(inches * wide / longest, 2.5) + (1.1 if colorbar else 0.0), max(inches * high / longest, 2.0) + 0.6


def _draw_band(ax: Axes, drawing: Drawing) -> None:
    """A bright band behind marked nodes and the edges between them."""
    from matplotlib.patches import Circle, Polygon

    wide = drawing.unit * BAND
    inside = set(drawing.marked)
    for i in drawing.marked:
        ax.add_artist(Circle(tuple(drawing.places[i]), wide, color=BRIGHT, linewidth=0, zorder=0))
    for a, b in drawing.pairs.tolist():
        along = drawing.places[b] - drawing.places[a]
        length = float(np.linalg.norm(along))
        if a in inside and b in inside and length > 0:
            aside = np.array([-along[1], along[0]]) / length * wide
            corners = [drawing.places[a] + aside, drawing.places[b] + aside, drawing.places[b] - aside]
            ax.add_artist(Polygon([*corners, drawing.places[a] - aside], color=BRIGHT, linewidth=0, zorder=0))


def _draw_edges(ax: Axes, drawing: Drawing, circles: Sequence[Circle]) -> None:
    """Every edge as a thin grey line that widens to the rim of a coloured one as its relevance grows."""
    from matplotlib.collections import LineCollection

    values = np.zeros(len(drawing.pairs)) if drawing.edges is None else drawing.edges
    shares = np.clip(values / drawing.edge_limit, -1.0, 1.0)
    order = np.argsort(np.abs(shares), kind="stable")  # the strongest on top
    shares, pairs = shares[order], drawing.pairs[order]
    if drawing.directed:
        _draw_arrows(ax, pairs, shares, circles)
        return
    segments, widths = list(drawing.places[pairs]), np.abs(shares) * THICK
    style: dict[str, Any] = {"capstyle": "butt", "zorder": 1}
    ax.add_collection(LineCollection(segments, colors=BOND, linewidths=widths + THIN, **style))
    ax.add_collection(LineCollection(segments, colors=diverging()(0.5 + shares / 2), linewidths=widths, **style))


def _draw_arrows(ax: Axes, pairs: npt.NDArray[np.int64], shares: Array, circles: Sequence[Circle]) -> None:
    """Edges as arrows from rim to rim; two in opposite directions are bent apart."""
    from matplotlib.patches import FancyArrowPatch

    known = {(a, b) for a, b in pairs.tolist()}
    for (a, b), share in zip(pairs.tolist(), shares.tolist(), strict=True):
        if a == b:  # the notes say how many loops there are
            continue
        width = max(abs(share) * THICK, THIN)
        ax.add_patch(FancyArrowPatch(
            circles[a].center, circles[b].center, patchA=circles[a], patchB=circles[b], shrinkA=0, shrinkB=1,
            arrowstyle="-|>", mutation_scale=8 + 1.6 * width, linewidth=width, joinstyle="miter",
            connectionstyle=f"arc3,rad={0.2 if (b, a) in known else 0.0}",
            color=diverging()(0.5 + share / 2) if abs(share) > FAINT else BOND, zorder=2,
        ))  # fmt: skip


def _draw_nodes(ax: Axes, drawing: Drawing) -> list[Circle]:
    from matplotlib.patches import Circle

    values = np.zeros(len(drawing.places)) if drawing.nodes is None else drawing.nodes
    shares = np.clip(values / drawing.limit, -1.0, 1.0).tolist()
    circles = []
    for i, ((x, y), share) in enumerate(zip(drawing.places.tolist(), shares, strict=True)):
        radius = drawing.unit * (SMALL + (LARGE - SMALL) * abs(share))
        colour = diverging()(0.5 + share / 2)
        circles.append(Circle((x, y), radius, facecolor=colour, edgecolor=RIM, linewidth=0.8, zorder=3))
        ax.add_patch(circles[-1])
        if drawing.labels is not None:
            ax.text(
                x, y, str(drawing.labels[i]), ha="center", va="center_baseline", fontsize=8.5, zorder=4,
                color="white" if abs(share) > DARK else INK, parse_math=False,
            )  # fmt: skip
    return circles


def _fit(ax: Axes, drawing: Drawing) -> None:
    room = 0.6 * drawing.unit
    ax.update_datalim([drawing.places.min(0) - room, drawing.places.max(0) + room])
    ax.margins(0)
    ax.set_aspect("equal", adjustable="datalim")  # a colour bar beside it has the height of the picture
    frame(ax, drawing.notes)
    for spine in ax.spines.values():
        spine.set_visible(False)


def _add_bar(ax: Axes, drawing: Drawing) -> None:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    drawn = ScalarMappable(Normalize(-drawing.limit, drawing.limit), diverging())
    shown = drawing.edges if drawing.nodes is None else drawing.nodes
    largest = 0.0 if shown is None else float(np.abs(shown).max(initial=0.0))
    bar = ax.figure.colorbar(
        drawn,
        ax=ax,
        fraction=0.05,
        pad=0.03,
        aspect=18,
        extend="both" if largest > drawing.limit else "neither",
        extendfrac=POINTED,
    )
    text = "share of a negative output" if drawing.negative else "share of the output"
    dress_bar(bar, mark_limit(drawing.limit), ENDS, text)
