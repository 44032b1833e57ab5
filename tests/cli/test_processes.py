"""Every command as a process of its own, with the form of its JSON document."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Run, fill
from cli.running import environment, run_processes, shape_of

GOLDEN = Path(__file__).parent / "golden"
WRITE = "NRM_WRITE_GOLDEN"

COMMANDS = {
    "layers": ["layers", "factories:whole", "x.npy"],
    "explain": ["explain", "factories:whole", "one.png", "--layer", "2", "--layer", "output"],
    "flows": ["flows", "factories:whole", "one.png", "-l", "1", "-l", "4", "-k", "3"],
    "query": ["query", "a AND NOT b", "factories:whole", "x.npy", "-s", "a=1.channel(0)", "-s", "b=4.channel(1)"],
    "check": ["check", "factories:whole", "one.png"],
    "evaluate": ["evaluate", "factories:whole", "one.png", "-l", "1", "-l", "4"],
    "report": ["report", "factories:whole", "one.png", "-l", "2", "-l", "output"],
    "heatmaps": ["heatmaps", "factories:whole", "data", "--out", "maps"],
    "relmax": ["relmax", "factories:whole", "data", "-a", "1", "-a", "1 x 4", "-k", "2", "--blocks", "2"],
    "version": ["version"],
    "demo": ["demo", "--out", "demo.html", "-l", "relu1", "-l", "output"],
    "bad": ["explain", "factories:whole", "absent.png"],
    "reproduce": ["reproduce", "vgg-clusters", "--embedded", "--samples", "1", "--out", "out"],
    "bad-experiment": ["reproduce", "nothing"],
}
MORE = {
    "layers-made-up": ["layers", "factories:whole"],
    "explain-folder": [*COMMANDS["explain"], "--out", "results"],
    "explain-dry": [*COMMANDS["explain"], "--dry-run"],
    "relmax-dry": [*COMMANDS["relmax"], "--dry-run"],
}
AS_MODULE = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background ignores it
runpy.run_module("nrm", run_name="__main__", alter_sys=True)
"""
"""What ``python -m nrm`` does."""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
def test_every_command_is_a_process_with_a_document_of_a_known_form(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    fill(tmp_path)
    ended = run_processes(tmp_path, [[*command, "--json"] for command in COMMANDS.values()])
    for name, one in zip(COMMANDS, ended, strict=True):
        assert one.code == (2 if name.startswith("bad") else 0), (name, one.err)
        assert one.data["command"] == COMMANDS[name][0], name
        check_form(name, one.data)
    page = (tmp_path / "demo.html").read_text()
    assert "python -m nrm demo --out demo.html" in page
    assert "http://" not in re.sub(r"http://www\.w3\.org/\S*", "", page)


def check_form(name: str, data: Any) -> None:
    """The document has the form that is kept for this name."""
    assert data["schema"] == 2, name
    path = GOLDEN / f"{name}.json"
    if os.environ.get(WRITE):
        path.write_text(json.dumps(shape_of(data), indent=1) + "\n")
    assert shape_of(data) == json.loads(path.read_text()), f"{path.name}: {WRITE}=1 writes it anew"


@pytest.mark.parametrize("name", MORE)
def test_other_documents_have_a_known_form_too(name: str, run: Run) -> None:
    check_form(name, run(*MORE[name], "--json").data)


def test_the_explorer_serves_until_it_is_stopped(tmp_path: Path) -> None:
    pytest.importorskip("uvicorn")
    fill(tmp_path)
    command = ["explore", "factories:whole", "--data", "data", "--no-open", "--json"]
    with subprocess.Popen(
        [sys.executable, "-u", "-c", AS_MODULE, *command],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            lines = iter(process.stdout.readline, "}\n")
            data = json.loads("".join([*lines, "}"]))
            check_form("explore", data)
            with urllib.request.urlopen(data["url"]) as answer:
                assert answer.status == 200
            process.send_signal(signal.SIGINT)
            assert process.wait(120) == 0
        finally:
            process.kill()
