"""What one batch of samples says to all questions: one capture and one sweep, shared."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from nrm.errors import MemoryLimitError, NrmWarning, QuestionError
from nrm.jobs.questions import joined_sets, only_part
from nrm.jobs.samples import collate, on_device
from nrm.measure import Loop, Measure, meeting_peaks, peaks, scaled, weights
from nrm.questions import Layer, Question

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Sample:
    """One sample: its number in the data set, its input, its label, and what is explained if that is its own."""

    number: int
    input: Any
    label: int | None = None
    target: int | None = None


@dataclass(frozen=True)
class Failure:
    """A sample that could not be read or explained, and why."""

    number: int
    text: str


@dataclass(frozen=True, eq=False)
class Inquiry:
    """The model and all that is asked about every sample."""

    model: nn.Module
    questions: tuple[Question, ...]
    targets: Any = None
    weight: str = "logit"
    options: dict[str, Any] = field(default_factory=dict)
    loop: Loop = field(default_factory=Loop)


@dataclass(frozen=True, eq=False)
class Table:
    """A batch's answers to one question, by block: ``(batch, blocks)``.

    ``relevance`` are shares, ``scores`` what samples are ranked by. A question about one layer also has the neuron
    with the largest score in every block (``places``), the largest activation there, and its neuron. One about
    sets of several layers, a single block, has the neuron of the last layer through which most of it flows.
    """

    relevance: Tensor
    scores: Tensor
    places: Tensor | None = None
    activation: Tensor | None = None
    active: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Answers:
    """A batch's answers, and what its samples are."""

    samples: tuple[Sample, ...]
    target: list[int]
    prediction: list[int]
    value: list[float]
    weight: list[float]
    tables: tuple[Table, ...]
    notes: tuple[str, ...]


def ask(inquiry: Inquiry, samples: Sequence[Sample]) -> Answers:
    """The answers of some samples as one batch."""
    with remarks() as notes, open_measure(inquiry, samples) as R:
        scale = weights(R, inquiry.weight)
        tables = tuple(_table(R, question, scale) for question in inquiry.questions)
        target, prediction = classes(R.target, len(R)), classes(R.prediction, len(R))
        value, weight = R.value.double().tolist(), scale.double().tolist()
    return Answers(tuple(samples), target, prediction, value, weight, tables, tuple(notes))


@contextmanager
def remarks() -> Iterator[list[str]]:
    """Collects what measures warn of in a block, to be told once for all batches; other warnings are passed on."""
    notes: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", NrmWarning)
        yield notes
    notes += [str(w.message) for w in caught if w.category is NrmWarning]
    for other in caught:
        if other.category is not NrmWarning:
            warnings.warn_explicit(other.message, other.category, other.filename, other.lineno)


def open_measure(inquiry: Inquiry, samples: Sequence[Sample]) -> Measure:
    """The measure of some samples."""
    inputs = on_device(collate([sample.input for sample in samples]), inquiry.model)
    own = [sample.target for sample in samples if sample.target is not None]
    target = own if own else inquiry.targets
    R = inquiry.loop.measure(inquiry.model, inputs, target=target, progress=False, **inquiry.options)
    if len(R) != len(samples):
        raise QuestionError("samples come without a sample axis", got=f"{len(R)} samples from {len(samples)} items")
    return R


def ask_safely(inquiry: Inquiry, samples: Sequence[Sample]) -> tuple[list[Answers], list[Failure]]:
    """The answers of a batch, without the samples that cannot be explained."""
    return answer_safely(lambda some: ask(inquiry, some), samples)


def answer_safely(
    answer: Callable[[Sequence[Sample]], Answer], samples: Sequence[Sample]
) -> tuple[list[Answer], list[Failure]]:
    """What a batch is answered; if it fails, its samples one by one, so that only the bad ones are left out."""
    try:
        return [answer(samples)], []
    except Exception as error:
        if len(samples) == 1:
            if isinstance(error, MemoryError | MemoryLimitError | torch.OutOfMemoryError):
                raise
            return [], [Failure(samples[0].number, describe(error))]
    answers, failures = [], []
    for sample in samples:
        good, bad = answer_safely(answer, [sample])
        answers += good
        failures += bad
    return answers, failures


def describe(error: BaseException) -> str:
    """An error in one line.

    >>> describe(ValueError("no"))
    'ValueError: no'
    """
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]


def _table(R: Measure, question: Question, scale: Tensor) -> Table:
    relevance = R.ask(question).reshape(len(R), -1)
    scores = relevance * scale[:, None]
    part = only_part(question)
    if part is None:
        sets = joined_sets(question)
        return Table(relevance, scores, meeting_peaks(R, sets, scale) if sets else None)
    layer = part if isinstance(part, Layer) else part.layer
    places = peaks(R, part, scaled(R(layer), scale))[1]
    if layer.consumer is not None or layer in R.biases:  # no tensors of their own
        return Table(relevance, scores, places)
    return Table(relevance, scores, places, *peaks(R, part, R.values(layer)))


def classes(found: Tensor | str, count: int) -> list[int]:
    """One class per sample, -1 where outputs are no classes."""
    if isinstance(found, str) or found.ndim != 1:
        return [-1] * count
    return [int(i) for i in found.tolist()]
