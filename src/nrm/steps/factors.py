"""The factors of rules on linear steps, from the unit of the step's input, formed when they are needed.

Changed weights are as large as the model's own. They are formed anew for every use, except for the last few steps: the
sums of columns are followed by a pull with the same ones.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from nrm.capture import NONNEGATIVE, Node, Tape
from nrm.errors import RuleError
from nrm.operators import Around, Identity, LinearMap
from nrm.rules import Key, Rule
from nrm.steps.maps import Scale

RECENT = 5
"""So many steps' factors are kept: a residual sum and what lies under it until its last branch is pulled."""

LARGE = 2**22
"""The factors of a step with more weights than this are kept alone."""


class FactorPart(NamedTuple):
    """One factor ``diag(a) V``, from the unit of the input; an ``a`` of None is 1."""

    a: Scale
    map: LinearMap
    group: int


@dataclass(frozen=True, eq=False)
class Factors:
    """The factors of one key and group of a rule on a linear step.

    ``rows`` scale the outputs of the step, as a batch norm with gains of both signs does: the rule sees ``rows * W``.
    ``is_one`` says that the unit of the input is 1, else it is the value.
    """

    store: FactorStore
    rule: Rule
    key: Key
    group: int
    map: LinearMap
    below: Node
    is_one: bool
    rows: Tensor | None = None

    @property
    def is_identity(self) -> bool:
        """Whether this is the block of a plain term."""
        return isinstance(self.map, Identity)

    def __call__(self) -> list[FactorPart]:
        return [part for part in self.store.parts(self, self.map) if part.group == self.group]

    def on(self, map: LinearMap, rows: Tensor | None = None) -> list[FactorPart]:
        """The factors on other weights in the place of the step's own, such as single rows of them."""
        return [part for part in self.store.form(self, map, rows) if part.group == self.group]


class FactorStore:
    """Forms factors and keeps those of the last steps.

    ``mode`` is "" for the entries themselves, "absolute" for their absolute values, and "bound" for maps whose sums are
    at least those of absolute entries, and cheaper.
    """

    def __init__(self, tape: Tape, mode: str) -> None:
        self._tape = tape
        self.mode = mode
        self._recent: dict[tuple[Rule, Key, LinearMap, int, bool, bool], list[FactorPart]] = {}
        self._room = 0
        self._nonnegative: dict[int, bool] = {}

    def parts(self, asked: Factors, map: LinearMap) -> list[FactorPart]:
        """The factors of a step; those of the last calls are kept."""
        # Maps are compared by identity: the same weights in another step are formed anew.
        slot = (asked.rule, asked.key, map, asked.below.index, asked.is_one, asked.rows is not None)
        if slot not in self._recent:
            weight = getattr(map, "weight", None)
            size = weight.numel() if isinstance(weight, Tensor) else 0
            while len(self._recent) >= (1 if size > LARGE else RECENT) and self._weights + size > self._room:
                del self._recent[next(iter(self._recent))]
            self._recent[slot] = self.form(asked, map, asked.rows)
        return self._recent[slot]

    @property
    def _weights(self) -> int:
        """The weights that are kept, those of parts with the model's own included."""
        found = (getattr(part.map, "weight", None) for parts in self._recent.values() for part in parts)
        return sum(weight.numel() for weight in found if isinstance(weight, Tensor))

    @contextlib.contextmanager
    def keeping(self, nbytes: int) -> Iterator[None]:
        """Meanwhile factors of more steps are kept, in so many bytes: for many sweeps through the same steps."""
        before, self._room = self._room, nbytes // self._tape.dtype.itemsize
        try:
            yield
        finally:
            self._room = before
            self.forget()

    def form(self, asked: Factors, map: LinearMap, rows: Tensor | None) -> list[FactorPart]:
        """The factors of a rule on a map, as parts from the unit of the input."""
        if rows is not None:
            map = map.reweight(rows.mul)
        if asked.rule.as_is and not asked.is_one:
            parts = [FactorPart(None, map, 0)]
            return parts if not self.mode else [self._absolute(part) for part in parts]
        node, h = asked.below, asked.below.value
        found = asked.rule.within(h, node.sample).factors(asked.key, map, h, self.is_nonnegative(node.index))
        parts = [FactorPart(f.a if asked.is_one else _per_unit(f.a, h, asked.rule), f.map, f.group) for f in found]
        return parts if not self.mode else [self._absolute(part) for part in parts]

    def _absolute(self, part: FactorPart) -> FactorPart:
        a = part.a.abs() if isinstance(part.a, Tensor) else None if part.a is None else abs(part.a)
        return FactorPart(a, _Bounded(part.map) if self.mode == "bound" else part.map.reweight(torch.abs), part.group)

    def forget(self) -> None:
        """Forgets the factors of the last steps."""
        self._recent.clear()

    def is_nonnegative(self, j: int) -> bool:
        """Whether no entry of a tensor is below 0: known from its op, or else looked up once."""
        if j not in self._nonnegative:
            node = self._tape.nodes[j]
            if node.function in NONNEGATIVE:
                known = True
            elif node.op.keeps_sign:
                known = all(self.is_nonnegative(k) for k in node.inputs)
            else:
                known = not node.value.numel() or float(node.value.amin()) >= 0
            self._nonnegative[j] = known
        return self._nonnegative[j]


def _per_unit(a: Tensor | float, h: Tensor, rule: Rule) -> Scale:
    """What stands in the place of activations, over the activations; where those are 0 it makes no difference."""
    if a is h:
        return None
    if not isinstance(a, Tensor):
        raise RuleError(
            f"{rule!r} says that its entries vanish with the input, and has some that do not", got=f"a factor {a}",
            hint="vanishes = False in the rule's class",
        )  # fmt: skip
    zero = h == 0
    return torch.where(zero, torch.zeros_like(a), a / torch.where(zero, torch.ones_like(h), h))


@dataclass(frozen=True, eq=False)
class _Bounded(Around):
    """In the place of a map of absolute entries, something at least as large, upward only."""

    def apply(self, x: Tensor) -> Tensor:
        return self.map.bound(x)

    def transpose(self, y: Tensor) -> Tensor:
        raise AssertionError("a bound goes upward only")

    def reweight(self, change: Callable[[Tensor], Tensor]) -> LinearMap:
        return _Bounded(self.map.reweight(change))
