"""An oracle for piecewise linear networks: LRP-0 with biases as inputs is gradient x input / output."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import nrm

Function = Callable[[Tensor, Tensor], Tensor]


class TwoBranches(nn.Module):
    """A function of two linear layers of the input, each (samples, 6), and a linear layer without bias after it."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function
        self.y, self.z = nn.Linear(4, 6), nn.Linear(4, 6)
        self.weight = nn.Parameter(torch.randn(3, 24))

    def forward(self, x: Tensor) -> Tensor:
        """Three outputs per sample."""
        both = self.function(self.y(x), self.z(x)).reshape(len(x), -1)
        return both @ self.weight[:, : both.shape[1]].T


def check_gradient(function: Function, samples: int) -> Any:
    """The relevance of the input, and the mass of the input cut, of a function of two branches; its measure."""
    torch.manual_seed(samples)
    model = TwoBranches(function).double().eval()
    x = torch.randn(samples, 4, dtype=torch.float64)
    variable = x.clone().requires_grad_()
    output = model(variable)[:, 1]
    (gradient,) = torch.autograd.grad(output.sum(), variable)
    R = nrm.measure(model, x, target=1, rules="lrp-0", bias="input")
    torch.testing.assert_close(R(R.input), x * gradient / output.detach()[:, None], rtol=1e-9, atol=1e-9)
    assert "can be trusted" in str(R.check())
    return R
