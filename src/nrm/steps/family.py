"""The contract of a family of steps."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from nrm.capture import Node, Op, Tape
from nrm.errors import RuleError
from nrm.rules import Key, Rule

if TYPE_CHECKING:
    from nrm.steps.assignment import Assignment
    from nrm.steps.network import Network
    from nrm.steps.nodes import RelevanceNode

Slot = tuple[Key, int]
"""The key and the group of a rule's factors that a node of a column stands for."""


class Family(ABC):
    """What the steps of one kind of op do in a relevance network: :meth:`connect` links nodes by maps.

    The one law: the maps of a step, applied to the units of what it reads, add up to its own unit. A unit is the value,
    or 1 where :meth:`Network.is_one` says so.
    """

    @abstractmethod
    def connect(self, network: Network, node: Node) -> None:
        """Links the plain node of a tensor to those of the tensors it was computed from, and to its own drains."""

    def reads(self, network: Network, node: Node) -> Iterable[int]:
        """The tensors below whose plain nodes it is linked to."""
        return node.inputs

    def ones(self, network: Network, node: Node, is_one: bool) -> Iterable[int]:
        """The tensors below whose unit must be 1; ``is_one`` says that the step's own unit is.

        A step from neuron to neuron hands relevance on as it is: where its own unit is 1, so are those below.
        """
        return node.inputs if is_one else ()

    def is_nonnegative(self, network: Network, node: Node) -> bool:
        """Whether a step without columns is known to have no negative shares: searches then need no other bounds."""
        return False

    def coefficients(self, rules: Assignment, node: Node) -> Sequence[float]:
        """alpha: the share of every input, where several variables meet in a step."""
        return [1.0] * len(node.inputs)

    def drains(self, rules: Assignment, node: Node) -> Iterable[str]:
        """The drains that its steps may have, whether or not anything arrives there."""
        return ()


class Additive(Family):
    """A family whose steps are sums of blocks: all that is added up shares one column, under the rules of its blocks.

    A sum reads a tensor that is **open**, one that ends in additive steps itself, as a branch: what that adds up
    belongs to the columns of the sum. ``rule`` is the rule that a branch inherits from the column it is in, and
    ``override`` the rule that pools or replaces those of all blocks.
    """

    @abstractmethod
    def is_open(self, tape: Tape, node: Node, below: Sequence[bool]) -> bool:
        """Whether a sum that reads the tensor takes it as a branch; ``below`` says so of the tensors it reads."""

    def has_columns(self, op: Op) -> bool:
        """Whether steps of an op have columns of their own; others only move what arrives."""
        return True

    @abstractmethod
    def leaves(self, rules: Assignment, node: Node, rule: Rule | None) -> Iterator[Rule]:
        """The rules of all blocks of its columns."""

    @abstractmethod
    def is_linear(self, rules: Assignment, node: Node, rule: Rule | None) -> bool:
        """Whether all blocks are LRP-0 with coefficient 1, so that a column sum is the value without its biases."""

    @abstractmethod
    def shift(self, rules: Assignment, node: Node) -> Tensor | None:
        """The folded bias: what is left of its value when every block is 0."""

    @abstractmethod
    def branch_rule(self, rules: Assignment, node: Node) -> Rule | None:
        """The rule of the layer that it ends in."""

    @abstractmethod
    def blocks(self, network: Network, node: Node, rule: Rule | None, override: Rule | None) -> list[tuple[int, Rule]]:
        """What the blocks of its columns read, and by which rule."""

    @abstractmethod
    def connect_slots(
        self, network: Network, node: Node, slots: dict[Slot, RelevanceNode], rule: Rule | None, override: Rule | None,
        rows: Tensor | None,
    ) -> None:  # fmt: skip
        """Links nodes of its column, one for every slot, to what lies below; ``rows`` scale the rows of its weights."""

    def own_rule(self, rules: Assignment, node: Node) -> Rule | None:
        """The rule of a block with weights of its own, whatever is above it; None for a sum."""
        return None

    def rows(self, node: Node, scale: Tensor) -> Tensor | None:
        """A scale of its result as one of the rows of its weights; None if it has no such weights."""
        return None

    def weights(self, node: Node) -> float:
        """How many weights its own step has, if their rows can be scaled."""
        return math.inf

    def drains(self, rules: Assignment, node: Node) -> Iterable[str]:
        if not self.has_columns(node.op):
            return ()
        return ("sink",) if self.shift(rules, node) is None else ("sink", "bias")


_FAMILIES: dict[type, Family] = {}
_FOUND: dict[type, Family | None] = {}
"""The family of every class of ops that was looked up, until another one is registered."""


def family(*ops: type) -> Callable[[type[Family]], type[Family]]:
    """Registers a family for some classes of ops, and for those made from them; used as a decorator."""

    def register(cls: type[Family]) -> type[Family]:
        _FAMILIES.update(dict.fromkeys(ops, cls()))
        _FOUND.clear()
        return cls

    return register


def find_family(op: Any) -> Family | None:
    """The family of an op, if it has one; an op that no relevance reaches needs none."""
    kind = type(op)
    if kind not in _FOUND:
        _FOUND[kind] = next((_FAMILIES[base] for base in kind.__mro__ if base in _FAMILIES), None)
    return _FOUND[kind]


def family_of(op: Any) -> Family:
    """The family of an op."""
    found = find_family(op)
    if found is not None:
        return found
    raise RuleError(
        f"ops of the class {type(op).__name__} belong to no family", got=repr(op)[:80],
        expected="a subclass of nrm.steps.Family that is registered for it",
        hint=f"@nrm.steps.family({type(op).__name__})",
    )  # fmt: skip


def additive(op: Op) -> Additive:
    """The family of an op that is a sum of blocks."""
    found = family_of(op)
    assert isinstance(found, Additive), f"{type(op).__name__} has no columns"
    return found
