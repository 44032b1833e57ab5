"""A circuit: a set of direct edges of a residual stream as a value, with the measure of the walks inside it."""

from __future__ import annotations

import importlib
import itertools
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nrm.errors import QuestionError, ResultFileError
from nrm.files import replacing
from nrm.largest import largest
from nrm.measure.mib import MibNames, mib_facts, mib_marks
from nrm.questions import Site, StreamEnd
from nrm.tables import Results, Tabled

KIND, SCHEMA = "nrm circuit", 1

Ends = tuple[StreamEnd, ...]


@dataclass(frozen=True)
class CircuitEdge:
    """An edge of a circuit: who writes, who reads, at which position (None: at all of them), and two numbers.

    ``relevance`` is its share in the whole network, ``flow`` that of the walks which take it and stay inside.
    """

    writer: StreamEnd
    reader: StreamEnd
    relevance: float
    flow: float | None = None
    position: int | None = None

    def __str__(self) -> str:
        at = "" if self.position is None else f" at {self.position}"
        return f"{self.writer} -> {self.reader}{at}"


@dataclass(frozen=True)
class Chain:
    """A way through a circuit from where walks begin to the output, and the relevance of the walks that take it."""

    edges: tuple[CircuitEdge, ...]
    relevance: float

    def __str__(self) -> str:
        names = [str(self.edges[0].writer), str(self.edges[0].reader)]
        for below, edge in itertools.pairwise(self.edges):
            if node_name(below.reader) != node_name(edge.writer):  # heads share keys: say which of them goes on
                names.append(str(edge.writer))
            names.append(str(edge.reader))
        return " -> ".join(names)


