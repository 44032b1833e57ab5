"""Questions about several steps of a recurrent layer at once.

A step is a tensor of its own. An axis of steps has one answer per step; passing through any of some steps is an event
about walks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nrm.errors import QuestionError
from nrm.memory import fitting
from nrm.questions.frame import pick
from nrm.questions.stops import frame_at
from nrm.questions.sweep import Base, Site, sweep
from nrm.questions.values import Partition, Set
from nrm.steps import Arrivals, Network


def steps_of(partition: Partition, count: int) -> Tensor:
    """The steps of a partition into steps, in the shape of its axes."""
    numbers = torch.arange(count)
    for choice in partition.chosen:
        numbers = pick(numbers, choice, f"{partition} ({count} steps)", signed=True)
    return numbers


def steps_visited(chosen: Set, count: int, samples: int) -> dict[int, list[bool]]:
    """A set of several steps: each of them, with the samples that it is meant for (a single entry: for all)."""
    items = chosen.expression[1][1:]
    nested = [isinstance(i, tuple) and i[0] == "any" for i in items]
    if not any(nested):
        return {step: [True] for step in sorted({_step(i, count, chosen) for i in items})}
    if not all(nested) or len(items) != samples:
        raise QuestionError(
            f"the steps do not fit the samples at layer {chosen.layer.name!r}", got=f"{len(items)} entries",
            expected=f"{samples} lists, one set of steps per sample",
        )  # fmt: skip
    own = [{_step(i, count, chosen) for i in item[1:]} for item in items]
    return {step: [step in one for one in own] for step in sorted(set[int]().union(*own))}


def pair_table(network: Network, base: Base, first: Sequence[int], second: Sequence[int], memory: int) -> Tensor:
    """The joint relevance of every node of one list with every node of another: ``(batch, first, second)``.

    All restarts share one sweep, each with a place of its own on the stack.
    """
    table = _restarted(network, base, first, second, memory)
    other = _restarted(network, base, second, first, memory).transpose(1, 2)
    same = torch.tensor([[a == b for b in second] for a in first], device=table.device)
    return table + other.masked_fill(same, 0.0)


def _restarted(network: Network, base: Base, upper: Sequence[int], lower: Sequence[int], memory: int) -> Tensor:
    """The table where the first node is not below the second."""
    nodes, batch = network.tape.nodes, network.tape.batch
    like = nodes[network.tape.output].value
    table = like.new_zeros(batch, len(upper), len(lower))
    widest = max(node.value.numel() for node in nodes[min(lower) : max(upper) + 1]) if min(lower) <= max(upper) else 1
    many = fitting(memory, widest * like.element_size())
    for begin in range(0, len(upper), many):
        _restart(network, base, upper[begin : begin + many], lower, table[:, begin : begin + many])
    return table


def _restart(network: Network, base: Base, upper: Sequence[int], lower: Sequence[int], table: Tensor) -> None:
    """Fills the rows of some upper nodes, each with a place of its own on the stack."""
    starts = {}
    for k, i in enumerate(upper):
        arrived = base.arrivals.get(i)
        if arrived is not None:
            one = table.new_zeros(len(upper), *(1,) * network.tape.nodes[i].ndim)
            one[k] = 1.0
            starts[i] = arrived.masked(one)

    def read(site: Site, here: Arrivals) -> Arrivals | None:
        relevance = network.relevance(here) if site.node in lower and site == Site(site.node) else None
        if relevance is not None:
            sums = frame_at(network, site).to_samples(relevance).flatten(2).sum(2).T
            for k in (k for k, j in enumerate(lower) if j == site.node):
                table[:, :, k] = sums
        return here if site.node > min(lower) or site.consumer is not None else None

    sweep(network, starts, read)


def _step(index: Any, count: int, chosen: Set) -> int:
    if not isinstance(index, int) or not -count <= index < count:
        raise QuestionError(
            f"layer {chosen.layer.name!r} has no such step", got=str(index), expected=f"0 to {count - 1}"
        )
    return index % count
