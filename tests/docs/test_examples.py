"""Every Python block of the README and the docs runs, each file from top to bottom in one namespace."""

from __future__ import annotations

import pathlib
import re
import runpy
import warnings

import pytest

import vision

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("**/*.md")])
NEEDS = {"relmax.md": "duckdb"}
BLOCK = re.compile(r"^```python\n(.*?)^```", re.M | re.S)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_the_blocks_of_a_page_run(page: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib").use("Agg")
    if page.name in NEEDS:
        pytest.importorskip(NEEDS[page.name], reason="an extra is not installed")
    text = page.read_text()
    if "torch_geometric" in text:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it still scripts some of its classes
            pytest.importorskip("torch_geometric", reason="torch_geometric is absent (pip install nrm[graph])")
            pytest.importorskip("torch_geometric.nn")
    if "import LlamaConfig" in text:
        pytest.importorskip("transformers", reason="transformers is absent (pip install nrm[text])")
        vision.load()  # which transformers imports
    script = tmp_path / "page.py"
    script.write_text("\n".join(BLOCK.findall(text)))
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(script))


def test_links_inside_the_repository_exist() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_main_example_runs(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sklearn")
    out = tmp_path / "picture.png"
    monkeypatch.setattr("sys.argv", ["digits.py", "--epochs", "1", "--out", str(out)])
    runpy.run_path(str(ROOT / "examples" / "digits.py"), run_name="__main__")
    assert out.stat().st_size > 10_000
    assert "of the decision flowed through" in capsys.readouterr().out
