"""A linear step of every block's change by itself, for about the arithmetic of one step of them all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nrm.operators import Convolution, Dense, LinearMap, apply_by_channel

FEW = 64
"""Rows of a dense layer whose blocks differ are worked off one by one up to this number."""

PIECE = 2**24
"""Entries of changes that are spelled out at a time."""


@dataclass(frozen=True, eq=False)
class Parts:
    """``V(change of block k)`` for chosen blocks k, from the changes of all blocks in one tensor and their labels."""

    map: LinearMap
    labels: Tensor

    def apply(self, change: Tensor, rows: Sequence[int]) -> Tensor:
        """``(N, *inside)`` to ``(N, len(rows), *outside)``."""
        if isinstance(self.map, Convolution):
            channels = _single_channels(self.map, self.labels)
            if channels is not None and all(r in channels for r in rows):
                found = apply_by_channel(self.map, change, [channels[r] for r in rows])
                return found.view(len(rows), change.shape[0], *self.map.outside).transpose(0, 1)
        if isinstance(self.map, Dense):
            lines = self.labels.reshape(-1, self.labels.shape[-1])
            if bool((lines == lines[:1]).all()):
                return _dense(self.map.full, change, lines[0], rows)
            if len(lines) <= FEW:
                flat = change.reshape(change.shape[0], len(lines), -1)
                weight = self.map.full
                each = [_dense(weight, flat[:, p], line, rows) for p, line in enumerate(lines)]
                return torch.stack(each, 2).reshape(change.shape[0], len(rows), *self.map.outside)
        return self._spelled_out(change, rows)

    def _spelled_out(self, change: Tensor, rows: Sequence[int]) -> Tensor:
        wanted = torch.tensor(rows, device=change.device).view(-1, *(1,) * self.labels.ndim)
        many = max(1, PIECE // max(1, len(rows) * self.labels.numel()))
        pieces = []
        for begin in range(0, change.shape[0], many):
            stack = torch.where(self.labels == wanted, change[begin : begin + many, None], 0.0)
            pieces.append(self.map.apply(stack.flatten(0, 1)).view(*stack.shape[:2], *self.map.outside))
        return torch.cat(pieces)


def _single_channels(conv: Convolution, labels: Tensor) -> dict[int, int] | None:
    """The channel of every label, if each label is one channel."""
    axis = labels.ndim - conv.weight.ndim + 1
    lines = labels.movedim(axis, 0).reshape(labels.shape[axis], -1)
    first = lines[:, 0].tolist()
    known = [k for k in first if k >= 0]
    if len(set(known)) < len(known) or not bool((lines == lines[:, :1]).all()):
        return None
    return {label: channel for channel, label in enumerate(first) if label >= 0}


def _dense(weight: Tensor, change: Tensor, labels: Tensor, rows: Sequence[int]) -> Tensor:
    """The parts of a dense layer whose blocks are sets of its inputs: ``(N, *lead, in)`` to ``(N, R, *lead, out)``."""
    order = labels.argsort(stable=True)
    begin = torch.searchsorted(labels[order], torch.tensor(rows, device=labels.device))
    end = torch.searchsorted(labels[order], torch.tensor(rows, device=labels.device), right=True)
    sizes = end - begin
    if bool((sizes == sizes[0]).all()) and int(sizes[0]):
        at = order[begin[:, None] + torch.arange(int(sizes[0]), device=order.device)]
        if at.shape[1] == 1:
            single = change[..., at[:, 0]].movedim(-1, 1)[..., None]
            return single * weight.T[at[:, 0]].view(len(rows), *(1,) * (change.ndim - 2), -1)
        blocks = change[..., at].movedim(-2, 0)
        found = torch.bmm(blocks.flatten(1, -2), weight.T[at])
        return found.view(*blocks.shape[:-1], -1).movedim(0, 1)
    found = change.new_zeros(change.shape[0], len(rows), *change.shape[1:-1], weight.shape[0])
    for r, (first, last) in enumerate(zip(begin.tolist(), end.tolist(), strict=True)):
        at = order[first:last]
        found[:, r] = change[..., at] @ weight[:, at].T
    return found
