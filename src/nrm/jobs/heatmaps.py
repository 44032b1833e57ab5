"""Heat maps of many samples: images in, maps out, in batches that fit into memory, into a folder if there is one."""

from __future__ import annotations

import contextlib
import itertools
import os
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, RandomSampler

from nrm.errors import NrmError, NrmWarning, QuestionError, ResultFileError
from nrm.files import mark_results
from nrm.jobs.answers import Failure, Inquiry, Sample, answer_safely, classes, open_measure, remarks
from nrm.jobs.datasets import Images, SampleOrFailure, batches, is_map, load_all, load_range, open_dataset
from nrm.jobs.heatmap import SUFFIX, Heatmap, read_heatmap
from nrm.jobs.job import ATTEMPTS, Facts, check_errors, explanation, first_good, first_samples, threads
from nrm.jobs.likeness import identify
from nrm.jobs.parts import writing
from nrm.jobs.questions import digest_of, read_asked
from nrm.jobs.relmax import bar, read_classes, read_own_target, remark
from nrm.jobs.samples import split_batch
from nrm.jobs.store import claim_folder
from nrm.measure import Measure, is_label, named_target, read_options
from nrm.memory import KEPT, memory_bound
from nrm.questions import Layer, Question
from nrm.search import read_count

MAPS = "maps"
"""The folder of the maps inside a store."""

MOST = 64
"""Samples that are explained together at most; more of them are no faster."""

WIDE = 2**22
"""Entries that the widest tensor of a batch has at most: larger ones leave the processor's caches."""

PEAK = 2
"""A measure takes less than so many times what it holds in the end while it is being made and asked for its input."""


def heatmaps(
    model: nn.Module, data: Any, *question: Any, target: Any = None, store: str | os.PathLike[str] | None = None,
    transform: Callable[[Any], Any] | None = None, class_names: Any = None, batch_size: int | None = None,
    memory: str | int = "auto", max_errors: int = 0, progress: bool | None = None, **options: Any,
) -> Heatmaps:  # fmt: skip
    """The heat maps of many samples, one after the other, as an iterator of :class:`nrm.jobs.Heatmap`.

    Args:
        model: the model.
        data: a folder of images (with ``transform``), a ``torch.utils.data.DataLoader``, or a data set or iterable of
            samples: inputs without a sample axis, or pairs (input, label).
        question: what ``R(...)`` is asked about every sample; the input, if nothing is given.
            ``nrm.input.positions`` sums over colours, ``(nrm.input, nrm.layer("conv").channel(3))`` is one channel's.
        target: what is explained: None (each sample's top class), a class, ``"label"``, one class per sample, or what
            else :func:`nrm.measure` takes. Folders and other classes with names are matched with the outputs by name.
        store: a folder for the maps, one file each (:func:`nrm.load` reads it), there as a whole or not at all. If the
            same call is made again, finished maps are read and not computed. Another model, rule, target, question or
            data set is refused.
        transform: for a folder of images: from an image to the model's input.
        class_names: which outputs the classes of the data set are, as :func:`nrm.relmax` takes it.
        batch_size: samples that are explained together; None: as many as ``memory`` has room for.
        memory: bytes, or text like "2 GiB", that a batch may take.
        max_errors: samples that may fail. They are left out and listed in ``.errors``.
        progress: a bar with rate and time left: True at once, None after a while, False never.
        options: those of :func:`nrm.measure`.

    >>> import torch, nrm
    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3)).eval()
    >>> for one in nrm.heatmaps(model, torch.rand(2, 1, 6, 6), target=1):
    ...     print(one.number, tuple(one.relevance.shape), one.target)
    0 (1, 6, 6) 1
    1 (1, 6, 6) 1
    """
    try:
        read_options(options)
        dataset = _Unbatched(data) if _gives_batches(data) else open_dataset(data, transform)
        if store is not None and isinstance(getattr(data, "sampler", None), RandomSampler):
            raise QuestionError(
                "a shuffled loader has another order each time", got="a DataLoader with shuffle=True and store=",
                expected="an order in which a job can go on", hint="shuffle=False",
            )  # fmt: skip
        if type(max_errors) is not int or max_errors < 0:
            raise QuestionError("not a number of bad samples", got=f"max_errors={max_errors!r}", expected="0, 1, ...")
        size = None if batch_size is None else read_count(batch_size, "samples", "batch_size")
        own, common = read_own_target(named_target(target, options.get("labels"), own=True), dataset)
        asked = read_asked(question or Layer("input"))
        inquiry = Inquiry(model, (asked,), common, "none", {"memory": memory, **options})
        if is_label(own):
            own = read_classes(inquiry, dataset, class_names)
        limits = _MapLimits(size, memory_bound(memory), max_errors, progress)
        return Heatmaps(inquiry, dataset, own, None if store is None else Path(store), limits)
    except NrmError as error:
        error.at("nrm.heatmaps")
        raise


