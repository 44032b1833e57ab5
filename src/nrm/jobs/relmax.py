"""Relevance maximization over a data set: the samples, and the places in them, where blocks count most."""

from __future__ import annotations

import contextlib
import itertools
import operator
import os
import signal
import threading
import warnings
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from tqdm.auto import tqdm

from nrm.errors import NrmError, NrmWarning, QuestionError
from nrm.jobs.answers import Inquiry
from nrm.jobs.datasets import SampleOrFailure, is_map, load_all, open_dataset
from nrm.jobs.engines import Done, Task, choose, default_threads, run_here
from nrm.jobs.job import (
    ATTEMPTS,
    Job,
    check_errors,
    choose_per_class,
    first_samples,
    identity,
    probe,
    remember,
    run_samples,
)
from nrm.jobs.parts import ShardSpan, write_part
from nrm.jobs.questions import read_asked
from nrm.jobs.ranking import FoundRanking, Ranking
from nrm.jobs.store import Shelf, Store, claim_store, close, is_finished
from nrm.jobs.tally import Limits, fold_shards
from nrm.measure import LABEL, Classes, dataset_names, is_label, match_classes, named_target, read_options, read_weight
from nrm.search import read_count

Engine = Callable[[Task, Sequence[int], Callable[[int], None]], Iterator[Done]]

ROWS = 200_000
"""Rows of best samples that are kept of one question."""


