"""The torch side of the drawn networks: modules with functional ops, and weights from a seed.

Plain chains need no class of their own. Each class here is one way in which walks can split, meet or begin late.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ACTIVATIONS: dict[str, tuple[Callable[[], nn.Module], Callable[[Tensor], Tensor]]] = {
    "relu": (nn.ReLU, F.relu),
    "in-place relu": (lambda: nn.ReLU(inplace=True), F.relu),
    "leaky": (lambda: nn.LeakyReLU(0.2), lambda v: F.leaky_relu(v, 0.2)),
    "tanh": (nn.Tanh, torch.tanh),
    "gelu": (nn.GELU, F.gelu),
    "silu": (nn.SiLU, F.silu),
}


def filled(model: nn.Module, seed: int, sparse: bool = False) -> nn.Module:
    """Random weights from a seed alone; norms of both signs; some weights exactly 0 if `sparse`."""
    random = torch.Generator().manual_seed(seed)
    model = model.double().eval()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=random, dtype=torch.float64) / max(1, p[0].numel()) ** 0.5)
            if sparse:
                p.mul_(torch.rand(p.shape, generator=random) < 0.7)
        for m in model.modules():
            if isinstance(m, nn.modules.batchnorm._BatchNorm):
                m.running_mean.copy_(torch.randn(m.running_mean.shape, generator=random) * 0.3)
                m.running_var.copy_(torch.rand(m.running_var.shape, generator=random) + 0.5)
                signs = torch.randint(0, 2, m.weight.shape, generator=random) * 2 - 1
                m.weight.copy_(signs * (0.5 + torch.rand(m.weight.shape, generator=random)))
    return model


class Residual(nn.Module):
    """relu(branch + skip): the skip is the identity or linear, the branch may be normed and scaled."""

    def __init__(
        self, width: int, hidden: int, out: int, bias: bool, norm: bool, scale: float, shortcut: bool, act: str
    ):
        super().__init__()
        self.lin1 = nn.Linear(width, hidden, bias=bias)
        self.act1 = ACTIVATIONS[act][0]()
        self.lin2 = nn.Linear(hidden, width, bias=bias)
        if norm:
            self.bn2 = nn.BatchNorm1d(width)
        if shortcut:
            self.short = nn.Linear(width, width, bias=bias)
        self.head = nn.Linear(width, out, bias=bias)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        branch = self.lin2(self.act1(self.lin1(x)))
        if hasattr(self, "bn2"):
            branch = self.bn2(branch)
        if self.scale != 1:
            branch = branch * self.scale
        skip = self.short(x) if hasattr(self, "short") else x
        return self.head(torch.relu(branch + skip))


class Stream(nn.Module):
    """A residual stream of two blocks behind a linear stem, with or without a norm at each block's door."""

    def __init__(self, width: int, hidden: int, out: int, bias: bool, norm: bool):
        super().__init__()
        self.stem = nn.Linear(width, width, bias=bias)
        for k in "12":
            if norm:
                self.add_module(f"norm{k}", nn.BatchNorm1d(width))
            self.add_module(f"up{k}", nn.Linear(width, hidden, bias=bias))
            self.add_module(f"act{k}", nn.ReLU())
            self.add_module(f"down{k}", nn.Linear(hidden, width, bias=bias))
        self.head = nn.Linear(width, out, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        for k in "12":
            door = getattr(self, f"norm{k}", lambda t: t)(h)
            h = h + getattr(self, f"down{k}")(getattr(self, f"act{k}")(getattr(self, f"up{k}")(door)))
        return self.head(h)


class Nested(nn.Module):
    """(a(x) + x) + b(x): the inner sum has one consumer, so all three terms are one column."""

    def __init__(self, width: int, out: int, bias: bool):
        super().__init__()
        self.a, self.b = nn.Linear(width, width, bias=bias), nn.Linear(width, width, bias=bias)
        self.head = nn.Linear(width, out, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu((self.a(x) + x) + self.b(x)))


class Signs(nn.Module):
    """A difference, a factor and a constant: all one sum."""

    def __init__(self, width: int, out: int, bias: bool):
        super().__init__()
        self.lin = nn.Linear(width, width, bias=bias)
        self.head = nn.Linear(width, out, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.lin(x) - 0.5 * x + 0.3))


