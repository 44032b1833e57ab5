"""The tutorials: each is in the navigation, runs from top to bottom, and shows what its cells print and draw."""

from __future__ import annotations

import ast
import importlib
import pathlib
import re
import tempfile
import warnings
from collections.abc import Callable

import pytest

import vision

percent = importlib.import_module("percent")
ROOT = pathlib.Path(__file__).resolve().parents[2]
NEEDS = {
    "image": [],
    "sequence": ["transformers"],
    "graph": ["torch_geometric"],
    "contrast": [],
    "formulas": ["lark"],
    "evaluate": [],
    "relmax": ["pyarrow", "duckdb"],
    "own_rule": [],
    "pictures": [],
}


def need(*packages: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch_geometric still scripts some of its classes
        for package in ("matplotlib", "sklearn", *packages):
            pytest.importorskip(package, reason=f"{package} is absent")
        if "torch_geometric" in packages:
            importlib.import_module("torch_geometric.datasets")
            importlib.import_module("torch_geometric.nn")
    if "transformers" in packages:
        vision.load()  # which transformers imports


@pytest.fixture
def alone(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """An empty folder to run in, without data, weights or a network at hand."""
    monkeypatch.delenv("NRM_DATA", raising=False)
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    empty, temporary = tmp_path / "empty", tmp_path / "temporary"
    empty.mkdir()
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.chdir(empty)
    return empty


def text_of(name: str) -> str:
    return (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")


def test_every_example_has_a_place() -> None:
    assert set(percent.TUTORIALS) == set(NEEDS)
    scripts = {path.stem for path in (ROOT / "examples").glob("*.py")} - set(percent.TUTORIALS)
    for name in scripts:
        assert f"examples/{name}.py" in (ROOT / "Makefile").read_text(), (
            f"{name}.py is no tutorial, and no command runs it"
        )
    tutorials = (ROOT / "mkdocs.yml").read_text().partition("- Tutorials:")[2].partition("- How to:")[0]
    assert sorted(re.findall(r"tutorials/(\w+)\.md", tutorials)) == sorted(NEEDS)
    start = (ROOT / "docs" / "index.md").read_text() + (ROOT / "README.md").read_text()
    for name in NEEDS:
        assert start.count(f"examples/{name}.py") >= 2, f"no link to {name}.py on the start page and in the README"


@pytest.mark.parametrize("name", NEEDS)
def test_a_tutorial_is_written_in_cells(name: str) -> None:
    cells = percent.cells(text_of(name))
    assert cells[0].text
    assert cells[0].source.startswith("# ")
    assert sum(not cell.text for cell in cells) > 4
    for cell in cells:
        if not cell.text:
            ast.parse(cell.source)
            continue
        for target in re.findall(r"\]\((?!https?://)([^)#]+)", cell.source):
            assert (ROOT / "examples" / target).exists(), f"{name}.py links to {target}"


@pytest.mark.parametrize("name", NEEDS)
def test_a_tutorial_runs(name: str, alone: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need(*NEEDS[name])
    if name == "graph":
        datasets = importlib.import_module("torch_geometric.datasets")
        monkeypatch.setattr(datasets.TUDataset, "download", unreachable)
    page = percent.run(ROOT / "examples" / f"{name}.py")
    assert len(page.pictures) == page.markdown.count("![What the cell above draws]") >= 1
    for picture, content in page.pictures.items():
        assert content.startswith(b"\x89PNG"), picture
        assert len(content) > 4000, f"{picture} is nearly empty"
    assert page.markdown.count('<div class="result"') >= 4
    assert " object at 0x" not in page.markdown
    assert tempfile.gettempdir() + "/" not in page.markdown
    assert not list(alone.iterdir()), "it writes into the folder where it is run"
    if name == "graph":
        assert "There is no MUTAG here (OSError)" in page.markdown
    if name == "sequence":
        assert "stories15M is not here" in page.markdown
    if name == "image":
        assert "VGG16's weights are not here" in page.markdown


def part_of(name: str, heading: str, folder: pathlib.Path) -> pathlib.Path:
    """A script of a tutorial's imports and of what follows a heading."""
    text = text_of(name)
    imports = re.split(r"^# %%", text.partition("\nimport ")[2], maxsplit=1, flags=re.M)[0]
    script = folder / f"{name}.py"
    script.write_text(f"# %%\nimport {imports}# %% [markdown]\n# {heading}{text.partition(f'# {heading}')[2]}")
    return script


def unreachable(self: object) -> None:
    raise OSError("no network in tests")


@pytest.mark.data
def test_the_graph_tutorial_reads_mutag(
    shared: Callable[[str], pathlib.Path], alone: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("torch_geometric")
    monkeypatch.setenv("NRM_DATA", str(shared("graphs/MUTAG").parents[1]))
    page = percent.run(ROOT / "examples" / "graph.py").markdown
    assert "188 molecules of MUTAG" in page
    assert "125 mutagenic: 125 with nitro groups, 108 with junctions" in page


@pytest.mark.data
def test_the_sequence_tutorial_goes_on_with_a_llama_that_tells_stories(
    shared: Callable[[str], pathlib.Path], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("transformers")
    monkeypatch.setenv("NRM_DATA", str(shared("stories15M").parent))
    page = percent.run(part_of("sequence", "## A Llama that tells stories", tmp_path))
    assert "model.layers.5.self_attn.o_proj:" in page.markdown
    assert 'title="ball: 35 %"' in page.markdown


@pytest.mark.data
@pytest.mark.slow
def test_the_image_tutorial_goes_on_with_vgg16(
    shared: Callable[[str], pathlib.Path], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need()
    monkeypatch.setenv("NRM_DATA", str(shared("vgg16-imagenette").parent))
    page = percent.run(part_of("image", "## VGG16", tmp_path))
    assert "explains  output 4 'church'" in page.markdown
    assert len(page.pictures) == 2
