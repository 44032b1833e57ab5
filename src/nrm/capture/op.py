"""The contract of an op: all that a kind of op is asked for, but for what it does to relevance.

An op is asked, never told apart: nothing in the library knows it by its class but builders, which make it, and readers
of one special structure (attention heads, edges of graphs). What its steps do to relevance is said by its family, in
``nrm.steps.families``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from nrm.capture.axes import moves_within, through
from nrm.operators import LinearMap

if TYPE_CHECKING:
    from nrm.capture.tape import Node

Maps = Sequence[LinearMap | None]


class Op:
    """What a recorded call means: which entries its result is made of, and how it is computed from them.

    Most follows from :meth:`maps`. What an op does not say is looked for in another way where there is one (its call is
    repeated, samples and channels are taken to lie where they lay), and is an error that names it where there is none.
    """

    kind: str
    """What a composite, or a user, calls ops like this."""

    # ---- where entries come from -----------------------------------------------------------------------------

    @property
    def entrywise(self) -> bool:
        """Whether it reads tensors of the shape of its result, and every entry is made of those at its position."""
        return False

    @property
    def is_local(self) -> bool:
        """Whether its maps bring entries to entries, as data movement does, and the result is made of nothing else."""
        return self.entrywise

    @property
    def scales(self) -> bool:
        """Whether its inputs scale each other: one that mixes samples is held constant, if another does not."""
        return False

    @property
    def mixes(self) -> bool:
        """Whether it brings several neurons together, which makes a new level: linear, pooling, attention, addition."""
        return False

    def maps(self, count: int) -> Maps | None:
        """The map by which each of ``count`` inputs reaches the result, None for one whose axes stay where they are.

        Samples, channels and receptive fields are followed through these. None instead of a list: it does not say.
        """
        return (None,) * count if self.entrywise else None

    def is_one_to_one(self, position: int) -> bool:
        """Whether every neuron of an input belongs to one neuron of the result, and the other way round."""
        return self.entrywise

    def field(self, marks: Tensor, below: Sequence[Tensor]) -> list[Tensor] | None:
        """Which entries of every input can reach the marked ones, ``(K, *shape)``: not 0. None: it does not say."""
        maps = self.maps(len(below))
        if maps is None:
            return None
        return [marks if map is None else map.support().transpose(marks) for map in maps]

    # ---- channels --------------------------------------------------------------------------------------------

    def channel_axis(self, channels: list[int | None], shape: torch.Size, sample: int | None) -> int | None:
        """The channel axis of the result from those of the inputs: the first that survives, or else the last axis."""
        last = len(shape) - 1
        if last < (sample is not None):
            return None
        kept = next((axis for axis in self.moved_channels(channels) if axis is not None and axis != sample), None)
        return kept if kept is not None and kept <= last else (last if last != sample else None)

    def moved_channels(self, channels: list[int | None]) -> Sequence[int | None]:
        """Where the channel axis of every input goes."""
        maps = self.maps(len(channels))
        return channels if maps is None else [through(map, axis) for map, axis in zip(maps, channels, strict=True)]

    def read_channel(self, ndim: int) -> int | None:
        """The channel axis of what it reads, if it knows: layers with weights do."""
        return None

    def keeps_channels(self, node: Node, below: Node, position: int) -> bool:
        """Whether channel c of an input reaches channel c of the result only; both have as many."""
        maps = self.maps(len(node.inputs)) if self.is_local or self.is_one_to_one(position) else None
        return maps is not None and moves_within(maps[position], below.channel, node.channel)

    def table_axes(self, ndim: int, below: int) -> tuple[int, int, int | None] | None:
        """The channel axes of result and input, and their sample axis, that its table of channels assumes.

        Only a linear map that mixes channels and knows them apart has such a table.
        """
        return None

    # ---- numbers ---------------------------------------------------------------------------------------------

    @property
    def keeps_sign(self) -> bool:
        """Whether no entry of the result is below 0 where none of its inputs is, known without looking."""
        return False

    @property
    def holds(self) -> bool:
        """Whether something in it was computed from its inputs and is held constant, or how it computes is not said."""
        return True

    def compute(self, below: Sequence[Tensor]) -> Tensor | None:
        """What it makes of stacks ``(K, *shape)``, with all that it holds constant; None if it does not say."""
        return None

    def sizes(self, below: Sequence[Tensor]) -> Tensor:
        """The sums of the absolute values of what it adds up: rounding is in proportion to them."""
        return below[0].abs()

    def at(self, points: Sequence[Sequence[float]]) -> Sequence[float] | None:
        """Its values where all entries of its inputs have these values; None if it is no function of entries alone."""
        return None

    def flops(self, shape: torch.Size) -> float:
        """The arithmetic of its step in either direction, for a result of this shape."""
        return float(shape.numel())

    @property
    def tensors(self) -> Sequence[Tensor]:
        """The tensors that were formed for this op alone."""
        return ()
