"""The working precision of a recorded pass: which arguments of a call are cast, and what is cast once for all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nrm.capture.arguments import PLAIN
from nrm.operators import Grouped

Origins = dict[int, tuple[Tensor, str]]
"""Tensors by identity, with the names of the parameters that they are (made of)."""


class Precision:
    """Casts to one float type. The cast of a named tensor has its name in ``origin``."""

    def __init__(self, dtype: torch.dtype, origin: Origins) -> None:
        self.dtype = dtype
        self._origin = origin
        self._casts: dict[int, tuple[Tensor, Tensor, int]] = {}

    def prepared(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], present: list[Tensor]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments in the working precision; a precision that the call itself asks for is replaced by it, too."""
        if any(t.dtype is not self.dtype and t.is_floating_point() for t in present):
            args, kwargs = self._cast_all(args, False), self._cast_all(kwargs, False)
        return tuple(map(self._asked, args)), {k: self._asked(v) for k, v in kwargs.items()}

    def raised(self, value: Any) -> Any:
        """Float tensors of a lower precision in the working one."""
        return self._cast_all(value, True)

    def _asked(self, value: Any) -> Any:
        return self.dtype if isinstance(value, torch.dtype) and value.is_floating_point else value

    def _cast_all(self, value: Any, lower: bool) -> Any:
        """Float tensors in the working precision (with ``lower``: only those of a lower one)."""
        if isinstance(value, Tensor):
            return self._cast_one(value, lower)
        if type(value) in PLAIN:
            return value
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return value
        if isinstance(value, list | tuple):
            return type(value)(self._cast_all(v, lower) for v in value)
        if isinstance(value, dict):
            return {k: self._cast_all(v, lower) for k, v in value.items()}
        return value

    def _cast_one(self, value: Tensor, lower: bool) -> Tensor:
        if not value.is_floating_point() or value.dtype == self.dtype:
            return value
        if lower and value.dtype.itemsize > self.dtype.itemsize:
            return value
        version = -1 if value.is_inference() else value._version
        if id(value) not in self._casts or self._casts[id(value)][2] != version:
            cast = value.detach().to(self.dtype)
            self._casts[id(value)] = (value, cast, version)
            if id(value) in self._origin:
                self._origin[id(cast)] = (cast, self._origin[id(value)][1])
        return self._casts[id(value)][1]


def _grouped_mm(mat_a: Tensor, mat_b: Tensor, offs: Tensor | None = None, bias: Any = None, **_: Any) -> Tensor:
    if offs is None or bias is not None or (mat_a.ndim, mat_b.ndim) != (2, 3):
        return torch.nn.functional.grouped_mm(mat_a, mat_b, offs=offs, bias=bias)
    return Grouped(mat_a.shape, mat_b, tuple(offs.tolist())).apply(mat_a[None])[0]


INSTEAD: dict[str, Callable[..., Tensor]] = {"grouped_mm": _grouped_mm}
"""What is run for functions that torch has in some precisions only."""
