"""The extra ``cli`` by itself: commands run without the packages of any other extra, or say which one they lack."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cli.running import environment

pytest.importorskip("typer")
pytest.importorskip("rich")

ALONE = """
import importlib.abc, sys

OTHERS = {"starlette", "uvicorn", "matplotlib", "sklearn", "PIL", "torchvision", "timm", "transformers", "lark",
          "pyarrow", "duckdb", "ray", "pandas", "datasets", "torch_geometric"}

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in OTHERS:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from nrm.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("command", "code", "text"),
    [
        (["version"], 0, "."),
        (["--help"], 0, "explore"),
        (["layers", "torch.nn:Identity"], 1, 'pip install "nrm[viz]"'),
        (["demo"], 1, 'pip install "nrm['),
        (["explore", "torch.nn:Identity", "--no-open"], 1, 'pip install "nrm[web]"'),
    ],
)
def test_the_command_line_alone(command: list[str], code: int, text: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ALONE, *command], env=environment(), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == code, done.stderr
    assert text in done.stdout + done.stderr
