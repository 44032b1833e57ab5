"""The commands of the page about the command line run, one after the other in one folder."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from nrm.cli import main

PAGE = Path(__file__).resolve().parents[2] / "docs" / "command-line.md"
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.M | re.S)


def test_the_commands_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    lines = [line for block in BLOCK.findall(PAGE.read_text()) for line in block.splitlines()]
    assert len(lines) > 10
    for line in lines:
        python, module, name, *command = shlex.split(line)
        assert (python, module, name) == ("python", "-m", "nrm")
        assert main(command) == 0, (line, capsys.readouterr().err)
        if command[0] == "demo":
            leave_few(tmp_path / "digits", " ".join(lines))
    for path in ("demo.html", "report.html", "results/index.json", "sheet.png"):
        assert (tmp_path / path).exists(), path


def leave_few(folder: Path, named: str) -> None:
    """The first digit of two classes, and those that the page names: commands draw a picture of everything there."""
    pages = sorted(folder.glob("*/*.png"))
    assert len(pages) > 100
    for path in pages:
        if f"digits/{path.parent.name}/{path.name}" not in named and path not in (pages[0], pages[-1]):
            path.unlink()
    for kind in folder.iterdir():
        if not any(kind.iterdir()):
            kind.rmdir()
