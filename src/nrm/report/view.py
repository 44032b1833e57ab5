"""A view: everything that a report or the explorer shows of one prediction, as plain data.

A view is built in steps, each a part of the whole: facts and heat map first, then columns and ribbons, flows, maps of
nodes, and the certificate. The report takes all of them, the explorer shows each as soon as it is there.
"""

from __future__ import annotations

import base64
import platform
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from nrm._version import __version__
from nrm.errors import NrmWarning, QuestionError
from nrm.largest import best_first
from nrm.measure import options_text
from nrm.plot import Array, FlowPicture, NodeChoice, join_columns, read_choice
from nrm.questions import Formula
from nrm.report.columns import (
    NodeChain,
    Shown,
    joint,
    order_nodes,
    questions,
    read_chain,
    read_columns,
    read_picks,
    read_tables,
    ways,
    ways_of,
)
from nrm.report.decision import decide, switch_off
from nrm.report.examples import read_references
from nrm.report.health import health
from nrm.report.named import named_parts
from nrm.report.pictures import SMALL, Canvas, pack_map, read_canvas
from nrm.report.regions import Region, read_region
from nrm.report.script import Script
from nrm.report.story import tell

if TYPE_CHECKING:
    from nrm.measure import Check, Measure

SCHEMA = 1
NODES, FLOWS, RIBBONS = 8, 6, 4
"""How many nodes a column has, how many flows are listed, and how many ribbons of two columns have maps in a report."""
EFFORT = 6.0
"""How many forward passes the search for flows may take."""

ViewPart = dict[str, Any]


