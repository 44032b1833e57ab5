"""A linear step on one channel at a time: as many fields as channels, for about the arithmetic of one.

A field that is 0 outside one channel meets only that channel's weights. Spelling all such fields out and mapping them
in full would cost as many steps as there are channels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nrm.operators.convolution import Convolution, FlatConvolution
from nrm.operators.maps import Dense, LinearMap


def transpose_by_channel(map: LinearMap, d: Tensor, rows: Sequence[int]) -> Tensor:
    """``V^T`` of a field restricted to one output channel, for each of these: ``(K, *outside)`` to ``(K R, *inside)``.

    All of them cost about as much as one transpose of the whole field.
    """
    if isinstance(map, Dense):
        at = torch.as_tensor(rows, device=d.device)
        wide = d.index_select(-1, at).movedim(-1, 1)[..., None]
        weight = map.weight.index_select(0, at)
        return (wide * weight.view(-1, *(1,) * (d.ndim - 2), weight.shape[1])).flatten(0, 1)
    assert isinstance(map, Convolution | FlatConvolution)
    if isinstance(map, FlatConvolution):
        return map.transpose((d[:, None] * _one_hot(map.full, d, rows)).flatten(0, 1))
    return _by_channel(map, d, rows, toward_input=True).flatten(0, 1)


def apply_by_channel(map: LinearMap, x: Tensor, rows: Sequence[int]) -> Tensor:
    """``V`` of a field restricted to one input channel, for each of these: ``(K, *inside)`` to ``(R K, *outside)``."""
    if isinstance(map, Dense):
        at = torch.as_tensor(rows, device=x.device)
        wide = x.index_select(-1, at).movedim(-1, 0)[..., None]
        weight = map.weight.T.index_select(0, at)
        return (wide * weight.view(-1, *(1,) * (x.ndim - 1), weight.shape[1])).flatten(0, 1)
    assert isinstance(map, Convolution | FlatConvolution)
    if isinstance(map, FlatConvolution):
        return map.apply((_one_hot(map.full, x, rows)[:, None] * x).flatten(0, 1))
    return _by_channel(map, x, rows, toward_input=False).transpose(0, 1).flatten(0, 1)


def _one_hot(conv: Convolution, field: Tensor, rows: Sequence[int]) -> Tensor:
    """``(R, *field shape or 1s)``: 1 on one channel."""
    axis = field.ndim - conv.weight.ndim + 1
    channels = torch.arange(field.shape[axis], device=field.device)
    hot = channels == torch.as_tensor(rows, device=field.device)[:, None]
    shape = [1] * (field.ndim - 1)
    shape[axis - 1] = -1
    return hot.to(field.dtype).view(len(rows), *shape)


def _by_channel(conv: Convolution, field: Tensor, rows: Sequence[int], toward_input: bool) -> Tensor:
    """``(K, R, *other side)``; a convolution of one channel at a time, within the groups it belongs to."""
    goal = conv.inside if toward_input else conv.outside
    space = conv.weight.ndim - 2
    axis = field.ndim - space - 1
    inputs, outputs = (s[len(s) - space - 1] // conv.groups for s in (conv.inside, conv.outside))
    here, there = (outputs, inputs) if toward_input else (inputs, outputs)
    result = (field.new_zeros if conv.groups > 1 else field.new_empty)(field.shape[0], len(rows), *goal)
    for r, channel in enumerate(rows):
        group = channel // here
        one = field.select(axis, channel).reshape(-1, 1, *field.shape[axis + 1 :])
        weight = _weights_of(conv, channel, group, toward_input)
        many = _scattered if toward_input != conv.transposed else _gathered
        found = many(conv, one, weight, goal[len(goal) - space :])
        place = result[:, r].narrow(len(goal) - space, group * there, there)
        place.copy_(found.reshape(place.shape))
    return result


def _weights_of(conv: Convolution, channel: int, group: int, toward_input: bool) -> Tensor:
    """The weights between one channel and all channels of its group on the other side: ``(others, 1, *offsets)``."""
    outer, inner = conv.weight.shape[0] // conv.groups, conv.weight.shape[1]
    if toward_input != conv.transposed:  # the channel is on the first axis of the weight
        return conv.weight[channel][:, None]
    return conv.weight[group * outer : (group + 1) * outer, channel % inner][:, None]


def _gathered(conv: Convolution, one: Tensor, weight: Tensor, space: Sequence[int]) -> Tensor:
    """A convolution of one channel."""
    return _convolved(one, weight, conv.stride, conv.padding, conv.dilation)


def _scattered(conv: Convolution, one: Tensor, weight: Tensor, space: Sequence[int]) -> Tensor:
    """The adjoint of a convolution to one channel: the field with zeros between its strides, under turned weights."""
    axes = range(2, one.ndim)
    stuffed = one.new_zeros(*one.shape[:2], *((one.shape[a] - 1) * conv.stride[a - 2] + 1 for a in axes))
    places: list[slice] = [slice(None)] * 2 + [slice(None, None, s) for s in conv.stride]
    stuffed[tuple(places)] = one
    edges: list[int] = []
    for a in reversed(axes):
        reach = conv.dilation[a - 2] * (weight.shape[a] - 1)
        before = reach - conv.padding[a - 2]
        edges += [before, space[a - 2] + reach - before - stuffed.shape[a]]
    padded = torch.nn.functional.pad(stuffed, edges)  # a negative edge cuts off
    return _convolved(padded, weight.flip(*axes), (1,) * len(axes), (0,) * len(axes), conv.dilation)


def _convolved(
    x: Tensor, weight: Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> Tensor:
    space = weight.ndim - 2
    y: Tensor = torch.ops.aten.convolution.default(
        x, weight, None, list(stride), list(padding), list(dilation), False, [0] * space, 1
    )
    return y
