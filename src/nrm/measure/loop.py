"""Measures of one model on many inputs, one after the other: what they do alike is found out once."""

from __future__ import annotations

from typing import Any

from torch import nn

from nrm.capture import CallScript, script_of
from nrm.measure.making import measure
from nrm.measure.measure import Measure


class Loop:
    """Makes measures of which each follows the calls of the one before, where it does the same.

    It keeps the script of the last one, which has no values and goes with the loop. What differs is recorded anew. A
    worker that is sent a loop begins with none.

    >>> import torch
    >>> loop, model = Loop(), nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> first, second = (loop.measure(model, torch.rand(1, 4)) for _ in range(2))
    >>> "followed" in repr(second)
    True
    """

    def __init__(self) -> None:
        self._script: CallScript | None = None

    def measure(self, model: nn.Module, inputs: Any, **options: Any) -> Measure:
        """A measure, as :func:`nrm.measure` makes it."""
        R = measure(model, inputs, **{"like": self._script, **options})
        inner = getattr(R, "inner", None)  # an average of contrasts has several
        self._script = self._script if inner is None else script_of(inner.tape)
        return R

    def __repr__(self) -> str:
        return f"Loop: {'no measure yet' if self._script is None else 'the next measure follows the last one'}"

    def __reduce__(self) -> tuple[type[Loop], tuple[()]]:
        return Loop, ()
