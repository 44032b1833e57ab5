"""The documentation is complete: what is public has a docstring and a place, a picture a command, a page a link."""

from __future__ import annotations

import fnmatch
import importlib
import inspect
import pathlib
import re
import types
from collections.abc import Iterator

import pytest

import nrm
from nrm.extras import EXTRAS

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PUBLIC = [
    "nrm", "nrm.methods", "nrm.plot", "nrm.evaluate", "nrm.jobs", "nrm.testing", "nrm.report", "nrm.explorer",
    "nrm.compat", "nrm.measure", "nrm.questions", "nrm.reproduce", "nrm.tasks",
]  # fmt: skip
VALUES = {"__version__", "input", "output", "layer"}  # told in words
INNER = {"EXPERIMENTS", "PENDING"}


def public(module: types.ModuleType) -> Iterator[tuple[str, object]]:
    for name in module.__all__:
        found = getattr(module, name)
        if not isinstance(found, types.ModuleType):
            yield name, found


def members(cls: type) -> Iterator[tuple[str, object]]:
    for name in dir(cls):
        if not name.startswith("_"):
            found = inspect.getattr_static(cls, name)
            found = found.__func__ if isinstance(found, classmethod | staticmethod) else found
            if isinstance(found, property) or (inspect.isfunction(found) and _is_ours(found, cls)):
                yield name, getattr(cls, name)


def _is_ours(function: types.FunctionType, cls: type) -> bool:
    """Whether a method is the package's own; other libraries put theirs on ``nn.Module``."""
    return not cls.__module__.startswith("nrm") or function.__module__.startswith("nrm")


@pytest.mark.parametrize("name", PUBLIC)
def test_everything_public_has_a_docstring(name: str) -> None:
    module = importlib.import_module(name)
    assert inspect.getdoc(module)
    bare = []
    for item, found in public(module):
        if not (inspect.isclass(found) or inspect.isfunction(found)):
            continue
        if not inspect.getdoc(found):
            bare.append(item)
        if inspect.isclass(found) and found.__module__.startswith("nrm"):
            bare += [f"{item}.{member}" for member, value in members(found) if not inspect.getdoc(value)]
    assert not bare, f"no docstring: {', '.join(bare)}"


def test_everything_public_is_in_the_reference() -> None:
    text = "\n".join(path.read_text() for path in (DOCS / "reference").glob("*.md"))
    listed = set(re.findall(r"^::: nrm\.(?:\w+\.)*(\w+)$", text, re.M))
    for module in PUBLIC:
        absent = {name for name, _ in public(importlib.import_module(module))} - listed - VALUES - INNER
        assert not absent, f"{module}: {', '.join(sorted(absent))} in no page of docs/reference"


def test_what_the_reference_lists_exists() -> None:
    for path in (DOCS / "reference").glob("*.md"):
        names = re.findall(r"^::: (\S+)$", path.read_text(), re.M)
        assert len(names) == len(set(names)), f"{path.name} lists something twice"
        for name in names:
            module, _, item = name.rpartition(".")
            assert hasattr(importlib.import_module(module), item), f"{path.name} lists {name}"
            found = getattr(importlib.import_module(module), item)
            if inspect.isclass(found) or inspect.isfunction(found):
                assert inspect.getdoc(found), f"{name} has no docstring"
            bare = [own for own, value in members(found) if not inspect.getdoc(value)] if inspect.isclass(found) else []
            assert not bare, f"{name} has no docstrings of {', '.join(bare)}"


def commands() -> dict[str, tuple[str, str]]:
    """For every picture of the table in CONTRIBUTING.md (or pattern of pictures) its command and its script."""
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("| picture |")[2]
    found = {}
    for names, cell in re.findall(r"^\| (`.*?`) \| (.*?) \|", table, re.M):
        command, *script = re.findall(r"`(.*?)`", cell)
        found |= dict.fromkeys(re.findall(r"`(.*?)`", names), (command, script[0] if script else ""))
    return found