@dataclass(frozen=True)
class _MapLimits:
    """What a job may take, and what it shows."""

    batch_size: int | None
    memory: int
    max_errors: int
    progress: bool | None


class Heatmaps(Iterator[Heatmap]):
    """The heat maps of many samples, made while they are asked for.

    ``samples`` is their number (None if only reading them all can tell), ``batch_size`` how many are explained
    together, ``errors`` has the samples that failed so far, ``store`` is the folder of the maps, if there is one.
    """

    def __init__(self, inquiry: Inquiry, dataset: Any, own: Any, store: Path | None, limits: _MapLimits) -> None:
        self._inquiry, self._dataset, self._own, self._limits = inquiry, dataset, own, limits
        self.store, self.samples = store, _count(dataset)
        self.errors: list[tuple[int, str]] = []
        self._done, self._notes = 0, dict[str, int]()
        # An iterable may be read only once: what was looked at is put back.
        self._source = None if is_map(dataset) else load_all(dataset, own)
        looked = [] if self._source is None else list(itertools.islice(self._source, ATTEMPTS))
        R = first_good(first_samples(dataset, own) if self._source is None else looked, self._try_out)
        self._source = None if self._source is None else itertools.chain(looked, self._source)
        self.batch_size = limits.batch_size or _fitting(R, limits.memory)
        self._threads = torch.get_num_threads()
        self._claimed = contextlib.ExitStack()
        if store is not None:
            self._claim(store, self._identity(R, looked))
        self._made = self._run()

    def __next__(self) -> Heatmap:
        return next(self._made)

    def close(self) -> None:
        """Ends the job early, so that another may use the store. At the end of the samples this happens by itself."""
        self._made.close()
        self._claimed.close()

    def __repr__(self) -> str:
        many = "an unknown number of" if self.samples is None else self.samples
        failed = f" ({len(self.errors)} failed)" if self.errors else ""
        return f"heat maps: {self._done} of {many} samples done{failed}, {self.batch_size} at a time"

    # ---- before the first map --------------------------------------------------------------------------------

    def _try_out(self, sample: Sample) -> Measure:
        """The measure of one sample, asked once: mistakes show up here, and what a sample takes."""
        with remarks():  # what measures warn of is told at the end
            R = open_measure(self._inquiry, [sample])
            R.ask(self._question)
        return R

    @property
    def _question(self) -> Question:
        return self._inquiry.questions[0]

    def _identity(self, R: Measure, looked: Sequence[SampleOrFailure]) -> Facts:
        """What tells this job from every other: model, rules, question, target, data."""
        question = self._question
        target = self._inquiry.targets if self._own is None else self._own
        return {
            **explanation(self._inquiry, R),
            "kind": "heat maps",
            "questions": [{"text": str(question), "digest": digest_of(question)}],
            "data": identify(self._dataset, target, looked),
        }

    def _claim(self, store: Path, facts: Facts) -> None:
        """Takes the store for this job alone, with its first batches and threads: the last bits depend on them."""
        with writing(store):
            mark_results(store)
        begun = {"threads": self._threads, "batch_size": self.batch_size}
        begun = self._claimed.enter_context(claim_folder(store, facts, begun))
        self._threads, self.batch_size = begun["threads"], self._limits.batch_size or begun["batch_size"]

    # ---- the maps --------------------------------------------------------------------------------------------

    def _run(self) -> Generator[Heatmap, None, None]:
        samples = self._source
        if samples is None:
            samples = load_range(self._dataset, range(len(self._dataset)), self._own, self.batch_size)
        with self._claimed, bar(self.samples, self._limits.progress) as shown:
            for batch in batches(samples, self.batch_size):
                self._fail([one for one in batch if isinstance(one, Failure)])
                for one in self._explain([one for one in batch if isinstance(one, Sample)]):
                    self._done += 1
                    yield one
                shown.update(len(batch))
        remark(self._notes)

    def _explain(self, samples: list[Sample]) -> list[Heatmap]:
        """The maps of a batch, those that are there already as they are."""
        kept = {sample.number: self._read(sample) for sample in samples}
        missing = [sample for sample in samples if kept[sample.number] is None]
        made: dict[int, Heatmap] = {}
        if missing:
            # The whole batch, not only what is missing: the last bits depend on it.
            with threads(self._threads):
                answers, failures = answer_safely(self._measure, samples)
            made = {one.number: one for some in answers for one in some}
            for sample in missing:
                if sample.number in made:
                    self._write(made[sample.number])
            self._fail(failures)
        found = [kept[sample.number] or made.get(sample.number) for sample in samples]
        return [one for one in found if one is not None]

    def _measure(self, samples: Sequence[Sample]) -> list[Heatmap]:
        with remarks() as notes, open_measure(self._inquiry, samples) as R:
            maps = R.ask(self._question).detach().cpu()
            targets, predictions = classes(R.target, len(R)), classes(R.prediction, len(R))
            values = R.value.double().tolist()
        for note in notes:
            self._notes[note] = self._notes.get(note, 0) + 1
        return [
            Heatmap(
                sample.number, self._name(sample), maps[i].clone(), values[i], _known(targets[i]),
                _known(predictions[i]), sample.label, str(self._question), sample.input, tuple(notes),
            )
            for i, sample in enumerate(samples)
        ]  # fmt: skip

    def _fail(self, failures: Sequence[Failure]) -> None:
        self.errors += [(failure.number, failure.text) for failure in failures]
        check_errors(self.errors, self._limits.max_errors)

    # ---- the folder ------------------------------------------------------------------------------------------

    def _name(self, sample: Sample) -> str:
        return self._dataset.files[sample.number] if isinstance(self._dataset, Images) else f"{sample.number:08d}"

    def _path(self, name: str) -> Path | None:
        return None if self.store is None else self.store / MAPS / f"{name}{SUFFIX}"

    def _read(self, sample: Sample) -> Heatmap | None:
        """A map that is there already; a damaged one is made again."""
        path = self._path(self._name(sample))
        if path is None or not path.exists():
            return None
        try:
            return read_heatmap(path, sample, self._name(sample))
        except ResultFileError as error:
            warnings.warn(f"{error}\nIts map is made again.", NrmWarning, stacklevel=2)
            return None

    def _write(self, one: Heatmap) -> None:
        path = self._path(one.name)
        if path is not None:
            with writing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                one.save(path)


