"""One step of two runs: the values that an exact split is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from nrm.capture.ops import Exact, Parts, Piece
from nrm.capture.recall import At, Recall, mapped
from nrm.capture.tape import Node, Tape
from nrm.operators import LinearMap

Side = Tensor | Callable[[], Tensor]
"""A tensor, or how to read it."""


class Pair:
    """A tensor in both runs: ``here`` in the explained one, ``there`` in the reference.

    A side that is given as a function is read whenever it is asked for: a lean tape does not keep it.
    """

    __slots__ = ("_here", "_shape", "_there")

    def __init__(self, here: Side, there: Side, *, shape: torch.Size | None = None) -> None:
        self._here, self._there, self._shape = here, there, shape

    @property
    def here(self) -> Tensor:
        """What it is in the explained run."""
        return self._here if isinstance(self._here, Tensor) else self._here()

    @property
    def there(self) -> Tensor:
        """What it is in the reference."""
        return self._there if isinstance(self._there, Tensor) else self._there()

    @property
    def shape(self) -> torch.Size:
        """The shape in either run, known without its values."""
        return self.here.shape if self._shape is None else self._shape

    def __iter__(self) -> Iterator[Tensor]:
        yield self.here
        yield self.there

    @property
    def mean(self) -> Tensor:
        """What it is between the runs."""
        return (self.here + self.there).mul_(0.5)

    @property
    def delta(self) -> Tensor:
        """The difference of the runs; 0 where both are the same, also where they are infinite."""
        here, there = self
        return (here - there).masked_fill(here == there, 0.0)

    def moved(self, move: LinearMap | None) -> Pair:
        """Both after data movement."""
        return self if move is None else Pair(*(move.apply(x[None])[0] for x in self))

    def reshape(self, *shape: int) -> Pair:
        """Both in another shape."""
        return Pair(*(v.reshape(shape) for v in self))


def _read(node: Node) -> Tensor:
    return node.value


def _recalled(tape: Tape, recall: Recall) -> Tensor:
    """What a call gives in one of the runs."""
    return recall.run({i: tape.nodes[i].value for i in recall.reads})


class Step:
    """A node of two tapes with one structure: what it reads, what it gives, and the call that made it."""

    def __init__(self, here: Tape, there: Tape, i: int) -> None:
        self.node: Node = here.nodes[i]
        self.other: Node = there.nodes[i]
        self.runs = (here, there)

    def value(self, i: int) -> Pair:
        """The value of any node."""
        here, there = (tape.nodes[i] for tape in self.runs)
        return Pair(
            *(partial(_read, node) if node.held is None else node.value for node in (here, there)), shape=here.shape
        )

    @property
    def result(self) -> Pair:
        """What the step gives."""
        return self.value(self.node.index)

    @property
    def inputs(self) -> list[Pair]:
        """What the step reads."""
        return [self.value(j) for j in self.node.inputs]

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of the call, with a :class:`Pair` for every tensor that depends on the input."""
        recall = self.node.recall
        assert recall is not None, f"{self.node.name} has forgotten its call"

        def fill(leaf: Any) -> Any:
            if isinstance(leaf, At):
                return self.value(leaf.node)
            if isinstance(leaf, Recall):
                return Pair(*(partial(_recalled, tape, leaf) for tape in self.runs))
            return leaf.detach() if isinstance(leaf, Tensor) else leaf

        return mapped(recall.arguments, fill), mapped(recall.named, fill)

    def local(self, *pieces: Any, moves: tuple[LinearMap | None, ...] = (None,)) -> Exact:
        """A split by which every entry comes from one entry of each input; ``pieces`` form those of one input each."""
        return Exact(self.node.op, pieces, moves)

    def mixed(self, *pieces: Any) -> Exact:
        """A split that mixes entries."""
        return Exact(self.node.op, pieces)


__all__ = ["Exact", "Pair", "Parts", "Piece", "Step"]
