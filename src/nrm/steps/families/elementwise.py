"""Elementwise functions, and the softmax."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from nrm.capture import Node, Pointwise, Softmax
from nrm.steps.family import Family, family
from nrm.steps.maps import Gated, Scaled, Softmaxed

if TYPE_CHECKING:
    from nrm.steps.assignment import Assignment
    from nrm.steps.network import Network


@family(Pointwise)
class Elementwise(Family):
    """``rho_z = rho (phi(z) - phi(0)) / z``; an offset ``phi(0)`` is an input of its own with the step's density."""

    def connect(self, network: Network, node: Node) -> None:
        i, (j,), op = node.index, node.inputs, node.op
        assert isinstance(op, Pointwise)
        here, below = network.plain(i), network.plain(j)
        if network.is_one(i):
            self._hand_on(network, node)
            return
        if node.function == "relu" and not network.is_one(j):
            network.link(here, below, Gated.by(node.shape, lambda: node.value))
            return
        network.link(here, below, Scaled(node.shape, lambda: _signed(network, secant(network, node))))
        if op.offset != 0:
            offset = torch.full((), op.offset, dtype=node.dtype, device=node.device)
            network.link(here, network.drain(i, "offset"), network.drained(i, lambda: offset))

    def _hand_on(self, network: Network, node: Node) -> None:
        """Relevance itself, whose share ``phi(0) / phi(z)`` the offset takes; where phi(z) is 0 there are no shares."""
        i, (j,), op = node.index, node.inputs, node.op
        assert isinstance(op, Pointwise)
        here, below = network.plain(i), network.plain(j)
        if op.offset == 0:
            network.link(here, below, network.local(i, j))
            return
        offset, everything = op.offset, network.zero == "uniform"

        def share(of_offset: bool) -> Tensor:
            dead = node.value == 0
            taken = (offset / node.value.masked_fill(dead, 1.0)).masked_fill(dead, 0.0)
            kept = (1 - taken).masked_fill(dead, 1.0 if everything else 0.0)
            return _signed(network, taken if of_offset else kept)

        network.link(here, below, Scaled(node.shape, lambda: share(False)))
        network.link(here, network.drain(i, "offset"), network.drained(i, lambda: share(True)))
        if not everything:
            network.link(here, network.drain(i, "sink"), Scaled(node.shape, lambda: (node.value == 0).to(node.value)))

    def ones(self, network: Network, node: Node, is_one: bool) -> tuple[int, ...]:
        """A softmax whose normalizer is held hands relevance on to the logit of the same class, which may be 0."""
        held = node.op.kind == "softmax"
        return node.inputs if is_one or held else ()

    def is_nonnegative(self, network: Network, node: Node) -> bool:
        assert isinstance(node.op, Pointwise)
        return node.op.offset == 0 and not network.rules.softmax(node.index)

    def drains(self, rules: Assignment, node: Node) -> tuple[str, ...]:
        assert isinstance(node.op, Pointwise)
        return ("sink", "offset") if node.op.offset != 0 or rules.softmax(node.index) else ("sink",)


def secant(network: Network, node: Node) -> Tensor:
    """``(phi(z) - phi(0)) / z``, or the difference itself where the unit of z is 1."""
    op, z, y = node.op, network.tape.nodes[node.inputs[0]].value, node.value
    assert isinstance(op, Pointwise)
    rise = y - op.offset if op.offset != 0 else y
    if network.is_one(node.inputs[0]):
        return rise
    if op.offset == 0:
        slope = rise / z
        if not bool(slope.sum().isnan()):  # nowhere is it 0 / 0
            return slope
        return torch.where(z == 0, _derivative(op, z.new_zeros(())).expand_as(z), slope)
    zero = z == 0
    slope = rise / torch.where(zero, torch.ones_like(z), z)
    near = z.abs() <= torch.finfo(z.dtype).eps ** (1 / 3)  # the difference has lost its digits there, the slope has not
    if op.function is None or not bool(near.any()):
        return torch.where(zero, torch.zeros_like(slope), slope)
    return torch.where(near, _derivative(op, z / 2), slope)


def _derivative(op: Pointwise, z: Tensor) -> Tensor:
    """Torch's derivative of the function; 0 where it is not known, or infinite."""
    if op.function is None:
        return torch.zeros_like(z)
    with torch.inference_mode(False), torch.enable_grad():
        point = z.detach().clone().requires_grad_()
        value = op.function(point)
        if not value.requires_grad:
            return torch.zeros_like(z)
        (slope,) = torch.autograd.grad(value.sum(), point)
    return torch.where(torch.isfinite(slope), slope, torch.zeros_like(slope))


def _signed(network: Network, scale: Tensor) -> Tensor:
    return scale.abs() if network.mode else scale


@family(Softmax)
class Softmaxes(Elementwise):
    """A softmax: one-to-one with its normalizer held constant, or by the softmax rule with a remainder as offset."""

    def connect(self, network: Network, node: Node) -> None:
        i, (j,), op = node.index, node.inputs, node.op
        if not network.rules.softmax(i):
            super().connect(network, node)
            return
        assert isinstance(op, Softmax)
        here, logits, dim = network.plain(i), network.tape.nodes[j], op.dim

        def columns() -> tuple[Tensor, Tensor, Tensor]:
            s = node.value
            x = (logits.value - logits.value.amax(dim, keepdim=True)).masked_fill(s == 0, 0.0)
            unit = torch.ones_like(s) if network.is_one(i) else s
            own, other = x * (1 - s), -x * s
            return (own.abs(), other.abs(), unit.abs()) if network.mode else (own, other, unit)

        def remainder() -> Tensor:
            s = node.value
            x = (logits.value - logits.value.amax(dim, keepdim=True)).masked_fill(s == 0, 0.0)
            other = -x * s
            rest = 1 - x * (1 - s) + other - other.sum(dim, keepdim=True)
            return _signed(network, rest if network.is_one(i) else rest * s)

        network.link(here, network.plain(j), Softmaxed(columns, dim))
        network.link(here, network.drain(i, "offset"), network.drained(i, remainder))
