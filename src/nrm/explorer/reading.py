"""What a page asks, checked: classes, layers, nodes, named sets. Nothing of it is trusted, and nothing is run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from nrm.errors import QuestionError
from nrm.questions import Set
from nrm.report import BY, REMOVED, View, read_blocks

MOST_COLUMNS, MOST_CHOSEN = 12, 200
OTHER_MODEL = "model"
"""What a question calls the other model."""


class GoneError(QuestionError):
    """What a question is about was forgotten meanwhile. The page asks for it again."""


def refuse_old(question: Mapping[str, Any]) -> None:
    """Refuses the name that another class had before: a reference is a matter of the measure, not of the page."""
    if "against" in question:
        raise QuestionError(
            "another class is asked for as 'compare'", got=f"'against': {question['against']!r}"[:80],
            expected="'compare': the number of a class", hint="nrm.explore(model, data, against=...) for a reference",
        )  # fmt: skip


def read_class(given: Any) -> int | None:
    """A number of an output, or nothing."""
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int):
        raise QuestionError("not a class", got=repr(given)[:80], expected="an integer or nothing")
    return given


def read_compared(given: Any) -> int | str | None:
    """What a view is compared with: a class, or the other model."""
    return OTHER_MODEL if given == OTHER_MODEL else read_class(given)


def read_layers(given: Any) -> list[tuple[str, str]] | None:
    """Names of layers and how they are divided, or nothing."""
    if given is None:
        return None
    pairs = isinstance(given, list) and all(
        isinstance(p, list) and len(p) == 2 and all(isinstance(x, str) for x in p) and p[1] in BY for p in given
    )
    if not pairs or not 2 <= len(given) <= MOST_COLUMNS:
        raise QuestionError("not a choice of layers", got=repr(given)[:80], expected='[["name", "channels"], ...]')
    return [(name, by) for name, by in given]


def read_chosen(given: Any) -> list[tuple[int, int]]:
    """Nodes as columns and places."""
    pairs = isinstance(given, list) and 0 < len(given) <= MOST_CHOSEN and all(
        isinstance(p, list) and len(p) == 2 and all(type(x) is int for x in p) for p in given
    )  # fmt: skip
    if not pairs or len({tuple(p) for p in given}) < len(given):
        raise QuestionError("not a choice of nodes", got=repr(given)[:80], expected="[[column, node], ...]")
    return [(c, n) for c, n in given]


def check_nodes(view: View, chosen: list[tuple[int, int]]) -> None:
    """Refuses nodes that a view does not have."""
    sizes = [len(shown.column.nodes) for shown in view.columns]
    if not all(0 <= c < len(sizes) and 0 <= n < sizes[c] for c, n in chosen):
        raise QuestionError("no such node", got=str(chosen)[:80])


def read_value(given: Any) -> str:
    """What takes the place of removed neurons."""
    if given not in REMOVED:
        raise QuestionError("no such value", got=repr(given)[:80], expected=", ".join(REMOVED))
    return str(given)


class NamedSet(NamedTuple):
    """A named set of the page, any of some sets, and how Python writes each of them."""

    sets: list[Set]
    lines: list[str]


def read_set(view: View, made: Any) -> NamedSet:
    """Nodes (any of them), blocks of a layer by number, or a part of the input that was drawn."""
    if not isinstance(made, dict):
        raise QuestionError("not a set", got=repr(made)[:80], expected="nodes, blocks of a layer, or a region")
    if "nodes" in made:
        chosen = read_chosen(made["nodes"])
        check_nodes(view, chosen)
        events = [view.columns[c].event(n) for c, n in chosen]
        if None in events:
            raise QuestionError("what passes elsewhere is no set", hint="NOT a set of all the other nodes")
        return NamedSet([e for e in events if e is not None], [view.script.node(c, n) or "" for c, n in chosen])
    if "layer" in made:
        event, line = read_blocks(view.R, made)
        return NamedSet([event], [line])
    region = view.region(made)
    shape = tuple(view.R.values(view.canvas.layer).shape[1:])
    return NamedSet([region.set(view.R)], [region.line(shape)])
