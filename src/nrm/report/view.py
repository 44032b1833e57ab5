"""A view: everything that a report or the explorer shows of one prediction, as plain data.

A view is built in steps, each a part of the whole: facts and heat map first, then columns and ribbons, flows, maps of
nodes, and the certificate. The report takes all of them, the explorer shows each as soon as it is there.
"""

from __future__ import annotations

import platform
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from nrm._version import __version__
from nrm.errors import NrmWarning, QuestionError
from nrm.measure.labels import name_of
from nrm.measure.show import SIGN, options_text, output_text
from nrm.plot.columns import Choice, read_choice
from nrm.plot.pictures import Array
from nrm.questions import query
from nrm.questions.formula import Formula
from nrm.questions.values import Set
from nrm.report.columns import Shown, arrange, joint, questions, read_columns, read_picks, read_tables, ways
from nrm.report.health import health
from nrm.report.pictures import SMALL, Canvas, read_canvas
from nrm.report.script import script

if TYPE_CHECKING:
    from nrm.measure import Measure

SCHEMA = 1
NODES, FLOWS, ALTERNATIVES, RIBBONS = 8, 6, 5, 4
"""How many nodes a column has, how many flows and other classes are listed, and how many ribbons of two neighbouring
columns have heat maps in a report."""
EFFORT = 6.0
"""How many forward passes the search for flows may take."""

Part = dict[str, Any]


