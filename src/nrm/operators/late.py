"""Weights that are read when they are used: from a file, from another device, or from packed numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from nrm.errors import NrmError


class LateWeight(Tensor):
    """A tensor without numbers of its own: whatever uses it reads them, and drops them again.

    Shape, type and device are those of what is read. Views of it and casts are late, too, so that a layer's map and
    its bias can be made before anything is read. To all of torch it is a tensor; ``loaded`` gives the numbers.

    >>> packed = torch.tensor([[1, 2], [3, 4]], dtype=torch.int8)
    >>> weight = LateWeight(lambda: packed * 0.5, torch.empty(2, 2, device="meta"), packed.device)
    >>> weight.T.shape, torch.nn.functional.linear(torch.ones(1, 2), weight)
    (torch.Size([2, 2]), tensor([[1.5000, 3.5000]]))
    >>> weight.T.is_same(weight.T), weight.T.is_same(weight)
    (True, False)
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(
        cls, read: Callable[[], Tensor], like: Tensor, device: torch.device, source: Tensor | None = None,
        calls: tuple[Any, ...] = (),
    ) -> LateWeight:  # fmt: skip
        made: LateWeight = Tensor._make_wrapper_subclass(
            cls, like.shape, strides=like.stride(), dtype=like.dtype, device=device
        )
        return made

    def __init__(
        self, read: Callable[[], Tensor], like: Tensor, device: torch.device, source: Tensor | None = None,
        calls: tuple[Any, ...] = (),
    ) -> None:  # fmt: skip
        self.read = read
        self.like = like
        self._source = source
        self._calls = calls
        """The views and casts that lead from the source to this one."""

    @property
    def source(self) -> Tensor:
        """The tensor of the model that it stands for; itself if nothing was said."""
        return self if self._source is None else self._source

    def is_same(self, other: LateWeight) -> bool:
        """Whether another one has the same numbers for sure, without reading them: one source, viewed in one way."""
        return self.source is other.source and self._calls == other._calls

    def __repr__(self) -> str:  # type: ignore[override]
        return f"LateWeight({tuple(self.shape)}, {self.dtype})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if any(isinstance(written, LateWeight) for written in _written(func, args, kwargs)):
            raise NrmError(
                "a weight that is read when it is used cannot be written", where=str(func),
                got="a call that writes into an offloaded or quantized tensor",
                hint="keep what is written on the device of the model (offload_buffers=False)",
            )  # fmt: skip
        if (_is_view(func) or func is CAST) and isinstance(args[0], LateWeight):
            return _later(func, args[0], args[1:], kwargs)
        return func(*tree_map(loaded, args), **tree_map(loaded, kwargs))


CAST = torch.ops.aten._to_copy.default


def loaded(value: Any) -> Any:
    """The numbers of a late weight; anything else as it is."""
    return value.read() if isinstance(value, LateWeight) else value


def _written(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
    """The arguments into which a call writes."""
    marked = [i for i, known in enumerate(func._schema.arguments) if known.alias_info and known.alias_info.is_write]
    names = [func._schema.arguments[i].name for i in marked]
    return [args[i] for i in marked if i < len(args)] + [kwargs[name] for name in names if name in kwargs]


def _is_view(func: Any) -> bool:
    return any(found.alias_info is not None for found in func._schema.returns)


def _later(func: Any, weight: LateWeight, rest: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A view or a cast of a late weight, as late weights: one, or those of ``split`` and its like."""
    device = kwargs.get("device") or weight.device
    found = func(weight.like, *rest, **{k: v for k, v in kwargs.items() if k != "device"})
    source, call = weight.source, (func, rest, kwargs)
    if isinstance(found, Tensor):
        return LateWeight(lambda: func(weight.read(), *rest, **kwargs), found, device, source, (*weight._calls, call))

    def part(k: int) -> Callable[[], Tensor]:
        return lambda: func(weight.read(), *rest, **kwargs)[k]

    calls = [(*weight._calls, (*call, k)) for k in range(len(found))]
    return [LateWeight(part(k), like, device, source, calls[k]) for k, like in enumerate(found)]
