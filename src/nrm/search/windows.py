"""The best entry of every column of a step that mixes: a maximum where message passing has a sum.

Columns are pairs of a window of inputs and a row of weights (:class:`nrm.operators.Field`). Whichever of the two a
block of columns has fewer of is gone through one by one; each meets all its partners in one product.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from nrm.errors import QuestionError
from nrm.operators import Field
from nrm.search.branches import Branch
from nrm.steps import Factored, Map, Network

BLOCK = 2**21
"""How many entries are looked at together: enough to keep the arithmetic busy, few enough to stay in fast memory."""
PROBES = 2**34
"""How many entries of a step without known weights may be found one by one."""


def best_in_windows(
    network: Network, field: Field, branch: Branch, maps: list[Map], mine: Tensor, up: Tensor, down: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """The best positive and negative products of the branch's neurons ``mine``, through some of its maps."""
    assert branch.windows is not None
    _refuse_probes(network, field, branch, len(mine))
    p, c = field.locate(branch.at[mine])
    node = network.tape.nodes[network.nodes[branch.to].tensor]
    shares = [a for _, a, _ in factors(field, maps, c[:0])]
    values = [
        None if best is None else [_shared(best.expand(node.value.numel()).view(node.shape), a) for a in shares]
        for best in (up, down)
    ]
    high, low = (torch.zeros(len(mine), dtype=up.dtype, device=mine.device) for _ in range(2))
    for some, row, these in _parts(c, field.width):
        found = factors(field, maps, some)
        weights = [branch.windows[maps[k]][mine[these]] for k, _, _ in found] if len(maps) > 1 else None
        block = Block([rows for _, _, rows in found], row, weights, is_apart(maps))
        for windows, window, those in _parts(p[these], field.width):
            first, second = (None if v is None else _gathered(v, field.taps(windows)) for v in values)
            assert first is not None
            most, least = block.extremes(first, window, those)
            if second is not None:
                most_down, least_down = block.extremes(second, window, those)
                most, least = torch.maximum(most, -least_down), torch.minimum(least, -most_down)
            high[these[those]], low[these[those]] = most.to(up), least.to(up)
    high, low = high.clamp(min=0), low.neg_().clamp(min=0)
    return (high, low) if len(maps) > 1 else signed(high, low, branch.windows[maps[0]][mine])


def _shared(best: Tensor, a: Tensor | float | None) -> Tensor:
    return (best if a is None else a * best).reshape(-1)


def signed(up: Tensor, down: Tensor | None, entry: Tensor) -> tuple[Tensor, Tensor | None]:
    """The best products after one more entry: its sign decides which of them goes where."""
    if down is None:
        return up * entry.clamp(min=0), up * (-entry).clamp(min=0) if bool((entry < 0).any()) else None
    size = entry.abs()
    return torch.where(entry > 0, up, down) * size, torch.where(entry > 0, down, up) * size


def factors(field: Field, maps: list[Map], c: Tensor) -> list[tuple[int, Tensor | float | None, Tensor]]:
    """The parts of some maps on some rows: the number of the map, the share ``a`` (None: 1), the weights."""
    return [(k, a, rows) for k, map in enumerate(maps) for a, rows in map.rows(field, c)]


def is_apart(maps: list[Map]) -> bool:
    """Whether at most one part of these maps has an entry anywhere: positive and negative ones never meet."""
    return all(isinstance(map, Factored) and map.factors.rule.apart for map in maps)


@dataclass(frozen=True, eq=False)
class Block:
    """Some rows, one table per factor, the row of every column, and what each factor is multiplied with in it.

    ``apart`` says that at most one factor has an entry anywhere; otherwise they are added up.
    """

    rows: list[Tensor]
    row: Tensor
    weights: list[Tensor] | None
    apart: bool

    def extremes(self, windows: list[Tensor], window: Tensor, those: Tensor) -> tuple[Tensor, Tensor]:
        """The largest and the smallest ``sum_k weight_k window_k * row_k`` of some columns."""
        if self.apart and self.weights is None and len(windows) > 1:
            each_one = [Block([r], self.row, None, False).extremes([w], window, those)
                        for r, w in zip(self.rows, windows, strict=True)]  # fmt: skip
            return (torch.stack([high for high, _ in each_one]).amax(0),
                    torch.stack([low for _, low in each_one]).amin(0))  # fmt: skip
        row = self.row[those]
        scale = None if self.weights is None else [w[those] for w in self.weights]
        if len(windows[0]) <= len(self.rows[0]):
            one, each, many, other = windows, window, self.rows, row
        else:
            one, each, many, other = self.rows, row, windows, window
        order = torch.argsort(each, stable=True)
        each, other = each[order], other[order]
        positive = all(_nonnegative(t) for t in (*one, *many, *(scale or [])))
        exact = len(one) > 1 or scale is not None
        high, low = (many[0].new_zeros(len(order), dtype=torch.float64 if exact else None) for _ in range(2))
        for value, span in _runs(each, max(1, BLOCK // 4 // many[0].shape[1])):
            if not exact:
                product = many[0].index_select(0, other[span]).mul_(one[0][value])
            else:  # factors may nearly cancel: added up in twice the digits
                product = torch.zeros((), dtype=torch.float64, device=many[0].device)
                for k, (a, b) in enumerate(zip(one, many, strict=True)):
                    part = b.index_select(0, other[span]).double().mul_(a[value].double())
                    product = product + (part if scale is None else part * scale[k][order[span]][:, None])
            high[span] = product.amax(1)
            if not positive:
                low[span] = product.amin(1)
        back = torch.empty_like(order)
        back[order] = torch.arange(len(order), device=order.device)
        return high[back], low[back]


def _runs(each: Tensor, most: int) -> Iterator[tuple[int, slice]]:
    """The runs of equal values of a sorted list, the long ones in pieces."""
    values, counts = torch.unique_consecutive(each, return_counts=True)
    start = 0
    for value, count in zip(values.tolist(), counts.tolist(), strict=True):
        for first in range(start, start + count, most):
            yield value, slice(first, min(first + most, start + count))
        start += count


def _parts(index: Tensor, width: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Distinct values, not too many at once; for the columns that have them, which one, and which columns these are."""
    distinct, number = torch.unique(index, return_inverse=True)
    most = max(1, BLOCK // width)
    if len(distinct) <= most:
        yield distinct, number, torch.arange(len(index), device=index.device)
        return
    order = torch.argsort(number, stable=True)
    sorted_number = number[order]
    for first in range(0, len(distinct), most):
        bounds = torch.tensor([first, first + most], device=index.device)
        begin, end = torch.searchsorted(sorted_number, bounds).tolist()
        yield distinct[first : first + most], sorted_number[begin:end] - first, order[begin:end]


def _gathered(values: list[Tensor], taps: Tensor) -> list[Tensor]:
    """The values in windows, 0 outside the tensor."""
    outside = taps < 0
    index = taps.clamp(min=0)
    found = [v[index] for v in values]
    return [f.masked_fill_(outside, 0) for f in found] if bool(outside.any()) else found


def _nonnegative(values: Tensor) -> bool:
    return not values.numel() or float(values.amin()) >= 0


def _refuse_probes(network: Network, field: Field, branch: Branch, columns: int) -> None:
    if field.sparse and columns * field.width > PROBES:
        raise QuestionError(
            "the single weights of a step are unknown, and it is too large to find them one by one",
            where=network.tape.nodes[branch.leaf or 0].name, got=f"{columns} columns of {field.width} inputs",
            expected=f"at most {PROBES:.0e} connections",
        )  # fmt: skip
