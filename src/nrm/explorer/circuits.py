"""Circuits in the explorer: found for a view, measured and patched where the page asks for it, their nodes named."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

from nrm.capture import find_stream
from nrm.errors import NrmWarning, QuestionError
from nrm.explorer.reading import GoneError
from nrm.explorer.worker import PageJob, Worker
from nrm.largest import largest
from nrm.measure import Measure
from nrm.report import CircuitView, View, name_node, names_file

KEPT = 4
"""How many circuits are remembered."""
MOST_MASS, LISTED, LONGEST = 3.0, 8, 400
"""The largest mass that is looked for, how many pairs of tokens of a head are listed, and letters of a node's name."""

Question = Mapping[str, Any]


def has_circuits(R: Measure) -> bool:
    """Whether a measure is a contrast whose network has a residual stream."""
    return R.inner.tape.runs is not None and find_stream(R.inner.tape) is not None


class SessionCircuits:
    """The circuits of a session; ``view`` finds the view that a question is about."""

    def __init__(self, worker: Worker, view: Callable[[Question], View]) -> None:
        self._worker, self._view = worker, view
        self._known: dict[str, tuple[CircuitView, Measure]] = {}

    def find(self, question: Question) -> PageJob:
        """The circuit of a mass, with smaller ones inside it."""
        view, mass, along = self._view(question), _read_mass(question.get("mass")), question.get("positions") is True

        def work(job: PageJob) -> None:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always", NrmWarning)
                job.tell("the circuit")
                circuit = view.R.circuit(mass=mass, positions=along)
                job.tell("smaller circuits inside it")
                tokens = [piece["text"] for piece in view.canvas.picture.get("tokens", ())]
                fits = along and len(tokens) == circuit.inside.shape[-1]
                made = CircuitView(circuit, view.R, labels=tokens if fits else None)
                whole = made.whole()
            self._known[job.id] = made, view.R
            while len(self._known) > KEPT:
                del self._known[next(iter(self._known))]
            texts = [str(one.message) for one in said if issubclass(one.category, NrmWarning)]
            job.add({"circuit": {**whole, "home": str(names_file(circuit.model))}, "notes": texts})

        return self._worker.submit(work)

    def patch(self, question: Question) -> PageJob:
        """How much of the difference comes back with a size, or what is lost without a node: the network is run."""
        made, _ = self._circuit(question)
        step, node = question.get("step"), question.get("node")

        def work(job: PageJob) -> None:
            if node is not None:
                job.tell("the network without this node")
                job.add({"patched": made.patched([str(node)[:LONGEST]])})
                return
            if type(step) is not int or not 0 <= step < len(made.nested):
                raise QuestionError("no such size", got=repr(step)[:80], expected=f"0 to {len(made.nested) - 1}")
            job.tell("the network with this circuit alone")
            job.add({"f": {"step": step, "value": made.measured([step])[0]}})

        return self._worker.submit(work)

    def attend(self, question: Question) -> PageJob:
        """The pairs of tokens between which a head moves most."""
        made, R = self._circuit(question)
        heads = {str(writer): writer for writer in made.circuit.writers if writer.kind == "head"}
        head = heads.get(str(question.get("node")))
        if head is None:
            raise QuestionError("no head of this circuit", got=repr(question.get("node"))[:80])

        def work(job: PageJob) -> None:
            job.tell("from token to token")
            table = R(R[head.name].edges)[0, head.head]
            columns = table.shape[-1]
            best = [divmod(n, columns) for n in largest(table.abs().flatten(), LISTED).tolist()]
            rows = [{"query": q, "key": k, "share": float(table[q, k])} for q, k in best if bool(table[q, k] != 0)]
            job.add({"attention": {str(head): rows}})

        return self._worker.submit(work)

    def name(self, question: Question) -> dict[str, Any]:
        """Gives a node of a circuit a name, which is kept with the model."""
        made, _ = self._circuit(question)
        node, name = question.get("node"), question.get("name")
        if not isinstance(node, str) or node not in {str(writer) for writer in made.circuit.writers}:
            raise QuestionError("no node of this circuit", got=repr(node)[:80])
        if not isinstance(name, str):
            raise QuestionError("not a name", got=repr(name)[:80], expected="a text")
        return {"names": name_node(made.circuit, node, name), "home": str(names_file(made.circuit.model))}

    def _circuit(self, question: Question) -> tuple[CircuitView, Measure]:
        try:
            return self._known[question.get("circuit", "")]
        except (KeyError, TypeError):
            raise GoneError("this circuit is not there any more", hint="find it again") from None


def _read_mass(given: Any) -> float:
    if isinstance(given, bool) or not isinstance(given, int | float) or not 0 < given <= MOST_MASS:
        raise QuestionError("the mass of a circuit", got=repr(given)[:80], expected=f"above 0, at most {MOST_MASS:g}")
    return float(given)


__all__ = ["SessionCircuits", "has_circuits"]
