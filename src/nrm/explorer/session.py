"""What the explorer knows: the model, its inputs, the measures it has made, and the views that are looked at."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from torch import nn

from nrm.errors import QuestionError
from nrm.explorer.items import Items
from nrm.explorer.worker import Job, Worker
from nrm.measure import Measure, measure
from nrm.plot.columns import read_choice
from nrm.questions.values import Set
from nrm.report.columns import BY
from nrm.report.page import COLOURS
from nrm.report.view import NODES, View

LONG = 10.0
"""Seconds above which the page asks before it computes."""
MEASURES, VIEWS = 4, 8
"""How many of them are kept."""
MOST_NODES, MOST_COLUMNS, MOST_NAMES, MOST_SIDE = 32, 12, 16, 448
"""Bounds of what a page may ask for, and the longest side of the maps it gets."""


class Session:
    """One model and everything that is asked about it. Questions are jobs of one worker."""

    def __init__(self, model: nn.Module, items: Items, labels: Any = None, options: Mapping[str, Any] | None = None):
        self._model, self.items = model, items
        self._labels = labels if labels is None or isinstance(labels, Mapping) else {"output": labels}
        self._options = dict(options or {})
        self.worker = Worker()
        self._measures: dict[tuple[str, int | None], tuple[Measure, float]] = {}
        self._views: dict[str, View] = {}
        self._pace = 0.0

    @property
    def classes(self) -> list[str]:
        """The names of the outputs."""
        names = (self._labels or {}).get("output", ())
        if isinstance(names, Mapping):
            return [str(names.get(i, i)) for i in range(max(map(int, names), default=-1) + 1)]
        return [str(name) for name in names]

    # ---- questions of the page -------------------------------------------------------------------------------

    def view(self, question: Mapping[str, Any]) -> Job:
        """A view in parts: facts, comparison, columns and ribbons, certificate, chains."""
        item = self.items[question.get("item", "")]
        target, against = (_class(question.get(name)) for name in ("target", "against"))
        layers, nodes = _layers(question.get("layers")), question.get("nodes", NODES)
        read_choice(nodes, None)
        if nodes > MOST_NODES:
            raise QuestionError("too many nodes", got=str(nodes), expected=f"at most {MOST_NODES}")
        agreed = question.get("agreed") is True

        def work(job: Job) -> None:
            job.tell("running the network")
            R, pace = self._measure(item.id, target)
            view = View(R, layers=layers, nodes=nodes, title=item.name)
            self._keep(self._views, job.id, view, VIEWS)
            job.tell("the heat map")
            job.add({**view.facts(), "colours": COLOURS})
            job.tell("the layers and their nodes")
            passes = view.cost()["passes"]
            if passes * pace > LONG and not agreed:
                job.add({"price": {"passes": round(passes, 1), "seconds": round(passes * pace)}})
                return
            job.tell(f"ribbons, about {passes:.1f} forward passes")
            job.add(view.network(job.tell))
            if against is not None:
                job.tell("the other class")
                job.add({"comparison": self._compare(view, item.id, against)})
            job.tell("the certificate")
            job.add(view.health())
            job.tell("the strongest chains")
            job.add(view.flows())

        return self.worker.submit(work)

    def selection(self, question: Mapping[str, Any]) -> Job:
        """The joint relevance of chosen nodes of a view, with its map."""
        view = self._view(question)
        chosen = _chain(question.get("nodes"))

        def work(job: Job) -> None:
            _check_nodes(view, chosen)
            job.tell("the heat map of this selection")
            job.add(view.selection(chosen, longest=MOST_SIDE))

        return self.worker.submit(work)

    def formula(self, question: Mapping[str, Any]) -> Job:
        """The relevance of a formula with named sets, each some nodes of the view or a region of its input."""
        view, text, names = self._view(question), question.get("text"), question.get("sets")
        if not isinstance(text, str) or not isinstance(names, dict) or len(names) > MOST_NAMES:
            raise QuestionError("not a formula", expected="a text, and sets by name")
        agreed = question.get("agreed") is True

        def work(job: Job) -> None:
            event = view.formula(text, {str(name): _sets(view, made) for name, made in names.items()})
            seconds = view.passes(event) * self._pace
            if seconds > LONG and not agreed:
                job.add({"price": {"passes": round(view.passes(event), 1), "seconds": round(seconds)}})
                return
            job.tell("the walks of this formula")
            job.add({**view.event(event, MOST_SIDE), "formula": text})

        return self.worker.submit(work)

    def _view(self, question: Mapping[str, Any]) -> View:
        try:
            return self._views[question.get("view", "")]
        except (KeyError, TypeError):
            raise QuestionError("this view is not there any more", hint="load the page again") from None

    # ---- measures --------------------------------------------------------------------------------------------

    def _measure(self, id: str, target: int | None) -> tuple[Measure, float]:
        """The measure of an input, and how many seconds a forward pass takes, roughly."""
        found = self._measures.get((id, target))
        if found is None:
            inputs = self.items[id].load()
            begin = time.perf_counter()
            options = {"target": target, "labels": self._labels, **self._options, "progress": self.worker.beat}
            R = measure(self._model, inputs, **options)
            found = (R if len(R) == 1 else R.sample(0), time.perf_counter() - begin)
        self._keep(self._measures, (id, target), found, MEASURES)
        self._pace = found[1]
        return found

    def _compare(self, view: View, id: str, against: int) -> dict[str, Any]:
        """The heat map of another class beside the view's, their difference, and the relevance of the same nodes."""
        other, _ = self._measure(id, against)
        canvas = view.canvas
        maps = [R(canvas.variable)[0] for R in (view.R, other)]
        shares = []
        for shown in view.columns:
            output = shown.column.name in (
                "output",
                other.layers[-1].name,
            )  # each class has all the relevance of its own output
            own = [None if output else shown.event(n) for n in range(len(shown.numbers))]
            inside = [0.0 if event is None else float(other(event)) for event in own]
            whole = 0.0 if output else 1 - float(other(shown.partition.layer.all))
            shares.append([whole if event is None else share for event, share in zip(own, inside, strict=True)])
        return {
            "names": [self._name(R) for R in (view.R, other)], "values": [float(R.value[0]) for R in (view.R, other)],
            "heat": canvas.pack(maps[1], None),
            "difference": canvas.pack(maps[0] - maps[1], None), "shares": shares,
        }  # fmt: skip

    def _name(self, R: Measure) -> str:
        index = R.target if isinstance(R.target, str) else int(R.target.flatten()[-1])
        return self.classes[index] if isinstance(index, int) and index < len(self.classes) else f"output {index}"

    @staticmethod
    def _keep(store: dict[Any, Any], key: Any, value: Any, most: int) -> None:
        """Puts a value last; the ones that were not used for longest go."""
        store.pop(key, None)
        store[key] = value
        while len(store) > most:
            del store[next(iter(store))]


