"""Which blocks of a question any density can reach, so that the others need not be carried."""

from __future__ import annotations

import torch
from torch import Tensor

from nrm.errors import RuleError
from nrm.questions.stops import Stop
from nrm.questions.sweep import Base, Site, arrivals_at, between, pull_to
from nrm.steps import Arrivals, Network


def live_blocks(network: Network, base: Base, stop: Stop, top: Site) -> list[int]:
    """The blocks at which any density may arrive from ``top``, the highest site where a question chooses walks.

    Densities of both signs may add up to 0, and are not nothing: an event above can tell them apart.
    """
    if stop.count == 1:
        return [0]
    try:
        arrivals = arrivals_at(network, base, top) if stop.site == top else _bound(network, base, top, stop.site)
    except RuleError:  # of a step whose single weights are not known, nothing is known to be left out
        return list(range(stop.count))
    if arrivals is None:
        return []
    size: Tensor | float = 0.0
    for node, rho in arrivals.items():
        reach = network.reach(node)
        size = size + (rho.abs() if reach is None else rho.abs() * reach).expand(rho.shape[0], *stop.frame.shape)
    found: list[int] = stop.read(torch.as_tensor(size)).flatten(2).amax((0, 1)).nonzero()[:, 0].tolist()
    return found


def _bound(network: Network, base: Base, top: Site, goal: Site) -> Arrivals | None:
    """What arrives at a site if nothing cancels on the way from a higher one."""
    arrivals = arrivals_at(network, base, top)
    if arrivals is None:
        return None
    end = goal.node if goal.consumer is None else goal.consumer
    absolute = network.absolute(between(network, end, top.node))
    return pull_to(absolute, top, absolute.magnitudes(arrivals), goal)
