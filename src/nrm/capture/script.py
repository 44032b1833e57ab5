"""The script of a recorded pass: its calls in their order, so that a later pass can follow them and is not recorded.

A :class:`ScriptLine` is a call that was given something that depends on the input: its function, what its arguments
were (the tensor of a node, a weight of the model, a constant, a number), and the nodes that were made of it. What a
follower has to know of a node is its :class:`Role`. No line and no role holds a value of the pass, so that a script may
outlive it.
"""

from __future__ import annotations

import copy
import functools
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from nrm.capture.anatomy import Anatomy
from nrm.capture.arguments import TENSORS, tensors_in
from nrm.capture.axes import moves_by_index
from nrm.capture.op import Op
from nrm.capture.ops import Pointwise, Source, Unknown
from nrm.capture.precision import INSTEAD
from nrm.capture.recall import At, Recall, leaves
from nrm.capture.tape import Node, Tape
from nrm.capture.vocabulary import COMPOSED, VOCABULARY
from nrm.operators import LateWeight
from nrm.shapes import address_of, place_of

if TYPE_CHECKING:
    from nrm.capture.recorder import Recorder

PLAIN, NODE, OWN, CONSTANT, MANY, OTHER = range(6)
"""What an argument of a call was: a plain value, the tensor of a node, a tensor of the model, another tensor that is no
node's, several of these, or what cannot be compared."""

WATCHED = 2**13
"""Weights with so few entries are compared with what they were, whoever wrote them; larger ones are read where they
lie."""

Spec = tuple[int, Any]

_PLAIN = {int, float, bool, str, type(None), type(...), torch.dtype, torch.device, torch.Size, torch.layout}


class Constant:
    """A tensor among the arguments of a call that is no node's and none of the model's: a mask, a table of rotations.

    ``content`` is what it held; None where it was made from the input, or is too large to be kept.
    """

    __slots__ = ("content", "derived", "dtype", "name", "shape")

    def __init__(self, r: Recorder, tensor: Tensor) -> None:
        self.shape, self.dtype = tensor.shape, tensor.dtype
        known = r.origin.get(id(tensor))
        self.name = None if known is None else known[1]
        self.derived = r.is_derived(tensor)
        plain = type(tensor) in TENSORS and tensor.layout is torch.strided
        plain = plain and tensor.numel() <= 2**20 and not self.derived
        self.content = tensor.detach().clone() if plain else None


class ScriptLine:
    """One call of a pass that was given something that depends on the input.

    ``first`` and ``stop`` bound the nodes that it made, inner calls included. ``gives`` are the nodes of the tensors in
    its result, ``wrote`` says that it is the first argument, which was written, ``idle`` that it is that or no tensor,
    and nothing was made. ``prepare`` says that arguments are cast for it.
    """

    __slots__ = (
        "args",
        "first",
        "func",
        "gives",
        "idle",
        "inner",
        "kwargs",
        "name",
        "prepare",
        "roles",
        "run",
        "stop",
        "wrote",
    )

    def __init__(self, func: Any, name: str, first: int) -> None:
        self.func, self.name, self.first, self.stop = func, name, first, first
        self.run = func
        self.args: tuple[Spec, ...] = ()
        self.kwargs: dict[str, Spec] = {}
        self.gives: tuple[int | None, ...] = ()
        self.idle = self.inner = self.wrote = self.prepare = False
        self.roles: tuple[Role, ...] | None = None
        """The nodes that it makes, if a follower may use their ops as they are."""


