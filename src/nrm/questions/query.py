"""Formulas as text: ``fin AND NOT net``, with names for sets. Parsed by a grammar; nothing in a text is ever run."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from nrm.errors import QuestionError
from nrm.extras import extra
from nrm.questions.formula import Expression, Formula, named, visits
from nrm.questions.values import Set

GRAMMAR = r"""
?start: implies
?implies: or
        | or _IMPLIES implies  -> implies
?or: xor
   | or _OR xor                -> or
?xor: and
    | xor _XOR and             -> xor
?and: not
    | and _AND not             -> and
?not: _NOT not                 -> not
    | NAME                     -> name
    | QUOTED                   -> quoted
    | "(" implies ")"

_IMPLIES: /implies\b/i | "->"
_OR: /or\b/i | "|"
_XOR: /xor\b/i | "^"
_AND: /and\b/i | "&"
_NOT: /not\b/i | "~"
NAME: /(?!(implies|or|xor|and|not)\b)[^\W\d]\w*/i
QUOTED: /"([^"]|"")*"/
%ignore " "
"""
PLAIN = re.compile(r"(?!(implies|or|xor|and|not)\Z)[^\W\d]\w*", re.I)
"""Names that need no quotes."""
EXAMPLE = 'nrm.query("fin AND NOT net", fin=S1, net=S2)'
LONGEST = 10_000
"""Characters of a text that is still read."""
FIRST = 12
"""Where the text of an error begins on its line."""


def query(text: str, sets: Mapping[str, Any] | None = None, /, **more: Any) -> Formula:
    """The formula that a text says, with names for sets, lists of sets (any of them) or formulas.

    Words are ``NOT``, ``AND``, ``XOR``, ``OR`` and ``IMPLIES`` (or ``~ & ^ | ->``) in the order in which they bind,
    strongest first; parentheses group. A name in double quotes may have any characters, a double quote twice.
    What ``print`` shows of a formula with names for all its sets is such a text again. Needs the extra ``query``.

    >>> from nrm.questions.values import Layer
    >>> a, b = Layer("a"), Layer("b")
    >>> formula = query("fin AND NOT (net OR eye)", fin=a.channel(3), net=[a.channel(1), b.channel(2)], eye=b[7])
    >>> print(formula)
    fin & ~(net | eye)
    >>> formula == visits(a.channel(3)) & ~(visits(a.channel(1), b.channel(2)) | visits(b[7]))
    True
    """
    if not isinstance(text, str):
        raise QuestionError("a query is a text", got=repr(text)[:120], hint=EXAMPLE)
    if len(text) > LONGEST:
        raise QuestionError("the query is too long", got=f"{len(text)} characters", expected=f"at most {LONGEST}")
    known = {_line(name): _read(name, value) for name, value in {**(sets or {}), **more}.items()}
    line = _line(text)
    return Formula(_expression(_parse(line), known, line))


def _line(text: Any) -> str:
    """A text on one line."""
    if not isinstance(text, str):
        raise QuestionError("the name of a set is a text", got=repr(text)[:120], hint=EXAMPLE)
    return re.sub(r"\s", " ", text)


def _read(name: str, value: Any) -> Formula:
    quoted = _line(name).replace('"', '""')
    shown = name if PLAIN.fullmatch(name) else f'"{quoted}"'
    if isinstance(value, Formula):
        return named(value, shown)
    sets = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    if not sets or not all(isinstance(s, Set) for s in sets):
        layer = f"R[{value[:80]!r}]" if isinstance(value, str) else "a"
        raise QuestionError(
            f"{name!r} is no set", got=repr(value)[:120], expected="a set, a list of sets, or a formula",
            hint=f"{name}={layer}.channel(3)" if name.isidentifier() else None,
        )  # fmt: skip
    return named(visits(*sets), shown)


@functools.cache
def _parser() -> Any:
    with extra("query", "nrm.query"):
        import lark
    return lark.Lark(GRAMMAR, parser="lalr", maybe_placeholders=False)


def _parse(line: str) -> Any:
    parser = _parser()
    import lark

    try:
        return parser.parse(line)
    except lark.exceptions.UnexpectedInput as error:
        token = getattr(error, "token", None)
        found = len(line) if token is not None and token.type == "$END" else error.pos_in_stream
        at = len(line) if found is None else found
        wanted = getattr(error, "accepts", None) or getattr(error, "expected", None) or getattr(error, "allowed", ())
        operand = "NAME" in (wanted or ())
        expected = "a name, NOT or (" if operand else "AND, OR, XOR, IMPLIES, ) or the end"
        raise _complaint("the query cannot be read", line, at, expected) from None


def _expression(tree: Any, known: Mapping[str, Formula], line: str) -> Expression:
    """The expression of a parsed text, from its names upward; a text may nest more deeply than Python's calls."""
    built: list[Expression] = []
    todo = [(tree, False)]
    while todo:
        part, ready = todo.pop()
        if part.data in ("name", "quoted"):
            built.append(_called(part, known, line).expression)
        elif not ready:
            todo += [(part, True), *((child, False) for child in reversed(part.children))]
        else:
            count = len(part.children)
            built[-count:] = [(str(part.data), *built[-count:])]
    return built[0]


def _called(tree: Any, known: Mapping[str, Formula], line: str) -> Formula:
    """What a name of a text stands for."""
    token = tree.children[0]
    name = str(token) if tree.data == "name" else str(token)[1:-1].replace('""', '"')
    if name not in known:
        raise _complaint(
            f"the query has no set for {name!r}", line, token.start_pos, f"one of {', '.join(map(repr, known))}"
            if known else "sets by name",
        )  # fmt: skip
    return known[name]


def _complaint(what: str, line: str, at: int, expected: str) -> QuestionError:
    """An error that points to its place in the text."""
    begin = max(0, at - 40)
    shown = line[begin : at + 40]
    return QuestionError(
        what, where=f"character {at + 1}", got=f"{shown}\n{' ' * (FIRST + at - begin)}^", expected=expected,
        hint=EXAMPLE,
    )  # fmt: skip
