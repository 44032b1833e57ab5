"""From the arguments of ``R(...)`` to stops: the sites of a question, with what is fixed and what is free at each."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from nrm.errors import QuestionError
from nrm.questions.frame import Blocks, Frame
from nrm.questions.sweep import Site
from nrm.questions.values import Layer, Partition, Set, not_asked
from nrm.steps import Network, Pairing, outer


@dataclass(eq=False)
class Stop:
    """One site of a question, with the sets that restrict it and the partitions that are free there."""

    site: Site
    frame: Frame
    sets: list[Set] = field(default_factory=list)
    blocks: list[Blocks] = field(default_factory=list)
    axes: list[int] = field(default_factory=list)

    @property
    def count(self) -> int:
        """How many combinations of blocks this site has."""
        return math.prod(b.count for b in self.blocks)

    def mask(self) -> Tensor | None:
        """The intersection of the sets as ``(1, *shape)`` in the tensor's own axes; None is everything."""
        return self.frame.from_samples(self.set_mask()) if self.sets else None

    def set_mask(self) -> Tensor:
        """The intersection of the sets as ``(1, batch or 1, *layer shape or 1s)``."""
        total = self.frame.mask(self.sets[0])
        for chosen in self.sets[1:]:
            total = total & self.frame.mask(chosen)
        return total

    def block_masks(self, rows: Sequence[int]) -> Tensor:
        """The masks of some block combinations, ``(len(rows), *shape)``, the sets included."""
        total: Tensor | None = None
        left = self.count
        for blocks in self.blocks:
            left //= blocks.count
            mask = self.frame.from_samples(blocks.masks([(r // left) % blocks.count for r in rows]))
            total = mask if total is None else total & mask
        assert total is not None
        chosen = self.mask()
        return total if chosen is None else total & chosen

    def own_masks(self, rows: Tensor) -> Tensor:
        """The masks of every sample's own blocks, ``(stack, *shape)`` for rows ``(stack, batch)``; none where -1."""
        total = (rows >= 0).view(*rows.shape, *(1,) * len(self.frame.layer_shape)).to(self.frame.device)
        left = self.count
        for blocks in self.blocks:
            left //= blocks.count
            numbers, places = torch.unique((rows.clamp(min=0) // left) % blocks.count, return_inverse=True)
            masks = blocks.masks(numbers.tolist())
            masks = masks.expand(len(numbers), self.frame.batch, *masks.shape[2:])
            total = total & masks[places.to(masks.device), torch.arange(self.frame.batch, device=masks.device)]
        total = total & self.set_mask() if self.sets else total
        return self.frame.from_samples(total)

    def group_masks(self, member: Tensor) -> Tensor:
        """The masks of groups of blocks, ``(stack, *shape)``: ``member`` marks each sample's own, by block number."""
        number: Tensor | None = None
        outside: Tensor | None = None
        for blocks in self.blocks:
            own = blocks.numbering()
            outside = own < 0 if outside is None else outside | (own < 0)
            number = own if number is None else number * blocks.count + own
        assert number is not None
        assert outside is not None
        number = number.masked_fill(outside, self.count)
        number = number.expand(self.frame.batch, *number.shape[1:])
        padded = torch.nn.functional.pad(member, (0, 1)).to(number.device)
        flat = padded.gather(2, number.flatten(1).expand(len(member), -1, -1))
        masks = flat.view(len(member), *number.shape)
        return self.frame.from_samples(masks & self.set_mask() if self.sets else masks)

    @property
    def channels(self) -> bool:
        """Whether the blocks are channels and nothing else, which can travel together."""
        return len(self.blocks) == 1 and self.blocks[0].is_channels and not self.site.port

    def numbers(self, rows: Sequence[int]) -> list[int]:
        """The channels of some blocks."""
        picked = self.blocks[0].picked
        return list(rows) if picked is None else picked.flatten()[list(rows)].tolist()

    def read_parts(self, parts: Sequence[Pairing]) -> Tensor | None:
        """The relevance of every combination of blocks, ``(K, batch, *block axes)``; None is 0."""
        mask, tables = self.mask(), []
        for message, value in parts:
            if mask is not None:
                message = message * mask
            many = value is not None and min(message.shape[0], value.shape[0]) > 1
            tables.append(self._read_product(message, value) if value is not None and many and len(self.blocks) < 2
                          else self.read(message if value is None else outer(message, value)))  # fmt: skip
        return sum(tables[1:], tables[0]) if tables else None

    def _read_product(self, message: Tensor, value: Tensor) -> Tensor:
        fields = [t.expand(t.shape[0], *self.frame.shape) for t in (message, value)]
        m, v = (self.frame.to_samples(t) for t in fields)
        if self.blocks:
            return self.blocks[0].read_product(m, v)
        rows = [t.flatten(2).transpose(0, 1) if t.ndim > 2 else t.T[..., None] for t in (m, v)]
        return (rows[0] @ rows[1].mT).permute(1, 2, 0).flatten(0, 1)

    def read(self, relevance: Tensor) -> Tensor:
        """``(K, *shape)`` to ``(K, batch, *block axes)``: the relevance of every combination of blocks."""
        m = self.frame.to_samples(relevance)
        if not self.blocks:
            return m.flatten(2).sum(2) if m.ndim > 2 else m
        if len(self.blocks) == 1:
            return self.blocks[0].read(m)
        return _cross_table(self.blocks, m)


def frame_at(network: Network, site: Site, label: str | None = None) -> Frame:
    """The geometry of a tensor, of its copy on an edge, or of a drain."""
    node = network.tape.nodes[site.node]
    shape, sample, channel, owner, heads = node.shape, node.sample, node.channel, node.owner, node.heads
    if site.port:
        shape, heads = torch.Size(network.drain_shape(site.node, site.port)), None
    if site.port and site.port != "sink":  # one neuron per sample and channel
        sample, channel, owner = 0 if node.has_samples else None, len(shape) - 1, None
    return Frame(label or node.name, shape, sample, channel, network.tape.batch, node.device, owner, heads)


def _cross_table(blocks: Sequence[Blocks], m: Tensor) -> Tensor:
    """Two or more partitions of one layer: the relevance of every intersection of blocks."""
    first, rest = blocks[0], blocks[1:]
    rows = []
    for r in range(first.count):
        part = m * first.masks([r])[0][None]
        rows.append(rest[0].read(part) if len(rest) == 1 else _cross_table(rest, part))
    table = torch.stack(rows, 2)
    return table.reshape(*table.shape[:2], *first.shape, *table.shape[3:])


def axes_of(stop: Stop) -> list[int]:
    """The sizes of the result axes that a stop contributes."""
    return [n for b in stop.blocks for n in b.shape]


def stops_for(arguments: Sequence[Any], resolve: Callable[[Layer], tuple[Site, Frame]]) -> list[Stop]:
    """The arguments of a question gathered by site: sets intersect, partitions become axes in their order."""
    stops: dict[Site, Stop] = {}
    for position, argument in enumerate(arguments):
        if isinstance(argument, Layer):
            layer, partition, chosen = argument, Partition(argument), None
        elif isinstance(argument, Partition):
            layer, partition, chosen = argument.layer, argument, None
        elif isinstance(argument, Set):
            layer, partition, chosen = argument.layer, None, argument
        else:
            raise not_asked(argument)
        site, frame = resolve(layer)
        stop = stops.setdefault(site, Stop(site, frame))
        if chosen is not None:
            stop.sets.append(chosen)
        else:
            assert partition is not None
            stop.blocks.append(Blocks.of(frame, partition))
            stop.axes.append(position)
    return list(stops.values())


def in_forward_order(partitions: Sequence[Partition], resolve: Callable[[Layer], tuple[Site, Frame]]) -> list[int]:
    """The places of partitions in a list, in the order of the forward pass; each is of a layer of its own."""
    stops = stops_for(partitions, resolve)
    twice = next((stop for stop in stops if len(stop.blocks) > 1), None)
    if twice is not None:
        raise QuestionError(
            "a layer is given twice", got=", ".join(b.text for b in twice.blocks), expected="one partition per layer"
        )
    return [stop.axes[0] for stop in sorted(stops, key=lambda stop: stop.site.order)]
