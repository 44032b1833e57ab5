"""What a finished job can be asked, wherever its results are kept."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from nrm.errors import QuestionError
from nrm.extras import extra
from nrm.jobs.hits import Hit, Hits, LeadingBlocks
from nrm.jobs.job import Facts
from nrm.jobs.leading import ClassSums, leaders
from nrm.jobs.moments import ByClass, Moments
from nrm.jobs.questions import digest_of, fingerprint, read_asked
from nrm.jobs.tally import RANKS, Tally, class_of
from nrm.jobs.top import Top, crowded
from nrm.largest import largest
from nrm.questions import Layer, Partition, Set
from nrm.search import read_count
from nrm.tables import Results, html_table, unique


class Ranking(ABC):
    """The best samples of every block, statistics of every block, and what is known of every sample."""

    facts: Facts

    @abstractmethod
    def _top(self, question: int, by: str, block: int) -> Top:
        """The rows of one block."""

    @abstractmethod
    def _rows(self, question: int, by: str) -> Top:
        """The rows of all blocks of a question."""

    @abstractmethod
    def _cut(self, question: int, by: str) -> float:
        """The score above which no row of a question is missing."""

    @abstractmethod
    def _moments(self, question: int) -> ByClass:
        """The statistics of a question."""

    @abstractmethod
    def _leading(self, question: int, label: int) -> ClassSums | None:
        """The leading blocks of a class."""

    @abstractmethod
    def _labels(self, question: int) -> list[int]:
        """The classes of which leading blocks are kept."""

    @abstractmethod
    def _lines(self, samples: Sequence[int] | None = None) -> dict[int, tuple[int | None, int | None]]:
        """Label and target of some samples, or of all that were explained."""

    @property
    @abstractmethod
    def errors(self) -> list[tuple[int, str]]:
        """The samples that were left out, and why."""

    @property
    @abstractmethod
    def count(self) -> int:
        """How many samples were explained."""

    def top(self, *parts: Any, k: int | None = None, by: str = "relevance") -> Hits:
        """The best samples of a block, or of a pair of blocks: ``top(a.channel(12), b.channel(7), k=9)``."""
        if by not in RANKS:
            raise QuestionError("unknown ranking", got=f"by={by!r}", expected=" or ".join(map(repr, RANKS)))
        question, block = self._find(parts)
        facts = self.facts["questions"][question]
        wanted = self.facts["k"] if k is None else k
        if not 0 < wanted <= self.facts["k"]:
            raise QuestionError("not so many are kept", got=f"k={k}", expected=f"1 to {self.facts['k']}")
        rows = self._top(question, by, block)
        if by == "activation" and (facts["layer"] is None or len(facts["parts"]) > 1):
            raise QuestionError("blocks of several layers have no activation", got=facts["text"])
        chosen = [rows.sample[:wanted].tolist(), rows.score[:wanted].tolist(), rows.place[:wanted].tolist()]
        lines = self._lines(chosen[0])
        hits = tuple(
            Hit(sample, score, self._place(question, place), *lines.get(sample, (None, None)))
            for sample, score, place in zip(*chosen, strict=True)
        )
        name = ", ".join(map(str, parts))
        cut = self._cut(question, by)
        full = crowded(self.facts["k"], self.facts["rows"], math.prod(facts["shape"]))
        complete = not full or (len(hits) == wanted and (hits[-1].score > cut or math.isinf(cut)))
        return Hits(name, by, hits, complete, "" if complete else self._pruned(parts, hits, cut))

    def _pruned(self, parts: Sequence[Any], hits: Sequence[Hit], cut: float) -> str:
        kept = f"only its samples above {cut:.4g} are kept" if hits else "it was pruned"
        if math.isinf(cut):
            kept = "its positive scores are all kept"
        scan = ", ".join(map(repr, parts))
        return (
            f"{'this list may go on' if hits else 'no samples'}: of {self.facts['rows']} rows for all blocks of the "
            f"question {kept}.\n"
            f"A scan for this one is exact: nrm.relmax(model, dataset, ({scan}), ...)"
        )

    def rows(self, *question: Any, by: str = "relevance") -> Top:
        """The best samples of every block of a question as columns: by block, best first."""
        if by not in RANKS:
            raise QuestionError("unknown ranking", got=f"by={by!r}", expected=" or ".join(map(repr, RANKS)))
        return self._rows(self._number(question), by)

    def to_pandas(self, *question: Any, by: str = "relevance") -> Any:
        """A pandas table of the best samples of every block of a question, a row for each block and rank.

        Where a list may go on, because rows were pruned, :meth:`top` of the block says so.
        """
        with extra("table", "to_pandas()"):
            import pandas
        number, rows = self._number(question), self.rows(*question, by=by)
        places = np.unravel_index(rows.block, self.facts["questions"][number]["shape"] or (1,))
        columns: dict[str, Any] = dict(zip(self._axes(number), places, strict=False))
        columns["rank"] = np.arange(len(rows)) - np.searchsorted(rows.block, rows.block) + 1
        lines = self._lines(rows.sample.tolist()) if len(rows) else {}
        known = [lines.get(sample, (None, None)) for sample in rows.sample.tolist()]
        columns |= {"sample": rows.sample, "score": rows.score}
        columns["place"] = [self._place(number, place) for place in rows.place.tolist()]
        columns |= {"label": [label for label, _ in known], "target": [target for _, target in known]}
        return pandas.DataFrame(columns)

    def to_xarray(self, *question: Any, by: str = "relevance") -> Any:
        """An xarray data set of the best samples of every block of a question, by block and rank."""
        with extra("table", "to_xarray()"):
            import xarray  # noqa: F401
        frame = self.to_pandas(*question, by=by)
        return frame.set_index([*self._axes(self._number(question)), "rank"]).to_xarray()

    def table(self, *question: Any, target: int | None = None) -> Results:
        """The :meth:`statistics` of a question with the names of its axes."""
        number = self._number(question)
        found = self.statistics(*question, target=target)
        tensors = {name: table for name, table in found.items() if isinstance(table, Tensor)}
        return Results(tensors, dict.fromkeys(tensors, tuple(self._axes(number))))

    def _axes(self, question: int) -> list[str]:
        """The axes of a question's blocks by name."""
        parts = self.facts["questions"][question]["parts"]
        return unique([part["text"] for part in parts for _ in part["shape"]])

    def _repr_html_(self) -> str:
        rows = [
            (facts["text"], "x".join(map(str, facts["shape"])) or "1", str(self.facts["k"]))
            for facts in self.facts["questions"]
        ]
        return html_table(f"the best of {self.count} samples", ("question", "blocks", "kept of each"), rows)

    def statistics(self, *question: Any, target: int | None = None) -> dict[str, Any]:
        """Statistics of a question's shares over samples, of all or of those with one target (or label).

        ``count``, and tensors in the shape of the question: ``mean``, ``variance``, ``positive`` and ``negative`` (the
        shares of samples with that sign), ``absolute`` (the mean of absolute values).
        """
        number = self._number(question)
        facts, kept = self.facts["questions"][number], self._moments(number)
        if target is not None and not self.facts["per_class"][number]:
            raise QuestionError(
                "statistics of single classes are not kept for this question", got=f"target={target}",
                expected="fewer blocks times classes",
                hint=".best(..., target=...) has the largest means; nrm.relmax(..., per_class=True) keeps all",
            )  # fmt: skip
        moments = kept.total() if target is None else kept.classes.get(target)
        if moments is None:
            raise _no_samples(target, sorted(kept.classes))
        return _shaped(moments, facts["shape"])

    def classes(self, *question: Any) -> list[int]:
        """The targets (or labels) that occur."""
        number = self._number(question)
        return self._labels(number) if self._has_leading(number) else sorted(self._moments(number).classes)

    def best(self, *question: Any, k: int = 10, target: int | None = None) -> LeadingBlocks:
        """The blocks (or pairs of blocks) with the largest mean share, over all samples or those with one target.

        Where blocks times classes are too many to be kept, what is not known of a class is bounded.
        """
        number = self._number(question)
        if target is not None and self._has_leading(number):
            return self._best_leading(number, read_count(k, "blocks"), target)
        mean: Tensor = self.statistics(*question, target=target)["mean"]
        flat = mean.flatten()
        order = largest(flat, read_count(k, "blocks") + 1).tolist()
        means = [float(flat[i]) for i in order]
        indices = tuple(self._indices(number, i) for i in order[:k])
        limit = means[k] if len(means) > k else -math.inf
        return LeadingBlocks(indices, tuple(means[:k]), tuple((m, m) for m in means[:k]), limit, complete=True)

    def _has_leading(self, question: int) -> bool:
        kept = self.facts.get("leading")
        return bool(kept and kept[question])

    def _best_leading(self, number: int, k: int, target: int) -> LeadingBlocks:
        sums = self._leading(number, target)
        if sums is None:
            raise _no_samples(target, self._labels(number))
        facts = self.facts["questions"][number]
        found, limit = leaders(sums, math.prod(facts["shape"]), k)
        complete = min((leader.low for leader in found), default=math.inf) >= limit
        note = (
            f"Of every sample {self.facts['leading'][number]} shares were counted: means lie in their intervals, no "
            f"other block exceeds {limit:.4g}{'' if complete else ', and some may belong here'}.\n"
            f"A job over the samples with this target is exact: found.best({facts['text']}) of found = "
            f"nrm.relmax(model, torch.utils.data.Subset(dataset, found.samples_of({target})), ..., target={target})"
        )
        return LeadingBlocks(
            tuple(self._indices(number, leader.block) for leader in found), tuple(leader.mean for leader in found),
            tuple((leader.low, leader.high) for leader in found), limit, complete, note,
        )  # fmt: skip

    def samples_of(self, target: int) -> list[int]:
        """The numbers of the samples with this target (or label, where there is none) that were explained."""
        return sorted(sample for sample, known in self._lines().items() if class_of(*known) == target)

    def _indices(self, question: int, block: int) -> tuple[int, ...]:
        shape = self.facts["questions"][question]["shape"]
        return tuple(int(i) for i in np.unravel_index(block, shape)) if shape else ()

    def _place(self, question: int, neuron: int) -> tuple[int, ...] | None:
        layer = self.facts["questions"][question]["layer"]
        if neuron < 0 or layer is None:
            return None
        return tuple(int(i) for i in np.unravel_index(neuron, layer[1])) if layer[1] else ()

    def _number(self, question: Sequence[Any]) -> int:
        """Which of the job's questions is meant; with only one, nothing need be said."""
        if not question and len(self.facts["questions"]) == 1:
            return 0
        digest = digest_of(read_asked(tuple(question))) if question else ""
        for number, facts in enumerate(self.facts["questions"]):
            if facts["digest"] == digest:
                return number
        raise self._unknown(", ".join(map(str, question)) or "nothing")

    def _find(self, parts: Sequence[Any]) -> tuple[int, int]:
        """The question that a block belongs to, and its number there."""
        for number, facts in enumerate(self.facts["questions"]):
            for order in itertools.permutations(parts):
                block = _block(facts, order)
                if block is not None:
                    return number, block
        raise self._unknown(", ".join(map(str, parts)))

    def _unknown(self, got: str) -> QuestionError:
        known = "; ".join(facts["text"] for facts in self.facts["questions"])
        return QuestionError(
            "the job did not ask this", got=got, expected=f"blocks of: {known}",
            hint="nrm.relmax(model, dataset, ...) with this question",
        )  # fmt: skip


