"""What is inside the arguments of a call, and what a call does to them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter


def tensors_in(value: Any) -> list[Tensor]:
    """Every tensor inside nested tuples, lists, dicts and dataclasses."""
    if type(value) in TENSORS:
        return [value]
    found: list[Tensor] = []
    _collect(value, found)
    return found


def tensors_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """Every tensor among the arguments of a call."""
    found: list[Tensor] = []
    _collect_all((*args, *kwargs.values()) if kwargs else args, found)
    return found


PLAIN = {int, float, bool, str, type(None), torch.dtype, torch.device, slice, torch.Size}
"""Types of arguments without tensors inside."""
PARTS = {tuple, list, dict}
"""Types of arguments that are made of others."""
TENSORS = {Tensor, Parameter}
"""Types of tensors, but for those made from them."""


def _collect_all(values: Iterable[Any], found: list[Tensor]) -> None:
    for one in values:
        kind = type(one)
        if kind in TENSORS:  # most are, and every call of the model comes by several times
            found.append(one)
        elif kind not in PLAIN:
            _collect(one, found)


def _collect(value: Any, found: list[Tensor]) -> None:
    kind = type(value)
    if kind in PARTS:
        _collect_all(value.values() if kind is dict else value, found)
    elif isinstance(value, Tensor):
        found.append(value)
    elif kind in PLAIN:
        return
    elif isinstance(value, list | tuple):
        _collect_all(value, found)
    elif isinstance(value, dict) or (hasattr(value, "keys") and hasattr(value, "__getitem__")):
        for _, store in stores_of(value):
            for key in store.keys():  # noqa: SIM118
                _collect(store[key], found)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            _collect(getattr(value, field.name, None), found)


def stores_of(record: Any) -> list[tuple[Any, Any]]:
    """The parts of an object with entries by name: itself, or of a graph one for each kind of its nodes and edges.

    Each with its kind, which is None for what belongs to all. To ask such a graph itself for an entry would make one.
    """
    if not (hasattr(record, "node_items") and hasattr(record, "edge_items") and hasattr(record, "stores")):
        return [(None, record)]
    kinds = {id(store): kind for kind, store in (*record.node_items(), *record.edge_items())}
    return [(kinds.get(id(store)), store) for store in record.stores]


def is_in_place(func: Callable[..., Any]) -> bool:
    """Whether a call by this function writes into its first argument."""
    name = getattr(func, "__name__", "").split(".")[0]  # an op of torch.ops has its overload behind a dot
    if name.startswith("__"):
        return name in AUGMENTED
    return name.endswith("_") and (not name.startswith("_") or name.startswith("_foreach_"))


_OPERATORS = "add sub mul truediv div floordiv mod pow and or xor lshift rshift"
AUGMENTED = {"__setitem__", *(f"__i{name}__" for name in _OPERATORS.split())}
"""Statements like ``y += x``, as functions."""
