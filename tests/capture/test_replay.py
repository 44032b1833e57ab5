"""A tape computes what its model computes for other inputs as well: what relevance holds constant is not constant."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from capture.replay import check_capture, numbers
from nrm.capture import capture, reads, replay


def _masked(x: Tensor) -> Tensor:
    y = x.clone()
    y[x < 0] = 0.25
    return y.sum(1)


def _filled(x: Tensor) -> Tensor:
    mask = (x > 0).float()
    mask *= 2.0
    return (x * mask).cumsum(1)


def _ranked(x: Tensor) -> Tensor:
    order = x.argsort(1, descending=True)
    return x.gather(1, order) * torch.arange(1.0, 1.0 + x.shape[1], dtype=x.dtype)


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu written as a mask": lambda x: x * (x > 0),
    "entries set by a mask": _masked,
    "a mask as a float, written in place": _filled,
    "sorted by places": _ranked,
    "the larger of two": lambda x: torch.maximum(x, 0.5 - x).sum(1),
    "the two largest": lambda x: x.topk(2, 1).values,
    "root mean square": lambda x: F.rms_norm(x, (4,)),
    "unit length": lambda x: F.normalize(x, dim=1),
    "attention": lambda x: torch.softmax(x[:, :, None] * x[:, None], -1) @ x[:, :, None],
    "a written-out activation": lambda x: 0.5 * x * (1 + torch.tanh(x + 0.04 * x**3)),
    "an unknown function": lambda x: torch.linalg.vector_norm(x, dim=1),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_depends_on_the_input_is_computed_again(name: str) -> None:
    check_capture(FUNCTIONS[name], numbers(3, 4))


def test_layers_with_statistics_and_gates() -> None:
    torch.manual_seed(0)
    check_capture(nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.GELU(), nn.Linear(6, 2)).double(), numbers(3, 4))

    class Reader(nn.Module):
        def __init__(self, kind: type[nn.RNNBase]) -> None:
            super().__init__()
            self.rnn = kind(4, 5, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.rnn(x)[0][:, -1]

    for kind in (nn.RNN, nn.GRU, nn.LSTM):
        check_capture(Reader(kind).double(), numbers(2, 3, 4), tolerance=1e-9)


def test_many_values_at_once() -> None:
    """A stack is replayed as its members are one by one, whether or not torch can map the function."""
    for function in (lambda x: torch.softmax(x, 1), lambda x: torch.where(x.sort(1)[0] > 0, x, -x), _masked):
        tape = capture(nn.Sequential(nn.Identity(), _Module(function)), numbers(3, 4))
        stack = torch.stack([numbers(3, 4, seed=s) for s in range(5)])
        values = {tape.inputs[0]: stack}
        for node in tape.nodes[1:]:
            below = {i: values.get(i, tape.nodes[i].value[None]) for i in reads(node)}
            if any(i in values for i in below):
                values[node.index] = replay(node, below)
        expected = torch.stack([function(x) for x in stack])
        torch.testing.assert_close(values[tape.output], expected)


class _Module(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)
