"""Relevance maximization over a data set: the samples, and the places in them, where blocks count most."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from nrm.errors import NrmError, NrmWarning, QuestionError
from nrm.jobs.answers import Inquiry
from nrm.jobs.datasets import Loaded, is_map, load_all, open_dataset
from nrm.jobs.job import (
    ATTEMPTS,
    Job,
    check_errors,
    choose_per_class,
    first_samples,
    identity,
    probe,
    run_samples,
    run_shard,
)
from nrm.jobs.questions import Question
from nrm.jobs.ranking import Found, Ranking
from nrm.jobs.tally import Limits, Tally, fold_shards
from nrm.measure.scores import read_weight
from nrm.search.found import read_count

ROWS = 200_000
"""Rows of best samples that are kept of one question."""


def relmax(
    model: nn.Module, dataset: Any, *questions: Any, targets: Any = None, k: int = 40, weight: str = "logit",
    batch_size: int = 16, shard_size: int = 256, max_errors: int = 0, rows: int = ROWS,
    per_class: bool | None = None, transform: Callable[[Any], Any] | None = None, threads: int | None = None,
    progress: bool | None = None, **options: Any,
) -> Ranking:  # fmt: skip
    """The samples of a data set in which blocks of neurons have the largest relevance (RelMax), and where in them.

    Every sample is explained once, and its measure answers all ``questions``: ``a.channels``, a pair table
    ``(a.channels, b.channels)``, one pair ``(a.channel(12), b.channel(7))``. Of every block the ``k`` best samples are
    kept, by relevance and by activation, with the neuron where it peaks, and statistics over all samples and over those
    of every target.

    Args:
        model: the model.
        dataset: a map-style or iterable data set of inputs, pairs (input, label) or mappings, none of them with a
            sample axis; or a folder of images, one folder for each class, with ``transform``.
        questions: layers, partitions or sets, or tuples of them.
        targets: what is explained: None (each sample's top class), a class, ``"label"``, one class per sample, or what
            else :func:`nrm.measure` takes.
        k: how many samples of every block are kept.
        weight: how samples are compared. A relevance is a share of the sample's output; it is multiplied with the
            explained output (``"logit"``), its softmax probability (``"softmax"``), or nothing (``"none"``).
        batch_size: samples that are explained together.
        shard_size: samples that are one unit of work: a multiple of ``batch_size``.
        max_errors: samples that may fail. They are left out and listed in ``.errors``.
        rows: how many best samples of one question are kept in all. With more blocks than there is room for, those with
            the largest scores of all blocks; :meth:`Ranking.top` says where something may be missing.
        per_class: whether statistics of every target are kept; None: of questions for which they fit into memory.
        transform: for a folder of images: from an image to the model's input.
        threads: of torch; the last bits of results depend on it.
        progress: a bar with rate and time left: True at once, None after a while, False never.
        options: those of :func:`nrm.measure`.

    >>> import nrm
    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> found = relmax(model, torch.randn(20, 4), nrm.layer("1").channels, k=5)
    >>> len(found.top(nrm.layer("1").channel(3)))
    5
    """
    try:
        job, source = _plan(
            model, open_dataset(dataset, transform), questions, targets, weight, options,
            (k, rows, batch_size, shard_size, max_errors, threads, per_class),
        )  # fmt: skip
        return _run(job, source, progress)
    except NrmError as error:
        error.at("nrm.relmax")
        raise


def _plan(
    model: nn.Module, dataset: Any, questions: tuple[Any, ...], targets: Any, weight: str, options: dict[str, Any],
    sizes: tuple[Any, ...],
) -> tuple[Job, Iterator[Loaded] | None]:  # fmt: skip
    """The job, tried on a first sample, and the samples of an iterable data set."""
    k, rows, batch_size, shard_size, max_errors, threads, whole = sizes
    if not questions:
        raise QuestionError("nothing was asked", hint="nrm.relmax(model, dataset, nrm.layer('conv').channels)")
    read = tuple(Question.read(question) for question in questions)
    own, common = _read_targets(targets, dataset)
    inquiry = Inquiry(model, read, common, read_weight(weight), options)
    k, batch_size = read_count(k, "samples"), read_count(batch_size, "samples")
    shard_size = max(batch_size, read_count(shard_size, "samples") // batch_size * batch_size)
    source = None if is_map(dataset) else load_all(dataset, own)
    if source is None:
        R = probe(inquiry, first_samples(dataset, own))
    else:
        # An iterable may be read only once: what was looked at is put back.
        looked = list(itertools.islice(source, ATTEMPTS))
        R = probe(inquiry, looked)
        source = itertools.chain(looked, source)
    limits = Limits(k, read_count(rows, "rows"), choose_per_class(R, read, whole))
    job = Job(inquiry, dataset, own, limits, batch_size, shard_size, max_errors, threads or torch.get_num_threads())
    return replace(job, facts=identity(job, R)), source


def _read_targets(targets: Any, dataset: Any) -> tuple[Any, Any]:
    """Targets that samples have of their own, and the one of all."""
    if isinstance(targets, str) and targets == "label":
        return targets, None
    many = isinstance(targets, list | range) or (isinstance(targets, Tensor) and targets.ndim == 1)
    if not many and not (hasattr(targets, "__array__") and getattr(targets, "ndim", 0) == 1):
        return None, targets
    own = [int(target) for target in targets]
    if is_map(dataset) and len(own) != len(dataset):
        raise QuestionError("targets and samples do not match", got=f"{len(own)} targets", expected=str(len(dataset)))
    return own, None


def _run(job: Job, source: Iterator[Loaded] | None, progress: bool | None) -> Found:
    with bar(job.samples, progress) as shown:
        if source is None:
            tallies: Iterator[Tally] = (run_shard(job, shard, shown.update) for shard in job.shards)
        else:
            tallies = (run_samples(job, part, shown.update) for part in shards_of(source, job.shard_size))
        whole = fold_shards(_checked(tallies, job.max_errors))
    assert whole is not None
    if whole.notes:
        count, text = sum(whole.notes.values()), next(iter(whole.notes))
        warnings.warn(f"{count} batches had a remark, the first: {text}", NrmWarning, stacklevel=4)
    return Found(job.facts, whole)


def _checked(tallies: Iterator[Tally], allowed: int) -> Iterator[Tally]:
    errors: list[tuple[int, str]] = []
    for tally in tallies:
        errors += tally.errors
        check_errors(errors, allowed)
        yield tally


def bar(total: int | None, progress: bool | None) -> Any:
    """A progress bar of samples."""
    return tqdm(
        total=total, desc="samples", unit="", disable=progress is False, delay=0.0 if progress else 2.0, leave=False
    )


def shards_of(samples: Iterator[Loaded], size: int) -> Iterator[Iterator[Loaded]]:
    """The samples of an iterable, so many at a time."""
    for _, shard in itertools.groupby(samples, lambda sample: sample.number // size):
        yield shard
