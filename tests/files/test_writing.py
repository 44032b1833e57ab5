"""Files and folders that are there as a whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from nrm.errors import JobError, ResultFileError
from nrm.files import HALF, begin, claim, differing, replacing_folder, write_text


def test_a_folder_is_there_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    def write_half() -> None:
        with replacing_folder(tmp_path / "part") as temporary:
            (temporary / "a").write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_half()
    assert list(tmp_path.iterdir()) == []
    with replacing_folder(tmp_path / "part") as temporary:
        (temporary / "a").write_text("whole")
        assert not (tmp_path / "part").exists()
    assert [path.name for path in tmp_path.rglob("*")] == ["part", "a"]


def test_a_folder_that_is_there_stays(tmp_path: Path) -> None:
    for text in ("first", "second"):
        with replacing_folder(tmp_path / "part") as temporary:
            (temporary / "a").write_text(text)
    assert (tmp_path / "part" / "a").read_text() == "first"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_claim_is_for_one_and_removes_what_is_half(tmp_path: Path) -> None:
    home = tmp_path / "deep" / "store"
    half = home / "parts" / HALF.replace("*", "0")
    half.mkdir(parents=True)
    (half / "a").touch()
    (home / HALF.replace("*", "1")).touch()
    with claim(home):
        assert not list(home.rglob(HALF))
        with pytest.raises(JobError, match="another job is using this store"), claim(home):
            pass
    with claim(home):
        pass


def test_a_manifest_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    assert begin(path, {"k": 3, "shape": (1, 2)}) == {"k": 3, "shape": [1, 2]}
    known = begin(path, {"k": 4, "shape": (1, 2)})
    assert known["k"] == 3
    assert differing(known, {"k": 4, "shape": (1, 2)}) == ["k"]
    for text in ("nothing", "[1]"):
        write_text(path, text)
        with pytest.raises(ResultFileError, match="the manifest is damaged"):
            begin(path, {})