@dataclass(frozen=True, eq=False)
class Circuit(Tabled):
    """A set of direct edges, as ``R.circuit(...)`` chose it.

    ``inside`` marks the edges, ``(writers, readers)`` or with the positions of the stream as a last axis. ``relevance``
    and ``flow`` have that shape and are 0 outside: shares of the mean explained value over all samples. ``mass`` is
    that of the walks which stay inside: what the circuit by itself is predicted to restore of the difference when
    everything else is taken from the reference. Circuits are sets: ``a | b``, ``a & b``, ``a - b``, ``a ^ b`` and
    ``a.overlap(b)``; the mass of such a set is not known before ``R.circuit(edges=a | b)`` asks for it.
    """

    writers: tuple[StreamEnd, ...]
    readers: tuple[StreamEnd, ...]
    inside: Tensor
    relevance: Tensor
    flow: Tensor | None = None
    mass: float | None = None
    masses: Tensor | None = None
    """The mass of every sample."""
    value: Tensor | None = None
    """The explained value of every sample."""
    model: str = ""
    """The digest of the model's weights."""
    chains: tuple[Chain, ...] = field(default=(), repr=False)
    """The strongest ways through it, if they were asked for."""

    # ---- what is in it ---------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """How many edges are inside."""
        return int(self.inside.sum())

    @property
    def possible(self) -> int:
        """How many edges there are in the network."""
        return int(possible_edges(self.writers, self.readers).sum()) * (self.inside[0, 0].numel())

    @property
    def edges(self) -> list[CircuitEdge]:
        """The edges, the largest relevance first."""
        places = self.inside.nonzero()
        order = self.relevance[self.inside].abs().argsort(descending=True, stable=True)
        return [self.edge(tuple(places[n].tolist())) for n in order.tolist()]

    @property
    def nodes(self) -> list[str]:
        """The names of all writers and readers that an edge touches: heads, other branches, embedding, output."""
        flat = self.inside.flatten(2).any(2) if self.inside.ndim > 2 else self.inside
        write = [w for w, used in zip(self.writers, flat.any(1).tolist(), strict=True) if used]
        read = [r for r, used in zip(self.readers, flat.any(0).tolist(), strict=True) if used]
        ends = sorted([*read, *write], key=lambda end: (end.crossing + (end in read), str(end)))
        return list(dict.fromkeys(node_name(end) for end in ends))

    def top(self, k: int = 10) -> list[CircuitEdge]:
        """The k edges with the largest flow inside, by absolute value; by relevance where flows are not known."""
        scores = self.relevance if self.flow is None else self.flow
        columns = self.inside.shape
        found = largest(scores.abs().flatten(), min(k, len(self))).tolist()
        return [self.edge(tuple(int(i) for i in torch.unravel_index(torch.tensor(n), columns))) for n in found]

    def edge(self, at: tuple[int, ...]) -> CircuitEdge:
        """The edge at a place of the table: writer, reader, and position if it has one."""
        flow = None if self.flow is None else float(self.flow[at])
        position = at[2] if len(at) > 2 else None
        return CircuitEdge(self.writers[at[0]], self.readers[at[1]], float(self.relevance[at]), flow, position)

    def table(self) -> Results:
        """Relevance, flow and membership with the names of writers and readers."""
        axes = ("writer", "reader", *(("position",) if self.inside.ndim > 2 else ()))
        names = {"writer": tuple(map(str, self.writers)), "reader": tuple(map(str, self.readers))}
        columns = {"relevance": self.relevance, "inside": self.inside}
        columns |= {} if self.flow is None else {"flow": self.flow}
        return Results(columns, dict.fromkeys(columns, axes), labels=names)

    # ---- sets ------------------------------------------------------------------------------------------------

    def __or__(self, other: Circuit) -> Circuit:
        return self._with(other, torch.logical_or)

    def __and__(self, other: Circuit) -> Circuit:
        return self._with(other, torch.logical_and)

    def __xor__(self, other: Circuit) -> Circuit:
        return self._with(other, torch.logical_xor)

    def __sub__(self, other: Circuit) -> Circuit:
        return self._with(other, lambda a, b: a & ~b)

    def __le__(self, other: Circuit) -> bool:
        """Whether every edge of it is in the other one."""
        return len(self - other) == 0

    def __eq__(self, other: object) -> bool:
        """Whether both have the same edges."""
        if not isinstance(other, Circuit):
            return NotImplemented
        return names_of(self) == names_of(other) and torch.equal(self.inside, other.inside)

    __hash__ = None  # type: ignore[assignment]

    def overlap(self, other: Circuit) -> float:
        """The edges of both over the edges of either (Jaccard); 1 for two empty ones."""
        either = len(self | other)
        return len(self & other) / either if either else 1.0

    def _with(self, other: Circuit, join: Callable[[Tensor, Tensor], Tensor]) -> Circuit:
        if not isinstance(other, Circuit):
            raise QuestionError(
                "circuits are joined with circuits", got=type(other).__name__, expected="a circuit of this network"
            )
        refuse_others((self.writers, self.readers, self.inside), other, other.inside)
        inside = join(self.inside, other.inside)
        relevance = torch.where(self.inside, self.relevance, other.relevance) * inside
        return replace(
            self, inside=inside, relevance=relevance, flow=None, mass=None, masses=None, value=None, chains=()
        )

    # ---- text and files --------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        share = 100 * len(self) / max(self.possible, 1)
        lines = [f"circuit of {len(self)} of {self.possible} direct edges ({share:.3g} %), {len(self.nodes)} nodes"]
        if self.mass is None:
            lines.append("mass not known: R.circuit(edges=this) computes it")
        else:
            lines.append(f"predicted mass {self.mass:.4f}")
        lines += [f"  {edge.relevance if edge.flow is None else edge.flow:8.4f}  {edge}" for edge in self.top(10)]
        lines += [f"chain {chain.relevance:8.4f}  {chain}" for chain in self.chains]
        return "\n".join(lines)

    def report(
        self, path: str | os.PathLike[str] | None = None, model: Any = None, pairs: Any = None, **options: Any
    ) -> Any:
        """The circuit on one page: a file if there is a path, else shown by a notebook.

        The page needs no network and no server: nodes are clicked and named, a slider takes edges away. ``model`` is
        the measure that the circuit was found in, or the model, with its ``pairs``; without it there is one size only.
        ``patch=True`` runs all sizes and single nodes in the network; ``labels=`` are the tokens of a circuit with
        positions, ``sizes=`` says how many sizes, ``title=`` is the title.
        """
        room = importlib.import_module("nrm.report")  # a later room, which is needed only here
        return room.circuit_report(self, path, model, pairs, **options)

    def to_json(self) -> dict[str, Any]:
        """All of it as plain numbers and texts."""
        places = self.inside.nonzero().tolist()
        flows = None if self.flow is None else self.flow[self.inside].tolist()
        return {
            "kind": KIND, "schema": SCHEMA, "model": self.model,
            "writers": [end_facts(w) for w in self.writers], "readers": [end_facts(r) for r in self.readers],
            "shape": list(self.inside.shape), "edges": places,
            "relevance": self.relevance[self.inside].tolist(), "flow": flows,
            "mass": self.mass, "masses": None if self.masses is None else self.masses.tolist(),
            "value": None if self.value is None else self.value.tolist(),
            "chains": [
                {"relevance": c.relevance, "edges": [self._place(e) for e in c.edges]} for c in self.chains
            ],
        }  # fmt: skip

    def _place(self, edge: CircuitEdge) -> list[int]:
        at = [self.writers.index(edge.writer), self.readers.index(edge.reader)]
        return at if edge.position is None else [*at, edge.position]

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> Circuit:
        """What :meth:`to_json` made."""
        if facts.get("kind") != KIND or facts.get("schema") != SCHEMA:
            raise ResultFileError(
                "this is no circuit", got=f"kind {facts.get('kind')!r}, schema {facts.get('schema')!r}",
                expected=f"{KIND!r}, schema {SCHEMA}", hint="nrm.Circuit.from_mib reads MIB's",
            )  # fmt: skip
        try:
            return cls._read(facts)
        except (KeyError, IndexError, TypeError, ValueError, RuntimeError) as problem:
            raise ResultFileError("a circuit that is not whole", got=f"{type(problem).__name__}: {problem}") from None

    @classmethod
    def _read(cls, facts: Mapping[str, Any]) -> Circuit:
        inside = torch.zeros(facts["shape"], dtype=torch.bool)
        at = tuple(torch.tensor(facts["edges"], dtype=torch.long).reshape(-1, inside.ndim).T)
        inside[at] = True

        def filled(numbers: list[float] | None) -> Tensor | None:
            if numbers is not None and len(numbers) != len(facts["edges"]):
                raise ValueError(f"{len(numbers)} numbers for {len(facts['edges'])} edges")
            return None if numbers is None else torch.zeros(facts["shape"], dtype=torch.float64).index_put(
                at, torch.tensor(numbers, dtype=torch.float64)
            )  # fmt: skip

        def row(numbers: list[float] | None) -> Tensor | None:
            return None if numbers is None else torch.tensor(numbers, dtype=torch.float64)

        relevance = filled(facts["relevance"])
        assert relevance is not None
        found = cls(
            tuple(map(read_end, facts["writers"])), tuple(map(read_end, facts["readers"])), inside, relevance,
            filled(facts["flow"]), facts["mass"], row(facts["masses"]), row(facts["value"]), facts["model"],
        )  # fmt: skip
        chains = [
            Chain(tuple(found.edge(tuple(at)) for at in chain["edges"]), chain["relevance"])
            for chain in facts["chains"]
        ]
        return replace(found, chains=tuple(chains))

    def to_mib(self) -> dict[str, Any]:
        """It in the form of the MIB benchmark's circuit track: all nodes and edges with scores and ``in_graph``."""
        flat, shares = (
            table.flatten(2) if table.ndim > 2 else table[:, :, None] for table in (self.inside, self.relevance)
        )
        return mib_facts(MibNames(self.writers, self.readers), flat.any(2), shares.sum(2))

    @classmethod
    def from_mib(cls, facts: Mapping[str, Any], like: Any) -> Circuit:
        """A circuit of the MIB benchmark in the network of ``like``, which is another circuit or ``R.direct()``.

        Its mass is not known before ``R.circuit(edges=...)`` asks for it; scores of others are taken as they are.
        """
        writers, readers = tuple(like.writers), tuple(like.readers)
        inside, scores = mib_marks(MibNames(writers, readers), (len(writers), len(readers)), facts)
        return cls(writers, readers, inside, scores * inside, model=getattr(like, "model", ""))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes it as JSON; the file is replaced as a whole or not at all."""
        with replacing(Path(path)) as new:
            new.write_text(json.dumps(self.to_json()))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Circuit:
        """Reads what :meth:`save` wrote."""
        try:
            facts = json.loads(Path(path).read_text())
        except (OSError, ValueError) as problem:
            raise ResultFileError(
                "a circuit cannot be read", where=str(path), got=f"{type(problem).__name__}: {problem}"
            ) from None
        return cls.from_json(facts if isinstance(facts, dict) else {})


# ---- ends and edges --------------------------------------------------------------------------------------------------


def possible_edges(writers: Ends, readers: Ends) -> Tensor:
    """Which pairs are edges, ``(writers, readers)``: those whose writer lies below its reader."""
    return torch.tensor([[w.crossing <= r.crossing for r in readers] for w in writers])


def node_name(end: StreamEnd) -> str:
    """The node of a writer or reader: queries, keys and values belong to their head."""
    return end.name if end.head is None else f"{end.name}.head({end.head})"


def names_of(circuit: Any) -> tuple[list[str], list[str]]:
    """The names of the writers and readers of a circuit or of a table of edges."""
    return [str(w) for w in circuit.writers], [str(r) for r in circuit.readers]


def refuse_others(mine: tuple[Ends, Ends, Tensor], other: Any, marks: Tensor) -> None:
    """Refuses edges of another network, or with positions where there are none.

    ``mine`` are writers, readers and their table; ``other`` has writers and readers as well, ``marks`` is its table.
    """
    here_names = ([str(w) for w in mine[0]], [str(r) for r in mine[1]])
    for word, here, there in zip(("writers", "readers"), here_names, names_of(other), strict=True):
        if here != there:
            pairs = itertools.zip_longest(here, there)
            first = next((a, b) for a, b in pairs if a != b)
            raise QuestionError(
                "these are edges of another network", got=f"{len(there)} {word}, first difference {first[1]!r}",
                expected=f"{len(here)} {word}, there {first[0]!r}",
                hint="a circuit fits every input of the network it was found in",
            )  # fmt: skip
    if mine[2].shape != marks.shape:
        raise QuestionError(
            "the positions of the circuits are not the same", got=str(tuple(marks.shape)),
            expected=str(tuple(mine[2].shape)),
            hint="positions=False finds edges for inputs of every length",
        )  # fmt: skip


def end_facts(end: StreamEnd) -> dict[str, Any]:
    """A writer or reader as plain numbers and texts."""
    return {
        "name": end.name, "kind": end.kind, "crossing": end.crossing, "node": end.site.node,
        "consumer": end.site.consumer, "port": end.site.port, "head": end.head, "heads": end.heads,
    }  # fmt: skip


def read_end(facts: Mapping[str, Any]) -> StreamEnd:
    """A writer or reader from what :func:`end_facts` says of it."""
    heads = None if facts["heads"] is None else (int(facts["heads"][0]), int(facts["heads"][1]))
    site = Site(facts["node"], facts["consumer"], facts["port"])
    return StreamEnd(facts["name"], facts["kind"], facts["crossing"], site, facts["head"], heads)
