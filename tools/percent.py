"""Tutorials as pages: a script in cells (``# %%``, text after ``# %% [markdown]``) with what it prints and draws."""

from __future__ import annotations

import ast
import contextlib
import io
import pathlib
import re
from typing import Any, NamedTuple

EXAMPLES = pathlib.Path(__file__).resolve().parents[1] / "examples"
TUTORIALS = tuple(sorted(path.stem for path in EXAMPLES.glob("*.py") if "\n# %%" in path.read_text("utf-8")))
"""The scripts that are written in cells."""
MARK = re.compile(r"^# %%(.*)\n", re.M)


class Cell(NamedTuple):
    """A cell and whether it is text."""

    text: bool
    source: str


class Page(NamedTuple):
    """A tutorial that has been run: its Markdown, and the pictures that it names."""

    markdown: str
    pictures: dict[str, bytes]


def cells(source: str) -> list[Cell]:
    r"""The cells of a script; what stands above the first mark belongs to none.

    >>> cells("# %% [markdown]\n# # Title\n# %%\n1 + 1\n")
    [Cell(text=True, source='# Title'), Cell(text=False, source='1 + 1')]
    """
    _, *parts = MARK.split(source)
    found = []
    for kind, body in zip(parts[::2], parts[1::2], strict=True):
        if text := kind.strip() == "[markdown]":
            body = re.sub(r"^# ?", "", body, flags=re.M)
        found.append(Cell(text, body.strip()))
    return found


def run(path: pathlib.Path) -> Page:
    """Runs a tutorial from top to bottom in one namespace."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names: dict[str, Any] = {"__name__": "__main__", "__file__": str(path)}
    blocks, pictures = [], dict[str, bytes]()
    for cell in cells(path.read_text(encoding="utf-8")):
        if cell.text:
            blocks.append(cell.source)
            continue
        blocks.append(f"```python\n{cell.source}\n```")
        said, drawn = _executed(cell.source, names)
        if said:
            blocks.append(f'<div class="result" markdown>\n\n```text\n{said}\n```\n\n</div>')
        if drawn:
            blocks.append(f'<div class="result">{drawn}</div>')
        for number in pyplot.get_fignums():
            name, buffer = f"{path.stem}-{len(pictures) + 1}.png", io.BytesIO()
            pyplot.figure(number).savefig(buffer, dpi=100)
            pictures[name] = buffer.getvalue()
            blocks.append(f"![What the cell above draws]({name})")
        pyplot.close("all")
    return Page("\n\n".join(blocks) + "\n", pictures)


def _executed(source: str, names: dict[str, Any]) -> tuple[str, str]:
    """What a cell prints, with its last line's value as a notebook shows it; and that value as HTML, if it is such."""
    tree, drawn = ast.parse(source), ""
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, "<cell>", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
            is_drawn = any(kind.__module__.startswith("matplotlib") for kind in type(value).__mro__)
            if is_drawn or value is None:
                pass  # figures are shown as pictures
            elif hasattr(value, "_repr_html_"):
                drawn = " ".join(value._repr_html_().split("\n"))  # a blank line would end it
            else:
                print(repr(value))
    return printed.getvalue().rstrip(), drawn
