"""The geometry of a layer in one capture: how sets become masks and how partitions are read and spelled out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nrm.errors import QuestionError
from nrm.questions.reading import Fixed, IndexSpan
from nrm.questions.values import Partition, Set


@dataclass(frozen=True, eq=False)
class Frame:
    """The tensor behind a layer: its shape, the axes of samples and channels, and whose entries are whose.

    ``heads`` is the axis along which attention heads lie one after the other, and how many there are.
    ``edges`` has the graph's edge of every row of a message step (-1: none of them), ``edge_count`` how many there are.
    """

    label: str
    shape: torch.Size
    sample: int | None
    channel: int | None
    batch: int
    device: torch.device
    owner: Tensor | None = None
    heads: tuple[int, int] | None = None
    edges: Tensor | None = None
    edge_count: int = 0

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
        """``(K, batch or 1, *layer shape)`` (broadcastable) in the tensor's own order: ``(K, *tensor shape)``."""
        if self.sample is not None:
            return m.movedim(1, self.sample + 1)
        if self.owner is None or m.shape[1] == 1:
            return m[:, 0]
        wide = m.expand(m.shape[0], m.shape[1], *self.layer_shape)
        return wide.gather(1, self.owner[None, None].expand(m.shape[0], 1, *self.layer_shape))[:, 0]

    # ---- sets ------------------------------------------------------------------------------------------------

    def mask(self, chosen: Set) -> Tensor:
        """A set as a mask ``(1, batch or 1, *layer shape or 1s)`` of booleans."""
        return self._evaluate(chosen.expression)

    def _evaluate(self, e: tuple[Any, ...]) -> Tensor:
        kind = e[0]
        if kind == "all":
            return torch.ones((1, 1, *(1,) * len(self.layer_shape)), dtype=torch.bool, device=self.device)
        if kind == "not":
            return ~self._evaluate(e[1])
        if kind == "index":
            return self._indexed(e[1])
        if kind == "where":
            return self.fitted(e[1].tensor, "mask", torch.bool)
        if kind == "steps":
            raise QuestionError(
                "several steps are not a set of one tensor", got=f"steps {e[1]} of {self.label!r}",
                hint="R(layer.step([...]), ...); inside one step: layer.step(3).layer",
            )  # fmt: skip
        if kind == "part":
            return self._union(Blocks.of(self, e[1]), e[2])
        left, right = self._evaluate(e[1]), self._evaluate(e[2])
        if kind == "and":
            return left & right
        if kind == "or":
            return left | right
        return left ^ right if kind == "xor" else left & ~right

    def _indexed(self, items: tuple[Any, ...]) -> Tensor:
        mask = torch.zeros(self.layer_shape, dtype=torch.bool, device=self.device)
        index = tuple(i.slice if isinstance(i, IndexSpan) else i.tensor.to(self.device) if isinstance(i, Fixed) else i
                      for i in items)  # fmt: skip
        try:
            mask[index] = True
        except (IndexError, ValueError) as error:
            raise QuestionError(
                f"the index does not fit layer {self.label!r}",
                got=f"[{', '.join('...' if i is ... else str(i) for i in items)}]",
                expected=f"an index of shape {self.layer_shape}, which has no sample axis",
            ) from error  # fmt: skip
        return mask[None, None]

    def fitted(self, values: Tensor, what: str, dtype: torch.dtype) -> Tensor:
        """A mask, label map or map of numbers as ``(1, batch or 1, *layer shape)``."""
        values = values.to(self.device)
        binary = not values.is_floating_point() and bool(((values == 0) | (values == 1)).all())
        if (dtype == torch.bool and not binary) or (
            dtype == torch.long and (values.is_floating_point() or values.dtype == torch.bool)
        ):
            kind = "booleans" if dtype == torch.bool else "integers"
            raise QuestionError(f"the {what} of layer {self.label!r} is not made of {kind}", got=str(values.dtype))
        per_sample = values.ndim == len(self.layer_shape) + 1
        wanted = (self.batch, *self.layer_shape) if per_sample else self.layer_shape
        try:
            wide = values.to(dtype).expand(wanted)
        except RuntimeError:
            raise QuestionError(
                f"the {what} does not fit layer {self.label!r}", got=f"shape {tuple(values.shape)}",
                expected=f"{self.layer_shape} or what broadcasts to it, or {(self.batch, *self.layer_shape)}",
            ) from None  # fmt: skip
        return wide[None] if per_sample else wide[None, None]

    def _union(self, blocks: Blocks, index: Any) -> Tensor:
        """The blocks at an index, at one of several, or at one of each sample's own."""
        items = index[1:] if isinstance(index, tuple) and index[0] == "any" else (index,)
        if not any(isinstance(i, tuple) and i[0] == "any" for i in items):
            return blocks.masks([blocks.number(i) for i in items]).any(0, keepdim=True)
        if len(items) != self.batch or not all(isinstance(i, tuple) and i[0] == "any" for i in items):
            raise QuestionError(
                f"the sets do not fit the samples at layer {self.label!r}", got=f"{len(items)} entries",
                expected=f"{self.batch} lists, one set per sample",
            )  # fmt: skip
        wide = [self._union(blocks, i).expand(1, self.batch, *self.layer_shape) for i in items]
        return torch.stack([mask[:, sample] for sample, mask in enumerate(wide)], 1)


