"""Functions that are made of others: run as those, so that every part is recorded by itself."""

from __future__ import annotations

import functools
import math
import string
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nrm.capture.vocabulary.reading import axes
from nrm.errors import CaptureError

COMPOSED: dict[str, Callable[..., Any]] = {}


def composes(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a function written with recorded calls for the functions of these names.

    It gives ``NotImplemented`` for arguments that it cannot write so: then the call is recorded as it is.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        COMPOSED.update(dict.fromkeys(names, function))
        return function

    return register


@composes("glu")
def _glu(input: Tensor, dim: int = -1) -> Tensor:
    signal, gate = input.chunk(2, dim)
    return signal * torch.sigmoid(gate)


@composes("addcmul")
def _addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    product = tensor1 * tensor2
    return input + (product if value == 1 else product * value)


@composes("addcdiv")
def _addcdiv(input: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
    quotient = tensor1 / tensor2
    return input + (quotient if value == 1 else quotient * value)


@composes("baddbmm")
def _baddbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    product = torch.bmm(batch1, batch2)
    product = product if alpha == 1 else product * alpha
    return product if beta == 0 else product + (input if beta == 1 else input * beta)


@composes("linalg_multi_dot")
def _multi_dot(tensors: Sequence[Tensor]) -> Tensor:
    return functools.reduce(torch.matmul, tensors)


@composes("einsum")
def _einsum(equation: Any, *operands: Any) -> Any:
    """A product of matrices, one for every entry of some axes: ``bqhd,bkhd->bhqk``, as attention is written."""
    if not isinstance(equation, str):
        return torch.einsum(*_in_letters(equation, *operands))
    given = operands[0] if len(operands) == 1 and isinstance(operands[0], list | tuple) else operands
    if len(given) > 2:
        return _two_by_two(equation, given)
    found = _as_matrices(equation, given)
    if found is None:
        return NotImplemented
    product = torch.matmul(*(_matrix(x, order) for x, order in zip(given, found, strict=False)))
    return _permuted(product, found[2])


def _in_letters(*parts: Any) -> tuple[Any, ...]:
    """Operands with lists of numbers behind them, ``x, [0, 1], y, [1, 2], [0, 2]``, as an equation and operands."""
    lists = [*parts[1::2], *(parts[-1:] if len(parts) % 2 else ())]
    words = ["".join("..." if i is Ellipsis else string.ascii_letters[i] for i in axes) for axes in lists]
    count = len(parts) // 2
    return (",".join(words[:count]) + ("->" + words[count] if len(parts) % 2 else ""), *parts[: 2 * count : 2])


def _two_by_two(equation: str, given: Sequence[Any]) -> Any:
    """A sum of products of many as products of two, from the left; what comes later keeps its axes until then."""
    inside, arrow, outside = equation.replace(" ", "").partition("->")
    words = inside.split(",")
    if "." in equation:
        return NotImplemented
    if not arrow:
        outside = "".join(sorted(a for a in set(inside) - {","} if inside.count(a) == 1))
    word, found = words[0], given[0]
    for k, (other, x) in enumerate(zip(words[1:], given[1:], strict=True), 2):
        later = set("".join(words[k:]) + outside)
        kept = outside if k == len(words) else "".join(a for a in dict.fromkeys(word + other) if a in later)
        found, word = torch.einsum(f"{word},{other}->{kept}", found, x), kept
    return found


Order = tuple[int, ...]


def _as_matrices(equation: str, given: Sequence[Any]) -> tuple[Order, Order, Order] | None:
    """The orders of axes in which a sum of two operands is a product of matrices, and that of its result.

    The axes that all three have come first; both operands and the result have one more, and the operands share one.
    """
    inside, arrow, outside = equation.replace(" ", "").partition("->")
    names = inside.split(",")
    if not arrow or "." in equation or len(names) != 2 or len(given) != 2:
        return None
    left, right = names
    if any(len(set(word)) != len(word) for word in (left, right, outside)):
        return None
    kept = [a for a in outside if a in left and a in right]
    rows, columns = ([a for a in outside if a not in kept and a in word] for word in names)
    summed = [a for a in left if a in right and a not in outside]
    count = len(kept) + 2
    if not kept or any(len(some) != 1 for some in (rows, columns, summed)):
        return None
    if any(len(word) != count for word in (left, right, outside)):
        return None
    sizes = [dict(zip(word, x.shape, strict=True)) for word, x in zip(names, given, strict=True)]
    if any(sizes[0][a] != sizes[1][a] for a in (*kept, *summed)):
        return None  # an axis of one entry, which torch repeats
    orders = [[*kept, *rows, *summed], [*kept, *summed, *columns]]
    first, second = (tuple(word.index(a) for a in order) for word, order in zip(names, orders, strict=True))
    return first, second, tuple([*kept, *rows, *columns].index(a) for a in outside)


def _permuted(x: Tensor, order: Order) -> Tensor:
    return x if order == tuple(range(x.ndim)) else x.permute(order)


def _matrix(x: Tensor, order: Order) -> Tensor:
    """Matrices along the last two axes; those that lie the other way are turned by a step of their own."""
    if order[-2] < order[-1]:
        return _permuted(x, order)
    return _permuted(x, (*order[:-2], order[-1], order[-2])).mT


@composes("std_mean")
def _std_mean(input: Tensor, dim: Any = None, *args: Any, **more: Any) -> tuple[Tensor, Tensor]:
    return torch.std(input, dim, *args, **more), _mean_over(input, dim, *args, **more)


@composes("var_mean")
def _var_mean(input: Tensor, dim: Any = None, *args: Any, **more: Any) -> tuple[Tensor, Tensor]:
    return torch.var(input, dim, *args, **more), _mean_over(input, dim, *args, **more)


def _mean_over(input: Tensor, dim: Any = None, unbiased: Any = None, keepdim: bool = False, **_: Any) -> Tensor:
    return input.mean() if dim is None or isinstance(dim, bool) else input.mean(dim, keepdim)


@composes("bilinear")
def _bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    outputs, one, other = weight.shape
    flat = F.linear(input1, weight.permute(0, 2, 1).reshape(outputs * other, one))
    result: Tensor = (flat.view(*flat.shape[:-1], outputs, other) * input2.unsqueeze(-2)).sum(-1)
    return result if bias is None else result + bias


@composes("broadcast_tensors")
def _broadcast(*tensors: Any) -> list[Tensor]:
    given = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], list | tuple) else tensors
    shape = torch.broadcast_shapes(*(t.shape for t in given))  # type: ignore[no-untyped-call]
    return [t.expand(shape) for t in given]


