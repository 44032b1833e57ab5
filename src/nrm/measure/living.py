"""Which edges of a stream are alive: those on a way from where walks begin to the output, by other edges inside."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from nrm.questions import StreamEnd, feeds


class LivingEdges:
    """Chooses edges by scores, and leaves out what no walk takes.

    ``exists`` marks which pairs are edges, ``(writers, readers)`` or with positions. In a ``plain`` measure biases take
    shares and walks begin in every branch; in a contrast they begin with the stream, and where constants are added.
    """

    def __init__(
        self, writers: Sequence[StreamEnd], readers: Sequence[StreamEnd], exists: Tensor, plain: bool
    ) -> None:  # fmt: skip
        self.writers, self.readers, self.exists, self._plain = writers, readers, exists, plain

    def best(self, number: int, scores: Tensor) -> Tensor:
        """At most so many living edges with the largest scores; further ones take the places of dead ones."""
        order = scores.masked_fill(~self.exists, -torch.inf).flatten().argsort(descending=True, stable=True)
        low, high = 0, int(self.exists.sum())  # the living part of a prefix grows with the prefix
        if int(self.of(self.exists).sum()) <= number:
            return self.of(self.exists)
        while low < high:
            middle = (low + high + 1) // 2
            if int(self.of(self._prefix(order, middle)).sum()) <= number:
                low = middle
            else:
                high = middle - 1
        found = self.of(self._prefix(order, low))
        return found if bool(found.any()) else self._thinned(self.of(self._prefix(order, low + 1)), number, order)

    def _thinned(self, inside: Tensor, number: int, order: Tensor) -> Tensor:
        """What is left of the first ways that come to life, if they are more than wanted at once."""
        ranks = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
        waiting = [sorted(inside.flatten().nonzero()[:, 0].tolist(), key=ranks.tolist().__getitem__)]
        while waiting:  # the last edges first, many at once where they can all go
            if int(inside.sum()) <= number:
                return inside
            some = [at for at in waiting.pop() if bool(inside.flatten()[at])]
            fewer = self.of(inside & ~self._marks(some))
            if bool(fewer.any()) and (len(some) == 1 or int(fewer.sum()) > number):
                inside = fewer
            elif len(some) > 1:
                waiting += [some[: len(some) // 2], some[len(some) // 2 :]]
        if int(inside.sum()) <= number:
            return inside
        straight = self.exists & (self._begins.bool()[:, None] & self._ends.bool()[None]).view(
            *self.exists.shape[:2], *(1,) * (self.exists.ndim - 2)
        )
        at = next(at for at in order.tolist() if bool(straight.flatten()[at]))  # one edge is a way as well
        return self._marks([at])

    def _prefix(self, order: Tensor, number: int) -> Tensor:
        return self._marks(order[:number]) & self.exists

    def _marks(self, places: Tensor | list[int]) -> Tensor:
        """Some places of the table, marked."""
        at = torch.as_tensor(places, dtype=torch.long, device=self.exists.device)
        return torch.zeros_like(self.exists).flatten().index_fill(0, at, True).view(self.exists.shape)

    def of(self, inside: Tensor) -> Tensor:
        """The edges that lie on a way from where walks begin to the output, by other edges that are inside."""
        flat = inside.any(2) if inside.ndim > 2 else inside
        edges, inner = flat.float(), self.branches
        written, used = self._begins, self._ends
        for _ in range(len(self.writers)):
            read = (edges.T @ written) > 0
            now = self._begins.bool() | ((inner.T @ read.float()) > 0)
            if torch.equal(now.float(), written):
                break
            written = now.float()
        for _ in range(len(self.readers)):
            write = (edges @ used) > 0
            now = self._ends.bool() | ((inner @ write.float()) > 0)
            if torch.equal(now.float(), used):
                break
            used = now.float()
        found = written.bool()[:, None] & used.bool()[None]
        return inside & found.view(*found.shape, *(1,) * (inside.ndim - 2))

    @cached_property
    def branches(self) -> Tensor:
        """Which reader leads to which writer inside a branch, ``(readers, writers)``."""
        return torch.tensor([[float(feeds(r, w)) for w in self.writers] for r in self.readers])

    @cached_property
    def _begins(self) -> Tensor:
        """Which writers walks begin with; where biases take shares, they begin in every branch."""
        return torch.tensor([float(self._plain or w.kind in ("embedding", "constant")) for w in self.writers])

    @cached_property
    def _ends(self) -> Tensor:
        return torch.tensor([float(r.kind == "logits") for r in self.readers])
