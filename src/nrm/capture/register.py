"""Own ops: telling the library how relevance passes a function it does not know."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from nrm.capture.call import Call, of_first
from nrm.capture.contrast import OWN
from nrm.capture.names import function_name, one_name
from nrm.capture.ops import Exact, Linear, Pointwise
from nrm.capture.own_norms import read_norm, split_norm
from nrm.capture.replay import deviates
from nrm.capture.vocabulary import COMPOSED, VOCABULARY, Steps
from nrm.errors import CaptureError, RuleError
from nrm.numbers import percent
from nrm.operators import Function


def _linear_in_first(c: Call, input: Tensor, *args: Any, **kwargs: Any) -> Steps:
    """A function that is linear in its first argument: its transpose is its gradient."""
    if any(c.tracked(a) for a in (*args, *kwargs.values())):
        return None
    function = of_first(c.func, args, kwargs)
    map = Function(input.shape, c.result.shape, function, batched=False, positive=False, name=c.name)
    return c.one(Linear(map, "linear"), input)


def _elementwise(c: Call, input: Tensor, *args: Any, **kwargs: Any) -> Steps:
    """An elementwise function; of a module, which may have weights for its channels, the offset is found in place."""
    if c.module is None:
        return VOCABULARY["relu"](c, input, *args, **kwargs)
    at_zero = c.func(torch.zeros_like(input), *args, **kwargs)
    if at_zero.shape != input.shape or any(c.tracked(a) for a in (*args, *kwargs.values())):
        return None
    offset = float(at_zero.flatten()[0])
    return c.one(Pointwise(offset), input) if bool((at_zero == offset).all()) else None


READINGS: dict[str, Callable[..., Steps]] = {
    "activation": _elementwise,
    "move": VOCABULARY["roll"],
    "linear": _linear_in_first,
    "norm": read_norm,
}


def register(
    function: str | Callable[..., Any], reading: str | Callable[..., Steps], *,
    contrast: Callable[..., Exact | None] | None = None,
) -> None:  # fmt: skip
    """Tells how a torch function, or a module, is read: what its call means for relevance.

    ``reading`` is ``"activation"`` (elementwise: relevance goes to the same position), ``"move"`` (every output entry
    is a copy of an input entry; found by probing), ``"linear"`` (linear in its first argument), ``"norm"`` (groups of
    its input over their length or deviation, times weights, plus a bias: the gains are held), or a builder that gets
    the call and its arguments and returns its steps. ``nrm.testing.check_op`` tests the result.

    ``function`` is the function or its name; one that ``torch.library.custom_op`` made is called ``"library::op"``. The
    class of a module is read as a whole, whatever its ``forward`` does.

    ``contrast`` is its exact split in a measure against a reference: it gets the step and the arguments of the call, a
    ``Pair`` of values in the place of every tensor that depends on the input, and returns ``step.local(...)`` or
    ``step.mixed(...)``. Elementwise functions, linear ones and norms need none, nor does an ``entrywise`` op of one
    tensor.

    >>> register("sinc", "activation")
    """
    if isinstance(reading, str):
        if reading not in READINGS:
            raise RuleError(f"unknown reading {reading!r}", expected=", ".join(map(repr, READINGS)) + " or a builder")
        contrast = split_norm if reading == "norm" and contrast is None else contrast
        reading = READINGS[reading]
    name = function if isinstance(function, str) else function_name(function)
    if isinstance(function, str) and not _exists(name):
        raise RuleError(
            f"torch has no function {name!r}",
            expected="the name of a torch function, 'library::op' for one of torch.ops, or the function itself",
        )
    _refuse_unseen(function)
    name = one_name(name)
    VOCABULARY[name] = _checked(reading)
    COMPOSED.pop(name, None)
    OWN.pop(name, None)
    if contrast is not None:
        OWN[name] = contrast


def _checked(builder: Callable[..., Steps]) -> Callable[..., Steps]:
    """A builder whose steps have to give what the call gave, every time that it is used."""

    @functools.wraps(builder)
    def build(c: Call, *args: Any, **kwargs: Any) -> Steps:
        steps = builder(c, *args, **kwargs)
        for result, op, inputs in steps or ():
            below = [c.recorder.nodes[i].value[None] for i in inputs]
            again = op.compute(below)
            if again is None:
                continue
            _refuse_other(c, builder, deviates(op, below, again[0], result))
            if isinstance(op, Linear) and isinstance(op.map, Function):
                twice, double = op.map.apply(2 * below[0])[0], 2 * op.map.apply(below[0])[0]
                _refuse_other(c, builder, deviates(op, below, twice, double), " of twice its input")
        return steps

    return build


def _refuse_other(c: Call, builder: Callable[..., Steps], share: float | None, what: str = "") -> None:
    if share is None:
        return
    named = getattr(builder, "__qualname__", repr(builder)).strip("_")
    by = "another shape" if share == torch.inf else f"off by {percent(share, 1)} of the largest entry"
    raise CaptureError(
        f"what is registered for {c.name} does not compute what it computes", where=c.recorder.place(),
        got=f"the builder {named!r}: its step gives other values{what}, {by}",
        expected="a step whose map, bias and terms give the result of the call",
        hint="nrm.testing.check_op(function, example) tries a reading",
    )  # fmt: skip


def _refuse_unseen(function: Any) -> None:
    """Complains about what torch does not tell us of when it is called, so that a reading would never be used."""
    if isinstance(function, nn.Module):
        raise RuleError("a module is registered by its class", got=repr(function)[:80],
                        hint=f"nrm.register({type(function).__name__}, ...)")  # fmt: skip
    own_class = isinstance(function, type) and not issubclass(function, nn.Module)
    own = isinstance(function, types.FunctionType) and not hasattr(function, "__wrapped__")
    if own_class or (own and not function.__module__.startswith("torch")):
        raise RuleError(
            "calls of this function are not seen, those of torch inside it are", got=function.__qualname__,
            expected="a function of torch, an op of torch.library.custom_op, or the class of a module",
            hint="put it into a module and register its class, to have it read as a whole",
        )  # fmt: skip


def _exists(name: str) -> bool:
    library, _, op = name.rpartition("::")
    homes = [getattr(torch.ops, library)] if library else [torch, Tensor, torch.nn.functional]
    return any(hasattr(home, op) for home in homes)
