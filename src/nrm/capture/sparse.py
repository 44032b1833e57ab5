"""Sparse tensors in a forward pass: each that meets tracked data has a dense twin, which is recorded in its place.

So ``A.to_sparse() @ x`` is what ``A @ x`` is. The model gets the sparse results that it expects.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nrm.capture.arguments import tensors_in
from nrm.errors import CaptureError

if TYPE_CHECKING:
    from nrm.capture.recorder import Recorder

MOST_ENTRIES = 2**26
"""Entries that a dense twin may have: 256 MiB in float32."""

MAKES = {
    "to_sparse", "to_sparse_coo", "to_sparse_csr", "to_sparse_csc", "to_sparse_bsr", "to_sparse_bsc",
    "sparse_coo_tensor", "sparse_csr_tensor", "sparse_csc_tensor",
}  # fmt: skip
"""Calls that make a sparse tensor of dense ones."""


def _addmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return beta * input + alpha * torch.mm(mat1, mat2)


DENSE: dict[str, Callable[..., Any]] = {
    "sparse_mm": torch.mm, "sparse_addmm": _addmm, "addmm": _addmm, "sparse_sum": torch.sum, "to_dense": torch.clone,
    "coalesce": torch.clone, "coalesced": lambda x, *_: x.clone(), "rmatmul": lambda x, y: y @ x,
    **{name: lambda x, *_, **__: x.clone() for name in MAKES if name.startswith("to_")},
    **{name: getattr(torch, name) for name in ("matmul", "mm", "mv", "t", "transpose", "index_select", "sum",
                                               "mul", "div", "add", "sub", "neg", "relu", "clone", "detach", "cat")},
}  # fmt: skip
"""What a call on sparse tensors is on their dense twins."""

PATTERN = {
    "indices", "crow_indices", "col_indices", "ccol_indices", "row_indices", "nnz", "is_coalesced", "sparse_dim",
    "dense_dim",
}  # fmt: skip
"""Calls that read where the entries of a sparse tensor are."""


def is_sparse(tensor: Tensor) -> bool:
    """Whether a tensor is of any sparse layout."""
    return tensor.layout is not torch.strided and not tensor.is_nested


class Twins:
    """The dense twins of the sparse tensors that depend on the input."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Tensor, Tensor]] = {}

    def __contains__(self, tensor: Tensor) -> bool:
        return id(tensor) in self._known

    def __len__(self) -> int:
        return len(self._known)

    def add(self, r: Recorder, tensor: Tensor, twin: Tensor) -> Tensor:
        """Remembers a twin, and returns its sparse tensor."""
        _check_size(r, tensor)
        self._known[id(tensor)] = (tensor, twin)
        return tensor

    def of(self, r: Recorder, value: Any) -> Any:
        """A value with dense tensors in place of sparse ones; those that depend on the input are tracked."""
        if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
            return type(value)(self.of(r, v) for v in value)
        if not isinstance(value, Tensor) or not is_sparse(value):
            return value
        if value in self:
            return self._known[id(value)][1]
        _check_size(r, value)
        return value.to_dense()


def concerns(r: Recorder, name: str, present: list[Tensor]) -> bool:
    """Whether a call has to do with sparse tensors and with tracked data."""
    sparse = [t for t in present if t.layout is not torch.strided and is_sparse(t)]
    if not sparse and name not in MAKES:
        return False
    return any(t in r.twins for t in sparse) or any(r.tracked(t) for t in present if not is_sparse(t))


def run(r: Recorder, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs a call on sparse tensors, and records it on their twins."""
    if name in PATTERN or name.startswith("get:"):
        return func(*args, **kwargs)
    if name == "values":
        return _values(r, args[0])
    if name in ("sparse_coo_tensor", "sparse_csr_tensor", "sparse_csc_tensor"):
        return _made(r, func, args, kwargs)
    if name not in DENSE:
        raise CaptureError(
            f"{name} of a sparse tensor cannot be followed", where=r.place(),
            expected="one of " + ", ".join(sorted(set(DENSE) - {"coalesced", "rmatmul"})),
            hint="x.to_dense() before it",
        )  # fmt: skip
    present = tensors_in((args, kwargs))
    dense = r.twins.of(r, args), {k: r.twins.of(r, v) for k, v in kwargs.items()}
    with r:
        twin = DENSE[name](*dense[0], **dense[1])
    args, kwargs = r.precision.prepared(args, kwargs, present)
    result = func(*args, **kwargs)
    return r.twins.add(r, result, twin) if is_sparse(result) else twin


def _made(r: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """A sparse tensor from places and tracked values; those at one place are added."""
    result: Tensor = func(*args, **kwargs)
    values = kwargs["values"] if "values" in kwargs else tensors_in(args)[-1]
    if values.ndim != 1 or result.ndim != 2:
        raise CaptureError(
            "a sparse tensor of this form cannot be followed", where=r.place(), got=f"shape {tuple(result.shape)}",
            expected="two axes, and a number at every place",
        )  # fmt: skip
    _check_size(r, result)
    with r:
        blank = torch.zeros(result.shape, dtype=values.dtype, device=values.device)
        twin = blank.index_put(_places(result), values, accumulate=True)
    return r.twins.add(r, result, twin)


def _values(r: Recorder, tensor: Tensor) -> Tensor:
    """The entries of a sparse tensor, in its order."""
    if tensor.layout is torch.sparse_coo and not tensor.is_coalesced():
        raise CaptureError(
            "the values of a sparse tensor that is not coalesced cannot be followed", where=r.place(),
            hint="x.coalesce().values()",
        )  # fmt: skip
    twin: Tensor = r.twins.of(r, tensor)
    with r:
        return twin[_places(tensor)]


def _places(tensor: Tensor) -> tuple[Tensor, ...]:
    """The row and the column of every entry that a sparse matrix has, in its order."""
    if tensor.layout is torch.sparse_coo:
        return tuple(tensor._indices())
    by_row = tensor.layout is torch.sparse_csr
    ends, other = (
        (tensor.crow_indices(), tensor.col_indices()) if by_row else (tensor.ccol_indices(), tensor.row_indices())
    )
    own = torch.arange(len(ends) - 1, device=ends.device).repeat_interleave(ends.diff())
    return (own, other) if by_row else (other, own)


def _check_size(r: Recorder, tensor: Tensor) -> None:
    if tensor.numel() > MOST_ENTRIES:
        raise CaptureError(
            "a sparse tensor is too large to be followed", where=r.place(), got=f"shape {tuple(tensor.shape)}",
            expected=f"at most {MOST_ENTRIES} entries", hint="index_add of messages along the edges",
        )  # fmt: skip
