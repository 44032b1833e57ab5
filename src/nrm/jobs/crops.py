"""Pictures of the best samples: the part of the input that the neuron at a block's peak can see."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nrm.errors import QuestionError
from nrm.jobs.answers import Failure
from nrm.jobs.datasets import is_map, load, refuse_folder
from nrm.jobs.hits import Hit
from nrm.jobs.questions import joined_sets
from nrm.jobs.samples import collate, on_device
from nrm.jobs.store import Store
from nrm.measure import Box, Fields, Loop, Measure, last_set, meeting_peaks
from nrm.questions import Layer, Question, Set
from nrm.results import load as load_results, save as save_results

SIDE = 96
"""Pixels of a crop's longer side at most."""


class Crops:
    """Cuts the receptive fields of peaks out of the images of a data set.

    ``blocks`` are the sets whose samples are shown, several for a pair; without any, or without a model, images stay
    whole. Fields follow from the geometry of the network for images of the size of the first one, and are known after
    one measure. The peak of a pair that a job left open takes a measure of its sample. ``options`` are those of
    :func:`nrm.measure` that the job had.
    """

    def __init__(self, model: nn.Module | None, dataset: Any, *blocks: Set | Layer, **options: Any) -> None:
        refuse_folder(dataset)
        if not is_map(dataset):
            raise QuestionError("crops need samples by their number", expected="a map-style data set")
        self._model, self._dataset, self._options = model, dataset, options
        self._loop = Loop()
        self._blocks = blocks if model is not None else ()
        self._fields: dict[tuple[int, ...], tuple[Fields, tuple[int, ...]]] = {}

    def __repr__(self) -> str:
        about = ", ".join(map(str, self._blocks)) or "whole images"
        return f"crops of {len(self._dataset)} samples: {about}"

    def of(self, hit: Hit) -> Tensor:
        """The crop of one hit as ``(channels, height, width)`` of bytes, the range of its image stretched."""
        image = self.image(hit.sample)
        low, high = float(image.min()), float(image.max())
        box = self.box(hit, image)
        part = image[(slice(None), *(slice(a, b) for a, b in box))]
        part = (part - low) / (high - low) if high > low else torch.full_like(part, 0.5)
        scale = SIDE / max(part.shape[1:])
        if scale < 1:
            size = [max(1, round(n * scale)) for n in part.shape[1:]]
            part = torch.nn.functional.interpolate(part[None], size, mode="area")[0]
        return (part * 255).round().byte()

    def image(self, sample: int) -> Tensor:
        """The input of a sample, which must be a picture."""
        image = self._read(sample)
        if not isinstance(image, Tensor) or image.ndim != 3 or image.shape[0] not in (1, 3):
            raise QuestionError("the sample is not a picture", where=f"sample {sample}", expected="(1 or 3, H, W)")
        return image.detach().cpu().float()

    def locate(self, hit: Hit) -> Hit:
        """The hit with the place of its peak, as far as there is one."""
        sets = joined_sets(Question(self._blocks)) if len(self._blocks) > 1 else ()
        if hit.place is not None or not sets:
            return hit
        target = {} if hit.target is None or hit.target < 0 else {"target": hit.target}
        with self._measure(self._read(hit.sample), **target) as R:
            sign = R(*sets).sign() * (1 if hit.score >= 0 else -1)  # shares of a negative output count the other way
            at = meeting_peaks(R, sets, sign)[0, 0]
            place = torch.unravel_index(at, R(last_set(R, sets).layer).shape[1:])
        return replace(hit, place=tuple(int(i) for i in place))

    def box(self, hit: Hit, image: Tensor) -> Box:
        """The receptive field of the neuron at a hit's peak; the whole image where there is none."""
        whole = tuple((0, n) for n in image.shape[1:])
        place = self.locate(hit).place
        if place is None or not self._blocks:
            return whole
        if tuple(image.shape) not in self._fields:
            self._fields[tuple(image.shape)] = self._follow(image)
        fields, shape = self._fields[tuple(image.shape)]
        box = fields.of(int(np.ravel_multi_index(place, shape)) if shape else 0)
        return box if len(box) == 2 and all(b > a for a, b in box) else whole

    def _follow(self, image: Tensor) -> tuple[Fields, tuple[int, ...]]:
        R = self._measure(image)
        block = self._blocks[0]
        layer = (
            block if isinstance(block, Layer) else last_set(R, [b for b in self._blocks if isinstance(b, Set)]).layer
        )
        return Fields(R, layer), tuple(R.values(layer).shape[1:])

    def _measure(self, item: Any, **changes: Any) -> Measure:
        assert self._model is not None
        options = {"progress": False} | self._options | changes
        return self._loop.measure(self._model, on_device(collate([item]), self._model), **options)

    def _read(self, sample: int) -> Any:
        found = load(self._dataset, sample, None)
        if isinstance(found, Failure):
            raise QuestionError("a sample cannot be read", where=f"sample {sample}", got=found.text)
        return found.input


FILE = "crops.safetensors"


def keep_crops(
    store: Store, model: nn.Module, dataset: Any, *blocks: Any, k: int = 9, by: str = "relevance", **options: Any
) -> None:
    """Writes the crops of some blocks into the store, so that galleries need neither model nor data set.

    ``blocks`` are sets such as ``a.channel(12)``, or tuples of them for pairs. ``options`` are those of
    :func:`nrm.measure` that the job had.
    """
    path = store.path / FILE
    known: dict[str, Any] = dict(load_results(path).tensors) if path.exists() else {}
    for block in blocks:
        parts = block if isinstance(block, tuple) else (block,)
        crops = Crops(model, dataset, *parts, **options)
        for rank, hit in enumerate(store.top(*parts, k=k, by=by)):
            known[crop_name(parts, by, rank)] = crops.of(hit)
    save_results(path, **known)


def kept_crops(store: Store, parts: tuple[Any, ...], by: str, count: int) -> list[Tensor]:
    """The crops of a block that the store keeps, best first."""
    path = store.path / FILE
    known = load_results(path).tensors if path.exists() else {}
    names = [crop_name(parts, by, rank) for rank in range(count)]
    if not all(name in known for name in names):
        raise QuestionError(
            "the store has no crops of this block", got=", ".join(map(str, parts)), expected="crops that were kept",
            hint="nrm.plot.gallery(..., model=model, dataset=dataset), or nrm.jobs.keep_crops(store, ...)",
        )  # fmt: skip
    return [known[name] for name in names]


def crop_name(parts: tuple[Any, ...], by: str, rank: int) -> str:
    """The name of a crop in the store's file."""
    return f"{', '.join(map(str, parts))} {by} {rank}"
