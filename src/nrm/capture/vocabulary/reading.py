"""The table of builders, and what several of them use."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nrm.capture.call import Call
from nrm.capture.ops import Combine, Linear, Op, Term
from nrm.operators import Expand, Function, Gather, Reshape

Steps = list[tuple[Tensor, Op, list[int]]] | None
VOCABULARY: dict[str, Callable[..., Steps]] = {}


def reads(*names: str) -> Callable[[Callable[..., Steps]], Callable[..., Steps]]:
    """Registers a builder for the functions of these names."""

    def register(builder: Callable[..., Steps]) -> Callable[..., Steps]:
        for name in names:
            VOCABULARY[name] = builder
        return builder

    return register


once = functools.lru_cache(4096)
"""Makes an op without tensors once: it is a value, which all calls of one form share."""


@once
def reshaped(inside: torch.Size, outside: torch.Size) -> Combine:
    """All entries in their order, seen with another shape (or the same)."""
    return Combine((Term(None if inside == outside else Reshape(inside, outside)),))


@once
def expanded(inside: torch.Size, outside: torch.Size) -> Expand | None:
    """Broadcasting, where the shapes differ."""
    return None if inside == outside else Expand(inside, outside)


@once
def term(inside: torch.Size, outside: torch.Size, scale: float) -> Term:
    """A term of a sum that is broadcast and scaled by a number."""
    return Term(expanded(inside, outside), scale)


def many(value: Any, n: int) -> tuple[int, ...]:
    """A number per axis from one number or several."""
    if isinstance(value, int):
        return (value,) * n
    values = tuple(int(v) for v in value)
    return values * n if len(values) == 1 else values


def axes(dim: Any, ndim: int) -> tuple[int, ...]:
    """The axes that a ``dim`` argument means; none given are all."""
    if dim is None or (isinstance(dim, list | tuple) and not dim):
        return tuple(range(ndim))
    return tuple(sorted({d % max(ndim, 1) for d in ([dim] if isinstance(dim, int) else dim)} if ndim else ()))


def flat(value: Any) -> list[Any]:
    """Nested lists and tuples as one list."""
    if isinstance(value, list | tuple):
        return [v for one in value for v in flat(one)]
    return [value]


def positions(t: Tensor, first: int = 1) -> Tensor:
    """A tensor of the same shape that holds the place of every entry, counted from ``first``."""
    return torch.arange(first, first + t.numel(), dtype=torch.float64, device=t.device).view(t.shape)


def wide(c: Call, value: Any, shape: torch.Size) -> Tensor:
    """A constant in the shape of the result, still known by the name of its parameter."""
    tensor = value if isinstance(value, Tensor) else torch.as_tensor(value, dtype=c.result.dtype)
    expanded = tensor.to(c.result.device).expand(shape)
    origin = c.recorder.origin.get(id(tensor))
    if origin is not None:
        c.recorder.origin[id(expanded)] = (expanded, origin[1])
    c.recorder.constants.widen(c.recorder, tensor, expanded)
    return expanded


def moved(c: Call, result: Tensor, sources: list[Tensor], code: Tensor) -> tuple[Tensor, Op, list[int]]:
    """A movement out of several tensors, from codes: which entry of which source (counted on), 0 for a zero."""
    code = code.round().long().flatten()
    terms: list[Term] = []
    inputs, start = [], 1
    for source in sources:
        mine = (code >= start) & (code < start + source.numel())
        if bool(mine.any()) or not (len(code) or terms):  # nothing comes from the first source
            index = torch.where(mine, code - start, torch.full_like(code, -1))
            terms.append(Term(Gather(source.shape, result.shape, index)))
            inputs.append(c.index(source))
        start += source.numel()
    if bool((code == 0).any()):
        empty = torch.zeros_like(result)
        own = torch.arange(empty.numel(), device=empty.device)
        terms.append(Term(Gather(empty.shape, empty.shape, torch.where(code == 0, own, torch.full_like(own, -1)))))
        inputs.append(c.constant(empty))
    return result, Combine(tuple(terms)), inputs


def linear_function(
    c: Call,
    x: Tensor,
    function: Callable[[Tensor], Tensor],
    kind: str,
    *,
    batched: bool = False,
    positive: bool = False,
    space: int = 0,
    kept: tuple[tuple[int, int], ...] = (),
) -> Steps:
    """A step that is linear in ``x`` and known as a function only (of its last ``space`` axes, if that many)."""
    map = Function(x.shape, c.result.shape, function, batched, positive, c.name, space, kept)
    return c.one(Linear(map, kind), x)


def count(shape: torch.Size, dims: tuple[int, ...]) -> int:
    """The number of entries along some axes."""
    return math.prod(shape[d] for d in dims)
