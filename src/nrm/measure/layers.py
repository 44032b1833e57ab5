"""The list of layers with their facts, and cuts."""

from __future__ import annotations

import difflib
import fnmatch
import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

from torch import Tensor

from nrm.capture import Node
from nrm.errors import QuestionError
from nrm.questions import Base, Layer
from nrm.steps import Network
from nrm.tables import Records

DOZEN, LEAVES, MANY = 12, 16, 40
"""So many rows are enough for a view of blocks; it may have so many at most, and so many if they are containers."""


@dataclass(frozen=True)
class Cut:
    """Layers and edges that every walk crosses exactly once, so that their masses sum to 1."""

    label: str
    parts: tuple[Layer, ...]

    def __iter__(self) -> Iterator[Layer]:
        return iter(self.parts)

    def __len__(self) -> int:
        return len(self.parts)

    def __repr__(self) -> str:
        return f"cut through {self.label}: " + ", ".join(map(str, self.parts))

    def _repr_html_(self) -> str:
        parts = "".join(f"<li><code>{html.escape(str(part))}</code></li>" for part in self.parts)
        return f"cut through <code>{html.escape(self.label)}</code><ul>{parts}</ul>"


@dataclass(frozen=True)
class LayerRow:
    """One line of ``R.layers``. ``bypassed`` says whether some walks pass the layer by, as inside a residual block.

    ``inside`` is how many layers a container has in it; its other facts are those of its last tensor.
    """

    name: str
    shape: tuple[int, ...]
    channel: int | None
    kind: str
    is_cut: bool
    mass: tuple[float, ...]
    bypassed: bool = False
    inside: int = 0


class LayerTable(Records, Sequence[LayerRow]):
    """Every layer that relevance reaches, in the order of the forward pass.

    ``R.layers["layer3"]`` is the row of a layer or of a container (a module that has others in it), ``.find("conv")``
    searches, ``.blocks`` shows the network in a dozen rows or so.

    >>> import nrm, torch
    >>> from torch import nn
    >>> block = lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    >>> R = nrm.measure(nn.Sequential(*(block() for _ in range(12))), torch.ones(1, 4))
    >>> len(R.layers), [row.name for row in R.layers.blocks][:3], R.layers["3"].inside
    (25, ['input', '0', '1'], 2)
    """

    def __init__(self, rows: Sequence[LayerRow], containers: Sequence[LayerRow] = ()) -> None:
        self._rows = list(rows)
        self._containers = list(containers)

    @overload
    def __getitem__(self, index: int | str) -> LayerRow: ...

    @overload
    def __getitem__(self, index: slice) -> LayerTable: ...

    def __getitem__(self, index: int | str | slice) -> LayerRow | LayerTable:
        if isinstance(index, slice):
            return LayerTable(self._rows[index], self._containers)
        if isinstance(index, int):
            return self._rows[index]
        found = next((row for row in (*self._containers, *self._rows) if row.name == index), None)
        if found is None:
            near = difflib.get_close_matches(str(index), [row.name for row in (*self._rows, *self._containers)], n=3)
            raise QuestionError(
                f"no row {index!r} in this list of layers", got=repr(index),
                expected="one of " + ", ".join(map(repr, near)) if near else f"one of its {len(self)} names",
                hint="R.layers.find('conv') searches, R.layers.blocks shows the largest parts",
            )  # fmt: skip
        return found

    def find(self, pattern: str) -> LayerTable:
        """The layers and containers whose name matches a pattern with ``*`` and ``?``, or has a text in it."""
        text = pattern if any(mark in pattern for mark in "*?") else f"*{pattern}*"
        inside = [row for row in self._containers if fnmatch.fnmatchcase(row.name, text)]
        names = {row.name for row in inside}
        rows = [row for row in self._rows if fnmatch.fnmatchcase(row.name, text) and row.name not in names]
        return LayerTable(_in_order(rows, inside), inside)

    @property
    def blocks(self) -> LayerTable:
        """The largest parts of the network, one row each: containers, and what lies beside them.

        The largest container is opened first, until there are about a dozen rows. ``R.layers.find("layer3.*").blocks``
        are the parts of a part.
        """
        layers = [row for row in self._rows if not row.inside] or self._rows
        return LayerTable(choose_blocks(layers, self._containers), self._containers)

    def __len__(self) -> int:
        return len(self._rows)

    def records(self) -> list[dict[str, Any]]:
        """Every layer as plain data, once for each sample."""
        return [
            {"layer": row.name, "sample": sample, "shape": "x".join(map(str, row.shape)), "channel axis": row.channel,
             "kind": row.kind, "cut": row.is_cut, "mass": mass}
            for row in self._rows for sample, mass in enumerate(row.mass)
        ]  # fmt: skip

    def _keys(self) -> Sequence[str]:
        return ("layer", "sample")

    def __repr__(self) -> str:
        wide = max([len(row.name) for row in self._rows] + [4])
        kinds = max([len(_kind(row)) for row in self._rows] + [10])
        lines = [f"{'name':<{wide}}  {'shape':<18} {'channels':>8}  {'kind':<{kinds}} {'cut':<3}  mass"]
        for row in self._rows:
            channel = "" if row.channel is None else f"axis {row.channel}"
            lines.append(
                f"{row.name:<{wide}}  {'x'.join(map(str, row.shape)) or '1':<18} {channel:>8}  {_kind(row):<{kinds}} "
                f"{'yes' if row.is_cut else '':<3}  {_masses(row.mass)}"
            )
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{h}</th>" for h in ("layer", "shape", "channel axis", "kind", "cut", "mass"))
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in (
                row.name, "x".join(map(str, row.shape)) or "1", "" if row.channel is None else row.channel, _kind(row),
                "yes" if row.is_cut else "", _masses(row.mass))) + "</tr>"
            for row in self._rows
        )  # fmt: skip
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _kind(row: LayerRow) -> str:
    """What a layer is; of a container, how many layers it has."""
    return f"{row.kind} of {row.inside}" if row.inside else row.kind