class Role:
    """What a node of a script is, without its value: where it stands, what it reads, where samples and channels lie.

    ``op`` and ``recall`` are there if they hold nothing of the pass. ``by_index`` says that where its samples lie
    depends on indices, which may be others.
    """

    __slots__ = ("by_index", "channel", "device", "dtype", "function", "heads", "index", "inputs", "kind", "module",
                 "name", "ndim", "op", "owner", "recall", "sample", "shape")  # fmt: skip

    def __init__(self, node: Node) -> None:
        self.index, self.inputs, self.kind = node.index, node.inputs, type(node.op)
        self.name, self.module, self.function = node.name, node.module, node.function
        self.sample, self.channel, self.owner, self.heads = node.sample, node.channel, node.owner, node.heads
        self.shape, self.ndim = node.shape, node.ndim
        self.dtype, self.device = node.dtype, node.device
        self.op: Op | None = None
        self.recall: Recall | None = None
        maps = node.op.maps(len(node.inputs))
        self.by_index = node.owner is not None or (maps is not None and any(map(moves_by_index, maps)))

    def node(self, op: Op, value: Tensor, recall: Recall | None = None) -> Node:
        """A node in this role."""
        node = Node.__new__(Node)
        node.index, node.op, node.inputs, node.value = self.index, op, self.inputs, value
        node.function, node.recall = self.function, recall
        node.shape, node.ndim, node.dtype, node.device = self.shape, self.ndim, self.dtype, self.device
        self.place(node)
        return node

    def place(self, node: Node) -> None:
        """Gives a node its name, and says where samples, channels and heads lie in it."""
        node.name, node.module = self.name, self.module
        node.sample, node.channel, node.owner, node.heads = self.sample, self.channel, self.owner, self.heads


