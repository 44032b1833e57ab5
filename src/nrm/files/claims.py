"""Folders in which a job can go on: one job at a time, and a manifest that says which job it is."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nrm.errors import JobError, ResultFileError
from nrm.files.writing import HALF, write_text

try:
    import fcntl
except ImportError:  # a system without such locks
    fcntl = None  # type: ignore[assignment]

LOCK = "lock"


@contextmanager
def claim(folder: Path) -> Iterator[None]:
    """A folder for one job alone, made if it is not there; what a killed job left half-written is removed."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("a") as lock:
        if fcntl is not None:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise JobError(
                    "another job is using this store", where=os.fspath(folder), expected="one job at a time",
                    hint="wait for it, or give this one a store of its own",
                ) from None  # fmt: skip
        for half in list(folder.rglob(HALF)):
            if half.is_dir():
                shutil.rmtree(half)
            else:
                half.unlink()
        yield


def begin(manifest: Path, mine: Mapping[str, Any]) -> dict[str, Any]:
    """What a manifest says, after it was written with ``mine`` if there was none."""
    if not manifest.exists():
        write_text(manifest, json.dumps(mine, indent=1))
    return read_manifest(manifest)


def read_manifest(manifest: Path) -> dict[str, Any]:
    """What a manifest says, as JSON knows it."""
    try:
        found = json.loads(manifest.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError(f"a JSON {type(found).__name__}")
    except (OSError, ValueError) as error:
        raise ResultFileError("the manifest is damaged", where=os.fspath(manifest), got=str(error)[:200]) from error
    return found


def differing(known: Mapping[str, Any], mine: Mapping[str, Any]) -> list[str]:
    """The entries in which what is known of a job differs from mine, in my order.

    >>> differing({"k": 3, "rows": 5}, {"rows": 5, "k": 4})
    ['k']
    """
    plain = json.loads(json.dumps(mine))
    return [key for key in plain if plain[key] != known.get(key)]
