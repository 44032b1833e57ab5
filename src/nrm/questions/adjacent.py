"""Two layers with one linear step between them: all pairs of their channels by one contraction.

Between such layers every walk passes at most one step that mixes channels; everything else on the way keeps them apart
(elementwise functions, batch norm, pooling, residual skips). Densities from above and amounts from below are carried to
that step as they are, for all channels together, and its channel table does the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from nrm.questions.channels import keeps_channels, mixes_channels
from nrm.questions.rise import Pushed, products_at
from nrm.questions.stops import Stop
from nrm.questions.sweep import Site, between, sweep
from nrm.steps import Arrivals, Network, total_of


def contractible(network: Network, upper: Stop, lower: Stop) -> list[int] | None:
    """The steps between two stops that mix channels, if a contraction tabulates their blocks; None if not.

    Both stops have to be cut into channels or groups of them and nothing else, and no walk between them passes two
    steps that mix channels.
    """
    if any(len(stop.blocks) != 1 or stop.blocks[0].channel_labels() is None for stop in (upper, lower)):
        return None
    low, high = lower.site, upper.site
    if low.port or high.port or low.consumer is not None or high.consumer is not None or low.node >= high.node:
        return None
    nodes, route = network.tape.nodes, between(network, low.node, high.node)
    passed = {low.node: 0}
    found = []
    for i in sorted(route - {low.node}):
        node = nodes[i]
        # The walk with most mixing steps counts. One without, by a skip, stays in its channel: the table's diagonal.
        most = max(passed[j] for j in node.inputs if j in route)
        if mixes_channels(network, node):
            most += 1
            found.append(i)
        elif not all(keeps_channels(network, node, p) for p, j in enumerate(node.inputs) if j in route):
            return None
        if most > 1:
            return None
        passed[i] = most
    return found or None


def adjacent_table(
    network: Network,
    high: Site,
    arrivals: Arrivals,
    low: Site,
    values: Pushed,
    below: Pushed | None,
    mixing: Sequence[int],
) -> Tensor | None:
    """``(K, batch, low channels, high channels)``; None is 0.

    ``arrivals`` are at the high site with its event applied; ``values`` push the low site's event (and all below it),
    ``below`` only what lies below the low site.
    """
    parts: list[Tensor] = []

    def meet(site: Site, here: Arrivals) -> Arrivals | None:
        if site == low:
            parts.extend(_straight(network, low, here, values, below))
            return None
        if site.node not in mixing or site.consumer is not None or site.port:
            return here
        (source,) = network.tape.nodes[site.node].inputs
        values.rise_to([source])
        a = values.at(network.plain(source).index, site.node)
        if a is not None:
            parts.extend(map.table(a, rho) for map, rho in network.mixing(site.node, here))
        return None

    sweep(network, {high.node: arrivals}, meet, between(network, low.node, high.node))
    return sum(parts[1:], parts[0]) if parts else None


def _straight(network: Network, low: Site, arrivals: Arrivals, values: Pushed, below: Pushed | None) -> list[Tensor]:
    """Walks that reach the low site without mixing stay in their channel: the diagonal of the table."""
    node = network.tape.nodes[low.node]
    relevance = total_of(products_at(network, low, arrivals, below))
    if relevance is None:
        return []
    m = values.masked(relevance)
    assert node.channel is not None
    m = m.movedim(node.channel + 1, -1)
    m = m.flatten(2, -2).sum(2) if node.sample is not None and m.ndim > 3 else m
    m = m if node.sample is not None else m.flatten(1, -2).sum(1, keepdim=True)
    return [m.diag_embed()]
