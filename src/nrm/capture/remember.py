"""Remembering calls while a forward pass is recorded: what a tensor was computed from, and by which function."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from nrm.capture.arguments import is_in_place, tensors_in
from nrm.capture.contrast.splits import OWN, SPLITS
from nrm.capture.recall import At, Recall, recalled
from nrm.capture.tape import Node

if TYPE_CHECKING:
    from nrm.capture.recorder import Recorder


def recall(r: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], position: int = 0) -> Recall:
    """A call with what its arguments stand for, and which of its results is meant."""
    from_call: Callable[[Any], Tensor] = lambda result: tensors_in(result)[position]  # noqa: E731
    return recalled(func, args, kwargs, from_call, lambda tensor: _stand_in(r, tensor))


def _stand_in(r: Recorder, tensor: Tensor) -> Any:
    if id(tensor) in r.derived:
        return r.derived[id(tensor)][1]
    return At(r.node(tensor).index) if r.tracked(tensor) else tensor


def wants(node: Node) -> bool:
    """Whether the op of a node does not tell the whole truth about its call."""
    return node.op.holds or node.function in SPLITS or node.function in OWN


def keep(
    r: Recorder, node: Node, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, tensor: Tensor
) -> None:
    """Keeps the call of a node."""
    position = next((k for k, t in enumerate(tensors_in(result)) if t is tensor), None)
    if position is not None:
        node.recall = recall(r, func, args, kwargs, position)


def derive(
    r: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, *, relevant: bool
) -> None:
    """Results that carry no relevance but depend on the input: masks, places, and what is made of them.

    Of a call with arguments that carry relevance, float results carry it on.
    """
    if relevant and type(result) is Tensor and result.is_floating_point():
        return  # as of most calls
    for position, tensor in enumerate(tensors_in(result)):
        carries = relevant and (tensor.is_floating_point() or tensor.is_complex())
        if not carries and not r.tracked(tensor):
            r.derived[id(tensor)] = (tensor, recall(r, _copying(func), args, kwargs, position))


def before_writing(r: Recorder, args: tuple[Any, ...], targets: list[Tensor], present: list[Tensor]) -> tuple[Any, ...]:
    """The arguments of a call that writes into a constant by what depends on the input, with that constant as it was.

    The places of chosen nodes are noted so, before their edges are looked up.
    """
    if not r.derived or not targets or targets[0] is not args[0] or not any(id(t) in r.derived for t in present):
        return args
    first = targets[0].clone()
    if id(targets[0]) in r.derived:
        r.derived[id(first)] = (first, r.derived[id(targets[0])][1])
    return (first, *args[1:])


def _copying(func: Any) -> Any:
    """A call that leaves its arguments as they are, also if the function writes into them."""
    if not is_in_place(func):
        return func

    def called(first: Any, *args: Any, **kwargs: Any) -> Any:
        first = first.clone()
        result = func(first, *args, **kwargs)
        return first if result is None else result

    return called
