"""Recurrent networks twice: as torch's fused modules, and written out with plain ops from the same weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

KINDS: dict[str, tuple[type[nn.RNNBase], dict[str, str]]] = {
    "lstm": (nn.LSTM, {}),
    "gru": (nn.GRU, {}),
    "tanh": (nn.RNN, {}),
    "relu": (nn.RNN, {"nonlinearity": "relu"}),
}


def layer(kind: str, width: int = 3, hidden: int = 4, **options: object) -> nn.RNNBase:
    """A recurrent layer in float64 whose weights are large enough to matter."""
    cls, extra = KINDS[kind]
    rnn = cls(width, hidden, **extra, **options).double().eval()
    with torch.no_grad():
        for p in rnn.parameters():
            p.copy_(torch.randn_like(p) * 0.6)
    return rnn


class Fused(nn.Module):
    """A fused module with a head that reads all steps. Initial states are further inputs, samples first."""

    def __init__(self, rnn: nn.RNNBase, out: int = 2) -> None:
        super().__init__()
        self.rnn = rnn
        size = getattr(rnn, "proj_size", 0) or rnn.hidden_size
        self.head = nn.Linear(size * (2 if rnn.bidirectional else 1), out, bias=rnn.bias).double()
        self.eval()

    def forward(self, x: Tensor, *states: Tensor) -> Tensor:
        given = [s.transpose(0, 1) for s in states]
        hx = None if not given else (given[0] if len(given) == 1 else tuple(given))
        out, _ = self.rnn(x, hx)
        return self.head(out.mean(1 if self.rnn.batch_first else 0))


class Unrolled(nn.Module):
    """The same network in plain ops; ``h`` marks the hidden states, layer by layer and direction by direction."""

    def __init__(self, fused: Fused) -> None:
        super().__init__()
        self.rnn = fused.rnn
        self.head = fused.head
        self.h = nn.Identity()
        self.eval()

    def forward(self, x: Tensor, *states: Tensor) -> Tensor:
        rnn = self.rnn
        xs = list(x.unbind(1 if rnn.batch_first else 0))
        directions = 2 if rnn.bidirectional else 1
        for k in range(rnn.num_layers):
            sides = []
            for d in range(directions):
                suffix = f"l{k}" + ("_reverse" if d else "")
                state = [s[:, k * directions + d] for s in states] or [None, None]
                hs: list[Tensor] = []
                for x_t in xs if d == 0 else xs[::-1]:
                    state = self.step(suffix, x_t, *state)
                    state[0] = self.h(state[0])
                    hs.append(state[0])
                sides.append(hs if d == 0 else hs[::-1])
            xs = sides[0] if directions == 1 else [torch.cat(pair, 1) for pair in zip(*sides, strict=True)]
        return self.head(torch.stack(xs, 1).mean(1))

    def step(self, suffix: str, x: Tensor, h: Tensor | None, c: Tensor | None = None) -> list[Tensor | None]:
        rnn = self.rnn
        w, u, b, d, p = (
            getattr(rnn, f"{n}_{suffix}", None) for n in ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
        )
        if rnn.mode == "GRU":
            return [self.gru(x, h, w, u, b, d)]
        z = F.linear(x, w, b)
        if h is not None:
            z = z + F.linear(h, u, d)
        elif d is not None:
            z = z + d
        if rnn.mode != "LSTM":
            return [torch.tanh(z) if rnn.mode == "RNN_TANH" else torch.relu(z)]
        i, f, g, o = z.chunk(4, 1)
        new = torch.sigmoid(i) * torch.tanh(g)
        c = new if c is None else torch.sigmoid(f) * c + new
        h = torch.sigmoid(o) * torch.tanh(c)
        return [h if p is None else F.linear(h, p), c]

    @staticmethod
    def gru(x: Tensor, h: Tensor | None, w: Tensor, u: Tensor, b: Tensor | None, d: Tensor | None) -> Tensor:
        own = F.linear(x, w, b).chunk(3, 1)
        if h is None:
            assert d is None, "without a state, a bias behind a gate is a matter of taste"
            return (1 - torch.sigmoid(own[1])) * torch.tanh(own[2])
        old = F.linear(h, u, d).chunk(3, 1)
        r, z = torch.sigmoid(own[0] + old[0]), torch.sigmoid(own[1] + old[1])
        return (1 - z) * torch.tanh(own[2] + r * old[2]) + z * h


CELLS = {"lstm": nn.LSTMCell, "gru": nn.GRUCell, "tanh": nn.RNNCell, "relu": nn.RNNCell}


class Loop(nn.Module):
    """The same network as a Python loop over torch's cell (one layer, one direction)."""

    def __init__(self, kind: str, fused: Fused) -> None:
        super().__init__()
        rnn = fused.rnn
        self.cell = CELLS[kind](rnn.input_size, rnn.hidden_size, rnn.bias, **KINDS[kind][1]).double()
        for name, p in self.cell.named_parameters():
            p.data = getattr(rnn, f"{name}_l0").data
        self.head = fused.head
        self.eval()

    def forward(self, x: Tensor, *states: Tensor) -> Tensor:
        state: object = None if not states else tuple(s[:, 0] for s in states)
        state = state[0] if isinstance(state, tuple) and len(state) == 1 else state
        hs = []
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
            hs.append(state[0] if isinstance(state, tuple) else state)
        return self.head(torch.stack(hs, 1).mean(1))


def states(kind: str, rnn: nn.RNNBase, batch: int) -> tuple[Tensor, ...]:
    """Random initial states, samples first."""
    count = rnn.num_layers * (2 if rnn.bidirectional else 1)
    size = getattr(rnn, "proj_size", 0) or rnn.hidden_size
    sizes = (size, rnn.hidden_size) if kind == "lstm" else (size,)
    return tuple(torch.randn(batch, count, n, dtype=torch.float64) for n in sizes)
