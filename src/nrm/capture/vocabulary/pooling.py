"""Pooling, interpolation, reductions, and choices: each output is a weighted sum or one entry of a window."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nrm.capture.call import Call, of_first
from nrm.capture.complexes import TRANSFORMS
from nrm.capture.ops import Combine, Linear, Select, Term
from nrm.capture.vocabulary.reading import Steps, axes, count, linear_function, once, reads, wide
from nrm.operators import Function, Gather, Masking, Reduce


@reads(
    "avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d",
    "interpolate", "upsample", "upsample_nearest", "upsample_bilinear", "fold", "col2im",
)  # fmt: skip
def _pool(c: Call, input: Tensor, *args: Any, **kwargs: Any) -> Steps:
    if len(c.tensors) != 1:
        return None
    space = {"1": 1, "2": 2, "3": 3}.get(c.name[-2], 1 if c.name in ("fold", "col2im") else input.ndim - 2)
    mode = kwargs.get("mode", next((a for a in args if isinstance(a, str)), "nearest"))
    function = of_first(c.func, args, kwargs)
    batched = input.ndim == space + 2
    alike = 0 if c.name in ("fold", "col2im") else space
    return linear_function(c, input, function, "pool", batched=batched, positive=mode != "bicubic", space=alike)


@reads("grid_sample", "grid_sampler")
def _grid_sample(c: Call, input: Tensor, grid: Tensor, *args: Any, **kwargs: Any) -> Steps:
    """Entries between those of the input; where they are read is held, as the weights of attention are."""
    where = grid.detach()

    def function(v: Tensor) -> Tensor:
        result: Tensor = c.func(v, where, *args, **kwargs)
        return result

    positive = "bicubic" not in (*args, *kwargs.values())
    map = Function(input.shape, c.result.shape, function, False, positive, c.name)
    return c.one(Linear(map, "pool", beside=(c.index(grid),) if c.tracked(grid) else ()), input)


@reads("sum", "mean")
def _reduce(c: Call, input: Tensor, dim: Any = None, keepdim: bool = False, **_: Any) -> Steps:
    dims = axes(dim, input.ndim)
    weight = 1.0 if c.name == "sum" else 1.0 / max(count(input.shape, dims), 1)
    return c.one(_reduced(input.shape, c.result.shape, dims, weight), input)


@once
def _reduced(inside: torch.Size, outside: torch.Size, dims: tuple[int, ...], weight: float) -> Linear:
    return Linear(Reduce(inside, outside, dims, weight), "pool")


@reads(*TRANSFORMS)
def _transform(c: Call, input: Tensor) -> Steps:
    """A Fourier transform of real numbers or pairs, which keeps the axes that it does not transform."""
    kept = tuple((d, d) for d in c.func.kept(c.name, input.ndim - c.func.of_pairs))
    return linear_function(c, input, c.func, "pool", kept=kept)


@reads("cumsum")
def _cumsum(c: Call, input: Tensor, dim: int, **_: Any) -> Steps:
    steps = torch.ones(input.shape[dim], input.shape[dim], dtype=input.dtype, device=input.device).triu()

    def function(v: Tensor) -> Tensor:
        return torch.movedim(torch.movedim(v, dim, -1) @ steps.to(v.dtype), -1, dim)

    return linear_function(c, input, function, "pool", positive=True)


@reads(
    "max_pool1d", "max_pool2d", "max_pool3d", "max_pool1d_with_indices", "max_pool2d_with_indices",
    "max_pool3d_with_indices", "adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d",
    "adaptive_max_pool1d_with_indices", "adaptive_max_pool2d_with_indices", "adaptive_max_pool3d_with_indices",
    "fractional_max_pool2d_with_indices", "fractional_max_pool3d_with_indices",
)  # fmt: skip
def _max_pool(c: Call, input: Tensor, *args: Any, **kwargs: Any) -> Steps:
    value = c.result[0] if isinstance(c.result, tuple) else c.result
    kind = c.name.removesuffix("_with_indices")
    space = int(kind[-2])
    plain = {k: v for k, v in kwargs.items() if k != "return_indices"}
    held, shape = input.detach(), value.shape
    known, c.recorder.choice = (c.result[1] if isinstance(c.result, tuple) else c.recorder.choice), None

    def choose(by: Tensor | None) -> Gather:
        fixed = known is not None and (by is None or kind.startswith("fractional"))
        indices = known if fixed else _pool_indices(kind, held if by is None else by, args, plain)
        assert indices is not None
        cell = math.prod(held.shape[-space:])
        base = torch.arange(math.prod(held.shape[:-space]), device=held.device) * cell
        return Gather(held.shape, shape, (indices.reshape(len(base), -1) + base[:, None]).flatten())

    return [(value, Select(choose), [c.index(input)])]


def _pool_indices(kind: str, x: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    args = tuple(a for a in args if not isinstance(a, bool) or kind.startswith("max"))
    if kind.startswith("max"):
        args = args[:5]
    return getattr(F, kind)(x, *args, **kwargs, return_indices=True)[1]  # type: ignore[no-any-return]


@reads("max", "min", "amax", "amin", "maximum", "minimum", "fmax", "fmin")
def _extreme(c: Call, input: Tensor, *args: Any, **kwargs: Any) -> Steps:
    other = kwargs.get("other", args[0] if args else None)
    if isinstance(other, Tensor):
        first = (input >= other) if c.name in ("max", "maximum", "fmax") else (input <= other)
        return choice(c, first, input, other, held=True)
    dim = kwargs.get("dim", args[0] if args else None)
    value = c.result if isinstance(c.result, Tensor) else c.result[0]
    dims, shape = axes(dim, input.ndim), value.shape
    held, sign = input.detach(), (1 if c.name in ("max", "amax") else -1)

    def choose(by: Tensor | None) -> Gather:
        values = held if by is None else by
        rest = [d for d in range(held.ndim) if d not in dims]
        places = torch.arange(held.numel(), device=held.device).view(held.shape).permute(*rest, *dims)
        lines = (values * sign).permute(*rest, *dims).reshape(*(held.shape[d] for d in rest), -1)
        best = lines.argmax(-1, keepdim=True)
        return Gather(held.shape, shape, places.reshape(lines.shape).gather(-1, best).flatten())

    return [(value, Select(choose, Reduce(input.shape, shape, dims)), [c.index(input)])]


@reads("topk", "sort", "kthvalue", "median", "nanmedian", "mode", "cummax", "cummin")
def _ranked(c: Call, input: Tensor, *args: Any, **kwargs: Any) -> Steps:
    """Calls that return chosen entries of lines together with their places."""
    if isinstance(c.result, Tensor):
        place = (input == c.result).flatten().to(torch.uint8).argmax()
        return c.one(Combine((Term(Gather(input.shape, c.result.shape, place.view(1))),), held=True), input)
    values, indices = c.result
    default = args[0] if args and c.name in ("median", "nanmedian", "mode", "sort", "cummax", "cummin") else -1
    default = args[1] if len(args) > 1 and c.name in ("topk", "kthvalue") else default
    dim = kwargs.get("dim", default) % max(input.ndim, 1)
    places = torch.arange(input.numel(), device=input.device).view(input.shape)
    if values.ndim == input.ndim:
        index = places.gather(dim, indices)
    else:
        index = places.gather(dim, indices.unsqueeze(dim)).squeeze(dim)
    move = Gather(input.shape, values.shape, index.flatten())
    return [(values, Combine((Term(move),), held=True), [c.index(input)])]


@reads("where")
def _where(c: Call, condition: Tensor, input: Any, other: Any) -> Steps:
    if c.func is Tensor.where:
        condition, input = input, condition
    return choice(c, condition, input, other)


@reads("masked_fill")
def _masked_fill(c: Call, input: Tensor, mask: Tensor, value: Any) -> Steps:
    return choice(c, mask, value, input, turned=True)


def choice(c: Call, condition: Tensor, first: Any, second: Any, held: bool = False, turned: bool = False) -> Steps:
    """Every entry comes from the first or the second tensor: data movement, decided by the condition.

    ``turned`` around, the second one is named first among the inputs.
    """
    shape = c.result.shape
    condition = condition.bool()
    terms, inputs = [], []
    sides = ((first, False), (second, True))
    for value, other in reversed(sides) if turned else sides:
        if not c.tracked(value) and not c.recorder.whole and bool(condition.all() if other else ~condition.any()):
            continue  # a constant that is not chosen anywhere
        tensor = value if c.tracked(value) else wide(c, value, shape)
        if tensor.shape == shape:
            terms.append(Term(Masking(shape, condition, other)))
        else:
            places = torch.arange(tensor.numel(), device=condition.device).view(tensor.shape).expand(shape)
            index = torch.where(condition.expand(shape) != other, places, torch.full_like(places, -1))
            terms.append(Term(Gather(tensor.shape, shape, index.flatten())))
        inputs.append(c.index(tensor))
    return [(c.result, Combine(tuple(terms), held=held), inputs)]
