"""The command line: ``nrm``, or ``python -m nrm``. It needs the extra ``cli``.

What commands are made of can be called from Python as well: :func:`load_model` and :func:`read_inputs`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from nrm.cli.app import main

if TYPE_CHECKING:
    from nrm.cli.inputs import read_inputs
    from nrm.cli.models import load_model

HOMES = {"load_model": "nrm.cli.models", "read_inputs": "nrm.cli.inputs"}
"""What needs torch, and where it is: the help of commands does not wait for it."""


def __getattr__(name: str) -> Any:
    if name in HOMES:
        return getattr(importlib.import_module(HOMES[name]), name)
    raise AttributeError(f"module 'nrm.cli' has no attribute {name!r}")


__all__ = ["load_model", "main", "read_inputs"]
