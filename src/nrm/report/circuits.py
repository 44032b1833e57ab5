"""The page of a circuit: its edges at growing sizes, what each size predicts, and what patching measures.

Sizes are nested: each is the part of the circuit with the strongest flows that is alive by itself, so that a slider
takes edges away and never exchanges them. The mass of every size needs the measure (or the model and its pairs).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from torch import Tensor, nn

from nrm._version import __version__
from nrm.errors import NrmError, NrmWarning, QuestionError
from nrm.evaluate import patch as patch_circuits, patch_nodes
from nrm.jobs import CircuitJob, TaskCircuit
from nrm.largest import largest
from nrm.measure import SATURATED, Average, Circuit, Measure, find_circuit, node_name
from nrm.plot import CircuitPicture, lay_out_circuit
from nrm.report.names import node_names
from nrm.report.page import Report, circuit_page
from nrm.tasks import Pairs

SCHEMA = 1
SIZES, FEWEST = 12, 4
"""How many sizes a page has, and about how many edges the smallest has."""

Page = dict[str, Any]
Contrast = Measure | Average


class CircuitView:
    """What the page of a circuit shows, as plain data.

    ``circuit`` is that of a measure or of a task. ``model`` is the contrast that it was found in, or the model with its
    ``pairs``: without them the page has one size only. ``sizes`` says how many, ``patch`` whether all of them are run
    in the network, and its nodes one by one. ``labels`` are the tokens of a circuit with positions, ``batch_size`` and
    ``options`` those of :func:`nrm.circuit`.
    """

    def __init__(
        self, circuit: Circuit | TaskCircuit, model: Contrast | nn.Module | None = None, pairs: Pairs | None = None, *,
        labels: Sequence[str] | None = None, sizes: int = SIZES, patch: bool = False, title: str | None = None,
        batch_size: int = 16, **options: Any,
    ) -> None:  # fmt: skip
        self._task = circuit if isinstance(circuit, TaskCircuit) else None
        self.circuit = circuit.circuit if isinstance(circuit, TaskCircuit) else circuit
        self._refuse(model, pairs, sizes, patch)
        self._model, self._pairs, self._labels, self._title = model, pairs, labels, title
        self._sizes, self._patch, self._batch, self._options = sizes, patch, batch_size, options

    def __repr__(self) -> str:
        return f"a view of a circuit of {len(self.circuit)} edges"

    def _refuse(self, model: Any, pairs: Any, sizes: int, patch: bool) -> None:
        if not len(self.circuit):
            raise QuestionError("the circuit is empty", got="no edge", expected="at least one edge")
        if not (model is None or isinstance(model, nn.Module | Contrast)):
            raise QuestionError("not a measure", got=type(model).__name__, expected="report(path, R)")
        if isinstance(model, nn.Module) and not isinstance(pairs, Pairs):
            raise QuestionError(
                "a model is measured on pairs", got="a model without pairs", expected="report(path, model, pairs)"
            )
        if patch and model is None:
            raise QuestionError(
                "a circuit is patched in its network", got="patch=True alone", expected="report(path, R, patch=True)",
                hint="report(path, model, pairs, patch=True) of a task",
            )  # fmt: skip
        if sizes < 1:
            raise QuestionError("not a number of sizes", got=f"sizes={sizes!r}", expected="1 or more")
        if model is None and self.circuit.mass is None:
            raise QuestionError(
                "the mass of this circuit is not known", got="a circuit that was joined or read from another form",
                expected="its measure: report(path, R)", hint="R.circuit(edges=this) computes it",
            )  # fmt: skip

    def whole(self) -> Page:
        """All of it."""
        circuits = self.nested
        largest_one = circuits[-1]
        picture = lay_out_circuit(largest_one, self._labels)
        number = {ribbon.at: n for n, ribbon in enumerate(picture.ribbons)}
        every = range(len(circuits))
        measured: Sequence[float | None] = self.measured(every) if self._patch else [None] * len(circuits)
        steps = [_step(one, number) | {"f": f} for one, f in zip(circuits, measured, strict=True)]
        biased = any(writer.kind == "constant" for writer in largest_one.writers)
        return {
            "kind": "circuit", "schema": SCHEMA, "title": self._title or "", "model": largest_one.model,
            "what": "output" if biased else "difference", "saturated": SATURATED, "possible": largest_one.possible,
            "nodes": [vars(node) for node in picture.nodes], "links": [list(link) for link in picture.links],
            "ribbons": [[r.low, r.high, r.read, r.relevance] for r in picture.ribbons],
            "columns": [list(c) for c in picture.columns], "rows": [list(r) for r in picture.rows],
            "width": picture.width, "height": picture.height, "steps": steps,
            "tokens": None if self._labels is None else [str(text) for text in self._labels],
            "patched": self.patched() if self._patch else {},
            "names": node_names(largest_one) if largest_one.model else {},
            "chains": _chains(self.circuit, picture), "facts": self._facts(),
        }  # fmt: skip

    @cached_property
    def nested(self) -> list[Circuit]:
        """Circuits of growing size, each a part of the next, the whole at the end."""
        find = self._finder()
        if find is None:
            return [self.circuit]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NrmWarning)  # the page says itself where networks saturate
            whole = _alive(find(self.circuit.inside))
            found = [_alive(find(marks)) for marks in _prefixes(whole, self._sizes)]
        by_size = {len(one): one for one in [*found, whole] if len(one)}
        return [by_size[size] for size in sorted(by_size)]

    def _finder(self) -> Callable[[Tensor], Circuit] | None:
        """What tells the mass and the flows of marked edges."""
        if self._model is None:
            return None
        if isinstance(self._model, nn.Module):
            assert self._pairs is not None
            job = CircuitJob(self._model, self._pairs, self._batch, None, "auto", self._options)
            parts = job.parts(False)
            return lambda marks: find_circuit(parts, edges=marks)
        R, along = self._model, self.circuit.inside.ndim > 2
        return lambda marks: R.circuit(edges=marks, positions=along)

    def measured(self, sizes: Sequence[int]) -> list[float]:
        """How much of the difference comes back with circuits of some sizes, the smallest first: the network is run."""
        chosen = [self.nested[n] for n in sizes]
        return list(patch_circuits(self._network, chosen, self._pairs, **self._more).f)

    def patched(self, nodes: Sequence[str] | None = None) -> dict[str, Page]:
        """What is lost when single nodes are taken from the reference; all of the circuit if none are named."""
        known = {node_name(w) for w in self.circuit.writers if w.kind != "constant"}
        names = [name for name in (self.nested[-1].nodes if nodes is None else nodes) if name in known]
        if not names:
            raise QuestionError("no node that can be patched", got=", ".join(nodes or ["none"])[:200])
        found = patch_nodes(self._network, self._pairs, nodes=names, **self._more)
        return {
            name: {"effect": float(effect), "relevance": float(share)}
            for name, effect, share in zip(found.nodes, found.effect, found.relevance, strict=True)
        }

    @property
    def _network(self) -> Measure | nn.Module:
        if self._model is None or isinstance(self._model, Average):
            got = "a circuit alone" if self._model is None else "a mean over several references"
            raise QuestionError(
                "a circuit is patched in its network", got=got, expected="its measure, of one reference"
            )
        return self._model

    @property
    def _more(self) -> dict[str, Any]:
        return {"batch_size": self._batch, **self._options} if isinstance(self._model, nn.Module) else {}

    def _facts(self) -> list[str]:
        """What a reader of the page has to know."""
        task, texts = self._task, list[str]()
        if task is not None:
            texts.append(repr(task.accuracy))
        if task is not None and task.mass_interval is not None and task.stability is not None:
            low, high = task.mass_interval
            texts.append(
                f"over pairs drawn anew the mass is {low:.3f} to {high:.3f}; {task.stability:.2f} of the edges are "
                "the same (mean overlap of circuits of this size)"
            )
        return [
            *texts,
            "An edge is the direct way from what writes to the residual stream to what reads it. Its number is the "
            "share of the walks that take it and stay inside the circuit; the mass of all of them predicts how much "
            "comes back when everything outside is taken from the reference.",
            "A circuit cannot show heads that act only when others are gone, and predicts too much where networks "
            f"saturate (a mass above {SATURATED}).",
            f"nrm {__version__}, model {self.circuit.model[:12] or 'unknown'}",
        ]


class CircuitReport(Report):
    """A circuit as a page. Notebooks show it; ``save(path)`` writes it as one file; ``view`` are its numbers."""

    @property
    def html(self) -> str:
        """The page."""
        return circuit_page(self.view)

    def __repr__(self) -> str:
        last = self.view["steps"][-1]
        return f"page of a circuit of {len(last['edges'])} edges, {len(self.view['steps'])} sizes; save('circuit.html')"


def circuit_report(
    circuit: Circuit | TaskCircuit, path: Any = None, model: Contrast | nn.Module | None = None,
    pairs: Pairs | None = None, **options: Any,
) -> CircuitReport:  # fmt: skip
    """The page of a circuit, written to a file if there is a path; options are those of :class:`CircuitView`."""
    try:
        made = CircuitReport(CircuitView(circuit, model, pairs, **options).whole())
        if path is not None:
            made.save(path)
        return made
    except NrmError as error:
        error.at("report")
        raise


def _prefixes(whole: Circuit, sizes: int) -> Iterator[Tensor]:
    """Marks of the strongest edges by their flow, from a few to nearly all, on a scale of ratios."""
    assert whole.flow is not None
    count = len(whole)
    order = largest(whole.flow.abs().flatten(), count)
    low = min(FEWEST, count)
    steps = range(sizes - 1)
    numbers = {round(low * math.exp(math.log(count / low) * n / max(sizes - 1, 1))) for n in steps}
    for number in sorted(numbers - {count}):
        marks = whole.inside.new_zeros(whole.inside.numel()).index_fill(0, order[:number].to(whole.inside.device), True)
        yield marks.view(whole.inside.shape)


def _alive(circuit: Circuit) -> Circuit:
    """A circuit without the edges that nothing flows through."""
    assert circuit.flow is not None
    inside = circuit.inside & (circuit.flow != 0)
    return replace(circuit, inside=inside, relevance=circuit.relevance * inside)


def _step(circuit: Circuit, number: dict[tuple[int, ...], int]) -> Page:
    """A size: its edges by number, and what flows in them."""
    flows = circuit.relevance if circuit.flow is None else circuit.flow
    places = [tuple(place) for place in circuit.inside.nonzero().tolist()]
    return {
        "edges": [number[place] for place in places], "flows": [float(flows[place]) for place in places],
        "mass": circuit.mass,
    }  # fmt: skip


def _chains(circuit: Circuit, picture: CircuitPicture) -> list[Page]:
    short = {node.name: node.text for node in picture.nodes}
    return [
        {"share": chain.relevance, "nodes": [*(short.get(str(e.writer), str(e.writer)) for e in chain.edges), "output"]}
        for chain in circuit.chains
    ]
