"""Everything that a finished job holds, bit by bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import nrm
from nrm.jobs.parts import read_part
from nrm.jobs.store import Shelf, _limits
from nrm.jobs.tables import ARRAYS


def content(path: Path) -> dict[str, Any]:
    """What a store holds."""
    store = nrm.open_store(path)
    shelf = Shelf(path, _limits(store.facts))
    (span,) = shelf.spans()
    return tally_content(read_part(shelf.folder(span), shelf.limits))


def tally_content(tally: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    order = np.argsort(tally.samples["sample"], kind="stable")
    for name, values in tally.samples.items():
        found[name] = [values[i] for i in order]
    for (question, by), top in tally.tops.items():
        for name in ("block", "sample", "score", "place"):
            found[f"{question} {by} {name}"] = getattr(top, name).tolist()
    for question, kept in enumerate(tally.moments):
        for label, moments in kept.classes.items():
            for name in ARRAYS:
                found[f"{question} {label} {name}"] = getattr(moments, name).tolist()
    for question, leading in tally.leading.items():
        for node, sums in leading.nodes.items():
            for name in ("classes", "counts", "rest", "key", "values") if sums is not None else ():
                found[f"{question} {node} {name}"] = getattr(sums, name).tolist()
    return found
