"""A linear step on one channel at a time: as many fields as channels, for about the arithmetic of one.

A field that is 0 outside one channel meets only that channel's weights. Spelling all such fields out and mapping them
in full would cost as many steps as there are channels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nrm.operators.convolution import Convolution, FlatConvolution
from nrm.operators.dense import Dense
from nrm.operators.maps import LinearMap
from nrm.operators.products import product


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
    """``(K, R, *other side)``: for every channel, its windows times its weights, as one batch of matrix products."""
    goal = conv.inside if toward_input else conv.outside
    space = conv.weight.ndim - 2
    axis = field.ndim - space - 1
    at = torch.as_tensor(rows, device=field.device)
    ones = field.index_select(axis, at).reshape(-1, len(rows), *field.shape[axis + 1 :])
    weight = _weights_of(conv, at, toward_input)
    if toward_input != conv.transposed:
        windows = _windows(_stuffed(conv, ones, goal[len(goal) - space :]), conv, (1,) * space)
        weight = weight.flip(*range(2, weight.ndim))
    else:
        windows = _windows(_padded(conv, ones, goal[len(goal) - space :]), conv, conv.stride)
    found = product(weight.flatten(2), windows.flatten(space + 1).flatten(1, space))
    found = found.view(len(rows), -1, ones.shape[0], *goal[len(goal) - space :]).movedim(2, 0)
    full = _in_groups(conv, found, rows, toward_input)
    return full.reshape(field.shape[0], -1, *full.shape[1:]).transpose(1, 2).reshape(field.shape[0], len(rows), *goal)


def _padded(conv: Convolution, ones: Tensor, space: Sequence[int]) -> Tensor:
    """A field with its padding, as far as the windows of these positions reach."""
    edges: list[int] = []
    for a in reversed(range(len(space))):
        reach = conv.dilation[a] * (conv.weight.shape[a + 2] - 1)
        needed = (space[a] - 1) * conv.stride[a] + 1 + reach
        edges += [conv.padding[a], needed - conv.padding[a] - ones.shape[a + 2]]
    return torch.nn.functional.pad(ones, edges)  # a negative edge cuts off


def _weights_of(conv: Convolution, rows: Tensor, toward_input: bool) -> Tensor:
    """The weights between each channel and all channels of its group on the other side: ``(R, others, *offsets)``."""
    if toward_input != conv.transposed:  # the channel is on the first axis of the weight
        return conv.weight.index_select(0, rows)
    outer, inner = conv.weight.shape[0] // conv.groups, conv.weight.shape[1]
    grouped = conv.weight.reshape(conv.groups, outer, *conv.weight.shape[1:])
    return grouped[rows // inner, :, rows % inner]


def _windows(padded: Tensor, conv: Convolution, stride: Sequence[int]) -> Tensor:
    """What a convolution sees of every channel: ``(N, R, *space)`` to ``(R, *offsets, N, *positions)``."""
    space = padded.ndim - 2
    for a in range(space):
        reach = conv.dilation[a] * (conv.weight.shape[a + 2] - 1) + 1
        padded = padded.unfold(a + 2, reach, stride[a])
    seen = padded[(..., *(slice(None, None, d) for d in conv.dilation))]  # type: ignore[index]
    return seen.permute(1, *range(space + 2, 2 * space + 2), 0, *range(2, space + 2))


def _stuffed(conv: Convolution, ones: Tensor, space: Sequence[int]) -> Tensor:
    """A field with zeros between its strides and around it: under turned weights, the adjoint of a convolution."""
    axes = range(2, ones.ndim)
    stuffed = ones.new_zeros(*ones.shape[:2], *((ones.shape[a] - 1) * conv.stride[a - 2] + 1 for a in axes))
    stuffed[(..., *(slice(None, None, s) for s in conv.stride))] = ones  # type: ignore[index]
    edges: list[int] = []
    for a in reversed(axes):
        reach = conv.dilation[a - 2] * (conv.weight.shape[a] - 1)
        before = reach - conv.padding[a - 2]
        edges += [before, space[a - 2] + reach - before - stuffed.shape[a]]
    return torch.nn.functional.pad(stuffed, edges)  # a negative edge cuts off


def _in_groups(conv: Convolution, found: Tensor, rows: Sequence[int], toward_input: bool) -> Tensor:
    """``(N, R, others, *space)`` with the others in their places among all channels of the other side."""
    if conv.groups == 1:
        return found
    others = found.shape[2]
    near = conv.outside if toward_input else conv.inside
    here = near[len(near) - found.ndim + 2] // conv.groups
    full = found.new_zeros(*found.shape[:2], others * conv.groups, *found.shape[3:])
    for r, channel in enumerate(rows):
        group = channel // here
        full[:, r, group * others : (group + 1) * others] = found[:, r]
    return full
