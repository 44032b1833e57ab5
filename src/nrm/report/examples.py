"""Reference examples: the samples of a data set in which blocks of a network count most, as pictures and numbers."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from nrm.errors import QuestionError
from nrm.jobs import Crops, Hit, Ranking, Store, identify, kept_crops, open_store, refuse_folder
from nrm.measure import model_digest
from nrm.questions import Layer, Set

if TYPE_CHECKING:
    from nrm.measure import Measure

EXAMPLES = 9
"""How many are shown of a block."""


class References:
    """What a finished ``nrm.relmax`` knows of blocks.

    Pictures are cut out of ``dataset`` (with ``model``, to what the neuron at the peak can see), or taken from the
    store, where ``nrm.jobs.keep_crops`` left them. Without both, samples are told by their numbers.
    """

    def __init__(
        self, found: Ranking, model: nn.Module | None = None, dataset: Any = None,
        options: Mapping[str, Any] | None = None, classes: Sequence[str] = (),
    ) -> None:  # fmt: skip
        refuse_folder(dataset)
        _refuse_others(found, model, dataset)
        self._found, self._model, self._dataset = found, model, dataset
        self._options, self._classes = dict(options or {}), classes
        self._crops: dict[tuple[Layer, ...], Crops] = {}

    def of(self, blocks: Sequence[Set]) -> dict[str, Any] | None:
        """The best samples of a block, or of two at once; None if the job did not ask for them."""
        try:
            hits = self._found.top(*blocks, k=min(EXAMPLES, self._found.facts["k"]))
        except QuestionError:
            return None
        pictures = self._pictures(tuple(blocks), list(hits))
        listed = [
            {"sample": hit.sample, "score": hit.score, "label": self._name(hit),
             "picture": None if picture is None else _packed(picture)}
            for hit, picture in zip(hits, pictures, strict=True)
        ]  # fmt: skip
        return {"hits": listed, "note": hits.note}

    def _pictures(self, blocks: tuple[Set, ...], hits: list[Hit]) -> list[Tensor | None]:
        try:
            if self._dataset is not None:
                # Where a pair peaks takes a measure of every sample, unless the job has kept it: images stay whole.
                seen = blocks if all(hit.place is not None for hit in hits) else ()
                key = tuple(block.layer for block in seen)
                if key not in self._crops:
                    self._crops[key] = Crops(self._model, self._dataset, *seen, **self._options)
                return [self._crops[key].of(hit) for hit in hits]
            if isinstance(self._found, Store):
                return list(kept_crops(self._found, blocks, "relevance", len(hits)))
        except QuestionError:  # samples that are no pictures, or were not kept
            pass
        return [None] * len(hits)

    def _name(self, hit: Hit) -> str:
        """The class of a sample: in the data set's own words, unless its classes were matched with the outputs."""
        data = self._found.facts["data"]
        if hit.label is not None and "classes" in data and not isinstance(data["targets"], dict):
            return str(data["classes"][hit.label])
        number = hit.target if hit.label is None else hit.label
        if number is None or number < 0:
            return ""
        return str(self._classes[number]) if number < len(self._classes) else f"class {number}"


def _refuse_others(found: Ranking, model: nn.Module | None, dataset: Any) -> None:
    """Refuses a model or a data set that the job did not see: its samples would be evidence of something else."""
    if model is not None and model_digest(model) != found.facts["model"]:
        raise QuestionError(
            "the examples are of another model", expected="the model and weights that nrm.relmax ran on",
            hint="run nrm.relmax again with this model",
        )  # fmt: skip
    if dataset is not None:
        known, own = found.facts["data"], identify(dataset, None)
        if any(known[name] != own[name] for name in ("samples", "probes")):
            raise QuestionError(
                "the examples are of another data set", got=f"{own['samples']} samples",
                expected=f"the {known['samples']} samples that nrm.relmax ran on, with the same transform",
            )  # fmt: skip


def read_references(R: Measure, store: Any, dataset: Any) -> References | None:
    """What a user hands over: nothing, references, the results of a job, or the folder it wrote to."""
    if store is None or isinstance(store, References):
        return store
    found = store if isinstance(store, Ranking) else open_store(store)
    names = R.labels.get("output", ())
    return References(found, R.inner.origin.model, dataset, classes=[str(name) for name in names])


def _packed(picture: Tensor) -> dict[str, Any]:
    """Bytes ``(channels, height, width)`` as plain data."""
    pixels = picture.permute(1, 2, 0).contiguous().numpy()
    return {"kind": "image", "shape": list(pixels.shape), "data": base64.b64encode(pixels.tobytes()).decode()}