class View:
    """The parts of a view of one sample's measure.

    ``layers`` are names, ``(name, by)``, layers or partitions (None: a handful along the network); ``nodes`` is how
    many blocks of each are shown; ``image`` is drawn under the heat maps instead of the input; ``title`` and
    ``opening`` (the lines of the script that make ``model`` and ``inputs``) are words of the caller.
    """

    def __init__(
        self, R: Measure, *, layers: Sequence[Any] | None = None, nodes: int = NODES, coverage: float | None = None,
        flows: int = FLOWS, image: Any = None, title: str | None = None, opening: str | None = None,
    ) -> None:  # fmt: skip
        if len(R) != 1:
            raise QuestionError("a view shows one sample", got=f"{len(R)} samples", hint="R.sample(0).report(...)")
        self.R = R
        self.choice: Choice = read_choice(nodes, coverage)
        self.canvas: Canvas = read_canvas(R, image)
        self._layers, self._flows = layers, flows
        self._title, self._opening = title, opening
        self._columns: list[Shown] | None = None
        self._tables: list[Array] = []

    # ---- parts -----------------------------------------------------------------------------------------------

    def facts(self) -> Part:
        """What was decided, the heat map of it, and the layers of the network."""
        R, canvas = self.R, self.canvas
        heat = canvas.pack(R(canvas.variable)[0], None)
        layers = [
            {"name": r.name, "shape": list(r.shape), "kind": r.kind, "mass": r.mass[0], "bypassed": r.bypassed,
             "ways": ways(R, r)}
            for r in R.layers
        ]  # fmt: skip
        return {
            "schema": SCHEMA, "title": self._title or "", "picture": canvas.picture, "heat": heat,
            "decision": self._decision(), "layers": layers, "options": options_text(R._network),
            "versions": {"nrm": __version__, "torch": torch.__version__, "python": platform.python_version()},
        }  # fmt: skip

    def _decision(self) -> Part:
        """The explained output, the largest ones, and what sign means here."""
        R = self.R
        target, sample = R._target, R._samples[0]
        value = float(R.value[0])
        decision: Part = {"value": value, "index": None, "alternatives": [], "sign": SIGN if value < 0 else None}
        if target.index is None:
            return {**decision, "name": str(target.spread)}
        flat = int(target.index[sample])
        decision["name"] = output_text(target, R.labels, flat, 0)
        if not target.shape:
            return decision
        width = target.shape[-1]
        scores = R.values("output")[0].double().reshape(-1, width)[flat // width]
        shares = scores if float(scores.min()) >= 0 and abs(float(scores.sum()) - 1) < 1e-3 else scores.softmax(0)
        best = list(dict.fromkeys([*scores.topk(min(ALTERNATIVES, width)).indices.tolist(), flat % width]))
        decision["index"], decision["classes"] = flat % width, width
        decision["alternatives"] = [
            {"index": i, "name": name_of(R.labels, "output", i) or f"output {i}", "value": float(scores[i]),
             "probability": float(shares[i])}
            for i in best
        ]  # fmt: skip
        return decision

    @property
    def columns(self) -> list[Shown]:
        """The columns, with their nodes by relevance."""
        if self._columns is None:
            self._columns = read_columns(self.R, read_picks(self._layers, self.R), self.choice, self.canvas.tokens)
        return self._columns

    def cost(self) -> Part:
        """What the ribbons will take, in forward passes."""
        plans = [self.R.plan(*pair) for pair in questions(self.columns)]
        return {"passes": sum(p.flops for p in plans) / max(plans[0].forward, 1.0) if plans else 0.0}

    def network(self, tell: Callable[[str], None] = lambda _: None) -> Part:
        """Columns of nodes, and the joint relevances of the nodes of neighbouring ones."""
        tables = []
        for n, table in enumerate(read_tables(self.R, self.columns)):
            tables.append(table)
            tell(f"ribbons {n + 1} of {len(self.columns) - 1}")
        self._columns, self._tables = arrange(self.columns, tables)
        return {
            "columns": [_column(s) for s in self._columns],
            "tables": [t.tolist() for t in self._tables],
            "script": script(self.R, self.canvas, self._columns, self.choice.nodes, self._opening),
        }

    def flows(self) -> Part:
        """The strongest chains of shown blocks, one of every column, with their maps."""
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
            listed.append(self.selection(list(enumerate(places)), share=flow.relevance))
        return {"flows": listed, "certified": found.certified[0]}

    def selection(
        self, chosen: Sequence[tuple[int, int]], longest: int | None = SMALL, share: float | None = None
    ) -> Part:
        """One node of some columns: their joint relevance, its shares given each of them, and its map."""
        events = [(self.columns[c], n) for c, n in chosen]
        share = self._share(chosen) if share is None else share
        given = []
        for c, n in chosen if len(chosen) > 1 else ():
            whole = self._share([(c, n)])
            given.append({"column": c, "node": n, "share": share / whole if whole else 0.0})
        heat = self.canvas.pack(joint(self.R, [self.canvas.variable], events), longest)
        return {"nodes": [list(at) for at in chosen], "share": share, "given": given, "map": heat}

    def _share(self, chosen: Sequence[tuple[int, int]]) -> float:
        """The joint relevance of nodes; that of one, or of two neighbours, is known."""
        (c, n), *others = chosen
        if not others:
            return self.columns[c].column.nodes[n].share
        if len(others) == 1 and others[0][0] == c + 1 and self._tables:
            return float(self._tables[c][n, others[0][1]])
        return float(joint(self.R, [], [(self.columns[c], n) for c, n in chosen]))

    def formula(self, text: str, names: Mapping[str, Sequence[Set]]) -> Formula:
        """The event that a text says, with names for lists of sets (any of them)."""
        return query(text, dict(names))

    def region(self, box: Sequence[int]) -> Set:
        """The part of the input inside a box of the canvas: left, top, right, bottom; of a text: first, last."""
        mask = torch.zeros(self.canvas.shape, dtype=torch.bool)
        if len(box) != 2 * len(self.canvas.shape):
            raise QuestionError("the region does not fit the input", got=str(list(box))[:80])
        if len(box) == 4:
            mask[box[1] : box[3], box[0] : box[2]] = True
        else:
            mask[box[0] : box[1]] = True
        if not bool(mask.any()):
            raise QuestionError("the region is empty", got=str(list(box))[:80])
        layer, shape = self.canvas.layer, self.R.values(self.canvas.layer).shape[1:]
        if self.canvas.variable == layer:
            return layer.where(mask.reshape(shape))
        return layer.where(mask if self.canvas.kind == "image" else mask[:, None].expand(shape))

    def passes(self, event: Formula) -> float:
        """What the map of an event will take, in forward passes."""
        plan = self.R.plan(self.canvas.variable, event)
        return plan.flops / max(plan.forward, 1.0)

    def event(self, event: Formula, longest: int | None = None) -> Part:
        """The relevance of a formula, with its map."""
        share, heat = float(self.R(event)[0]), self.R(self.canvas.variable, event)[0]
        return {"nodes": [], "share": share, "given": [], "map": self.canvas.pack(heat, longest)}

    def maps(self) -> Iterator[Part]:
        """The maps of all nodes, and of the strongest ribbons of each two columns, one by one."""
        for c, shown in enumerate(self.columns):
            for n in range(len(shown.column.nodes)):
                yield self.selection([(c, n)])
        for c, table in enumerate(self._tables):
            for at in np.argsort(-np.abs(table), axis=None, kind="stable")[:RIBBONS]:
                a, b = divmod(int(at), table.shape[1])
                yield self.selection([(c, a), (c + 1, b)])

    def health(self) -> Part:
        """The certificate in plain words."""
        return {"health": health(self.R.check(strict=False))}

    def whole(self, tell: Callable[[str], None] = lambda _: None) -> Part:
        """All parts together: what a report holds."""
        view = self.facts()
        for name, step in (
            ("network", lambda: self.network(tell)), ("flows", self.flows), ("certificate", self.health),
            ("maps", lambda: {"maps": list(self.maps())}),
        ):  # fmt: skip
            tell(name)
            view |= step()
        return view


def _column(shown: Shown) -> Part:
    column, pick = shown.column, shown.pick
    nodes = [
        {"kind": n.kind, "block": n.block, "text": n.text, "share": n.share, "height": n.height} for n in column.nodes
    ]
    what = column.what.replace("groups", pick.by)
    return {"name": column.name, "what": what, "by": pick.by, "mass": column.mass, "absolute": column.absolute,
            "nodes": nodes}  # fmt: skip
