"""Formulas: logic about what walks visit. Like sets they are values: no tensors of a network, printable, storable.

A set of neurons belongs to one layer, and its operators act inside it. ``visits`` lifts sets to events about walks,
where ``~`` is the complement over *all* walks, also those that pass the layer by.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from nrm.errors import QuestionError
from nrm.questions.values import SYMBOLS, Layer, Partition, Set, no_truth

ATOMS = 12
"""So many events can be told apart at once; each may double the number of messages."""

Expression = tuple[Any, ...]
"""``("visits", atom)``, ``("not", e)``, or one of ``and or xor implies`` with two expressions."""

OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "implies": lambda a, b: ~a | b,
}


@dataclass(frozen=True)
class Atom:
    """Walks that touch any of some sets, in whatever layers; ``name`` is how a text calls it."""

    sets: tuple[Set, ...]
    name: str = field(default="", compare=False)

    def show(self, code: bool) -> str:
        """Its name, or the sets; as code, the call that makes it."""
        if code:
            return f"nrm.visits({', '.join(map(repr, self.sets))})"
        return self.name or f"visits({', '.join(map(str, self.sets))})"


@dataclass(frozen=True, repr=False, eq=False)
class Formula:
    """An event about walks; made by :func:`visits` and combined with ``& | ~ ^`` and ``.implies()``.

    >>> a, b = Layer("a"), Layer("b")
    >>> print(visits(a.channel(3), b.channel(5)) & ~visits(b.channel(1)))
    visits(a.channel(3), b.channel(5)) & ~visits(b.channel(1))
    >>> visits(a.channel(3)) & visits(b.all) == visits(a.channel(3)) & visits(b.all)
    True
    """

    expression: Expression

    @property
    def atoms(self) -> tuple[Atom, ...]:
        """The different ``visits`` it is made of, in the order in which they are written."""
        return tuple(dict.fromkeys(step for step in _steps(self.expression) if isinstance(step, Atom)))

    @property
    def sets(self) -> tuple[Set, ...]:
        """Every set that it mentions."""
        return tuple(dict.fromkeys(s for atom in self.atoms for s in atom.sets))

    def truth(self, atoms: Sequence[Atom] | None = None) -> npt.NDArray[np.bool_]:
        """For every combination of atoms, whether it holds: entry ``i`` is about the atoms with a bit in ``i``.

        >>> a, b = Layer("a").all, Layer("b").all
        >>> visits(a).implies(visits(b)).truth().tolist()
        [True, False, True, True]
        """
        known = self.atoms if atoms is None else atoms
        if len(known) > ATOMS:
            raise QuestionError(
                "the formula is too large", got=f"{len(known)} different events",
                expected=f"at most {ATOMS}: each may double the number of messages",
                hint="nrm.visits(S1, S2, ...) of several sets is one event; R(S1, S2, formula) takes sets beside it",
            )  # fmt: skip
        numbers = np.arange(2 ** len(known))
        held = {atom: (numbers >> k & 1).astype(bool) for k, atom in enumerate(known)}
        return _evaluate(self.expression, held)

    def implies(self, other: Formula) -> Formula:
        """Walks for which the other event happens wherever this one does: ``~self | other``."""
        return self._with("implies", other)

    def __and__(self, other: Formula) -> Formula:
        return self._with("and", other)

    def __or__(self, other: Formula) -> Formula:
        return self._with("or", other)

    def __xor__(self, other: Formula) -> Formula:
        return self._with("xor", other)

    def __invert__(self) -> Formula:
        return Formula(("not", self.expression))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Formula) and _steps(self.expression) == _steps(other.expression)

    def __hash__(self) -> int:
        return hash(tuple(_steps(self.expression)))

    def __bool__(self) -> NoReturn:
        no_truth(self)

    def __str__(self) -> str:
        return _show(self.expression, code=False)

    def __repr__(self) -> str:
        return _show(self.expression, code=True)

    def _repr_html_(self) -> str:
        return f"<code>{html.escape(str(self))}</code>"

    def _with(self, operator: str, other: Any) -> Formula:
        if not isinstance(other, Formula):
            raise QuestionError(
                f"a formula combines with formulas only, not with a {type(other).__name__}", got=repr(other)[:120],
                hint="wrap sets in nrm.visits(...)",
            )  # fmt: skip
        return Formula((operator, self.expression, other.expression))


def visits(*sets: Set) -> Formula:
    """All walks that touch any of these sets, which may lie in different layers.

    >>> a, b = Layer("a"), Layer("b")
    >>> print(visits(a.channel(3)) ^ visits(b[:, 0]))
    visits(a.channel(3)) ^ visits(b[:, 0])
    """
    if not sets:
        raise QuestionError("nothing to visit", hint="nrm.visits(a.channel(3), b.channel(5))")
    given: tuple[Any, ...] = sets
    for chosen in given:
        if not isinstance(chosen, Set):
            hint = ".all is a whole layer, .channel(3) a part of it"
            if isinstance(chosen, Partition):
                hint = "a.channel(3) or a.channels[3] is one block of it"
            elif isinstance(chosen, Formula):
                hint = "a formula is an event already: combine it with & | ~"
            elif isinstance(chosen, str):
                hint = f"R[{chosen[:80]!r}].channel(3), nrm.layer({chosen[:80]!r}).all"
            elif not isinstance(chosen, Layer):
                hint = "a.channel(3), a[...], a.where(mask)"
            raise QuestionError("walks visit sets", got=repr(chosen)[:120], expected="sets of neurons", hint=hint)
    return Formula(("visits", Atom(sets)))


def named(formula: Formula, name: str) -> Formula:
    """A single event under a name by which it is printed; it stays equal to itself without one."""
    kind, *rest = formula.expression
    return Formula((kind, replace(rest[0], name=name))) if kind == "visits" else formula


def _steps(e: Expression) -> list[Atom | str]:
    """An expression as atoms, each operator after its operands: a stack reads it, however deeply it is nested."""
    found: list[Atom | str] = []
    todo = [e]
    while todo:
        kind, *parts = todo.pop()
        found.append(parts[0] if kind == "visits" else kind)
        todo.extend([] if kind == "visits" else parts)
    return found[::-1]


def _evaluate(e: Expression, held: dict[Atom, npt.NDArray[np.bool_]]) -> npt.NDArray[np.bool_]:
    stack: list[npt.NDArray[np.bool_]] = []
    for step in _steps(e):
        if isinstance(step, Atom):
            stack.append(held[step])
        elif step == "not":
            stack.append(~stack.pop())
        else:
            right, left = stack.pop(), stack.pop()
            stack.append(OPERATIONS[step](left, right))
    return stack[0]


def _show(e: Expression, code: bool) -> str:
    stack: list[tuple[str, str]] = []  # a text, and which operator is outermost in it
    for step in _steps(e):
        if isinstance(step, Atom):
            stack.append((step.show(code), ""))
        elif step == "not":
            stack.append((f"~{_grouped(*stack.pop())}", "not"))
        else:
            right, left = stack.pop(), stack.pop()
            if step == "implies" and code:  # Python has no such operator, and a call binds before a sign
                before = f"({left[0]})" if left[1] == "not" else _grouped(*left)
                stack.append((f"{before}.implies({right[0]})", "call"))
            else:
                stack.append((f"{_grouped(*left)} {SYMBOLS.get(step, '->')} {_grouped(*right)}", step))
    return stack[0][0]


def _grouped(text: str, operator: str) -> str:
    return f"({text})" if operator in OPERATIONS else text
