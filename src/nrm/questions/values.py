"""Layers, sets and partitions: what a question is made of. They hold no tensors of a network.

Singular is an event, plural is an axis: ``a.channel(3)`` is the set of neurons of channel 3, ``a.channels`` the
partition of the layer into channels. Both can be written before any measure exists, compared, stored, and used with
every measure. ``str`` is their short form, ``repr`` the code that makes them again.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from torch import Tensor

from nrm.errors import QuestionError
from nrm.questions.reading import Fixed, IndexSpan, integer, is_many, read_indices, read_item

Indices = int | Sequence[int] | Sequence[Sequence[int]] | Tensor
SYMBOLS = {"and": "&", "or": "|", "xor": "^", "minus": "-"}


SKIP = "<skip>"
"""Stands for the consumer of a skip connection; no module can have this name."""

EDGES = "<edges>"
"""Stands for what travels along the edges of a graph layer, on its way to the sum over neighbours, or of attention."""


@dataclass(frozen=True, repr=False)
class Layer:
    """One layer by name: the output of a module call, a functional op, an input, a bias, a sink.

    As an argument of ``R(...)`` it is a free variable: every neuron by itself. ``facts`` is what a measure knows of
    it; it is shown, and makes no difference otherwise.

    >>> print(Layer("features.26").channels)
    features.26.channels
    """

    name: str
    consumer: str | None = None
    channel_axis: int | None = None
    head_count: int | None = None
    facts: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        for name in (self.name, "" if self.consumer is None else self.consumer):
            if not isinstance(name, str):
                raise QuestionError("a layer is known by its name", got=repr(name), expected="a text")

    @property
    def channels(self) -> Partition:
        """The partition into channels."""
        return Partition(self, "channels")

    @property
    def positions(self) -> Partition:
        """The partition into positions: all axes but the channels', in their own shape."""
        return Partition(self, "positions")

    @property
    def heads(self) -> Partition:
        """The partition into attention heads, where an output projection receives them: ``R["...o_proj"].input``."""
        return Partition(self, "heads")

    def axis(self, *axes: int) -> Partition:
        """The partition along one or more axes of the layer (counted without the sample axis)."""
        return Partition(self, "axis", tuple(integer(a, "an axis") for a in axes))

    def groups(self, labels: Any) -> Partition:
        """The partition given by integer labels of the layer's shape (or a shape that broadcasts to it from the right).

        Labels may be shared or one map per sample (then they have all axes); -1 leaves a neuron out.
        """
        return Partition(self, "groups", (Fixed.of(labels, "labels"),))

    @property
    def steps(self) -> Partition:
        """The steps of a recurrent layer (or of a module that is called several times), each with its hidden state.

        Steps are different tensors: a walk passes through many of them, so that their relevances do not sum to 1.
        """
        return Partition(self, "steps")

    def step(self, index: Indices) -> Set:
        """The hidden state after a step, as an event: all walks that pass through it. Negative ones count from the end.

        A list is passing through any of them, a list of lists one set of steps per sample. ``.layer`` of a single step
        is the hidden state as a layer, with its channels.

        >>> print(Layer("lstm").step(80))
        lstm.step(80)
        >>> print(Layer("lstm").step(80).layer.channels)
        lstm.step#80.channels
        """
        read = read_indices(index)
        if isinstance(read, int):
            return Layer(f"{self.name}.step#{read}").all
        return Set(self, ("steps", read))

    @property
    def edges(self) -> Partition:
        """The partition of a graph layer's message step into the edges of the graph, in the order of ``edge_index``.

        The relevance of an edge is that of the walks that take it in this layer. Loops that the layer adds by itself
        are not among them, nor is what a node keeps by another way (a root weight, a bias): the edges have the mass of
        the layer less these. An edge that the layer does not use has 0.

        Of attention: ``R(attn.edges)`` is ``(batch, heads, queries, keys)``, the walks through a head from a key's
        position to a query's, by the value and by the attention weight together. A row has the relevance of the head's
        result at that query. They are asked alone, or in a :func:`stack` of many layers.
        """
        return Partition(Layer(self.name, EDGES), "edges")

    def edge(self, index: Indices) -> Set:
        """The walks along an edge of a graph in this layer: its number in ``edge_index``, or a list of them.

        An edge of attention is a head, a query and a key: ``attn.edge((0, 5, 2))``.
        """
        return Set(Layer(self.name, EDGES), ("part", self.edges, read_indices(index)))

    def channel(self, index: Indices) -> Set:
        """The neurons of a channel, of several (a list), or of one set of channels per sample (a list of lists)."""
        return Set(self, ("part", self.channels, read_indices(index)))

    def position(self, index: Any) -> Set:
        """The neurons at a position: a flat index, or a tuple with one index per axis.

        A list of them is their union, a list of lists one set per sample.
        """
        return Set(self, ("part", self.positions, read_indices(index)))

    def head(self, index: Indices) -> Set:
        """The neurons of an attention head, of several (a list), or of one set per sample (a list of lists)."""
        return Set(self, ("part", self.heads, read_indices(index)))

    def group(self, labels: Any, index: Indices) -> Set:
        """The neurons with a label, with one of several labels, or with one set of labels per sample."""
        return Set(self, ("part", self.groups(labels), read_indices(index)))

    def where(self, mask: Any) -> Set:
        """The neurons where a boolean mask holds. It broadcasts from the right; one mask per sample has all axes."""
        return Set(self, ("where", Fixed.of(mask, "a mask")))

    @property
    def all(self) -> Set:
        """The whole layer as a set."""
        return Set(self, ("all",))

    def __getitem__(self, index: Any) -> Set:
        """The neurons at an index of the layer without its sample axis: ``a[:, 4:8, 4:8]``."""
        items = index if isinstance(index, tuple) else (index,)
        return Set(self, ("index", tuple(read_item(i) for i in items)))

    __iter__ = None  # an index is a set, so counting up would never end

    @property
    def input(self) -> Layer:
        """What the module of this name receives."""
        return Layer(f"{self.name}.input")

    @property
    def q(self) -> Layer:
        """The queries of an attention module, as its scores read them: ``(heads, positions, channels)``.

        Walks through ``q`` and ``k`` change where a head looks, those through ``v`` what it moves. A module of that
        name, ``attn.q``, is that module's output.
        """
        return Layer(f"{self.name}.q")

    @property
    def k(self) -> Layer:
        """The keys of an attention module, as its scores read them: ``(heads, positions, channels)``."""
        return Layer(f"{self.name}.k")

    @property
    def v(self) -> Layer:
        """The values of an attention module, as they are multiplied with attention weights: as :attr:`q` is."""
        return Layer(f"{self.name}.v")

    @property
    def skip(self) -> Layer:
        """The skip connection of this block: the edge of the only plain term into its addition."""
        return Layer(self.name, consumer=SKIP)

    def with_channels(self, axis: int) -> Layer:
        """The layer with another axis (counted without the sample axis) as its channels."""
        return replace(self, channel_axis=integer(axis, "an axis"), facts="")

    def with_heads(self, count: int) -> Layer:
        """The layer with its channels divided into so many attention heads, one after the other."""
        return replace(self, head_count=integer(count, "a number of heads"), facts="")

    @property
    def place(self) -> tuple[str, str | None]:
        """The tensor or edge that is meant, whatever its channels."""
        return (self.name, self.consumer)

    def __str__(self) -> str:
        name = self.name if self.consumer in (None, SKIP, EDGES) else f"{self.name} -> {self.consumer}"
        name = f"{name}.skip" if self.consumer == SKIP else name
        return name + self._changes()

    def __repr__(self) -> str:
        if self.name in ("input", "output") and self.consumer is None:
            name = f"nrm.{self.name}"
        elif self.consumer in (None, SKIP, EDGES):
            name = f"nrm.layer({self.name!r})" + (".skip" if self.consumer == SKIP else "")
        else:
            name = f"nrm.layer({self.name!r}, {self.consumer!r})"
        return name + self._changes()

    def _changes(self) -> str:
        channels = "" if self.channel_axis is None else f".with_channels({self.channel_axis})"
        return channels + ("" if self.head_count is None else f".with_heads({self.head_count})")

    def _repr_html_(self) -> str:
        facts = f" <small>{html.escape(self.facts)}</small>" if self.facts else ""
        return f"<code>{html.escape(str(self))}</code>{facts}"

    def __bool__(self) -> NoReturn:
        no_truth(self)

    def __and__(self, other: Any) -> NoReturn:
        raise QuestionError(
            "a layer is not a set", got=repr(self), hint=".all is the whole layer, .channel(i) a part of it"
        )

    __or__ = __xor__ = __sub__ = __rand__ = __ror__ = __rxor__ = __rsub__ = __and__

    def __invert__(self) -> NoReturn:
        raise QuestionError("a layer is not a set", got=f"~{self!r}", hint="~a.channel(3) is the rest of a layer")


