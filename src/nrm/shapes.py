"""Running without numbers: the same code on tensors that have shapes alone, while memory and arithmetic are counted.

Under :class:`Shapes` a tensor of weights, and all that is computed from it, lives on torch's meta device: it has a
shape, a type and a place in memory that is never filled. What it would take is counted from the calls that reach
torch, so that nothing has to be known about the code that makes them. Integers and masks that come from positions
alone are computed as ever. Where code asks for a number that nobody knows, it gets the usual one: all entries are
finite, two tensors that are compared are equal, some entries are negative.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry

SMALL = 2**10
"""Constants of so many numbers or fewer are made as they are."""

LARGE = 2**22
"""Masks and the like of more numbers are shapes, too."""

_SCALAR = torch.ops.aten._local_scalar_dense.default
_ALIKE = {torch.ops.aten.equal.default, torch.ops.aten.allclose.default}
_FILLED: dict[Any, Callable[..., Tensor]] = {
    torch.ops.aten.nonzero.default: torch.nonzero, torch.ops.aten.count_nonzero.default: torch.count_nonzero,
}  # fmt: skip
_PLAIN = {torch.ops.aten.addmm_: torch.ops.aten.addmm, torch.ops.aten.baddbmm_: torch.ops.aten.baddbmm}
_LOWEST = {"amin", "min"}


Unknown = (DataDependentOutputException, DynamicOutputShapeException)
"""What is raised where shapes depend on numbers."""


def address_of(tensor: Tensor) -> int:
    """Where the memory of a tensor begins; also of one without numbers, whose memory is nobody else's either.

    >>> x = torch.ones(4)
    >>> address_of(x[2:]) == address_of(x), address_of(x) == address_of(torch.ones(4))
    (True, False)
    """
    storage = tensor.untyped_storage()
    known: int | None = getattr(storage, "begin", None)
    return storage.data_ptr() if known is None else known


def place_of(tensor: Tensor) -> int:
    """Where the first entry of a tensor lies; 0 for one that has neither memory nor a shape of :class:`Shapes`.

    >>> x = torch.ones(4)
    >>> place_of(x[2:]) - place_of(x), place_of(torch.empty(2, device="meta"))
    (8, 0)
    """
    if not is_shape(tensor):
        return tensor.data_ptr()
    return address_of(tensor) + int(tensor.storage_offset()) * tensor.element_size()


def is_shape(value: Any) -> bool:
    """Whether a value is a tensor without numbers."""
    return isinstance(value, FakeTensor)


class Shapes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Calls of torch on shapes alone, and what they would take: bytes now and at their peak, and arithmetic.

    >>> with Shapes() as counted:
    ...     x = counted.shape_of(torch.empty(100, 100, device="meta"))
    ...     y = (x @ x).relu()
    >>> y.shape, counted.now, counted.flops
    (torch.Size([100, 100]), 80000, 2000000.0)
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now, self.peak, self.flops = 0, 0, 0.0
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)
        self._live: dict[int, weakref.ref[Any]] = {}
        self._free = 1 << 60
        """Where nothing has been put yet, beyond all real memory."""

    def shape_of(self, tensor: Tensor) -> Tensor:
        """A tensor like another one without its numbers, on the CPU if that one is nowhere; its memory is counted."""
        made = self._like(tensor)
        self.count(made)
        return made

    def _like(self, tensor: Tensor) -> Tensor:
        device = torch.device("cpu") if tensor.is_meta else tensor.device
        meta = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        made: Tensor = FakeTensor(self._fake, meta, device)
        return made

    def forget_peak(self) -> None:
        """Lets the peak begin anew."""
        self.peak = self.now

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        given = [t for t in tree_leaves((args, named)) if isinstance(t, Tensor)]
        unknown = any(map(is_shape, given))
        if unknown and func is _SCALAR:
            return _usual(args[0])
        if unknown and func in _ALIKE:
            return True
        if unknown and func in _FILLED:  # what is not known is not 0
            return _FILLED[func](torch.ones(args[0].shape), *args[1:], **named)
        if not unknown and self._is_large(func, args, named, given):
            args, named = tree_map(self._as_shape, (args, named))
            with self._fake:
                result = func(*args, **named)
        else:
            result = func(*args, **named)
        self._note(func, args, named, result)
        return result

    def _as_shape(self, value: Any) -> Any:
        return self._like(value) if isinstance(value, Tensor) else value

    def _is_large(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], given: list[Tensor]) -> bool:
        """Whether what is known becomes too much to be computed: many floats, or a mask of all pairs of positions."""
        if given and sum(t.numel() for t in given) <= SMALL:
            return False
        try:
            with self._fake:
                looked = tree_leaves(func(*tree_map(self._as_shape, args), **tree_map(self._as_shape, kwargs)))
        except Unknown:  # a number, or as many as numbers say
            return False
        most = {True: SMALL, False: LARGE}
        return any(isinstance(t, Tensor) and t.numel() > most[t.is_floating_point() and not given] for t in looked)

    def _note(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self.count(tensor)
                if not tensor.ndim:
                    tensor.by = func.overloadpacket.__name__  # type: ignore[attr-defined]
        counted: Callable[..., Any] | None = flop_registry.get(_PLAIN.get(func.overloadpacket, func.overloadpacket))
        if counted is not None:
            self.flops += float(counted(*args, **kwargs, out_val=result))

    def count(self, tensor: Tensor) -> None:
        """Counts the memory of a tensor, once, until it is given back."""
        storage = tensor.untyped_storage()
        key, nbytes = storage._cdata, storage.nbytes()
        if key in self._live:
            return
        self.now += nbytes
        self.peak = max(self.peak, self.now)
        if is_shape(tensor):
            storage.begin, self._free = self._free, self._free + nbytes + 1  # type: ignore[attr-defined]

        def drop(_: Any) -> None:
            del self._live[key]
            self.now -= nbytes

        self._live[key] = weakref.ref(storage, drop)


def _usual(tensor: Any) -> bool | int | float:
    """The number that a tensor of one entry has as a rule."""
    by = getattr(tensor, "by", "")
    if tensor.dtype == torch.bool:
        return bool(by != "any")
    if not tensor.is_floating_point():
        return 0
    return -1.0 if by in _LOWEST else 1.0


__all__ = ["Shapes", "Unknown", "address_of", "is_shape", "place_of"]
