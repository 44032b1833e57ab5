"""Relevance maximization: the samples in which concepts count most."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import default_collate
from tqdm.auto import tqdm

from nrm.errors import NrmError, QuestionError
from nrm.measure import (
    Argument,
    Classes,
    dataset_names,
    is_label,
    match_classes,
    measure,
    read_options,
    read_weight,
    refuse_batches,
    weights,
)
from nrm.questions import Formula, Set
from nrm.search import read_count
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
    model: nn.Module, samples: Iterable[Any], *concepts: Argument, k: int = 8, target: Any = None,
    weight: str = "logit", batch_size: int = 16, class_names: Any = None, progress: bool | None = None, **options: Any,
) -> Maxima:  # fmt: skip
    """Relevance maximization (RelMax): the k samples in which a concept has the largest relevance.

    Asks ``R(*concepts)`` to the measure of every sample and keeps the samples with the largest answers: the paper's
    rows *RelMax* (a layer: every neuron has its own samples), *RelMax for a concept neuron set* (a set; a partition:
    every block has its own), and, with two concepts of different layers, the same for pairs. A sample's relevance is a
    share of its output; to compare samples, it is multiplied by a weight: the explained output itself (``"logit"``, as
    concept relevance is usually measured), its softmax probability (``"softmax"``), or nothing (``"none"``).

    ``samples`` is any iterable of inputs without a sample axis, or of pairs (input, label) as data sets give them, or
    a data set itself; labels are explained with ``target="label"`` and left aside otherwise. If the data set names its
    classes, they are matched with the outputs by name (``class_names`` is that of :func:`nrm.relmax`). ``options`` are
    those of :func:`nrm.measure`.

    >>> import nrm
    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> found = relmax(model, torch.randn(20, 4), nrm.layer("1").channels, k=5)
    >>> found.samples.shape, found.scores.shape
    (torch.Size([8, 5]), torch.Size([8, 5]))
    """
    _check(concepts, weight, target)
    read_options(options)
    names = dataset_names(samples) if is_label(target) else None
    if names is not None:
        target = Classes(names, match_classes(names, options.get("labels"), class_names))
    k, batch_size = read_count(k, "samples"), read_count(batch_size, "samples", "batch_size")
    bar = tqdm(
        _sequence(samples), desc="samples", disable=progress is False, delay=0.0 if progress else 2.0, leave=False
    )
    best: tuple[Tensor, Tensor] | None = None
    first = 0
    with bar:
        for batch in _batches(bar, batch_size):
            try:
                scores = _scores(model, batch, concepts, target, weight, options)
            except NrmError as error:
                here = f"samples {first} to {first + len(batch) - 1}"
                error.where = here if error.where is None else f"{here}: {error.where}"
                raise
            numbers = torch.arange(first, first + len(batch), device=scores.device).expand_as(scores)
            if best is not None:
                _refuse_other_shape(scores, best[1], first)
                numbers, scores = torch.cat([best[0], numbers], -1), torch.cat([best[1], scores], -1)
            best = keep_best(numbers, scores, k)
            first += len(batch)
    if best is None:
        raise QuestionError("no samples", got="an empty iterable", expected="inputs without a sample axis")
    return Maxima(*best, concepts, weight, first)


def keep_best(samples: Tensor, scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k samples with the largest scores along the last axis, best first; of equal ones the smaller number first.

    In whatever order and parts samples come, the result is the same.

    >>> keep_best(torch.tensor([4, 1, 3, 2]), torch.tensor([0.5, 0.5, 2.0, 0.1]), 3)
    (tensor([3, 1, 4]), tensor([2.0000, 0.5000, 0.5000]))
    """
    by_number = samples.argsort(-1)
    by_score = scores.gather(-1, by_number).argsort(dim=-1, descending=True, stable=True)
    best = by_number.gather(-1, by_score)[..., :k]
    return samples.gather(-1, best), scores.gather(-1, best)


def _scores(
    model: nn.Module, batch: Sequence[Any], concepts: Sequence[Argument], target: Any, weight: str,
    options: dict[str, Any],
) -> Tensor:  # fmt: skip
    """What the samples of a batch are ranked by: ``(*axes, samples)``."""
    inputs, chosen = _read(batch, target)
    with measure(model, inputs, target=chosen, progress=False, **options) as R:
        if len(R) != len(batch):
            raise QuestionError("samples come without a sample axis", got=f"{len(R)} samples from {len(batch)} items")
        return R(*concepts).movedim(0, -1) * weights(R, weight)


def _sequence(samples: Any) -> Iterable[Any]:
    """What can be gone through: an iterable, or a data set that is indexed."""
    refuse_batches(samples)
    if isinstance(samples, Iterable) and not isinstance(samples, str | Mapping):
        return samples
    if hasattr(samples, "__getitem__") and hasattr(samples, "__len__") and not isinstance(samples, str | Mapping):
        return (samples[i] for i in range(len(samples)))
    raise QuestionError("not samples", got=type(samples).__name__, expected="an iterable of inputs, one by one")


def _check(concepts: Sequence[Argument], weight: str, target: Any) -> None:
    if not concepts:
        raise QuestionError(
            "RelMax needs a concept", got="none", hint="relmax(model, samples, nrm.layer('conv').channels)"
        )
    read_weight(weight)
    if isinstance(target, list) or (isinstance(target, Tensor) and target.ndim > 0):
        raise QuestionError(
            "targets come with their samples", got=f"target={target!r}"[:80], expected="one class for all, or 'label'",
            hint="relmax(model, zip(samples, labels), ..., target='label')",
        )  # fmt: skip


def _refuse_other_shape(scores: Tensor, before: Tensor, first: int) -> None:
    if scores.shape[:-1] != before.shape[:-1]:
        raise QuestionError(
            "the samples give answers of different shapes", where=f"samples from {first}",
            got=f"axes {tuple(scores.shape[:-1])}", expected=f"{tuple(before.shape[:-1])}, as before",
            hint="a.channels has the same axis for inputs of every size",
        )  # fmt: skip


def _batches(samples: Iterable[Any], size: int) -> Iterator[list[Any]]:
    waiting = iter(samples)
    while batch := list(itertools.islice(waiting, size)):
        yield batch


def _read(batch: Sequence[Any], target: Any) -> tuple[Any, Any]:
    """The samples of a batch as inputs of the model, and what is explained."""
    labels = [item[1] for item in batch if _has_label(item)]
    if isinstance(target, Classes) or is_label(target):
        if len(labels) < len(batch):
            raise QuestionError("a sample has no label", got=f"{len(labels)} labels", expected="pairs (input, label)")
        target = [target.of(int(label)) if isinstance(target, Classes) else int(label) for label in labels]
    inputs = [item[0] if _has_label(item) else item for item in batch]
    try:
        together = default_collate(inputs)
    except (RuntimeError, TypeError) as error:
        raise QuestionError(
            "the samples cannot be put into one batch", got=str(error).splitlines()[0][:120],
            expected="inputs of one shape, without a sample axis", hint="batch_size=1 for inputs of different shapes",
        ) from None  # fmt: skip
    return (tuple(together) if isinstance(together, list) else together), target


def _has_label(item: Any) -> bool:
    if not isinstance(item, tuple | list) or len(item) != 2:
        return False
    label = item[1]
    return isinstance(label, int) or (getattr(label, "ndim", None) == 0 and "int" in str(label.dtype))