@dataclass(frozen=True, repr=False)
class Set:
    """A set of neurons of one layer. ``& | ~ ^ -`` are set algebra inside the layer.

    >>> a = Layer("conv")
    >>> print(a[:, 4:8, 4:8] & ~a.channel(3))
    conv[:, 4:8, 4:8] & ~conv.channel(3)
    """

    layer: Layer
    expression: tuple[Any, ...]
    sample: int | None = None

    def of_sample(self, sample: int) -> Set:
        """The set as a question about one sample of a batch: ``R(...)`` answers for that sample only."""
        return replace(self, sample=integer(sample, "a sample"))

    def __and__(self, other: Set) -> Set:
        return self._with("and", other)

    def __or__(self, other: Set) -> Set:
        return self._with("or", other)

    def __xor__(self, other: Set) -> Set:
        return self._with("xor", other)

    def __sub__(self, other: Set) -> Set:
        return self._with("minus", other)

    def __invert__(self) -> Set:
        return Set(self.layer, ("not", self.expression), self.sample)

    def __bool__(self) -> NoReturn:
        no_truth(self)

    def __str__(self) -> str:
        return _show(str, self.layer, self.expression)

    def __repr__(self) -> str:
        text = _show(repr, self.layer, self.expression)
        return text if self.sample is None else f"({text}).of_sample({self.sample})"

    def _repr_html_(self) -> str:
        return f"<code>{html.escape(str(self))}</code>"

    def _with(self, operator: str, other: Any) -> Set:
        if not isinstance(other, Set):
            raise QuestionError(
                f"a set combines with sets only, not with a {type(other).__name__}", got=repr(other),
                hint=".all is a whole layer, .where(mask) the set of a mask, nrm.visits(set) combines with formulas",
            )  # fmt: skip
        if other.layer.place != self.layer.place:
            raise QuestionError(
                "sets of different layers do not combine by operators",
                got=f"{self.layer!r} and {other.layer!r}",
                hint="wrap them in nrm.visits, or pass both to R(...) for their joint relevance",
            )
        samples = {s for s in (self.sample, other.sample) if s is not None}
        if len(samples) > 1:
            raise QuestionError("sets of different samples do not combine", got=f"{self!r} and {other!r}")
        return Set(self.layer, (operator, self.expression, other.expression), next(iter(samples), None))