@composes("fft_fftshift")
def _fftshift(input: Tensor, dim: Any = None) -> Tensor:
    dims = axes(dim, input.ndim)
    return input.roll([input.shape[d] // 2 for d in dims], dims)


@composes("fft_ifftshift")
def _ifftshift(input: Tensor, dim: Any = None) -> Tensor:
    dims = axes(dim, input.ndim)
    return input.roll([-(input.shape[d] // 2) for d in dims], dims)


@composes("grad", "backward")
def _grad(*_: Any, **__: Any) -> Any:
    raise CaptureError(
        "a gradient that the model computes in its own forward pass cannot be followed",
        got="torch.autograd.grad or backward of a tensor that depends on the input",
        expected="a forward pass without gradients", hint="write the gradient out, or nrm.register the module's class",
    )  # fmt: skip


@composes("addmv")
def _addmv(input: Tensor, mat: Tensor, vec: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return input * beta + torch.mv(mat, vec) * alpha


@composes("outer", "ger")
def _outer(input: Tensor, vec2: Tensor) -> Tensor:
    return input.unsqueeze(-1) * vec2


@composes("cross", "linalg_cross")
def _cross(input: Tensor, other: Tensor, dim: int | None = None) -> Any:
    axis = -1 if dim is None else dim
    if dim is None and input.shape[-1] != 3:
        return NotImplemented  # the first axis of three entries: a default of old
    left, right = (torch.roll(input, -k, axis) for k in (1, 2))
    return left * torch.roll(other, -2, axis) - right * torch.roll(other, -1, axis)


@composes("logaddexp")
def _logaddexp(input: Tensor, other: Tensor) -> Tensor:
    return torch.stack(torch.broadcast_tensors(input, other)).logsumexp(0)  # type: ignore[no-untyped-call]


@composes("xlogy")
def _xlogy(input: Any, other: Any) -> Any:
    """``x log y``, 0 where x is."""
    one = isinstance(input, Tensor) and bool((input == 0).any())
    return NotImplemented if one or not isinstance(other, Tensor) else input * other.log()


@composes("diff")
def _diff(input: Tensor, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Tensor:
    x = torch.cat([t for t in (prepend, input, append) if t is not None], dim)
    for _ in range(n):
        x = x.narrow(dim, 1, x.shape[dim] - 1) - x.narrow(dim, 0, x.shape[dim] - 1)
    return x


@composes("linalg_matrix_norm")
def _matrix_norm(A: Tensor, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False, **_: Any) -> Any:
    return torch.linalg.vector_norm(A, 2, dim, keepdim) if ord == "fro" else NotImplemented


@composes("trace")
def _trace(input: Tensor) -> Tensor:
    return input.diagonal().sum()


@composes("aminmax")
def _aminmax(input: Tensor, *, dim: int | None = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    given = () if dim is None else (dim, keepdim)
    return input.amin(*given), input.amax(*given)


@composes("linalg_solve", "linalg_solve_triangular")
def _solve(A: Tensor, B: Tensor, *, left: bool = True, upper: Any = None, unitriangular: bool = False) -> Tensor:
    """A product with an inverse: what divides has no share."""
    if upper is not None:
        A = A.triu() if upper else A.tril()
    if unitriangular:
        A = A - torch.diag_embed(A.diagonal(dim1=-2, dim2=-1)) + torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    inverse = torch.linalg.inv(A)
    if left and B.ndim == A.ndim - 1:
        B = B.unsqueeze(-1)
        return torch.matmul(inverse, B).squeeze(-1)
    return torch.matmul(inverse, B) if left else torch.matmul(B, inverse)


@composes("lerp")
def _lerp(input: Tensor, end: Tensor, weight: Tensor | float) -> Tensor:
    return input * (1 - weight) + end * weight


def _power_pool(pool: Callable[..., Tensor], space: int) -> Callable[..., Tensor]:
    def power_pool(
        input: Tensor, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False
    ) -> Tensor:
        """``(sum over the window of x^p)^(1/p)``, the sum as an average times the window's size."""
        size = kernel_size**space if isinstance(kernel_size, int) else math.prod(kernel_size)
        powers = input.pow(norm_type) if norm_type != 1 else input
        total: Tensor = pool(powers, kernel_size, stride, 0, ceil_mode) * size
        return total.pow(1.0 / norm_type) if norm_type != 1 else total

    return power_pool


composes("lp_pool1d")(_power_pool(F.avg_pool1d, 1))
composes("lp_pool2d")(_power_pool(F.avg_pool2d, 2))
composes("lp_pool3d")(_power_pool(F.avg_pool3d, 3))


@composes("fractional_max_pool2d")
def _fractional2d(*args: Any, **kwargs: Any) -> Tensor:
    value: Tensor = F.fractional_max_pool2d_with_indices(*args, **kwargs)[0]
    return value


@composes("fractional_max_pool3d")
def _fractional3d(*args: Any, **kwargs: Any) -> Tensor:
    value: Tensor = F.fractional_max_pool3d_with_indices(*args, **kwargs)[0]
    return value
