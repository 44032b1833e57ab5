"""Sums and maxima at given places: how the messages of a graph's edges meet at its nodes, and nodes in their graph.

A sum at places is an addition: its terms are collected through the movement and the constant scaling that made them, so
that ``sum over neighbours u of norm[u, v] * linear(h[u])`` is one column over the entries of all neighbours. Only the
pooling of nodes into their graph is a pooling, as a sum over an axis is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nrm.capture.call import Call
from nrm.capture.ops import Combine, Linear, Op, Select, Term
from nrm.capture.vocabulary.lengths import slopes
from nrm.capture.vocabulary.reading import VOCABULARY, Steps, reads
from nrm.operators import Expand, Gather, Scatter, Slice


@reads("index_add")
def _index_add(c: Call, input: Tensor, dim: int, index: Tensor, source: Any, *, alpha: float = 1) -> Steps:
    dim = dim % max(input.ndim, 1)
    wide = index.view(-1, *(1,) * (source.ndim - dim - 1)).expand(source.shape)
    return _summed(c, input, dim, wide, source, float(alpha))


@reads("scatter_add")
def scatter_add(c: Call, input: Tensor, dim: int, index: Tensor, src: Tensor) -> Steps:
    """Adds the entries of a tensor at given places along one axis."""
    return _summed(c, input, dim % max(input.ndim, 1), index, src)


@reads("index_reduce")
def _index_reduce(
    c: Call, input: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Steps:
    wide = index.view(-1, *(1,) * (source.ndim - dim % input.ndim - 1)).expand(source.shape)
    return _scatter_reduce(c, input, dim, wide, source, reduce, include_self=include_self)


@reads("scatter_reduce")
def _scatter_reduce(
    c: Call, input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Steps:
    dim = dim % max(input.ndim, 1)
    if reduce in ("amax", "amin"):
        sign = 1 if reduce == "amax" else -1
        return (_chosen_with_self if include_self else _chosen)(c, input, dim, index, src, sign)
    if reduce == "prod":
        return _multiplied(c, input, dim, index, src, include_self)
    if reduce not in ("sum", "mean"):
        return None
    if include_self and reduce == "sum":
        return _summed(c, input, dim, index, src)
    places = _places(input.shape, dim, index)
    count = torch.bincount(places.flatten(), minlength=input.numel()).view(input.shape)
    if include_self:
        return _summed(c, input, dim, index, src, 1 / (count + 1).to(src.dtype), 1 / (count + 1).to(src.dtype))
    weight = 1 / count.clamp(min=1).to(src.dtype) if reduce == "mean" else 1.0
    return _summed(c, input, dim, index, src, weight, (count == 0).to(src.dtype))


def _multiplied(c: Call, input: Tensor, dim: int, index: Tensor, source: Tensor, include_self: bool) -> Steps:
    """The product of what arrives at every place, each with the same share; a place without any keeps its value."""
    places = _places(input.shape, dim, index)
    count = torch.bincount(places.flatten(), minlength=input.numel()).view(input.shape)
    if c.tracked(input) or (include_self and not bool((input == 1).all())):
        return None
    below = _cropped(c, source, index.shape)
    value = c.recorder.nodes[below].value
    others = slopes(lambda v: input.scatter_reduce(dim, index, v, "prod", include_self=include_self), value)
    shares = Combine((Term(None, others / count.flatten()[places]),), kind="scale", held=True)
    shared = c.recorder.add(shares, [below], value * others / count.flatten()[places], f"{c.name}.shares")
    along = Term(Scatter(index.shape, input.shape, places.flatten()))
    rest = torch.where(count == 0, c.result, torch.zeros_like(c.result))
    if not bool(rest.any()):
        return [(c.result, Combine((along,), joins=True, kind="propagate"), [shared])]
    return [(c.result, Combine((Term(), along), joins=True, kind="add"), [c.constant(rest), shared])]


def _places(shape: torch.Size, dim: int, index: Tensor) -> Tensor:
    """The flat place in a tensor of this shape that every entry of an index along one axis means."""
    at = torch.meshgrid(*(torch.arange(n, device=index.device) for n in index.shape), indexing="ij")
    places = torch.zeros_like(index)
    for axis, n in enumerate(shape):
        places = places * n + (index if axis == dim else at[axis])
    return places


def _cropped(c: Call, source: Tensor, shape: torch.Size) -> int:
    """The node of the part of a tensor that an index of this shape reads."""
    node = c.index(source)
    if source.shape == shape:
        return node
    corner = tuple(slice(0, n) for n in shape)
    return c.recorder.add(Combine((Term(Slice(source.shape, shape, corner)),)), [node], source[corner], "narrow")


def _summed(
    c: Call, input: Tensor, dim: int, index: Tensor, source: Any,
    scale: Tensor | float = 1.0, kept: Tensor | float = 1.0,
) -> Steps:  # fmt: skip
    """``kept * input + scale * (source summed at places)``; a constant that adds only zeros is no term."""
    if not isinstance(source, Tensor):
        return None
    places = _places(input.shape, dim, index)
    along = Scatter(index.shape, input.shape, places.flatten())
    below = _cropped(c, source, index.shape)
    alone = not c.tracked(input) and not bool((input * kept).any())
    if alone and _pools_nodes(c, dim, index, below, input.shape[0]):
        placed = Linear(along, "pool")
        if isinstance(scale, float) and scale == 1.0:
            return [(c.result, placed, [below])]
        pooled = c.recorder.add(placed, [below], along.apply(c.recorder.nodes[below].value[None])[0], c.name)
        return [(c.result, Combine((Term(None, scale),), kind="scale"), [pooled])]
    if alone:
        return [(c.result, Combine((Term(along, scale),), joins=True, kind="propagate"), [below])]
    terms = (Term(None, kept), Term(along, scale))
    return [(c.result, Combine(terms, joins=True, kind="add"), [c.index(input), below])]


def flat_places(t: Tensor) -> Tensor:
    """The flat place of every entry of a tensor, in its shape."""
    return torch.arange(t.numel(), device=t.device).view(t.shape)


def added_at(c: Call, input: Tensor, places: Tensor, source: Tensor) -> Steps:
    """``input`` plus the entries of a tensor, each at its flat place."""
    shape, wide = places.shape, source.expand(places.shape)
    below = c.index(source) if c.tracked(source) else c.constant(wide)  # samples share no entry of a constant
    if c.tracked(source) and source.shape != shape:
        move = Combine((Term(Expand(source.shape, shape)),))
        below = c.recorder.add(move, [below], wide, "expand")
    along = Term(Scatter(shape, input.shape, places.flatten()))
    if not c.tracked(input) and not bool(input.any()):  # a constant that adds only zeros is no term
        return [(c.result, Combine((along,), joins=True, kind="propagate"), [below])]
    return [(c.result, Combine((Term(), along), joins=True, kind="add"), [c.index(input), below])]


def _pools_nodes(c: Call, dim: int, index: Tensor, below: int, rows: int) -> bool:
    """Whether a sum takes every node to its graph, also the nodes that a pooling has chosen."""
    graphs, node = c.recorder.graphs, c.recorder.nodes[below]
    if graphs is None or dim != 0 or rows != graphs.count or not index.numel():
        return False
    first = index.reshape(len(index), -1)
    if any(torch.equal(first[:, 0], end) for edges in graphs.edges.values() for end in edges):
        return False  # to the only node of another kind
    owners = [batch for batch in graphs.batch.values() if len(batch) == len(first)]
    if node.owner is not None and node.shape[:1] == index.shape[:1]:
        owners.append(node.owner.reshape(len(first), -1)[:, 0])
    return bool((first == first[:, :1]).all()) and any(torch.equal(first[:, 0], owner) for owner in owners)


def _chosen(c: Call, input: Tensor, dim: int, index: Tensor, source: Tensor, sign: int) -> Steps:
    """The largest (or smallest) of the entries at every place; a place without any keeps the value it had."""
    if not c.tracked(source):
        return None
    places, shape = _places(input.shape, dim, index).flatten(), input.shape
    below = _cropped(c, source, index.shape)
    held = c.recorder.nodes[below].value
    empty = torch.bincount(places, minlength=input.numel()) == 0
    filled = (~empty).nonzero()[:, 0]
    number = (empty.logical_not().cumsum(0) - 1)[places]  # places counted without the empty ones
    inner = torch.Size([len(filled)]) if bool(empty.any()) else shape
    at = number if bool(empty.any()) else places

    def choose(by: Tensor | None) -> Gather:
        values = (held if by is None else by).flatten() * sign
        best = values.new_full((inner.numel(),), -torch.inf).scatter_reduce(0, at, values, "amax")
        mine = (values == best[at]).nonzero()[:, 0]
        first = torch.full((inner.numel(),), len(values), device=at.device)
        return Gather(held.shape, inner, first.scatter_reduce(0, at[mine], mine, "amin"))

    op: Op = Select(choose, Scatter(held.shape, inner, at))
    if inner == shape:
        return [(c.result, op, [below])]
    best = c.recorder.add(op, [below], c.result.detach().flatten()[filled], c.name)
    own = torch.arange(input.numel(), device=at.device)
    terms = (
        Term(Gather(inner, shape, torch.where(empty, -1, (~empty).cumsum(0) - 1))),
        Term(Gather(shape, shape, torch.where(empty, own, -1))),
    )
    return [(c.result, Combine(terms, held=True), [best, c.index(input)])]


def _chosen_with_self(c: Call, input: Tensor, dim: int, index: Tensor, source: Tensor, sign: int) -> Steps:
    """The largest (or smallest) of the value that every place had and of the entries that arrive there."""
    reduce, name = ("amax", "maximum") if sign > 0 else ("amin", "minimum")
    value = input.detach().scatter_reduce(dim, index, source.detach(), reduce, include_self=False)
    steps = _chosen(Call(c.recorder, c.func, c.name, c.args, c.kwargs, value), input, dim, index, source, sign)
    if steps is None:
        return None
    ((_, op, inputs),) = steps
    c.recorder.follow(value, c.recorder.add(op, inputs, value, c.name))
    pair = (input, value)
    return VOCABULARY[name](Call(c.recorder, getattr(torch, name), name, pair, {}, c.result), *pair)
