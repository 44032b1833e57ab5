"""torchvision for tests, also next to a CPU build of torch.

>>> import vision
>>> torchvision = vision.load()
"""

from __future__ import annotations

from types import ModuleType

import pytest

from nrm.testing.census.compiled import load_torchvision


def load() -> ModuleType:
    """Torchvision, or a skip of the calling test (or test module) with the reason."""
    try:
        return load_torchvision()
    except ImportError:
        pytest.skip("torchvision is not installed", allow_module_level=True)
