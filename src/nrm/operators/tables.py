"""All pairs of channels of a linear step at once, by one weight gradient instead of one pass per channel.

For a step ``y = V x`` and two fields ``a`` on its inputs and ``d`` on its outputs, the sums over positions of
``a[i] V[i, j] d[j]`` per input channel i and output channel j are the weight times its own gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nrm.operators.convolution import Convolution, FlatConvolution
from nrm.operators.dense import Dense
from nrm.operators.maps import LinearMap


def has_table(map: LinearMap) -> bool:
    """Whether a map mixes channels in a way that one contraction can tabulate."""
    return isinstance(map, Convolution | FlatConvolution | Dense)


def channel_table(map: LinearMap, a: Tensor, d: Tensor) -> Tensor:
    """``(K, *inside)`` and ``(K, *outside)`` to ``(K, batch, input channels, output channels)``.

    A stack of one on either side goes with every element of the other. Without a batch axis the batch is one.
    """
    stack = max(a.shape[0], d.shape[0])
    a, d = (t.expand(stack, *t.shape[1:]) for t in (a, d))
    if isinstance(map, Dense):
        return _dense_table(map, a, d)
    assert isinstance(map, Convolution | FlatConvolution)
    full = map.full if isinstance(map, FlatConvolution) else map
    weight = None if isinstance(map, FlatConvolution) else map.weight
    batched = len(map.inside) == full.weight.ndim
    fields = [(x if batched else x[:, None]).flatten(0, 1) for x in (a, d)]
    tables = [_one(full, weight, *(f[n : n + 1] for f in fields)) for n in range(len(fields[0]))]
    return torch.stack(tables).reshape(stack, -1, *tables[0].shape)


def _dense_table(map: Dense, a: Tensor, d: Tensor) -> Tensor:
    """Positions between batch and features are summed; the weight comes last."""
    if len(map.inside) == 1:
        a, d = a[:, None], d[:, None]
    rows = [t.flatten(2, -2) if t.ndim > 3 else t for t in (a, d)]
    if rows[0].ndim == 3:
        pairs = rows[0][..., :, None] * rows[1][..., None, :]
    else:
        pairs = torch.einsum("kbti,kbto->kbio", *rows)
    return pairs * map.weight.T


def _one(conv: Convolution, weight: Tensor | None, a: Tensor, d: Tensor) -> Tensor:
    """The table of one sample: weight times weight gradient, summed over offsets, groups put on the block diagonal."""
    gradient = conv.weight_gradient(a, d)
    table = (gradient if weight is None else gradient * weight).flatten(2).sum(2)
    if not conv.transposed:  # (out, in / groups)
        table = table.T
    if conv.groups == 1:
        return table
    inputs, outputs = a.shape[1] // conv.groups, d.shape[1] // conv.groups
    full = table.new_zeros(a.shape[1], d.shape[1])
    for g in range(conv.groups):
        rows, columns = slice(g * inputs, (g + 1) * inputs), slice(g * outputs, (g + 1) * outputs)
        full[rows, columns] = table[rows] if conv.transposed else table[:, columns]
    return full
