"""Other processes that run a job, and waiting for what they do."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]


def start(command: list[str], **pipes: Any) -> subprocess.Popen[str]:
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, sys.path)])}
    return subprocess.Popen(command, env=env, text=True, **pipes)


def wait_for(condition: Any, seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)
