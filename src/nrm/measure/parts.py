"""What a model reads, as one axis: images by patches, sounds by frames, texts by tokens, and the model's constants."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nrm.capture import Linear, Node, Tape, kind_of_input
from nrm.errors import QuestionError
from nrm.measure.places import Places
from nrm.measure.tokens import join_embeddings
from nrm.operators import convolution_in
from nrm.questions import Layer, Partition, Stack

CONSTANTS = "constants"
"""The name of what no input has: biases, tables of positions, tokens of the model's own."""


@dataclass(frozen=True)
class InputPart:
    """One thing that a model reads: its name, what it is, and the axis of its units, in the shape that they lie in.

    ``kind`` is ``"image"`` (patches in rows and columns), ``"sound"`` (frames), ``"text"`` (tokens) or ``"numbers"``.
    Where the model is given patches in one row, ``square`` by ``square`` of them lie one after the other.
    """

    name: str
    kind: str
    partition: Partition
    shape: tuple[int, ...]
    square: int = 1


@dataclass(frozen=True, repr=False)
class InputParts(Stack):
    """Everything that a model reads as one axis, ``R.parts``: a cut, so that ``R(R.parts)`` adds up to 1.

    The units of each thing come one after the other, the model's constants last: biases, tables of positions, each one
    unit. ``R.parts["image"]`` is one thing alone, ``R.parts.split(answer)`` divides an answer by things.
    """

    read: tuple[InputPart, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the things that are read."""
        return tuple(part.name for part in self.read)

    @property
    def constants(self) -> tuple[Partition, ...]:
        """The model's own constants, each as one unit."""
        return self.partitions[len(self.read) :]

    def __getitem__(self, name: str) -> Partition:
        """The units of one thing, as an axis of its own."""
        found = next((part.partition for part in self.read if part.name == name), None)
        if found is None:
            raise QuestionError("no such part", got=repr(name), expected=", ".join(map(repr, self.names)))
        return found

    __iter__ = None

    def split(self, answer: Tensor, axis: int = 1) -> dict[str, Tensor]:
        """An answer whose ``axis`` are these parts, by things: each in its own shape, all constants summed up.

        ``R.parts.split(R(R.parts))["image"]`` is ``(batch, rows, columns)``, that of ``"text"`` ``(batch, tokens)``.
        """
        sizes = [math.prod(part.shape) for part in self.read]
        count, units = answer.shape[axis], sum(sizes) + len(self.constants)
        if count != units:
            raise QuestionError(
                "the axis has other parts", got=f"{count} entries", expected=f"{units}",
                hint="R.parts.split(R(R.parts))",
            )  # fmt: skip
        pieces = torch.split(answer, [*sizes, len(self.constants)], axis)
        found = {part.name: _shaped(piece, axis, part.shape) for part, piece in zip(self.read, pieces, strict=False)}
        return {**found, CONSTANTS: pieces[-1].sum(axis)}

    def with_constants(self, other: InputParts) -> InputParts:
        """These parts with the constants of another measure of the same model."""
        return InputParts(tuple(dict.fromkeys((*self.partitions, *other.constants))), self.read)

    def __str__(self) -> str:
        units = [f"{part.name} {'x'.join(map(str, part.shape))}" for part in self.read]
        return f"parts({', '.join([*units, f'{len(self.constants)} {CONSTANTS}'])})"

    def __repr__(self) -> str:
        return f"{self}  # a cut: their relevances add up to 1"


def _shaped(table: Tensor, axis: int, shape: tuple[int, ...]) -> Tensor:
    """A table with one axis in a shape of its own."""
    at = axis % table.ndim
    return table.reshape(*table.shape[:at], *shape, *table.shape[at + 1 :])


def find_parts(places: Places, square: int = 1) -> InputParts:
    """What the model of a measure reads.

    Of a text, everything that is added up for a token is the token's, as in ``R.tokens``. ``square`` is what the model
    says of the order of patches.
    """
    tape, reached = places.network.tape, places.network.rules.reached
    found: dict[int, tuple[str, str]] = {}
    below: set[int] = set()
    for node in tape.sources:
        if node.op.kind == "embedding" or node.index in tape.inputs:
            read, summed = _whole(tape, reached, node)
            found.setdefault(read.index, (kind_of_input(node), _name(tape, node)))
            below |= summed
    kinds = [kind for kind, _ in found.values()]
    parts = tuple(
        _part(places, kind if kinds.count(kind) == 1 else name, kind, tape.nodes[i], square)
        for i, (kind, name) in found.items()
    )  # fmt: skip
    inside = {*found, *below}  # what flows into constants down there is counted by the units above them
    rest = tuple(layer.axis() for layer in places.inputs() if places.resolve(layer)[0].node not in inside)
    return InputParts((*(part.partition for part in parts), *rest), parts)


def _whole(tape: Tape, reached: Sequence[bool], node: Node) -> tuple[Node, set[int]]:
    """An input with all that is added to it token by token if it is an embedding, and the tensors below that sum."""
    if node.op.kind != "embedding":
        return node, set()
    joined = join_embeddings(tape, reached if reached[node.index] else [True] * len(tape.nodes), node)
    summed = _everything_before(tape, reached, joined)
    return (node, set()) if summed is None else (joined, summed)


def _name(tape: Tape, node: Node) -> str:
    """What the user calls an input: the keyword it was given by, else the name of its layer."""
    given = (name for name, calls in tape.names.items() if name.startswith("input.") and node.index in calls)
    return next(given, node.name).removeprefix("input.")


def _everything_before(tape: Tape, reached: Sequence[bool], node: Node) -> set[int] | None:
    """The tensors that a sum is made of, if every walk that begins at them goes through it."""
    found, waiting = set[int](), [*node.inputs]
    while waiting:
        i = waiting.pop()
        if i not in found:
            found.add(i)
            waiting += tape.nodes[i].inputs
    around = {*found, node.index}
    closed = all(reader in around for i in found for reader in tape.consumers[i] if reached[reader])
    return found if closed else None


def _part(places: Places, name: str, kind: str, node: Node, square: int) -> InputPart:
    layer, shape, channel = Layer(node.name), node.layer_shape, places.frame(node).layer_channel
    if kind == "image" and len(shape) > 2:
        return _image(places.network.tape, name, node)
    if kind == "numbers" or len(shape) < 2 or channel is None:
        return InputPart(name, kind, Partition(layer), shape)
    kept = tuple(n for axis, n in enumerate(shape) if axis != channel)
    return InputPart(name, kind, layer.positions, kept, square if kind == "image" else 1)


def _image(tape: Tape, name: str, node: Node) -> InputPart:
    """An image by the patches that the model cuts it into; by pixels, if it does not."""
    layer, (*tiles, _, height, width) = Layer(node.name), node.layer_shape
    patch = _patch(tape, node)
    if patch is None:
        return InputPart(name, "image", layer.positions, (*tiles, height, width))
    rows, columns = height // patch[0], width // patch[1]
    y, x = torch.arange(height) // patch[0], torch.arange(width) // patch[1]
    labels = torch.where((y < rows)[:, None] & (x < columns), y[:, None] * columns + x, -1)
    if tiles:
        number = torch.arange(math.prod(tiles)).view(*tiles, 1, 1, 1) * rows * columns
        labels = torch.where(labels < 0, labels, labels + number)
    return InputPart(name, "image", layer.groups(labels), (*tiles, rows, columns))


def _patch(tape: Tape, node: Node) -> tuple[int, int] | None:
    """The height and width of the windows that an image is cut into by a convolution, if they do not overlap."""
    readers = tape.consumers[node.index]
    while len(readers) == 1:
        step = tape.nodes[readers[0]]
        if isinstance(step.op, Linear):
            map = convolution_in(step.op.map)
            if map is None or len(map.stride) != 2 or any(map.padding) or (*map.stride,) != (*map.weight.shape[2:],):
                return None
            return map.stride[0], map.stride[1]
        if step.op.mixes:
            return None
        readers = tape.consumers[step.index]
    return None
