"""Every example in a docstring of the library runs and prints what it says."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import nrm

MODULES = sorted(m.name for m in pkgutil.walk_packages(nrm.__path__, "nrm."))


@pytest.mark.parametrize("name", ["nrm", *MODULES])
def test_docstring_examples(name: str) -> None:
    if name.startswith("nrm.plot"):
        pytest.importorskip("matplotlib").use("Agg")
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert not failed
