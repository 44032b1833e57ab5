"""The explorer from the command line: a store and its data set are handed on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("typer")
pytest.importorskip("starlette")
Image = pytest.importorskip("PIL.Image")

from nrm.cli import pages  # noqa: E402
from nrm.cli.app import main  # noqa: E402


class Served:
    """Stands for a running explorer; remembers what it was started with."""

    url = "http://127.0.0.1:1/?token=x"

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.options = options

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def wait(self) -> None:
        pass


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for digit in range(2):
        (tmp_path / "data" / str(digit)).mkdir(parents=True)
        Image.new("L", (8, 8), 90 + 60 * digit).save(tmp_path / "data" / str(digit) / "a.png")
    return tmp_path


def test_a_store_and_its_data_set_are_handed_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Served] = []
    monkeypatch.setattr(pages, "start_explorer", lambda *a, **o: started.append(Served(*a, **o)) or started[-1])
    data = str(folder / "data")
    arguments = ["--data", data, "--store", str(folder / "st"), "--dataset", data, "--no-open"]
    assert main(["explore", "nrm.demo:digits", *arguments]) == 0
    (served,) = started
    assert served.options["store"] == folder / "st"
    assert len(served.options["dataset"]) == 2
