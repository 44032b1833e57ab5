"""Recording a forward pass: every torch call on a tensor that depends on the input becomes a node of the tape.

The recorder runs the model eagerly on its real inputs, so control flow in Python just works. Tensors are known by
identity and kept alive while recording. In-place calls are replaced by their out-of-place form, so that the value
before the call stays available; other views of the same memory get a node that moves the new data to them.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from nrm.capture import axes
from nrm.capture.ops import Combine, Linear, Op, Source, Term, Unknown
from nrm.capture.tape import Node
from nrm.errors import CaptureError
from nrm.operators import Convolution, Gather

CASTS = {"to", "half", "bfloat16", "float", "double", "type", "type_as", "cuda", "cpu"}
"""Calls that change precision or device only. Precision is the measure's own choice, so the cast is dropped."""

CONSTANT = {
    "zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like", "randint_like",
    "new_zeros", "new_ones", "new_empty", "new_full", "new_tensor", "get:grad", "requires_grad",
}  # fmt: skip
"""Calls whose result does not depend on the values of their arguments."""

WITH_CHOICE = {"max_pool1d", "max_pool2d", "max_pool3d"}
"""Calls that know which input they chose; the choice is kept, so that it need not be computed again."""

REVERSED = {"radd": "add", "rmul": "mul", "iadd": "add", "isub": "sub", "imul": "mul", "itruediv": "div",
            "idiv": "div", "truediv": "div", "true_divide": "div", "divide": "div", "multiply": "mul",
            "subtract": "sub", "ipow": "pow"}  # fmt: skip
READS = {"item", "tolist", "numpy", "__array__", "__float__", "__int__", "__bool__", "__index__"}
"""Calls that hand a value to Python. What is computed from it there cannot be followed."""


def function_name(func: Callable[..., Any]) -> str:
    """One name per meaning: ``torch.add``, ``Tensor.add``, ``Tensor.add_`` and ``+`` are all ``add``."""
    name = getattr(func, "__name__", str(func))
    if name in ("__get__", "__set__"):
        return f"{name[2:-2]}:{getattr(getattr(func, '__self__', None), '__name__', '')}"
    if name in READS:
        return name
    name = name.strip("_")
    return REVERSED.get(name, name)


def is_in_place(func: Callable[..., Any]) -> bool:
    """Whether a call by this function writes into its first argument."""
    name = getattr(func, "__name__", "")
    if name.startswith("__"):
        return name in ("__iadd__", "__isub__", "__imul__", "__itruediv__", "__idiv__", "__ipow__", "__setitem__")
    return name.endswith("_") and not name.startswith("_")