def _block(facts: Facts, parts: Sequence[Any]) -> int | None:
    """The number of a block of a question, None if it is not one of its blocks."""
    if len(parts) != len(facts["parts"]):
        return None
    flat = 0
    for part, known in zip(parts, facts["parts"], strict=True):
        shape = tuple(known["shape"])
        if fingerprint(Partition(part) if isinstance(part, Layer) else part) == known["digest"] and not shape:
            continue
        index = _index(part, known["digest"])
        if index is None:
            return None
        at = index if isinstance(index, tuple) else None
        sizes = shape if at is not None else (math.prod(shape),)
        at = (index,) if at is None else at
        if len(at) != len(sizes) or not all(-n <= i < n for i, n in zip(at, sizes, strict=True)):
            raise QuestionError("no such block", got=str(part), expected=f"blocks of shape {shape}")
        inside = 0
        for i, n in zip(at, sizes, strict=True):
            inside = inside * n + i % n
        flat = flat * math.prod(shape) + inside
    return flat


def _index(part: Any, digest: str) -> Any:
    """The index of a set inside a partition with this digest, None if it is no block of it."""
    if not isinstance(part, Set) or part.expression[0] != "part" or fingerprint(part.expression[1]) != digest:
        return None
    index = part.expression[2]
    if isinstance(index, tuple):
        return tuple(index[1:]) if index[0] == "at" else None
    return index


