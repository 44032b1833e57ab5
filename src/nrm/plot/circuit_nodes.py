"""Where the nodes of a circuit lie in a picture: layers from the bottom up, and tokens or heads from left to right.

Attention heads and other branches are nodes where they act. What a head asks (q) is read where it acts; what it looks
at (k and v) may be read at other positions, and several heads may share it. Then the reading is a small node of its
own, a port, with thin links to the heads that it is for: which of them a share goes on to is not known of an edge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from nrm.errors import QuestionError
from nrm.measure import Circuit
from nrm.plot.words import read_pieces
from nrm.questions import StreamEnd, feeds

PORT = "port"
WIDE, SLIM, BESIDE = 1.0, 0.62, 0.86
"""The width of a head's column, that of a token where nothing is, and the distance of two nodes at one token."""

SAME = 0.7
"""The distance of two rows of one layer, such as attention and what follows it; rows of two layers are 1 apart."""

BELOW = 0.34
"""How far below its row a port lies."""

SHOWN = 48
"""So many positions are drawn even where nothing is; of more, only those with nodes."""

Spot = tuple[int, int | None]
"""A writer, by its number, and the position at which it acts (None: everywhere)."""


@dataclass(frozen=True)
class CircuitNode:
    """A node of a picture: its short text, the whole name, where it lies, and the flow that leaves it."""

    text: str
    name: str
    kind: str
    x: float
    y: float
    share: float = 0.0
    position: int | None = None


@dataclass(frozen=True)
class CircuitRibbon:
    """An edge of a picture: the numbers of its nodes, what it is read as (q, k, v or nothing), and its two numbers."""

    low: int
    high: int
    read: str
    flow: float
    relevance: float
    at: tuple[int, ...]
    """Its place in the table of the circuit: writer, reader, and position if it has one."""


@dataclass(frozen=True)
class CircuitPicture:
    """A circuit as nodes and ribbons in a plane: x from left to right, y from the bottom up, 1 about one node."""

    nodes: tuple[CircuitNode, ...]
    ribbons: tuple[CircuitRibbon, ...]
    links: tuple[tuple[int, int], ...]
    """From ports to the heads that they are for."""
    columns: tuple[tuple[float, str], ...]
    """Where tokens stand, or heads, and what they are."""
    rows: tuple[tuple[float, str], ...]
    """Where layers lie, and what they are."""
    width: float
    height: float


def lay_out_circuit(circuit: Circuit, labels: Sequence[str] | None = None) -> CircuitPicture:
    """Places the nodes of a circuit; ``labels`` are the tokens of a circuit with positions."""
    return _Layout(circuit, _read_labels(circuit, labels)).picture()


def _read_labels(circuit: Circuit, labels: Sequence[str] | None) -> list[str] | None:
    count = circuit.inside.shape[2] if circuit.inside.ndim > 2 else 0
    if labels is None:
        return None
    if not count:
        raise QuestionError(
            "the edges of this circuit have no positions to be labelled", got=f"{len(labels)} labels",
            expected="labels=None", hint="R.circuit(..., positions=True) finds edges at single tokens",
        )  # fmt: skip
    if isinstance(labels, str) or len(labels) != count or not all(isinstance(text, str) for text in labels):
        got = repr(labels)[:80] if isinstance(labels, str) else f"{len(labels)} labels"
        raise QuestionError("the labels do not fit the positions", got=got, expected=f"{count} texts")
    return [piece.text.strip() or "\N{OPEN BOX}" for piece in read_pieces(labels)]


