"""Running commands: here, or each in a process of its own that begins where everything is imported already."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]

FORKS = """
import contextlib, importlib, json, os, pkgutil, sys
import factories, lark, matplotlib.pyplot, PIL.Image, rich.progress, rich.table, sklearn.cluster, sklearn.datasets
import nrm
from nrm.cli import main

for module in pkgutil.walk_packages(nrm.__path__, "nrm."):  # once here, instead of in every command
    with contextlib.suppress(ImportError):
        module.name == "nrm.__main__" or importlib.import_module(module.name)

work, ended = json.load(sys.stdin), []
for number, command in enumerate(work["commands"]):
    child = os.fork()
    if not child:
        for stream, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{work['talk']}/{number}.{name}", os.O_WRONLY | os.O_CREAT), stream)
        code = main(command)
        sys.stdout.flush()
        os._exit(code)  # what else a process does at its end takes longer than the command
    ended.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(json.dumps(ended))
"""


class Ended(NamedTuple):
    """What a command left behind: its exit code and what it said."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """The JSON document on its standard output."""
        return json.loads(self.out)


def environment() -> dict[str, str]:
    paths = [str(ROOT / "src"), str(ROOT / "tests")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}


def run_processes(folder: Path, commands: Sequence[Sequence[str]]) -> list[Ended]:
    """Every command in a process of its own, one after the other."""
    talk = folder / "talk"
    talk.mkdir()
    work = json.dumps({"talk": str(talk), "commands": commands})
    done = subprocess.run(
        [sys.executable, "-c", FORKS], input=work, cwd=folder, env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    codes = json.loads(done.stdout)
    return [Ended(c, *((talk / f"{i}.{name}").read_text() for name in ("out", "err"))) for i, c in enumerate(codes)]


def shape_of(value: Any) -> Any:
    """What a JSON document looks like: its keys, and kinds of values.

    >>> shape_of({"a": [1, 2.5], "b": None})
    {'a': ['number'], 'b': 'nothing'}
    """
    if isinstance(value, dict):
        return {key: shape_of(one) for key, one in sorted(value.items())}
    if isinstance(value, list):
        kinds = {json.dumps(shape_of(one), sort_keys=True) for one in value}
        return [json.loads(kind) for kind in sorted(kinds)]
    if value is None:
        return "nothing"
    return {bool: "yes or no", int: "number", float: "number", str: "text"}[type(value)]