def choose_blocks(rows: Sequence[LayerRow], containers: Sequence[LayerRow]) -> list[LayerRow]:
    """One row for each of the largest parts: containers are opened, the largest first, up to about a dozen rows.

    A container that has most of the network is opened even then, if it is made of containers, as the many blocks of a
    transformer are.
    """
    known = {row.name: row for row in containers}
    opened = {name for name in known if all(_is_inside(row.name, name) or row.name == name for row in rows)}
    shown = _frontier(rows, known, opened)
    closed = sorted((row for row in shown if row.inside), key=lambda row: row.inside, reverse=True)
    while closed:
        row = closed.pop(0)
        more = _frontier(rows, known, {*opened, row.name})
        inner = [one for one in more if _is_inside(one.name, row.name) or one.name == row.name]
        parts = [one for one in inner if one.inside]
        most = 2 * row.inside > len(rows) and len(parts) > 1
        room = MANY if 2 * len(parts) >= len(inner) else LEAVES
        if (len(shown) < DOZEN or most) and len(more) <= room:
            opened.add(row.name)
            shown = more
            closed = sorted([*closed, *parts], key=lambda one: one.inside, reverse=True)
    return shown


def _frontier(rows: Sequence[LayerRow], known: Mapping[str, LayerRow], opened: set[str]) -> list[LayerRow]:
    """Every layer, or the largest container around it that is not opened."""
    found: dict[str, LayerRow] = {}
    for row in rows:
        around = [name for name in (*_around(row.name), row.name) if name in known and name not in opened]
        chosen = known[around[0]] if around else row
        found.pop(chosen.name, None)  # a container comes where its last layer is
        found[chosen.name] = chosen
    return list(found.values())


def _around(name: str) -> Iterator[str]:
    """The names of all modules around a layer, the outermost first.

    >>> list(_around("layer1.0/add"))
    ['layer1', 'layer1.0']
    """
    module, mark, _ = name.partition("/")
    parts = module.split(".")
    for n in range(1, len(parts) + bool(mark)):
        yield ".".join(parts[:n])


def _is_inside(name: str, container: str) -> bool:
    return name.startswith((f"{container}.", f"{container}/"))


def _in_order(rows: Sequence[LayerRow], containers: Sequence[LayerRow]) -> list[LayerRow]:
    """Layers with containers among them, each after what it has inside; one that has nothing listed comes last."""
    found = list(rows)
    for row in sorted(containers, key=lambda row: row.name.count("."), reverse=True):
        last = max((n for n, other in enumerate(found) if _is_inside(other.name, row.name)), default=len(found) - 1)
        found.insert(last + 1, row)
    return found


