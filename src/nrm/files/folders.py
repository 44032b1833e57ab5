"""Files of a folder of data, without what was written there by us."""

from __future__ import annotations

import os
from collections.abc import Container, Iterator
from pathlib import Path

MARK = ".nrm-results"
"""A file that says that a folder holds results, which are never read as data."""

STORE = ("manifest.json", "parts")
"""What the folder of a store has."""

TEXT = "Results of nrm. A folder with this file is left out where data is read.\n"


def mark_results(folder: Path) -> None:
    """Makes a folder for results, and says so in it: pictures in it are not data, even if it is inside of data."""
    folder.mkdir(parents=True, exist_ok=True)
    mark = folder / MARK
    if not mark.exists():
        mark.write_text(TEXT, encoding="utf-8")


def files_below(folder: Path, suffixes: Container[str]) -> list[str]:
    """The files in a folder and below with one of these endings, by their names as they are from there, in order."""
    return sorted(path.relative_to(folder).as_posix() for path in _walk(folder) if path.suffix.lower() in suffixes)


def _walk(folder: Path) -> Iterator[Path]:
    for home, inner, names in os.walk(folder):
        inner[:] = [name for name in inner if not _holds_results(Path(home, name))]
        yield from (Path(home, name) for name in names if Path(home, name).is_file())


def _holds_results(folder: Path) -> bool:
    return (folder / MARK).exists() or all((folder / name).exists() for name in STORE)
