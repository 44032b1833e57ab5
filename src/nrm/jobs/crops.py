"""Pictures of the best samples: the part of the input that the neuron at a block's peak can see."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nrm.errors import QuestionError
from nrm.jobs.answers import Failure
from nrm.jobs.datasets import is_map, load
from nrm.jobs.ranking import Hit
from nrm.jobs.store import Store
from nrm.measure import measure
from nrm.measure.peaks import Box, Fields
from nrm.questions import Layer
from nrm.results import load as load_results
from nrm.results import save as save_results

SIDE = 96
"""Pixels of a crop's longer side at most."""


class Crops:
    """Cuts the receptive fields of peaks out of the images of a data set.

    ``layer`` is where the peaks are, None for whole images. Fields follow from the geometry of the network for images
    of the size of the first one, and are known after one measure.
    """

    def __init__(self, model: torch.nn.Module, dataset: Any, layer: Layer | None = None, **options: Any) -> None:
        if not is_map(dataset):
            raise QuestionError("crops need samples by their number", expected="a map-style data set")
        self._dataset, self._layer, self._model, self._options = dataset, layer, model, options
        self._fields: dict[tuple[int, ...], tuple[Fields, tuple[int, ...]]] = {}

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
        found = load(self._dataset, sample, None)
        if isinstance(found, Failure):
            raise QuestionError("a sample cannot be read", where=f"sample {sample}", got=found.text)
        image = found.input
        if not isinstance(image, Tensor) or image.ndim != 3 or image.shape[0] not in (1, 3):
            raise QuestionError("the sample is not a picture", where=f"sample {sample}", expected="(1 or 3, H, W)")
        return image.detach().cpu().float()

    def box(self, hit: Hit, image: Tensor) -> Box:
        """The receptive field of the neuron at a hit's peak; the whole image where there is none."""
        whole = tuple((0, n) for n in image.shape[1:])
        if hit.place is None or self._layer is None:
            return whole
        key = tuple(image.shape)
        if key not in self._fields:
            device = next((p.device for p in self._model.parameters()), torch.device("cpu"))
            R = measure(self._model, image[None].to(device), progress=False, **self._options)
            self._fields[key] = (Fields(R, self._layer), tuple(R.values(self._layer).shape[1:]))
        fields, shape = self._fields[key]
        flat = 0
        for i, n in zip(hit.place, shape, strict=True):
            flat = flat * n + i
        box = fields.of(flat)
        return box if len(box) == 2 and all(b > a for a, b in box) else whole


FILE = "crops.safetensors"


def keep_crops(
    store: Store, model: torch.nn.Module, dataset: Any, *blocks: Any, k: int = 9, by: str = "relevance", **options: Any
) -> None:
    """Writes the crops of some blocks into the store, so that galleries need neither model nor data set.

    ``blocks`` are sets such as ``a.channel(12)``, or tuples of them; pairs have whole images. ``options`` are those of
    :func:`nrm.measure` that make the network's capture possible.
    """
    path = store.path / FILE
    known: dict[str, Any] = dict(load_results(path).tensors) if path.exists() else {}
    for block in blocks:
        parts = block if isinstance(block, tuple) else (block,)
        crops = Crops(model, dataset, parts[0].layer if len(parts) == 1 else None, **options)
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
