"""Ops of ``torch.ops`` that write into their arguments, and ops on lists of tensors.

An op says in its schema what it writes. One of torch itself is run as the function that everybody calls; one of another
library on copies, so that what it wrote is a result of it: the written tensors then stand for that.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._ops import OpOverload, OpOverloadPacket

from nrm.capture import writes
from nrm.capture.arguments import tensors_in
from nrm.errors import CaptureError

if TYPE_CHECKING:
    from nrm.capture.recorder import Recorder

FOREACH = "_foreach_"
NAMED: dict[str, Callable[..., Any]] = {"norm": torch.linalg.vector_norm}
"""Functions of single tensors that have another name in lists."""


def writing(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> OpOverload | None:
    """The op that is called, if it is one of ``torch.ops`` and writes into arguments."""
    if isinstance(func, OpOverloadPacket):
        func = getattr(func, torch._C._jit_resolve_packet(func._qualified_op_name, *args, **kwargs))
    return func if isinstance(func, OpOverload) and func._schema.is_mutable else None


def is_op(func: Any) -> bool:
    """Whether a function is an op of ``torch.ops``, which may write into any of its arguments."""
    return isinstance(func, OpOverload | OpOverloadPacket)


def written(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """The arguments of a call into which it writes."""
    places = _places(op)
    return tensors_in([args[p] if isinstance(p, int) and p < len(args) else kwargs.get(name) for name, p in places])


@functools.cache
def _places(op: OpOverload) -> tuple[tuple[str, int | None], ...]:
    """The names of the arguments that an op writes, with their positions if they may be given by position."""
    arguments = list(enumerate(op._schema.arguments))
    return tuple(
        (a.name, None if a.kwarg_only else k)
        for k, a in arguments
        if a.alias_info is not None and a.alias_info.is_write
    )


def run(r: Recorder, op: OpOverload, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A call of an op that writes, as calls that are recorded."""
    library, _, own = op._schema.name.rpartition("::")
    twin = _twin(op, own) if library == "aten" else None
    if twin is None:
        return _run_on_copies(r, op, name, args, kwargs)
    with r:
        return twin(*args, **kwargs)


def _twin(op: OpOverload, own: str) -> Callable[..., Any] | None:
    """The function of torch that an op is: ``Tensor.add_`` for ``aten::add_``, ``torch.add`` with ``out``."""
    if own.startswith(FOREACH):
        return getattr(torch, own, None)
    outs = [name for name, place in _places(op) if place is None]
    if not outs:
        return getattr(Tensor, own, None) if own.endswith("_") else None
    function = next((f for home in (torch, F, torch.special, torch.linalg) if (f := getattr(home, own, None))), None)
    if function is None:
        return None

    def called(*args: Any, **kwargs: Any) -> Any:
        given = [kwargs.pop(out) for out in outs]
        return function(*args, **kwargs, out=given[0] if len(given) == 1 else tuple(given))

    return called


def _run_on_copies(r: Recorder, op: OpOverload, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    targets = written(op, args, kwargs)
    if not all(t.is_floating_point() for t in targets):
        raise CaptureError(
            f"{name} writes into integers, which is not followed", where=r.place(),
            expected="an op that returns its result",
        )  # fmt: skip
    for target in targets:
        writes.promote(r, target)
    args, kwargs = r.precision.prepared(args, kwargs, tensors_in((args, kwargs)))

    def on_copies(*args: Any, **kwargs: Any) -> Any:
        """What the op returns, and the tensors that it has written; that alone if there is one and nothing else."""
        mine = {id(t): t.detach().clone() for t in written(op, args, kwargs)}
        copied = _mapped(args, mine), _mapped(kwargs, mine)
        returned = op(*copied[0], **copied[1])
        found = [] if returned is None else list(returned) if isinstance(returned, tuple) else [returned]
        found += mine.values()
        return found[0] if len(found) == 1 else tuple(found)

    result = on_copies(*args, **kwargs)
    found = tensors_in(result)
    new = found[len(found) - len(targets) :]
    before = {id(t): writes.as_it_was(r, t) for t in targets}
    r.record(on_copies, name, _mapped(args, before), _mapped(kwargs, before), result)
    for target, value in zip(targets, new, strict=True):
        writes.store(r, target, value, r.live.pop(id(value))[1])
    returned = found[: len(found) - len(targets)]
    return None if not returned else returned[0] if len(returned) == 1 else tuple(returned)


def _mapped(value: Any, others: dict[int, Tensor]) -> Any:
    if isinstance(value, Tensor):
        return others.get(id(value), value)
    if isinstance(value, list | tuple):
        return type(value)(_mapped(v, others) for v in value)
    return {k: _mapped(v, others) for k, v in value.items()} if isinstance(value, dict) else value


def is_list_op(func: Any) -> bool:
    """Whether a function works on lists of tensors: ``torch._foreach_add`` and its kin."""
    return str(getattr(func, "__name__", "")).startswith(FOREACH)


def run_list(r: Recorder, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An op on lists of tensors, as one call for each of them."""
    full = func.__name__.split(".")[0].removeprefix(FOREACH)
    name, in_place = full.rstrip("_"), full.endswith("_")
    function = NAMED.get(name) or getattr(torch, name, None)
    own = getattr(Tensor, f"{name}_", None) if in_place else None
    if function is None and own is None:
        raise CaptureError(f"torch.{FOREACH}{full} cannot be followed", where=r.place(), hint="a call for each tensor")
    count = next(len(a) for a in (*args, *kwargs.values()) if isinstance(a, list | tuple))
    results = []
    with r:
        for k in range(count):
            mine, named = ([_entry(a, k) for a in args], {n: _entry(a, k) for n, a in kwargs.items()})
            results.append(_call_one(function, own, name, mine, named, in_place))
    return None if in_place else tuple(results)


def _entry(value: Any, k: int) -> Any:
    return value[k] if isinstance(value, list | tuple) else value


def _call_one(function: Any, own: Any, name: str, args: list[Any], kwargs: dict[str, Any], in_place: bool) -> Any:
    if name in ("addcmul", "addcdiv"):  # here the scale has no name, and may be one for each
        scale = [*args[3:], *([kwargs.pop("scalars")] if "scalars" in kwargs else [])]
        args, kwargs = args[:3], {**kwargs, **({"value": float(scale[0])} if scale else {})}
    if name in ("maximum", "minimum") and not isinstance(args[1], Tensor):
        args = [args[0], torch.full_like(args[0], args[1])]
    if own is not None:
        return own(*args, **kwargs)
    result = function(*args, **kwargs)
    return args[0].copy_(result) if in_place else result
