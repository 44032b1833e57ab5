"""The entries between two layers, one by one: derivatives by autograd, perturbations by running the block again.

Written from the definitions and with modules only: a chain of modules is the network, each of them one step.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.autograd.functional import jacobian

from oracles.brute import Block, Network

Function = Callable[[Tensor], Tensor]


def gradient(f: Function, h: Tensor, base: Tensor) -> Tensor:
    """``h_i dF_j/dh_i``."""
    return h[:, None] * jacobian(f, h).T


def integrated(f: Function, h: Tensor, base: Tensor, steps: int = 6) -> Tensor:
    """``(h_i - h'_i)`` times the mean derivative in the middles of so many equal parts of the way."""
    slopes = [jacobian(f, base + (k + 0.5) / steps * (h - base)).T for k in range(steps)]
    return (h - base)[:, None] * torch.stack(slopes).mean(0)


def occlusion(f: Function, h: Tensor, base: Tensor) -> Tensor:
    """``F_j(h) - F_j(h without i)``."""
    rows = []
    for i in range(len(h)):
        without = h.clone()
        without[i] = base[i]
        rows.append(f(h) - f(without))
    return torch.stack(rows)


def shapley(f: Function, h: Tensor, base: Tensor) -> Tensor:
    """The mean effect over all orders in which neurons join."""
    total = torch.zeros(len(h), len(f(h)), dtype=torch.float64)
    for order in itertools.permutations(range(len(h))):
        now = base.clone()
        for i in order:
            before = f(now)
            now[i] = h[i]
            total[i] += f(now) - before
    return total / math.factorial(len(h))


ENTRIES = {"gradient": gradient, "integrated": integrated, "occlusion": occlusion, "shapley": shapley}


def chain(
    modules: Sequence[tuple[str, nn.Module]], x: Tensor, entries: Callable[[Function, Tensor, Tensor], Tensor],
    *, base: float = 0.0, **options: str,
) -> Network:  # fmt: skip
    """The network of one sample whose steps are these modules; what entries do not explain is a bias."""
    net = Network(**options)
    net.source("input", x)
    name, h = "input", x
    for after, module in modules:

        def f(flat: Tensor, shape: torch.Size = h.shape, module: nn.Module = module) -> Tensor:
            return module(flat.reshape(1, *shape))[0].flatten()

        flat = h.flatten()
        with torch.no_grad():
            value = module(h[None])[0]
        matrix = entries(f, flat, torch.full_like(flat, base)).detach()
        channels = torch.arange(value.numel()).reshape(value.shape)
        if value.ndim > 1:  # channels first: one bias neuron for each of them
            channels = torch.arange(value.shape[0]).view(-1, *(1,) * (value.ndim - 1)).expand(value.shape)
        blocks = [Block(name, matrix, None)]
        net.step(after, blocks, value.flatten(), value.flatten() - matrix.sum(0), channels.flatten())
        name, h = after, value
    net.output = name
    return net