@dataclass(frozen=True, repr=False)
class Partition:
    """A layer cut into blocks; as an argument of ``R(...)`` it becomes an axis of the result.

    ``a.channels[7]`` is an event, ``a.channels[[3, 7]]`` an axis of two, ``a.channels[:8]`` an axis of eight. Where
    blocks have several axes, they are indexed one by one: ``a.positions[2, 3]``, ``a.positions[4:8, 4:8]``.
    """

    layer: Layer
    kind: str = "neurons"
    detail: tuple[Any, ...] = ()
    chosen: tuple[tuple[Any, ...], ...] = ()

    def __getitem__(self, index: Any) -> Any:
        items = index if isinstance(index, tuple) else (index,)
        if any(isinstance(i, slice) or i is Ellipsis or (isinstance(index, tuple) and is_many(i)) for i in items):
            return self._choose(("axes", *(read_item(i) for i in items)))
        read = read_indices(index)
        if (
            isinstance(read, tuple)
            and read[0] == "any"
            and not any(isinstance(i, tuple) and i[0] == "any" for i in read)
        ):
            return self._choose(read)
        if self.kind == "steps" and isinstance(read, int) and not self.chosen:
            return self.layer.step(read)
        return Set(self.layer, ("part", self, read))

    __iter__ = None

    def _choose(self, choice: tuple[Any, ...]) -> Partition:
        return replace(self, chosen=(*self.chosen, choice))

    def __bool__(self) -> NoReturn:
        no_truth(self)

    def __str__(self) -> str:
        return _show_partition(str(self.layer), self)

    def __repr__(self) -> str:
        return _show_partition(repr(self.layer), self)

    def _repr_html_(self) -> str:
        return f"<code>{html.escape(str(self))}</code>"


@dataclass(frozen=True, repr=False)
class Stack:
    """Parts of several layers on one axis, in this order; see :func:`stack`."""

    partitions: tuple[Partition, ...]

    def __len__(self) -> int:
        return len(self.partitions)

    def __bool__(self) -> NoReturn:
        no_truth(self)

    def __str__(self) -> str:
        return f"stack({', '.join(map(str, self.partitions))})"

    def __repr__(self) -> str:
        inside = ", ".join(map(repr, self.partitions))
        return f"nrm.stack({inside})  # a walk visits several of its blocks: their relevances need not add up to 1"

    def _repr_html_(self) -> str:
        return f"<code>{html.escape(repr(self))}</code>"


