"""Which layers a view shows, in which blocks, and the nodes that their strongest blocks become.

The nodes of a column are a partition of its layer as well: one group for each shown block, and one for the rest. So
every number of a view is an answer of the measure to a question about these groups.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nrm.errors import QuestionError
from nrm.measure import LayerRow
from nrm.plot import Array, FlowColumn, NodeChoice, choose_nodes, count_blocks, name_blocks, untangle, with_elsewhere
from nrm.questions import Layer, Partition, Set, in_forward_order
from nrm.report.graphs import graph_layers
from nrm.report.named import NamedPart, joined_blocks
from nrm.report.pictures import drawn_input
from nrm.search import blocks_of, cluster, coarsen, grouped_by, merge

if TYPE_CHECKING:
    from nrm.measure import Measure

COLUMNS = 6
"""How many layers are shown unless they are chosen."""
WIDE = 64
"""Dense layers with more channels are left out behind convolutions: most of their relevance would be in the rest."""
BY = ("channels", "positions", "heads", "clusters", "groups", "edges")
"""How a layer can be divided: by what it has, by clusters of its positions, by groups of channels (coarsened), by edges
of a graph."""


class Pick(NamedTuple):
    """A layer of a view by name, and how it is divided: one of :data:`BY`."""

    layer: str
    by: str


class Shown(NamedTuple):
    """A column of a view: the partition, the pick it came from, its nodes, and the groups of neurons they stand for.

    ``numbers`` are the groups of the nodes; what passes elsewhere has none. ``joined`` are blocks that people named, by
    name: several of one name are one block, which has the number of its first.
    """

    partition: Partition
    pick: Pick
    column: FlowColumn
    groups: Partition
    numbers: tuple[int | None, ...]
    joined: Mapping[str, list[int]]

    def event(self, node: int) -> Set | None:
        """The neurons of a node; None for the walks that pass elsewhere."""
        number = self.numbers[node]
        return None if number is None else self.groups[number]

    def cells(self, R: Measure) -> Array | None:
        """The node of every position, in rows and columns; None for a layer that is not divided along two axes."""
        frame = R.resolve(self.partition.layer)[1]
        channel, shape = frame.layer_channel, frame.layer_shape
        if channel is None or len(shape) != 3:
            return None
        labels = self.groups.detail[0].tensor.expand(shape).cpu()
        first = labels.narrow(channel, 0, 1)
        if not bool((labels == first).all()) or bool((first == first.flatten()[0]).all()):
            return None
        return _to_nodes(first.squeeze(channel).numpy(), self.numbers)


def _to_nodes(groups: Array, numbers: Sequence[int | None]) -> Array:
    """The places of groups among the nodes of a column; -1 for none."""
    places = np.full(max((n for n in numbers if n is not None), default=-1) + 2, -1)
    for place, number in enumerate(numbers):
        if number is not None:
            places[number] = place
    found: Array = places[groups]
    return found


def default_picks(R: Measure, columns: int = COLUMNS) -> list[Pick]:
    """A handful of layers along the network that no walk passes by, each the last of its form; then the output.

    Layers with rows and columns of positions are divided by clusters of them, sequences by positions, and everything
    else by channels.
    """
    if R.inner.tape.graphs is not None:
        return _graph_picks(R, columns)
    first, *later = R.layers
    rows = [r for r in later if not r.bypassed and r.channel is not None and r.kind != "move"]
    sequence = len(first.shape) == 2
    ends = [r for r, next_ in zip(rows, [*rows[1:], None], strict=True) if next_ is None or _form(r) != _form(next_)]
    inner = [
        r
        for r in ([r for r in rows if r.kind != "norm"] if sequence else ends)
        if r.name != rows[-1].name and _form(r)[0] > 1
    ]
    spread = [r for r in inner if _form(r)[1] == 3 or _form(r)[0] <= WIDE]
    inner = spread if any(_form(r)[1] == 3 for r in spread) else inner
    places = np.linspace(0, len(inner) - 1, min(columns - 1 - sequence, len(inner))).round().astype(int)
    picks = [Pick(inner[i].name, _usual(inner[i], sequence)) for i in dict.fromkeys(places.tolist())]
    if sequence or not picks:
        picks = [Pick(drawn_input(R).name, "positions" if sequence else "channels"), *picks]
    return [*picks, Pick("output", "channels")]


def _graph_picks(R: Measure, columns: int) -> list[Pick]:
    """The nodes of a graph as they come in, then as every graph layer leaves them."""
    inner = graph_layers(R)[-(columns - 2) :]
    return [Pick(name, "positions") for name in [drawn_input(R).name, *inner]] + [Pick("output", "channels")]


def _usual(row: LayerRow, sequence: bool) -> str:
    """How a layer is divided unless that is chosen."""
    if len(row.shape) == 3 and row.shape[1] * row.shape[2] > 4 and find_spec("sklearn") is not None:
        return "clusters"
    return "positions" if sequence and len(row.shape) == 2 else "channels"


def _form(row: LayerRow) -> tuple[int, int]:
    """How many channels a layer has, and how many axes that are longer than 1."""
    return row.shape[row.channel or 0], sum(n > 1 for n in row.shape)


def ways(R: Measure, row: LayerRow) -> list[str]:
    """How a layer of ``R.layers`` can be divided."""
    found = [] if row.channel is None else ["channels"]
    if len(row.shape) > (row.channel is not None):
        found.append("positions")
    if "heads" in R[row.name].facts:
        found.append("heads")
    if "positions" in found and row.channel is not None:
        found.append("clusters")
    if row.kind == "propagate" and R.inner.tape.graphs is not None:
        found.append("edges")
    return [*found, "groups"] if row.channel is not None else found


def ways_of(R: Measure, shown: Shown) -> list[str]:
    """How the layer of a column can be divided; names of containers and modules stand for their last layer."""
    known = next((ways(R, row) for row in R.layers if row.name == shown.pick.layer), ["channels", "positions"])
    more = ["edges"] if shown.pick.layer in graph_layers(R) else []
    return list(dict.fromkeys([*known, *more, shown.pick.by]))


def read_picks(layers: Sequence[Any] | None, R: Measure) -> list[Pick | Partition]:
    """The columns that a user asks for: names, ``(name, by)``, layers or partitions."""
    if layers is None:
        return list(default_picks(R))
    found: list[Pick | Partition] = []
    for layer in layers:
        if isinstance(layer, Partition):
            found.append(layer)
            continue
        name, by = (layer, "channels") if isinstance(layer, str | Layer) else layer
        if by not in BY:
            raise QuestionError("no such way to divide a layer", got=repr(by)[:80], expected=", ".join(BY))
        found.append(Pick(name.name if isinstance(name, Layer) else name, by))
    if len(found) < 2:
        raise QuestionError("a view needs two layers", got=str(len(found)), expected="two or more layers")
    return found


def read_partitions(R: Measure, picks: Sequence[Pick | Partition], k: int) -> list[tuple[Pick, Partition]]:
    """The partitions of some picks; coarsened groups are found together."""
    grouped = [R[p.layer].channels for p in picks if isinstance(p, Pick) and p.by == "groups"]
    coarse = iter(coarsen(R, *grouped, k=k) if grouped else ())
    found = []
    for pick in picks:
        if isinstance(pick, Partition):
            found.append((Pick(str(pick.layer), pick.kind), pick))
        elif pick.by == "groups":
            found.append((pick, next(coarse)))
        elif pick.by == "clusters":
            found.append((pick, cluster(R, pick.layer, k)))
        else:
            found.append((pick, getattr(R[pick.layer], pick.by)))
    return found


def read_columns(
    R: Measure, picks: Sequence[Pick | Partition], choice: NodeChoice, names: Mapping[str, list[str]],
    parts: Sequence[NamedPart] = (),
) -> list[Shown]:  # fmt: skip
    """The columns from input to output, the strongest blocks of each as nodes; positions and edges have ``names``.

    ``parts`` are sets that people named: nodes that are such sets have their names.
    """
    asked = read_partitions(R, picks, choice.nodes)
    order = in_forward_order([partition for _, partition in asked], R.resolve)
    return [_shown(R, *asked[place], choice, names, parts) for place in order]


def _shown(
    R: Measure, pick: Pick, partition: Partition, choice: NodeChoice, names: Mapping[str, list[str]],
    parts: Sequence[NamedPart],
) -> Shown:  # fmt: skip
    blocks = blocks_of(R, partition)
    known = names.get(partition.kind, [])
    texts = name_blocks(R, partition, blocks, known if len(known) == blocks.count else None)
    what = count_blocks(partition, blocks)
    joined = joined_blocks(R, partition, blocks, parts)
    for name, together in joined.items():
        texts[min(together)] = name
    several = [together for together in joined.values() if len(together) > 1]
    if several:
        partition = merge(R, partition, *several)
        blocks = blocks_of(R, partition)
        texts = texts[: blocks.count]
    share: Array = R(partition)[0].double().cpu().numpy().reshape(-1)
    column, member = choose_nodes(share, texts, (str(partition.layer), what), choice)
    inside = [i for i, node in enumerate(column.nodes) if node.kind != "elsewhere"]
    members = member[:-1, inside]
    labels = np.where(members.any(1), members.argmax(1) if inside else 0, -1)
    groups = grouped_by(R, partition, blocks, torch.from_numpy(labels)[None])
    numbers = tuple(i if node.kind != "elsewhere" else None for i, node in enumerate(column.nodes))
    return Shown(partition, pick, column, groups, numbers, joined)


def questions(shown: Sequence[Shown]) -> list[tuple[Partition, Partition]]:
    """What is asked for the ribbons: the nodes of every two neighbouring columns."""
    return [(a.groups, b.groups) for a, b in itertools.pairwise(shown)]


def read_tables(R: Measure, shown: Sequence[Shown]) -> Iterator[Array]:
    """The joint relevances of the nodes of neighbouring columns, one table after the other; nodes as they are now."""
    for (low, high), (a, b) in zip(questions(shown), itertools.pairwise(shown), strict=True):
        table = R(low, high)[0].double().cpu().numpy()
        table = with_elsewhere(table, *(R(g)[0].double().cpu().numpy() for g in (low, high)))
        yield table[np.ix_(*([-1 if n is None else n for n in s.numbers] for s in (a, b)))]


def order_nodes(shown: Sequence[Shown], tables: Sequence[Array | None]) -> list[list[int]]:
    """The nodes of every column from top to bottom, so that ribbons cross little; tables may not be there yet."""
    sizes = [len(s.column.nodes) for s in shown]
    known = [
        np.zeros(pair) if t is None else np.abs(t) for t, pair in zip(tables, itertools.pairwise(sizes), strict=True)
    ]
    if not known:
        return [list(range(n)) for n in sizes]
    return untangle(known, [sum(n.kind == "block" for n in s.column.nodes) for s in shown])


class NodeChain(NamedTuple):
    """Walks through chosen nodes: any of those chosen in a column, and all columns that have one.

    ``events`` are what they pass through, ``avoided`` the layers that they bypass.
    """

    events: tuple[Set, ...]
    avoided: tuple[Set, ...]


def read_chain(shown: Sequence[Shown], chosen: Sequence[tuple[int, int]]) -> NodeChain:
    """The chain of some nodes, each a column and its place there."""
    events, avoided = [], []
    for c in sorted({c for c, _ in chosen}):
        own = [shown[c].event(n) for column, n in chosen if column == c]
        inside = [event for event in own if event is not None]
        if inside and len(inside) < len(own):
            raise QuestionError("walks cannot pass a layer and bypass it", got=f"nodes of {shown[c].column.name}")
        if inside:
            events.append(functools.reduce(operator.or_, inside))
        else:
            avoided.append(shown[c].partition.layer.all)
    return NodeChain(tuple(events), tuple(avoided))


def joint(R: Measure, free: Sequence[Partition | Layer], chain: NodeChain) -> Tensor:
    """The joint relevance of a chain with some free variables: ``(*axes)``.

    What passes elsewhere is what is left without the layer's own.
    """
    events, avoided = chain
    if avoided:
        without = NodeChain(events, avoided[1:])
        return joint(R, free, without) - joint(R, free, NodeChain((*events, avoided[0]), avoided[1:]))
    if not free and not events:
        return torch.tensor(1.0)
    return R(*free, *events)[0]
