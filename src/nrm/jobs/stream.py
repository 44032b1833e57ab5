"""Statistics of answers over a stream of batches, in flat memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nrm.errors import NrmError, QuestionError
from nrm.jobs.moments import ByClass, Moments
from nrm.jobs.questions import fingerprint, read_asked
from nrm.jobs.relmax import bar
from nrm.jobs.samples import read_batch
from nrm.measure import (
    Axis,
    Classes,
    Loop,
    Measure,
    Names,
    dataset_names,
    is_label,
    make_results,
    match_classes,
    named_target,
    question_axes,
    read_options,
    read_weight,
    scaled,
    shared_names,
    weights,
)
from nrm.memory import memory_bound, refuse_larger
from nrm.questions import Question
from nrm.tables import Results, html_table

SOURCES = ("label", "target", "prediction")


def stream(
    model: nn.Module, loader: Any, questions: Any, *, target: Any = None, weight: str = "none", absolute: bool = False,
    class_names: Any = None, progress: bool | None = None, **options: Any,
) -> Stream:  # fmt: skip
    """Statistics of questions over all batches of a loader, in memory that does not grow with their number.

    ``loader`` gives batches: inputs, or pairs (inputs, labels), as a ``torch.utils.data.DataLoader`` does.
    ``questions`` are named: ``{"pairs": (a.channels, b.channels)}`` is what ``R(a.channels, b.channels)`` is asked.
    ``target`` is that of :func:`nrm.measure`, or ``"label"`` for the loader's labels. If the loader's data set names
    its classes, they are matched with the outputs by name as in :func:`nrm.relmax`, which explains ``class_names``.
    Nothing is computed until the first statistic is asked for; one pass over the loader then gives them all.

    A relevance is a share of its sample's output. ``weight`` says what it is multiplied with: nothing (``"none"``), the
    explained output (``"logit"``: the answer in units of the output), or its softmax probability (``"softmax"``).
    ``absolute`` takes absolute values, so that what is for in some samples and against in others does not cancel:
    ``stream(..., weight="logit", absolute=True).mean()`` of the input is the global importance of features.

    >>> import nrm
    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> batches = [(torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])) for _ in range(3)]
    >>> s = stream(model, batches, {"hidden": nrm.layer("1").channels})
    >>> s.mean()["hidden"].shape, s.mean(by="label")["hidden"].shape, s.count(by="label")
    (torch.Size([8]), torch.Size([3, 8]), {0: 6, 1: 6, 2: 3})
    """
    if not isinstance(questions, Mapping) or not questions:
        raise QuestionError(
            "questions have names", got=repr(questions)[:120], expected="a mapping from names to questions",
            hint='{"pairs": (a.channels, b.channels)}',
        )  # fmt: skip
    if not isinstance(loader, Iterable):
        raise QuestionError("not a loader", got=type(loader).__name__, expected="an iterable of batches")
    if not isinstance(absolute, bool):
        raise QuestionError("absolute is yes or no", got=f"absolute={absolute!r}", expected="True or False")
    read_options(options)
    read = {str(name): read_asked(given) for name, given in questions.items()}
    target = named_target(target, options.get("labels"), own=True)
    names = dataset_names(loader) if is_label(target) else None
    if names is not None:
        target = Classes(names, match_classes(names, options.get("labels"), class_names))
    return Stream(model, loader, read, target, progress, options, (read_weight(weight), absolute))


class Stream:
    """Mean, variance and count of every question, over all samples or class by class.

    ``by`` is ``"label"`` (of the loader), ``"target"`` (what is explained), ``"prediction"``, or one number per sample
    in the order of the loader. Tables of classes have them as their first axis, in the order of :meth:`classes`.
    Another ``by`` is another pass over the loader.
    """

    def __init__(
        self, model: nn.Module, loader: Iterable[Any], questions: dict[str, Question], target: Any,
        progress: bool | None, options: dict[str, Any], counted: tuple[str, bool],
    ) -> None:  # fmt: skip
        self._weight, self._absolute = counted
        self._model, self._loader, self._questions = model, loader, questions
        self._loop = Loop()
        self._target, self._progress, self._options = target, progress, options
        self._bound = memory_bound(options.get("memory", "auto"))
        self._passes: dict[str, dict[str, ByClass]] = {}
        self._axes: dict[str, list[Axis]] = {}
        self._names: Names = ()

    def mean(self, by: Any = None) -> dict[str, Tensor]:
        """The mean of every question's table."""
        return self._each(by, lambda moments: moments.mean)

    def variance(self, by: Any = None, *, correction: int = 1) -> dict[str, Tensor]:
        """The variance over samples; ``correction`` is that of :func:`torch.var`."""
        return self._each(by, lambda moments: moments.variance(correction))

    def share_positive(self, by: Any = None) -> dict[str, Tensor]:
        """The share of samples in which an entry is positive."""
        return self._each(by, lambda moments: moments.positive.double() / moments.count)

    def count(self, by: Any = None) -> Any:
        """How many samples were seen; with ``by``, how many of each class."""
        classes = self._pass(by)[next(iter(self._questions))].classes
        counts = {label: classes[label].count for label in sorted(classes)}
        return counts if by is not None else sum(counts.values())

    def classes(self, by: Any) -> list[int]:
        """The classes that occur, in the order of the tables."""
        return list(self.count(by))

    def table(self, question: str | None = None, *, by: Any = None) -> Results:
        """The statistics of one question as a table: ``mean``, ``variance``, ``share positive`` and ``count``.

        With ``by``, classes are the first axis. The question is named where there are several.
        """
        name = self._named(question)
        found = {"mean": self.mean(by), "variance": self.variance(by), "share positive": self.share_positive(by)}
        tensors = {key: tables[name] for key, tables in found.items()}
        counts = self.count(by)
        tensors["count"] = torch.tensor(list(counts.values()) if by is not None else counts)
        matched = isinstance(by, str) and (by != "label" or _is_matched(self._target))
        front = [] if by is None else [_class_axis(by, list(counts), self._names if matched else ())]
        axes = [*front, *self._axes[name]]
        return make_results(tensors, {key: front if key == "count" else axes for key in tensors})

    def to_pandas(self, question: str | None = None, *, by: Any = None) -> Any:
        """A pandas table of the statistics of one question, a row for every block (and class)."""
        return self.table(question, by=by).to_pandas("mean")

    def to_xarray(self, question: str | None = None, *, by: Any = None) -> Any:
        """An xarray data set of the statistics of one question."""
        return self.table(question, by=by).to_xarray()

    def _named(self, question: str | None) -> str:
        if question is None and len(self._questions) == 1:
            return next(iter(self._questions))
        if question not in self._questions:
            raise QuestionError(
                "which question?", got=repr(question), expected=", ".join(map(repr, self._questions)),
                hint=f"s.table({next(iter(self._questions))!r})",
            )  # fmt: skip
        return question

    def _lines(self) -> list[tuple[str, str]]:
        counts = {key: next(iter(kept.values())).classes for key, kept in self._passes.items()}
        seen = {sum(one.count for one in classes.values()) for classes in counts.values()}
        read = f"{seen.pop()} samples read" if seen else "nothing read yet: the first statistic does it"
        return [*((name, str(question)) for name, question in self._questions.items()), ("", read)]

    def __repr__(self) -> str:
        return "\n".join(["statistics over a stream", *(f"  {name:<12} {text}" for name, text in self._lines())])

    def _repr_html_(self) -> str:
        return html_table("statistics over a stream", ("name", "question"), self._lines())

    def _each(self, by: Any, read: Callable[[Moments], Tensor]) -> dict[str, Tensor]:
        found = {}
        for name, kept in self._pass(by).items():
            if by is None:
                total = kept.total()
                assert total is not None
                found[name] = read(total)
            else:
                classes = kept.classes
                found[name] = torch.stack([read(classes[label]) for label in sorted(classes)])
        return found

    def _pass(self, by: Any) -> dict[str, ByClass]:
        key = "all" if by is None else by if isinstance(by, str) else fingerprint(_read_labels(by))
        if key not in self._passes:
            if isinstance(by, str) and by not in SOURCES:
                raise QuestionError(
                    "samples have no such classes", got=f"by={by!r}", expected=", ".join(map(repr, SOURCES)),
                    hint="or one number per sample",
                )  # fmt: skip
            if by is None and self._passes:
                return next(iter(self._passes.values()))
            self._passes[key] = self._run(by)
        return self._passes[key]

    def _run(self, by: Any) -> dict[str, ByClass]:
        kept = {name: ByClass() for name in self._questions}
        first = 0
        given = None if by is None or isinstance(by, str) else _read_labels(by)
        with bar(None, self._progress, "batches", self._loader) as shown:
            for batch in shown:
                try:
                    first += self._count(batch, kept, by if given is None else given, first)
                except NrmError as error:
                    place = f"the batch that begins with sample {first}"
                    error.where = place if error.where is None else f"{place}: {error.where}"
                    raise
        if first == 0:
            raise QuestionError(
                "no samples", got="an empty loader, or an iterator that was used up by an earlier pass",
                expected="batches of inputs", hint="a DataLoader or a list can be read again",
            )  # fmt: skip
        if given is not None and len(given) != first:
            raise QuestionError("labels and samples do not match", got=f"{len(given)} labels", expected=str(first))
        return kept

    def _count(self, batch: Any, kept: dict[str, ByClass], by: Any, first: int) -> int:
        inputs, labels = read_batch(batch)
        if isinstance(self._target, Classes) and labels is not None:
            labels = torch.tensor([self._target.of(label) for label in labels.tolist()])
        target = _read_target(self._target, labels)
        with self._loop.measure(self._model, inputs, target=target, progress=False, **self._options) as R:
            classes = list(_classes(R, by, labels, first))
            if not self._axes:
                self._names = shared_names(R.labels).get("output", ())
                self._axes = {
                    name: question_axes(shared_names(R.labels), R.inner.places, question.asked)
                    for name, question in self._questions.items()
                }
            for name, question in self._questions.items():
                table = self._answer(R, question)
                refuse_larger(
                    "the statistics of all classes are larger", kept[name].nbytes(table, classes), self._bound,
                    "nrm.relmax(...).best(..., target=...) for the blocks that count most in every class, fewer blocks "
                    "or classes, or memory=",
                )  # fmt: skip
                kept[name].add(table, classes)
            return len(R)

    def _answer(self, R: Measure, question: Question) -> Tensor:
        """A batch's answer as it is counted: weighed, and without its sign if that is wished."""
        if self._weight == "logit" and question == Question(question.arguments):
            table = R.in_units(*question.arguments)  # which outputs close to 0 have too
        else:
            table = scaled(R.ask(question), weights(R, self._weight))
        return table.abs() if self._absolute else table


