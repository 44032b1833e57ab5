"""Layers, sets and partitions: what a question is made of. They hold no tensors of a network.

Singular is an event, plural is an axis: ``a.channel(3)`` is the set of neurons of channel 3, ``a.channels`` the
partition of the layer into channels. Both can be written before any measure exists and used with every measure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

from nrm.errors import QuestionError

Indices = int | Sequence[int] | Sequence[Sequence[int]] | Tensor


@dataclass(frozen=True)
class Layer:
    """One layer by name: the output of a module call, a functional op, an input, a bias, a sink.

    As an argument of ``R(...)`` it is a free variable: every neuron by itself.

    >>> Layer("features.26").channels
    features.26.channels
    """

    name: str
    consumer: str | None = None
    channel_axis: int | None = None

    @property
    def channels(self) -> Partition:
        """The partition into channels."""
        return Partition(self, "channels")

    @property
    def positions(self) -> Partition:
        """The partition into positions: all axes but the channels', in their own shape."""
        return Partition(self, "positions")

    def axis(self, *axes: int) -> Partition:
        """The partition along one or more axes of the layer (counted without the sample axis)."""
        return Partition(self, "axis", axes)

    def groups(self, labels: Any) -> Partition:
        """The partition given by integer labels of the layer's shape (or a shape that broadcasts to it from the right).

        Labels may be shared or one map per sample (then they have all axes); -1 leaves a neuron out.
        """
        return Partition(self, "groups", (torch.as_tensor(labels),))

    def channel(self, index: Indices) -> Set:
        """The neurons of a channel, of several, or of one set of channels per sample."""
        return Set(self, ("part", Partition(self, "channels"), index))

    def position(self, index: Indices) -> Set:
        """The neurons at a position (a flat index, or a tuple with one index per axis), or at several."""
        return Set(self, ("part", Partition(self, "positions"), index))

    def group(self, labels: Any, index: Indices) -> Set:
        """The neurons with a label, or with one of several labels."""
        return Set(self, ("part", self.groups(labels), index))

    def where(self, mask: Any) -> Set:
        """The neurons where a boolean mask holds. It broadcasts from the right; one mask per sample has all axes."""
        return Set(self, ("where", torch.as_tensor(mask)))

    @property
    def all(self) -> Set:
        """The whole layer as a set."""
        return Set(self, ("all",))

    @property
    def none(self) -> Set:
        """The empty set."""
        return Set(self, ("not", ("all",)))

    def __getitem__(self, index: Any) -> Set:
        """The neurons at an index of the layer without its sample axis: ``a[:, 4:8, 4:8]``."""
        return Set(self, ("index", index if isinstance(index, tuple) else (index,)))

    @property
    def input(self) -> Layer:
        """What the module of this name receives."""
        return Layer(f"{self.name}.input")

    @property
    def skip(self) -> Layer:
        """The skip connection of this block: the edge of the only plain term into its addition."""
        return Layer(self.name, consumer="skip")

    def with_channels(self, axis: int) -> Layer:
        """The same layer with another axis (counted without the sample axis) as its channels."""
        return Layer(self.name, self.consumer, axis)

    def __repr__(self) -> str:
        if self.consumer == "skip":
            return f"{self.name}.skip"
        return self.name if self.consumer is None else f"{self.name} -> {self.consumer}"

    def __bool__(self) -> NoReturn:
        _no_truth(self)

    def __and__(self, other: Any) -> NoReturn:
        raise QuestionError("a layer is not a set", got=repr(self), hint=f"{self!r}.all, or .channel(i), or [...]")

    __or__ = __xor__ = __sub__ = __and__

    def __invert__(self) -> NoReturn:
        raise QuestionError("a layer is not a set", got=f"~{self!r}", hint=f"~{self!r}.all is the empty set")