class Recorder(TorchFunctionMode):
    """A mode under which every torch call is recorded. One recorder serves one forward pass."""

    def __init__(self, model: nn.Module, dtype: torch.dtype, vocabulary: dict[str, Callable[..., Any]]) -> None:
        super().__init__()
        self.nodes: list[Node] = []
        self.names: dict[str, list[int]] = {}
        self.received: dict[str, list[int]] = {}
        self.notes: list[str] = []
        self.samples: int | None = None
        self.choice: Tensor | None = None
        self._dtype = dtype
        self._vocabulary = vocabulary
        self._thread = threading.get_ident()
        self._paths = {id(m): path for path, m in model.named_modules()}
        self._live: dict[int, tuple[Tensor, int]] = {}
        self._integers: dict[int, Tensor] = {}
        self._casts: dict[int, tuple[Tensor, Tensor]] = {}
        self._origin: dict[int, tuple[Tensor, str]] = {}
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            self._origin[id(tensor)] = (tensor, name)
        self._stack: list[tuple[str, int, list[int]]] = [("", 0, [])]
        self._memory = {t.untyped_storage().data_ptr(): t for t, _ in self._origin.values()}
        self._saved: dict[int, tuple[Tensor, Tensor, Tensor]] = {}

    def restore(self) -> None:
        """Gives parameters and buffers that the forward pass wrote into their memory and values back."""
        for tensor, memory, value in self._saved.values():
            tensor.data = memory
            memory.copy_(value)
        self._saved.clear()

    def _protect(self, target: Any) -> None:
        """Remembers a parameter or buffer before anything is written into its memory."""
        if not isinstance(target, Tensor):
            return
        owner = self._memory.get(target.untyped_storage().data_ptr())
        if owner is not None and id(owner) not in self._saved:
            self._saved[id(owner)] = (owner, owner.data, owner.detach().clone())

    # ---- what the vocabulary may ask -------------------------------------------------------------------------

    def tracked(self, value: Any) -> bool:
        """Whether a value is a tensor that depends on the input."""
        return isinstance(value, Tensor) and id(value) in self._live

    def node(self, tensor: Tensor) -> Node:
        """The node of a tracked tensor."""
        return self.nodes[self._live[id(tensor)][1]]

    def constant(self, tensor: Tensor, label: str, sample: int | None, channel: int | None) -> int:
        """A constant used as an activation: a new source, named after its parameter where it has one."""
        origin = self._origin.get(id(tensor))
        name = origin[1] if origin else f"{self._stack[-1][0]}/{label}.constant"
        value = tensor.to(self._dtype)
        return self._add(Source("constant"), [], value, label, sample=sample, channel=channel, source_name=name)

    # ---- sources ---------------------------------------------------------------------------------------------

    def add_input(self, tensor: Tensor, name: str, sample: int | None) -> None:
        """Declares a tensor of the user's input: float tensors are sources, integers are followed to embeddings."""
        if not tensor.is_floating_point():
            self._integers[id(tensor)] = tensor
            return
        channel = 1 if tensor.ndim > 2 else tensor.ndim - 1
        channel_axis = channel if channel != sample and channel >= 0 else None
        index = self._add(Source("input"), [], tensor, "input", sample=sample, channel=channel_axis, source_name=name)
        self._live[id(tensor)] = (tensor, index)

    # ---- module calls ----------------------------------------------------------------------------------------

    def enter_module(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Called before a module runs."""
        if threading.get_ident() != self._thread:
            return
        path = self._paths.get(id(module), self._stack[-1][0])
        given = [self._live[id(t)][1] for t in tensors_in(args) if self.tracked(t)]
        self._stack.append((path, len(self.nodes), given))

    def leave_module(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """Called after a module ran: its output gets its name, and a path lost inside is noticed."""
        if threading.get_ident() != self._thread or len(self._stack) < 2:
            return
        path, begin, given = self._stack.pop()
        if self._paths.get(id(module)) is None:
            return
        outputs = list(tensors_in(output))
        floats = [t for t in outputs if t.is_floating_point()]
        if given and floats and not any(self.tracked(t) for t in floats):
            raise CaptureError(
                "the path from input to output is lost inside a module",
                where=f"{path or 'the model'} ({type(module).__name__})",
                got="a tracked input, but an output computed outside torch's own calls",
                expected="torch functions on tensors (no numpy round trip, .item(), .data, scripted code)",
                hint="write that part with torch functions",
            )
        if not path:
            return
        received = given or self._received_inside(begin)
        if received:
            self.received.setdefault(path, []).append(received[0])
        known = [self._live[id(t)][1] for t in floats if self.tracked(t)]
        for position, index in enumerate(known):
            self.names.setdefault(path if position == 0 else f"{path}[{position}]", []).append(index)
            if position == 0 and index >= begin and not self.nodes[index].name:
                self.nodes[index].name = path

    def _received_inside(self, begin: int) -> list[int]:
        return [i for node in self.nodes[begin:] for i in node.inputs if i < begin]

    # ---- torch calls -----------------------------------------------------------------------------------------

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if threading.get_ident() != self._thread:
            return func(*args, **kwargs)
        name = function_name(func)
        present = list(tensors_in((args, kwargs)))
        tracked = any(id(t) in self._live for t in present)
        if not tracked:
            return self._run_constant(func, name, args, kwargs, present)
        if name in CASTS:
            return self._cast(func, args, kwargs)
        if name in READS or name in CONSTANT or name.startswith("set:"):
            return self._read(func, name, args, kwargs)
        if "out" in kwargs and kwargs["out"] is not None:
            raise CaptureError(f"{name}(out=...) cannot be followed", where=self._place(), hint="use its return value")
        args, kwargs = self._cast_all(args), self._cast_all(kwargs)
        if name == "setitem":
            return self._assign(*args)
        if is_in_place(func):
            return self._in_place(func, name, args, kwargs)
        func, kwargs, args, in_place = _without_inplace(func, args, kwargs)
        if name in WITH_CHOICE and not kwargs.get("return_indices"):
            result, self.choice = getattr(F, f"{name}_with_indices")(*args, **kwargs)
        else:
            result = func(*args, **kwargs)
        if in_place:
            return self._write(args[0], result, name, args, kwargs, func)
        self._record(func, name, args, kwargs, result)
        return result

    def _run_constant(
        self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], present: list[Tensor]
    ) -> Any:
        from_user = any(id(t) in self._integers for t in present)
        if is_in_place(func) and args:
            self._protect(args[0])
        if any(t.is_floating_point() and t.dtype != self._dtype for t in present) and not is_in_place(func):
            if name in CASTS or name.startswith(("get:", "set:")):
                result = func(*args, **kwargs)
            else:
                result = func(*self._cast_all(args), **self._cast_all(kwargs))
        else:
            result = func(*args, **kwargs)
        if isinstance(result, Tensor):
            if from_user and not result.is_floating_point():
                self._integers[id(result)] = result
            if from_user and name == "embedding":
                return self._embedding(result)
            origin = next((self._origin[id(t)][1] for t in present if id(t) in self._origin), None)
            if origin and id(result) not in self._origin:
                self._origin[id(result)] = (result, origin)
        elif from_user and name not in READS:
            self._integers.update((id(t), t) for t in tensors_in(result) if not t.is_floating_point())
        return result

    def _embedding(self, value: Tensor) -> Tensor:
        value = value.to(self._dtype)
        sample = 0 if self.samples is not None and value.ndim > 1 and value.shape[0] == self.samples else None
        index = self._add(Source("embedding"), [], value, "embedding", sample=sample, channel=value.ndim - 1)
        self._live[id(value)] = (value, index)
        return value

    def _cast(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self.tracked(args[0]):
            return func(*args, **kwargs)
        result = func(*args, **kwargs)
        if not result.is_floating_point():
            return result
        return args[0] if result.device == args[0].device else self._moved(args[0], result.device)

    def _moved(self, tensor: Tensor, device: torch.device) -> Tensor:
        result = tensor.to(device)
        node = self.node(tensor)
        self._live[id(result)] = (result, node.index)
        return result

    def _read(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name in READS and args and self.tracked(args[0]):
            self.notes.append(f"{self._stack[-1][0] or 'model'}: {name} read a value; what follows is held constant")
        return func(*args, **kwargs)

    def _record(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Adds the nodes of one call. A result that is its own input (dropout in eval) adds nothing."""
        outputs = [t for t in tensors_in(result) if t.is_floating_point() and id(t) not in self._live]
        if not outputs:
            return
        builder = self._vocabulary.get(name)
        steps: Any = None
        if builder is not None:
            call = Call(self, func, name, args, kwargs, result)
            try:
                steps = builder(call, *args, **kwargs)
            except TypeError as error:
                raise CaptureError(f"cannot read the call of {name}", where=self._place(), got=str(error)) from error
        if steps is None:
            inputs = [t for t in tensors_in((args, kwargs)) if self.tracked(t)]
            op = Unknown(name, self._place())
            steps = [(t, op, [self._live[id(t)][1] for t in inputs]) for t in outputs]
        for tensor, op, inputs in steps:
            if inputs is None:  # the call returned data that is its input, unchanged
                self._live[id(tensor)] = (tensor, op)
                continue
            index = self._add(op, inputs, tensor, name)
            self._live[id(tensor)] = (tensor, index)

    def _add(
        self, op: Op, inputs: list[int], value: Tensor, function: str,
        *, sample: int | None = None, channel: int | None = None, source_name: str = "",
    ) -> int:  # fmt: skip
        index = len(self.nodes)
        node = Node(index, op, tuple(inputs), value.detach(), module=self._stack[-1][0], function=function)
        node.name = source_name
        parents = [self.nodes[i] for i in inputs]
        if isinstance(op, Source):
            node.sample, node.channel = sample, channel
        else:
            node.sample = axes.sample_axis(op, [p.sample for p in parents])
            node.channel = axes.channel_axis(op, [p.channel for p in parents], value.shape, node.sample)
            self._place_input_channel(op, parents)
            if node.sample is None and (self.samples or 1) > 1:
                node.owner = self._owner(op, parents, value)
        if source_name:
            self.names.setdefault(source_name, []).append(index)
        self.nodes.append(node)
        return index

    def _place_input_channel(self, op: Op, parents: list[Node]) -> None:
        """The channel axis of an input is known once the first layer reads it."""
        if not isinstance(op, Linear) or not isinstance(parents[0].op, Source) or parents[0].op.kind != "input":
            return
        ndim = parents[0].value.ndim
        if isinstance(op.map, Convolution):
            parents[0].channel = ndim - op.map.weight.ndim + 1
        elif op.kind == "linear" and parents[0].sample != ndim - 1:
            parents[0].channel = ndim - 1

    def _owner(self, op: Op, parents: list[Node], value: Tensor) -> Tensor | None:
        if isinstance(op, Combine) and all(p.sample is not None or p.owner is not None for p in parents):
            return axes.owners(op, [owner_of(p) for p in parents])
        if parents and parents[0].owner is not None and parents[0].shape == value.shape:
            return parents[0].owner
        if parents and parents[0].owner is not None and isinstance(op, Linear):
            lead = parents[0].owner.select(-1, 0).unsqueeze(-1)
            return lead.expand(value.shape) if lead.ndim == value.ndim else None
        return None

    # ---- writing in place ------------------------------------------------------------------------------------

    def _in_place(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        target = args[0]
        if name == "copy":
            source = args[1] if isinstance(args[1], Tensor) else torch.as_tensor(args[1])
            return self._write(target, source.expand(target.shape).clone(), "copy", (args[1],), {}, torch.Tensor.clone)
        if name in ("zero", "fill", "requires_grad", "detach"):
            return self._overwrite(func, name, target, args, kwargs)
        plain = getattr(func, "__name__", "")
        twin = f"__{plain[3:-2]}__" if plain.startswith("__i") else plain[:-1]
        out_of_place = getattr(torch.Tensor, twin, None) or getattr(torch, twin, None)
        if out_of_place is None:
            raise CaptureError(f"in-place call {plain} cannot be followed", where=self._place())
        result = out_of_place(*args, **kwargs)
        return self._write(target, result, name, args, kwargs, out_of_place)

    def _overwrite(self, func: Any, name: str, target: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name in ("requires_grad", "detach"):
            return target
        result = target.clone()
        func(result, *args[1:], **kwargs)
        target.data = result
        self._live.pop(id(target), None)
        return target

    def _write(
        self, target: Tensor, result: Tensor, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], func: Any
    ) -> Tensor:
        """Makes ``target`` stand for ``result``: its old value stays with its node, its views follow."""
        aliases = [t for t in self._aliases(target) if t is not target]
        if not self.tracked(target):
            self._adopt(target)
        self._record(func, name, args, kwargs, result)
        _, index = self._live.pop(id(result))
        self._store(target, result, aliases, index)
        return target

    def _store(self, target: Tensor, result: Tensor, aliases: list[Tensor], index: int) -> None:
        self._protect(target)
        old = {id(t): self._live[id(t)][1] for t in aliases if id(t) in self._live}
        result = result.to(target.dtype)
        if aliases or not _owns_storage(target):
            for t in [target, *aliases]:
                if id(t) in self._live:
                    node = self.nodes[self._live[id(t)][1]]
                    node.value = node.value.clone()
            moves = {id(t): _overlap(target, t) for t in aliases}
            with torch.no_grad():
                target.detach().copy_(result)
            self.nodes[index].value = target.detach().clone()
            self._live[id(target)] = (target, index)
            for t in aliases:
                self._follow(t, old.get(id(t)), index, moves[id(t)])
        else:
            target.data = result
            self.nodes[index].value = target.detach()
            self._live[id(target)] = (target, index)

    def _follow(self, alias: Tensor, old: int | None, new: int, moves: tuple[Tensor, Tensor]) -> None:
        """A view of memory that was written through another tensor: part of it is the new data now."""
        written, kept = moves
        if old is None:
            old = self.constant(alias.detach().clone(), "write", *self._axes_like(alias, new))
        shape, source = alias.shape, self.nodes[new].shape
        terms = (Term(Gather(shape, shape, kept)), Term(Gather(source, shape, written)))
        index = self._add(Combine(terms), [old, new], alias.detach().clone(), "write")
        self._live[id(alias)] = (alias, index)

    def _axes_like(self, tensor: Tensor, index: int) -> tuple[int | None, int | None]:
        like = self.nodes[index]
        if like.sample is not None and tensor.ndim > like.sample and tensor.shape[like.sample] == self.samples:
            return like.sample, None
        return None, None

    def _adopt(self, target: Tensor) -> None:
        """A constant buffer that is about to be written with tracked data becomes a source with its old value."""
        sample = 0 if self.samples is not None and target.ndim and target.shape[0] == self.samples else None
        channel = target.ndim - 1 if target.ndim > 1 else None
        index = self.constant(target.detach().clone(), "buffer", sample, channel)
        self._live[id(target)] = (target, index)

    def _assign(self, target: Tensor, where: Any, value: Any) -> None:
        """``target[where] = value``."""
        if not self.tracked(target):
            self._adopt(target)
        old = self.node(target)
        positions = torch.arange(target.numel(), device=target.device).view(target.shape)
        kept = positions.clone()
        kept[where] = -1
        terms, inputs = [Term(Gather(target.shape, target.shape, kept.flatten()))], [old.index]
        result = target.detach().clone()
        result[where] = value
        filled = torch.full_like(positions, -1)
        if not self.tracked(value):
            slot = result[where].clone()
            filled[where] = torch.arange(slot.numel(), device=target.device).view(slot.shape)
            inputs.append(self.constant(slot, "setitem", *self._axes_like(slot, old.index)))
            terms.append(Term(Gather(slot.shape, target.shape, filled.flatten())))
        else:
            filled[where] = torch.arange(value.numel(), device=target.device).view(value.shape)
            inputs.append(self.node(value).index)
            terms.append(Term(Gather(value.shape, target.shape, filled.flatten())))
        aliases = [t for t in self._aliases(target) if t is not target]
        index = self._add(Combine(tuple(terms)), inputs, result, "setitem")
        if self.nodes[index].sample is None:
            self.nodes[index].sample, self.nodes[index].channel = old.sample, old.channel
        self._store(target, result, aliases, index)

    def _aliases(self, target: Tensor) -> list[Tensor]:
        pointer = target.untyped_storage().data_ptr()
        return [t for t, _ in self._live.values() if t.untyped_storage().data_ptr() == pointer]

    # ---- precision and places --------------------------------------------------------------------------------

    def _cast_all(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            if not value.is_floating_point() or value.dtype == self._dtype:
                return value
            if id(value) not in self._casts:
                cast = value.detach().to(self._dtype)
                self._casts[id(value)] = (value, cast)
                if id(value) in self._origin:
                    self._origin[id(cast)] = (cast, self._origin[id(value)][1])
            return self._casts[id(value)][1]
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return value
        if isinstance(value, list | tuple):
            return type(value)(self._cast_all(v) for v in value)
        if isinstance(value, dict):
            return {k: self._cast_all(v) for k, v in value.items()}
        return value

    def _place(self) -> str:
        """The module path and the user's source line of the call that is being recorded."""
        path = self._stack[-1][0] or "the model"
        frame: Any = sys._getframe(1)
        while frame is not None:
            module = frame.f_globals.get("__name__", "")
            if not module.startswith(("torch.", "nrm.")) and module != "torch":
                return f"{path}, {frame.f_code.co_filename}:{frame.f_lineno}"
            frame = frame.f_back
        return path


class Call:
    """One call as a builder of the vocabulary sees it."""

    def __init__(
        self, recorder: Recorder, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        self.recorder = recorder
        self.func = func
        self.name = name
        self.args = args
        self.kwargs = kwargs
        self.result = result

    def tracked(self, value: Any) -> bool:
        """Whether a value is a tensor that depends on the input."""
        return self.recorder.tracked(value)

    def one(self, op: Op, *tensors: Tensor) -> list[tuple[Tensor, Op, list[int]]]:
        """The usual case: one result, made from the given tensors."""
        return [(self.result, op, [self.index(t) for t in tensors])]

    def index(self, tensor: Tensor) -> int:
        """The node of a tensor; a constant among the terms becomes a source."""
        if self.tracked(tensor):
            return self.recorder.node(tensor).index
        sample, channel = self._axes(tensor)
        return self.recorder.constant(tensor, self.name, sample, channel)

    def _axes(self, tensor: Tensor) -> tuple[int | None, int | None]:
        for other in tensors_in((self.args, self.kwargs)):
            if self.tracked(other) and other.ndim == tensor.ndim:
                node = self.recorder.node(other)
                if node.sample is None or tensor.shape[node.sample] == other.shape[node.sample]:
                    return node.sample, node.channel
        return None, None


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Every tensor inside nested tuples, lists, dicts and dataclass-like outputs."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict) or (hasattr(value, "keys") and hasattr(value, "__getitem__")):
        for key in value.keys():  # noqa: SIM118
            yield from tensors_in(value[key])
    elif isinstance(value, list | tuple):
        for one in value:
            yield from tensors_in(one)


def owner_of(node: Node) -> Tensor:
    """The sample of every entry of a node's tensor."""
    if node.owner is not None:
        return node.owner
    assert node.sample is not None
    count = node.shape[node.sample]
    shape = [count if axis == node.sample else 1 for axis in range(node.value.ndim)]
    return torch.arange(count, device=node.value.device).view(shape).expand(node.shape)


def _without_inplace(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, dict[str, Any], tuple[Any, ...], bool]:
    """A functional call with ``inplace=True`` as its out-of-place form."""
    if getattr(func, "__module__", "") != "torch.nn.functional":
        return func, kwargs, args, False
    try:
        bound = inspect.signature(func).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return func, kwargs, args, False
    if not bound.arguments.get("inplace"):
        return func, kwargs, args, False
    bound.arguments["inplace"] = False
    return func, bound.kwargs, bound.args, True


def _owns_storage(tensor: Tensor) -> bool:
    return tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


def _overlap(written: Tensor, alias: Tensor) -> tuple[Tensor, Tensor]:
    """For every entry of ``alias``: where it lies in ``written`` (-1: nowhere), and itself if it was not written."""
    size = written.untyped_storage().nbytes() // written.element_size()
    slots = torch.full((size,), -1, dtype=torch.long, device=written.device)
    positions = torch.arange(size, device=written.device)
    slots[positions.as_strided(written.shape, written.stride(), written.storage_offset()).reshape(-1)] = torch.arange(
        written.numel(), device=written.device
    )
    places = positions.as_strided(alias.shape, alias.stride(), alias.storage_offset()).reshape(-1)
    inside = slots[places]
    own = torch.arange(alias.numel(), device=alias.device)
    return inside, torch.where(inside < 0, own, torch.full_like(own, -1))
