"""Circuits of a task: one for many pairs of inputs, with what other pairs of its kind would have given."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from nrm.devices import home_of
from nrm.errors import JobError, NrmError, QuestionError, ResultFileError
from nrm.files import begin, claim, differing, mark_results, replacing, write_text
from nrm.jobs.parts import writing
from nrm.jobs.questions import fingerprint
from nrm.jobs.relmax import bar
from nrm.measure import (
    Circuit,
    CircuitFinder,
    CircuitPart,
    DirectEdges,
    Edges,
    Inner,
    Measure,
    end_facts,
    find_circuit,
    measure,
    model_digest,
    read_end,
    read_options,
    refuse_options,
)
from nrm.memory import memory_bound
from nrm.search import read_count
from nrm.tables import Results, Tabled
from nrm.tasks import Accuracy, Pairs

KIND, SCHEMA = "nrm circuit of a task", 1
MANIFEST = "circuit.json"
LEVEL = 0.95
"""The share of draws between the ends of an interval."""

COMPARED = 20
"""So many draws are chosen circuits from, to see how stable the circuit is."""


def circuit(
    model: nn.Module, pairs: Pairs, *, top: float | None = None, mass: float | None = None, by: str = "share",
    edges: Edges | None = None, chains: int = 0, draws: int = 200, seed: int = 0, batch_size: int = 16,
    store: str | os.PathLike[str] | None = None, memory: str | int = "auto", progress: bool | None = None,
    **options: Any,
) -> TaskCircuit:  # fmt: skip
    """The circuit of a task: a set of direct edges that is one for all pairs of inputs, clean against corrupted.

    What is explained is the difference that the corruption makes to the log-odds of right against wrong answers. Shares
    are those of the mean difference over all pairs. Pairs are drawn anew ``draws`` times, which gives intervals, and
    says how stable the circuit is: how many of its edges are chosen again.

    Args:
        model: the model, which returns logits.
        pairs: what :func:`nrm.tasks.read_pairs` reads from a file, or :class:`nrm.tasks.Pairs` from tensors.
        top: a number of edges, or a share of all.
        mass: the wanted mass of the walks that stay inside.
        by: ``"share"``, or ``"flow"``, which shrinks the network step by step.
        edges: a circuit by hand.
        chains: so many of the strongest ways through it. These options are those of ``R.circuit``.
        draws: how often pairs are drawn anew; 0 for no intervals.
        seed: of the draws.
        batch_size: pairs that are measured together; only pairs of one length are.
        store: a folder for what was measured. Called again with the same model, pairs and rules, the job goes on from
            there, and other circuits of the task are found without measuring again.
        memory: bytes, or text like "2 GiB", for measures that are held; others are made again when they are needed.
        progress: a bar: True at once, None after a while, False never.
        options: those of :func:`nrm.measure`.

    >>> import nrm
    >>> found = nrm.circuit(*nrm.tasks.induction(12), top=0.05, draws=20)
    >>> [str(edge) for edge in found.circuit.edges][1:]
    ['blocks.1.attn.head(3) -> output', 'blocks.0.attn.head(3) -> blocks.1.attn.k.head(3)']
    >>> found.accuracy.share
    1.0
    """
    try:
        read_options(options)
        refuse_options(top, mass, by, edges)
        _refuse_no_pairs(pairs)
        if draws != 0:
            read_count(draws, "draws", "draws")
        accuracy = pairs.accuracy(model, batch_size)
        with _opened(store, model, pairs, batch_size, options) as folder:
            job = CircuitJob(model, pairs, read_count(batch_size, "pairs", "batch_size"), folder, memory, options)
            parts = job.parts(progress)
            found = find_circuit(parts, top=top, mass=mass, by=by, edges=edges, chains=chains)
        return _resampled(parts, found, accuracy, draws, seed, pairs)
    except NrmError as error:
        error.at("nrm.circuit")
        raise


def _refuse_no_pairs(pairs: Any) -> None:
    if not isinstance(pairs, Pairs) or not len(pairs):
        raise QuestionError(
            "a task has pairs of inputs", got="none" if isinstance(pairs, Pairs) else type(pairs).__name__,
            expected="nrm.tasks.Pairs with a pair at least", hint="nrm.tasks.read_pairs(file, tokenizer) reads them",
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class TaskCircuit(Tabled):
    """A circuit of a task, with intervals of its shares and mass over pairs drawn anew, and its stability.

    ``low`` and ``high`` have the shape of ``circuit.inside``. ``stability`` is the mean overlap (Jaccard) of circuits
    of as many edges, chosen by share from pairs drawn anew, with the one chosen by share from all pairs.
    """

    circuit: Circuit
    accuracy: Accuracy
    low: Tensor | None = None
    high: Tensor | None = None
    mass_interval: tuple[float, float] | None = None
    stability: float | None = None
    pairs: str = ""
    """The fingerprint of the pairs."""

    def table(self) -> Results:
        """Relevance, flow, membership and intervals with the names of writers and readers."""
        plain = self.circuit.table()
        if self.low is None or self.high is None:
            return plain
        columns = {name: plain[name] for name in plain} | {"low": self.low, "high": self.high}
        return Results(columns, dict.fromkeys(columns, plain.axes["relevance"]), labels=plain.labels)

    def __repr__(self) -> str:
        lines = [repr(self.accuracy), repr(self.circuit)]
        if self.mass_interval is not None and self.stability is not None:
            low, high = self.mass_interval
            lines.insert(1, f"mass {low:.3f} to {high:.3f} over pairs drawn anew, stability {self.stability:.2f}")
        return "\n".join(lines)

    def report(
        self, path: str | os.PathLike[str] | None = None, model: nn.Module | None = None, pairs: Pairs | None = None,
        **options: Any,
    ) -> Any:  # fmt: skip
        """The circuit on one page, as :meth:`nrm.Circuit.report` writes it: a file if there is a path."""
        room = importlib.import_module("nrm.report")  # a later room, which is needed only here
        return room.circuit_report(self, path, model, pairs, **options)

    def to_json(self) -> dict[str, Any]:
        """All of it as plain numbers and texts; intervals for the edges inside."""
        inside = self.circuit.inside
        return {
            "kind": KIND, "schema": SCHEMA, "pairs": self.pairs, "circuit": self.circuit.to_json(),
            "accuracy": vars(self.accuracy), "mass_interval": self.mass_interval, "stability": self.stability,
            "low": None if self.low is None else self.low[inside].tolist(),
            "high": None if self.high is None else self.high[inside].tolist(),
        }  # fmt: skip

    @classmethod
    def from_json(cls, facts: dict[str, Any]) -> TaskCircuit:
        """What :meth:`to_json` made; intervals of edges outside are not kept."""
        if facts.get("kind") != KIND or facts.get("schema") != SCHEMA:
            raise ResultFileError(
                "this is no circuit of a task", got=f"kind {facts.get('kind')!r}, schema {facts.get('schema')!r}",
                expected=f"{KIND!r}, schema {SCHEMA}", hint="nrm.Circuit.load reads those of single measures",
            )  # fmt: skip
        found = Circuit.from_json(facts["circuit"])

        def filled(numbers: list[float] | None) -> Tensor | None:
            if numbers is None:
                return None
            return torch.zeros(found.inside.shape, dtype=torch.float64).masked_scatter(
                found.inside, torch.tensor(numbers, dtype=torch.float64)
            )

        interval = facts["mass_interval"]
        return cls(
            found, Accuracy(**facts["accuracy"]), filled(facts["low"]), filled(facts["high"]),
            None if interval is None else (interval[0], interval[1]), facts["stability"], facts["pairs"],
        )  # fmt: skip

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes it as JSON; the file is replaced as a whole or not at all."""
        write_text(path, json.dumps(self.to_json()))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> TaskCircuit:
        """Reads what :meth:`save` wrote."""
        try:
            facts = json.loads(Path(path).read_text(encoding="utf-8"))
            return cls.from_json(facts if isinstance(facts, dict) else {})
        except (OSError, ValueError, KeyError, TypeError) as problem:
            raise ResultFileError(
                "a circuit of a task cannot be read", where=os.fspath(path), got=f"{type(problem).__name__}: {problem}"
            ) from None


