"""Every example in a docstring of the library runs and prints what it says."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import nrm

ROOMS = sorted(m.name for m in pkgutil.iter_modules(nrm.__path__))


def modules(room: str) -> list[str]:
    """The module or package of a room, and all modules below it."""
    whole = importlib.import_module(f"nrm.{room}")
    below = pkgutil.walk_packages(getattr(whole, "__path__", ()), f"{whole.__name__}.")
    return [whole.__name__, *sorted(one.name for one in below)]


@pytest.mark.parametrize("room", ["", *ROOMS])
def test_docstring_examples(room: str) -> None:
    if room == "plot":
        pytest.importorskip("matplotlib").use("Agg")
    for name in modules(room) if room else ["nrm"]:
        failed, _ = doctest.testmod(importlib.import_module(name))
        assert not failed, name
