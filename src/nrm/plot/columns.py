"""The numbers of a flow picture: columns of nodes, ribbons between them, and where they stand."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nrm.errors import QuestionError
from nrm.largest import best_first
from nrm.plot.heat import NOTED_REST
from nrm.plot.pictures import Array
from nrm.questions import Blocks, Partition, in_forward_order, read_partitions

if TYPE_CHECKING:
    from nrm.measure import Measure

SWEEPS = 8
"""How often the nodes are put in the order of their neighbours; a few are enough."""


class FlowNode(NamedTuple):
    """A block, the rest of a column, or what passes elsewhere: its relevance, and its share of the column's height."""

    kind: str
    block: int | None
    text: str
    share: float
    height: float


class FlowColumn(NamedTuple):
    """The nodes of a partition from top to bottom; ``absolute`` is the relevance that its height stands for."""

    name: str
    what: str
    mass: float
    absolute: float
    nodes: tuple[FlowNode, ...]


class Ribbon(NamedTuple):
    """The joint relevance of two nodes of neighbouring columns, of one sign; its width at both ends."""

    column: int
    source: int
    target: int
    share: float
    widths: tuple[float, float]


class FlowPicture(NamedTuple):
    """Everything that is drawn."""

    columns: tuple[FlowColumn, ...]
    ribbons: tuple[Ribbon, ...]


class NodeChoice(NamedTuple):
    """Which blocks of a column become nodes of their own."""

    nodes: int
    coverage: float | None


def read_choice(nodes: Any, coverage: Any) -> NodeChoice:
    """Check how many nodes are wanted."""
    if isinstance(nodes, bool) or not isinstance(nodes, int) or nodes < 1:
        raise QuestionError("not a number of nodes", got=f"nodes={nodes!r}", expected="an integer from 1")
    if coverage is not None and not (isinstance(coverage, int | float) and 0 < coverage <= 1):
        raise QuestionError(
            "coverage is out of range", got=f"coverage={coverage!r}", expected="a share above 0, up to 1, or None"
        )
    return NodeChoice(nodes, coverage)


def read_flows(
    R: Measure,
    partitions: Sequence[Any],
    choice: NodeChoice,
    names: Sequence[Any] | None,
    columns: Sequence[str] | None,
) -> FlowPicture:
    """Ask a measure of one sample for its tables, and turn them into columns from input to output."""
    asked = read_partitions(partitions)
    if len(partitions) < 2:
        raise QuestionError(
            "a flow needs two layers", got=str(len(partitions)), expected="the partitions of two or more layers"
        )
    for word, given in (("names", names), ("columns", columns)):
        if given is not None and (isinstance(given, str) or len(given) != len(partitions)):
            raise QuestionError(
                f"{word} does not fit the partitions", got=f"{len(given)} entries", expected=str(len(partitions))
            )
    order = in_forward_order(asked, R.resolve)
    asked = [asked[i] for i in order]
    blocks = [Blocks.of(R.resolve(p.layer)[1], p) for p in asked]
    shares = [_numbers(R(p)).reshape(-1) for p in asked]
    tables = [
        with_elsewhere(_numbers(R(p, q)).reshape(len(a), len(b)), a, b)
        for (p, q), (a, b) in zip(itertools.pairwise(asked), itertools.pairwise(shares), strict=True)
    ]
    texts = [
        name_blocks(R, p, b, None if names is None else names[i]) for p, b, i in zip(asked, blocks, order, strict=True)
    ]
    heads = [(str(p.layer) if columns is None else columns[i], count_blocks(p, b))
             for p, b, i in zip(asked, blocks, order, strict=True)]  # fmt: skip
    return make_flows(shares, tables, texts, heads, choice)


def _numbers(relevance: Any) -> Array:
    values: Array = relevance[0].double().cpu().numpy()
    return values


def with_elsewhere(table: Array, low: Array, high: Array) -> Array:
    """The pair table with one more row and column for the walks that pass elsewhere."""
    total = np.zeros((len(low) + 1, len(high) + 1))
    total[:-1, :-1] = table
    total[:-1, -1] = low - table.sum(1)
    total[-1, :-1] = high - table.sum(0)
    total[-1, -1] = 1 - low.sum() - high.sum() + table.sum()
    return total


def count_blocks(partition: Partition, blocks: Blocks) -> str:
    """How many blocks of which kind there are, in words."""
    kind = {"axis": "slices"}.get(partition.kind, partition.kind)
    return f"{blocks.count} {kind.removesuffix('s') if blocks.count == 1 else kind}"