class CircuitJob:
    """Measures the pairs of a task, batch by batch; what was measured is kept in a folder, if there is one."""

    def __init__(
        self, model: nn.Module, pairs: Pairs, size: int, folder: Path | None, memory: str | int,
        options: dict[str, Any],
    ) -> None:  # fmt: skip
        self._model, self._folder, self._options = model, folder, options
        self._batches = pairs.by_length(size)
        self._memory, self._held = memory_bound(memory), dict[int, Measure]()
        self._progress: bool | None = None

    def parts(self, progress: bool | None) -> list[CircuitPart]:
        """The direct edges of every batch; searches in them show a bar as this does."""
        self._progress = progress
        numbers = bar(len(self._batches), progress, "pairs measured, in batches", range(len(self._batches)))
        return [CircuitPart(self._opener(n), self._edges(n)) for n in numbers]

    def _opener(self, n: int) -> Callable[[], Inner]:
        return lambda: self._inner(n)

    def _inner(self, n: int) -> Inner:
        """The measure of a batch: held as long as there is room for all that are."""
        if n not in self._held:
            batch = self._batches[n].to(home_of(self._model))
            R = measure(
                self._model, batch.clean, against=batch.corrupted, output=batch.odds, progress=self._progress,
                **self._options,
            )  # fmt: skip
            while self._held and sum(R.nbytes for R in self._held.values()) + R.nbytes > self._memory:
                self._held.pop(next(iter(self._held)))
            self._held[n] = R
        return self._held[n].inner

    def _edges(self, n: int) -> DirectEdges:
        file = None if self._folder is None else self._folder / f"batch-{n:05d}.safetensors"
        if file is not None and file.is_file():
            return _read_edges(file)
        found = CircuitPart.of(self._inner(n)).edges
        if file is not None:
            with writing(file):
                _write_edges(file, found)
        return found


