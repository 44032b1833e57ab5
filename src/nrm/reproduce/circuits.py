"""Who finds the circuits of a language model? Every method scores the same edges on the same pairs, has its circuits
chosen in the same way, and is judged by patching the model on other pairs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch

from nrm.evaluate import (
    CLEAN,
    CONTRAST,
    EDGE_METHODS,
    GRADIENTS,
    SIZES,
    EdgeScores,
    edge_scores,
    patch,
    patch_nodes,
    patched_shares,
)
from nrm.measure import Circuit, CircuitFinder, CircuitPart, Measure, measure
from nrm.reproduce.circuit_rows import COMPARED, FEW, MASS, PEERS, PREDICTED, SIGNED, key_of, outcome_of
from nrm.reproduce.circuit_tasks import SCORED, CircuitTask, circuit_tasks
from nrm.reproduce.experiment import Experiment, Outcome, Setting, UnitPlan
from nrm.reproduce.store import Tensors, Unit
from nrm.tasks import Pairs

SEEDS = 3
DRAWS = 20
"""So often pairs are drawn anew to see how stable circuits are."""
TIMED = 3
"""A forward pass is timed so often."""


@dataclass(eq=False)
class TaskSplit:
    """A task with the pairs of one seed: what all methods have in common, computed when it is first asked for."""

    task: CircuitTask
    seed: int

    @cached_property
    def halves(self) -> tuple[Pairs, Pairs]:
        """Pairs to score with, and others to judge by."""
        return self.task.halves(self.seed)

    @cached_property
    def scored(self) -> Measure:
        """The contrast of the pairs that score."""
        return self._measured(self.halves[0])

    @cached_property
    def judged(self) -> Measure:
        """The contrast of the pairs that judge."""
        return self._measured(self.halves[1])

    def _measured(self, pairs: Pairs) -> Measure:
        (batch,) = pairs.by_length(len(pairs))
        return measure(self.task.model, batch.clean, against=batch.corrupted, output=batch.odds, progress=False)

    def scores(self, method: str) -> EdgeScores:
        """The scores of a method."""
        if method == CLEAN:
            return edge_scores(self.task.model, self.halves[0], method, batch_size=SCORED)
        return edge_scores(self.scored, method=method, seed=self.seed)

    @cached_property
    def few(self) -> Measure:
        """The contrast of the first of the pairs that judge, for what takes long."""
        return self._measured(self.halves[1].take(range(FEW)))

    # ---- units of work ---------------------------------------------------------------------------------------

    def judge(self, method: str) -> Tensors:
        """A method's circuits of every size, patched, and its stability."""
        scores = self.scores(method)
        found = _patched(self.judged, scores.circuits(SIZES[:-1]), method in PREDICTED)
        return found | {"stability": torch.tensor(_stability(scores))}

    def judge_mass(self) -> Tensors:
        """Circuits of every size of which the predicted mass is 1, or as near to it as that size comes."""
        finder = CircuitFinder([CircuitPart.of(self.scored.inner)])
        inside = [finder.by_mass(1.0, finder.number(size)) for size in SIZES[:-1]]
        chosen = [Circuit(finder.writers, finder.readers, some, finder.shares * some) for some in inside]
        return _patched(self.judged, chosen, True)

    def judge_signed(self) -> Tensors:
        """Circuits of the largest signed scores, on a few pairs."""
        found: Tensors = {}
        for method in SIGNED:
            curve = _patched(self.few, self.scores(method).circuits(SIZES[:-1], signed=True), False)
            found |= {f"{method}/{name}": values for name, values in curve.items()}
        return found

    def judge_nodes(self) -> Tensors:
        """What every node does by itself, on a few pairs, beside the scores of nodes by every method."""
        found = {way: patch_nodes(self.few, direction=way).effect for way in ("noise", "denoise")}
        for method in SIGNED:
            scores = edge_scores(self.few, method=method)
            found[method] = torch.tensor(list(scores.nodes.values())) / float(scores.value.mean())
        return found

    def cost(self) -> Tensors:
        """The processor time of every method after the two runs are recorded, in forward passes of the same pairs."""
        (batch,) = self.halves[0].by_length(SCORED)
        with torch.no_grad():
            self.task.model(batch.clean)
            unit = min(_seconds(partial(self.task.model, batch.clean)) for _ in range(TIMED))
        fresh = self._measured(self.halves[0])
        found = {CONTRAST: _seconds(fresh.direct)}
        found["recording"] = _seconds(lambda: self._measured(self.halves[0]))
        for method in GRADIENTS:
            found[method] = _seconds(partial(edge_scores, fresh, method=method))
        return {name: torch.tensor(seconds / unit) for name, seconds in found.items()}


def _patched(R: Measure, circuits: Sequence[Circuit], predicted: bool) -> Tensors:
    """The curve of circuits, with their predicted masses if wanted; that of all edges is the model itself."""
    if predicted:
        curve = patch(R, list(circuits))
        return {name: torch.tensor([*getattr(curve, f"{name}"), 1.0]) for name in ("f", "mass")} | {
            "size": torch.tensor([*curve.sizes, 1.0])
        }
    f, sizes = patched_shares(R, circuits), [len(c) / c.possible for c in circuits]
    return {"f": torch.tensor([*f, 1.0]), "size": torch.tensor([*sizes, 1.0])}


def _seconds(work: Callable[[], Any]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


def _stability(scores: EdgeScores) -> float:
    """The mean overlap of the circuit of a size with those of pairs drawn anew."""
    random = torch.Generator().manual_seed(0)
    whole, overlaps = scores.circuit(COMPARED), list[float]()
    count = len(scores.samples)
    for _ in range(DRAWS):
        rows = torch.randint(count, (count,), generator=random)
        drawn = EdgeScores(scores.method, scores.samples[rows], scores.writers, scores.readers, scores.value[rows])
        overlaps.append(whole.overlap(drawn.circuit(COMPARED)))
    return sum(overlaps) / len(overlaps)


class LastSplit:
    """Holds the measures of one task and seed, until the next one is asked for."""

    def __init__(self) -> None:
        self._held: TaskSplit | None = None

    def run(self, task: CircuitTask, seed: int, work: Callable[[TaskSplit], Tensors]) -> Tensors:
        """Some work on a task and seed."""
        if self._held is None or (self._held.task, self._held.seed) != (task, seed):
            self._held = None  # before the next one takes its memory
            self._held = TaskSplit(task, seed)
        return work(self._held)


def _units(last: LastSplit, task: CircuitTask, seed: int) -> list[Unit]:
    """The work of a task and seed; what is no peer, signed scores, nodes and times are of the first seed alone."""
    works: dict[str, Callable[[TaskSplit], Tensors]] = {
        method: partial(TaskSplit.judge, method=method) for method in (PEERS if seed else EDGE_METHODS)
    }
    works[MASS] = TaskSplit.judge_mass
    if not seed:
        works |= {"nodes": TaskSplit.judge_nodes, "signed": TaskSplit.judge_signed, "cost": TaskSplit.cost}
    return [Unit(key_of(task.name, seed, name), partial(last.run, task, seed, work)) for name, work in works.items()]


def _plan(setting: Setting) -> UnitPlan:
    tasks, seeds, last = circuit_tasks(setting), range(setting.samples or SEEDS), LastSplit()
    units = [unit for seed in seeds for task in tasks.values() for unit in _units(last, task, seed)]

    def finish() -> Outcome:
        return outcome_of(setting.store, list(tasks.values()), seeds)

    return units, finish


CIRCUITS = Experiment("circuits", "Circuits: who finds them?", "beyond the paper", _plan)
