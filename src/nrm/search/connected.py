"""Connected sets of nodes, each once: as numbers whose bits are nodes, and as a tree that a search can cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Growth(NamedTuple):
    """All connected sets that have ``inside`` and nothing of ``outside``: sets of nodes as bits."""

    inside: int
    outside: int


def bits(nodes: int) -> list[int]:
    """The nodes of a set, in order.

    >>> bits(0b1011)
    [0, 1, 3]
    """
    found = []
    while nodes:
        lowest = nodes & -nodes
        found.append(lowest.bit_length() - 1)
        nodes ^= lowest
    return found


class Neighbours:
    """Which nodes are joined by edges, whatever their direction."""

    def __init__(self, count: int, pairs: Sequence[tuple[int, int]]) -> None:
        self._near = [0] * count
        for a, b in pairs:
            if a != b:
                self._near[a] |= 1 << b
                self._near[b] |= 1 << a

    def around(self, nodes: int) -> int:
        """The neighbours of a set outside it."""
        found = 0
        for i in bits(nodes):
            found |= self._near[i]
        return found & ~nodes

    def roots(self, nodes: int) -> Iterator[Growth]:
        """The sets of some nodes, divided by their first node."""
        outside = ~nodes
        for i in bits(nodes):
            yield Growth(1 << i, outside)
            outside |= 1 << i

    def children(self, growth: Growth) -> Iterator[Growth]:
        """The larger sets of a growth, divided by the first neighbour that they have. Every set is in one of them."""
        inside, outside = growth
        for i in bits(self.around(inside) & ~outside):
            yield Growth(inside | 1 << i, outside)
            outside |= 1 << i

    def reach(self, growth: Growth, steps: int) -> int:
        """The nodes that sets of a growth with so many more nodes can have."""
        found = front = growth.inside
        for _ in range(steps):
            front = self.around(found) & ~growth.outside
            if not front:
                break
            found |= front
        return found

    def sets(self, nodes: int, size: int) -> Iterator[int]:
        """All connected sets of so many of some nodes.

        >>> path = Neighbours(4, [(0, 1), (1, 2), (2, 3)])
        >>> [bits(s) for s in path.sets(0b1111, 3)]
        [[0, 1, 2], [1, 2, 3]]
        """
        waiting = [(growth, 1) for growth in reversed(list(self.roots(nodes)))]
        while waiting:
            growth, have = waiting.pop()
            if have == size:
                yield growth.inside
            else:
                waiting += [(child, have + 1) for child in reversed(list(self.children(growth)))]
