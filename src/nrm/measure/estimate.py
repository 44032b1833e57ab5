"""The front of estimates: what a measure and a question would take, and what would fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from nrm.measure.making import measure
from nrm.measure.sketch import Asked, Estimate, Sketch


def estimate(
    model: Any, inputs: Any = None, *, tokens: int | None = None, question: Asked | Any = None, **options: Any
) -> Estimate:
    """What ``nrm.measure(model, inputs, **options)`` and a question would take; nothing of it is computed.

    ``model`` is a model, with weights or on the meta device, or a configuration of transformers. ``inputs`` are an
    example (its numbers make no difference), or the shape of one; ``tokens`` stands for one text of that length.
    ``question`` is a function of the measure, or what ``R(...)`` takes; without one it is the heat map.
    ``against=True`` is a contrast with a reference of the same shape; all other options are those of ``nrm.measure``.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 30 * 30, 10))
    >>> found = estimate(model, (1, 3, 32, 32))
    >>> found.weights, found.fits
    (288936, True)
    """
    sketch = Sketch(measure, model, inputs, tokens, question, options)
    found = sketch.run(tokens, options.get("memory", "auto"))
    return found if found.fits else replace(found, advice=tuple(sketch.advise(tokens, found)))
