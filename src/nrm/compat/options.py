"""What all doors share: the options of the measure behind them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from nrm.errors import unknown_option
from nrm.measure import measure

OPTIONS = sorted({*inspect.signature(measure).parameters} - {"model", "inputs", "target", "batch_dim", "labels"})
"""Options of :func:`nrm.measure` that a door passes on; samples are on axis 0, as everywhere in these libraries."""


def read_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The user's options, each of them known."""
    for name in options:
        if name not in OPTIONS:
            raise unknown_option(name, options[name], OPTIONS)
    return dict(options)
