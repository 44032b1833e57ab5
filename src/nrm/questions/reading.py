"""Reading what a user writes in brackets: indices, slices, masks and labels, as values that compare and hash."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from nrm.errors import QuestionError


class IndexSpan(NamedTuple):
    """A slice that can be compared and hashed."""

    start: int | None
    stop: int | None
    step: int | None

    @property
    def slice(self) -> slice:
        """The slice itself."""
        return slice(*self)

    def __str__(self) -> str:
        text = f"{'' if self.start is None else self.start}:{'' if self.stop is None else self.stop}"
        return text if self.step is None else f"{text}:{self.step}"


@dataclass(frozen=True, eq=False)
class Fixed:
    """A mask, label map or list of indices inside a value: a copy of its own, equal if all its entries are."""

    tensor: Tensor

    @classmethod
    def of(cls, values: Any, what: str) -> Fixed:
        """The user's data as it is now; later changes to it change nothing here."""
        try:
            return cls(torch.as_tensor(values).detach().clone())
        except (TypeError, ValueError, RuntimeError):
            raise QuestionError(f"{what} cannot be read as a tensor", got=repr(values)[:120]) from None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Fixed) or self.tensor.dtype != other.tensor.dtype:
            return False
        return torch.equal(self.tensor.cpu(), other.tensor.cpu())

    def __hash__(self) -> int:
        return hash((tuple(self.tensor.shape), self.tensor.dtype))

    def __str__(self) -> str:
        if self.tensor.numel() <= 8:
            return str(self.tensor.tolist())
        shape = "x".join(map(str, self.tensor.shape))
        if self.tensor.dtype == torch.bool:
            return f"<{shape} mask with {int(self.tensor.sum())} of {self.tensor.numel()}>"
        return f"<{shape} {str(self.tensor.dtype).removeprefix('torch.')}>"


def integer(value: Any, what: str) -> int:
    """An integer of any kind but a truth value."""
    if not isinstance(value, bool):
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise QuestionError(f"{what} is not an integer", got=repr(value)[:80])


def is_many(value: Any) -> bool:
    """Whether an index names several places at once."""
    return isinstance(value, list | range | set | frozenset) or (
        isinstance(value, Tensor | np.ndarray) and value.ndim > 0
    )


def read_indices(index: Any) -> Any:
    """An int; ``("at", i, j)`` for a tuple; ``("any", ...)`` for a list, whose entries may be lists, one per sample."""
    if isinstance(index, Tensor | np.ndarray) and index.ndim > 0:
        if index.dtype in (torch.bool, np.dtype(bool)):
            index = _true_places(index)
        index = index.tolist()
    if isinstance(index, tuple):
        return ("at", *(integer(i, "an index") for i in index))
    if is_many(index):
        return ("any", *(read_indices(i) for i in (index if isinstance(index, list | range) else sorted(index))))
    return integer(index, "an index")


def _true_places(mask: Any) -> Tensor:
    if mask.ndim > 1:
        raise QuestionError("a mask of several axes is not a list of indices", got=f"shape {tuple(mask.shape)}",
                            hint="a.where(mask)")  # fmt: skip
    return torch.as_tensor(mask).nonzero()[:, 0]


def read_item(item: Any) -> Any:
    """One entry of ``a[...]``: an int, a span, an ellipsis, or fixed indices."""
    if isinstance(item, slice):
        parts = (item.start, item.stop, item.step)
        return IndexSpan(*(None if p is None else integer(p, "a bound of a slice") for p in parts))
    if item is Ellipsis:
        return item
    if is_many(item):
        return Fixed.of(sorted(item) if isinstance(item, set | frozenset) else item, "an index")
    return integer(item, "an index")
