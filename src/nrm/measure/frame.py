"""The geometry of a layer in one capture: how sets become masks and how partitions are read and spelled out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nrm.errors import QuestionError
from nrm.measure.values import Layer, Partition, Set


@dataclass(frozen=True, eq=False)
class Frame:
    """The tensor behind a layer: its shape, the axes of samples and channels, and whose entries are whose."""

    label: str
    shape: torch.Size
    sample: int | None
    channel: int | None
    batch: int
    device: torch.device
    owner: Tensor | None = None

    @property
    def layer_shape(self) -> tuple[int, ...]:
        """The shape without the sample axis."""
        return tuple(n for a, n in enumerate(self.shape) if a != self.sample)

    @property
    def layer_channel(self) -> int | None:
        """The channel axis, counted without the sample axis."""
        if self.channel is None:
            return None
        return self.channel - (self.sample is not None and self.sample < self.channel)

    def to_samples(self, m: Tensor) -> Tensor:
        """``(K, *tensor shape)`` as ``(K, batch, *layer shape)``."""
        if self.sample is not None:
            return m.movedim(self.sample + 1, 1)
        if self.owner is None:
            return m[:, None]
        mine = self.owner[None] == torch.arange(self.batch, device=m.device).view(-1, *(1,) * len(self.shape))
        return m[:, None] * mine

    def from_samples(self, m: Tensor) -> Tensor:
        """``(K, batch or 1, *layer shape)`` (broadcastable) in the tensor's own order of axes, ``(K, *tensor shape)``."""
        if self.sample is not None:
            return m.movedim(1, self.sample + 1)
        if self.owner is None or m.shape[1] == 1:
            return m[:, 0]
        wide = m.expand(m.shape[0], m.shape[1], *self.layer_shape)
        return wide.gather(1, self.owner[None, None].expand(m.shape[0], 1, *self.layer_shape))[:, 0]

    # ---- sets ------------------------------------------------------------------------------------------------

    def mask(self, chosen: Set) -> Tensor:
        """A set as a mask ``(1, batch or 1, *layer shape or 1s)`` of booleans."""
        return self._evaluate(chosen.layer, chosen.expression)

    def _evaluate(self, layer: Layer, e: tuple[Any, ...]) -> Tensor:
        kind = e[0]
        if kind == "all":
            return torch.ones((1, 1, *(1,) * len(self.layer_shape)), dtype=torch.bool, device=self.device)
        if kind == "not":
            return ~self._evaluate(layer, e[1])
        if kind == "index":
            return self._indexed(e[1])
        if kind == "where":
            return self._labels(e[1], "mask", bool_=True)
        if kind == "part":
            return self._blocks_mask(layer, e[1], e[2])
        left, right = self._evaluate(layer, e[1]), self._evaluate(layer, e[2])
        return {
            "and": lambda: left & right,
            "or": lambda: left | right,
            "xor": lambda: left ^ right,
            "minus": lambda: left & ~right,
        }[kind]()

    def _indexed(self, index: tuple[Any, ...]) -> Tensor:
        mask = torch.zeros(self.layer_shape, dtype=torch.bool, device=self.device)
        try:
            mask[index] = True
        except IndexError as error:
            raise QuestionError(
                f"index does not fit layer {self.label!r}", got=str(index), expected=f"shape {self.layer_shape}"
            ) from error
        return mask[None, None]

    def _labels(self, values: Tensor, what: str, bool_: bool = False) -> Tensor:
        """A mask or label map as ``(1, batch or 1, *layer shape)``."""
        values = values.to(self.device)
        if bool_ and values.dtype != torch.bool:
            if values.is_floating_point() or not bool(((values == 0) | (values == 1)).all()):
                raise QuestionError(f"the mask of layer {self.label!r} is not boolean", got=str(values.dtype))
            values = values.bool()
        if not bool_ and (values.is_floating_point() or values.dtype == torch.bool):
            raise QuestionError(f"labels of layer {self.label!r} are not integers", got=str(values.dtype))
        ndim = len(self.layer_shape)
        per_sample = values.ndim == ndim + 1
        target = (self.batch, *self.layer_shape) if per_sample else self.layer_shape
        try:
            wide = values.expand(target)
        except RuntimeError:
            raise QuestionError(
                f"the {what} does not fit layer {self.label!r}", got=f"shape {tuple(values.shape)}",
                expected=f"{self.layer_shape} or what broadcasts to it, or {(self.batch, *self.layer_shape)} per sample",
            ) from None  # fmt: skip
        return wide[None] if per_sample else wide[None, None]

    def _blocks_mask(self, layer: Layer, partition: Partition, index: Any) -> Tensor:
        blocks = Blocks.of(self, partition)
        if isinstance(index, tuple) and len(index) == len(blocks.shape) and len(blocks.shape) > 1:
            index = _flat_index(index, blocks.shape, repr(partition))
        rows = index.tolist() if isinstance(index, Tensor) else index
        if isinstance(rows, int):
            return blocks.masks([rows]).any(0, keepdim=True)
        rows = list(rows)
        if rows and isinstance(rows[0], list | tuple) and not (
            len(blocks.shape) > 1 and all(len(r) == len(blocks.shape) for r in rows) and isinstance(rows[0], tuple)
        ):
            if len(rows) != self.batch:
                raise QuestionError(
                    f"one set per sample for layer {self.label!r}", got=f"{len(rows)} sets", expected=f"{self.batch}"
                )
            masks = [blocks.masks(list(r)).any(0, keepdim=True) for r in rows]
            wide = [m.expand(1, self.batch, *self.layer_shape)[:, b] for b, m in enumerate(masks)]
            return torch.stack(wide, 1)
        flat = [_flat_index(r, blocks.shape, repr(partition)) if isinstance(r, tuple) else int(r) for r in rows]
        if not flat:
            return self._evaluate(layer, ("not", ("all",)))
        return blocks.masks(flat).any(0, keepdim=True)