@dataclass(frozen=True, eq=False)
class Set:
    """A set of neurons of one layer. ``& | ~ ^ -`` are set algebra inside the layer.

    >>> a = Layer("conv")
    >>> a[:, 4:8, 4:8] & ~a.channel(3)
    conv[:, 4:8, 4:8] & ~conv.channel(3)
    """

    layer: Layer
    expression: tuple[Any, ...]

    def __and__(self, other: Set) -> Set:
        return self._with("and", other)

    def __or__(self, other: Set) -> Set:
        return self._with("or", other)

    def __xor__(self, other: Set) -> Set:
        return self._with("xor", other)

    def __sub__(self, other: Set) -> Set:
        return self._with("minus", other)

    def __invert__(self) -> Set:
        return Set(self.layer, ("not", self.expression))

    def __bool__(self) -> NoReturn:
        _no_truth(self)

    def __repr__(self) -> str:
        return _show(self.layer, self.expression)

    def _with(self, operator: str, other: Any) -> Set:
        if not isinstance(other, Set):
            raise QuestionError(f"a set combines with sets only, not with {type(other).__name__}", got=repr(other))
        if other.layer != self.layer:
            raise QuestionError(
                "sets of different layers do not combine by operators",
                got=f"{self.layer!r} and {other.layer!r}",
                hint="pass both to R(...) for their joint relevance, or wrap them in nrm.visits(...)",
            )
        return Set(self.layer, (operator, self.expression, other.expression))


@dataclass(frozen=True, eq=False)
class Partition:
    """A layer cut into blocks; as an argument of ``R(...)`` it becomes an axis of the result.

    ``a.channels[7]`` is an event, ``a.channels[[3, 7]]`` an axis of two.
    """

    layer: Layer
    kind: str = "neurons"
    detail: tuple[Any, ...] = ()
    chosen: tuple[int, ...] | None = None

    def __getitem__(self, index: Any) -> Set | Partition:
        if isinstance(index, list | range | slice) or (isinstance(index, Tensor) and index.ndim == 1):
            if self.chosen is not None:
                raise QuestionError("these blocks were chosen already", got=repr(self))
            if isinstance(index, slice):
                return Partition(self.layer, self.kind, self.detail, ("slice", index.start, index.stop, index.step))  # type: ignore[arg-type]
            return Partition(self.layer, self.kind, self.detail, tuple(int(i) for i in index))
        return Set(self.layer, ("part", self, index))

    def __bool__(self) -> NoReturn:
        _no_truth(self)

    def __repr__(self) -> str:
        detail = f"({', '.join(map(str, self.detail))})" if self.kind == "axis" else ""
        detail = "(labels)" if self.kind == "groups" else detail
        if self.chosen is not None and self.chosen[0] == "slice":  # type: ignore[comparison-overlap]
            chosen = f"[{_slice(slice(*self.chosen[1:]))}]"
        else:
            chosen = "" if self.chosen is None else str(list(self.chosen))
        kind = "" if self.kind == "neurons" else f".{self.kind}"
        return f"{self.layer!r}{kind}{detail}{chosen}"


def _no_truth(value: Any) -> NoReturn:
    raise QuestionError(
        f"a {type(value).__name__.lower()} has no truth value", got=repr(value),
        hint="combine with & | ~ instead of and, or, not; ask R(...) for its relevance",
    )  # fmt: skip


def _slice(s: slice) -> str:
    text = f"{'' if s.start is None else s.start}:{'' if s.stop is None else s.stop}"
    return text if s.step is None else f"{text}:{s.step}"


def _show(layer: Layer, e: tuple[Any, ...], inner: bool = False) -> str:
    kind = e[0]
    if kind == "all":
        return f"{layer!r}.all"
    if kind == "where":
        return f"{layer!r}.where(mask)"
    if kind == "index":
        shown = ", ".join(_slice(i) if isinstance(i, slice) else "..." if i is Ellipsis else str(i) for i in e[1])
        return f"{layer!r}[{shown}]"
    if kind == "part":
        partition, index = e[1], e[2]
        if partition.kind in ("channels", "positions") and partition.chosen is None:
            return f"{layer!r}.{partition.kind[:-1]}({index})"
        return f"{partition!r}[{index}]"
    if kind == "not":
        return f"~{_show(layer, e[1], True)}"
    symbol = {"and": "&", "or": "|", "xor": "^", "minus": "-"}[kind]
    text = f"{_show(layer, e[1], True)} {symbol} {_show(layer, e[2], True)}"
    return f"({text})" if inner else text
