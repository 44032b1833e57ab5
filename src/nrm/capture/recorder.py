"""Recording a forward pass: every torch call on a tensor that depends on the input becomes a node of the tape.

The recorder runs the model eagerly on its real inputs, so control flow in Python just works. Tensors are known by
identity and kept alive while recording. What happens to memory that is written in place is told in ``writes``.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from nrm.capture import axes, complexes, heads, lean, mutation, remember, repeat, samples, sparse, unseen, writes
from nrm.capture.anatomy import Anatomy
from nrm.capture.arguments import is_in_place, tensors_in, tensors_of
from nrm.capture.call import Call
from nrm.capture.elementwise import Roots
from nrm.capture.graphs import Graphs
from nrm.capture.guard import watched_modules
from nrm.capture.integers import Integers
from nrm.capture.modules import Modules
from nrm.capture.names import (
    AT_PLACES,
    BLANK,
    CASTS,
    CONSTANT,
    DECIDES,
    HANDS_OUT,
    NUMPY_NAMES,
    READS,
    SHAPES,
    WITH_CHOICE,
    class_name,
    function_name,
    place_of_inplace,
    without_inplace,
)  # fmt: skip
from nrm.capture.op import Op
from nrm.capture.ops import Combine, Multiply, Source, Unknown
from nrm.capture.precision import INSTEAD, Origins, Precision, alike
from nrm.capture.recall import Recall
from nrm.capture.script import CallScript
from nrm.capture.tape import Node
from nrm.errors import CaptureError
from nrm.operators import loaded
from nrm.shapes import address_of


class Recorder(TorchFunctionMode):
    """A mode under which every torch call is recorded. One recorder serves one forward pass.

    ``live`` has every tensor that depends on the input, with its node; ``batch_dim`` is where the user's samples lie,
    unless they are ``graphs``. ``embedded`` has every embedding that integers of the user look up, with the name of the
    input they are, unless they were computed from it. ``derived`` has what depends on the input without relevance.
    A ``whole`` recording leaves nothing out because of its values, so that two of them have one structure.
    ``script`` has the calls, for others to follow.
    """

    def __init__(
        self, anatomy: Anatomy, dtype: torch.dtype, vocabulary: dict[str, Callable[..., Any]],
        composed: dict[str, Callable[..., Any]], *, samples: int, batch_dim: int | None, exact: bool,
        graphs: Graphs | None = None, change: float = 0.0, made: Mapping[int, Sequence[int]] | None = None,
        whole: bool = False, bound: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.nodes: list[Node] = []
        self.roots = Roots(self.nodes)
        self.names: dict[str, list[int]] = {}
        self.received: dict[str, list[int]] = {}
        self.steps: dict[str, list[list[int]]] = {}
        self.notes: list[str] = []
        self.samples = samples
        self.batch_dim = batch_dim
        self.graphs = graphs
        self.whole = whole
        self.choice: Tensor | None = None
        self.live: dict[int, tuple[Tensor, int]] = {}
        self.seals: dict[int, unseen.Seal] = {}
        self.origin: Origins = {}
        self.precision = Precision(dtype, self.origin)
        self.twins = sparse.Twins()
        self.pairs = complexes.ComplexTwins()
        self.own = {id(tensor) for _, tensor in anatomy.tensors}
        self.script = CallScript()
        self.shared_writes = False
        self.memory = writes.Memory([tensor for _, tensor in anatomy.tensors])
        self._buffers = [tensor for _, tensor in anatomy.buffers]
        self._exact = exact
        self._vocabulary = vocabulary
        self._registered: dict[type, str | None] = {}
        self.composed = composed
        self._thread = threading.get_ident()
        self.modules = Modules(anatomy)
        self.blocks = lean.LeanBlocks(anatomy, bound)
        self._bounded, self.nbytes = bound is not None, 0
        self.recurrent = {path: next(m.parameters()).dtype for path, m in anatomy.modules if isinstance(m, nn.RNNBase)}
        self.given: list[str] = []
        self.borrowed: list[tuple[str, int, list[int]]] = []
        self.embedded: list[tuple[str | None, int]] = []
        self._integers = Integers(samples)
        self.derived: dict[int, tuple[Tensor, Recall]] = {}
        self._settled: set[int] = set()
        self._moved: set[int] = set()
        self._placed: dict[tuple[Any, ...], tuple[int | None, int | None, heads.Heads | None]] = {}
        self._kinds = {device.type for device in {tensor.device for _, tensor in anatomy.tensors}} | {"cpu"}
        self.constants = repeat.Constants(anatomy.attributes, change, made or {})
        self.origin.update((id(tensor), (tensor, name)) for name, tensor in anatomy.tensors)

    # ---- what the vocabulary may ask -------------------------------------------------------------------------

    def tracked(self, value: Any) -> bool:
        """Whether a value is a tensor that depends on the input."""
        if not isinstance(value, Tensor):
            return False
        return id(value) in self.live or (value.layout is torch.strided and writes.catch_up(self, value))

    def node(self, tensor: Tensor) -> Node:
        """The node of a tracked tensor."""
        return self.nodes[self.live[id(tensor)][1]]

    def own_name(self, module: nn.Module) -> str | None:
        """The name under which a module's class (or one that it is made from) was registered."""
        kind = type(module)
        if kind not in self._registered:
            names = map(class_name, kind.__mro__)
            self._registered[kind] = next((name for name in names if name in self._vocabulary), None)
        return self._registered[kind]

    def follow(self, tensor: Tensor, index: int) -> None:
        """From now on the tensor stands for this node."""
        self.live[id(tensor)] = (tensor, index)
        self.derived.pop(id(tensor), None)
        seal = self.seals[id(tensor)] = unseen.seal(tensor)
        self.memory.meet(tensor, seal.pointer)
        if seal.pointer in self.memory.exposed:
            writes.freeze(self, seal.pointer)

    def forget(self, tensor: Tensor) -> None:
        """Lets go of a tensor; if it is met again, by whoever holds it, it is a constant."""
        self.live.pop(id(tensor), None)
        self.seals.pop(id(tensor), None)
        self.memory.forget(tensor)

    def renew(self, written: Tensor) -> None:
        """The tensors on memory that a recorded call has written are as they are now."""
        for tensor in (written, *self.memory.sharing(written)):
            if id(tensor) in self.live:
                self.seals[id(tensor)] = unseen.seal(tensor)

    def shared_write(self, target: Tensor) -> None:
        """Memory is about to be written that other tensors hold as well, or may."""
        self.shared_writes = True

    def constant(self, tensor: Tensor, label: str, sample: int | None = None, channel: int | None = None) -> int:
        """A constant used as an activation: a new source, named after its parameter where it has one."""
        origin = self.origin.get(id(tensor))
        name = origin[1] if origin else f"{self.path}/{label}.constant"
        made = bool(self.constants.made_now) or self.is_derived(tensor)
        return self.source(
            Source("constant", made), loaded(tensor).to(self.precision.dtype), label, sample, channel, name
        )

    def constant_like(self, node: Node, tensor: Tensor, label: str) -> int:
        """A constant that replaces all of a tensor, with its samples and channels."""
        index = self.constant(tensor.detach().clone(), label, node.sample, node.channel)
        self.nodes[index].owner = node.owner
        return index

    def sample_axis(self, tensor: Tensor) -> int | None:
        """The axis along which a constant of the model has room for the samples, if it has one."""
        if self.batch_dim is None:
            return None
        for axis in (self.batch_dim, 0):
            if tensor.ndim > axis and tensor.shape[axis] == self.samples:
                return axis
        return None

    def is_derived(self, value: Any) -> bool:
        """Whether a constant depends on the input all the same, as a mask does that was made from it."""
        return id(value) in self.derived or id(value) in self.constants.widened

    def add(self, op: Op, inputs: list[int], value: Tensor, function: str) -> int:
        """A new node, made by an op from other nodes."""
        if self.constants.made_now:
            op, inputs = repeat.unbiased(self, op, inputs, value, function)
        node = Node(len(self.nodes), op, tuple(inputs), value.detach(), module=self.path, function=function)
        parents = [self.nodes[i] for i in inputs]
        if self._bounded:
            # A view lies on the memory of what it reads, halves of a product on one.
            near = [address_of(held) for p in (*parents, *self.nodes[-1:]) if (held := p.held) is not None]
            if address_of(value) not in near:
                self.nbytes += value.numel() * value.element_size()
        self._place(node, parents)
        self._place_input_channel(op, parents)
        if any(i in self._moved for i in inputs) and _moves(op):
            self._moved.add(node.index)
        self.nodes.append(node)
        return node.index

    def _place(self, node: Node, parents: list[Node]) -> None:
        """Says where samples, channels and attention heads lie in a new node; of calls that are alike, once."""
        if _stays(node, parents):
            node.sample, node.channel, node.heads = parents[0].sample, parents[0].channel, parents[0].heads
            return
        given = [(p.sample, p.channel, p.heads) for p in parents if p.sample is not None]
        call = (node.op, node.shape, *given) if len(given) == len(parents) and node.op.kind != "matmul" else None
        if call in self._placed:
            node.sample, node.channel, node.heads = self._placed[call]
            return
        whose = samples.follow(node.op, parents, node.shape, self.samples)
        node.sample, node.owner = whose.axis, whose.owner
        samples.settle(node, self.nodes, self.samples)
        node.channel = node.op.channel_axis([p.channel for p in parents], node.shape, node.sample)
        node.heads = heads.heads_of(node.op, parents, self.nodes, node)
        if call is not None and node.owner is None:
            self._placed[call] = node.sample, node.channel, node.heads

    @property
    def path(self) -> str:
        """The path of the module that is running."""
        return self.modules.path

    def place(self) -> str:
        """The module path and the user's source line of the call that is being recorded."""
        path = self.path or "the model"
        frame: Any = sys._getframe(1)
        while frame is not None:
            module = frame.f_globals.get("__name__", "")
            if not module.startswith(("torch.", "nrm.")) and module != "torch":
                return f"{path}, {frame.f_code.co_filename}:{frame.f_lineno}"
            frame = frame.f_back
        return path

    def open(self) -> None:
        """At the beginning of the pass, when it is known what is to be said of it beforehand."""
        self.script.opening = tuple(self.notes)

    def watched(self) -> contextlib.AbstractContextManager[None]:
        """While the model runs: it is noticed when its modules begin and end."""
        return watched_modules(self)

    def close(self, output: Tensor) -> None:
        """At the end of the pass: the explained output is known, and nothing was written unseen."""
        unseen.meets(self, output)
        unseen.check_all(self)

    def draw(self) -> None:
        """The pass has drawn random numbers."""
        self.script.hinder("random draws")

    # ---- sources ---------------------------------------------------------------------------------------------

    def add_input(self, tensor: Tensor, name: str, whose: samples.Whose) -> list[int]:
        """Declares a tensor of the user's input: float tensors are sources, integers are followed to embeddings.

        Gives the node of the tensor, if it is one.

        In a batch, a float tensor without a sample axis is shared by all samples, so that no sample could own its
        relevance: it is held constant.
        """
        self.given.append(name)
        self.constants.know(tensor)
        self._kinds.add(tensor.device.type)
        if not tensor.is_floating_point():
            self._integers.add(tensor, name, whose)
            return []
        if self.graphs is not None and self.graphs.is_weight(tensor):
            self.notes.append(f"{name} has one number per edge: a weight of messages, held constant")
            return []
        if whose.axis is None and whose.owner is None and self.samples > 1:
            self.notes.append(f"{name} has no sample axis: it is shared by the batch and held constant")
            return []
        self.constants.change(tensor)
        channel = 1 if tensor.ndim > 2 else tensor.ndim - 1
        channel_axis = channel if channel != whose.axis and channel >= 0 else None
        index = self.source(Source("input"), tensor, "input", whose.axis, channel_axis, name)
        self.nodes[index].owner = whose.owner
        self.follow(tensor, index)
        return [index]

    def source(
        self, op: Source, value: Tensor, function: str, sample: int | None, channel: int | None, name: str
    ) -> int:
        """A new node at which walks begin."""
        node = Node(len(self.nodes), op, (), value.detach(), name, self.path, function, sample, channel)
        self.script.sources[node.index] = op.kind, op.made, sample, channel, name
        if op.kind == "input":
            self._moved.add(node.index)
        self.nodes.append(node)
        if name:
            self.names.setdefault(name, []).append(node.index)
        return node.index

    def _embedding(self, value: Tensor, looked_up: Any) -> Tensor:
        value = self.constants.change(value.to(self.precision.dtype, copy=True))
        if self.graphs is not None:
            whose = self.graphs.whose(value)
        else:
            known = self._integers.embedded(looked_up, value)
            whose = known or samples.Whose(self.sample_axis(value) if value.ndim > 1 else None)
        index = self.source(Source("embedding"), value, "embedding", whose.axis, value.ndim - 1, "")
        self.nodes[index].owner = whose.owner
        self.embedded.append((self._integers.name(looked_up), index))
        self.follow(value, index)
        return value

    def _place_input_channel(self, op: Op, parents: list[Node]) -> None:
        """The channel axis of an input is known once the first layer reads it, also behind data movement and sums."""
        if parents and parents[0].index in self._moved and parents[0].index not in self._settled:
            axis = op.read_channel(parents[0].ndim)
            if axis is not None:
                self._settle_channel(parents[0], axis)

    def _settle_channel(self, node: Node, axis: int) -> None:
        """Gives a tensor that is made of inputs by data movement this channel axis, and so the inputs themselves."""
        if axis == node.sample or node.index in self._settled or node.index not in self._moved:
            return
        if isinstance(node.op, Source):
            node.channel = axis
            self._settled.add(node.index)
            return
        for move, i in zip(node.op.maps(len(node.inputs)) or (), node.inputs, strict=True):
            below = self.nodes[i]
            found = [a for a in range(below.ndim) if axes.through(move, a) == axis]
            if len(found) == 1:
                self._settle_channel(below, found[0])
                if below.index in self._settled:
                    node.channel = axis
                    self._settled.add(node.index)

    def indices(self, value: Any) -> list[int]:
        """The nodes of the tracked tensors inside a value."""
        return [self.live[id(t)][1] for t in self.tracked_in(value)]

    def tracked_in(self, value: Any) -> list[Tensor]:
        """The tracked tensors inside a value."""
        return [t for t in tensors_in(value) if id(t) in self.live or self.tracked(t)]

    # ---- torch calls -----------------------------------------------------------------------------------------

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = function_name(func)
        if name in SHAPES or threading.get_ident() != self._thread:
            return func(*args, **kwargs)
        if name == "get:dtype" and self.path in self.recurrent:
            return self.recurrent[self.path]  # these modules refuse inputs that do not have their own precision
        present, recorded = tensors_of(args, kwargs), False
        if _functorch.maybe_current_level() is not None:
            self._refuse_vmap(present)
        if not self.modules.opaque:
            if sparse.concerns(self, name, present):
                return sparse.run(self, func, name, args, dict(kwargs))
            if complexes.concerns(self, name, args, kwargs, present):
                return complexes.run(self, func, name, args, dict(kwargs))
            met = [unseen.meets(self, t) for t in present]
            recorded = any(met)
        self.constants.enter(self, name, args, kwargs, present, recorded)
        run = self._written_down if recorded else self._run_constant
        if True in map(torch.is_autocast_enabled, self._kinds):  # by the model itself: arguments say the precision
            self.script.hinder("autocast")
            with contextlib.ExitStack() as stack:
                for kind in self._kinds:
                    stack.enter_context(torch.autocast(kind, enabled=False))
                return run(func, name, args, kwargs, present)
        return run(func, name, args, kwargs, present)

    def _written_down(
        self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], present: list[Tensor]
    ) -> Any:
        """A recorded call, which becomes a line of the script."""
        line = self.script.begin(self, func, name, args, kwargs)
        result = self._run(func, name, args, kwargs, present)
        self.script.end(self, line, args, result)
        return result

    def _run(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], present: list[Tensor]) -> Any:
        if _is_plain(func) and "out" not in kwargs:
            return self.perform(func, name, *self.precision.prepared(args, kwargs, present, name))
        kwargs = dict(kwargs)
        if mutation.is_list_op(func):
            return mutation.run_list(self, func, args, kwargs)
        op = mutation.writing(func, args, kwargs)
        if op is not None:
            return mutation.run(self, op, name, args, kwargs)
        if name in CASTS:
            if self.tracked(args[0]):
                return self._cast(func, args, kwargs)
            return self._run_constant(func, name, args, kwargs, [args[0]])  # in the precision of one that is tracked
        if name == "set:data":
            return self._set_data(func, *args)
        shaped = name in CONSTANT and not self.indices((args[1:], kwargs))
        if shaped or name in READS or name in HANDS_OUT or name.startswith("set:"):
            return self._read(func, name, args, kwargs)
        out = kwargs.pop("out", None)
        if name == "setitem" or is_in_place(func):
            rest, kwargs = self.precision.prepared(args[1:], kwargs, present)
            result = writes.in_place(self, func, name, (args[0], *rest), kwargs)
            self.renew(args[0])
            return result
        args, kwargs = self.precision.prepared(args, kwargs, present, name)
        args, kwargs, in_place = without_inplace(func, args, kwargs)
        if in_place or out is not None:
            return writes.write(self, args[0] if in_place else out, func, name, args, kwargs)
        return self.perform(func, name, args, kwargs)

    def perform(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs a call that writes nothing, and records it."""
        if name in self.composed:
            with self:
                made = self.composed[name](*args, **kwargs)
            if made is not NotImplemented:
                return made
        func = INSTEAD.get(name, func)
        present = tensors_of(args, kwargs)
        before = [unseen.version(t) for t in present]
        result = self._call(func, name, args, kwargs)
        unseen.refuse_writing(self, name, present, before)
        remember.derive(self, func, args, kwargs, result, relevant=True)
        self.record(func, name, args, kwargs, result)
        return result

    def _call(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name in WITH_CHOICE and not kwargs.get("return_indices"):
            result, self.choice = getattr(F, f"{name}_with_indices")(*args, **kwargs)
            return result
        return func(*args, **kwargs)

    def _refuse_vmap(self, present: list[Tensor]) -> None:
        """Inside ``torch.vmap`` tensors are wrapped: what is computed there from tracked ones would be lost."""
        for t in present:
            while _functorch.is_functorch_wrapped_tensor(t):
                t = _functorch.get_unwrapped(t)
                if self.tracked(t):
                    raise CaptureError(
                        "torch.vmap (or another function transform) cannot be followed", where=self.place(),
                        expected="torch functions on whole batches", hint="write that part without torch.vmap",
                    )  # fmt: skip

    def _run_constant(
        self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], present: list[Tensor]
    ) -> Any:
        from_user = any(t in self._integers for t in present)
        targets = [] if _is_plain(func) and "out" not in kwargs else self._targets(func, args, kwargs)
        if self.memory.histories and not self.modules.opaque and writes.adopt(self, targets):
            return self._run(func, name, args, kwargs, present)
        for target in targets:
            self.memory.protect(target)
        given = remember.before_writing(self, args, targets, present)
        if targets:
            result = func(*alike(args, targets[0]), **alike(kwargs, targets[0]))  # the model's own memory is written
        elif name in CASTS or name in HANDS_OUT or name.startswith(("get:", "set:")):
            result = func(*args, **kwargs)  # the model's own memory, not a copy in another precision
        elif name == "embedding" and kwargs.get("max_norm") is None and len(args) < 4:
            result = self.precision.raised(func(*args, **kwargs))  # rows that are looked up, not the whole table
        else:
            kwargs = self.precision.filling(name, args, kwargs)
            result = func(*self.precision.raised(args), **self.precision.raised(kwargs))
        if name in BLANK:
            result.zero_()
        if self.derived and any(id(t) in self.derived for t in present):
            kept = {k: v for k, v in kwargs.items() if k != "out"}
            remember.derive(self, func, given, kept, args[0] if name == "setitem" else result, relevant=False)
        self.constants.produce(self, name, args, present, result)
        if from_user:
            self._integers.follow(func, name, args, kwargs, result)
        if isinstance(result, Tensor):
            if from_user and name in ("embedding", "embedding_bag"):
                return self._embedding(result, args[0] if args else kwargs.get("input"))
            known = [t for t in present if id(t) in self.origin]
            known.sort(key=lambda t: not t.is_floating_point())  # an embedding is named after its weight
            origin = self.origin[id(known[0])][1] if known else None
            if origin and id(result) not in self.origin:
                self.origin[id(result)] = (result, origin)
        return result

    @staticmethod
    def _targets(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
        """The tensors that a call of constants writes."""
        op = mutation.writing(func, args, kwargs)
        if op is not None:
            return mutation.written(op, args, kwargs)
        in_place = args and (is_in_place(func) or kwargs.get("inplace"))
        return tensors_in((args[0] if in_place else None, kwargs.get("out")))

    def _read(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name in HANDS_OUT:
            unseen.expose(self, args[0], name)
            self._leaves_torch(name)
        if name in READS and args and self.tracked(args[0]):
            self.notes.append(f"{self.path or 'model'}: {name} read a value; what follows is held constant")
            if name not in DECIDES and name not in HANDS_OUT:
                self._leaves_torch(name)
        result = func(*args, **kwargs)
        self.constants.know(result)
        return result.zero_() if name in BLANK else result

    def _leaves_torch(self, name: str) -> None:
        """Notes that values are handed to Python, from where they may be written anywhere: into buffers, too."""
        if not self.constants.reads:
            for buffer in self._buffers:
                self.memory.protect(buffer)
        self.constants.reads.append(f"{name} at {self.place()}")

    def _cast(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A change of precision or device: precision is the measure's own choice."""
        result = func(*args, **kwargs)
        if not isinstance(result, Tensor) or not result.is_floating_point():
            remember.derive(self, func, args, kwargs, result, relevant=True)
            return result
        if result is args[0] and self._exact:
            return result
        copy = args[0].to(result.device, copy=True)  # in the model's own precisions this call made a copy
        self.follow(copy, self.node(args[0]).index)
        return copy

    def _set_data(self, func: Any, target: Tensor, value: Tensor) -> None:
        """``target.data = value``: the target stands for the value from now on."""
        func(target, value)
        self.live.pop(id(target), None)
        if self.tracked(value):
            self.follow(target, self.node(value).index)

    def record(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Adds the nodes of one call. A result that is its own input (dropout in eval) adds nothing."""
        outputs = [
            t for t in tensors_in(result) if (t.is_floating_point() or t.is_complex()) and id(t) not in self.live
        ]
        if not outputs:
            return
        present = tensors_of(args, kwargs)
        from_nothing = 0 in [t.numel() for t in present] and self._come_from_nothing(present, outputs)
        if from_nothing and name not in AT_PLACES:  # a sum over no edges is a layer like that over some
            remember.derive(self, func, args, kwargs, result, relevant=False)
            return
        builder = self._vocabulary.get(name)
        steps: Any = None
        if builder is not None and not any(t.is_complex() for t in outputs):
            if not NUMPY_NAMES.keys().isdisjoint(kwargs):
                kwargs = {NUMPY_NAMES.get(k, k): v for k, v in kwargs.items()}
            call = Call(self, func, name, args, kwargs, result)
            try:
                steps = builder(call, *args, **kwargs)
            except TypeError as error:
                raise CaptureError(f"cannot read the call of {name}", where=self.place(), got=str(error)) from error
        if steps is None:
            op = Unknown(name, self.place())
            steps = [(t, op, self.indices((args, kwargs))) for t in outputs]
        derived = bool(self.derived) and any(id(t) in self.derived for t in present)
        for tensor, op, inputs in steps:
            index = self.add(op, inputs, tensor, name)
            if derived or remember.wants(self.nodes[index]):
                remember.keep(self, self.nodes[index], func, args, kwargs, result, tensor)
            self.follow(tensor, index)
        if name == "linear":
            self._name_by_weight(args, kwargs, result)

    def _come_from_nothing(self, present: list[Tensor], outputs: list[Tensor]) -> bool:
        """Whether all tracked arguments of a call are empty, and its results are not."""
        given = [t for t in present if self.tracked(t)]
        return bool(given) and all(t.numel() for t in outputs) and not any(t.numel() for t in given)

    def _name_by_weight(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> None:
        """A call with the weight of a module that is never called itself counts as its call: ``attn.out_proj``."""
        weight = kwargs.get("weight", args[1] if len(args) > 1 else None)
        path, _, own = self.origin.get(id(weight), (None, ""))[1].rpartition(".")
        here = self.path
        if own != "weight" or path == here or not path.startswith(f"{here}." if here else ""):
            return
        given = self.indices(kwargs.get("input", args[0] if args else None))
        self.borrowed.append((path, self.node(result).index, given))


@functools.lru_cache(4096)
def _is_plain(func: Any) -> bool:
    """Whether the calls of a function are recorded as they come: it writes, casts, reads and hands out nothing."""
    name = function_name(func)
    if name in CASTS or name in CONSTANT or name in READS or name in HANDS_OUT or name.startswith("set"):
        return False
    writes_ = is_in_place(func) or place_of_inplace(func) is not None
    return not writes_ and not mutation.is_list_op(func) and not mutation.is_op(func)


def _stays(node: Node, parents: list[Node]) -> bool:
    """Whether every entry of one tensor stays where it is, as of most ops: so do samples, channels and heads."""
    if len(parents) != 1 or node.shape != parents[0].shape or not node.op.is_one_to_one(0):
        return False
    below, maps = parents[0], node.op.maps(1)
    return maps is not None and maps[0] is None and below.sample is not None and below.channel is not None


def _moves(op: Op) -> bool:
    """Whether an op moves, scales or adds what it reads, so that channels can be seen through it."""
    return isinstance(op, Combine | Multiply) and op.kind != "matmul"


_functorch = torch._C._functorch
