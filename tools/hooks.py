"""Hooks of the documentation site (see ``mkdocs.yml``).

Pages that live outside ``docs`` join it; tutorials are run; formulas become MathML, which browsers draw by themselves;
and a finished page that would ask another host for anything is refused.
"""

from __future__ import annotations

import pathlib
import re
import sys
from typing import Any

import aiohttp
import fsspec
import latex2mathml.converter
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests")]

import percent  # noqa: E402

import vision  # noqa: E402

vision.load()  # which transformers imports, also beside a CPU build of torch
fsspec.config.conf["https"] = {"client_kwargs": {"timeout": aiohttp.ClientTimeout(total=20)}}  # of data to download

ELSEWHERE = {
    "benchmarks/README.md": "benchmarks.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
NAMES = "|".join(percent.TUTORIALS)
SIBLING = re.compile(rf"\]\(({NAMES})\.py\)")
EXAMPLE = re.compile(rf"\]\((?:\.\./)*examples/({NAMES})\.py\)")
MATH = re.compile(r'<(span|div) class="arithmatex">\\[\(\[](.*?)\\[\)\]]</\1>', re.S)
ASKS = re.compile(r"""<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)=["']?((?:https?:)?//[^"'\s>]+)|@import[^;]*//""")


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages from elsewhere in the repository, and the tutorials with their pictures."""
    for source, name in ELSEWHERE.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=text.replace("](docs/", "](")))
    for name in percent.TUTORIALS:
        page = percent.run(percent.EXAMPLES / f"{name}.py")
        text = SIBLING.sub(r"](\1.md)", page.markdown.replace("](../docs/", "](../"))
        files.append(File.generated(config, f"tutorials/{name}.md", content=text))
        for picture, content in page.pictures.items():
            files.append(File.generated(config, f"tutorials/{picture}", content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links to the repository's own pages lead to their copies on the site."""
    up = "../" * page.file.src_uri.count("/")
    for source, name in ELSEWHERE.items():
        markdown = markdown.replace(f"](../{source}", f"]({up}{name}").replace(f"]({source}", f"]({up}{name}")
    return EXAMPLE.sub(rf"]({up}tutorials/\1.md)", markdown)


def on_page_content(html: str, **_: Any) -> str:
    """LaTeX becomes MathML."""

    def drawn(match: re.Match[str]) -> str:
        display = "inline" if match[1] == "span" else "block"
        return latex2mathml.converter.convert(_unescaped(match[2]), display=display)

    return MATH.sub(drawn, html)


def on_post_build(config: Any) -> None:
    """Refuses pages that need a network."""
    found = {
        f"{path.relative_to(config.site_dir)}: {match[0][:90]}"
        for path in pathlib.Path(config.site_dir).rglob("*.html")
        for match in ASKS.finditer(path.read_text(encoding="utf-8"))
    }
    if found:
        raise PluginError("pages ask other hosts:\n" + "\n".join(sorted(found)))


def _unescaped(text: str) -> str:
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
