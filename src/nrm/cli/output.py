"""What a command says: text and tables for people, one JSON document for programs, notes and progress beside them."""

from __future__ import annotations

import importlib
import json
import math
import platform
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from nrm._version import __version__
from nrm.errors import NrmError, NrmWarning, readable
from nrm.extras import extra

COMMAND: ContextVar[str] = ContextVar("command", default="")
"""The command that is running, as it can be typed again."""
SCHEMA = 2
"""The form of documents. In form 1 tables were lists of lists, without axes and labels."""
LONG = 10.0
"""Seconds after which a command says what it is doing, or what took the time."""
WIDTH = 110
"""Columns of a text that goes to a file or a program."""


def versions() -> dict[str, str]:
    """What has to be the same for the same numbers."""
    installed = importlib.import_module("importlib.metadata")  # help, which has no versions, does not wait for it
    return {"nrm": __version__, "torch": installed.version("torch"), "python": platform.python_version()}


def document(command: str, **parts: Any) -> dict[str, Any]:
    """A JSON document of a command: what it is, and its parts as plain data."""
    found = plain({"schema": SCHEMA, "command": command, "versions": versions(), "line": COMMAND.get(), **parts})
    assert isinstance(found, dict)
    return found


def plain(value: Any) -> Any:
    """A value of JSON's types only; numbers that JSON does not have are null.

    >>> import torch
    >>> plain({"gap": float("inf"), 3: torch.tensor([1, 2])})
    {'gap': None, '3': [1, 2]}
    """
    if hasattr(value, "tolist"):  # tensors and arrays
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float) else readable(str(value))


def as_text(data: Any) -> str:
    """A JSON document as text."""
    return json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False)


def complaint(error: NrmError) -> dict[str, Any]:
    """An error as plain data."""
    return {
        "what": error.what, "where": error.where, "got": error.got, "expected": error.expected, "try": error.hint,
    }  # fmt: skip


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

    def print(self, text: str) -> None:
        """A result as it is, such as a page."""
        self._out.file.write(f"{text}\n")

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
    def work(self, what: str) -> Iterator[Stages]:
        """A bar that says what is being done and how far it is, and warnings as notes."""
        with extra("cli", "the command line"):
            from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
        columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn()
        bar = Progress(*columns, console=self._beside, transient=True, disable=not self.interactive)
        steps = Stages(bar, bar.add_task(what, total=None), None if self.interactive else self._beside.print)
        with bar, self.warnings():
            yield steps
        steps.tell("")
        if steps.total > LONG:
            self._beside.print(steps.summary, style="dim")

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


class Stages:
    """What is being done: a running bar for people, a line now and then for a file, and how long everything took."""

    def __init__(self, bar: Any, task: Any, say: Callable[[str], None] | None = None) -> None:
        self._bar, self._task, self._say = bar, task, say
        self._taken: dict[str, float] = {}
        self._what, self._thing = "", ""
        self._begin = self._since = self._said = time.monotonic()

    @property
    def seconds(self) -> list[dict[str, Any]]:
        """The seconds that every kind of step took, the longest first."""
        ordered = sorted(self._taken.items(), key=lambda one: -one[1])
        return [{"what": what, "seconds": round(taken, 3)} for what, taken in ordered]

    @property
    def total(self) -> float:
        """The seconds of all steps."""
        return sum(self._taken.values())

    @property
    def summary(self) -> str:
        """What took the time."""
        parts = ", ".join(f"{one['what']} {one['seconds']:.0f} s" for one in self.seconds if one["seconds"] >= 0.5)
        return f"{self.total:.0f} s: {parts}"

    def tell(self, what: str) -> None:
        """The next step, of unknown length."""
        now = time.monotonic()
        if self._what:
            kind = self._what.partition(",")[0]  # what comes after it says how far it is
            self._taken[kind] = self._taken.get(kind, 0.0) + now - self._since
        self._what, self._since = what, now
        text = ": ".join(part for part in (self._thing, what) if part)
        self._bar.update(self._task, description=text, completed=0, total=None)
        if self._say is not None and what and now - self._said > LONG:
            self._said = now
            self._say(f"{text} ({now - self._begin:.0f} s so far)")

    def listen(self, done: int, total: int | None) -> None:
        """How far it is; what a measure tells its ``progress``."""
        self._bar.update(self._task, completed=done, total=total)

    def each(self, things: Sequence[Any], what: Callable[[Any], str]) -> Iterator[Any]:
        """One thing after the other, each announced."""
        for i, thing in enumerate(things):
            self._thing = what(thing) if len(things) == 1 else f"{what(thing)} ({i + 1} of {len(things)})"
            yield thing
        self._thing = ""
