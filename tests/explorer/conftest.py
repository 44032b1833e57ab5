"""Pages keep names in a folder of the test, never in that of the person who runs it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NRM_HOME", str(tmp_path_factory.mktemp("home")))
        yield
