"""One recorded call, as a builder of the vocabulary sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from nrm.capture.arguments import tensors_in
from nrm.capture.ops import Op

if TYPE_CHECKING:
    from nrm.capture.recorder import Recorder


class Call:
    """A call of torch, or of a module that was registered: its function, arguments and result.

    ``module`` is that module, whose weights a builder may read.
    """

    def __init__(
        self, recorder: Recorder, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        self.recorder = recorder
        self.func = func
        self.module = getattr(func, "module", None)
        self.name = name
        self.args = args
        self.kwargs = kwargs
        self.result = result

    def tracked(self, value: Any) -> bool:
        """Whether a value is a tensor that depends on the input."""
        return self.recorder.tracked(value)

    @property
    def tensors(self) -> list[Tensor]:
        """The tracked tensors among the arguments, in their order."""
        return [t for t in tensors_in((self.args, self.kwargs)) if self.tracked(t)]

    def one(self, op: Op, *tensors: Tensor) -> list[tuple[Tensor, Op, list[int]]]:
        """The usual case: one result, made from the given tensors."""
        return [(self.result, op, [self.index(t) for t in tensors])]

    def index(self, tensor: Tensor) -> int:
        """The node of a tensor; a constant among the terms becomes a source."""
        if self.tracked(tensor):
            return self.recorder.node(tensor).index
        return self.constant(tensor)

    def constant(self, tensor: Tensor) -> int:
        """A constant as a source with the channel axis of the call's tracked tensors, counted from the right."""
        for other in self.tensors:
            node = self.recorder.node(other)
            channel = None if node.channel is None else node.channel + tensor.ndim - other.ndim
            return self.recorder.constant(tensor, self.name, None, channel if (channel or 0) >= 0 else None)
        return self.recorder.constant(tensor, self.name)


def of_first(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Callable[[Tensor], Tensor]:
    """A function of its first argument alone, the others held; it keeps nothing else of a call alive."""

    def function(v: Tensor) -> Tensor:
        result: Tensor = func(v, *args, **kwargs)
        return result

    return function
