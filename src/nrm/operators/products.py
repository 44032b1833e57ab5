"""Products of matrices, by the faster one of torch's kernels.

Torch multiplies matrices by the library of linear algebra that it was built with, whose kernels are not the best on
every processor: on an AMD EPYC it has half the speed of oneDNN, which torch's convolutions use. Sweeps are products of
matrices for the most part.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import Parameter

WORTH = 2**20
"""From so many multiplications on, a product is worth oneDNN's longer call, about ten microseconds."""

NARROW = 128
"""With fewer columns than this, a transposed left side is better taken as the right one."""


def _find_kernel() -> Callable[..., Tensor] | None:
    """The product of a matrix and a transposed one by oneDNN, where this build of torch has it."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return None
    found: Callable[..., Tensor] | None = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    return found


_KERNEL = _find_kernel()


def product(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b``, as ``torch.matmul`` has it, for tensors of two or more axes.

    >>> product(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0], [4.0]]))
    tensor([[11.]])
    """
    if a.ndim < 2 or b.ndim < 2:
        return torch.matmul(a, b)
    rows, columns = a.shape[-2] if b.ndim > 2 else a.numel() // max(1, a.shape[-1]), b.shape[-1]
    small = rows == 1 or columns == 1 or rows * columns * a.shape[-1] < WORTH
    if small or _KERNEL is None or not all(_is_plain(x) for x in (a, b)):
        return torch.matmul(a, b)
    if b.ndim == 2:
        return _multiplied(a, b)
    if a.ndim == 2 and b.ndim == 3:
        return _together(a, b) if len(b) > 1 and b.shape[2] < NARROW else _each([a] * len(b), b)
    if a.ndim == 3 and b.ndim == 3 and len(a) == len(b):
        return _each(a, b)
    return torch.matmul(a, b)


def _is_plain(x: Tensor) -> bool:
    """Whether oneDNN can multiply it: numbers in single precision, without gradients."""
    plain = type(x) in (Tensor, Parameter) and x.dtype == torch.float32 and x.device.type == "cpu"
    return plain and not (x.requires_grad and torch.is_grad_enabled())


def _each(a: Tensor | list[Tensor], b: Tensor) -> Tensor:
    """The products of two stacks, element by element."""
    if len(b) == 1:
        return _multiplied(a[0], b[0])[None]
    result = b.new_empty(len(b), a[0].shape[0], b.shape[2])
    for k, one in enumerate(result):
        one.copy_(_multiplied(a[k], b[k]))
    return result


def _together(a: Tensor, b: Tensor) -> Tensor:
    """One matrix with a stack of narrow ones, side by side as a wide one."""
    wide = _multiplied(a, b.transpose(0, 1).flatten(1))
    return wide.view(a.shape[0], len(b), b.shape[2]).transpose(0, 1).contiguous()


def _multiplied(a: Tensor, b: Tensor) -> Tensor:
    assert _KERNEL is not None
    if a.ndim == 2 and not a.is_contiguous() and b.shape[1] < NARROW:
        return _KERNEL(b.T, a, None, "none", [], "").T.contiguous()
    return _KERNEL(a, b.T, None, "none", [], "")
