"""Answers as tables: the axes of a question with their names, numbers and labels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from nrm.errors import QuestionError
from nrm.measure.labels import Names, names_at
from nrm.measure.places import Places, edge_shape
from nrm.memory import fitting
from nrm.questions import Argument, Asked, Blocks, Layer, Partition, Question, Set, Stack, spans_steps, steps_of
from nrm.tables import SAMPLE, Results, unique

if TYPE_CHECKING:
    from nrm.measure.measure import Measure

RELEVANCE = "relevance"
VISITS = ("avoided", "visited")
"""The two places on the axis of an event."""


class Axis(NamedTuple):
    """One axis of an answer: its text, its length, the numbers of its places where they are chosen, and their names."""

    text: str
    size: int
    numbers: tuple[int, ...] | None = None
    labels: Names | None = None


def tabulate(R: Asked, places: Places, question: Question, columns: Mapping[str, Tensor]) -> Results:
    """The table of a question, of its relevance or of columns in its shape."""
    sample = question.sample(R.samples)
    if sample is not None and len(R) > 1:
        R = R.sample(sample - R.samples[0])
    axes = question_axes(R.labels, places, question.asked)
    tensors = dict(columns) or {RELEVANCE: R.ask(question)}
    first = Axis(SAMPLE, len(R), None if R.samples == range(len(R)) else tuple(R.samples))
    events = [Axis(str(a), 2, None, VISITS) for a in question.events]
    kinds = {name: _fitting(name, tensor, [first, *axes], [first, *events]) for name, tensor in tensors.items()}
    return make_results(tensors, kinds)


def answers_by_block(
    R: Measure, partition: Partition, arguments: Sequence[Argument], given: Argument | Sequence[Argument] | None
) -> Iterator[tuple[Set, Tensor]]:
    """Every block of a partition and the answer about it, in chunks that fit into memory."""
    shape = Blocks.of(R.inner.places.frame_of(partition.layer), partition).shape
    places = [at[0] if len(at) == 1 else at for at in itertools.product(*map(range, shape))]
    if not places:
        return
    blocks = [partition[at] for at in places]
    fits = fitting(R.inner.memory, R.plan(blocks[0], *arguments, given=given).nbytes)
    for begin in range(0, len(places), fits):
        table = R(partition[places[begin : begin + fits]], *arguments, given=given)
        yield from zip(blocks[begin : begin + fits], table.unbind(1), strict=True)


def make_results(tensors: Mapping[str, Tensor], kinds: Mapping[str, Sequence[Axis]]) -> Results:
    """Tensors by name, with the axes of each."""
    axes: dict[str, tuple[str, ...]] = {}
    labels: dict[str, Names] = {}
    numbers: dict[str, tuple[int, ...]] = {}
    for name, found in kinds.items():
        axes[name] = tuple(unique([axis.text for axis in found]))
        for text, axis in zip(axes[name], found, strict=True):
            if axis.labels is not None:
                labels[text] = axis.labels
            if axis.numbers is not None:
                numbers[text] = axis.numbers
    return Results(dict(tensors), axes, labels=labels, numbers=numbers)


def _fitting(name: str, tensor: object, whole: list[Axis], events: list[Axis]) -> list[Axis]:
    """The axes that a column has: those of the answer or, of a question about events alone, one for each of them."""
    shape = tuple(tensor.shape) if isinstance(tensor, Tensor) else None
    for axes in (whole, events) if len(whole) == 1 and len(events) > 1 else (whole,):
        if shape == tuple(axis.size for axis in axes):
            return axes
    expected = ", ".join(f"{axis.text} {axis.size}" for axis in whole)
    raise QuestionError(
        f"the column {name!r} does not fit the question", got="no tensor" if shape is None else f"shape {shape}",
        expected=f"a tensor in the shape of its answer: {expected}",
    )  # fmt: skip


def question_axes(labels: Mapping[str, Names], places: Places, asked: Sequence[Any]) -> list[Axis]:
    """The axes of an answer after that of samples: arguments in their order, then those of conditions."""
    found: list[Axis] = []
    for argument in asked:
        if isinstance(argument, Stack):
            found += _stacked(places, argument)
        elif isinstance(argument, Layer | Partition):
            found += _axes(labels, places, Partition(argument) if isinstance(argument, Layer) else argument)
    return found


EDGES = ("head", "query", "key")
"""The axes of the edges of attention."""


def _axes(labels: Mapping[str, Names], places: Places, partition: Partition) -> list[Axis]:
    text = str(partition)
    if spans_steps(partition):
        steps = steps_of(partition, len(places.steps(partition.layer))).tolist()
        return [Axis(text, len(steps), None if steps == list(range(len(steps))) else tuple(steps))]
    blocks = Blocks.of(places.frame_of(partition.layer), partition)
    attends = places.attention(partition.layer) is not None
    named = names_at(places, labels, partition.layer) if labels and not attends else None
    words = EDGES if attends and len(blocks.shape) == len(EDGES) else None
    axes = []
    for n, size in enumerate(blocks.shape):
        numbers = _numbers(blocks, n)
        # Blocks that were chosen one by one from several axes have one axis for all of them, and names for none.
        straight = blocks.axes is not None and len(blocks.full) == len(blocks.shape)
        own = straight and named is not None and blocks.axes is not None and blocks.axes[n] == named[1]
        word = text if words is None else f"{text} {words[n]}"
        axes.append(Axis(word, size, numbers, _chosen(named[0], numbers) if own and named is not None else None))
    return axes


def _numbers(blocks: Blocks, n: int) -> tuple[int, ...] | None:
    """The numbers of the places of one axis of a partition, where blocks are chosen."""
    if blocks.picked is None or not blocks.picked.numel():
        return None
    if blocks.picked.ndim != len(blocks.full):
        return tuple(blocks.picked.flatten().tolist()) if blocks.picked.ndim == 1 else None
    at = torch.unravel_index(blocks.picked, blocks.full)[n].movedim(n, 0).reshape(blocks.picked.shape[n], -1)
    return tuple(at[:, 0].tolist())


def _chosen(names: Names, numbers: tuple[int, ...] | None) -> Names:
    """The names of the places that are chosen."""
    if numbers is None:
        return names

    def some(own: Sequence[Any]) -> tuple[str, ...]:
        return tuple(str(own[i]) if i < len(own) else "" for i in numbers)

    return tuple(some(own) for own in names) if names and isinstance(names[0], tuple) else some(names)


def _stacked(places: Places, stack: Stack) -> list[Axis]:
    edges = edge_shape(places, stack.partitions)
    if edges is not None:
        layers = tuple(str(partition) for partition in stack.partitions)
        words = EDGES if len(edges) == len(EDGES) else ("edges",) * len(edges)
        return [Axis(str(stack), len(stack), None, layers), *map(Axis, words, edges)]
    names: list[str] = []
    for partition in stack.partitions:
        blocks = Blocks.of(places.resolve(partition.layer)[1], partition)
        places_in = map(blocks.place, range(math.prod(blocks.shape)))
        names += [str(partition.layer) if at is None else f"{partition.layer} {at}" for at in places_in]
    return [Axis(str(stack), len(names), None, tuple(names))]
