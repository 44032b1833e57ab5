"""Whether two runs of a model do the same: control flow, shapes and computed places, op by op."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nrm.capture.contrast.step import Pair
from nrm.capture.ops import Combine, Linear, Source
from nrm.capture.replay import deviates
from nrm.capture.tape import Node, Tape
from nrm.errors import CaptureError
from nrm.operators import LateWeight, LinearMap
from nrm.shapes import address_of


def form(node: Node) -> tuple[Any, ...]:
    """What two runs that do the same have in common at a node: the call, its place, what it reads, its shape."""
    return node.function, node.module, node.inputs, node.shape, type(node.op)


def compare(here: Tape, there: Tape) -> None:
    """Refuses two runs that do not share one structure, and names the first op that differs."""
    for a, b in zip(here.nodes, there.nodes, strict=False):
        if form(a) != form(b):
            raise _other_way(a, b)
    if len(here.nodes) != len(there.nodes) or here.output != there.output:
        longer = max(here.nodes, there.nodes, key=len)
        raise _other_way(longer[min(len(here.nodes), len(there.nodes), len(longer) - 1)], None)


def _other_way(a: Node, b: Node | None) -> CaptureError:
    what = "the same ops in both runs"
    if b is not None and (a.function, a.inputs) == (b.function, b.inputs):
        got = f"shape {tuple(a.shape)} here, {tuple(b.shape)} in the reference"
        hint = "inputs of equal shapes: pad or align them, so that every position has its counterpart"
    else:
        got = f"{a.function} here, {'nothing' if b is None else b.function} in the reference"
        hint = "a reference for which the model takes the same way"
    return CaptureError(
        "the two runs of a contrast do different things", where=f"first at layer {a.name!r}", got=got, expected=what,
        hint=hint,
    )  # fmt: skip


def check_constants(here: Node, there: Node, below: Sequence[Pair]) -> None:
    """Refuses a step whose weights, scales or places differ between the runs: they were computed from the input."""
    a, b = here.op, there.op
    if isinstance(a, Source):
        return
    same = _same(a, b)
    if same and isinstance(a, Linear) and here.recall is not None:  # what a function reads cannot be compared
        (x, y), (value, other) = below[0], (here.value, there.value)
        same = deviates(a, [x[None]], a.map.apply((x - y)[None])[0], value - other) is None
    if same:
        return
    places = isinstance(a, Combine) and isinstance(b, Combine) and not _same(_moves(a), _moves(b))
    raise CaptureError(
        "entries are taken from other places in the two runs of a contrast" if places else
        "a constant that is computed from the input differs between the two runs of a contrast",
        where=f"layer {here.name!r}", got=f"{here.function} with other {'places' if places else 'numbers'} in each",
        expected="the same in both runs: a difference there is nobody's share",
        hint="a reference that is closer to the input (the same routing, order, mask and padding)",
    )  # fmt: skip


def _moves(op: Combine) -> tuple[LinearMap | None, ...]:
    return tuple(term.move for term in op.terms)


def differing_choice(node: Node) -> CaptureError:
    """The complaint about a choice by a condition that differs, and is no function of one tensor's entries."""
    return CaptureError(
        "a condition chooses other entries in the two runs of a contrast", where=f"layer {node.name!r}",
        got=f"{node.function} whose condition differs, and whose condition and branches are no elementwise functions "
        "of one tensor", expected="a choice that is the same in both runs: what a condition changes is nobody's share",
        hint="a reference that is closer to the input; torch.maximum, clamp and relu have splits of their own",
    )  # fmt: skip


def _same(a: Any, b: Any) -> bool:
    """Whether two values are equal, but for functions, which cannot be compared."""
    if a is b:
        return True
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        if a.shape != b.shape:
            return False
        return _is_shared(a, b) or torch.equal(a, b)
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    if dataclasses.is_dataclass(a) and not isinstance(a, type):
        return type(a) is type(b) and all(_same(getattr(a, name), getattr(b, name)) for name in _fields(type(a)))
    return True if callable(a) else bool(a == b)


def _is_shared(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors of one shape are the same numbers in one place, which need not be looked at."""
    if isinstance(a, LateWeight) or isinstance(b, LateWeight):
        return isinstance(a, LateWeight) and isinstance(b, LateWeight) and a.is_same(b)
    place = address_of(a), a.storage_offset(), a.stride()
    return place == (address_of(b), b.storage_offset(), b.stride()) and place[0] != 0


@functools.cache
def _fields(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))