class _Layout:
    """Finds nodes, rows and columns, one after the other."""

    def __init__(self, circuit: Circuit, labels: list[str] | None) -> None:
        self._circuit, self._labels = circuit, labels
        self._flows = circuit.relevance if circuit.flow is None else circuit.flow
        self._places = [tuple(place) for place in circuit.inside.nonzero().tolist()]
        self._acts: dict[int, set[int | None]] = {}
        """The positions at which writers act."""
        for place in self._places:
            self._acts.setdefault(place[0], set()).add(_position(place))
        self._nodes: dict[object, CircuitNode] = {}
        self._numbers: dict[object, int] = {}
        self._levels = dict[object, int]()
        self._slots = dict[object, int]()
        self._links: list[tuple[int, int]] = []

    def picture(self) -> CircuitPicture:
        """The whole picture."""
        ends = [(self._writer(place[0], _position(place)), self._reader(place)) for place in self._places]
        rows = self._rows()
        columns, width = self._token_columns() if self._circuit.inside.ndim > 2 else self._head_columns()
        keys = list(self._nodes)
        at = {key: (columns[key], rows[self._levels[key]]) for key in keys}
        shares = dict.fromkeys(range(len(keys)), 0.0)
        ribbons = []
        for place, (low, high) in zip(self._places, ends, strict=True):
            kind = self._circuit.readers[place[1]].kind
            flow = float(self._flows[place])
            ribbons.append(
                CircuitRibbon(low, high, kind if kind in ("q", "k", "v") else "", flow,
                              float(self._circuit.relevance[place]), place)
            )  # fmt: skip
            shares[low] += flow
            if self._nodes[keys[high]].kind in (PORT, "logits"):
                shares[high] += flow
        nodes = tuple(
            replace(node, x=at[key][0], y=at[key][1] - BELOW * (node.kind == PORT), share=shares[n])
            for n, (key, node) in enumerate(self._nodes.items())
        )
        return CircuitPicture(
            nodes, tuple(ribbons), tuple(dict.fromkeys(self._links)), tuple(self._column_texts),
            self._row_texts(rows), width, max(rows.values()) + 1.0,
        )  # fmt: skip

    # ---- nodes -----------------------------------------------------------------------------------------------

    def _add(self, key: object, node: CircuitNode, level: int, slot: int) -> int:
        if key not in self._nodes:
            self._nodes[key], self._levels[key], self._slots[key] = node, level, slot
            self._numbers[key] = len(self._numbers)
        return self._numbers[key]

    def _writer(self, number: int, position: int | None) -> int:
        end = self._circuit.writers[number]
        text = self._text(end, end.crossing)
        node = CircuitNode(text, str(end), end.kind, 0.0, 0.0, position=position)
        return self._add((number, position), node, end.crossing, number)

    def _reader(self, place: tuple[int, ...]) -> int:
        """The node that an edge ends at: a head or branch where it acts, or what is read for several of them."""
        number, position = place[1], _position(place)
        reader = self._circuit.readers[number]
        level = reader.crossing + 1
        if reader.kind == "logits":
            return self._add(("output", position), CircuitNode("output", str(reader), reader.kind, 0.0, 0.0,
                             position=position), level, 0)  # fmt: skip
        fed = [n for n, writer in enumerate(self._circuit.writers) if feeds(reader, writer)]
        there = [n for n in fed if n in self._acts] or fed[:1]
        spots = [(n, p) for n in there for p in sorted(self._acts.get(n, {position}), key=lambda p: (p is None, p))]
        if reader.kind not in ("k", "v") and len(there) == 1:
            return self._writer(there[0], position)
        if spots == [(there[0], position)]:
            return self._writer(*spots[0])
        name = str(reader) if reader.head is None else f"{reader.name}.kv.head({reader.head})"
        port = CircuitNode(self._text(reader, level), name, PORT, 0.0, 0.0, position=position)
        found = self._add((name, level, position), port, level, there[0])
        for n, p in spots:
            if position is None or not self._is_causal or (p is not None and p >= position):
                self._links.append((found, self._writer(n, p)))
        return found

    @cached_property
    def _is_causal(self) -> bool:
        """Whether every key and value is read at or before a place where a head that it is for acts."""
        for place in self._places:
            reader, position = self._circuit.readers[place[1]], _position(place)
            if reader.kind in ("k", "v") and position is not None:
                acts = [p for n, w in enumerate(self._circuit.writers) if feeds(reader, w)
                        for p in self._acts.get(n, ()) if p is not None]  # fmt: skip
                if acts and max(acts) < position:
                    return False
        return True

    # ---- texts -----------------------------------------------------------------------------------------------

    def _text(self, end: StreamEnd, level: int) -> str:
        """A short name: 23.3 is head 3 of layer 23, "mlp 0" what is called mlp in layer 0."""
        if end.kind == "embedding":
            return "embedding" if self._circuit.inside.ndim == 2 else "embed"
        layer, tail = self._layers.get((end.name, level)), end.name.split(".")[-1]
        if end.kind in ("k", "v"):
            return f"{end.name if layer is None else layer} kv {end.head}"
        if layer is None:
            return end.name if end.head is None else f"{end.name} {end.head}"
        return f"{layer}.{end.head}" if end.head is not None else f"{tail} {layer}"

    @cached_property
    def _layers(self) -> dict[tuple[str, int], int]:
        """The number of the layer of every branch, as its name has it; none if these do not rise with the network."""
        found, names = dict[tuple[str, int], int](), dict[tuple[str, int], set[str]]()
        for end in sorted(self._circuit.writers, key=lambda end: end.crossing):
            numbers = [int(part) for part in end.name.split(".") if part.isdigit()]
            if end.kind in ("embedding", "constant"):
                continue
            if not numbers or numbers[0] < max(found.values(), default=0):
                return {}
            found[end.name, end.crossing] = numbers[0]
            names.setdefault((end.name.split(".")[-1], numbers[0]), set()).add(end.name)
        return found if all(len(some) == 1 for some in names.values()) else {}

    # ---- rows and columns ------------------------------------------------------------------------------------

    def _rows(self) -> dict[int, float]:
        """Where every level lies: those that have nodes, one above the other."""
        found, y, before = dict[int, float](), 0.0, None
        for level in sorted(set(self._levels.values())):
            layer = self._layer_of_level(level)
            if found:
                y += SAME if layer is not None and layer == before else 1.0
            found[level], before = y, layer
        return found

    def _layer_of_level(self, level: int) -> int | None:
        return next((layer for (_, at), layer in self._layers.items() if at == level), None)

    def _row_texts(self, rows: dict[int, float]) -> tuple[tuple[float, str], ...]:
        """The number of a layer beside the middle of its rows."""
        heights: dict[int, list[float]] = {}
        for level, y in rows.items():
            layer = self._layer_of_level(level)
            if layer is not None:
                heights.setdefault(layer, []).append(y)
        return tuple((sum(ys) / len(ys), f"layer {layer}") for layer, ys in heights.items())

    def _head_columns(self) -> tuple[dict[object, float], float]:
        """Columns of a circuit without positions: heads by their number, other branches at the right of them."""
        used = [self._circuit.writers[self._slots[key]] for key, node in self._nodes.items() if node.kind != "logits"]
        heads = sorted({writer.head for writer in used if writer.head is not None})
        others = {writer.name.split(".")[-1] for writer in used if writer.kind == "branch"}
        biases = any(writer.kind == "constant" for writer in used)
        width = WIDE * (len(heads) + bool(others or not heads) + biases)
        texts = [*(f"head {h}" for h in heads), *([next(iter(others))] if heads and len(others) == 1 else [])]
        self._column_texts = [(WIDE * (n + 0.5), text) for n, text in enumerate(texts)]
        found: dict[object, float] = {}
        for key, node in self._nodes.items():
            writer = self._circuit.writers[self._slots[key]]
            if node.kind in ("embedding", "logits"):
                found[key] = width / 2
            elif node.kind == "constant":
                found[key] = width - WIDE / 2
            elif node.kind != PORT:
                column = len(heads) if writer.head is None else heads.index(writer.head)
                found[key] = WIDE * (column + 0.5)
        for key, node in self._nodes.items():
            if node.kind == PORT:
                over = [found[k] for k, n in self._numbers.items() if (self._numbers[key], n) in self._links]
                found[key] = sum(over) / len(over)
        return found, width

    def _token_columns(self) -> tuple[dict[object, float], float]:
        """Columns of a circuit with positions: one for every token, as wide as what acts there side by side."""
        count, used = self._circuit.inside.shape[2], {node.position for node in self._nodes.values()}
        shown = [p for p in range(count) if p in used or (count <= SHOWN and self._labels is not None)]
        cells: dict[tuple[int | None, int], list[object]] = {}
        for key, node in self._nodes.items():
            cells.setdefault((node.position, self._levels[key]), []).append(key)
        found, left = dict[object, float](), 0.0
        self._column_texts = []
        for position in shown:
            most = max((len(keys) for (p, _), keys in cells.items() if p == position), default=0)
            width = max(SLIM, BESIDE * most + 0.2)
            self._column_texts.append(
                (left + width / 2, self._labels[position] if self._labels is not None else str(position))
            )
            for keys in (keys for (p, _), keys in cells.items() if p == position):
                ordered = sorted(keys, key=lambda key: (self._slots[key], self._nodes[key].kind != PORT))
                first = left + width / 2 - BESIDE * (len(ordered) - 1) / 2
                found |= {key: first + BESIDE * n for n, key in enumerate(ordered)}
            left += width
        return found, left


def _position(place: tuple[int, ...]) -> int | None:
    return place[2] if len(place) > 2 else None


__all__ = ["PORT", "CircuitNode", "CircuitPicture", "CircuitRibbon", "lay_out_circuit"]