class View:
    """The parts of a view of one sample's measure.

    ``layers`` are names, ``(name, by)``, layers or partitions (None: a handful along the network); ``nodes`` is how
    many blocks of each are shown; ``image`` is drawn under the heat maps instead of the input; ``title`` and
    ``opening`` (the lines of the script that make ``model`` and ``inputs``) are words of the caller; ``store`` (what
    ``nrm.relmax`` gave, or its folder) and ``dataset`` show samples in which a node or a pair counts most; ``names``
    are nodes of the model by name (:func:`nrm.report.node_names`), ``sets`` named parts of this input.
    """

    def __init__(
        self, R: Measure, *, layers: Sequence[Any] | None = None, nodes: int = NODES, coverage: float | None = None,
        flows: int = FLOWS, image: Any = None, title: str | None = None, opening: str | None = None,
        store: Any = None, dataset: Any = None, names: Mapping[str, str] | None = None,
        sets: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:  # fmt: skip
        if len(R) != 1:
            raise QuestionError("a view shows one sample", got=f"{len(R)} samples", hint="R.sample(0).report(...)")
        self.R = R
        self.choice: NodeChoice = read_choice(nodes, coverage)
        self.canvas: Canvas = read_canvas(R, image)
        self._layers, self._flows = layers, flows
        self._title, self._opening = title, opening
        self._references = read_references(R, store, dataset)
        self._columns: list[Shown] | None = None
        self.annotate(names or {}, sets or {})
        self.certificate: Check | None = None
        self._tables: list[Array | None] = []
        self._known: dict[tuple[Any, int | None], ViewPart] = {}

    def __repr__(self) -> str:
        return f"a view of {self._title or 'one prediction'}, {self.choice.nodes} blocks of each layer"

    def annotate(self, names: Mapping[str, str], sets: Mapping[str, Mapping[str, Any]]) -> None:
        """Gives nodes and parts of the input their names, before columns are asked for."""
        self.named = named_parts(self.R, self.canvas, names, sets)

    # ---- parts -----------------------------------------------------------------------------------------------

    def facts(self) -> ViewPart:
        """What was decided, the heat map of it, and the layers of the network."""
        R, canvas = self.R, self.canvas
        heat = self._packed(lambda variable: R(variable)[0], None)
        layers = [
            {"name": r.name, "shape": list(r.shape), "kind": r.kind, "mass": r.mass[0], "bypassed": r.bypassed,
             "ways": ways(R, r)}
            for r in R.layers
        ]  # fmt: skip
        return {
            "schema": SCHEMA, "title": self._title or "", "picture": canvas.picture, "heat": heat,
            "noun": canvas.noun, "sides": self._sides(heat["total"]), "decision": decide(R), "layers": layers,
            "options": options_text(R.inner.network),
            "versions": {"nrm": __version__, "torch": torch.__version__, "python": platform.python_version()},
            "health": None if R.inner.light is None else health(R.inner.light),
        }  # fmt: skip

    def _sides(self, total: float) -> dict[str, float]:
        """What of the decision is for it and against it in what is drawn, in biases, and anywhere else."""
        shares, biases = self.R(self.canvas.variable)[0].double(), self._biases()
        good, bad = float(shares.clamp(min=0).sum()), float(shares.clamp(max=0).sum())
        return {"for": good, "against": bad, "biases": biases, "elsewhere": 1 - total - biases}

    def _biases(self) -> float:
        """The share that begins at constants of the network."""
        light = self.R.inner.light
        return 0.0 if light is None else float(light.biases[0] + light.offsets[0])

    @property
    def columns(self) -> list[Shown]:
        """The columns, with their nodes by relevance."""
        if self._columns is None:
            picks = read_picks(self._layers, self.R)
            self._columns = read_columns(self.R, picks, self.choice, self.canvas.names, self.named)
        return self._columns

    def cost(self) -> ViewPart:
        """What the ribbons will take, in forward passes."""
        plans = [self.R.plan(*pair) for pair in questions(self.columns)]
        return {"passes": sum(p.flops for p in plans) / max(plans[0].forward, 1.0) if plans else 0.0}

    def layout(self) -> ViewPart:
        """Columns of nodes, without ribbons yet."""
        self._tables = [None] * (len(self.columns) - 1)
        cells = [shown.cells(self.R) for shown in self.columns]
        return {
            "columns": [_column(self.R, s) | _packed_cells(c) for s, c in zip(self.columns, cells, strict=True)],
            "tables": list(self._tables), "order": order_nodes(self.columns, self._tables),
            "named": [{"name": part.name, "made": dict(part.made), "own": part.own} for part in self.named],
            "script": self.script.view(), **tell(self.R, self.canvas, self.columns, cells, self._biases(), self.named),
        }  # fmt: skip

    def ribbons(self) -> Iterator[ViewPart]:
        """The joint relevances of the nodes of neighbouring columns, one table after the other."""
        for c, table in enumerate(read_tables(self.R, self.columns)):
            self._tables[c] = table
            yield {"table": {"at": c, "rows": table.tolist()}, "order": order_nodes(self.columns, self._tables)}

    def network(self) -> ViewPart:
        """Columns and ribbons together."""
        part = self.layout()
        for more in self.ribbons():
            part["order"] = more["order"]
        return part | {"tables": [None if t is None else t.tolist() for t in self._tables]}

    def drawn(self) -> FlowPicture:
        """Columns and ribbons as a picture has them, from the tables that are known; others are asked for now."""
        if not self._tables or any(table is None for table in self._tables):
            self.network()
        return join_columns([s.column for s in self.columns], [t for t in self._tables if t is not None])

    @property
    def script(self) -> Script:
        """The lines of Python that repeat the view."""
        return Script(self.R, self.canvas, self.columns, self.choice.nodes, self._opening)

    def flows(self) -> ViewPart:
        """The strongest chains of shown blocks, one of every column; their maps are those of selections."""
        columns = self.columns
        shown = [[i for i, n in enumerate(s.column.nodes) if n.kind == "block"] for s in columns]
        if not self._flows or not all(shown):
            return {"flows": [], "certified": True}
        parts = [s.groups[sorted(int(s.numbers[i] or 0) for i in own)] for s, own in zip(columns, shown, strict=True)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NrmWarning)  # what is not certified is said beside the list
            found = self.R.flows(*parts, k=self._flows, sign="abs", effort=EFFORT)
        listed = []
        for flow in found[0]:
            places = [s.numbers.index(at) for s, (_, at) in zip(columns, flow.blocks, strict=True)]
            chosen = list(enumerate(places))
            listed.append({"nodes": [list(at) for at in chosen], "share": flow.relevance})
        return {"flows": listed, "certified": found.certified[0]}

    def selection(self, chosen: Sequence[tuple[int, int]], longest: int | None = SMALL) -> ViewPart:
        """Chosen nodes, any of each column: their joint relevance, its shares given each column, and its map."""
        key = (tuple(sorted(chosen)), longest)
        if key not in self._known:
            self._known[key] = self._select(sorted(chosen), longest)
        return self._known[key]

    def _select(self, chosen: list[tuple[int, int]], longest: int | None) -> ViewPart:
        chain, columns = read_chain(self.columns, chosen), sorted({c for c, _ in chosen})
        heat = self._map(chain, longest)
        share = self._share(chosen, chain)
        given = []
        for c in columns if len(columns) > 1 else ():
            own = [(column, n) for column, n in chosen if column == c]
            whole = self._share(own, read_chain(self.columns, own))
            given.append({"nodes": [list(at) for at in own], "share": share / whole if whole else 0.0})
        return {
            "nodes": [list(at) for at in chosen], "share": share, "given": given, "map": heat,
            "script": self.script.selection(chosen),
        }  # fmt: skip

    def _share(self, chosen: Sequence[tuple[int, int]], chain: NodeChain) -> float:
        """The joint relevance of nodes; those of one column, and of two neighbours, are known."""
        by_column: dict[int, list[int]] = {}
        for c, n in chosen:
            by_column.setdefault(c, []).append(n)
        (c, nodes), *others = sorted(by_column.items())
        if not others:
            return sum(self.columns[c].column.nodes[n].share for n in nodes)
        table = self._tables[c] if self._tables and len(others) == 1 and others[0][0] == c + 1 else None
        if table is not None:
            return float(table[np.ix_(nodes, others[0][1])].sum())
        return float(joint(self.R, [], chain))

    def _map(self, chain: NodeChain, longest: int | None) -> ViewPart:
        """The heat map of a chain, with edges if it is one over a graph."""
        return self._packed(lambda variable: joint(self.R, [variable], chain), longest)

    def _packed(self, ask: Callable[[Any], Tensor], longest: int | None) -> ViewPart:
        packed = self.canvas.pack(ask(self.canvas.variable), longest)
        graph = self.canvas.graph
        if graph is not None and graph.along is not None:
            along: Array = ask(graph.along).double().cpu().numpy()
            packed["edges"] = pack_map(graph.on_lines(along), None)
        return packed

    def examples(self, chosen: Sequence[tuple[int, int]]) -> ViewPart | None:
        """Samples of a data set in which the chosen nodes count most; None if they are not known."""
        if self._references is None or not 1 <= len({c for c, _ in chosen}) == len(chosen) <= 2:
            return None
        nodes = [(self.columns[c], self.columns[c].column.nodes[n]) for c, n in chosen]
        if any(node.block is None for _, node in nodes):
            return None
        return self._references.of([shown.partition[node.block] for shown, node in nodes])

    def best(self) -> ViewPart:
        """The best sample of every channel that is shown, as its face; nothing where no data set is known."""
        found = {}
        for c, shown in enumerate(self.columns if self._references is not None else ()):
            for n, node in enumerate(shown.column.nodes):
                one = self.examples([(c, n)]) if shown.pick.by == "channels" and node.block is not None else None
                pictures = [hit["picture"] for hit in one["hits"] if hit["picture"] is not None] if one else []
                if pictures:
                    found[f"{c}:{n}"] = pictures[0]
        return {"best": found} if found else {}

    def region(self, made: Mapping[str, Any]) -> Region:
        """A part of the input that was drawn."""
        return read_region(self.canvas, made)

    def passes(self, event: Formula) -> float:
        """What the relevance and the map of an event will take, in forward passes."""
        plans = [self.R.plan(*asked) for asked in ((event,), (self.canvas.variable, event))]
        return sum(plan.flops for plan in plans) / max(plans[0].forward, 1.0)

    def event(self, event: Formula, longest: int | None = None) -> ViewPart:
        """The relevance of a formula, with its map."""
        share = float(self.R(event)[0])
        return {
            "nodes": [], "share": share, "given": [],
            "map": self._packed(lambda variable: self.R(variable, event)[0], longest),
        }  # fmt: skip

    def removal(
        self, chosen: Sequence[tuple[int, int]], value: str = "zero", other: Measure | None = None
    ) -> ViewPart:  # fmt: skip
        """What really happens without the chosen nodes, beside their relevance."""
        chosen = sorted(chosen)
        chain = read_chain(self.columns, chosen)
        if chain.avoided:
            raise QuestionError("what passes elsewhere cannot be removed", hint="choose nodes of the layer")
        found = switch_off(self.R, chain.events, value, other)
        return {"nodes": [list(at) for at in chosen], "removed": found, "script": self.script.removal(chosen, value)}

    def nodes(self) -> list[tuple[int, int]]:
        """All nodes, the largest first."""
        places = [(c, n) for c, s in enumerate(self.columns) for n in range(len(s.column.nodes))]
        return sorted(places, key=lambda at: -self.columns[at[0]].column.nodes[at[1]].height)

    def maps(self, flows: Sequence[ViewPart]) -> Iterator[ViewPart]:
        """The maps of all nodes, of the strongest ribbons of each two columns, and of chains, one by one."""
        for c, n in sorted(self.nodes()):
            yield self.selection([(c, n)])
        for c, table in enumerate(self._tables):
            assert table is not None, "maps come after the ribbons"
            for at in best_first(np.abs(table).ravel())[:RIBBONS]:
                a, b = divmod(int(at), table.shape[1])
                yield self.selection([(c, a), (c + 1, b)])
        for flow in flows:
            yield self.selection([(c, n) for c, n in flow["nodes"]])

    def health(self) -> ViewPart:
        """The certificate in plain words; ``certificate`` keeps it."""
        self.certificate = self.R.check(strict=False)
        return {"health": health(self.certificate)}

    def whole(self, tell: Callable[[str], None] = lambda _: None) -> ViewPart:
        """All parts together: what a report holds."""
        tell("the heat map")
        view = self.facts()
        tell("the flow through the layers")
        view |= self.network() | self.flows() | self.best()
        tell("the certificate")
        view |= self.health()
        tell("the maps of nodes and chains")
        count = len(self.nodes()) + RIBBONS * len(self._tables) + len(view["flows"])
        maps = self.R.inner.progress("heat maps")(self.maps(view["flows"]), count)
        view["maps"] = [self._with_examples(part) for part in maps]
        return view

    def _with_examples(self, part: ViewPart) -> ViewPart:
        found = self.examples([(c, n) for c, n in part["nodes"]])
        return part if found is None else {**part, "examples": found}


def _column(R: Measure, shown: Shown) -> ViewPart:
    column, pick = shown.column, shown.pick
    named = {min(members): (name, members) for name, members in shown.joined.items()}
    nodes = [
        {"kind": n.kind, "block": n.block, "text": n.text, "share": n.share, "height": n.height,
         **({"name": named[n.block][0], "members": named[n.block][1]} if n.block in named else {})}
        for n in column.nodes
    ]  # fmt: skip
    what = column.what.replace("groups", pick.by)
    return {
        "name": column.name, "layer": pick.layer, "what": what, "by": pick.by, "mass": column.mass,
        "absolute": column.absolute, "ways": ways_of(R, shown), "nodes": nodes,
    }  # fmt: skip


def _packed_cells(cells: Array | None) -> ViewPart:
    """The nodes of positions in bytes, 255 for none."""
    if cells is None:
        return {"cells": None}
    data = base64.b64encode(cells.astype(np.uint8).tobytes()).decode()
    return {"cells": {"shape": list(cells.shape), "data": data}}
