"""Docstrings as Markdown, for the API reference: examples become code blocks, and Sphinx' roles links or code."""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(func|class|meth|mod|attr|data):`~?([^`]+)`")
DOUBLE = re.compile(r"``([^`]+)``")


def as_markdown(text: str) -> str:
    r"""A docstring with its examples fenced, its roles as code.

    >>> print(as_markdown("See :func:`flows`.\n\n>>> 1 + 1\n2"))
    See `flows`.
    <BLANKLINE>
    ```pycon
    >>> 1 + 1
    2
    ```
    """
    paragraphs = ROLE.sub(r"`\2`", text).split("\n\n")
    return "\n\n".join(
        f"```pycon\n{p.strip()}\n```" if p.lstrip().startswith(">>>") else DOUBLE.sub(r"`\1`", p) for p in paragraphs
    )


class Docstrings(griffe.Extension):
    """Rewrites every docstring once, when its object is read."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)