def _no_samples(target: int | None, classes: list[int]) -> QuestionError:
    return QuestionError("no samples", got=f"target={target}", expected=f"one of {classes}"[:200])


def _shaped(moments: Moments, shape: Sequence[int]) -> dict[str, Any]:
    tables = {
        "mean": moments.mean,
        "variance": moments.variance(),
        "positive": moments.positive.double() / moments.count,
        "negative": moments.negative.double() / moments.count,
        "absolute": moments.absolute / moments.count,
    }
    return {"count": moments.count, **{name: table.reshape(tuple(shape)) for name, table in tables.items()}}


class FoundRanking(Ranking):
    """The results of a job in memory."""

    def __init__(self, facts: Facts, tally: Tally) -> None:
        self.facts, self.tally = facts, tally

    def _top(self, question: int, by: str, block: int) -> Top:
        whole = self.tally.tops.get((question, by))
        return Top.empty(1, 1) if whole is None else whole.of_block(block)

    def _rows(self, question: int, by: str) -> Top:
        return self.tally.tops.get((question, by)) or Top.empty(1, 1)

    def _cut(self, question: int, by: str) -> float:
        whole = self.tally.tops.get((question, by))
        return -math.inf if whole is None else whole.cut

    def _moments(self, question: int) -> ByClass:
        return self.tally.moments[question]

    def _leading(self, question: int, label: int) -> ClassSums | None:
        return self.tally.leading[question].total(label)

    def _labels(self, question: int) -> list[int]:
        return self.tally.leading[question].classes

    def _lines(self, samples: Sequence[int] | None = None) -> dict[int, tuple[int | None, int | None]]:
        columns = (self.tally.samples[name] for name in ("sample", "label", "target", "error"))
        wanted = None if samples is None else set(samples)
        return {
            sample: (label, target)
            for sample, label, target, error in zip(*columns, strict=True)
            if error is None and (wanted is None or sample in wanted)
        }

    @property
    def errors(self) -> list[tuple[int, str]]:
        return self.tally.errors

    @property
    def count(self) -> int:
        return self.tally.count

    def __repr__(self) -> str:
        asked = "; ".join(facts["text"] for facts in self.facts["questions"])
        return f"the best {self.facts['k']} of {self.count} samples for every block of: {asked}"
