"""Any data set as samples with numbers: read ahead, errors kept with the sample that has them."""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from nrm.errors import JobError, NrmError, QuestionError, readable
from nrm.files import SUFFIXES, files_below, read_image
from nrm.jobs.answers import Failure, Sample, describe
from nrm.jobs.samples import split_label
from nrm.measure import Classes, is_label, refuse_batches

AHEAD = 2
"""Batches that are read while one is being explained."""

SampleOrFailure = Sample | Failure


def open_dataset(dataset: Any, transform: Callable[[Any], Any] | None) -> Any:
    """A data set as it is, or the images of a folder with one folder for each class."""
    if isinstance(dataset, str | os.PathLike):
        return Images(dataset, transform)
    if transform is not None:
        raise QuestionError("only folders of images take a transform", hint="give the data set its own transform")
    if not (is_map(dataset) or isinstance(dataset, Iterable)) or isinstance(dataset, dict):
        raise QuestionError(
            "not a data set", got=type(dataset).__name__, expected="a torch Dataset, an iterable of samples, a folder"
        )
    refuse_batches(dataset)
    return dataset


class Images:
    """The images in a folder and below, in the order of their names, as a data set.

    ``transform`` makes an input of the model, without a sample axis, of an RGB image. ``files`` are the names of the
    images; ``classes`` are the folders that they are in, whose numbers are the labels.
    """

    def __init__(self, folder: str | os.PathLike[str], transform: Callable[[Any], Any] | None) -> None:
        folder = Path(folder)
        if not folder.is_dir():
            raise QuestionError("no such folder of images", got=os.fspath(folder), expected="a folder")
        if transform is None:
            raise QuestionError(
                "images need a transform", expected="transform=, a function from an RGB image to the model's input"
            )
        self.files = files_below(folder, SUFFIXES)
        self.classes = sorted({name.rpartition("/")[0] for name in self.files} - {""})
        self.folder, self.transform = folder, transform

    def __repr__(self) -> str:
        classes = f" in {len(self.classes)} classes" if self.classes else ""
        return f"{len(self.files)} images{classes} below {os.fspath(self.folder)!r}"

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> Any:
        name = self.files[number]
        try:
            picture = read_image(self.folder / name)
        except NrmError as error:
            raise error.at(readable(name)) from None
        inputs = self.transform(picture)
        group = name.rpartition("/")[0]
        return (inputs, self.classes.index(group)) if group else inputs


def is_map(dataset: Any) -> bool:
    """Whether samples can be had by their number."""
    return hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__") and not isinstance(dataset, str)


def refuse_folder(dataset: Any) -> None:
    """Refuses the name of a folder where samples are needed, which only a transform makes of images."""
    if isinstance(dataset, str | os.PathLike):
        raise QuestionError(
            "the name of a folder is no data set", got=f"dataset={os.fspath(dataset)!r}",
            expected="the data set that nrm.relmax ran on", hint="dataset=nrm.jobs.Images(folder, transform)",
        )  # fmt: skip


def read_target(own: Any, number: int, label: int | None) -> int | None:
    """The target of one sample, where samples have their own: their label, or an entry of a list."""
    if isinstance(own, Classes) or is_label(own):
        if label is None:
            raise QuestionError("the sample has no label", got="target='label'", expected="pairs (input, label)")
        return label
    if isinstance(own, list):
        if number >= len(own):
            raise QuestionError("targets and samples do not match", got=f"{len(own)} targets")
        return int(own[number])
    return None


def load(dataset: Any, number: int, own: Any) -> SampleOrFailure:
    """One sample of a map-style data set, or why there is none."""
    return _read(lambda: dataset[number], number, own)


def _read(get: Callable[[], Any], number: int, own: Any) -> SampleOrFailure:
    try:
        inputs, label = split_label(get())
        if isinstance(own, Classes) and label is not None:
            label = own.of(label)
        return Sample(number, inputs, label, read_target(own, number, label))
    except StopIteration:
        raise
    except Exception as error:
        return Failure(number, describe(error))


def load_range(dataset: Any, numbers: range, own: Any, batch: int) -> Iterator[SampleOrFailure]:
    """Samples of a map-style data set in their order, read by one thread ahead of their use."""
    with ThreadPoolExecutor(1) as reader:
        waiting = iter(numbers)
        ahead = itertools.islice(waiting, AHEAD * batch)
        pending = deque(reader.submit(load, dataset, i, own) for i in ahead)
        while pending:
            loaded = pending.popleft().result()
            pending.extend(reader.submit(load, dataset, i, own) for i in itertools.islice(waiting, 1))
            yield loaded


def load_all(samples: Iterable[Any], own: Any) -> Iterator[SampleOrFailure]:
    """The samples of an iterable, numbered as they come. If it breaks in the middle, the job cannot go on."""
    waiting = iter(samples)
    for number in itertools.count():
        try:
            item = next(waiting)
        except StopIteration:
            return
        except Exception as error:
            raise JobError(
                "the data set broke off", where=f"sample {number}", got=describe(error),
                hint="a map-style data set can leave a bad sample out",
            ) from error  # fmt: skip
        yield _read(lambda item=item: item, number, own)  # type: ignore[misc]


def batches(samples: Iterable[SampleOrFailure], size: int) -> Iterator[list[SampleOrFailure]]:
    """Samples by their numbers: batch j has those from ``j size`` on, so that batches never depend on shards."""
    for _, batch in itertools.groupby(samples, lambda sample: sample.number // size):
        yield list(batch)
