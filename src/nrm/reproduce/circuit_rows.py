"""From patched circuits to the table of methods: areas, what comes back, predictions, nodes, stability, cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from nrm.evaluate import CONTRAST, EDGE_METHODS, GRADIENTS, SIZES, area, pearson
from nrm.reproduce.circuit_tasks import JUDGED, SCORED, CircuitTask
from nrm.reproduce.experiment import Outcome
from nrm.reproduce.store import ExperimentFolder, Tensors
from nrm.reproduce.tables import TableRow
from nrm.tasks import ENOUGH

MASS = "contrast by mass"
"""Circuits whose predicted mass is 1 at every size."""
SIGNED = (*GRADIENTS, CONTRAST)
"""Methods whose scores have a sign that says for or against."""
PEERS = ("eap", "eap-ig", "relp", "gim", CONTRAST)
"""Methods that are judged with every seed; the others with the first."""
PREDICTED = ("eap-ig", CONTRAST, MASS)
"""Methods of whose circuits the mass is predicted."""
FEW = 4
"""Nodes and signed scores are judged by so many pairs."""
COMPARED = 0.01
"""Circuits of this share of all edges are compared over pairs drawn anew."""
SHOWN = (0.001, 0.005, 0.01, 0.05)
TRUSTED = 1.3
"""Predictions above it saturate, and are left out where predictions are judged."""


def key_of(task: str, seed: int, work: str) -> str:
    """The name of a piece of work."""
    return f"{task}-{seed}-{work.replace(' ', '_')}"


def outcome_of(store: ExperimentFolder, tasks: Sequence[CircuitTask], seeds: Sequence[int]) -> Outcome:
    """The rows of all tasks, and what is said of each task as a whole."""
    rows: list[TableRow] = []
    facts: dict[str, str] = {
        "judged by": f"patching {JUDGED} pairs, edges scored on {SCORED} others; mean (range) of {len(seeds)} seeds, "
        f"others than peers with the first; CPR of signed scores and nodes with {FEW} pairs of the first"
    }
    for task in tasks:
        read = Readings(store, task.name, seeds)
        rows += read.rows()
        accuracy = task.accuracy
        enough = "" if accuracy.is_enough else f"; below {ENOUGH}: circuits of a task that fails explain little"
        facts[task.name] = f"{accuracy}{enough}; inputs of {len(task.pairs[0].clean)} tokens"
        facts |= {f"{task.name}, {what}": said for what, said in read.predictions().items()}
    return Outcome(rows, facts)


class Readings:
    """What was kept of one task."""

    def __init__(self, store: ExperimentFolder, task: str, seeds: Sequence[int]) -> None:
        self._store, self._task, self._seeds = store, task, seeds

    def rows(self) -> list[TableRow]:
        """A row for every method."""
        return [self._row(method) for method in (*EDGE_METHODS, MASS)]

    def _row(self, method: str) -> TableRow:
        found = [self._of(seed, method) for seed in self._seeds if method in (*PEERS, MASS) or not seed]
        row: TableRow = {"task": self._task, "method": method, "CMD": _ranged(_cmd(one) for one in found)}
        row["log-CMD"] = _ranged(_cmd(one, log=True) for one in found)
        for size in SHOWN:
            at = SIZES.index(size)
            row[f"f {100 * size:g} %"] = f"{sum(float(one['f'][at]) for one in found) / len(found):.2f}"
        if "stability" in found[0]:
            row["stability"] = _ranged((float(one["stability"]) for one in found), 2)
        if method in SIGNED:
            row |= self._of_first_seed(method)
        row["curves"] = {
            name: [one[name].tolist() for one in found] for name in ("size", "f", "mass") if name in found[0]
        }
        return row

    def _of_first_seed(self, method: str) -> TableRow:
        """CPR, nodes beside exact patching (embedding left out: its effect is all there is), and cost."""
        curves, nodes, costs = (self._of(0, work) for work in ("signed", "nodes", "cost"))
        size, f = (curves[f"{method}/{name}"].tolist() for name in ("size", "f"))
        row: TableRow = {"CPR": f"{area(size, f):.3f}"}
        for way in ("noise", "denoise"):
            score, effect = nodes[method][1:], nodes[way][1:]
            row[f"nodes, {way}"] = f"{_correlation(score, effect):.3f}, slope {_slope(score, effect):.2f}"
        return row | {"passes": f"{float(costs[method]):.1f}"}

    def predictions(self) -> dict[str, str]:
        """How well the predicted mass tells what comes back, of the circuits of all methods and of the contrast's."""
        said = {}
        for what, methods in (("predictions", PREDICTED), ("predictions for its own", (CONTRAST, MASS))):
            f, mass = (
                torch.cat([self._of(seed, m)[name][:-1] for m in methods for seed in self._seeds])
                for name in ("f", "mass")
            )
            kept = mass <= TRUSTED
            off = float((f - mass)[kept].abs().mean())
            said[what] = (
                f"r {_correlation(mass[kept], f[kept]):.3f}, {off:.3f} off on average, of {int(kept.sum())} circuits "
                f"({int((~kept).sum())} with a mass above {TRUSTED} left out)"
            )
        costs = self._of(0, "cost")
        said["recording both runs"] = f"{float(costs['recording']):.1f} forward passes, not in the column"
        return said

    def _of(self, seed: int, work: str) -> Tensors:
        return self._store.read(key_of(self._task, seed, work))


def _cmd(found: Tensors, log: bool = False) -> float:
    return area(found["size"].tolist(), (1 - found["f"]).abs().tolist(), log=log)


def _correlation(x: Tensor, y: Tensor) -> float:
    return float(pearson(x.double()[None], y.double()[None])[0])


def _slope(score: Tensor, effect: Tensor) -> float:
    return float((effect * score).sum() / score.square().sum())


def _ranged(values: Iterable[float], digits: int = 3) -> str:
    """A mean with its range."""
    some = list(values)
    mean, low, high = (f"{x:.{digits}f}" for x in (sum(some) / len(some), min(some), max(some)))
    return f"{mean} ({low} to {high})" if len(some) > 1 else mean


__all__ = ["COMPARED", "FEW", "MASS", "PEERS", "PREDICTED", "SIGNED", "key_of", "outcome_of"]
