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
    if "from transformers import" in "\n".join(BLOCK.findall(text)):
        pytest.importorskip("transformers", reason="transformers is absent (pip install nrm[text])")
        vision.load()  # which transformers imports
    script = tmp_path / "page.py"
    script.write_text("\n".join(BLOCK.findall(text)))
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(script))


@pytest.mark.parametrize("name", ["README.md", "docs/index.md"])
def test_the_first_example_prints_what_is_shown(
    name: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a trained network, whose numbers can be trusted: no warning, no caution."""
    pytest.importorskip("sklearn")
    text = (ROOT / name).read_text()
    shown = re.search(r"^```text\n(.*?)^```", text, re.M | re.S)
    assert shown is not None, "what the first block prints stands below it"
    (tmp_path / "first.py").write_text(BLOCK.findall(text)[0])
    monkeypatch.chdir(tmp_path)
    runpy.run_path("first.py")
    printed = capsys.readouterr().out
    precision = re.compile(r"precision lost \S+")  # the last digits differ between machines
    assert precision.sub("", printed) == precision.sub("", shown[1])
    assert "can be trusted" in printed
    assert "But" not in printed


def test_the_start_pages_have_one_table_of_where_to_go() -> None:
    rows = [re.findall(r"^\| [^|]+ \| .*$", (ROOT / page).read_text().partition("| you want to |")[2], re.M)
            for page in ("README.md", "docs/index.md")]  # fmt: skip
    assert len(rows[0]) > 8
    assert [re.sub(r"\]\((docs/)?", "](", row) for row in rows[0]] == [row.replace("](../", "](") for row in rows[1]]


def test_pairs_of_far_layers_have_a_row_of_their_own() -> None:
    text, measured = ((ROOT / page).read_text() for page in ("README.md", "benchmarks/README.md"))
    assert re.search(r"512 x 512 channel pairs of two neighbouring layers", text)
    far = re.search(r"\| 128 x 512 channel pairs of two far layers[^|]*\| (\d+) \|", text)
    bench = re.search(r"\| 128 x 512 channel pairs of far layers[^|]*\| ([\d.]+) forward passes", measured)
    assert far is not None
    assert bench is not None
    assert int(far[1]) == round(float(bench[1]))


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
