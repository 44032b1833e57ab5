"""Writes the classes of the code, with the first sentence of each, into ``docs/glossary.md``: ``make words``."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "glossary.md"
HEAD = "## The classes of the code"
ROOMS = (
    "tasks", "operators", "capture", "rules", "steps", "questions", "search", "measure", "methods", "evaluate", "jobs"
)  # fmt: skip


def first_sentence(text: str) -> str:
    """The first sentence of a docstring, on one line of a table."""
    line = " ".join(text.split("\n\n")[0].split())
    end = line.find(". ")
    return (line if end < 0 else line[: end + 1]).replace("|", "\\|").rstrip(".:")


def classes(room: str) -> dict[str, str]:
    """The classes of a room that have a name without an underscore, and what each is."""
    found = {}
    for path in sorted((ROOT / "src" / "nrm" / room).rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name] = first_sentence(ast.get_docstring(node) or "")
    return dict(sorted(found.items()))


def section() -> str:
    """The section of the page."""
    lines = [
        HEAD,
        "",
        "By room, in their order: every class is one thing, and no two have one name. `make words` writes this.",
    ]
    for room in ROOMS:
        lines += ["", f"### {room}", "", "| class | what it is |", "|---|---|"]
        lines += [f"| `{name}` | {text} |" for name, text in classes(room).items()]
    return "\n".join(lines) + "\n"


def page() -> str:
    """The page with its section as the code is now."""
    return PAGE.read_text(encoding="utf-8").partition(HEAD)[0].rstrip("\n") + "\n\n" + section()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
