"""Exact splits of sorting: an entry's weight at a rank is the share of the way on which it has that rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nrm.capture.contrast.splits import splits
from nrm.capture.contrast.step import Exact, Pair, Piece, Step
from nrm.errors import CaptureError
from nrm.operators import LinearMap, WeightChange

LARGEST = 2**27
"""Lines whose orders on the way are more numbers than this are not looked through."""


@dataclass(frozen=True, eq=False)
class PerLine(LinearMap):
    """Lines along an axis to others: every line has a matrix ``(ranks, entries)`` of its own."""

    inside: torch.Size
    outside: torch.Size
    dim: int | None
    """The axis of the lines; None: all entries are one line."""
    weight: Tensor
    """The matrices, one per line, ``(*lines, ranks, entries)``."""

    def apply(self, x: Tensor) -> Tensor:
        return self._along(x, self._lines, self.weight, self.outside)

    def transpose(self, y: Tensor) -> Tensor:
        return self._along(y, self._with_ranks, self.weight.mT, self.inside)

    @property
    def _lines(self) -> torch.Size:
        return torch.Size([self.inside.numel()]) if self.dim is None else self.inside

    @property
    def _with_ranks(self) -> torch.Size:
        """The shape of the result with an axis of ranks, also if it has one rank and no axis."""
        return torch.Size(self.weight.shape[-2] if d == (self.dim or 0) else n for d, n in enumerate(self._lines))

    def _along(self, x: Tensor, shape: torch.Size, weight: Tensor, outside: torch.Size) -> Tensor:
        axis = (self.dim or 0) + 1
        lines = x.reshape(x.shape[0], *shape).movedim(axis, -1).unsqueeze(-1)
        return (weight @ lines).squeeze(-1).movedim(-1, axis).reshape(x.shape[0], *outside)

    def reweight(self, change: WeightChange) -> PerLine:
        return PerLine(self.inside, self.outside, self.dim, change(self.weight))


@splits("sort", "topk", "kthvalue", "median", "nanmedian")
def _ranked(step: Step, input: Pair, *args: Any, **kwargs: Any) -> Exact:
    name, shape, outside = step.node.function, input.shape, step.node.shape
    first, rest = kwargs.get("k", args[0] if args else 1), args[1:]
    if name == "topk":
        dim, largest = _given(kwargs, rest, dim=-1, largest=True)
        begin, step_by = (shape[dim] - 1, -1) if largest else (0, 1)
        ranks = [begin + step_by * r for r in range(int(first))]
    elif name == "kthvalue":
        (dim,) = _given(kwargs, rest, dim=-1)
        ranks = [int(first) - 1]
    elif name == "sort":
        dim, descending = _given(kwargs, args, dim=-1, descending=False)
        ranks = list(range(shape[dim]))[:: -1 if descending else 1]
    else:
        (dim,) = _given(kwargs, args, dim=None)
        count = shape.numel() if dim is None else shape[dim]
        ranks = [(count - 1) // 2]
    axis = None if dim is None else dim % len(shape)
    return step.mixed(lambda: (Piece(PerLine(shape, outside, axis, _by_rank(step, input, axis, ranks))),))


def _given(kwargs: dict[str, Any], args: tuple[Any, ...], **defaults: Any) -> list[Any]:
    """Arguments in their order, wherever they were given."""
    placed = dict(zip(defaults, args, strict=False))
    return [kwargs.get(name, placed.get(name, default)) for name, default in defaults.items()]


def _by_rank(step: Step, x: Pair, dim: int | None, ranks: list[int]) -> Tensor:
    """The matrices of all lines along an axis; None: the median of everything is that of one line."""
    x, dim = (x.reshape(-1), 0) if dim is None else (x, dim)
    shape = x.shape
    size = shape[dim]
    if size**3 // 2 > LARGEST:
        raise CaptureError(
            f"{step.node.function} of so long a line is not split between two runs", where=f"layer {step.node.name!r}",
            got=f"{size} entries", expected=f"at most {round((2 * LARGEST) ** (1 / 3))}",
        )  # fmt: skip
    lines = Pair(*(v.movedim(dim, -1).reshape(-1, size) for v in x))
    weight = torch.stack([_shares(a, b)[ranks] for a, b in zip(*lines, strict=True)])
    return weight.reshape(*(n for d, n in enumerate(shape) if d != dim), len(ranks), size)


def _shares(here: Tensor, there: Tensor) -> Tensor:
    """The share of the way on which every entry has every rank, the smallest first: ``(ranks, entries)``."""
    gap = here - there
    level, rise = there[:, None] - there, gap[:, None] - gap
    times = torch.where(rise == 0, torch.zeros_like(rise), -level / torch.where(rise == 0, torch.ones_like(rise), rise))
    turns = torch.unique(torch.cat([times[(times > 0) & (times < 1)], times.new_tensor([0.0, 1.0])]))
    middle, length = (turns[1:] + turns[:-1]) / 2, turns[1:] - turns[:-1]
    order = (there + middle[:, None] * gap).argsort(dim=-1, stable=True)
    shares = here.new_zeros(len(here), len(here))
    rank = torch.arange(len(here), device=here.device).expand_as(order)
    return shares.index_put_((rank, order), length[:, None].expand(order.shape), accumulate=True)
