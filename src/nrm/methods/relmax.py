"""Relevance maximization: the samples in which concepts count most."""

from __future__ import annotations

import itertools
import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nrm.devices import home_of
from nrm.errors import QuestionError
from nrm.jobs import relmax as run
from nrm.measure import read_options
from nrm.questions import Argument, Formula, Set
from nrm.tables import Results, Tabled, html_table, unique


@dataclass(frozen=True, eq=False, repr=False)
class Maxima(Tabled):
    """The best samples of every block that was asked about, best first.

    ``samples`` are their numbers in the order in which they came, ``scores`` what they are ranked by, both
    ``(*axes, k)``: the axes of the question, then the ranks (fewer than ``k`` if there are not so many samples). Of
    equal scores the sample that came first comes first. ``concepts`` is the question, ``count`` how many samples were
    seen.
    """

    samples: Tensor
    scores: Tensor
    concepts: tuple[Argument, ...]
    weight: str
    count: int

    def table(self) -> Results:
        """``"samples"`` and ``"scores"`` by block and rank; ranks begin with 1."""
        free = [str(concept) for concept in self.concepts if not isinstance(concept, Set | Formula)]
        many = self.samples.ndim - 1
        blocks = free if len(free) == many else free * many if len(free) == 1 else [f"axis {n}" for n in range(many)]
        axes = (*unique(blocks), "rank")
        ranks = tuple(range(1, self.samples.shape[-1] + 1))
        tensors = {"samples": self.samples, "scores": self.scores}
        return Results(tensors, dict.fromkeys(tensors, axes), numbers={"rank": ranks})

    def _repr_html_(self) -> str:
        head, *rows = str(self).splitlines()
        return html_table(head, ("block: samples (scores)",), [(row.strip(),) for row in rows])

    def __str__(self) -> str:
        asked = ", ".join(map(str, self.concepts))
        head = f"the best of {self.count} samples for {asked} (weight {self.weight!r})"
        flat, scores = (t.reshape(-1, t.shape[-1]) for t in (self.samples, self.scores))
        places = list(itertools.islice(itertools.product(*map(range, self.samples.shape[:-1])), 8))
        rows = [
            f"  {', '.join(map(str, at)) + ': ' if at else ''}"
            + ", ".join(f"{n} ({s:.3g})" for n, s in zip(flat[row].tolist(), scores[row].tolist(), strict=True))
            for row, at in enumerate(places)
        ]
        more = [f"  ... {len(flat) - len(rows)} more blocks"] if len(flat) > len(rows) else []
        return "\n".join([head, *rows, *more])

    __repr__ = __str__


def relmax(
    model: nn.Module, samples: Any, *concepts: Argument, k: int = 8, target: Any = None, weight: str = "logit",
    batch_size: int = 16, class_names: Any = None, progress: bool | None = None, **options: Any,
) -> Maxima:  # fmt: skip
    """Relevance maximization (RelMax): the k samples in which a concept has the largest relevance.

    Asks ``R(*concepts)`` to the measure of every sample and keeps the samples with the largest answers: the paper's
    rows *RelMax* (a layer: every neuron has its own samples), *RelMax for a concept neuron set* (a set; a partition:
    every block has its own), and, with two concepts of different layers, the same for pairs. It is one question to
    :func:`nrm.relmax`, which takes many at once, keeps statistics as well, and works off large data sets; ``weight``,
    ``class_names`` and what ``samples`` and ``target`` can be are explained there. ``options`` are those of
    :func:`nrm.measure`.

    >>> import nrm
    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> found = relmax(model, torch.randn(20, 4), nrm.layer("1").channels, k=5)
    >>> found.samples.shape, found.scores.shape
    (torch.Size([8, 5]), torch.Size([8, 5]))
    """
    if not concepts:
        raise QuestionError(
            "RelMax needs a concept", got="none", hint="relmax(model, samples, nrm.layer('conv').channels)"
        )
    read_options(options)
    found = run(
        model, samples, concepts, k=k, target=target, weight=weight, batch_size=batch_size, class_names=class_names,
        progress=progress, rows=sys.maxsize, per_class=False, **options,
    )  # fmt: skip
    rows, axes = found.rows(*concepts), (*found.facts["questions"][0]["shape"], min(k, found.count))
    device = home_of(model)
    dtype = getattr(torch, found.facts["dtype"].removeprefix("torch."))
    best = torch.from_numpy(rows.sample).to(device).reshape(axes)
    scores = torch.from_numpy(rows.score).to(device, dtype).reshape(axes)
    return Maxima(best, scores, concepts, weight, found.count)