def _masses(mass: tuple[float, ...]) -> str:
    shown = ", ".join(f"{m:.4g}" for m in mass[:3])
    return shown + (" ..." if len(mass) > 3 else "")


def layer_table(
    network: Network, base: Base, cuts: dict[int, bool], bypassed: dict[int, bool], samples: range
) -> LayerTable:
    """The facts of every tensor that relevance reaches, with the masses of some samples."""
    rows = []
    for node in network.tape.nodes:
        arrived = base.arrivals.get(node.index)
        if arrived is None:
            continue
        relevance = network.relevance(arrived)
        sums = [] if relevance is None else sample_sums(node, relevance, network.tape.batch).tolist()
        mass = tuple(sums[samples.start : samples.stop])
        channel = (
            None if node.channel is None else node.channel - (node.sample is not None and node.sample < node.channel)
        )
        kind = node.op.kind
        flags = cuts.get(node.index, False), bypassed.get(node.index, False)
        rows.append(LayerRow(node.name, node.layer_shape, channel, kind, flags[0], mass, flags[1]))
    return LayerTable(rows, _containers(network, {row.name: row for row in rows}))


def _containers(network: Network, rows: Mapping[str, LayerRow]) -> list[LayerRow]:
    """The modules that have layers in them and are called once: each is its last tensor."""
    tape = network.tape
    inside: dict[str, int] = {}
    for name in rows:
        for module in _around(name):
            inside[module] = inside.get(module, 0) + 1
    found = []
    for name, calls in tape.names.items():
        last = rows.get(tape.nodes[calls[-1]].name)
        if len(calls) == 1 and name in inside and last is not None:
            kind = tape.modules[name].__name__ if name in tape.modules else last.kind
            found.append(replace(last, name=name, kind=kind, inside=inside[name] + (name in rows)))
    return found


def combined(one: LayerTable, other: LayerTable) -> LayerTable:
    """The layers of two measures with the differences of their masses; a layer is a cut if it is one in both."""
    return LayerTable(_subtracted(one._rows, other._rows), _subtracted(one._containers, other._containers))


def averaged(tables: Sequence[LayerTable], weights: Sequence[Sequence[float]]) -> LayerTable:
    """The layers of several measures of one network, with the sums of their masses times weights of every sample."""
    rows = [_weighed(row, weights) for row in zip(*(table._rows for table in tables), strict=True)]
    return LayerTable(rows, [_weighed(row, weights) for row in zip(*(t._containers for t in tables), strict=True)])


def _weighed(rows: Sequence[LayerRow], weights: Sequence[Sequence[float]]) -> LayerRow:
    pairs = [zip(row.mass, mine, strict=True) for row, mine in zip(rows, weights, strict=True)]
    masses = [[mass * weight for mass, weight in pair] for pair in pairs]
    return replace(rows[0], mass=tuple(map(sum, zip(*masses, strict=True))))


def _subtracted(one: Sequence[LayerRow], other: Sequence[LayerRow]) -> list[LayerRow]:
    found = {row.name: row for row in other}
    rows = []
    for row in one:
        twin = found.pop(row.name, replace(row, mass=(0.0,) * len(row.mass)))
        mass = tuple(a - b for a, b in zip(row.mass, twin.mass, strict=True))
        rows.append(replace(row, is_cut=row.is_cut and twin.is_cut, mass=mass))
    return [*rows, *(replace(row, mass=tuple(-m for m in row.mass)) for row in found.values())]


def sample_sums(node: Node, m: Tensor, batch: int) -> Tensor:
    """The sum of a message over every sample's neurons: ``(batch,)``."""
    m = m[0]
    if node.sample is not None:
        return m.movedim(node.sample, 0).reshape(m.shape[node.sample], -1).sum(1)
    if node.owner is None:
        return m.sum()[None]
    return m.new_zeros(batch).index_add(0, node.owner.reshape(-1), m.reshape(-1))


def narrow_mass(node: Node, m: Tensor, batch: int) -> Tensor:
    """The mass of a bias or an offset, one neuron per sample and channel: ``(batch,)``."""
    return m[0].reshape(batch, -1).sum(1) if node.has_samples else m[0].sum()[None]