def _is_matched(target: Any) -> bool:
    """Whether the labels of the loader are classes of the output, because they are what is explained."""
    return isinstance(target, Classes) or is_label(target)


def _class_axis(by: Any, classes: list[int], names: Names) -> Axis:
    """The axis of classes, with the names of outputs where these are what classes are."""
    known = bool(names) and 0 <= min(classes) <= max(classes) < len(names)
    labels = tuple(str(names[label]) for label in classes) if known else None
    return Axis(by if isinstance(by, str) else "class", len(classes), tuple(classes), labels)


def _read_target(target: Any, labels: Tensor | None) -> Any:
    if not (isinstance(target, Classes) or is_label(target)):
        return target
    if labels is None:
        raise QuestionError("the batch has no labels", got="target='label'", expected="pairs (inputs, labels)")
    return labels


def _classes(R: Measure, by: Any, labels: Tensor | None, first: int) -> Iterator[int]:
    """The class of every sample of a batch."""
    if by is None:
        return iter([-1] * len(R))
    if isinstance(by, list):
        if first + len(R) > len(by):
            raise QuestionError("labels and samples do not match", got=f"{len(by)} labels", expected="one per sample")
        return iter(by[first : first + len(R)])
    found = {"label": labels, "target": R.target, "prediction": R.prediction}[by]
    if not isinstance(found, Tensor) or found.ndim != 1:
        raise QuestionError(
            f"the batch has no {by} that is a class", got=f"by={by!r}",
            expected="one class per sample", hint="by=[...] with one number per sample",
        )  # fmt: skip
    return iter(found.tolist())


def _read_labels(by: Any) -> list[int]:
    try:
        read = torch.as_tensor(by if isinstance(by, Tensor) or hasattr(by, "__array__") else list(_numbers(by)))
    except (TypeError, ValueError, RuntimeError):
        read = torch.zeros(0, 0)
    if read.ndim != 1 or read.is_floating_point() or read.is_complex():
        raise QuestionError(
            "not classes of samples", got=repr(by)[:80], expected=f"one integer per sample, or one of {SOURCES}"
        )
    return [int(i) for i in read.tolist()]


def _numbers(by: Any) -> Sequence[int]:
    return [int(i) if isinstance(i, Tensor) else i for i in by]
