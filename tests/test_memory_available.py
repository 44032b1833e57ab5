"""How much memory there is: what the machine has available, or less in a container."""

from __future__ import annotations

from pathlib import Path

import pytest

from nrm import memory


def test_a_container_with_a_limit_leaves_what_it_has_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("max", "5000000"), ("current", "4000000"), ("stat", "anon 3000\ninactive_file 500000\n")):
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(memory, "GROUPS", [tuple(str(tmp_path / name) for name in ("max", "current", "stat"))])
    memory._group.cache_clear()
    try:
        assert memory.available() == 1_500_000
        (tmp_path / "max").write_text("max")
        memory._group.cache_clear()
        assert memory.available() > 1_500_000
    finally:
        memory._group.cache_clear()


def test_an_automatic_bound_is_a_third_of_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    for free, bound in ((9 * 2**30, 3 * 2**30), (2**40, 4 * 2**30), (2**20, 2**28)):
        monkeypatch.setattr(memory, "available", lambda free=free: free)
        assert memory.memory_bound("auto") == bound