def _flat_index(index: tuple[int, ...], shape: tuple[int, ...], what: str) -> int:
    for i, n in zip(index, shape, strict=True):
        if not 0 <= i < n:
            raise QuestionError(f"{what}: index out of range", got=str(index), expected=f"below {shape}")
    flat = 0
    for i, n in zip(index, shape, strict=True):
        flat = flat * n + i
    return flat


@dataclass(frozen=True, eq=False)
class Blocks:
    """A partition of a frame: kept axes, or labels; ``chosen`` blocks only, if given."""

    frame: Frame
    axes: tuple[int, ...] | None
    labels: Tensor | None
    full: tuple[int, ...]
    chosen: tuple[int, ...] | None

    @classmethod
    def of(cls, frame: Frame, partition: Partition) -> Blocks:
        """The partition, checked against the frame."""
        ndim, label = len(frame.layer_shape), frame.label
        channel = partition.layer.channel_axis if partition.layer.channel_axis is not None else frame.layer_channel
        axes: tuple[int, ...] | None = None
        labels = None
        if partition.kind == "neurons":
            axes = tuple(range(ndim))
        elif partition.kind == "channels":
            axes = (_axis(channel, ndim, label),) if ndim else ()
        elif partition.kind == "positions":
            axes = tuple(a for a in range(ndim) if a != (None if channel is None else channel % ndim))
        elif partition.kind == "axis":
            axes = tuple(_axis(a, ndim, label) for a in partition.detail)
        elif partition.kind == "groups":
            labels = frame._labels(partition.detail[0], "label map")[0].long()
            if int(labels.min()) < -1:
                raise QuestionError(f"labels of layer {label!r} are below -1", got=str(int(labels.min())))
        else:
            raise QuestionError(f"layer {label!r} has no {partition.kind}", expected="channels, positions, axis, groups")
        if labels is not None:
            full: tuple[int, ...] = (int(labels.max()) + 1,)
        else:
            assert axes is not None
            full = tuple(frame.layer_shape[a] for a in axes)
        return cls(frame, axes, labels, full, _chosen(partition, math.prod(full)))

    @property
    def shape(self) -> tuple[int, ...]:
        """The axes of the result."""
        return self.full if self.chosen is None else (len(self.chosen),)

    @property
    def count(self) -> int:
        """The number of blocks."""
        return math.prod(self.shape)

    def read(self, m: Tensor) -> Tensor:
        """The relevance of every block: ``(K, batch, *layer shape)`` to ``(K, batch, *shape)``."""
        if self.labels is not None:
            table = self._sum_by_label(m)
        else:
            assert self.axes is not None
            drop = [a + 2 for a in range(m.ndim - 2) if a not in self.axes]
            table = m.sum(drop) if drop else m
            order = sorted(self.axes)
            table = table.permute(0, 1, *(order.index(a) + 2 for a in self.axes))
        if self.chosen is not None:
            table = table.flatten(2)[:, :, list(self.chosen)]
        return table

    def _sum_by_label(self, m: Tensor) -> Tensor:
        assert self.labels is not None
        stack, batch = m.shape[:2]
        labels = self.labels.expand(batch, *m.shape[2:]).reshape(1, batch, -1).expand(stack, -1, -1)
        table = m.new_zeros(stack, batch, self.full[0] + 1)
        return table.scatter_add(2, labels + 1, m.reshape(stack, batch, -1))[:, :, 1:]

    def masks(self, rows: list[int]) -> Tensor:
        """The masks of some blocks: ``(len(rows), batch or 1, *layer shape or 1s)`` of booleans."""
        total = math.prod(self.full)
        if self.chosen is not None:
            rows = [self.chosen[r] for r in rows]
        for r in rows:
            if not isinstance(r, int) or not 0 <= r < total:
                raise QuestionError(
                    f"layer {self.frame.label!r} has no block {r!r}", expected=f"an index from 0 to {total - 1}"
                )
        device = self.frame.device
        wanted = torch.tensor(rows, device=device)
        if self.labels is not None:
            return self.labels[None] == wanted.view(-1, *(1,) * self.labels.ndim)
        assert self.axes is not None
        ndim = len(self.frame.layer_shape)
        mask = torch.ones((len(rows), 1, *(1,) * ndim), dtype=torch.bool, device=device)
        for axis, n in reversed(list(zip(self.axes, self.full, strict=True))):
            coordinate = wanted % n
            wanted = wanted // n
            shape = [1] * ndim
            shape[axis] = n
            line = torch.arange(n, device=device).view(1, 1, *shape)
            mask = mask & (line == coordinate.view(-1, *(1,) * (ndim + 1)))
        return mask


def _axis(axis: int | None, ndim: int, label: str) -> int:
    if axis is None or not -ndim <= axis < ndim:
        raise QuestionError(f"layer {label!r} has no such axis", got=str(axis), expected=f"an axis from 0 to {ndim - 1}")
    return axis % ndim


def _chosen(partition: Partition, total: int) -> tuple[int, ...] | None:
    chosen: Any = partition.chosen
    if chosen is None:
        return None
    if chosen[0] == "slice":
        return tuple(range(total)[slice(*chosen[1:])])
    for i in chosen:
        if not 0 <= i < total:
            raise QuestionError(f"{partition!r}: no such block", got=str(i), expected=f"0 to {total - 1}")
    return tuple(chosen)
