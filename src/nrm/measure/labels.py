"""Names for classes, tokens and channels, used wherever something is shown."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from nrm.errors import NrmError, QuestionError
from nrm.measure.places import Places
from nrm.questions import Blocks, Frame, Layer, Set, Site
from nrm.search import Flows, Found, Walk

Names = tuple[str, ...] | tuple[tuple[str, ...], ...]
"""One name per channel or position, or one such list per sample."""


def read_labels(labels: Mapping[str, Any] | None, frame_of: Callable[[str], Frame]) -> dict[str, Names]:
    """The user's names by layer, checked against the layers they are for.

    Names are a sequence, a mapping from index to name (as ``config.id2label``), or one sequence per sample.
    """
    if labels is not None and not isinstance(labels, Mapping):
        raise QuestionError(
            "labels are given by layer", got=type(labels).__name__, expected='{"output": [...], "input": [...]}'
        )
    found: dict[str, Names] = {}
    for name, given in (labels or {}).items():
        try:
            found[name] = _read(name, given, frame_of(name))
        except NrmError as error:
            raise error.at(f"labels[{name!r}]") from None
    return found


def _read(name: str, given: Any, frame: Frame) -> Names:
    if isinstance(given, Mapping):
        channels = 0 if frame.layer_channel is None else frame.layer_shape[frame.layer_channel]
        return tuple(str(given.get(i, i)) for i in range(channels))
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise QuestionError("not a list of names", got=repr(given)[:80], expected="one text per channel or position")
    if given and all(isinstance(one, list | tuple) for one in given):
        if len(given) != frame.batch:
            raise QuestionError("names and samples do not match", got=f"{len(given)} lists", expected=str(frame.batch))
        return tuple(tuple(map(str, one)) for one in given)
    names = tuple(map(str, given))
    sizes = {*frame.layer_shape, math.prod(frame.layer_shape)}
    if frame.layer_shape and len(names) not in sizes:
        raise QuestionError(
            f"the names do not fit layer {name!r}", got=f"{len(names)} names",
            expected=f"as many as an axis of its shape {frame.layer_shape} has",
        )  # fmt: skip
    return names


def name_of(labels: Mapping[str, Names], layer: str, index: int, sample: int = 0) -> str | None:
    """The name of one channel or position of a layer, if it has one."""
    names = labels.get(layer)
    if names is None:
        return None
    own = names[sample] if names and isinstance(names[0], tuple) else names
    return str(own[index]) if index < len(own) else None


def shared_names(labels: Mapping[str, Names]) -> dict[str, Names]:
    """The names that all samples share."""
    return {layer: names for layer, names in labels.items() if not (names and isinstance(names[0], tuple))}


def names_at(places: Places, labels: Mapping[str, Names], layer: Layer) -> tuple[Names, int] | None:
    """The names of a layer, by whatever name it is known, and the axis of its shape that they are along.

    Where several axes have as many places as there are names, those of the output are classes along its channels, and
    those of other layers are positions. Names of the input are those of ``R.tokens`` too, and of every layer that has
    one position for each token.
    """
    site, frame = places.resolve(layer)
    for known, names in labels.items():
        other, _ = places.resolve(Layer(known))
        count = max(map(len, names)) if names and isinstance(names[0], tuple) else len(names)
        if (other.node, other.port) == (site.node, site.port):
            fits = [axis for axis, size in enumerate(frame.layer_shape) if size == count]
            channel = frame.layer_channel
            if len(fits) > 1:
                fits = [axis for axis in fits if (axis == channel) == (known == "output")] or fits
            return (names, fits[0]) if fits else None
    if "input" in labels and not site.port:
        return _of_tokens(places, labels["input"], site, frame)
    return None


def _of_tokens(places: Places, names: Names, site: Site, frame: Frame) -> tuple[Names, int] | None:
    """The names of tokens and their axis, in a layer that has a position for each of them."""
    node = places.network.tape.nodes[site.node]
    axis = places.token_axes.get(site.node)
    if axis is None or node.sample is None or axis == node.sample:
        return None
    axis -= node.sample < axis
    count = max(map(len, names)) if names and isinstance(names[0], tuple) else len(names)
    return (names, axis) if frame.layer_shape[axis] == count else None


def label_of(places: Places, labels: Mapping[str, Names], chosen: Set, sample: int) -> str | None:
    """The name of a set that is one channel, position or neuron of a layer with names; None if it has none."""
    kind = chosen.expression[0]
    if not labels or kind not in ("part", "index"):
        return None
    found = names_at(places, labels, chosen.layer)
    if found is None:
        return None
    names, axis = found
    at: Any = None
    if kind == "index":
        items = chosen.expression[1]
        at = items[axis] if axis < len(items) and all(type(i) is int for i in items) else None
    else:
        _, partition, index = chosen.expression
        blocks = Blocks.of(places.resolve(chosen.layer)[1], partition)
        single = type(index) is int or (isinstance(index, tuple) and index[0] == "at")
        if single and blocks.axes is not None and axis in blocks.axes:
            place = blocks.place(blocks.number(index))
            at = place[blocks.axes.index(axis)] if isinstance(place, tuple) else place
    own = names[sample] if isinstance(names[0], tuple) else names
    return str(own[at]) if isinstance(at, int) and -len(own) <= at < len(own) else None


def label_flows(flows: Flows, places: Places, labels: Mapping[str, Names], first: int = 0) -> Flows:
    """Flows with the names of their sets; ``first`` is the number of the sample whose names come first."""
    if not labels:
        return flows
    lists = [
        [replace(flow, labels=tuple(label_of(places, labels, s, flow.sample - first) for s in flow)) for flow in found]
        for found in flows
    ]
    return Flows(lists, flows.numbers, flows.gap)


def label_walks(walks: Found[Walk], places: Places, labels: Mapping[str, Names]) -> Found[Walk]:
    """Walks with the names of their neurons."""
    if not labels:
        return walks
    lists = []
    for found in walks:
        named = []
        for walk in found:
            steps = [replace(step, label=label_of(places, labels, step.set, walk.sample)) for step in walk.steps]
            named.append(replace(walk, steps=tuple(steps)))
        lists.append(named)
    return Found("walks", lists, walks.numbers)