class NormedSum(nn.Module):
    """A norm right after a residual sum: folded into every term."""

    def __init__(self, width: int, out: int, bias: bool):
        super().__init__()
        self.lin, self.norm = nn.Linear(width, width, bias=bias), nn.BatchNorm1d(width)
        self.head = nn.Linear(width, out, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.norm(self.lin(x) + x)))


class Doubled(nn.Module):
    """The same tensor twice in one sum, and the same module twice in another."""

    def __init__(self, width: int, out: int, bias: bool):
        super().__init__()
        self.lin, self.head = nn.Linear(width, width, bias=bias), nn.Linear(width, out, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(x)
        h = h + h
        return self.head(torch.relu(self.lin(h) + self.lin(x)))


class Self(nn.Module):
    """A linear output with two consumers, one of them the sum that it is fused into."""

    def __init__(self, width: int, hidden: int, out: int, bias: bool):
        super().__init__()
        self.lin, self.head = nn.Linear(width, hidden, bias=bias), nn.Linear(hidden, out, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        u = self.lin(x)
        return self.head(torch.tanh(u) + u)


class InPlace(nn.Module):
    """Every op overwrites its input."""

    def __init__(self, width: int, out: int, bias: bool):
        super().__init__()
        self.lin, self.head = nn.Linear(width, width, bias=bias), nn.Linear(width, out, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        h = self.lin(x)
        h += x
        h.relu_()
        return self.head(h)


class Folded(nn.Module):
    """A sum of reshaped tensors: data movement inside a fused step."""

    def __init__(self, out: int, bias: bool):
        super().__init__()
        self.lin, self.head = nn.Linear(4, 4, bias=bias), nn.Linear(4, out, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        h = self.lin(x).reshape(-1, 2, 2) + x.reshape(-1, 2, 2)
        return self.head(torch.relu(h).flatten(1))


class Graph(nn.Module):
    """Nodes of a graph, (batch, nodes, features): sums over neighbours after a linear step, and before one."""

    def __init__(self, edges: Tensor, weights: Tensor, how: str, features: int, out: int, bias: bool):
        super().__init__()
        self.source, self.target = edges
        self.weights, self.how = weights, how
        self.lin1, self.lin2 = nn.Linear(features, 2, bias=bias), nn.Linear(2, 2, bias=bias)
        self.head = nn.Linear(2 * (int(edges.max()) + 1), out, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        h = self.lin1(x)
        if self.how == "sum":
            h = torch.zeros_like(h).index_add(1, self.target, h[:, self.source] * self.weights[:, None])
        else:
            at = self.target[:, None].expand(len(x), -1, h.shape[2])
            h = torch.zeros_like(h).scatter_reduce(1, at, h[:, self.source], self.how, include_self=False)
        h = h.relu()
        h = torch.zeros_like(h).index_add(1, self.target, h[:, self.source]) + h
        return self.head(self.lin2(h).relu().flatten(1))


class NormedDense(nn.Module):
    """A DenseNet in small: norms read concatenations of linear outputs."""

    def __init__(self, width: int, hidden: int, out: int, bias: bool):
        super().__init__()
        self.lin1 = nn.Linear(width, hidden, bias=bias)
        self.norm2 = nn.BatchNorm1d(width + hidden)
        self.lin2 = nn.Linear(width + hidden, hidden, bias=bias)
        self.norm3 = nn.BatchNorm1d(width + 2 * hidden)
        self.head = nn.Linear(width + 2 * hidden, out, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        a = self.lin1(x)
        b = self.lin2(torch.relu(self.norm2(torch.cat([x, a], 1))))
        return self.head(torch.relu(self.norm3(torch.cat([x, a, b], 1))))


class Merge(nn.Module):
    """Two branches that meet in a sum or a concatenation; either may end in its linear step or in an activation."""

    def __init__(self, width: int, hidden: int, out: int, bias: bool, how: str, second: str):
        super().__init__()
        self.a, self.b = nn.Linear(width, hidden, bias=bias), nn.Linear(width, hidden, bias=bias)
        self.head = nn.Linear(hidden * (1 + (how == "cat")), out, bias=bias)
        self.how, self.second = how, second

    def forward(self, x: Tensor) -> Tensor:
        u, v = torch.relu(self.a(x)), self.b(x)
        if self.second == "tanh":
            v = torch.tanh(v)
        return self.head(u + v if self.how == "add" else torch.cat([u, v], 1))


class Dense(nn.Module):
    """Each step reads everything before it."""

    def __init__(self, width: int, hidden: int, out: int, bias: bool):
        super().__init__()
        self.lin1 = nn.Linear(width, hidden, bias=bias)
        self.lin2 = nn.Linear(width + hidden, hidden, bias=bias)
        self.head = nn.Linear(width + 2 * hidden, out, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([x, torch.relu(self.lin1(x))], 1)
        x = torch.cat([x, torch.relu(self.lin2(x))], 1)
        return self.head(x)


class Late(nn.Module):
    """A second input in the middle, as in a recurrent cell."""

    def __init__(self, first: int, second: int, hidden: int, out: int, bias: bool):
        super().__init__()
        self.read = nn.Linear(first, hidden, bias=bias)
        self.keep = nn.Linear(hidden, hidden, bias=bias)
        self.take = nn.Linear(second, hidden, bias=bias)
        self.head = nn.Linear(hidden, out, bias=bias)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = torch.tanh(self.read(x))
        return self.head(torch.tanh(self.keep(h) + self.take(y)))


class Exits(nn.Module):
    """Two exits, the first in the middle; the explained output has them side by side."""

    def __init__(self, width: int, hidden: int, early: int, late: int, bias: bool):
        super().__init__()
        self.lin1, self.early = nn.Linear(width, hidden, bias=bias), nn.Linear(hidden, early, bias=bias)
        self.lin2, self.late = nn.Linear(hidden, hidden, bias=bias), nn.Linear(hidden, late, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.lin1(x))
        return torch.cat([self.early(h), self.late(torch.relu(self.lin2(h)))], 1)


class Token(nn.Module):
    """A parameter used as an activation."""

    def __init__(self, width: int, own: int, hidden: int, out: int, bias: bool):
        super().__init__()
        self.token = nn.Parameter(torch.zeros(1, own))
        self.lin = nn.Linear(own + width, hidden, bias=bias)
        self.head = nn.Linear(hidden, out, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.lin(torch.cat([self.token.expand(x.shape[0], -1), x], 1))))


class Reused(nn.Module):
    """One linear layer and one activation, each called `calls` times."""

    def __init__(self, width: int, out: int, bias: bool, calls: int):
        super().__init__()
        self.cell = nn.Linear(width, width, bias=bias)
        self.act = nn.LeakyReLU(0.3)
        self.head = nn.Linear(width, out, bias=bias)
        self.calls = calls

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.calls):
            x = self.act(self.cell(x))
        return self.head(x)


class Gate(nn.Module):
    """sigmoid(gate) * signal: nothing to the gate."""

    def __init__(self, width: int, hidden: int, out: int, bias: bool, gate_first: bool):
        super().__init__()
        self.gate, self.signal = nn.Linear(width, hidden, bias=bias), nn.Linear(width, hidden, bias=bias)
        self.head = nn.Linear(hidden, out, bias=bias)
        self.gate_first = gate_first

    def forward(self, x: Tensor) -> Tensor:
        gate, signal = torch.sigmoid(self.gate(x)), torch.tanh(self.signal(x))
        return self.head(gate * signal if self.gate_first else signal * gate)


class ConvResidual(nn.Module):
    """conv, norm, residual block with norm, average pool, linear: a ResNet in small."""

    def __init__(self, channels: int, width: int, out: int, bias: bool):
        super().__init__()
        self.conv1 = nn.Conv1d(channels, width, 2, bias=bias)
        self.bn1 = nn.BatchNorm1d(width)
        self.conv2 = nn.Conv1d(width, width, 3, padding=1, bias=bias)
        self.bn2 = nn.BatchNorm1d(width)
        self.pool = nn.AvgPool1d(2)
        self.head = nn.Linear(width, out, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn1(self.conv1(x)))
        x = torch.relu(self.bn2(self.conv2(x)) + x)
        return self.head(torch.flatten(self.pool(x), 1))
