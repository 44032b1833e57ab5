"""Levels: how many mixing steps lie between a tensor and the inputs, and the weights of additive relevance.

In a proper layered network every walk has one neuron in every layer, and additive relevance gives each of them the same
share. In any other network a tensor stands for all layers between its level and that of whoever reads it: on the way
its neurons are copied, and a copy belongs to the neuron it copies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from nrm.questions.sweep import Site
from nrm.steps import Network


def levels(network: Network) -> list[int]:
    """For every tensor the longest way from the inputs in mixing steps; wherever walks begin is level 0.

    Elementwise functions, data movement, products and folded norms stay on the level of what they read.
    """
    found: list[int] = []
    for node in network.tape.nodes:
        found.append(max((found[j] for j in node.inputs), default=0) + node.op.mixes)
    return found


def additive_weights(network: Network, chosen: Mapping[Site, Tensor]) -> dict[Site, Tensor]:
    """The weights of some neurons, boolean masks ``(1, *shape)`` by site, so that all neurons together have 1.

    A set of a tensor holds all its copies, a set of an edge only those on the way to its consumer.
    """
    level, output, dtype = levels(network), network.tape.output, network.tape.dtype
    total = level[output] + 1
    copies: dict[Site, Tensor] = {}
    weights: dict[Site, Tensor] = {}
    for site, mask in chosen.items():
        if site.port:  # a walk begins here, at level 0
            weights[site] = mask.to(dtype) * (level[site.node] / total)
        elif site == Site(output):
            weights[site] = mask.to(dtype) / total
        readers = network.tape.consumers[site.node] if site.consumer is None else [site.consumer]
        for consumer in () if site.port else readers:
            edge = Site(site.node, consumer)
            copies[edge] = copies[edge] | mask if edge in copies else mask
    for edge, mask in copies.items():
        assert edge.consumer is not None
        weights[edge] = mask.to(dtype) * ((level[edge.consumer] - level[edge.node]) / total)
    return {site: weight for site, weight in weights.items() if bool(weight.any())}


def cut_weights(network: Network, chosen: Mapping[Site, Tensor], cuts: Sequence[Sequence[Site]]) -> dict[Site, Tensor]:
    """The weights of neurons in some cuts only, each with an equal share; sites outside them have no weight."""
    weights: dict[Site, Tensor] = {}
    for site in (site for cut in cuts for site in cut):
        tensor = Site(site.node, port=site.port)
        masks = [chosen[s] for s in dict.fromkeys((tensor, site)) if s in chosen]
        if masks:
            mask = masks[0] if len(masks) == 1 else masks[0] | masks[1]
            share = mask.to(network.tape.dtype) / len(cuts)
            weights[site] = weights[site] + share if site in weights else share
    return weights
