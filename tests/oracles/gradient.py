"""LRP-0 in its gradient form: gradient x activation of a network whose factors are held, by autograd alone.

With biases as inputs, LRP-0 is the gradient of a network in which every elementwise function is a product with its
secant, and in which secants, attention weights, gates and the statistics of norms are constants. Here they are
detached where torch computes them, in one mode, and autograd does the rest. Gates are sigmoids.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode


def _secant(function: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    def apply(x: Tensor, *_: Any, **__: Any) -> Tensor:
        offset = function(x.new_zeros(()))
        return offset + x * ((function(x) - offset) / x).detach()

    return apply


def _held(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *args, **kwargs: function(*args, **kwargs).detach()


def _layer_norm(x: Tensor, shape: tuple[int, ...], weight: Tensor, bias: Tensor, eps: float = 1e-5, **_: Any) -> Tensor:
    dims = tuple(range(-len(shape), 0))
    deviation = (x.var(dims, correction=0, keepdim=True) + eps).sqrt().detach()
    return (x - x.mean(dims, keepdim=True)) / deviation * weight + bias


def _softmax(x: Tensor, dim: int, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    return torch.softmax(x, dim, dtype=dtype).detach()


def _glu(x: Tensor, dim: int = -1) -> Tensor:
    signal, gate = x.chunk(2, dim)
    return signal * torch.sigmoid(gate).detach()


def _power(x: Tensor, exponent: float) -> Tensor:
    """Roots are lengths of vectors, by which these are divided."""
    found = torch.pow(x, exponent)
    return found.detach() if exponent == 0.5 else found


def _rms_norm(x: Tensor, shape: tuple[int, ...], weight: Tensor, eps: float | None = None) -> Tensor:
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    return x / (x.square().mean(tuple(range(-len(shape), 0)), keepdim=True) + eps).sqrt().detach() * weight


HELD: dict[str, Callable[..., Tensor]] = {
    **{f.__name__: _secant(f) for f in (F.relu, F.gelu, F.silu, F.softplus, F.elu, torch.tanh)},
    "sigmoid": _held(torch.sigmoid),
    "softmax": _softmax,
    "glu": _glu,
    "rsqrt": _held(torch.rsqrt),
    "pow": _power,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
}


class HeldFactors(TorchFunctionMode):
    """Torch with its nonlinear factors detached: values stay, gradients are those of the held network."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return HELD.get(getattr(func, "__name__", ""), func)(*args, **(kwargs or {}))


def gradient_form(model: nn.Module, x: Tensor, target: int, layers: dict[str, nn.Module]) -> dict[str, Tensor]:
    """Activation x gradient / output, of the input (under "input") and of the outputs of some layers."""
    values = {"input": x.clone().requires_grad_()}
    hooks = [
        layer.register_forward_hook(lambda _, __, out, name=name: values.__setitem__(name, out))
        for name, layer in layers.items()
    ]
    try:
        with HeldFactors():
            output = model(values["input"])[:, target]
    finally:
        for hook in hooks:
            hook.remove()
    gradients = torch.autograd.grad(output.sum(), list(values.values()))
    share = {name: v * g for (name, v), g in zip(values.items(), gradients, strict=True)}
    return {name: (s / output.view(-1, *(1,) * (s.ndim - 1))).detach() for name, s in share.items()}
