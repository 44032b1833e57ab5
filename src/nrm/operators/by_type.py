"""A table by type, in place of a ladder of questions after it."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


class ByType(dict[type, T]):
    """What is said of some types: ``table[type(x)]`` is the entry of the type of x, or of the nearest it is made from.

    >>> names = ByType({object: "something", int: "a number"})
    >>> names[bool], names[str]
    ('a number', 'something')
    """

    def __missing__(self, kind: type) -> T:
        self[kind] = found = next(self[base] for base in kind.__mro__[1:] if base in self)
        return found