def test_every_picture_has_a_command() -> None:
    makefile = (ROOT / "Makefile").read_text()
    pages = "\n".join(path.read_text() for path in [ROOT / "README.md", *DOCS.glob("*.md")])
    for picture in sorted((DOCS / "images").iterdir()):
        row = next((row for name, row in commands().items() if fnmatch.fnmatch(picture.name, name)), None)
        assert row, f"{picture.name} is not in the table of CONTRIBUTING.md"
        command, script = row
        if command.startswith("make "):
            assert re.search(rf"^{command[5:]}:", makefile, re.M), f"there is no {command}"
            assert picture.stem in (ROOT / script).read_text() + makefile, f"{script} does not write {picture.name}"
        assert f"images/{picture.name}" in pages, f"{picture.name} is on no page"


def test_every_page_is_in_the_navigation() -> None:
    navigation = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[2]))
    assert {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")} <= navigation
    elsewhere = {name for name in navigation if not (DOCS / name).exists()}
    assert elsewhere == {
        "benchmarks.md", "changelog.md", "contributing.md", "security.md",
        *(f"tutorials/{name}.md" for name in importlib.import_module("percent").TUTORIALS),
    }  # fmt: skip


def test_every_word_of_the_glossary_is_told_once() -> None:
    words = re.findall(r"^\| \*\*(.+?)\*\* \| (.+) \|$", (DOCS / "glossary.md").read_text(), re.M)
    assert len(words) == len({word for word, _ in words}) > 30
    assert [word for word, _ in words] == sorted((word for word, _ in words), key=str.lower)


def test_a_tutorial_is_run_and_shown(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("matplotlib")
    percent = importlib.import_module("percent")
    path = tmp_path / "small.py"
    path.write_text(
        '"""Small."""\n\n# %% [markdown]\n# # Title\n#\n# Text.\n\n# %%\nimport matplotlib.pyplot as plt\n\na = 1\n'
        "print('said')\n\n# %%\nax = plt.figure().add_subplot()\na + 1\n"
        "\n# %%\nimport nrm\n\nnrm.plot.text([1.0], ['word'])\n"
    )
    page = percent.run(path)
    assert page.markdown.startswith("# Title\n\nText.\n\n```python\nimport matplotlib")
    assert "said" in page.markdown
    assert "\n2\n" in page.markdown
    assert list(page.pictures) == ["small-1.png"]
    assert "](small-1.png)" in page.markdown
    assert '<div class="result"><div style' in page.markdown


def test_docstrings_become_markdown() -> None:
    docstrings = pytest.importorskip("griffe") and importlib.import_module("docstrings")
    text = "See :func:`flows` and ``R``.\n\n>>> 1 + 1\n2\n\nEnd."
    assert docstrings.as_markdown(text) == "See `flows` and `R`.\n\n```pycon\n>>> 1 + 1\n2\n```\n\nEnd."


def test_the_version_is_in_one_place() -> None:
    text = (ROOT / "src" / "nrm" / "_version.py").read_text()
    assert f'__version__ = "{nrm.__version__}"' in text
    for name in ("pyproject.toml", "CITATION.cff", "mkdocs.yml", "README.md"):
        assert nrm.__version__ not in (ROOT / name).read_text(), f"{name} repeats the version"


def test_every_extra_is_tried() -> None:
    fresh = importlib.import_module("fresh")
    assert set(fresh.TRIES) == set(EXTRAS)


def test_every_room_is_told() -> None:
    told = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", rooms_table(), re.M))))
    packages = {path.parent.name for path in (ROOT / "src" / "nrm").glob("*/__init__.py")}
    assert packages <= told, f"not in the table of rooms: {', '.join(sorted(packages - told))}"


def rooms_table() -> str:
    return (ROOT / "CONTRIBUTING.md").read_text().partition("## Rooms")[2].partition("## House")[0]
