"""A second run beside a first one: where samples, channels and heads lie is the same in both, and found only once."""

from __future__ import annotations

from typing import Any

from nrm.capture.tape import Node, Tape


def form(node: Node) -> tuple[Any, ...]:
    """What two runs that do the same have in common at a node: the call, its place, what it reads, its shape."""
    return node.function, node.module, node.inputs, node.shape, type(node.op)


class Beside:
    """A finished run that another one is recorded beside; up to the first node that differs it is followed."""

    def __init__(self, tape: Tape) -> None:
        self._nodes = tape.nodes
        self._alike = True

    def place(self, node: Node) -> bool:
        """Gives a node what its counterpart has, as long as the runs are alike; else it has to be found."""
        self._alike = self._alike and node.index < len(self._nodes) and form(self._nodes[node.index]) == form(node)
        if not self._alike:
            return False
        twin = self._nodes[node.index]
        if twin.owner is not None:  # entry by entry it may depend on values
            return False
        node.sample, node.channel, node.heads = twin.sample, twin.channel, twin.heads
        return True
