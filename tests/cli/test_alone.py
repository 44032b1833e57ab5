"""The extra ``cli`` by itself: commands run without the packages of any other extra, or say which one they lack."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from cli.running import environment

pytest.importorskip("typer")
pytest.importorskip("rich")

ALONE = """
import contextlib, importlib.abc, io, json, sys

OTHERS = {"starlette", "uvicorn", "matplotlib", "sklearn", "PIL", "torchvision", "timm", "transformers", "lark",
          "pyarrow", "duckdb", "ray", "pandas", "datasets", "torch_geometric"}

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in OTHERS:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from nrm.cli import main

def run(command):
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            code = main(command)
        except SystemExit as ended:
            code = ended.code
    return code or 0, said.getvalue()

print(json.dumps([run(command) for command in json.loads(sys.argv[1])]))
"""


COMMANDS: list[tuple[list[str], int, str]] = [
    (["version"], 0, "."),
    (["--help"], 0, "explore"),
    (["layers", "torch.nn:Identity"], 1, 'pip install "nrm[viz]"'),
    (["demo"], 1, 'pip install "nrm['),
    (["explore", "torch.nn:Identity", "--no-open"], 1, 'pip install "nrm[web]"'),
]


def test_the_command_line_alone() -> None:
    """One process without the other packages runs all commands, one after the other."""
    commands = json.dumps([command for command, _, _ in COMMANDS])
    done = subprocess.run(
        [sys.executable, "-c", ALONE, commands], env=environment(), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    for (command, expected, text), (code, said) in zip(COMMANDS, json.loads(done.stdout), strict=True):
        assert code == expected, (command, said)
        assert text in said, command
