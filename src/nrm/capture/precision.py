"""The working precision of a recorded pass: which arguments of a call are cast, and what is cast once for all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nrm.capture.arguments import PLAIN
from nrm.capture.recall import mapped
from nrm.operators import Dense, Grouped

Origins = dict[int, tuple[Tensor, str]]
"""Tensors by identity, with the names of the parameters that they are (made of)."""


class Precision:
    """Casts to one float type. The cast of a named tensor has its name in ``origin``."""

    def __init__(self, dtype: torch.dtype, origin: Origins) -> None:
        self.dtype = dtype
        self._origin = origin
        self._casts: dict[int, tuple[Tensor, Tensor, int]] = {}

    def prepared(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], present: list[Tensor], name: str = ""
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments in the working precision; a precision that the call itself asks for is replaced by it, too.

        A matrix of weights in a lower one stays as it is: what is run instead of its call casts it a piece at a time.
        """
        if [t for t in present if t.dtype is not self.dtype and t.is_floating_point()]:
            matrix = self._matrix(name, args, kwargs)
            args, kwargs = self._cast_all(args, False, matrix), self._cast_all(kwargs, False, matrix)
        if torch.dtype in map(type, args) or torch.dtype in map(type, kwargs.values()):
            args, kwargs = tuple(map(self._asked, args)), {k: self._asked(v) for k, v in kwargs.items()}
        return args, kwargs

    def raised(self, value: Any) -> Any:
        """Float tensors of a lower precision in the working one."""
        return self._cast_all(value, True)

    def filling(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """A number that fills a tensor of the default precision may be the least of the working one: a mask's."""
        number = args[1] if len(args) > 1 else kwargs.get("fill_value")
        if name != "full" or "dtype" in kwargs or type(number) is not float:
            return kwargs
        return {**kwargs, "dtype": self.dtype}

    def _asked(self, value: Any) -> Any:
        return self.dtype if isinstance(value, torch.dtype) and value.is_floating_point else value

    def _matrix(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        """The weights of a dense layer among the arguments of a call, if they are kept as they are."""
        if name not in MATRIX:
            return None
        position, key = MATRIX[name]
        matrix = args[position] if len(args) > position else kwargs.get(key)
        if not isinstance(matrix, Tensor) or not matrix.is_floating_point() or matrix.ndim != 2:
            return None
        return matrix if matrix.dtype.itemsize < self.dtype.itemsize else None

    def _cast_all(self, value: Any, lower: bool, but: Tensor | None = None) -> Any:
        """Float tensors in the working precision (with ``lower``: only those of a lower one)."""
        if isinstance(value, Tensor):
            return value if value is but else self._cast_one(value, lower)
        if type(value) in PLAIN:
            return value
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return value
        if isinstance(value, list | tuple):
            return type(value)(self._cast_all(v, lower, but) for v in value)
        if isinstance(value, dict):
            return {k: self._cast_all(v, lower, but) for k, v in value.items()}
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


def alike(value: Any, target: Tensor) -> Any:
    """Float tensors inside a value in the precision of a tensor that they are written into."""

    def cast(leaf: Any) -> Any:
        other = isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.dtype != target.dtype
        return leaf.to(target.dtype) if other else leaf

    return mapped(value, cast) if target.is_floating_point() else value


def _grouped_mm(mat_a: Tensor, mat_b: Tensor, offs: Tensor | None = None, bias: Any = None, **_: Any) -> Tensor:
    if offs is None or bias is not None or (mat_a.ndim, mat_b.ndim) != (2, 3):
        return torch.nn.functional.grouped_mm(mat_a, mat_b, offs=offs, bias=bias)
    return Grouped(mat_a.shape, mat_b, tuple(offs.tolist())).apply(mat_a[None])[0]


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if weight.dtype == input.dtype:
        return torch.nn.functional.linear(input, weight, bias)
    result = Dense(input.shape, weight, input.dtype).apply(input[None])[0]
    return result if bias is None else result.add_(bias)


def _addmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    if mat2.dtype == mat1.dtype:
        return torch.addmm(input, mat1, mat2, beta=beta, alpha=alpha)
    result = Dense(mat1.shape, mat2.mT, mat1.dtype).apply(mat1[None])[0]
    return result.mul_(alpha).add_(input, alpha=beta)


MATRIX = {"linear": (1, "weight"), "addmm": (2, "mat2")}
"""Functions with a matrix of weights that may be in a lower precision than the rest, and where it is."""

INSTEAD: dict[str, Callable[..., Tensor]] = {"grouped_mm": _grouped_mm, "linear": _linear, "addmm": _addmm}
"""What is run for functions that torch has in some precisions only, or in one precision for all arguments."""