def _fitting(R: Measure, memory: int) -> int:
    """How many samples like those of a measure are explained together: as many as are faster so than alone.

    A batch whose activations are too many for the measure's own memory would have them computed twice.
    """
    tape = R.inner.tape
    widest = max(node.shape.numel() for node in tape.nodes)
    lean = any(node.block is not None for node in tape.nodes)
    plain = MOST if lean else R.inner.memory // KEPT // max(1, tape.nbytes)
    return max(1, min(MOST, memory // (PEAK * R.nbytes), plain, WIDE // max(1, widest)))


class _Unbatched:
    """The samples of a loader's batches, one by one."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.loader, self.dataset = loader, loader.dataset

    def __iter__(self) -> Iterator[Any]:
        return (sample for batch in self.loader for sample in split_batch(batch))


def _gives_batches(data: Any) -> bool:
    return isinstance(data, DataLoader) and data.batch_sampler is not None


def _count(dataset: Any) -> int | None:
    """How many samples there are, if that is known."""
    if not isinstance(dataset, _Unbatched):
        return len(dataset) if is_map(dataset) else None
    loader = dataset.loader
    if loader.batch_size is None or isinstance(loader.dataset, IterableDataset):
        return None
    if loader.drop_last:
        return len(loader) * loader.batch_size
    return len(loader.sampler) if isinstance(loader.sampler, Sized) else None


def _known(label: int) -> int | None:
    """A class, or None where outputs are no classes."""
    return None if label < 0 else label
