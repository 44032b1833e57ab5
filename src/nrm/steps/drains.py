"""Drains: biases, offsets and sinks as neurons of their own. A bias or an offset has one per sample and channel."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nrm.capture import Node, Tape

PORTS = ("bias", "offset", "sink")


def drain_shape(tape: Tape, node: Node, port: str) -> tuple[int, ...]:
    """The shape of a drain: a sink has one neuron per column, a bias or offset one per sample and channel."""
    if port == "sink":
        return tuple(node.shape)
    lead = (tape.batch,) if _has_owner(node) else ()
    return lead + tuple(node.shape[a] for a in _axes(node))


def drain_index(tape: Tape, node: Node, port: str) -> Tensor:
    """For every neuron of a tensor, the flat index of the neuron of its drain that it gives to; broadcastable."""
    shape = drain_shape(tape, node, port)
    own = torch.arange(math.prod(shape), device=node.device).view(1, *shape)
    return own[0] if port == "sink" else widened(tape, node, own)[0]


def narrowed(tape: Tape, node: Node, m: Tensor, entry: Tensor) -> Tensor:
    """Densities times entries, added up for the neurons of a bias: ``(K, *shape)`` to ``(K, *drain)``.

    An entry that is the same for all neurons of a channel is multiplied with their sum.
    """
    kept = _axes(node)
    own = None if _has_owner(node) else _entry_of_drain(node, entry, kept)
    m = (m if own is not None else m * entry).expand(m.shape[0], *node.shape)
    if _has_owner(node):
        shape = drain_shape(tape, node, "bias")
        at = _owned(node).expand(m.shape[0], -1)
        flat = m.new_zeros(m.shape[0], math.prod(shape)).scatter_add(1, at, m.reshape(m.shape[0], -1))
        return flat.view(m.shape[0], *shape)
    m = m.permute(0, *(a + 1 for a in kept), *(a + 1 for a in range(node.ndim) if a not in kept))
    total = m.flatten(len(kept) + 1).sum(-1) if node.ndim > len(kept) else m
    return total if own is None else total * own


def _entry_of_drain(node: Node, entry: Tensor, kept: list[int]) -> Tensor | None:
    """Entries that differ along the axes of the drain alone, in its axes; None if they differ elsewhere, too."""
    entry = entry.reshape((1,) * (node.ndim - entry.ndim) + tuple(entry.shape))
    if any(n != 1 for a, n in enumerate(entry.shape) if a not in kept):
        return None
    return entry.permute(*kept, *(a for a in range(node.ndim) if a not in kept)).reshape([entry.shape[a] for a in kept])


def widened(tape: Tape, node: Node, v: Tensor) -> Tensor:
    """The adjoint: what the neurons of a bias have, at every neuron that gives to them."""
    kept = _axes(node)
    if _has_owner(node):
        return v.flatten(1).index_select(1, _owned(node)).view(v.shape[0], *node.shape)
    order = sorted(range(len(kept)), key=kept.__getitem__)
    v = v.permute(0, *(a + 1 for a in order))
    return v.reshape(v.shape[0], *(n if a in kept else 1 for a, n in enumerate(node.shape)))


def _has_owner(node: Node) -> bool:
    return node.sample is None and node.owner is not None


def _axes(node: Node) -> list[int]:
    return [a for a in (node.sample, node.channel) if a is not None]


def _owned(node: Node) -> Tensor:
    """The place of every entry among samples and channels, for a tensor without an axis of samples."""
    assert node.owner is not None
    if node.channel is None:
        return node.owner.flatten()
    channels = torch.arange(node.shape[node.channel], device=node.device)
    wide = channels.view(-1, *(1,) * (node.ndim - node.channel - 1))
    return (node.owner * len(channels) + wide).flatten()