def relmax(
    model: nn.Module, dataset: Any, *questions: Any, target: Any = None, k: int = 40,
    store: str | os.PathLike[str] | None = None, weight: str = "logit", engine: str = "local",
    workers: int | None = None, gpus: float = 0, shards: Container[int] | None = None,
    batch_size: int = 16, shard_size: int = 256, max_errors: int = 0, rows: int = ROWS,
    per_class: bool | int | None = None, transform: Callable[[Any], Any] | None = None, class_names: Any = None,
    threads: int | None = None, progress: bool | None = None, **options: Any,
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
        target: what is explained: None (each sample's top class), a class by number or name, ``"label"`` (the class
            that the data set says), one class per sample, or what else :func:`nrm.measure` takes.
        k: how many samples of every block are kept.
        store: a folder for the results (needs the extra ``store``). A job that was stopped, in whatever way, goes on
            from its finished shards if it is run again with the same arguments; :func:`nrm.open_store` reads it.
        weight: how samples are compared. A relevance is a share of the sample's output; it is multiplied with the
            explained output (``"logit"``), its softmax probability (``"softmax"``), or nothing (``"none"``).
        engine: ``"local"``, or ``"ray"`` for the actors of Ray: of the cluster that this process (or the variable
            RAY_ADDRESS) is connected to, else of this machine. Then the store is a folder that all workers see.
        workers: processes or actors. Scripts that use several need ``if __name__ == "__main__":``.
        gpus: of each worker of Ray.
        shards: with a store, do only these shards; :func:`nrm.jobs.merge_stores` makes one store of several.
        batch_size: samples that are explained together.
        shard_size: samples that are one unit of work: a multiple of ``batch_size``.
        max_errors: samples that may fail. They are left out and listed in ``.errors``.
        rows: how many best samples of one question are kept in all. With more blocks than there is room for, those with
            the largest scores of all blocks; :meth:`Ranking.top` says where something may be missing.
        per_class: whether statistics of every target are kept; None: of questions for which they fit into memory, and
            of others the 1,024 blocks with the largest means, with bounds (:meth:`Ranking.best`). A number: so many.
        transform: for a folder of images: from an image to the model's input.
        class_names: for ``target="label"`` of a data set whose classes have names (folders, torchvision, Hugging Face).
            They are matched with the outputs by name: those of ``labels={"output": [...]}``, else plain numbers. Where
            they are called otherwise (WordNet ids), this is a mapping from the data set's names to outputs (by number
            or name), or the data set's names in the order of the outputs. What does not match is refused.
        threads: of torch; the last bits of results depend on it.
        progress: a bar with rate and time left: True at once, None after a while, False never.
        options: those of :func:`nrm.measure`.

    >>> import torch, nrm
    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> found = relmax(model, torch.randn(20, 4), nrm.layer("1").channels, k=5)
    >>> len(found.top(nrm.layer("1").channel(3)))
    5
    """
    try:
        read_options(options)
        job, source = _plan(
            model, open_dataset(dataset, transform), questions, (target, class_names), weight, options,
            (k, rows, batch_size, shard_size, max_errors, threads or default_threads(engine, workers), per_class),
        )  # fmt: skip
        run = choose(engine, workers, gpus)
        if source is not None and run is not run_here:
            raise QuestionError(
                "an iterable data set cannot be shared out", got=f"engine={engine!r}, workers={workers}",
                expected="a map-style data set", hint="workers=1",
            )  # fmt: skip
        if store is None:
            return _run(job, source, run, progress)
        return _run_stored(job, source, run, progress, Path(store), shards)
    except NrmError as error:
        error.at("nrm.relmax")
        raise


def _plan(
    model: nn.Module, dataset: Any, questions: tuple[Any, ...], explained: tuple[Any, Any], weight: str,
    options: dict[str, Any], sizes: tuple[Any, ...],
) -> tuple[Job, Iterator[SampleOrFailure] | None]:  # fmt: skip
    """The job, tried on a first sample, and the samples of an iterable data set."""
    k, rows, batch_size, shard_size, max_errors, threads, whole = sizes
    if not questions:
        raise QuestionError("nothing was asked", hint="nrm.relmax(model, dataset, nrm.layer('conv').channels)")
    read = tuple(read_asked(question) for question in questions)
    own, common = read_own_target(named_target(explained[0], options.get("labels"), own=True), dataset)
    inquiry = Inquiry(model, read, common, read_weight(weight), options)
    if is_label(own):
        own = read_classes(inquiry, dataset, explained[1])
    k, batch_size = read_count(k, "samples"), read_count(batch_size, "samples", "batch_size")
    shard_size = max(batch_size, read_count(shard_size, "samples", "shard_size") // batch_size * batch_size)
    if type(max_errors) is not int or max_errors < 0:
        raise QuestionError("not a number of bad samples", got=f"max_errors={max_errors!r}", expected="0, 1, ...")
    source = None if is_map(dataset) else load_all(dataset, own)
    looked: list[SampleOrFailure] = []
    if source is None:
        R = probe(inquiry, first_samples(dataset, own))
    else:
        # An iterable may be read only once: what was looked at is put back.
        looked = list(itertools.islice(source, ATTEMPTS))
        R = probe(inquiry, looked)
        source = itertools.chain(looked, source)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NrmWarning)  # the remarks of all samples are told at the end
        limits = Limits(k, read_count(rows, "rows", "rows"), **choose_per_class(R, read, whole))
        job = Job(inquiry, dataset, own, limits, batch_size, shard_size, max_errors, threads)
        return replace(job, facts=identity(job, R, looked)), source


def read_own_target(target: Any, dataset: Any) -> tuple[Any, Any]:
    """Targets that samples have of their own, and the one of all."""
    if is_label(target):
        return target, None
    many = isinstance(target, list | range) or (isinstance(target, Tensor) and target.ndim == 1)
    if not many and not (hasattr(target, "__array__") and getattr(target, "ndim", 0) == 1):
        return None, target
    own = [_class(one) for one in target]
    if is_map(dataset) and len(own) != len(dataset):
        raise QuestionError("targets and samples do not match", got=f"{len(own)} targets", expected=str(len(dataset)))
    return own, None


def _class(one: Any) -> int:
    """The class of one sample; a number that is not whole is no class, and is not rounded to one."""
    given: Any = None if isinstance(one, bool) else one
    try:
        return operator.index(given)
    except TypeError:
        raise QuestionError(
            "the target of a sample is a class", got=repr(one)[:120], expected="one integer for each sample",
            hint="target=(-1, TOKEN) explains one token of all texts",
        ) from None  # fmt: skip


def read_classes(inquiry: Inquiry, dataset: Any, class_names: Any) -> Any:
    """The outputs that the data set's classes are; its labels themselves where classes have no names."""
    names = dataset_names(dataset)
    if names is None:
        if class_names is not None:
            raise QuestionError(
                "the classes of the data set have no names", got="class_names=", expected="labels as they are",
                hint="class_names is for folders, and for data sets that name their classes",
            )  # fmt: skip
        return LABEL
    blank = replace(inquiry, questions=(), targets=None)
    R = probe(blank, first_samples(dataset, None)) if is_map(dataset) else None
    outputs = None if R is None else (R.values(R.output).shape[1:] or (1,))[-1]
    return Classes(names, match_classes(names, inquiry.options.get("labels"), class_names, outputs))


