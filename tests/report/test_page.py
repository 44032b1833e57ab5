"""The page of a report: whole, safe, and written as a whole."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from nrm.report import Report
from nrm.report.page import ASSETS, MODULES, STATIC, bundle, linked_page, read_asset
from report import subjects

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def report() -> Report:
    return subjects.measured(target=3).report(layers=["pool#0", "output"], nodes=3, flows=2, title=subjects.HOSTILE)


def test_the_data_is_inside_and_escaped(report: Report) -> None:
    page = report.html
    assert subjects.HOSTILE not in page
    data = re.search(r'<script type="application/json" id="view">(.*?)</script>', page, re.S)
    assert data is not None
    read = json.loads(data[1])
    assert read["title"] == subjects.HOSTILE
    assert read["columns"] == report.view["columns"]


def test_nothing_comes_from_outside(report: Report) -> None:
    page = re.sub(r"http://www\.w3\.org/\S+|https://d3js\.org/\S+|https://github\.com/\S+", "", report.html)
    assert not re.findall(r"(?:src|href)=[\"']?(?:https?:)?//", page)
    assert "default-src &#x27;none&#x27;" in page
    assert "unsafe" not in page.partition("</head>")[0]


def test_it_is_written_whole_or_not_at_all(report: Report, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    report.save(path)
    assert path.read_text(encoding="utf-8") == report.html
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]
    bad = Report({**report.view, "title": float("nan")})
    with pytest.raises(ValueError, match="Out of range"):
        bad.save(path)
    assert path.read_text(encoding="utf-8") == report.html


def test_r_report_writes_a_file(tmp_path: Path) -> None:
    subjects.measured().report(tmp_path / "r.html", layers=["pool#0", "output"], nodes=2, flows=1)
    assert (tmp_path / "r.html").stat().st_size > 50_000


def test_a_notebook_shows_it_in_a_sandbox(report: Report) -> None:
    shown = report._repr_html_()
    assert shown.startswith("<iframe sandbox=")
    assert "allow-same-origin" not in shown
    assert shown.count("<") == 2  # everything inside is escaped
    assert "report" in repr(report)


def test_the_bundle_has_no_imports_left_and_unique_names() -> None:
    own = bundle()
    assert not re.search(r"^(?:import|export) ", own, re.M)
    modules = [read_asset(asset) for asset in ASSETS if "/" not in asset and asset.endswith(".js")]
    made = re.compile(r"^(?:export )?(?:async )?(?:function|const|let) (\w+)", re.M)
    names = [name for module in modules for name in made.findall(module)]
    assert len(names) == len(set(names))
    with pytest.raises(KeyError):
        read_asset("../page.py")


def test_every_linked_file_exists() -> None:
    for name in re.findall(r'(?:src|href)="static/([^"]+)"', linked_page()):
        assert name in ASSETS
    for name in ASSETS:
        assert STATIC.joinpath(*name.split("/")).is_file()


def test_no_markup_is_made_from_text() -> None:
    for name in ASSETS:
        if "vendor" not in name:
            assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", read_asset(name)), (
                name
            )


def test_the_vendored_files_are_as_pinned() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "vendor.py"), "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_names_of_modules_are_unique() -> None:
    """Reports have all modules in one script: a name that two of them declare would stop it."""
    declared = re.compile(r"^(?:export )?(?:async )?(?:const|let|function) (\w+|\[[^\]]*\]|\{[^}]*\})([^;]*)", re.M)
    found = Counter[str]()
    for name in MODULES:
        for first, rest in declared.findall(read_asset(f"{name}.js")):
            more = re.findall(r", ([A-Z_]+) = ", rest)  # constants that share a line
            found.update([first, *more])
    assert [name for name, count in found.items() if count > 1] == []
