"""Which steps keep channels apart, and which mix them.

Messages of many channels of one tensor travel together, as one message, through steps that keep channels apart. They
need to be spelled out only behind the first step that mixes them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nrm.capture import Node
from nrm.steps import Network


def mixes_channels(network: Network, node: Node) -> bool:
    """Whether a step mixes channels by one linear map that knows them apart, along the axes that its table assumes."""
    if len(node.inputs) != 1:
        return False
    source = network.tape.nodes[node.inputs[0]]
    axes = node.op.table_axes(node.ndim, source.ndim)
    if axes is None or network.rules.leaf_rule(node.index).stays:
        return False
    return (node.channel, source.channel, node.sample) == axes and source.sample == node.sample


def keeps_channels(network: Network, node: Node, position: int) -> bool:
    """Whether channel c of the input reaches channel c of the output only."""
    source = network.tape.nodes[node.inputs[position]]
    if source.channel is None or node.channel is None or source.sample != node.sample:
        return False
    same = source.shape[source.channel] == node.shape[node.channel]
    mixed = network.rules.softmax_axes.get(node.index) == node.channel
    return same and not mixed and node.op.keeps_channels(node, source, position)


def one_hot(node: Node, rows: Sequence[int]) -> Tensor:
    """The masks of some channels of a tensor, ``(len(rows), *shape or 1s)``."""
    assert node.channel is not None
    device = node.device
    at = torch.arange(node.shape[node.channel], device=device) == torch.tensor(list(rows), device=device)[:, None]
    shape = [1] * node.ndim
    shape[node.channel] = -1
    return at.to(node.dtype).view(len(rows), *shape)