@contextmanager
def _opened(
    store: str | os.PathLike[str] | None, model: nn.Module, pairs: Pairs, size: int, options: dict[str, Any]
) -> Iterator[Path | None]:
    """The folder of a job, for this job alone; one of another model, other pairs or other rules is refused."""
    if store is None:
        yield None
        return
    path = Path(store)
    mine = {
        "kind": KIND, "schema": SCHEMA, "model": model_digest(model), "pairs": pairs.fingerprint, "batch_size": size,
        "options": fingerprint(dict(sorted(options.items()))),
    }  # fmt: skip
    with ExitStack() as claimed:
        with writing(path):
            claimed.enter_context(claim(path))
            mark_results(path)
            known = begin(path / MANIFEST, mine)
        if changed := differing(known, mine):
            raise JobError(
                f"the store belongs to a job with another {', '.join(changed)}", where=os.fspath(path),
                got=str({key: known.get(key) for key in changed}), expected=str({key: mine[key] for key in changed}),
                hint="another path for the store",
            )  # fmt: skip
        yield path


def _write_edges(file: Path, edges: DirectEdges) -> None:
    ends = {"writers": [end_facts(w) for w in edges.writers], "readers": [end_facts(r) for r in edges.readers]}
    with replacing(file) as new:
        save_file({"relevance": edges.relevance.contiguous(), "value": edges.value.contiguous()}, new,
                  {"ends": json.dumps(ends)})  # fmt: skip


def _read_edges(file: Path) -> DirectEdges:
    try:
        with safe_open(file, "pt") as found:
            ends = json.loads(found.metadata()["ends"])
            writers, readers = (tuple(read_end(end) for end in ends[side]) for side in ("writers", "readers"))
            return DirectEdges(found.get_tensor("relevance"), writers, readers, found.get_tensor("value"))
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as problem:
        raise ResultFileError(
            "what was measured is damaged", where=os.fspath(file), got=f"{type(problem).__name__}: {problem}"[:200],
            hint="remove this file: its pairs are measured again",
        ) from None  # fmt: skip


# ---- pairs drawn anew ------------------------------------------------------------------------------------------------


def _resampled(
    parts: list[CircuitPart], found: Circuit, accuracy: Accuracy, draws: int, seed: int, pairs: Pairs
) -> TaskCircuit:
    if not draws:
        return TaskCircuit(found, accuracy, pairs=pairs.fingerprint)
    assert found.masses is not None
    assert found.value is not None
    units = torch.cat([part.edges.in_units() for part in parts])
    random = torch.Generator().manual_seed(seed)
    rows = torch.randint(len(units), (draws, len(units)), generator=random)
    counts = torch.zeros(draws, len(units)).scatter_add_(1, rows, torch.ones(rows.shape)).to(units)
    totals = counts @ found.value.to(units)
    shares = (counts @ units.flatten(1)) / totals[:, None]
    masses = (counts @ (found.masses * found.value).to(units)) / totals
    ends = torch.tensor([(1 - LEVEL) / 2, (1 + LEVEL) / 2]).to(shares)
    low, high = (each_quantile(shares, float(end)).view(found.inside.shape) for end in ends)
    finder = CircuitFinder(parts)
    chosen = finder.by_share(len(found))
    again = [finder.by_share(len(found), one.view(found.inside.shape).abs()) for one in shares[:COMPARED]]
    overlaps = [int((chosen & one).sum()) / int((chosen | one).sum()) for one in again]
    interval = masses.quantile(ends).tolist()
    return TaskCircuit(
        found, accuracy, low, high, (interval[0], interval[1]), sum(overlaps) / len(overlaps), pairs.fingerprint
    )


def each_quantile(rows: Tensor, share: float) -> Tensor:
    """The quantile of every column, of tables that are too wide for :func:`torch.quantile`."""
    return torch.cat([part.quantile(share, 0) for part in rows.split(2**13, 1)])  # type: ignore[no-untyped-call]
