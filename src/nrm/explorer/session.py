"""What the explorer knows: the model, its inputs, the measures it has made, and the views that are looked at."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from torch import nn

from nrm.errors import QuestionError
from nrm.explorer.circuits import SessionCircuits, has_circuits
from nrm.explorer.items import Items
from nrm.explorer.notes import SessionNotes
from nrm.explorer.overview import SessionOverview
from nrm.explorer.reading import (
    OTHER_MODEL,
    GoneError,
    check_nodes,
    read_chosen,
    read_class,
    read_compared,
    read_layers,
    read_set,
    read_value,
    refuse_old,
)
from nrm.explorer.worker import PageJob, Worker
from nrm.explorer.writing import SessionWriting
from nrm.measure import Loop, Measure, measure
from nrm.plot import read_choice
from nrm.questions import query
from nrm.report import COLOURS, NODES, References, View, attention_layers, attention_maps, switch_off

LONG = 10.0
"""Seconds above which the page asks before it computes."""
AHEAD = 60.0
"""Seconds for which maps are computed before they are clicked."""
MEASURES, VIEWS = 4, 8
"""How many of them are kept."""
MOST_NODES, MOST_NAMES, MOST_SIDE = 32, 16, 448
"""Bounds of what a page may ask for, and the longest side of the maps it gets."""


class Session:
    """One model and everything that is asked about it. Questions are jobs of one worker."""

    def __init__(
        self, model: nn.Module, items: Items, labels: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None, references: References | None = None, other: nn.Module | None = None,
    ) -> None:  # fmt: skip
        self._model, self._other, self.items = model, other, items
        self._loop = Loop()
        self._labels = labels
        self._options = dict(options or {})
        self._references = references
        self.worker = Worker()
        self._given: dict[str, Measure] = {}
        self._measures: dict[tuple[str, int | None], tuple[Measure, float]] = {}
        self._views: dict[str, View] = {}
        self._latest: View | None = None
        self._pace = 0.0
        self.circuits = SessionCircuits(self.worker, self._view)
        self.writing = SessionWriting(self.worker, model, items, self._options)
        self.notes = SessionNotes(model, items, self._view)
        self.overview = SessionOverview(self.worker, items, self._once)
        self._deep: bool | None = None  # whether outputs have several axes

    @property
    def has_other(self) -> bool:
        """Whether there is another model to compare with."""
        return self._other is not None

    @property
    def classes(self) -> list[str]:
        """The names of the outputs."""
        return class_names(self._labels)

    @property
    def _reference(self) -> str:
        """What a script says about the reference of a contrast: a word is written out, all else is the reader's."""
        against = self._options.get("against")
        if against is None:
            return ""
        return f"\nreference = {against!r}" if isinstance(against, str) else "; reference: what it is compared with"

    # ---- questions of the page -------------------------------------------------------------------------------

    def view(self, question: Mapping[str, Any]) -> PageJob:
        """A view in parts: the heat map first, then columns, ribbons, comparison, certificate, chains, their maps.

        A view with layers of its own is told its price first where it is high; ``bare`` only brings one back.
        """
        item = self.items[question.get("item", "")]
        refuse_old(question)
        target, compared = read_class(question.get("target")), read_compared(question.get("compare"))
        if compared == OTHER_MODEL and self._other is None:
            raise QuestionError("there is no other model", hint="nrm.explore(model, data, other=checkpoint)")
        layers, nodes = read_layers(question.get("layers")), question.get("nodes", NODES)
        read_choice(nodes, None)
        if nodes > MOST_NODES:
            raise QuestionError("too many nodes", got=str(nodes), expected=f"at most {MOST_NODES}")
        agreed = question.get("agreed") is True or layers is None
        bare = question.get("bare") is True

        def work(job: PageJob) -> None:
            job.tell("running the network")
            R = self._measure(item.id, target)
            job.tell("the heat map")
            opening = f"# model: the network; inputs: {item.name!r}, a batch of one{self._reference}"
            view = View(R, layers=layers, nodes=nodes, title=item.name, opening=opening, store=self._references)
            self._keep(self._views, job.id, view, VIEWS)
            self._latest = view
            if bare:
                self.notes.annotate(item.id, view)
                return
            job.add({**view.facts(), "circuits": has_circuits(R), "colours": COLOURS})
            job.patient = True
            job.tell("the nodes of the layers")
            known = self.notes.annotate(item.id, view)
            job.add(view.layout() | known | {"attention": attention_layers(R)})
            if best := view.best():
                job.add(best)
            seconds = self._price(job, view.cost()["passes"], agreed)
            if seconds is not None:
                self._flow(job, view, seconds)
            if compared is not None:
                job.tell("the other class")
                job.add({"comparison": self._compare(view, item.id, compared, job)})
            job.tell("the certificate")
            job.add(view.health())
            if seconds is not None:
                self._chains(job, view)
            job.add({"ahead": self.worker.submit_idle(lambda idle: self._look_ahead(idle, view)).id})

        return self.worker.submit(work)

    def _flow(self, job: PageJob, view: View, seconds: float) -> None:
        job.tell("ribbons between the layers", seconds)
        for part in view.ribbons():
            job.add(part)

    def _chains(self, job: PageJob, view: View) -> None:
        job.tell("the strongest chains")
        flows = view.flows()
        job.add(flows)
        for n, flow in enumerate(flows["flows"], 1):
            job.tell(f"the map of chain {n} of {len(flows['flows'])}")
            job.add({"maps": [view.selection([(c, k) for c, k in flow["nodes"]], MOST_SIDE)]})

    def _look_ahead(self, job: PageJob, view: View) -> None:
        """The maps of nodes before they are clicked, for their faces, as long as nobody asks for anything else."""
        end = time.monotonic() + AHEAD
        for at in view.nodes():
            if view is not self._latest or time.monotonic() > end:
                return
            found = view.examples([at])
            job.add({"maps": [view.selection([at], MOST_SIDE) | ({} if found is None else {"examples": found})]})

    def selection(self, question: Mapping[str, Any]) -> PageJob:
        """The joint relevance of chosen nodes of a view, with its map, and samples in which they count most."""
        view = self._view(question)
        chosen = read_chosen(question.get("nodes"))

        def work(job: PageJob) -> None:
            check_nodes(view, chosen)
            job.tell("the heat map of this selection")
            job.add(view.selection(chosen, MOST_SIDE))
            job.tell("samples in which this counts most")
            found = view.examples(chosen)
            if found is not None:
                job.add({"examples": found})

        return self.worker.submit(work)

    def attention(self, question: Mapping[str, Any]) -> PageJob:
        """What every head of a layer carries from token to token."""
        view, layer = self._view(question), question.get("layer")
        if not isinstance(layer, str):
            raise QuestionError("not a layer", got=repr(layer)[:80], expected="the name of a layer with attention")

        def work(job: PageJob) -> None:
            job.tell("from token to token")
            job.add({"heads": attention_maps(view.R, layer)})

        return self.worker.submit(work)

    def removal(self, question: Mapping[str, Any]) -> PageJob:
        """What really happens without chosen nodes, or without a part of the input: the network is run again."""
        view, value = self._view(question), read_value(question.get("value", "zero"))
        part = question.get("part")
        chosen = None if part is not None else read_chosen(question.get("nodes"))
        other = self.items[question.get("other", "")] if value == "other" else None

        def work(job: PageJob) -> None:
            job.tell("the network without these neurons")
            there = None if other is None else self._measure(other.id, None)
            if chosen is None:
                events = read_set(view, part).sets
                share = sum(float(view.R(event)[0]) for event in events)
                job.add({"share": share, "removed": switch_off(view.R, events, value, there)})
                return
            check_nodes(view, chosen)
            job.add(view.removal(chosen, value, there))

        return self.worker.submit(work)

    def formula(self, question: Mapping[str, Any]) -> PageJob:
        """The relevance of a formula with named sets, each some nodes of the view or a region of its input."""
        view, text, names = self._view(question), question.get("text"), question.get("sets")
        if not isinstance(text, str) or not isinstance(names, dict) or len(names) > MOST_NAMES:
            raise QuestionError("not a formula", expected="a text, and sets by name")
        agreed, only = question.get("agreed") is True, question.get("price") is True

        def work(job: PageJob) -> None:
            made = {str(name): read_set(view, one) for name, one in names.items()}
            event = query(text, {name: one.sets for name, one in made.items()})
            passes = view.passes(event)
            if only:
                job.add({"price": self._cost(passes)})
                return
            seconds = self._price(job, passes, agreed)
            if seconds is not None:
                job.tell("the walks of this formula", seconds)
                lines = view.script.formula(text, {name: one.lines for name, one in made.items()})
                job.add({**view.event(event, MOST_SIDE), "formula": text, "script": lines})

        return self.worker.submit(work)

    def _price(self, job: PageJob, passes: float, agreed: bool) -> float | None:
        """How many seconds so many forward passes are likely to take; too many are told, and not begun."""
        cost = self._cost(passes)
        if passes * self._pace > LONG and not agreed:
            job.add({"price": cost})
            return None
        return float(passes * self._pace)

    def _cost(self, passes: float) -> dict[str, float]:
        return {"passes": round(passes, 1), "seconds": round(passes * self._pace, 1)}

    def _view(self, question: Mapping[str, Any]) -> View:
        try:
            return self._views[question.get("view", "")]
        except (KeyError, TypeError):
            raise GoneError("this view is not there any more", hint="ask for it again") from None

    # ---- measures --------------------------------------------------------------------------------------------

    def know(self, number: int, R: Measure) -> None:
        """A measure that is there already, of an input that is listed (or of one without inputs of its own)."""
        ids = [entry["id"] for entry in self.items.listed()]
        id = ids[number] if number < len(ids) else self.items.name(f"sample {number}")
        self._given[id] = R

    def _measure(self, id: str, target: int | None) -> Measure:
        """The measure of an input; the time that a forward pass takes is noted, roughly."""
        if target is None and id in self._given:
            return self._given[id]
        found = self._measures.get((id, target))
        if found is None:
            loaded = self.items[id].load()
            labels = {**(self._labels or {}), **loaded.labels}
            options = {"target": self._place(id, target), "labels": labels, "progress": False, **self._options}
            begin = time.perf_counter()
            R = self._loop.measure(self._model, loaded.inputs, **options)
            found = (R if len(R) == 1 else R.sample(0), time.perf_counter() - begin)
            self._deep = not isinstance(R.target, str) and R.target.ndim > 1
        self._keep(self._measures, (id, target), found, MEASURES)
        self._pace = found[1]
        return found[0]

    def _once(self, id: str, job: PageJob) -> Measure:
        """The measure of an input for a glance: one that is known, or one that is not kept."""
        if id in self._given:
            return self._given[id]
        found = self._measures.get((id, None))
        if found is not None:
            return found[0]
        loaded = self.items[id].load()
        options = {"labels": {**(self._labels or {}), **loaded.labels}, "progress": False, **self._options}
        job.patient = False  # a capture is not to be interrupted by another
        R = self._loop.measure(self._model, loaded.inputs, **options)
        job.patient = True
        return R if len(R) == 1 else R.sample(0)

    def _place(self, id: str, target: int | None) -> Any:
        """A class as a target; where outputs have several axes, it is one at the place of the prediction."""
        if target is None or self._deep is False:
            return target
        predicted = self._measure(id, None).target
        if isinstance(predicted, str) or predicted.ndim == 1:
            return target
        return (*predicted[0].tolist()[:-1], target)

    def _compare(self, view: View, id: str, compared: int | str, job: PageJob) -> dict[str, Any]:
        """The heat map of another class, or of another model, beside the view's: the difference, and the same nodes."""
        job.patient = False  # a capture is not to be interrupted by another
        other = self._measure(id, compared) if isinstance(compared, int) else self._measure_other(view.R, id)
        job.patient = True
        canvas = view.canvas
        maps = [R(canvas.variable)[0] for R in (view.R, other)]
        shares = []
        for shown in view.columns:
            # Each class has all the relevance of its own output.
            output = shown.column.name in ("output", other.layers[-1].name)
            own = [None if output else shown.event(n) for n in range(len(shown.numbers))]
            inside = [0.0 if event is None else float(other(event)) for event in own]
            whole = 0.0 if output else 1 - float(other(shown.partition.layer.all))
            shares.append([whole if event is None else share for event, share in zip(own, inside, strict=True)])
        names = [self._name(R) for R in (view.R, other)]
        if compared == OTHER_MODEL:
            names = [f"{names[0]}, this model", f"{names[1]}, the other model"]
        return {
            "names": names, "values": [float(R.value[0]) for R in (view.R, other)],
            "heat": canvas.pack(maps[1], None),
            "difference": canvas.pack(maps[0] - maps[1], None), "shares": shares,
        }  # fmt: skip

    def _measure_other(self, R: Measure, id: str) -> Measure:
        """The measure of the same output of the same input in the other model."""
        assert self._other is not None
        loaded = self.items[id].load()
        target: Any = R.target
        if not isinstance(target, str):
            place = target.reshape(len(target), -1)[0].tolist() if R.inner.target.shape else []
            target = None if not place else place[0] if len(place) == 1 else tuple(place)
        options = {"target": target, "labels": {**(self._labels or {}), **loaded.labels}, "progress": False}
        made = measure(self._other, loaded.inputs, **{**options, **self._options})
        return made if len(made) == 1 else made.sample(0)

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


def class_names(labels: Mapping[str, Any] | None) -> list[str]:
    """The names of the outputs among labels by layer."""
    names = (labels or {}).get("output", ())
    if isinstance(names, Mapping):
        return [str(names.get(i, i)) for i in range(max(map(int, names), default=-1) + 1)]
    return [str(name) for name in names]
