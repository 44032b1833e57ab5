"""Files and folders that are there as a whole or not at all, whatever happens while they are written."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

HALF = ".nrm-*.tmp"
"""The names of files and folders that are being written."""


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary file in the folder of ``path`` that becomes ``path`` if the block ends well, and vanishes if not.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "text"
    >>> with replacing(path) as temporary:
    ...     _ = temporary.write_text("complete")
    >>> path.read_text(), len(list(path.parent.iterdir()))
    ('complete', 1)
    """
    target = Path(os.path.realpath(path))
    temporary = _beside(target)
    try:
        temporary.touch(exist_ok=False)
        mode = temporary.stat().st_mode
        yield temporary
        # A writer may have put a new file in place, with permissions of its own.
        temporary.chmod(mode)
        _flush(temporary)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _flush_folder(target.parent)


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """A temporary folder that becomes ``path`` if the block ends well, and vanishes if not.

    Its files are flushed to the disk before it gets its name. A folder of that name that is there already stays.
    """
    temporary = _beside(path)
    try:
        temporary.mkdir()
        yield temporary
        for file in temporary.iterdir():
            _flush(file)
        _flush_folder(temporary)
        if not path.exists():
            temporary.rename(path)
            _flush_folder(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Writes a text in UTF-8; the file is there as a whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _beside(path: Path) -> Path:
    return path.with_name(HALF.replace("*", secrets.token_hex(8)))


def _flush(file: Path) -> None:
    with file.open("rb+") as opened:
        os.fsync(opened.fileno())


def _flush_folder(folder: Path) -> None:
    # Makes the names in it durable; not every system lets a folder be opened.
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
