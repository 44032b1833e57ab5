"""The page of a report and of the explorer: one front end, with its data and scripts inside or linked."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import re
from functools import cache
from importlib.resources import files
from typing import Any

from nrm.files import write_text
from nrm.plot import ABOVE, BELOW
from nrm.report.story import story_text

STATIC = files("nrm.report") / "static"
VENDOR = ("d3-array", "d3-path", "d3-shape", "d3-sankey")
MODULES = (
    "numbers",
    "heat",
    "faces",
    "flow",
    "story",
    "panels",
    "switch",
    "export",
    "overview",
    "attention",
    "names",
    "formula",
    "address",
    "talk",
    "server",
    "circuit",
    "circuitpanel",
    "textpanel",
    "app",
)
COLOURS = {"above": list(ABOVE), "below": list(BELOW)}
CIRCUIT = ("numbers", "heat", "export", "circuit", "circuitpage")
"""The modules of the page of a circuit."""
ASSETS = (
    "style.css", "circuit.css", *(f"{name}.js" for name in dict.fromkeys((*MODULES, *CIRCUIT))),
    *(f"vendor/{name}.min.js" for name in VENDOR),
)  # fmt: skip
"""Every file that pages are made of."""


def read_asset(name: str) -> str:
    """The text of one of :data:`ASSETS`, or of a page itself."""
    if name not in (*ASSETS, "page.html", "circuit.html"):
        raise KeyError(name)
    return STATIC.joinpath(*name.split("/")).read_text(encoding="utf-8")


@cache
def bundle(modules: tuple[str, ...] = MODULES, vendor: tuple[str, ...] = VENDOR) -> str:
    """The modules of a front end as one script: imports left out, as every name is unique."""
    parts = [re.sub(r"^export (?=async|function|const)", "", read_asset(f"{name}.js"), flags=re.M) for name in modules]
    own = "\n".join(re.sub(r"^import .*;$", "", part, flags=re.M) for part in parts)
    return "\n".join([*(read_asset(f"vendor/{name}.min.js") for name in vendor), f"(() => {{\n{own}\n}})();"])


def as_json(data: Any) -> str:
    r"""Data as JSON that is safe inside a script element, whatever texts it holds.

    >>> print(as_json({"name": "</script>"}))
    {"name": "\u003c/script\u003e"}
    """
    text = json.dumps(data, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def whole_page(view: dict[str, Any]) -> str:
    """A page that needs nothing else: the view, the scripts and the styles are inside, and nothing else may run."""
    return _single(view, "page.html", bundle(), read_asset("style.css") + read_asset("circuit.css"))


def circuit_page(view: dict[str, Any]) -> str:
    """The page of a circuit, of the same kind."""
    return _single(view, "circuit.html", bundle(CIRCUIT, ()), read_asset("style.css") + read_asset("circuit.css"))


def _single(view: dict[str, Any], page: str, script: str, style: str) -> str:
    policy = (
        f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    return _fill(
        page,
        policy=f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">',
        style=f"<style>{style}</style>",
        data=f'<script type="application/json" id="view">{as_json({**view, "colours": COLOURS})}</script>',
        scripts=f"<script>{script}</script>",
    )


def linked_page() -> str:
    """The page of the explorer, whose scripts and styles are files of the server."""
    vendor = "".join(f'<script src="static/vendor/{name}.min.js"></script>' for name in VENDOR)
    style = "".join(f'<link rel="stylesheet" href="static/{name}.css">' for name in ("style", "circuit"))
    scripts = vendor + '<script type="module" src="static/app.js"></script>'
    return _fill("page.html", policy="", style=style, data="", scripts=scripts)


def _fill(page: str, **parts: str) -> str:
    return re.sub(r"<!--(policy|style|data|scripts)-->", lambda found: parts[found[1]], read_asset(page))


def _digest(text: str) -> str:
    """A source of a content security policy that allows exactly this text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


class Report:
    """A view as a page. Notebooks show it; ``save(path)`` writes it as one file; ``view`` are its numbers."""

    def __init__(self, view: dict[str, Any]) -> None:
        self.view = view

    @property
    def html(self) -> str:
        """The page."""
        return whole_page(self.view)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the page; the file is there as a whole or not at all."""
        write_text(path, self.html)

    def _repr_html_(self) -> str:
        page = html.escape(self.html, quote=True)
        return (
            '<iframe sandbox="allow-scripts allow-downloads" width="100%" height="980" style="border:0" '
            f'srcdoc="{page}"></iframe>'
        )

    def __repr__(self) -> str:
        decision, story = self.view["decision"], story_text(self.view["story"])
        return f"report: {decision['name']} = {decision['value']:.4g}. {story} save('report.html') writes it"
