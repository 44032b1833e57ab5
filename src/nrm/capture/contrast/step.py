"""One step of two runs: the values that an exact split is made of."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from nrm.capture.ops import Exact, Parts, Piece
from nrm.capture.recall import At, Recall, mapped
from nrm.capture.tape import Node, Tape
from nrm.operators import LinearMap


class Pair(NamedTuple):
    """A tensor in both runs: ``here`` in the explained one, ``there`` in the reference."""

    here: Tensor
    there: Tensor

    @property
    def mean(self) -> Tensor:
        """What it is between the runs."""
        return (self.here + self.there).mul_(0.5)

    @property
    def delta(self) -> Tensor:
        """The difference of the runs; 0 where both are the same, also where they are infinite."""
        return (self.here - self.there).masked_fill(self.here == self.there, 0.0)

    def moved(self, move: LinearMap | None) -> Pair:
        """Both after data movement."""
        return self if move is None else Pair(*(move.apply(x[None])[0] for x in self))

    def reshape(self, *shape: int) -> Pair:
        """Both in another shape."""
        return Pair(self.here.reshape(shape), self.there.reshape(shape))


class Step:
    """A node of two tapes with one structure: what it reads, what it gives, and the call that made it."""

    def __init__(self, here: Tape, there: Tape, i: int) -> None:
        self.node: Node = here.nodes[i]
        self.other: Node = there.nodes[i]
        self.runs = (here, there)

    def value(self, i: int) -> Pair:
        """The value of any node."""
        return Pair(*(tape.nodes[i].value for tape in self.runs))

    @property
    def result(self) -> Pair:
        """What the step gives."""
        return Pair(self.node.value, self.other.value)

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
                return Pair(*(leaf.run({i: t.nodes[i].value for i in leaf.reads}) for t in self.runs))
            return leaf.detach() if isinstance(leaf, Tensor) else leaf

        return mapped(recall.arguments, fill), mapped(recall.named, fill)

    def local(self, *pieces: Any, moves: tuple[LinearMap | None, ...] = (None,)) -> Exact:
        """A split by which every entry comes from one entry of each input; ``pieces`` form those of one input each."""
        return Exact(self.node.op, pieces, moves)

    def mixed(self, *pieces: Any) -> Exact:
        """A split that mixes entries."""
        return Exact(self.node.op, pieces)


__all__ = ["Exact", "Pair", "Parts", "Piece", "Step"]
