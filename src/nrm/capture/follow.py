"""Following a recorded pass: the model runs on other inputs, and what it does is compared with a script, call by call.

The model itself decides what happens next, so that control flow, settings and hooks are those of now. As long as every
call is the next one of the script, with the same nodes, weights and numbers among its arguments, its nodes stand where
they stood, and an op that held nothing of the recorded pass is used again. Every other op is built anew, from what its
call computes now. The first difference ends it, and the pass is recorded instead.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor

from nrm.capture import samples, unseen, writes
from nrm.capture.arguments import tensors_in
from nrm.capture.names import SHAPES, function_name, without_inplace
from nrm.capture.op import Op
from nrm.capture.ops import Source
from nrm.capture.recorder import Recorder
from nrm.capture.samples import Whose
from nrm.capture.script import CONSTANT, MANY, NODE, OWN, PLAIN, CallScript, Constant, Role, ScriptLine, Spec
from nrm.capture.tape import Node

_END = ScriptLine(None, "the end", 0)


class Differs(Exception):
    """A pass does something else than the script that it follows."""


class Follower(Recorder):
    """A recorder that follows a script. Nothing is said about modules: what they are called is in the script."""

    def __init__(self, script: CallScript, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.script = script
        assert script.outline is not None
        self.outline = script.outline
        self.difference: str | None = None
        """What was the first that differed, if something did; also if the model went on after it."""
        self._rest = iter(script.lines)
        self._line = next(self._rest, _END)
        self._shares = script.unchanged()
        self._same: dict[tuple[int, int, int], bool] = {}
        self._versions: dict[int, int] = {}
        self._held: list[Tensor] = []
        self._built: list[int] = []

    def differ(self, how: str) -> Differs:
        """Ends the following; an exception, for the caller to raise."""
        self.difference = self.difference or how
        self._line = _END
        return Differs(how)

    def open(self) -> None:
        if tuple(self.notes) != self.script.opening:
            raise self.differ("other notes")

    def watched(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def close(self, output: Tensor) -> None:
        """At the end of the pass: nothing may be missing, and nothing may have been written unseen."""
        if self.difference is not None:
            raise Differs(self.difference)
        if self._line is not _END or len(self.nodes) != len(self.script.roles):
            raise self.differ(f"it ended before the call of {self._line.name}")
        if self.embedded != self.script.embedded:
            raise self.differ("other integers are embedded")
        if id(output) not in self.live or self.node(output).index != self.outline.output:
            raise self.differ("another tensor is explained")
        if self.constants.reads or self.constants.strangers:
            raise self.differ("values left torch")
        for tensor, _ in self.live.values():
            if unseen.version(tensor) != self._versions[id(tensor)] and tensor.numel():
                raise self.differ("a tensor was written unseen")
        for node, role in ((self.nodes[i], self.script.roles[i]) for i in self._built):
            role.place(node)  # builders may have had their own idea of it

    def draw(self) -> None:
        raise self.differ("random draws")

    # ---- calls -----------------------------------------------------------------------------------------------

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        line = self._line
        if line.func == func:
            equal = self._fits(line, args, kwargs)
            if equal is not None:
                self._line = next(self._rest, _END)
                if line.roles is not None and equal and self._shares:
                    return self._again(line, line.roles, args, kwargs or {})
                if line.idle:
                    return self._idle(func, args, kwargs or {})
                return self._anew(line, args, kwargs or {})
        return self._apart(func, args, kwargs or {})

    def _again(self, line: ScriptLine, roles: tuple[Role, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call whose ops are used again."""
        if line.prepare:
            args, kwargs = self.precision.prepared(args, kwargs, tensors_in((args, kwargs)), line.name)
        if line.wrote:
            return self._written(line, roles[0], args, kwargs)
        result = line.run(*args, **kwargs)
        if type(result) is Tensor:
            self._play(roles[0], result, result)
            return result
        for role, tensor in zip(roles, tensors_in(result), strict=True):
            self._play(role, tensor, tensor)
        return result

    def _play(self, role: Role, tensor: Tensor, value: Tensor) -> None:
        """A node whose op is used again, for a tensor of the model."""
        if value.shape != role.shape or value.dtype is not role.dtype:
            raise self.differ(f"{role.function} gives {tuple(value.shape)}, where it gave {tuple(role.shape)}")
        assert role.op is not None
        self.nodes.append(role.node(role.op, value.detach(), role.recall))
        self.live[id(tensor)] = (tensor, role.index)
        self._versions[id(tensor)] = tensor._version

    def _written(self, line: ScriptLine, role: Role, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """A call that writes its first argument, whose memory nobody else holds."""
        target = args[0]
        plain, named, functional = without_inplace(line.run, args, kwargs)
        twin = line.run if functional else writes.out_of_place(self, line.run)
        result = twin(*plain, **named)
        if result.shape != target.shape or not writes.is_alone(self, target):
            raise self.differ(f"{role.function} writes memory that others hold")
        target.data = result
        self._play(role, target, target)
        found: Tensor = target
        return found

    def _idle(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call that looks at something, or gives its argument back."""
        result = func(*args, **kwargs)
        if isinstance(result, Tensor) and result is not args[0]:
            raise self.differ(f"{function_name(func)} gives another tensor")
        return result

    def _anew(self, line: ScriptLine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call whose ops are built anew."""
        self.constants.made_now = []
        if len(self.nodes) != line.first:
            raise self.differ(f"other steps before {line.name}")
        result = self._run(line.func, line.name, args, dict(kwargs), tensors_in((args, kwargs)))
        if len(self.nodes) != line.stop:
            raise self.differ(f"{line.name} makes other steps")
        return result

    def _apart(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call that is given nothing that depends on the input, or looks at shapes."""
        name = function_name(func)
        if name in SHAPES or name == "get:dtype":
            return func(*args, **kwargs)
        present = tensors_in((args, kwargs))
        if any(id(t) in self.live for t in present):
            raise self.differ(f"{name}, where it was {self._line.name}")
        if torch.is_autocast_enabled("cpu"):
            raise self.differ("autocast")
        self._refuse_vmap(present)
        self.constants.made_now = []
        return self._run_constant(func, name, args, dict(kwargs), present)

    # ---- arguments -------------------------------------------------------------------------------------------

    def _fits(self, line: ScriptLine, args: tuple[Any, ...], kwargs: dict[str, Any] | None) -> bool | None:
        """Whether these are the arguments of the next line, and whether constants among them are equal; None: no."""
        specs, named = line.args, line.kwargs
        if len(args) != len(specs) or len(kwargs or ()) != len(named):
            return None
        equal, live = True, self.live
        for spec, value in zip(specs, args, strict=True):
            kind, what = spec
            if kind == NODE:
                found = live.get(id(value))
                if found is None or found[1] != what:
                    return None
            elif kind == OWN:
                if value is not what:
                    return None
            elif kind == PLAIN:
                if type(value) is not type(what) or value != what:
                    return None
            else:
                fit = self._fit(spec, value)
                if fit is None:
                    return None
                equal = equal and fit
        for key, spec in named.items():
            fit = self._fit(spec, kwargs[key]) if kwargs and key in kwargs else None
            if fit is None:
                return None
            equal = equal and fit
        return equal

    def _fit(self, spec: Spec, value: Any) -> bool | None:
        kind, what = spec
        if kind == NODE:
            found = self.live.get(id(value))
            return True if found is not None and found[1] == what else None
        if kind == OWN:
            return True if value is what else None
        if kind == PLAIN:
            return True if type(value) is type(what) and value == what else None
        if kind == MANY:
            form, specs = what
            if type(value) is not form or len(value) != len(specs):
                return None
            fits = [self._fit(s, v) for s, v in zip(specs, value, strict=True)]
            return None if None in fits else all(fits)
        return self._fit_constant(what, value) if kind == CONSTANT else None

    def _fit_constant(self, known: Constant, value: Any) -> bool | None:
        if not isinstance(value, Tensor) or id(value) in self.live:
            return None
        key = (id(known), id(value), unseen.version(value))
        if key in self._same:
            return self._same[key]
        origin = self.origin.get(id(value))
        if value.shape != known.shape or value.dtype is not known.dtype or self.is_derived(value) is not known.derived:
            return None
        if (None if origin is None else origin[1]) != known.name or self.constants.is_strange(self, value):
            return None
        self._same[key] = found = known.content is not None and torch.equal(known.content, value)
        self._held.append(value)
        return found

    # ---- what builders ask -----------------------------------------------------------------------------------

    def follow(self, tensor: Tensor, index: int) -> None:
        self.live[id(tensor)] = (tensor, index)
        self.derived.pop(id(tensor), None)
        self._versions[id(tensor)] = unseen.version(tensor)

    def shared_write(self, target: Tensor) -> None:
        raise self.differ("memory is written that others hold")

    def renew(self, written: Tensor) -> None:
        if id(written) in self.live:
            self._versions[id(written)] = unseen.version(written)

    def add(self, op: Op, inputs: list[int], value: Tensor, function: str) -> int:
        role = self._role(op, function, value)
        if role.inputs != tuple(inputs):
            raise self.differ(f"{function} reads other tensors")
        node = role.node(op, value.detach())
        parents = [self.nodes[i] for i in inputs]
        if role.by_index:
            self._compare_place(node, role, parents)
        self.nodes.append(node)
        self._built.append(role.index)
        return node.index

    def source(
        self, op: Source, value: Tensor, function: str, sample: int | None, channel: int | None, name: str
    ) -> int:
        role = self._role(op, function, value)
        was = self.script.sources[role.index]
        same = was[:4] == (op.kind, op.made, sample, channel) and (was[4] == name or name.endswith(".constant"))
        if not same:
            raise self.differ(f"{name or function} is another source")
        self.nodes.append(role.node(op, value.detach()))
        self._built.append(role.index)
        return role.index

    def _role(self, op: Op, function: str, value: Tensor) -> Role:
        i = len(self.nodes)
        if i >= len(self.script.roles):
            raise self.differ(f"{function} after the end")
        role = self.script.roles[i]
        if role.function != function or role.kind is not type(op) or role.shape != value.shape:
            raise self.differ(f"{function} {tuple(value.shape)}, where it was {role.function} {tuple(role.shape)}")
        if role.dtype is not value.dtype or role.device != value.device:
            raise self.differ(f"{function} in {value.dtype}")
        return role

    def _compare_place(self, node: Node, role: Role, parents: list[Node]) -> None:
        """Where samples lie may depend on indices: it is found anew, and has to be where it was."""
        whose: Whose = samples.follow(node.op, parents, node.shape, self.samples)
        same = whose.axis == role.sample and (whose.owner is None) == (role.owner is None)
        if same and whose.owner is not None and role.owner is not None:
            same = torch.equal(whose.owner, role.owner)
        if not same:
            raise self.differ(f"{node.function} takes entries of other samples")
