"""What a command says: text and tables for people, one JSON document for programs, notes and progress beside them."""

from __future__ import annotations

import json
import math
import platform
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nrm._version import __version__
from nrm.errors import NrmWarning
from nrm.extras import extra
from nrm.results import replacing

COMMAND: ContextVar[str] = ContextVar("command", default="")
"""The command that is running, as it can be typed again."""
SCHEMA = 1
WIDTH = 110
"""Columns of a text that goes to a file or a program."""


def versions() -> dict[str, str]:
    """What has to be the same for the same numbers."""
    return {"nrm": __version__, "torch": str(torch.__version__), "python": platform.python_version()}


def document(command: str, **parts: Any) -> dict[str, Any]:
    """A JSON document of a command: what it is, and its parts as plain data."""
    found = plain({"schema": SCHEMA, "command": command, "versions": versions(), "line": COMMAND.get(), **parts})
    assert isinstance(found, dict)
    return found


def plain(value: Any) -> Any:
    """The same from JSON's types only; numbers that JSON does not have are null.

    >>> plain({"gap": float("inf"), 3: torch.tensor([1, 2])})
    {'gap': None, '3': [1, 2]}
    """
    if isinstance(value, Tensor | np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def as_text(data: Any) -> str:
    """A JSON document as text."""
    return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False)


def write_json(path: Path, data: Any) -> None:
    """Writes a document; the file is there as a whole or not at all."""
    with replacing(path) as new:
        new.write_text(as_text(data) + "\n", encoding="utf-8")


class Terminal:
    """Where a command speaks. Results go to the standard output, everything else beside them."""

    def __init__(self, as_json: bool = False) -> None:
        with extra("cli", "the command line"):
            from rich.console import Console
        self.as_json = as_json
        self.notes: list[str] = []
        self._out = Console(highlight=False, markup=False, soft_wrap=True)
        self._beside = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
        if not self._out.is_terminal:
            self._out.width = WIDTH

    @property
    def interactive(self) -> bool:
        """Whether a person may be looking."""
        return bool(self._beside.is_terminal)

    def note(self, text: str) -> None:
        """Something to know; it is in the JSON document as well."""
        if text not in self.notes:
            self.notes.append(text)
            self._beside.print(text, style="dim")

    def say(self, *texts: Any) -> None:
        """Something for people only."""
        if not self.as_json:
            for text in texts:
                self._out.print(text)

    def title(self, text: str) -> None:
        """A line above what follows."""
        if not self.as_json:
            self._out.print(text, style="bold")

    def table(self, heads: Sequence[str], rows: Sequence[Sequence[Any]], right: Sequence[int] = ()) -> None:
        """A table; columns in ``right`` are numbers."""
        if self.as_json:
            return
        with extra("cli", "the command line"):
            from rich.table import Table
            from rich.text import Text
        table = Table(box=None, pad_edge=False, header_style="dim")
        for i, head in enumerate(heads):
            table.add_column(head, justify="right" if i in right else "left", overflow="fold")
        for row in rows:
            table.add_row(*(Text(str(cell)) for cell in row))
        self._out.print(table, soft_wrap=False)

    def finish(self, command: str, **parts: Any) -> dict[str, Any]:
        """The document of the command, printed where programs listen."""
        found = document(command, notes=self.notes, **parts)
        if self.as_json:
            print(as_text(found))
        return found

    @contextmanager
    def work(self, what: str) -> Iterator[Steps]:
        """A bar that says what is being done and how far it is, and warnings as notes."""
        with extra("cli", "the command line"):
            from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
        columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn()
        bar = Progress(*columns, console=self._beside, transient=True, disable=not self.interactive)
        with bar, self.warnings():
            yield Steps(bar, bar.add_task(what, total=None))

    @contextmanager
    def warnings(self) -> Iterator[None]:
        """What the library warns about becomes notes."""
        with warnings.catch_warnings():
            warnings.simplefilter("always", NrmWarning)
            before = warnings.showwarning

            def show(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
                if issubclass(category, NrmWarning):
                    self.note(f"warning: {message}")
                else:
                    before(message, category, *rest, **more)

            warnings.showwarning = show
            yield


class Steps:
    """A running bar."""

    def __init__(self, bar: Any, task: Any) -> None:
        self._bar, self._task = bar, task

    def tell(self, what: str) -> None:
        """The next step, of unknown length."""
        self._bar.update(self._task, description=what, completed=0, total=None)

    def listen(self, done: int, total: int | None) -> None:
        """How far it is; what a measure tells its ``progress``."""
        self._bar.update(self._task, completed=done, total=total)

    def each(self, things: Sequence[Any], what: Callable[[Any], str]) -> Iterator[Any]:
        """One thing after the other, each announced."""
        for i, thing in enumerate(things):
            self.tell(what(thing) if len(things) == 1 else f"{what(thing)} ({i + 1} of {len(things)})")
            yield thing


def percent(share: float) -> str:
    """A share as people read it.

    >>> percent(0.1234), percent(-0.00012), percent(1.0)
    ('12.34 %', '-0.01 %', '100.00 %')
    """
    return f"{100 * share:.2f} %"
