"""The edges of attention: for every head, query and key the walks that go from this key to this query.

A walk takes an edge through the value at the key, ``A_qk <v_k, rho_q>``, or through the attention weight itself, where
that has a share: ``A_qk <v_k, rho_q>`` with the density of the other half of the product. Either part is one batched
product of densities and values. In a contrast units are differences and constants means; nothing else is different.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nrm.capture import AttentionStep
from nrm.operators import Matmul
from nrm.questions.answer import Answerer
from nrm.questions.frame import Frame
from nrm.questions.plan import Line, Plan, base_lines, result_axes
from nrm.questions.stops import Stop, frame_at
from nrm.questions.sweep import Base, Site
from nrm.steps import Arrivals, Network


def attention_frame(network: Network, step: AttentionStep, label: str) -> Frame:
    """The geometry of the edges of an attention step: (heads, queries, keys), with an axis of one head if it has none.

    Leading axes are those of the product, which may have others where windows are folded into the batch.
    """
    nodes = network.tape.nodes
    node, weights = nodes[step.product], nodes[nodes[step.weights].inputs[0]]
    queries, keys = weights.shape[-2:] if not step.turned else weights.shape[-2:][::-1]
    lead = list(node.shape[:-2])
    owner = None
    if node.owner is not None:
        owner = (node.owner.mT if step.turned else node.owner)[..., :1].expand(*lead, queries, keys)
    elif len(lead) < 2:
        lead.append(1)
    shape = torch.Size([*lead, queries, keys])
    return Frame(label, shape, node.sample, None, network.tape.batch, weights.device, owner)


class AttentionRoute:
    """A question about the edges of one attention step: a table of densities and values, read as any tensor is."""

    def __init__(self, network: Network, step: AttentionStep, stops: Sequence[Stop]) -> None:
        self.network = network
        self.step = step
        (self.stop,) = stops

    def plan(self, *, memory: int, base: Base | None, absolute: bool = False) -> Plan:
        """The base sweep, and one product for each half that has a share."""
        network, nodes = self.network, self.network.tape.nodes
        shape, axes = result_axes([self.stop], network.tape.batch)
        halves = [i for i in (self.step.values, self.step.weights) if network.rules.reached[i]]
        product = Line(f"edges of {nodes[self.step.product].name}", len(halves), sum(nodes[i].flops for i in halves))
        return Plan(
            "densities meet values at every edge", (*base_lines(network, base is not None), product), tuple(shape),
            tuple(axes), network.tape.forward, network.tape.dtype.itemsize, base is not None,
        )  # fmt: skip

    def answer(self, answerer: Answerer, plan: Plan, absolute: bool = False) -> Tensor:
        """``(batch, *axes)``."""
        frame = self.stop.frame
        answerer.guard(max(plan.nbytes, frame.shape.numel() * plan.element))
        table = answerer.like.new_zeros(frame.shape)
        for half in (self.step.values, self.step.weights):
            site = Site(half)
            arrivals = answerer.arrivals_at(Stop(site, frame_at(self.network, site)))
            if arrivals:
                table = table + self._half(half, arrivals).reshape(frame.shape)
        mask = self.stop.mask()
        table = table.abs() if absolute else table
        return self.stop.read((table if mask is None else table * mask[0])[None])[0]

    def _half(self, half: int, arrivals: Arrivals) -> Tensor:
        """The walks through one factor of the product, at every edge."""
        total: Tensor | None = None
        (below,) = self.network.tape.nodes[half].inputs
        unit = self.network.full_unit(self.network.plain(below).index)
        for map, rho in self.network.mixing(half, arrivals):
            for part in map.factors():
                assert isinstance(part.map, Matmul), "an attention step is a product of matrices"
                own = unit if part.a is None else unit * part.a
                weights, values = (part.map.constant, own) if half == self.step.values else (own, part.map.constant)
                table = self._edges(weights, values, rho[0])
                total = table if total is None else total + table
        assert total is not None, "what has arrived is under a rule"
        return total

    def _edges(self, weights: Tensor, values: Tensor, rho: Tensor) -> Tensor:
        """``A_qk <v_k, rho_q>``, of matrices as the product has them."""
        return (weights * (values.mT @ rho)).mT if self.step.turned else weights * (rho @ values.mT)
