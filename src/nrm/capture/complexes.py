"""Complex numbers in a forward pass: a tensor of them that depends on the input has a twin of real pairs, recorded so.

The last axis of a twin has the real and the imaginary part. A Fourier transform is a linear map of pairs, a product of
complex numbers two products of real ones for each part, a length what it is for any vector. The model gets the complex
results that it expects.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nrm.capture.arguments import is_in_place, tensors_in
from nrm.errors import CaptureError

if TYPE_CHECKING:
    from nrm.capture.recorder import Recorder

TRANSFORMS = {
    f"fft_{way}{kind}{axes}" for way in ("", "i") for kind in ("fft", "rfft", "hfft") for axes in ("", "2", "n")
} | {"stft", "istft"}  # fmt: skip
"""Linear functions between real and complex numbers."""


def _part(x: Tensor, k: int) -> Tensor:
    return x[..., k]


def _pair(real: Tensor, imag: Tensor) -> Tensor:
    return torch.stack((real, imag), -1)


def _times(product: Callable[..., Tensor], x: Tensor, y: Tensor) -> Tensor:
    """``(a + bi)(c + di)``, for any product of tensors."""
    a, b, c, d = _part(x, 0), _part(x, 1), _part(y, 0), _part(y, 1)
    return _pair(product(a, c) - product(b, d), product(a, d) + product(b, c))


def _length(x: Tensor) -> Tensor:
    length: Tensor = torch.linalg.vector_norm(x, dim=-1)
    return length


def _conjugate(x: Tensor) -> Tensor:
    return x * torch.tensor([1.0, -1.0], dtype=x.dtype, device=x.device)


def _reciprocal(x: Tensor) -> Tensor:
    return _conjugate(x) / x.square().sum(-1, keepdim=True)


def _exponential(x: Tensor) -> Tensor:
    return torch.exp(_part(x, 0)).unsqueeze(-1) * _pair(torch.cos(_part(x, 1)), torch.sin(_part(x, 1)))


def _einsum(equation: str, x: Tensor, y: Tensor) -> Tensor:
    return _times(lambda a, b: torch.einsum(equation, a, b), x, y)


def _polar(abs: Tensor, angle: Tensor) -> Tensor:
    return abs.unsqueeze(-1) * _pair(torch.cos(angle), torch.sin(angle))


ONE: dict[str, Callable[..., Tensor]] = {
    "real": lambda x: _part(x, 0), "get:real": lambda x: _part(x, 0), "imag": lambda x: _part(x, 1),
    "get:imag": lambda x: _part(x, 1), "view_as_real": torch.clone, "abs": _length, "conj": _conjugate,
    "conj_physical": _conjugate, "adjoint": lambda x: _conjugate(x.transpose(-2, -3)),
    "get:H": lambda x: _conjugate(x.transpose(-2, -3)), "get:mH": lambda x: _conjugate(x.transpose(-2, -3)),
    "angle": lambda x: torch.atan2(_part(x, 1), _part(x, 0)), "exp": _exponential, "reciprocal": _reciprocal,
    "square": lambda x: _times(torch.mul, x, x), "view_as_complex": torch.clone,
}  # fmt: skip
"""Functions of one complex tensor, on its pairs."""

TWO: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "add": torch.add, "sub": torch.sub, "rsub": lambda x, y: y - x, "mul": functools.partial(_times, torch.mul),
    "div": lambda x, y: _times(torch.mul, x, _reciprocal(y)),
    "rtruediv": lambda x, y: _times(torch.mul, y, _reciprocal(x)),
    "matmul": functools.partial(_times, torch.matmul), "mm": functools.partial(_times, torch.mm),
    "bmm": functools.partial(_times, torch.bmm), "mv": functools.partial(_times, torch.mv),
    "rmatmul": lambda x, y: _times(torch.matmul, y, x), "linear": functools.partial(_times, torch.nn.functional.linear),
    "complex": _pair, "polar": _polar,
}  # fmt: skip
"""Functions of two tensors, of which one is complex, on pairs."""

PARTS = {
    "reshape", "view", "permute", "transpose", "swapaxes", "movedim", "t", "get:T", "get:mT", "getitem", "narrow",
    "select", "index_select", "gather", "split", "chunk", "unbind", "tensor_split", "cat", "concat", "stack", "flatten",
    "unflatten", "squeeze", "unsqueeze", "expand", "expand_as", "repeat", "repeat_interleave", "tile", "flip", "roll",
    "pad", "contiguous", "clone", "detach", "sum", "mean", "cumsum", "neg", "diagonal", "tril", "triu", "diff",
    "resolve_conj", "resolve_neg", "positive", "dropout", "broadcast_to", "fft_fftshift", "fft_ifftshift",
}  # fmt: skip
"""Linear functions with real weights: of both parts alike."""

FROM_REAL = {"complex", "polar", "view_as_complex"}
"""Functions that make complex numbers of real ones."""

REAL = {"real", "get:real", "imag", "get:imag", "view_as_real", "abs", "angle"}
"""Functions of complex numbers that give real ones."""

CASTS = {"to", "type", "type_as", "cfloat", "cdouble", "cpu", "cuda"}


class ComplexTwins:
    """The twins of the complex tensors that depend on the input."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Tensor, Tensor]] = {}

    def __contains__(self, tensor: Tensor) -> bool:
        return id(tensor) in self._known

    def __len__(self) -> int:
        return len(self._known)

    def add(self, twin: Tensor) -> Tensor:
        """The complex tensor of a twin, which is remembered."""
        made = torch.view_as_complex(twin.detach().clone(memory_format=torch.contiguous_format))
        self._known[id(made)] = (made, twin)
        return made

    def of(self, r: Recorder, value: Any) -> Tensor:
        """A tensor or a number as pairs; those that depend on the input are tracked."""
        if isinstance(value, Tensor) and value in self:
            return self._known[id(value)][1]
        if not isinstance(value, Tensor):
            value = torch.tensor(value, dtype=torch.complex128)
        if value.is_complex():
            return torch.view_as_real(value.resolve_conj()).to(r.precision.dtype)
        real = value.to(r.precision.dtype) if not r.tracked(value) else value
        with r:
            return _pair(real, torch.zeros_like(real))