def _class(given: Any) -> int | None:
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int):
        raise QuestionError("not a class", got=repr(given)[:80], expected="an integer or nothing")
    return given


def _layers(given: Any) -> list[tuple[str, str]] | None:
    if given is None:
        return None
    pairs = isinstance(given, list) and all(
        isinstance(p, list) and len(p) == 2 and all(isinstance(x, str) for x in p) and p[1] in BY for p in given
    )
    if not pairs or not 2 <= len(given) <= MOST_COLUMNS:
        raise QuestionError("not a choice of layers", got=repr(given)[:80], expected='[["name", "channels"], ...]')
    return [(name, by) for name, by in given]


def _chain(given: Any) -> list[tuple[int, int]]:
    pairs = isinstance(given, list) and all(
        isinstance(p, list) and len(p) == 2 and all(type(x) is int for x in p) for p in given
    )
    if not pairs or not given or len({c for c, _ in given}) < len(given):
        raise QuestionError("not a chain of nodes", got=repr(given)[:80], expected="[[column, node], ...]")
    return [(c, n) for c, n in given]


def _check_nodes(view: View, chosen: list[tuple[int, int]]) -> None:
    sizes = [len(shown.column.nodes) for shown in view.columns]
    if not all(0 <= c < len(sizes) and 0 <= n < sizes[c] for c, n in chosen):
        raise QuestionError("no such node", got=str(chosen)[:80])


def _sets(view: View, made: Any) -> list[Set]:
    """A named set of the page: nodes (any of them), or a region of the input."""
    if isinstance(made, dict) and "nodes" in made:
        chosen = _chain(made["nodes"])
        _check_nodes(view, chosen)
        events = [view.columns[c].event(n) for c, n in chosen]
        if None in events:
            raise QuestionError("what passes elsewhere is no set", hint="NOT a set of all the other nodes")
        return [event for event in events if event is not None]
    box = made.get("region") if isinstance(made, dict) else None
    if not isinstance(box, list) or not all(type(x) is int and x >= 0 for x in box):
        raise QuestionError("not a set", got=repr(made)[:80], expected="nodes, or a region of the input")
    return [view.region(box)]