class CallScript:
    """The calls of a pass, written while it is recorded, and what a follower needs to know of its nodes.

    ``options`` are those under which it was recorded, ``own`` the tensors of the model with where they lay and how
    often they were written, ``watched`` those of them whose ``contents`` are compared as well. ``hindrance`` says why
    the pass cannot be followed, if something in it is not repeated by its calls alone.
    """

    def __init__(self) -> None:
        self.lines: list[ScriptLine] = []
        self.roles: list[Role] = []
        self.sources: dict[int, tuple[Any, ...]] = {}
        self.hindrance: str | None = None
        self.outline: Tape | None = None
        self.options: Any = None
        self.opening: tuple[str, ...] = ()
        self.modules: list[tuple[str, weakref.ref[nn.Module]]] = []
        self.own: list[tuple[Tensor, int, int]] = []
        self.watched: list[list[Tensor]] = []
        self.contents: list[Tensor] = []
        self.embedded: list[tuple[str | None, int]] = []
        self.vocabulary: Any = None
        self.nbytes = 0
        """What its values take, if all are kept."""
        self._seen: dict[tuple[int, int], tuple[Tensor, Constant]] = {}

    # ---- while a pass is recorded ----------------------------------------------------------------------------

    def hinder(self, why: str) -> None:
        """Says that the pass cannot be followed; the first reason counts."""
        self.hindrance = self.hindrance or why

    def begin(self, r: Recorder, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ScriptLine:
        """A call begins."""
        line = ScriptLine(func, name, len(r.nodes))
        line.args = tuple([self._spec(r, a) for a in args])
        line.kwargs = {k: self._spec(r, v) for k, v in kwargs.items()}
        if name.startswith("set:"):
            self.hinder(f"{name} was called")
        self.lines.append(line)
        return line

    def end(self, r: Recorder, line: ScriptLine, args: tuple[Any, ...], result: Any) -> None:
        """A call has ended."""
        line.stop, line.inner = len(r.nodes), self.lines[-1] is not line
        known = r.live
        found = [result] if type(result) is Tensor else tensors_in(result)
        line.gives = tuple([known[id(t)][1] if id(t) in known else None for t in found])
        same = bool(found) and bool(args) and found[0] is args[0]
        made = line.stop > line.first
        line.wrote = same and made
        line.idle = not made and not line.inner and (same or not found)

    def _spec(self, r: Recorder, value: Any) -> Spec:
        kind = type(value)
        if kind in TENSORS or isinstance(value, Tensor):
            found = r.live.get(id(value))
            if found is not None:
                return NODE, found[1]
            return (OWN, value) if id(value) in r.own else (CONSTANT, self._constant(r, value))
        if kind in _PLAIN:
            return PLAIN, value
        if kind in (tuple, list):
            if all(type(v) in _PLAIN for v in value):
                return PLAIN, value if kind is tuple else list(value)
            return MANY, (kind, tuple([self._spec(r, v) for v in value]))
        if kind is slice and all(type(v) in _PLAIN for v in (value.start, value.stop, value.step)):
            return PLAIN, value
        if kind is slice or tensors_in(value):
            self.hinder(f"a call with tensors inside a {kind.__name__}")
            return OTHER, None
        return PLAIN, value

    def _constant(self, r: Recorder, tensor: Tensor) -> Constant:
        key = (id(tensor), -1 if tensor.is_inference() else tensor._version)
        if key not in self._seen:
            self._seen[key] = tensor, Constant(r, tensor)
        return self._seen[key][1]

    def finish(self, r: Recorder, anatomy: Anatomy, options: Any) -> None:
        """The pass has ended: what the model is made of now."""
        self._seen.clear()
        self.nbytes = r.nbytes or sum(n.shape.numel() * n.dtype.itemsize for n in r.nodes)
        self.options, self.embedded = options, r.embedded
        self.modules = [(path, weakref.ref(module)) for path, module in anatomy.modules]
        self.vocabulary = dict(VOCABULARY), dict(COMPOSED)
        known, memory = r.constants, r.memory
        for found, why in (
            (known.reads or known.strangers or known.doubts, "values left torch"),
            (memory.histories or memory.exposed or r.shared_writes, "memory is written that several tensors share"),
            (r.graphs is not None, "graphs"),
            (any(d is not r.precision.dtype for d in r.recurrent.values()), "recurrent layers in another precision"),
            (r.twins or r.pairs, "sparse tensors, or complex numbers"),
            (r.modules.read_as_whole, "modules that are read as a whole"),
            (any(isinstance(t, LateWeight) for _, t in anatomy.tensors), "weights that are read when they are used"),
            (any(n.held is None for n in r.nodes), "values that are not kept"),
            (any(n.function == "alias" for n in r.nodes), "tensors that share memory behind torch's back"),
            (any(n.owner is not None for n in r.nodes if isinstance(n.op, Source)), "samples of several lengths"),
        ):
            if found:
                self.hinder(why)
        if self.hindrance is None:
            self.own = [(tensor, *_state(tensor)) for _, tensor in anatomy.tensors]
            small: dict[Any, list[Tensor]] = {}
            for tensor in (t for t, *_ in self.own if t.numel() <= WATCHED):
                small.setdefault((tensor.dtype, tensor.device), []).append(tensor)
            self.watched = list(small.values())
            self.contents = list(map(_joined, self.watched))

    # ---- while another one follows ---------------------------------------------------------------------------

    def prepare(self, tape: Tape) -> CallScript:
        """Finds out, once, what a follower needs to know of the nodes of this script's tape."""
        if self.outline is None and self.hindrance is None:
            self.outline = copy.copy(tape)
            self.outline.nodes = []
            self.roles = [Role(node) for node in tape.nodes]
            for line in self.lines:
                self._share(line, tape.nodes[line.first : line.stop], tape.dtype)
        return self

    def difference(self, anatomy: Anatomy, options: Any, bound: int | None) -> str | None:
        """Why a pass with this model and these options cannot follow; None if it may try."""
        if self.hindrance is not None:
            return self.hindrance
        if bound is not None and self.nbytes > bound:
            return "less memory"
        if options != self.options:
            return "other inputs, or options"
        if len(self.modules) != len(anatomy.modules):
            return "another model"
        pairs = zip(self.modules, anatomy.modules, strict=True)
        if any(path != name or ref() is not module for (path, ref), (name, module) in pairs):
            return "another model"
        return None if self.vocabulary == (VOCABULARY, COMPOSED) else "functions that were registered since"

    def unchanged(self) -> bool:
        """Whether the tensors of the model are what they were, as far as ops that are used again depend on it."""
        if any(_state(tensor) != (pointer, version) for tensor, pointer, version in self.own):
            return False
        return all(map(torch.equal, map(_joined, self.watched), self.contents))

    def _share(self, line: ScriptLine, nodes: Sequence[Node], dtype: torch.dtype) -> None:
        """Lets a follower have the ops of a line as they are, if they hold nothing of the pass."""
        order = tuple(range(line.first, line.stop))
        own_reading = hasattr(VOCABULARY.get(line.name), "__wrapped__")  # by a user, who may have held anything
        if line.inner or own_reading or not nodes or line.gives != order or not all(map(_is_plain, nodes)):
            return
        given = list(_leaves((MANY, (tuple, (*line.args, *line.kwargs.values())))))
        if any(kind == OTHER or (kind == CONSTANT and what.content is None) for kind, what in given):
            return
        own = [what for kind, what in given if kind == OWN]
        if any(t.numel() > WATCHED for t in own) and not all(_reads(node.op, own) for node in nodes):
            return
        asked = any(kind == PLAIN and isinstance(what, torch.dtype) and what is not dtype for kind, what in given)
        cast = any(what.dtype.is_floating_point and what.dtype is not dtype for kind, what in given
                   if kind in (OWN, CONSTANT))  # fmt: skip
        line.prepare, line.run = asked or cast, INSTEAD.get(line.name, line.func)
        line.roles = tuple(self.roles[i] for i in order)
        for role, node in zip(line.roles, nodes, strict=True):
            role.op, role.recall = node.op, node.recall


def _state(tensor: Tensor) -> tuple[int, int]:
    """Where the data of a tensor lies, and how often it was written."""
    return place_of(tensor), -1 if tensor.is_inference() else tensor._version


def _joined(tensors: list[Tensor]) -> Tensor:
    """The contents of tensors of one type, one after the other."""
    with torch.no_grad():
        found: Tensor = torch._utils._flatten_dense_tensors(tensors)  # type: ignore[no-untyped-call]  # one call, where there are hundreds
        return found.clone() if len(tensors) == 1 else found


def _leaves(spec: Spec) -> Iterator[Spec]:
    kind, what = spec
    if kind == MANY:
        for one in what[1]:
            yield from _leaves(one)
    else:
        yield spec


def _is_plain(node: Node) -> bool:
    """Whether nothing in a node was computed from its inputs, neither in its op nor in its call."""
    op, recall = node.op, node.recall
    if isinstance(op, Source) or (op.holds and not isinstance(op, Pointwise | Unknown)):
        return False  # these two hold no numbers, whatever they say of themselves
    if isinstance(op, Pointwise) and op.factors:
        return False  # its value at 0 is made of those of its factors, which may be built anew
    return recall is None or all(isinstance(leaf, At) for leaf in leaves((recall.arguments, recall.named)))


def _reads(op: Op, own: Sequence[Tensor]) -> bool:
    """Whether all tensors in an op are those of the model, read where they lie."""
    places = {address_of(t) for t in own}
    return all(address_of(t) in places for t in _tensors_of(op, 0))


def _tensors_of(value: Any, depth: int) -> Iterator[Tensor]:
    """The tensors inside an op, its maps, and the functions that these hold."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors_of(one, depth + 1)
    elif isinstance(value, dict):
        yield from _tensors_of(list(value.values()), depth + 1)
    elif isinstance(value, functools.partial):
        yield from _tensors_of((value.func, value.args, value.keywords), depth + 1)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from _tensors_of(getattr(value, field.name), depth + 1)
    elif callable(value) and depth < 12:
        cells = getattr(value, "__closure__", None) or ()
        yield from _tensors_of([cell.cell_contents for cell in cells], depth + 1)