def name_blocks(R: Measure, partition: Partition, blocks: Blocks, given: Any) -> list[str]:
    """A name for every block: the user's, the measure's, or its index."""
    if given is not None:
        if isinstance(given, str) or len(given) != blocks.count:
            raise QuestionError(
                f"the names do not fit {partition}", got=f"{len(given)} names", expected=f"{blocks.count}, one a block"
            )
        return [str(text) for text in given]
    known = R.labels.get(partition.layer.name, ())
    known = known[0] if known and isinstance(known[0], tuple) else known
    numbers = range(blocks.count) if blocks.picked is None else blocks.picked.flatten().tolist()
    if partition.layer.consumer is None and blocks.labels is None and len(known) == math.prod(blocks.full):
        return [str(known[i]) for i in numbers]
    return [", ".join(map(str, np.unravel_index(i, blocks.full))) if blocks.full else "all" for i in numbers]


# ---- from tables to columns ------------------------------------------------------------------------------------------


def make_flows(
    shares: list[Array],
    tables: list[Array],
    texts: list[list[str]],
    heads: list[tuple[str, str]],
    choice: NodeChoice,
) -> FlowPicture:
    """Columns and ribbons from the relevance of blocks, and pair tables with a last row and column for elsewhere."""
    columns, members = [], []
    for share, text, head in zip(shares, texts, heads, strict=True):
        column, member = choose_nodes(share, text, head, choice)
        columns.append(column)
        members.append(member)
    signed = [
        [members[i].T @ part @ members[i + 1] for part in (table.clip(min=0), (-table).clip(min=0))]
        for i, table in enumerate(tables)
    ]
    return _joined(columns, signed)


def join_columns(columns: Sequence[FlowColumn], tables: Sequence[Array]) -> FlowPicture:
    """Columns of nodes and the joint relevances of the nodes of neighbours, with ribbons; nodes cross little."""
    return _joined(list(columns), [[table.clip(min=0), (-table).clip(min=0)] for table in tables])


def _joined(columns: list[FlowColumn], signed: list[list[Array]]) -> FlowPicture:
    """Columns with ribbons, from what nodes of neighbouring columns share for the output and against it."""
    orders = untangle([a + b for a, b in signed], [sum(n.kind == "block" for n in c.nodes) for c in columns])
    columns = [c._replace(nodes=tuple(c.nodes[i] for i in o)) for c, o in zip(columns, orders, strict=True)]
    ribbons = []
    for i, parts in enumerate(signed):
        above, below = (part[np.ix_(orders[i], orders[i + 1])] for part in parts)
        ribbons += _ribbons(i, above, below, columns[i].nodes, columns[i + 1].nodes)
    return FlowPicture(tuple(columns), tuple(ribbons))


def choose_nodes(share: Array, text: list[str], head: tuple[str, str], choice: NodeChoice) -> tuple[FlowColumn, Array]:
    """A column, its strongest blocks first, and which node every block belongs to, elsewhere last."""
    size, elsewhere = np.abs(share), 1 - float(share.sum())
    total = float(size.sum()) + (abs(elsewhere) if abs(elsewhere) >= NOTED_REST else 0.0)
    strongest = best_first(size)[: choice.nodes]
    strongest = strongest[size[strongest] >= NOTED_REST * total]
    if choice.coverage is not None:
        covered = np.cumsum(size[strongest])
        strongest = strongest[: int(np.searchsorted(covered, choice.coverage * size.sum() - 1e-9)) + 1]
    rest = np.setdiff1d(np.arange(len(share)), strongest)
    nodes = [FlowNode("block", int(i), text[i], float(share[i]), float(size[i]) / total) for i in strongest]
    if size[rest].sum() >= NOTED_REST * total or not len(strongest):  # a layer is shown if only as a rest of nothing
        hidden = float(size[rest].sum()) / total
        nodes.append(FlowNode("rest", None, f"rest ({len(rest)})", float(share[rest].sum()), hidden))
    if abs(elsewhere) >= NOTED_REST:
        nodes.append(FlowNode("elsewhere", None, "elsewhere", elsewhere, abs(elsewhere) / total))
    member = np.zeros((len(share) + 1, len(nodes)))
    groups = {"rest": rest, "elsewhere": np.array([len(share)])}
    for i, node in enumerate(nodes):
        member[groups[node.kind] if node.block is None else node.block, i] = 1
    return FlowColumn(*head, float(share.sum()), total, tuple(nodes)), member


