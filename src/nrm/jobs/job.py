"""A dataset job as a value: everything a worker needs to explain one shard, and what tells the job from others."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from nrm._version import __version__
from nrm.errors import JobError, NrmError, QuestionError
from nrm.jobs.answers import Failure, Inquiry, Sample, ask, ask_safely, open_measure
from nrm.jobs.datasets import SampleOrFailure, batches, is_map, load, load_range
from nrm.jobs.leading import ROOM
from nrm.jobs.likeness import identify
from nrm.jobs.questions import digest_of, fingerprint, joined_sets, only_part
from nrm.jobs.tally import KnownBest, Limits, Tally
from nrm.jobs.top import BestSamples
from nrm.measure import Measure, block_shape, last_set, model_digest
from nrm.questions import Layer, Partition, Question, Stack
from nrm.search import read_count

SCHEMA = 2
"""The version of what is kept of a job. Version 1 had no leading blocks of classes."""

READABLE = (1, 2)
"""Versions of stores that can be read."""

MINIMUM = 16
"""Leading blocks of a class that are kept at least, however many classes there are."""

ATTEMPTS = 8
"""Samples that may fail before a job that never began is given up."""

CELLS = 2**22
"""Classes times blocks up to which statistics of every class are kept; with more, so many sums are."""

NUMBERS = ("output", "batch_dim", "against")
"""Options of the measure that change its numbers and are not among the facts of its network."""

Facts = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Job:
    """What is asked about which samples, in shards. ``facts`` are plain data: the job's identity."""

    inquiry: Inquiry
    dataset: Any
    targets: Any
    limits: Limits
    batch_size: int
    shard_size: int
    max_errors: int
    threads: int
    facts: Facts = field(default_factory=dict)

    @property
    def samples(self) -> int | None:
        """How many samples there are; None if only reading them all can tell."""
        return len(self.dataset) if is_map(self.dataset) else None

    @property
    def shards(self) -> range:
        """The numbers of the shards of a map-style data set."""
        return range(math.ceil((self.samples or 0) / self.shard_size))


def run_shard(job: Job, shard: int, tick: Callable[[int], None], known: KnownBest) -> Tally:
    """Explains the samples of one shard of a map-style data set: the unit of work of every engine."""
    first = shard * job.shard_size
    numbers = range(first, min(first + job.shard_size, len(job.dataset)))
    return run_samples(job, load_range(job.dataset, numbers, job.targets, job.batch_size), tick, known)


def run_samples(job: Job, samples: Iterable[SampleOrFailure], tick: Callable[[int], None], known: KnownBest) -> Tally:
    """Explains samples as they come; those that fail are counted, up to the number that the job allows.

    What cannot be among the best beside what is ``known`` of other samples is left out.
    """
    tally = Tally(job.limits, known=known)
    with threads(job.threads):
        for batch in batches(samples, job.batch_size):
            good = [sample for sample in batch if isinstance(sample, Sample)]
            bad = [sample for sample in batch if isinstance(sample, Failure)]
            answers, failed = ask_safely(job.inquiry, good) if good else ([], [])
            for some in answers:
                tally.add(some)
            for failure in sorted([*bad, *failed], key=lambda f: f.number):
                tally.fail(failure)
            check_errors(tally.errors, job.max_errors)
            tick(len(batch))
    tally.known = {}
    return tally


def remember(known: KnownBest, tally: Tally) -> None:
    """Adds a finished shard to what is known."""
    for (question, by), best in tally.best.items():
        known.setdefault((question, by), BestSamples(tally.limits.k, tally.limits.rows)).absorb(best)


def check_errors(errors: list[tuple[int, str]], allowed: int) -> None:
    """Gives up if more samples failed than are allowed."""
    if len(errors) > allowed:
        number, text = errors[0]
        raise JobError(
            f"{len(errors)} sample{'s' * (len(errors) != 1)} failed", where=f"sample {number}", got=text,
            expected=f"at most {allowed} bad samples", hint="max_errors=100 leaves out that many, and lists them",
        )  # fmt: skip