@dataclass(frozen=True, eq=False)
class Blocks:
    """A partition of a frame: kept axes, or labels; ``picked`` are the numbers of the blocks that are asked for."""

    frame: Frame
    text: str
    axes: tuple[int, ...] | None
    labels: Tensor | None
    full: tuple[int, ...]
    picked: Tensor | None
    signed: bool = True

    @classmethod
    def of(cls, frame: Frame, partition: Partition) -> Blocks:
        """The partition, checked against the frame."""
        axes, labels = _kept_axes(frame, partition), None
        if partition.kind == "edges" and frame.edges is not None:
            labels = _labels_along(frame, 0, frame.edges)
            full: tuple[int, ...] = (frame.edge_count,)
        elif axes is None and partition.kind == "heads":
            axis, count = _heads(frame, partition)
            size = frame.layer_shape[axis]
            labels = _labels_along(frame, axis, torch.arange(size, device=frame.device) // (size // count))
            full = (count,)
        elif axes is None:
            labels = frame.fitted(partition.detail[0].tensor, "label map", torch.long)[0]
            low, high = (int(labels.min()), int(labels.max())) if labels.numel() else (0, -1)
            if low < -1 or high < 0:
                raise QuestionError(
                    f"the label map of layer {frame.label!r} has no groups" if high < 0
                    else f"the label map of layer {frame.label!r} has labels below -1",
                    got=f"labels from {low} to {high}", expected="labels from 0, and -1 for what is left out",
                )  # fmt: skip
            full = (high + 1,)
        else:
            full = tuple(frame.layer_shape[a] for a in axes)
        picked = None
        for choice in partition.chosen:
            picked = torch.arange(math.prod(full)).view(full) if picked is None else picked
            picked = pick(picked, choice, _described(frame, partition), signed=partition.kind != "groups")
        return cls(frame, str(partition), axes, labels, full, picked, partition.kind != "groups")

    @property
    def shape(self) -> tuple[int, ...]:
        """The axes of the result."""
        return self.full if self.picked is None else tuple(self.picked.shape)

    @property
    def count(self) -> int:
        """The number of blocks."""
        return math.prod(self.shape)

    @property
    def is_channels(self) -> bool:
        """Whether the blocks are channels of the tensor behind the layer."""
        return self.axes is not None and self.axes == (self.frame.layer_channel,)

    def refuse_repeats(self) -> None:
        """Complains about a choice in which a block occurs twice."""
        if self.picked is not None and len(set(self.picked.flatten().tolist())) < self.count:
            raise QuestionError("a block is chosen twice", got=self.text, expected="every block at most once")

    def numbering(self) -> Tensor:
        """The number of the block that every neuron is in, ``(batch or 1, *layer shape or 1s)``; -1 for none."""
        if self.labels is not None:
            numbers = self.labels
        else:
            assert self.axes is not None
            order = sorted(range(len(self.axes)), key=self.axes.__getitem__)
            numbers = torch.arange(math.prod(self.full), device=self.frame.device).view(self.full).permute(order)
            numbers = numbers.reshape(1, *(n if a in self.axes else 1 for a, n in enumerate(self.frame.layer_shape)))
        if self.picked is None:
            return numbers
        place = torch.full((math.prod(self.full) + 1,), -1, device=numbers.device)
        place[self.picked.flatten().to(place.device) + 1] = torch.arange(self.count, device=place.device)
        return place[numbers + 1]

    def place(self, row: int) -> Any:
        """The index of a block in the whole partition: a number, one per axis, or None where there are no axes."""
        number = row if self.picked is None else int(self.picked.flatten()[row])
        at = tuple(int(i) for i in torch.unravel_index(torch.tensor(number), self.full)) if self.full else ()
        return None if not at else at[0] if len(at) == 1 else at

    def number(self, index: Any) -> int:
        """The flat number of one block: an index, or a tuple with one index per axis."""
        return _number(index, self.shape, f"{self.text} (layer shape {self.frame.layer_shape})", self.signed)

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
        if self.picked is not None:
            flat = table.reshape(*table.shape[:2], -1)
            table = flat[:, :, self.picked.flatten().to(m.device)].reshape(*flat.shape[:2], *self.shape)
        return table

    def read_product(self, m: Tensor, v: Tensor) -> Tensor:
        """The relevance of every block of every product of two stacks, without forming the products.

        ``(K, batch, *layer shape)`` and ``(J, batch, *layer shape)`` to ``(K J, batch, *shape)``.
        """
        table = self._product_by_label(m, v) if self.labels is not None else self._product_by_axes(m, v)
        table = table.permute(2, 3, 0, 1).flatten(0, 1)
        if self.picked is not None:
            table = table[:, :, self.picked.flatten().to(m.device)]
        return table.reshape(*table.shape[:2], *self.shape)

    def _product_by_axes(self, m: Tensor, v: Tensor) -> Tensor:
        """``(batch, blocks, K, J)``."""
        assert self.axes is not None
        rest = [a for a in range(m.ndim - 2) if a not in self.axes]
        order = [1, *(a + 2 for a in self.axes), 0, *(a + 2 for a in rest)]
        rows = [t.permute(order).reshape(t.shape[1], math.prod(self.full), t.shape[0], -1) for t in (m, v)]
        return rows[0] @ rows[1].mT

    def _product_by_label(self, m: Tensor, v: Tensor) -> Tensor:
        assert self.labels is not None
        labels = self.labels.expand(m.shape[1], *m.shape[2:]).flatten(1)
        table = m.new_zeros(m.shape[1], self.full[0], m.shape[0], v.shape[0])
        for sample in range(m.shape[1]):
            one, other = m[:, sample].flatten(1), v[:, sample].flatten(1)
            for label in range(self.full[0]):
                at = (labels[sample] == label).nonzero()[:, 0]
                table[sample, label] = one[:, at] @ other[:, at].T
        return table

    def channel_labels(self) -> Tensor | None:
        """The block of every channel, ``(batch or 1, channels)``, -1 for none; None if blocks cut through channels."""
        channel = self.frame.layer_channel
        if channel is None or (self.frame.sample is None and self.frame.owner is not None):
            return None
        n = self.frame.layer_shape[channel]
        if self.axes is not None:
            return torch.arange(n, device=self.frame.device)[None] if self.is_channels else None
        assert self.labels is not None
        rows = self.labels.movedim(channel + 1, 1).reshape(self.labels.shape[0], n, -1)
        return rows[:, :, 0] if bool((rows == rows[:, :, :1]).all()) else None

    def gather_channels(self, table: Tensor, axis: int) -> Tensor:
        """The axis of channels of a table ``(K, batch, ...)`` as an axis of these blocks."""
        if self.labels is not None:
            labels = self.channel_labels()
            assert labels is not None
            wide = table.movedim(axis, -1)
            at = labels.expand(table.shape[1], -1).view(1, table.shape[1], *(1,) * (wide.ndim - 3), -1)
            grouped = wide.new_zeros(*wide.shape[:-1], self.full[0] + 1)
            table = grouped.scatter_add(-1, at.expand_as(wide) + 1, wide)[..., 1:].movedim(-1, axis)
        return table if self.picked is None else table.index_select(axis, self.picked.flatten().to(table.device))

    def _sum_by_label(self, m: Tensor) -> Tensor:
        assert self.labels is not None
        stack, batch = m.shape[:2]
        labels = self.labels.expand(batch, *m.shape[2:]).reshape(1, batch, -1).expand(stack, -1, -1)
        table = m.new_zeros(stack, batch, self.full[0] + 1)
        return table.scatter_add(2, labels + 1, m.reshape(stack, batch, -1))[:, :, 1:]

    def masks(self, rows: list[int]) -> Tensor:
        """The masks of some blocks, by number: ``(len(rows), batch or 1, *layer shape or 1s)`` of booleans."""
        device = self.frame.device
        wanted = torch.tensor(rows, dtype=torch.long, device=device)
        if self.picked is not None:
            wanted = self.picked.flatten().to(device)[wanted]
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


def _kept_axes(frame: Frame, partition: Partition) -> tuple[int, ...] | None:
    """The axes of the layer that a partition keeps; None if it goes by labels."""
    ndim, label = len(frame.layer_shape), frame.label
    channel = frame.layer_channel
    if partition.layer.channel_axis is not None:
        channel = _axis(partition.layer.channel_axis, frame)
    if partition.kind == "neurons" or (partition.kind == "edges" and frame.edges is None):
        return tuple(range(ndim))  # edges of attention are all of its frame
    if partition.kind == "channels":
        if channel is None and ndim:
            raise QuestionError(f"the channel axis of layer {label!r} is not known", got=f"shape {frame.layer_shape}",
                                hint=f"R[{label!r}].with_channels(axis), or .axis(axis)")  # fmt: skip
        return () if channel is None else (channel,)
    if partition.kind == "steps":
        raise QuestionError(
            "steps are not blocks of one tensor", got=str(partition), hint="R(layer.steps, ...); flows need one tensor"
        )
    if partition.kind == "positions":
        return tuple(a for a in range(ndim) if a != channel)
    if partition.kind == "axis":
        axes = tuple(_axis(a, frame) for a in partition.detail)
        if len(set(axes)) < len(axes):
            raise QuestionError(f"an axis of layer {label!r} is named twice", got=str(partition))
        return axes
    if partition.kind == "heads":
        axis, count = _heads(frame, partition)
        return (axis,) if frame.layer_shape[axis] == count else None
    return None


def _heads(frame: Frame, partition: Partition) -> tuple[int, int]:
    """The axis of the layer along which heads lie, and how many."""
    asked, shape, label = partition.layer.head_count, frame.layer_shape, frame.label
    if asked is None:
        if frame.heads is None:
            raise QuestionError(
                f"the attention heads of layer {label!r} are not known", got=f"shape {shape}",
                expected="what an output projection receives from attention, such as R['...o_proj'].input",
                hint=f"R[{label!r}].with_heads(count), if its channels are heads one after the other",
            )  # fmt: skip
        axis, count = frame.heads
        return axis - (frame.sample is not None and frame.sample < axis), count
    channel = frame.layer_channel
    if partition.layer.channel_axis is not None:
        channel = _axis(partition.layer.channel_axis, frame)
    if channel is None or asked < 1 or shape[channel] % asked:
        size = "no channels" if channel is None else f"{shape[channel]} channels"
        raise QuestionError(
            f"the channels of layer {label!r} cannot be divided into heads", got=f"{asked} heads, {size}",
            expected="a number that divides the channels",
        )  # fmt: skip
    return channel, asked


def _labels_along(frame: Frame, axis: int, labels: Tensor) -> Tensor:
    """A label map that changes along one axis only."""
    shape = frame.layer_shape
    return labels.view(1, *(-1 if a == axis else 1 for a in range(len(shape)))).expand(1, *shape)


def _axis(axis: int, frame: Frame) -> int:
    ndim = len(frame.layer_shape)
    if not -ndim <= axis < ndim:
        raise QuestionError(
            f"layer {frame.label!r} has no axis {axis}", got=f"axis {axis} of shape {frame.layer_shape}",
            expected=f"an axis from 0 to {ndim - 1}, counted without the sample axis" if ndim else "no axis at all",
        )  # fmt: skip
    return axis % ndim


def _number(index: Any, shape: tuple[int, ...], text: str, signed: bool = True) -> int:
    """The flat number of one block. Negative indices count from the end, except for labels, where -1 means left out."""
    at = tuple(index[1:]) if isinstance(index, tuple) else (index,)
    sizes = shape if isinstance(index, tuple) else (math.prod(shape),)
    if len(at) != len(sizes) or not all(-n * signed <= i < n for i, n in zip(at, sizes, strict=True)):
        got = at[0] if len(at) == 1 else at
        limit = sizes[0] - 1 if len(sizes) == 1 else f"{tuple(n - 1 for n in sizes)}"
        raise QuestionError(f"{text}: no such block", got=str(got), expected=f"an index up to {limit}")
    flat = 0
    for i, n in zip(at, sizes, strict=True):
        flat = flat * n + i % n
    return flat


def pick(numbers: Tensor, choice: tuple[Any, ...], text: str, signed: bool) -> Tensor:
    """Some of the blocks: a list of them along one axis, or a choice for every axis."""
    if choice[0] == "any":
        at = [_number(i, tuple(numbers.shape), text, signed) for i in choice[1:]]
        return numbers.flatten()[torch.tensor(at, dtype=torch.long)]
    items = list(choice[1:])
    if Ellipsis in items:
        where = items.index(Ellipsis)
        items[where : where + 1] = [IndexSpan(None, None, None)] * (numbers.ndim - len(items) + 1)
    if len(items) > numbers.ndim:
        raise QuestionError(f"{text}: too many indices", got=str(len(items)), expected=f"at most {numbers.ndim}")
    axis = 0
    for item in items:
        n = numbers.shape[axis]
        if isinstance(item, int):
            numbers = numbers.select(axis, _number(item, (n,), text, signed))
            continue
        rows = range(n)[item.slice] if isinstance(item, IndexSpan) else _listed(item.tensor)
        at = [_number(i, (n,), text, signed) for i in rows]
        numbers = numbers.index_select(axis, torch.tensor(at, dtype=torch.long))
        axis += 1
    return numbers


def _listed(indices: Tensor) -> list[int]:
    found: list[int] = (indices.nonzero()[:, 0] if indices.dtype == torch.bool else indices.flatten()).tolist()
    return found


def _described(frame: Frame, partition: Partition) -> str:
    return f"{partition} (layer shape {frame.layer_shape})"