def _ribbons(
    column: int, above: Array, below: Array, low: Sequence[FlowNode], high: Sequence[FlowNode]
) -> list[Ribbon]:
    """Every ribbon takes its share of both its nodes' heights, in proportion to absolute relevance."""
    both = above + below
    out, into = both.sum(1), both.sum(0)
    found = []
    for (i, j), sign in itertools.product(np.ndindex(*both.shape), (1, -1)):
        size = float((above if sign > 0 else below)[i, j])
        if size <= 0:
            continue
        widths = (low[i].height * size / out[i], high[j].height * size / into[j])
        if max(widths) >= NOTED_REST:
            found.append(Ribbon(column, i, j, sign * size, (float(widths[0]), float(widths[1]))))
    return found


# ---- order and places ------------------------------------------------------------------------------------------------


def untangle(tables: list[Array], free: list[int]) -> list[list[int]]:
    """An order of every column's nodes with few crossings; those after the first ``free`` ones stay at the bottom.

    Nodes take the mean place of their neighbours, from left to right and back; then neighbours change places as long as
    that helps.

    >>> untangle([np.array([[0.0, 1.0], [1.0, 0.0]])], [2, 2])
    [[0, 1], [1, 0]]
    """
    counts = [tables[0].shape[0], *(t.shape[1] for t in tables)]
    orders = [list(range(n)) for n in counts]
    best, least = [list(o) for o in orders], crossings(tables, orders)
    for sweep in range(SWEEPS):
        columns = range(1, len(orders)) if sweep % 2 == 0 else range(len(orders) - 2, -1, -1)
        for c in columns:
            weights = tables[c - 1].T if sweep % 2 == 0 else tables[c]
            near = orders[c - 1] if sweep % 2 == 0 else orders[c + 1]
            place = np.argsort(near)
            total = weights.sum(1)
            mean = weights @ place / np.where(total == 0, 1, total)
            orders[c] = sorted(orders[c][: free[c]], key=lambda i: mean[i]) + orders[c][free[c] :]
        now = crossings(tables, orders)
        if now < least - 1e-12:
            best, least = [list(o) for o in orders], now
    return _swap(tables, best, free)


def _swap(tables: list[Array], orders: list[list[int]], free: list[int]) -> list[list[int]]:
    least, better = crossings(tables, orders), True
    while better:
        better = False
        for order, count in zip(orders, free, strict=True):
            for i in range(count - 1):
                order[i], order[i + 1] = order[i + 1], order[i]
                now = crossings(tables, orders)
                if now < least - 1e-12:
                    least, better = now, True
                else:
                    order[i], order[i + 1] = order[i + 1], order[i]
    return orders


def crossings(tables: list[Array], orders: list[list[int]]) -> float:
    """How much relevance crosses how much: the sum over crossing ribbons of the product of their sizes.

    >>> crossings([np.array([[0.0, 0.5], [0.5, 0.0]])], [[0, 1], [0, 1]])
    0.25
    """
    total = 0.0
    for table, low, high in zip(tables, orders, orders[1:], strict=False):
        t = table[np.ix_(low, high)]
        later = t[::-1].cumsum(0)[::-1][1:]  # all rows below
        earlier = np.concatenate([np.zeros((len(later), 1)), later.cumsum(1)[:, :-1]], 1)
        total += float((t[:-1] * earlier).sum())
    return total


def stack(heights: Sequence[float], body: float, line: float, gap: float, room: float) -> list[float]:
    """The upper ends of nodes in a column of height ``room``; ``body`` is the height of 100 %.

    Nodes keep ``gap`` between them, and more where they are thinner than a ``line`` of text. What is left of the room
    is shared among the gaps, within bounds, and the column is centred.
    """
    gaps = [max(gap, line - body * (a + b) / 2) for a, b in itertools.pairwise(heights)]
    ends = [max(0.0, (line - body * h) / 2) for h in (heights[0], heights[-1])]
    left = room - body * sum(heights) - sum(gaps) - sum(ends)
    more = min(max(left, 0.0) / max(1, len(gaps)), 2 * line)
    y = ends[0] + (left - more * len(gaps)) / 2
    tops = []
    for height, space in zip(heights, [*gaps, 0.0], strict=True):
        tops.append(y)
        y += body * height + space + more
    return tops


def needed(heights: Sequence[float], body: float, line: float, gap: float) -> float:
    """The least room for a column without overlapping texts."""
    gaps = sum(max(gap, line - body * (a + b) / 2) for a, b in itertools.pairwise(heights))
    return (
        gaps + sum(body * h for h in heights) + sum(max(0.0, (line - body * h) / 2) for h in (heights[0], heights[-1]))
    )