@contextmanager
def threads(count: int) -> Iterator[None]:
    """So many threads for torch: the last bits of sums depend on them, so that a job has always the same number."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def probe(inquiry: Inquiry, samples: Iterable[SampleOrFailure]) -> Measure:
    """The measure of the first sample that can be explained, all questions answered once: mistakes show up here."""

    def try_out(sample: Sample) -> Measure:
        ask(inquiry, [sample])
        return open_measure(inquiry, [sample])

    return first_good(samples, try_out)


def first_good(samples: Iterable[SampleOrFailure], try_out: Callable[[Sample], Measure]) -> Measure:
    """What the first sample gives that can be read and explained; the first error if none of some can."""
    first: Exception | None = None
    for sample in itertools.islice(samples, ATTEMPTS):
        if isinstance(sample, Failure):
            first = first or JobError("a sample cannot be read", where=f"sample {sample.number}", got=sample.text)
            continue
        try:
            return try_out(sample)
        except Exception as error:
            if isinstance(error, NrmError):
                error.at(f"sample {sample.number}")
            first = first or error
    raise first or QuestionError("no samples", got="an empty data set", expected="at least one sample")


def first_samples(dataset: Any, targets: Any) -> Iterator[SampleOrFailure]:
    """The first samples of a map-style data set, one by one."""
    return (load(dataset, i, targets) for i in range(len(dataset)))


def describe_questions(R: Measure, questions: Iterable[Question]) -> list[Facts]:
    """What a store needs to know of every question to be asked about its blocks."""
    return [_describe(R, question) for question in questions]


def _describe(R: Measure, question: Question) -> Facts:
    shape = list(R.ask(question).shape[1:])
    parts = [part for part in question.arguments if not isinstance(part, Stack)]
    plain = len(parts) == len(question.arguments) and (len(parts) > 1 or only_part(question) is not None)
    layer = _peak_layer(R, question)
    return {
        "text": str(question),
        "digest": digest_of(question),
        "shape": shape,
        "parts": [
            {
                "text": str(part),
                "digest": fingerprint(Partition(part) if isinstance(part, Layer) else part),
                "shape": list(block_shape(R, part)) if plain else shape,
            }
            for part in parts
        ],
        "layer": None if layer is None else [str(layer), list(R(layer).shape[1:])],
    }


def _peak_layer(R: Measure, question: Question) -> Layer | None:
    """The layer whose neurons are the places of a question's blocks."""
    alone = only_part(question)
    if alone is not None:
        return alone if isinstance(alone, Layer) else alone.layer
    sets = joined_sets(question)
    return last_set(R, sets).layer if sets else None


def identity(job: Job, R: Measure, looked: Sequence[SampleOrFailure] = ()) -> Facts:
    """What tells this job from every other: model, rules, questions, targets, data, and how it is cut into shards."""
    return {
        **explanation(job.inquiry, R),
        "weight": job.inquiry.weight,
        "questions": describe_questions(R, job.inquiry.questions),
        "data": identify(job.dataset, job.inquiry.targets if job.targets is None else job.targets, looked),
        "k": job.limits.k,
        "rows": job.limits.rows,
        "per_class": list(job.limits.per_class),
        "leading": list(job.limits.leading),
        "batch_size": job.batch_size,
        "shard_size": job.shard_size,
    }


def explanation(inquiry: Inquiry, R: Measure) -> Facts:
    """What tells how samples are explained: the model, the rules, and the options that change numbers."""
    network = R.inner.network
    return {
        "schema": SCHEMA,
        "nrm": __version__,
        "model": model_digest(inquiry.model),
        "rules": repr(network.composite),
        "bias": network.bias,
        "zero": network.zero,
        "normalize": network.normalize,
        "dtype": str(R.inner.tape.dtype),
        "options": fingerprint({k: v for k, v in sorted(inquiry.options.items()) if k in NUMBERS}),
    }


def choose_per_class(R: Measure, questions: Sequence[Question], asked: bool | int | None) -> dict[str, tuple[Any, ...]]:
    """Of which questions statistics of every class are kept: as asked, or those whose fit into memory.

    Of the others so many leading blocks of every class are, unless nothing was wanted.
    """
    if isinstance(asked, bool):
        return {"per_class": (asked,) * len(questions), "leading": (0,) * len(questions)}
    classes = R.values(R.output).numel()
    sizes = [math.prod(R.ask(q).shape[1:]) for q in questions]
    if asked is None:
        room, most = max(MINIMUM, min(ROOM, CELLS // classes)), CELLS // classes
    else:
        room = most = read_count(asked, "blocks", "per_class")
    whole = tuple(size <= most for size in sizes)
    return {"per_class": whole, "leading": tuple(0 if fits else room for fits in whole)}
