"""Where in a layer something is largest, and which part of the input can reach that place."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from nrm.capture import Node, plain_execution
from nrm.errors import QuestionError
from nrm.measure.measure import Measure
from nrm.questions import Blocks, Formula, Frame, Layer, Partition, Set

Box = tuple[tuple[int, int], ...]
"""Begin and end along every axis."""


def peaks(R: Measure, part: Layer | Partition | Set, values: Tensor) -> tuple[Tensor, Tensor]:
    """The largest value inside every block, and its neuron as a flat index of the layer: ``(batch, blocks)`` both.

    ``values`` is ``(batch, *layer shape)``; of equal values the first neuron counts. A set is one block.
    """
    frame = R.resolve(part if isinstance(part, Layer) else part.layer)[1]
    if isinstance(part, Set):
        inside = frame.mask(part)[0].expand_as(values)
        best, at = values.masked_fill(~inside, -math.inf).flatten(1).max(1, keepdim=True)
        return best, at
    blocks = Blocks.of(frame, Partition(part) if isinstance(part, Layer) else part)
    best, at = _by_label(blocks, values) if blocks.axes is None else _by_axes(blocks, values)
    if blocks.picked is not None:
        chosen = blocks.picked.flatten().to(values.device)
        best, at = best[:, chosen], at[:, chosen]
    return best, at


def meeting_peaks(R: Measure, sets: Sequence[Set], scale: Tensor) -> Tensor:
    """Where sets of several layers meet: the neuron of the layer nearest to the output that has most of their joint
    relevance times ``scale (batch,)``, as a flat index of the layer: ``(batch, 1)``.
    """
    last = last_set(R, sets)
    return peaks(R, last, scaled(R(last.layer, *sets), scale))[1]


def scaled(values: Tensor, scale: Tensor) -> Tensor:
    """Every sample's values times its own number."""
    return values * scale.view(-1, *(1,) * (values.ndim - 1))


def last_set(R: Measure, sets: Sequence[Set]) -> Set:
    """The set of the layer nearest to the output."""
    return max(sets, key=lambda s: R.resolve(s.layer)[0].order)


def block_shape(R: Measure, part: Layer | Partition | Set | Formula) -> tuple[int, ...]:
    """The axes that a part of a question gives to its answers."""
    if isinstance(part, Set | Formula):
        return ()
    partition = Partition(part) if isinstance(part, Layer) else part
    return Blocks.of(R.resolve(partition.layer)[1], partition).shape


def _by_axes(blocks: Blocks, values: Tensor) -> tuple[Tensor, Tensor]:
    axes = blocks.axes or ()
    rest = [a for a in range(values.ndim - 1) if a not in axes]
    lines = values.permute(0, *(a + 1 for a in (*axes, *rest))).reshape(len(values), math.prod(blocks.full), -1)
    numbers = torch.arange(values[0].numel(), device=values.device).view(values.shape[1:])
    numbers = numbers.permute(*axes, *rest).reshape(lines.shape[1:])
    at = _first_largest(lines)[:, :, None]
    return lines.gather(2, at)[:, :, 0], numbers.expand_as(lines).gather(2, at)[:, :, 0]


def _first_largest(lines: Tensor) -> Tensor:
    """Where the largest value of every line is; NumPy has the faster search on processors."""
    if lines.device.type == "cpu" and lines.dtype in (torch.float32, torch.float64):
        return torch.from_numpy(lines.numpy().argmax(2))
    return lines.argmax(2)


def _by_label(blocks: Blocks, values: Tensor) -> tuple[Tensor, Tensor]:
    assert blocks.labels is not None
    flat = values.flatten(1)
    labels = blocks.labels.expand_as(values).flatten(1) + 1
    best = flat.new_full((len(flat), blocks.full[0] + 1), -math.inf).scatter_reduce(1, labels, flat, "amax")
    numbers = torch.arange(flat.shape[1], device=flat.device).expand_as(flat)
    there = torch.where(flat == best.gather(1, labels), numbers, flat.shape[1])
    at = numbers.new_full(best.shape, flat.shape[1]).scatter_reduce(1, labels, there, "amin")
    return best[:, 1:], at[:, 1:].clamp(max=flat.shape[1] - 1)


class Fields:
    """The receptive fields of a layer's neurons: the part of the input from which any path leads there.

    A field is a box, one interval per axis of the input without its channels. Rows and columns of positions are
    followed down once each, through the geometry of the ops alone: no weights, no activations.
    """

    def __init__(self, R: Measure, layer: Layer) -> None:
        site, self._frame = R.resolve(layer)
        source, self._input = R.resolve(Layer("input"))
        self._tape, self._from, self._to = R.inner.tape, site.node, source.node
        self._slices: dict[tuple[int, int], Box] = {}

    def of(self, neuron: int) -> Box:
        """The field of one neuron, given by its flat index in the layer."""
        shape = self._frame.layer_shape
        place = torch.unravel_index(torch.tensor(neuron), shape) if shape else ()
        axes = [a for a in range(len(shape)) if a != self._frame.layer_channel]
        boxes = [self._slice(axis, int(place[axis])) for axis in axes]
        whole = tuple((0, n) for n in _space(self._input))
        for box in boxes:
            whole = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(whole, box, strict=True))
        return whole

    def _slice(self, axis: int, index: int) -> Box:
        if (axis, index) not in self._slices:
            with plain_execution(), torch.no_grad():
                self._slices[axis, index] = self._follow(axis, index)
        return self._slices[axis, index]

    def _follow(self, axis: int, index: int) -> Box:
        nodes = self._tape.nodes
        mark = nodes[self._from].value.new_zeros(1, 1, *self._frame.layer_shape)
        mark.select(axis + 2, index).fill_(1.0)
        batch = [1, self._frame.batch, *self._frame.layer_shape]
        reached = {self._from: self._frame.from_samples(mark.expand(batch))}
        for i in range(self._from, self._to, -1):
            marks = reached.pop(i, None)
            if marks is None:
                continue
            for j, below in zip(nodes[i].inputs, _below(nodes[i], nodes, marks), strict=True):
                known = (below != 0).to(below.dtype)
                reached[j] = known if j not in reached else torch.maximum(reached[j], known)
        if self._to not in reached:
            return tuple((0, 0) for _ in _space(self._input))
        found = self._input.to_samples(reached[self._to])[0, 0] != 0
        if self._input.layer_channel is not None:
            found = found.any(self._input.layer_channel)
        return tuple(_extent(found, a) for a in range(found.ndim))


def _below(node: Node, nodes: Sequence[Node], marks: Tensor) -> list[Tensor]:
    """What can reach the marked entries of a node, for each of its inputs."""
    found = node.op.field(marks, [nodes[i].value for i in node.inputs])
    if found is None:
        raise QuestionError(
            f"the receptive field cannot be followed through {node.name!r}", got=type(node.op).__name__,
            expected="ops that say what their entries are made of",
            hint=f"{type(node.op).__name__}.maps, or entrywise = True, says it",
        )  # fmt: skip
    return found


def _space(frame: Frame) -> list[int]:
    return [n for a, n in enumerate(frame.layer_shape) if a != frame.layer_channel]


def _extent(found: Tensor, axis: int) -> tuple[int, int]:
    line = found.any([a for a in range(found.ndim) if a != axis]) if found.ndim > 1 else found
    places = line.nonzero()[:, 0]
    return (int(places[0]), int(places[-1]) + 1) if len(places) else (0, 0)
