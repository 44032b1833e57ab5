"""Own ops: telling the library how relevance passes a function it does not know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from nrm.capture.call import Call
from nrm.capture.names import function_name
from nrm.capture.ops import Linear
from nrm.capture.vocabulary import VOCABULARY, Steps
from nrm.errors import RuleError
from nrm.operators import Function


def _linear_in_first(c: Call, input: Tensor, *args: Any, **kwargs: Any) -> Steps:
    """A function that is linear in its first argument: its transpose is its gradient."""
    if any(c.tracked(a) for a in (*args, *kwargs.values())):
        return None
    func = c.func

    def function(v: Tensor) -> Tensor:
        result: Tensor = func(v, *args, **kwargs)
        return result

    map = Function(input.shape, c.result.shape, function, batched=False, positive=False, name=c.name)
    return c.one(Linear(map, "linear"), input)


READINGS: dict[str, Callable[..., Steps]] = {
    "activation": VOCABULARY["relu"],
    "move": VOCABULARY["roll"],
    "linear": _linear_in_first,
}


def register(function: str | Callable[..., Any], reading: str | Callable[..., Steps]) -> None:
    """Tells how a torch function is read: what its call means for relevance.

    ``reading`` is ``"activation"`` (elementwise: relevance goes to the same position), ``"move"`` (every output entry
    is a copy of an input entry; found by probing), ``"linear"`` (linear in its first argument), or a builder that gets
    the call and its arguments and returns its steps. ``nrm.testing.check_op`` tests the result.

    ``function`` is the function or its name; one that ``torch.library.custom_op`` made is called ``"library::op"``.

    >>> register("sinc", "activation")
    """
    name = function if isinstance(function, str) else function_name(function)
    if isinstance(reading, str):
        if reading not in READINGS:
            raise RuleError(f"unknown reading {reading!r}", expected=", ".join(map(repr, READINGS)) + " or a builder")
        reading = READINGS[reading]
    if isinstance(function, str) and not _exists(name):
        raise RuleError(
            f"torch has no function {name!r}",
            expected="the name of a torch function, 'library::op' for one of torch.ops, or the function itself",
        )
    VOCABULARY[name] = reading


def _exists(name: str) -> bool:
    library, _, op = name.rpartition("::")
    homes = [getattr(torch.ops, library)] if library else [torch, Tensor, torch.nn.functional]
    return any(hasattr(home, op) for home in homes)
