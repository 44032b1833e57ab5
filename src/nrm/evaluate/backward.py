"""How derivatives are taken: as torch takes them, or as methods of circuit finding change them.

Each is the network run again, node by node, with the same values. What differs is what gradients see of a step: values
that are detached are constants to them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nrm.capture import Combine, Linear, Multiply, Node, Pointwise, Singular, Softmax, Tape, reads, replay


class TrueGradient:
    """The derivatives of the network itself."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    def needs(self, node: Node) -> Sequence[int]:
        """The nodes that a step is computed from."""
        return reads(node)

    def compute(self, node: Node, below: Mapping[int, Tensor]) -> Tensor:
        """The value of a step, from stacks of those it needs."""
        return replay(node, below)


class HeldNorms(TrueGradient):
    """Statistics of norms, and whatever else is divided by, are constants; the factors of a gate share their product.

    Values are those of the captured run: statistics are not computed anew.
    """

    def __init__(self, tape: Tape) -> None:
        super().__init__(tape)
        self._held = set[int]()
        for node in tape.nodes:
            made = bool(node.inputs) and all(i in self._held for i in node.inputs)
            if isinstance(node.op, Singular) or made:
                self._held.add(node.index)

    def needs(self, node: Node) -> Sequence[int]:
        return node.inputs if _is_norm(node) else reads(node)

    def compute(self, node: Node, below: Mapping[int, Tensor]) -> Tensor:
        if node.index in self._held:
            return node.value[None]
        if _is_norm(node):
            value = node.op.compute([below[i] for i in node.inputs])
            assert value is not None  # a norm with held statistics is linear
            return value
        if isinstance(node.op, Multiply):
            return replay(node, self._shared(node, below))
        return replay(node, below)

    def _shared(self, node: Node, below: Mapping[int, Tensor]) -> Mapping[int, Tensor]:
        """The factors of a product, each of which gets an equal part of the gradient; a divisor gets none."""
        assert isinstance(node.op, Multiply)
        if node.op.quotient:
            return {**below, node.inputs[-1]: below[node.inputs[-1]].detach()}
        factors = [i for i in node.inputs if i not in self._held]
        return {**below, **{i: scaled(below[i], 1 / len(factors)) for i in factors}}


class RelP(HeldNorms):
    """Relevance patching: norms are held, activations pass ``phi(z) / z``, a gate and its signal get half each.

    Through attention the gradient is the true one.
    """

    def needs(self, node: Node) -> Sequence[int]:
        return tuple(dict.fromkeys((*node.inputs, *reads(node)))) if _is_activation(node) else super().needs(node)

    def compute(self, node: Node, below: Mapping[int, Tensor]) -> Tensor:
        value = super().compute(node, below)
        if node.index in self._held or not _is_activation(node):
            return value
        assert isinstance(node.op, Pointwise)
        z = below[node.inputs[0]]
        slope = torch.where(z == 0, 0.0, (value - node.op.offset) / torch.where(z == 0, 1.0, z)).detach()
        return torch.where(z == 0, value, z * slope + node.op.offset)  # at 0 it is the derivative


class GIM(HeldNorms):
    """Gradient interaction modifications: norms are held, the factors of every product get half, also in attention.

    So values get a half, queries and keys a quarter. The softmax has the derivative that it has at half the logits.
    """

    def compute(self, node: Node, below: Mapping[int, Tensor]) -> Tensor:
        if isinstance(node.op, Softmax):
            flat = torch.softmax(below[node.inputs[0]] / 2, node.op.dim if node.op.dim < 0 else node.op.dim + 1)
            value = replay(node, {i: x.detach() for i, x in below.items()})
            return value + 2 * (flat - flat.detach())  # without the 1/2 of the inner derivative
        if isinstance(node.op, Combine) and node.op.kind == "matmul":
            return replay(node, {i: scaled(x, 0.5) for i, x in below.items()})
        return super().compute(node, below)


def scaled(x: Tensor, share: float) -> Tensor:
    """A value of which gradients see a part."""
    return x.detach() + share * (x - x.detach())


def _is_norm(node: Node) -> bool:
    """Whether a step is a norm whose statistics its op holds."""
    held = isinstance(node.op, Combine) and node.op.held and node.op.kind == "scale"
    return held or (isinstance(node.op, Linear) and node.op.kind == "norm")


def _is_activation(node: Node) -> bool:
    return isinstance(node.op, Pointwise) and node.op.entrywise


@dataclass(frozen=True)
class GradientMethod:
    """A method that scores edges by gradients: how they are taken, at how many inputs, and what they are times.

    Inputs lie on the straight line from the reference to the clean run, the first of several is the reference, and one
    alone is the clean run. ``activation`` multiplies by what writers write in the clean run, not by its difference.
    """

    backward: Callable[[Tape], TrueGradient]
    steps: int = 1
    activation: bool = False


__all__ = ["GIM", "GradientMethod", "HeldNorms", "RelP", "TrueGradient", "scaled"]
