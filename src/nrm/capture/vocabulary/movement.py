"""Data movement: every output entry is a copy of one input entry.

Where nothing simpler is known, a function is read by running it on the positions of its input: the result tells for
every output entry where it came from (0: from nowhere).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from nrm.capture.arguments import tensors_in
from nrm.capture.call import Call
from nrm.capture.ops import Combine, Op, Term
from nrm.capture.vocabulary.reading import Steps, flat, moved, once, positions, reads, reshaped
from nrm.capture.vocabulary.scatter import added_at, flat_places, scatter_add
from nrm.operators import Expand, Gather, Permute, Place, Slice

ALL = (None, None, None)
"""A whole axis, among slices as tuples."""


@reads(
    "view", "reshape", "view_as", "reshape_as", "flatten", "unflatten", "ravel", "squeeze", "unsqueeze", "contiguous",
    "clone", "detach", "get:data", "atleast_1d", "atleast_2d", "atleast_3d", "get:real", "real", "deepcopy",
    "view_copy", "squeeze_copy", "unsqueeze_copy", "detach_copy", "resolve_conj", "resolve_neg",
)  # fmt: skip
def _reshape(c: Call, input: Tensor, *_: Any, **__: Any) -> Steps:
    return c.one(reshaped(input.shape, c.result.shape), input) if isinstance(c.result, Tensor) else None


@reads("tensor", "as_tensor", "asarray")
def _copied(c: Call, data: Any, *_: Any, **__: Any) -> Steps:
    """A tensor made of another one, or of a list of numbers and of tensors with one entry."""
    if c.tracked(data):
        return c.one(Combine((Term(),)), data)
    leaves = [v if isinstance(v, Tensor) else torch.tensor(v, dtype=c.result.dtype) for v in flat(data)]
    if any(leaf.numel() != 1 for leaf in leaves):
        return None
    return [moved(c, c.result, leaves, positions(c.result))]


@reads("new_tensor")
def _new_tensor(c: Call, input: Tensor, data: Any, **__: Any) -> Steps:
    return _copied(c, data)


@reads("full", "full_like", "new_full")
def _full(c: Call, *args: Any, **kwargs: Any) -> Steps:
    value = kwargs.get("fill_value", args[-1])
    return c.one(Combine((Term(Expand(value.shape, c.result.shape)),)), value) if c.tracked(value) else None


@reads(
    "permute", "transpose", "swapaxes", "swapdims", "t", "movedim", "moveaxis", "get:T", "get:mT", "get:H", "get:mH",
    "adjoint",
)  # fmt: skip
def _permute(c: Call, input: Tensor, *args: Any, **kwargs: Any) -> Steps:
    order = tuple(tuple(a) if isinstance(a, list) else a for a in args), tuple(kwargs.items())
    return c.one(_permuted(input.shape, c.func, *order), input)


@once
def _permuted(inside: torch.Size, function: Any, args: tuple[Any, ...], kwargs: tuple[tuple[str, Any], ...]) -> Combine:
    strides = torch.empty_strided((1,) * len(inside), tuple(range(1, len(inside) + 1)))
    marked = function(strides, *args, **dict(kwargs))
    return Combine((Term(Permute(inside, tuple(s - 1 for s in marked.stride()))),))


@reads("getitem", "select", "narrow")
def _getitem(c: Call, input: Tensor, *args: Any, **kwargs: Any) -> Steps:
    if c.name == "getitem":
        index = args[0] if isinstance(args[0], tuple) else (args[0],)
        if all(i is None or i is Ellipsis or (isinstance(i, int | slice) and not isinstance(i, bool)) for i in index):
            return c.one(_sliced(input.shape, c.result.shape, _plain(index)), input)
    elif not tensors_in_any(args, kwargs):
        return _narrow(c, input, *args, **kwargs)
    return _probe(c, input, *args, **kwargs)


def _plain(index: tuple[Any, ...]) -> tuple[Any, ...]:
    """Basic indexing as something that can be looked up: slices as tuples."""
    return tuple((i.start, i.stop, i.step) if isinstance(i, slice) else i for i in index)


def _index(plain: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(slice(*i) if isinstance(i, tuple) else i for i in plain)


@once
def _sliced(inside: torch.Size, outside: torch.Size, plain: tuple[Any, ...]) -> Combine:
    return Combine((Term(Slice(inside, outside, _index(plain))),))


@once
def _placed(inside: torch.Size, outside: torch.Size, plain: tuple[Any, ...]) -> Term:
    return Term(Place(inside, outside, _index(plain)))


def tensors_in_any(*values: Any) -> bool:
    """Whether there is a tensor among the values."""
    return bool(tensors_in(values))


def _narrow(c: Call, input: Tensor, dim: int, start: int = 0, length: int = 1, **kwargs: int) -> Steps:
    dim = dim % input.ndim
    start = kwargs.get("index", start) % max(input.shape[dim], 1) if length else start
    where = start if c.name == "select" else (start, start + length, None)
    return c.one(_sliced(input.shape, c.result.shape, (*(ALL,) * dim, where)), input)


@reads(
    "chunk", "split", "split_with_sizes", "tensor_split", "unbind", "hsplit", "vsplit", "dsplit", "unsafe_chunk",
    "unsafe_split",
)  # fmt: skip
def _split(c: Call, input: Tensor, *args: Any, **kwargs: Any) -> Steps:
    whole = positions(input)
    steps: list[tuple[Tensor, Op, list[int]]] = []
    for piece, places in zip(c.result, c.func(whole, *args, **kwargs), strict=True):
        index = next((i for i in _corners(whole, places) if torch.equal(whole[i], places)), None)
        if index is None:
            steps.append(moved(c, piece, [input], places))
        else:
            steps.append((piece, Combine((Term(Slice(input.shape, piece.shape, index)),)), [c.index(input)]))
    return steps


def _corners(whole: Tensor, places: Tensor) -> Iterator[tuple[Any, ...]]:
    """The slices of a tensor that a piece may be, from the place of its first entry."""
    if not places.numel():
        return
    begin = [int(i) for i in torch.unravel_index(places.flatten()[0].long() - 1, whole.shape)]
    if places.ndim == whole.ndim:
        yield tuple(slice(b, b + n) for b, n in zip(begin, places.shape, strict=True))
    else:
        yield from ((*(slice(None),) * dim, begin[dim]) for dim in range(whole.ndim))


@reads("cat", "concat", "concatenate")
def _cat(c: Call, tensors: Any, dim: int = 0) -> Steps:
    dim = dim % c.result.ndim
    terms, inputs, start = [], [], 0
    for t in tensors:
        if t.ndim == 1 and t.numel() == 0:
            continue
        index = (*(ALL,) * dim, (start, start + t.shape[dim], None))
        start += t.shape[dim]
        terms.append(_placed(t.shape, c.result.shape, index))
        inputs.append(c.index(t))
    return [(c.result, Combine(tuple(terms)), inputs)]


@reads("stack")
def _stack(c: Call, tensors: Any, dim: int = 0) -> Steps:
    dim = dim % c.result.ndim
    terms = [_placed(t.shape, c.result.shape, (*(ALL,) * dim, i)) for i, t in enumerate(tensors)]
    return [(c.result, Combine(tuple(terms)), [c.index(t) for t in tensors])]


@reads("hstack", "vstack", "dstack", "column_stack", "row_stack", "block_diag")
def _stacked(c: Call, *tensors: Any) -> Steps:
    sources, start, codes = flat(tensors), 1, []
    for t in sources:
        codes.append(positions(t, start))
        start += t.numel()
    together = c.func(*codes) if c.name == "block_diag" else c.func(codes)
    return [moved(c, c.result, sources, together)]


@reads("expand", "expand_as", "broadcast_to")
def _expand(c: Call, input: Tensor, *_: Any, **__: Any) -> Steps:
    return c.one(_broadcast(input.shape, c.result.shape), input)


@once
def _broadcast(inside: torch.Size, outside: torch.Size) -> Combine:
    return Combine((Term(Expand(inside, outside)),))


@reads("pad")
def _pad(c: Call, input: Tensor, pad: Any, mode: str = "constant", value: Any = None) -> Steps:
    if mode != "constant":
        return _probe(c, input, pad, mode)
    if any(p < 0 for p in pad):
        return _overwrite(c, input, value or 0.0, lambda x, _: torch.nn.functional.pad(x, pad))
    inner = [slice(None)] * input.ndim
    for k in range(len(pad) // 2):
        axis = input.ndim - 1 - k
        inner[axis] = slice(pad[2 * k], pad[2 * k] + input.shape[axis])
    place = Place(input.shape, c.result.shape, tuple(inner))
    border = torch.full_like(c.result, float(value or 0.0))
    hole = place.apply(torch.ones((1, *input.shape), device=input.device))[0] == 0
    own = torch.arange(border.numel(), device=border.device).view(border.shape)
    filled = Gather(border.shape, border.shape, torch.where(hole, own, torch.full_like(own, -1)).flatten())
    return [(c.result, Combine((Term(place), Term(filled))), [c.index(input), c.constant(border)])]


@reads(
    "flip", "fliplr", "flipud", "roll", "repeat", "tile", "repeat_interleave", "pixel_shuffle", "pixel_unshuffle",
    "channel_shuffle", "native_channel_shuffle", "unfold", "gather", "index_select", "take", "rot90",
    "diagonal", "tril", "triu", "take_along_dim", "masked_select", "as_strided", "diag_embed", "diag", "max_unpool1d",
    "max_unpool2d", "max_unpool3d", "unfold_copy", "diagflat",
)  # fmt: skip
def _probe(c: Call, input: Tensor, *args: Any, **kwargs: Any) -> Steps:
    if any(c.tracked(a) for a in (*flat(args), *kwargs.values())):
        return None
    places = positions(input)
    if c.name == "as_strided":
        places = torch.empty_strided(tuple(input.shape), input.stride(), dtype=places.dtype).copy_(places)
    return [moved(c, c.result, [input], c.func(places, *args, **kwargs))]


@reads("scatter")
def _scatter(
    c: Call, input: Tensor, dim: int, index: Tensor, src: Any = None, *, value: Any = None, reduce: Any = None
) -> Steps:
    new = value if src is None else src
    if reduce == "add" and isinstance(new, Tensor):
        return scatter_add(c, input, dim, index, new)
    return None if reduce else _overwrite(c, input, new, lambda x, v: x.scatter(dim, index, v))


@reads("index_put")
def _index_put(c: Call, input: Tensor, indices: Any, values: Tensor, accumulate: bool = False) -> Steps:
    if accumulate:
        return added_at(c, input, flat_places(input)[tuple(indices)], values)
    return _overwrite(c, input, values, lambda x, v: x.index_put(indices, v))


@reads("put")
def _put(c: Call, input: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Steps:
    if accumulate:
        return added_at(c, input, (index % max(input.numel(), 1)).view(source.shape), source)
    return _overwrite(c, input, source, lambda x, v: x.put(index, v))


@reads("index_copy")
def _index_copy(c: Call, input: Tensor, dim: int, index: Tensor, source: Tensor) -> Steps:
    return _overwrite(c, input, source, lambda x, v: x.index_copy(dim, index, v))


@reads("index_fill")
def _index_fill(c: Call, input: Tensor, dim: int, index: Tensor, value: Any) -> Steps:
    return _overwrite(c, input, value, lambda x, v: x.index_fill(dim, index, v))


@reads("masked_scatter")
def _masked_scatter(c: Call, input: Tensor, mask: Tensor, source: Tensor) -> Steps:
    return _overwrite(c, input, source, lambda x, v: x.masked_scatter(mask, v))


@reads("select_scatter", "slice_scatter", "diagonal_scatter")
def _piece(c: Call, input: Tensor, src: Tensor, *args: Any, **kwargs: Any) -> Steps:
    return _overwrite(c, input, src, lambda x, v: c.func(x, v, *args, **kwargs))


def _overwrite(c: Call, input: Tensor, new: Any, put: Callable[[Tensor, Any], Tensor]) -> Steps:
    """Some entries of a tensor replaced by those of another one, or by a number; ``put`` does it.

    A constant has an entry of its own for every place that it is put at: samples share no entry.
    """
    if c.tracked(new):
        return [moved(c, c.result, [input, new], put(positions(input), positions(new, 1 + input.numel())))]
    mark = torch.zeros_like(new, dtype=torch.float64) if isinstance(new, Tensor) else 0.0
    kept = put(positions(input), mark)
    places = positions(c.result, 1 + input.numel())
    if c.tracked(input) and not bool(kept.any()):  # nothing is left of it but whose entries they are
        return [(c.result, Combine((Term(),)), [c.recorder.constant_like(c.recorder.node(input), c.result, c.name)])]
    return [moved(c, c.result, [input, c.result.detach().clone()], torch.where(kept == 0, places, kept))]