def concerns(r: Recorder, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], present: list[Tensor]) -> bool:
    """Whether a call has to do with complex numbers and with tracked data."""
    if [t for t in present if t.is_complex()] or complex in map(type, args):
        return any(t in r.pairs or r.tracked(t) for t in present)
    makes = name in TRANSFORMS or name in FROM_REAL or name in ("cfloat", "cdouble")
    if name in ("to", "type"):
        makes = any(a.is_complex for a in (*args, *kwargs.values()) if isinstance(a, torch.dtype))
    return makes and any(r.tracked(t) for t in present)


def run(r: Recorder, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs a call on complex tensors, and records it on their twins."""
    if name.startswith("get:") and name not in ONE and name not in PARTS:
        return func(*args, **kwargs)
    if name in TRANSFORMS:
        return _transformed(r, func, name, args, kwargs)
    if name in PARTS and not _fills(name, args, kwargs):
        return _by_parts(r, func, args, kwargs)
    written = name == "setitem" or is_in_place(func) or "out" in kwargs
    twin = None if written else _twin(r, name, args, kwargs)
    if twin is None:
        raise CaptureError(
            f"{name} of complex numbers{' in place' if written else ''} cannot be followed", where=r.place(),
            expected="sums, products, Fourier transforms, abs, exp, movements of entries, .real and .imag",
            hint="write it with real and imaginary parts, or put it into a module and nrm.register(its class, ...)",
        )  # fmt: skip
    real = name in REAL or (name in CASTS and not _complex_asked(args, kwargs))
    return twin if real else r.pairs.add(twin)


def _fills(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a padding has a value of its own, which is no part of a linear function."""
    return name == "pad" and bool(kwargs.get("value") or (args[3] if len(args) > 3 else 0))


def _complex_asked(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a cast gives complex numbers."""
    given = (*args[1:], *kwargs.values())
    asked = [a if isinstance(a, torch.dtype) else a.dtype for a in given if isinstance(a, torch.dtype | Tensor)]
    return not asked or asked[-1].is_complex


def _twin(r: Recorder, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """The pairs of a result, or the real result, recorded; None for a call that is not known."""
    given, function = [*args, *kwargs.values()], {**ONE, **TWO}.get(name)
    if name == "einsum" and len(given) == 3 and isinstance(args[0], str):
        function, given = functools.partial(_einsum, args[0]), given[1:]
    elif name in CASTS:
        function, given = ONE["view_as_real" if _complex_asked(args, kwargs) else "real"], given[:1]
    elif name == "pow" and len(given) == 2 and given[1] == 2:
        function, given = ONE["square"], given[:1]
    if function is None or len(given) != (1 if function in ONE.values() else 2):
        return None
    if name not in FROM_REAL:
        given = [r.pairs.of(r, x) for x in given]
    with r:
        return function(*given)


def _transformed(r: Recorder, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """A Fourier transform: linear in the pairs of its input."""
    x = args[0] if args else kwargs.pop("input")
    rest, more = r.precision.raised((args[1:], kwargs))
    if any(t in r.pairs or r.tracked(t) for t in tensors_in((rest, more))):
        raise CaptureError(f"{name} with a window that depends on the input cannot be followed", where=r.place())
    function = Fourier(func, rest, more, x.is_complex())
    twin = r.perform(function, name, (r.pairs.of(r, x) if x.is_complex() else x,), {})
    result: Tensor = r.pairs.add(twin) if function.gives_complex else twin
    return result


class Fourier:
    """A function between complex or real tensors as one of pairs; what it gives is known once it has run."""

    gives_complex = False

    def __init__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], of_pairs: bool) -> None:
        self._func, self._args, self._kwargs, self.of_pairs = func, args, kwargs, of_pairs

    def __call__(self, x: Tensor) -> Tensor:
        """The result for pairs, or real numbers."""
        given = torch.view_as_complex(x.contiguous()) if self.of_pairs else x
        found: Tensor = self._func(given, *self._args, **self._kwargs)
        self.gives_complex = found.is_complex()
        return torch.view_as_real(found.resolve_conj()) if self.gives_complex else found

    def kept(self, name: str, ndim: int) -> tuple[int, ...]:
        """The axes of its input along which it works independently."""
        if name in ("stft", "istft"):
            return tuple(range(ndim - (1 if name == "stft" else 2)))
        given = dict(zip(("s", "dim"), self._args, strict=False)) | self._kwargs
        dim, size = given.get("dim"), given.get("s")
        if dim is None and name.endswith("n"):
            dim = range(-len(size), 0) if size is not None else range(ndim)
        elif dim is None:
            dim = (-2, -1) if name.endswith("2") else -1
        dims = [dim] if isinstance(dim, int) else dim
        return tuple(set(range(ndim)) - {d % ndim for d in dims})


def _by_parts(r: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A linear function with real weights, of the real and of the imaginary parts."""
    with r:
        found = [func(*_parts(r, args, k), **_parts(r, kwargs, k)) for k in (0, 1)]
        if isinstance(found[0], Tensor):
            return _returned(r, *found)
        return type(found[0])(_returned(r, *both) for both in zip(*found, strict=True))


def _returned(r: Recorder, real: Tensor, imag: Tensor) -> Tensor:
    twin = _pair(real, imag)
    with torch._C.DisableTorchFunction():
        return r.pairs.add(twin)


def _parts(r: Recorder, value: Any, k: int) -> Any:
    """Arguments with one part of every complex tensor."""
    if isinstance(value, dict):
        return {name: _parts(r, v, k) for name, v in value.items()}
    if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
        return type(value)(_parts(r, v, k) for v in value)
    if not isinstance(value, Tensor) or not (value.is_complex() or value.is_floating_point()):
        return value
    return _part(r.pairs.of(r, value), k)
