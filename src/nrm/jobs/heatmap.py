"""One heat map among many: what it explains, how it is drawn, and how it is kept."""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from nrm.errors import ResultFileError
from nrm.jobs.answers import Sample
from nrm.results import load, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIX = ".safetensors"


@dataclass(frozen=True, eq=False, repr=False)
class Heatmap:
    """The heat map of one sample, with what it explains.

    ``relevance`` has the axes of the question without that of the samples: of the input, its shape. ``number`` counts
    the samples, ``name`` is the file of a folder of images, else the number. ``target`` is the explained class (None
    where outputs are no classes), ``value`` the explained output, ``label`` that of the data set. ``input`` is what the
    data set gave, ``notes`` what its batch was warned of.
    """

    number: int
    name: str
    relevance: Tensor
    value: float
    target: int | None
    prediction: int | None
    label: int | None
    question: str
    input: Any = None
    notes: tuple[str, ...] = ()

    def draw(self, ax: Axes | None = None, **options: Any) -> Axes:
        """The map over its image; ``options`` are those of :func:`nrm.plot.heatmap`."""
        plot = importlib.import_module("nrm.plot")  # a later room, needed only here
        image = self.input if isinstance(self.input, Tensor) and self.input.ndim > 1 else None
        if self.question in ("input", "input.positions"):
            options = {"rest": 1 - float(self.relevance.sum()), **options}
        drawn: Axes = plot.heatmap(self.relevance, image, ax=ax, **{"value": self.value, **options})
        return drawn

    def save(self, path: str | os.PathLike[str], **options: Any) -> None:
        """The numbers as a file that :func:`nrm.load` reads (``.safetensors``), else a picture (``.png``, ``.svg``...).

        ``options`` are those of :meth:`draw`.
        """
        if Path(path).suffix == SUFFIX:
            axes = [self.question] * self.relevance.ndim
            save(path, measure=self._facts(), relevance=(self.relevance, axes))
        else:
            importlib.import_module("nrm.plot").draw_and_save(path, self.draw, **options)

    def _facts(self) -> dict[str, Any]:
        return {"number": self.number, "value": self.value, "target": self.target, "prediction": self.prediction,
                "label": self.label, "question": self.question, "notes": list(self.notes)}  # fmt: skip

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.relevance.shape))
        return f"Heatmap({self.name!r}, {shape}, target {self.target}, value {self.value:.4g})"


def read_heatmap(path: Path, sample: Sample, name: str) -> Heatmap:
    """The map of a sample that :meth:`Heatmap.save` wrote."""
    found = load(path)
    facts = found.measure or {}
    try:
        if facts["number"] != sample.number:
            raise ResultFileError("the map of another sample", where=os.fspath(path), got=f"sample {facts['number']}")
        return Heatmap(
            sample.number, name, found["relevance"], facts["value"], facts["target"], facts["prediction"],
            facts["label"], facts["question"], sample.input, tuple(facts["notes"]),
        )  # fmt: skip
    except KeyError as error:
        raise ResultFileError("not a file of a heat map", where=os.fspath(path), got=f"no {error}") from error