def _run(job: Job, source: Iterator[SampleOrFailure] | None, engine: Engine, progress: bool | None) -> FoundRanking:
    """The whole job in memory."""
    with bar(job.samples, progress) as shown:
        if source is None:
            done = _checked(engine(Task(job, None), job.shards, shown.update), job.max_errors)
            tallies = (one.tally for one in in_order(done) if one.tally is not None)
        else:
            tallies = (run_samples(job, part, shown.update, {}) for _, part in shards_of(source, job.shard_size))
        whole = fold_shards(tallies)
    assert whole is not None
    check_errors(whole.errors, job.max_errors)
    remark(whole.notes)
    return FoundRanking(job.facts, whole)


def _run_stored(
    job: Job, source: Iterator[SampleOrFailure] | None, engine: Engine, progress: bool | None, path: Path, only: Any
) -> Store:
    """The whole job, or what is left of it, with its shards written to a store."""
    if is_finished(path, job.facts):
        found = Store(path)
        check_errors(found.errors, job.max_errors)
        remark(found.notes)
        return found
    with claim_store(path, job.facts, job.threads) as (shelf, threads), terminable(path):
        task = Task(replace(job, threads=threads), shelf.parts)
        finished = shelf.finished()
        errors = [] if not finished else Store(path).errors
        check_errors(errors, job.max_errors)
        with bar(job.samples, progress) as shown:
            shown.update(min(len(finished) * job.shard_size, job.samples or len(finished) * job.shard_size))
            if source is None:
                left = [shard for shard in job.shards if shard not in finished and (only is None or shard in only)]
                for done in _checked(engine(task, left, shown.update), job.max_errors, errors):
                    if done.shard not in finished:
                        shelf.fold_groups(len(job.shards))
            else:
                _store_iterable(task, source, shelf, shown.update, errors)
        close(shelf, job.facts)
    store = Store(path)
    remark(store.notes)
    return store


def _store_iterable(
    task: Task,
    source: Iterator[SampleOrFailure],
    shelf: Shelf,
    tick: Callable[[int], None],
    errors: list[tuple[int, str]],
) -> None:
    """The shards of an iterable data set, which has to be read from its beginning."""
    finished, last = shelf.finished(), 0
    for shard, samples in shards_of(source, task.job.shard_size):
        last = shard + 1
        if shard in finished:
            continue
        tally = run_samples(task.job, samples, tick, task.known)
        errors += tally.errors
        check_errors(errors, task.job.max_errors)
        write_part(shelf.parts, ShardSpan(shard, shard + 1), tally)
        remember(task.known, tally)
        shelf.fold_groups(None)
    shelf.fold_all(last)


@contextmanager
def terminable(path: Path) -> Iterator[None]:
    """A job that is told to stop says that nothing is lost, and how to go on."""
    text = f"nrm.relmax was stopped. Finished shards are safe in {os.fspath(path)}: run it again to go on."

    def stop(*_: Any) -> None:
        raise SystemExit(text)

    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, stop) if main else None
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(text) from None
    finally:
        if main:
            signal.signal(signal.SIGTERM, before)


def remark(notes: dict[str, int]) -> None:
    """Tells once what the measures of many batches warned of."""
    if notes:
        text = f"{sum(notes.values())} batches had a remark, the first: {next(iter(notes))}"
        warnings.warn(text, NrmWarning, stacklevel=4)


def _checked(shards: Iterator[Done], allowed: int, errors: list[tuple[int, str]] | None = None) -> Iterator[Done]:
    errors = [] if errors is None else errors
    with contextlib.closing(shards):  # type: ignore[type-var]
        for done in shards:
            errors += done.errors
            check_errors(errors, allowed)
            yield done


def in_order(shards: Iterator[Done]) -> Iterator[Done]:
    """Finished shards by their numbers, each as soon as those before it are there."""
    waiting: dict[int, Done] = {}
    following = 0
    for done in shards:
        waiting[done.shard] = done
        while following in waiting:
            yield waiting.pop(following)
            following += 1


def bar(total: int | None, progress: bool | None, what: str = "samples", items: Any = None) -> Any:
    """A progress bar of samples, or of other items that it goes through."""
    hidden, delay = progress is False, 0.0 if progress else 2.0
    return tqdm(items, total=total, desc=what, unit="", disable=hidden, delay=delay, leave=False)


def shards_of(samples: Iterator[SampleOrFailure], size: int) -> Iterator[tuple[int, Iterator[SampleOrFailure]]]:
    """The shards of an iterable, with their numbers."""
    return itertools.groupby(samples, lambda sample: sample.number // size)
