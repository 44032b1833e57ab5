"""The list of layers with their facts, and cuts."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from nrm.capture import Node
from nrm.questions.sweep import Base
from nrm.questions.values import Layer
from nrm.rules import Network


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
    """One line of ``R.layers``. ``bypassed`` says whether some walks pass the layer by, as inside a residual block."""

    name: str
    shape: tuple[int, ...]
    channel: int | None
    kind: str
    is_cut: bool
    mass: tuple[float, ...]
    bypassed: bool = False


class LayerTable(Sequence[LayerRow]):
    """Every layer that relevance reaches, in the order of the forward pass."""

    def __init__(self, rows: Sequence[LayerRow]) -> None:
        self._rows = list(rows)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        wide = max([len(row.name) for row in self._rows] + [4])
        lines = [f"{'name':<{wide}}  {'shape':<18} {'channels':>8}  {'kind':<10} {'cut':<3}  mass"]
        for row in self._rows:
            channel = "" if row.channel is None else f"axis {row.channel}"
            lines.append(
                f"{row.name:<{wide}}  {'x'.join(map(str, row.shape)) or '1':<18} {channel:>8}  {row.kind:<10} "
                f"{'yes' if row.is_cut else '':<3}  {_masses(row.mass)}"
            )
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{h}</th>" for h in ("layer", "shape", "channel axis", "kind", "cut", "mass"))
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in (
                row.name, "x".join(map(str, row.shape)) or "1", "" if row.channel is None else row.channel, row.kind,
                "yes" if row.is_cut else "", _masses(row.mass))) + "</tr>"
            for row in self._rows
        )  # fmt: skip
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


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
        relevance = network.relevance(node.index, arrived)
        sums = [] if relevance is None else sample_sums(node, relevance, network.tape.batch).tolist()
        mass = tuple(sums[samples.start : samples.stop])
        channel = (
            None if node.channel is None else node.channel - (node.sample is not None and node.sample < node.channel)
        )
        kind = getattr(node.op, "kind", "")
        flags = cuts.get(node.index, False), bypassed.get(node.index, False)
        rows.append(LayerRow(node.name, node.layer_shape, channel, kind, flags[0], mass, flags[1]))
    return LayerTable(rows)


def combined(one: LayerTable, other: LayerTable) -> LayerTable:
    """The layers of two measures with the differences of their masses; a layer is a cut if it is one in both."""
    found = {row.name: row for row in other}
    rows = []
    for row in one:
        twin = found.pop(row.name, replace(row, mass=(0.0,) * len(row.mass)))
        mass = tuple(a - b for a, b in zip(row.mass, twin.mass, strict=True))
        rows.append(replace(row, is_cut=row.is_cut and twin.is_cut, mass=mass))
    return LayerTable([*rows, *(replace(row, mass=tuple(-m for m in row.mass)) for row in found.values())])


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
