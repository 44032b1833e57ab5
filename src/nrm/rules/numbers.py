"""The numbers that rules are made with: what is no number, or not finite, is refused where the rule is made."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from nrm.errors import RuleError


def read_number(rule: object, name: str, value: Any, low: float = -math.inf) -> float:
    """A finite number from ``low``; anything else would give relevances that are NaN, or no measure at all.

    >>> import nrm
    >>> nrm.Gamma(-1)
    Traceback (most recent call last):
    ...
    nrm.errors.RuleError: Gamma cannot have this gamma
      got:      gamma=-1
      expected: a finite number from 0
    """
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value) or value < low:
        expected = "a finite number" if low == -math.inf else f"a finite number from {low:g}"
        raise RuleError(_what(rule, name), got=f"{name}={value!r}"[:120], expected=expected)
    return float(value)


def read_numbers(rule: object, name: str, values: Any) -> tuple[float, ...]:
    """One number for each factor of a product, or for each term of a sum, in their order."""
    if not isinstance(values, list | tuple) or not values:
        raise RuleError(
            _what(rule, name),
            got=f"{name}={values!r}"[:120],
            expected="a tuple of numbers, one for each, in their order",
        )
    return tuple(read_number(rule, name, value) for value in values)


def _what(rule: object, name: str) -> str:
    return f"{type(rule).__name__} cannot have this {name}"


def read_bounds(rule: object, low: Any, high: Any) -> None:
    """Checks bounds of inputs: finite numbers or tensors of them, or None; the lower one is not above the other."""
    for name, value in (("low", low), ("high", high)):
        if isinstance(value, Tensor):
            if value.is_complex() or not bool(torch.isfinite(value).all()):
                raise RuleError(_what(rule, name), expected="a tensor of finite numbers")
        elif value is not None:
            read_number(rule, name, value)
    if low is None or high is None:
        return
    try:
        crossed = bool((torch.as_tensor(low, device="cpu") > torch.as_tensor(high, device="cpu")).any())
    except (
        RuntimeError
    ):  # shapes that do not broadcast against each other are compared with the input, which names both
        return
    if crossed:
        raise RuleError(
            "the bounds of an input are the wrong way round", got=f"low={low!r}, high={high!r}"[:120],
            expected="low <= high",
        )  # fmt: skip
