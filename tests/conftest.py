"""What every test shares: hypothesis profiles, threads, devices, and the way to the real data."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings

ROOT = Path(__file__).resolve().parents[1]

settings.register_profile(
    "ci", deadline=None, derandomize=True, max_examples=25, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "thorough", deadline=None, max_examples=300, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(  # the first failure at once, as it is, while something is being rebuilt
    "quick", deadline=None, derandomize=True, max_examples=10, suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate), report_multiple_bugs=False,
)  # fmt: skip
settings.load_profile(os.environ.get("NRM_HYPOTHESIS", "ci"))

if "PYTEST_XDIST_WORKER" in os.environ:
    # One thread per worker: several workers with all threads each are slower than one.
    torch.set_num_threads(1)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Weights drawn without a seed of their own are the same in every run and in every order of the tests."""
    torch.manual_seed(0)


def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Figures that a test drew and left open are closed, as pyplot counts them over the whole process."""
    if drawn := sys.modules.get("matplotlib.pyplot"):
        drawn.close("all")


@pytest.fixture(scope="session")
def shared() -> Callable[[str], Path]:
    """The path of an item of the real data, such as ``shared("mnist")``; skips the test when it is absent.

    The data is not part of the repository. It is looked for in ``$NRM_DATA``, else beside the repository; what ``make``
    fetches may also be in ``out/data``.
    """
    homes = (Path(os.environ.get("NRM_DATA") or ROOT.parent / "shared" / "data"), ROOT / "out" / "data")

    def find(item: str) -> Path:
        for path in (home / item for home in homes):
            if path.exists():
                return path
        name = item.split("-")[0]
        fetch = f"; make {name} fetches it" if name in ("smollm2", "whisper", "fields") else ""
        pytest.skip(f"real data absent: no {item!r} (set NRM_DATA to the data folder{fetch})")

    return find


@pytest.fixture(params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> torch.device:
    """Each device in turn; those that this machine lacks are skipped."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    return torch.device(request.param)
