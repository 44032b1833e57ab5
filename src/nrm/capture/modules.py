"""The modules of a recorded pass: which one is running, what it received, and the name that its result gets."""

from __future__ import annotations

import inspect
import itertools
import threading
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from nrm.capture.anatomy import Anatomy
from nrm.capture.arguments import tensors_in
from nrm.errors import CaptureError

if TYPE_CHECKING:
    from nrm.capture.recorder import Recorder


class Modules:
    """The modules that are running, the innermost last. ``path`` is where that one is in the model."""

    def __init__(self, anatomy: Anatomy) -> None:
        self.path = ""
        self._paths = {id(m): path for path, m in anatomy.modules}
        self._running: list[tuple[str, int, list[int]]] = [("", 0, [])]
        self._thread = threading.get_ident()
        self._probing = False
        self._inside = 0
        self.read_as_whole = False
        """Whether a module was read as a whole."""

    @property
    def opaque(self) -> bool:
        """Whether a module is running that is read as a whole: what it does inside is not recorded."""
        return self._inside > 0

    def enter(self, r: Recorder, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Called before a module runs."""
        if threading.get_ident() != self._thread or self._probing:
            return
        if self._inside or r.own_name(module):
            self._inside += 1
        if self._inside > 1:
            return
        self.path = self._paths.get(id(module), self.path)
        with torch._C.DisableTorchFunction():  # these looks are not calls of the model
            self._running.append((self.path, len(r.nodes), r.indices(args)))
        r.blocks.enter(self.path)

    def leave(self, r: Recorder, module: nn.Module, args: Any, *rest: Any) -> None:
        """Called after a module ran (or failed: None): its output gets its name, and a path lost inside is noticed.

        After a failure torch leaves the keyword arguments out.
        """
        kwargs, output = rest if len(rest) == 2 else ({}, *rest)
        if threading.get_ident() != self._thread or self._probing or len(self._running) < 2:
            return
        if self._inside:
            self._inside -= 1
            if self._inside:
                return
            self._record(r, module, args, kwargs, output)
        floats, known = self._floats(r, output)
        path, begin, given = self._running.pop()
        self.path = self._running[-1][0]
        if self._paths.get(id(module)) is None:
            return
        if given and floats and not known and not self._is_constant(r, module, args, kwargs):
            raise CaptureError(
                "the path from input to output is lost inside a module",
                where=f"{path or 'the model'} ({type(module).__name__})",
                got="a tracked input, but an output computed outside torch's own calls",
                expected="torch functions on tensors (no numpy round trip, .item(), scripted or compiled code)",
                hint=f"write that part with torch functions, or nrm.register({type(module).__name__}, ...)",
            )
        if path:
            _name(r, path, begin, given, known)
            with torch._C.DisableTorchFunction():
                r.blocks.leave(r, path, begin)

    @staticmethod
    def _floats(r: Recorder, output: Any) -> tuple[list[Tensor], list[int]]:
        """The float tensors in what a module gave, and the nodes among them."""
        found = r.live.get(id(output))
        if found is not None and r.nodes[found[1]].shape.numel():  # as of most modules
            return [found[0]], [found[1]]
        with torch._C.DisableTorchFunction():  # these looks are not calls of the model
            floats = [t for t in tensors_in(output) if t.is_floating_point() and t.numel()]
            return floats, r.indices(floats)

    def _record(self, r: Recorder, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """One call of a module that is read as a whole; None for its output says that it failed."""
        name = r.own_name(module)
        if name is None or output is None:
            return
        self.read_as_whole = True
        given = inspect.signature(module.forward).bind(*args, **kwargs)
        self._probing = True
        try:
            with torch._C.DisableTorchFunction():
                if r.indices((args, kwargs)):
                    r.record(Forward(module, r.precision.dtype), name, given.args, given.kwargs, output)
        finally:
            self._probing = False

    def _is_constant(self, r: Recorder, module: nn.Module, args: Any, kwargs: Any) -> bool:
        """Whether a module looks at the shape and type of what it is given only: it is run on other values, too.

        Rotary position embeddings are such modules.
        """
        generator = torch.Generator().manual_seed(0)
        call = Forward(module, r.precision.dtype)
        before = [(b, b.clone()) for b in module.buffers()]
        self._probing = True
        try:
            with torch._C.DisableTorchFunction():
                one = tensors_in(call(*args, **kwargs))
                two = tensors_in(call(*_other(r, args, generator), **_other(r, kwargs, generator)))
                return len(one) == len(two) and all(map(torch.equal, one, two))
        finally:
            self._probing = False
            with torch._C.DisableTorchFunction():
                for buffer, value in before:
                    if not torch.equal(buffer, value):
                        buffer.copy_(value)


def _other(r: Recorder, value: Any, generator: torch.Generator) -> Any:
    """Arguments with other numbers in the place of those that depend on the input.

    No function inside another one: it would call itself, and so keep itself and the recorder alive.
    """
    if isinstance(value, Tensor) and r.tracked(value):
        return value + torch.rand(value.shape, generator=generator).to(value)
    if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
        return type(value)(_other(r, v, generator) for v in value)
    return {k: _other(r, v, generator) for k, v in value.items()} if isinstance(value, dict) else value


class Forward:
    """A module as a function, in the precision of the measure."""

    def __init__(self, module: nn.Module, dtype: torch.dtype) -> None:
        self.module = module
        named = itertools.chain(module.named_parameters(), module.named_buffers())
        self._raised = {n: t.detach().to(dtype) for n, t in named if t.is_floating_point() and t.dtype != dtype}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes."""
        return torch.func.functional_call(self.module, self._raised, args, kwargs)


def _name(r: Recorder, path: str, begin: int, given: list[int], known: list[int]) -> None:
    """Names what a module received and gave. Without tensors among its arguments it received what it read inside."""
    received = given or [i for node in r.nodes[begin:] for i in node.inputs if i < begin]
    if received:
        r.received.setdefault(path, []).append(received[0])
    for position, index in enumerate(known):
        r.names.setdefault(path if position == 0 else f"{path}[{position}]", []).append(index)
        if position == 0 and index >= begin and not r.nodes[index].name:
            r.nodes[index].name = path
