"""The contract of a family of steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from nrm.capture import Node
from nrm.errors import RuleError

if TYPE_CHECKING:
    from nrm.steps.network import Network


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


_FAMILIES: dict[type, Family] = {}


def family(*ops: type) -> Callable[[type[Family]], type[Family]]:
    """Registers a family for some classes of ops, and for those made from them; used as a decorator."""

    def register(cls: type[Family]) -> type[Family]:
        _FAMILIES.update(dict.fromkeys(ops, cls()))
        return cls

    return register


def family_of(op: Any) -> Family:
    """The family of an op."""
    for kind in type(op).__mro__:
        if kind in _FAMILIES:
            return _FAMILIES[kind]
    raise RuleError(
        f"ops of the class {type(op).__name__} belong to no family", got=repr(op)[:80],
        expected="a subclass of nrm.steps.Family that is registered for it",
        hint=f"@nrm.steps.family({type(op).__name__})",
    )  # fmt: skip