def stack(*partitions: Partition | Layer) -> Stack:
    """Parts of several layers on one axis: ``R(s, s)`` for ``s = nrm.stack(a.channels, b.channels)`` is the interaction
    graph of all these channels. The edges of attention steps of one shape keep it: ``R(nrm.stack(*edges))`` is
    ``(batch, layers, heads, queries, keys)``.

    A walk visits a block in every layer it passes, so the axis need not add up to 1. Two blocks of one layer have their
    intersection's relevance in common: each its own on the diagonal, 0 elsewhere.

    >>> a, b = Layer("a"), Layer("b")
    >>> print(stack(a.channels, b.channels[:3]))
    stack(a.channels, b.channels[:3])
    """
    if not partitions:
        raise QuestionError("nothing to stack", hint="nrm.stack(a.channels, b.channels)")
    return Stack(tuple(read_partitions(partitions)))


def read_partitions(given: Sequence[object]) -> list[Partition]:
    """Partitions of layers, checked; a layer stands for all its neurons.

    >>> read_partitions([Layer("a"), Layer("b").channels])
    [nrm.layer('a'), nrm.layer('b').channels]
    """
    for one in given:
        if not isinstance(one, Layer | Partition):
            raise QuestionError(
                "not a partition", got=repr(one)[:120], expected="partitions such as a.channels",
                hint=f"R[{one[:80]!r}].channels" if isinstance(one, str) else None,
            )  # fmt: skip
    return [Partition(one) if isinstance(one, Layer) else one for one in given if isinstance(one, Layer | Partition)]


def not_asked(argument: object) -> QuestionError:
    """The refusal of something that is no argument of a question, such as the name of a layer instead of the layer."""
    hint = None
    if isinstance(argument, str):
        hint = f"R[{argument[:80]!r}] is the layer of that name; nrm.query(text, name=set) reads a formula"
    return QuestionError(
        "not something that can be asked about", got=f"{type(argument).__name__}: {argument!r}"[:120],
        expected="a layer R['name'], a set (.channel(3), [...]), a partition (.channels), or a formula", hint=hint,
    )  # fmt: skip


# ---- showing ---------------------------------------------------------------------------------------------------------


def no_truth(value: Any) -> NoReturn:
    """Neither sets nor formulas are true or false."""
    raise QuestionError(
        f"a {type(value).__name__.lower()} has no truth value", got=repr(value),
        hint="combine sets with & | ~ instead of and, or, not; ask R(...) for their relevance",
    )  # fmt: skip


def _show_item(item: Any) -> str:
    if item is Ellipsis:
        return "..."
    if isinstance(item, tuple) and not isinstance(item, IndexSpan):
        inner = ", ".join(map(_show_item, item[1:]))
        return f"[{inner}]" if item[0] == "any" else f"({inner})"
    return str(item)


def _show_choice(choice: tuple[Any, ...]) -> str:
    return f"[{', '.join(map(_show_item, choice[1:]))}]" if choice[0] == "axes" else f"[{_show_item(choice)}]"


def _show_partition(layer: str, partition: Partition) -> str:
    kind = "" if partition.kind == "neurons" else f".{partition.kind}"
    detail = f"({', '.join(map(str, partition.detail))})" if partition.detail else ""
    return f"{layer}{kind}{detail}" + "".join(map(_show_choice, partition.chosen))


def _show(text: Callable[[Layer], str], layer: Layer, e: tuple[Any, ...], inner: bool = False) -> str:
    kind = e[0]
    if kind == "steps":
        return f"{text(layer)}.step({_show_item(e[1])})"
    stem, mark, number = layer.name.rpartition(".step#")
    if kind == "all" and mark and layer.consumer is None and layer.channel_axis is None:
        return f"{text(Layer(stem))}.step({number})"
    if kind == "all":
        return f"{text(layer)}.all"
    if kind == "where":
        return f"{text(layer)}.where({e[1]})"
    if kind == "index":
        return f"{text(layer)}[{', '.join(map(_show_item, e[1]))}]"
    if kind == "part":
        return _show_block(text, e[1], e[2])
    if kind == "not":
        return f"~{_show(text, layer, e[1], True)}"
    both = f"{_show(text, layer, e[1], True)} {SYMBOLS[kind]} {_show(text, layer, e[2], True)}"
    return f"({both})" if inner else both


def _show_block(text: Callable[[Layer], str], partition: Partition, index: Any) -> str:
    plain = ["channels", "positions", "heads", "edges"] + ["groups"] * (text is str)  # for the eye, without labels
    if partition.kind in plain and not partition.chosen:
        return f"{text(partition.layer)}.{partition.kind[:-1]}({_show_item(index)})"
    at = ", ".join(map(str, index[1:])) if isinstance(index, tuple) and index[0] == "at" else _show_item(index)
    return f"{_show_partition(text(partition.layer), partition)}[{at}]"
