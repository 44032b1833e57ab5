"""Two layers with one linear step between them: all pairs of their channels by one contraction.

Between such layers every walk passes at most one step that mixes channels; everything else on the way keeps them apart
(elementwise functions, batch norm, pooling, residual skips). The message from above and the values from below are
carried to that step as they are, for all channels together, and its channel table does the rest.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from nrm.capture import Linear
from nrm.questions.channels import keeps_channels, mixes_channels
from nrm.questions.sweep import Pushed, Site, between
from nrm.rules import Arrivals, Network, total_of


def mixing_steps(network: Network, low: Site, high: Site) -> list[int] | None:
    """The steps between two sites that mix channels, if every walk passes at most one of them; None if not so."""
    if low.port or high.port or low.consumer is not None or high.consumer is not None or low.node >= high.node:
        return None
    nodes, route = network.tape.nodes, between(network, low.node, high.node)
    passed = {low.node: 0}
    found = []
    for i in sorted(route - {low.node}):
        node = nodes[i]
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
    route, parts = between(network, low.node, high.node), []
    live = {high.node: arrivals}
    for i in sorted(route - {low.node}, reverse=True):
        here = live.pop(i, None)
        if here is None:
            continue
        node = network.tape.nodes[i]
        if i in mixing:
            assert isinstance(node.op, Linear)
            values.rise_to([node.inputs[0]])
            v = values.at(node.inputs[0], i)
            if v is not None:
                parts.append(network.blocks.table(i, node.op, network.densities(i, here), v))
            continue
        for delivery in network.pull(i, here)[0]:
            if delivery.to in route:
                live.setdefault(delivery.to, Arrivals()).add(delivery.arrivals)
    if low.node in live:
        parts += _straight(network, low, live[low.node], values, below)
    return sum(parts[1:], parts[0]) if parts else None


def _straight(network: Network, low: Site, arrivals: Arrivals, values: Pushed, below: Pushed | None) -> list[Tensor]:
    """Walks that reach the low site without mixing stay in their channel: the diagonal of the table."""
    node = network.tape.nodes[low.node]
    if below is not None:
        below.rise_to([*node.inputs, low.node])
    relevance = total_of(network.relevance_parts(low.node, arrivals, below))
    if relevance is None:
        return []
    m = values.masked(relevance)
    assert node.channel is not None
    m = m.movedim(node.channel + 1, -1)
    m = m.flatten(2, -2).sum(2) if node.sample is not None and m.ndim > 3 else m
    m = m if node.sample is not None else m.flatten(1, -2).sum(1, keepdim=True)
    return [m.diag_embed()]
