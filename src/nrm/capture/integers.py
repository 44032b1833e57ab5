"""The integers of the user's input on their way to embeddings: which input they are, and the sample of every entry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nrm.capture.arguments import tensors_in
from nrm.capture.names import COPIES, MOVES, READS
from nrm.capture.samples import Whose, named


@dataclass(frozen=True, eq=False)
class _KnownIntegers:
    """Integers of the user: the name of the input if they are as given, and the sample of every entry if known."""

    tensor: Tensor
    name: str | None
    owner: Tensor | None


class Integers:
    """Every integer tensor that is, or was computed from, the user's input, by identity."""

    def __init__(self, batch: int) -> None:
        self._batch = batch
        self._known: dict[int, _KnownIntegers] = {}

    def add(self, tensor: Tensor, name: str, whose: Whose) -> None:
        """Declares integers of the input, and where its samples lie in them."""
        owner = whose.owner
        if whose.axis is not None:
            along = torch.arange(self._batch, device=tensor.device)
            owner = along.view(-1, *(1,) * (tensor.ndim - whose.axis - 1)).expand(tensor.shape)
        self._known[id(tensor)] = _KnownIntegers(tensor, name, owner)

    def __contains__(self, tensor: Any) -> bool:
        return id(tensor) in self._known

    def name(self, tensor: Any) -> str | None:
        """The name of the input that these integers are, as they were given."""
        known = self._known.get(id(tensor))
        return None if known is None else known.name

    def follow(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Remembers what a call makes of integers: a movement carries samples along, what keeps the shape keeps them.

        ``func`` is called again, on the samples.
        """
        results = tensors_in(result)
        if name in READS or all(t.is_floating_point() for t in results):
            return
        first = self._known.get(id(args[0])) if args else None
        copied = first.name if first is not None and name in COPIES else None
        owners: list[Tensor | None] = [None] * len(results)
        if first is not None and first.owner is not None:
            if name in MOVES:
                owners = [*tensors_in(func(first.owner.contiguous().clone(), *args[1:], **kwargs))]
            else:
                owners = [first.owner if t.shape == first.owner.shape else None for t in results]
        for tensor, owner in zip(results, owners, strict=True):
            if not tensor.is_floating_point():
                self._known[id(tensor)] = _KnownIntegers(tensor, copied, owner)

    def embedded(self, looked_up: Any, value: Tensor) -> Whose | None:
        """Where the samples lie in the embedding of integers, if it is known where they lie in those."""
        known = self._known.get(id(looked_up))
        if known is None or known.owner is None or known.owner.shape != value.shape[:-1]:
            return None
        return named(known.owner[..., None].expand(value.shape), self._batch)
