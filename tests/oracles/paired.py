"""The oracle of contrasts: a model run on two inputs at once, its differences carried along by the definitions.

A :class:`Paired` tensor has its value here, its value in the reference, and a ``step``: the difference, as something
that autograd can follow. Every function is written once, from its definition, so that the step of its result is linear
in the steps of its arguments. The gradient of the output's step is then the multiplier ``g`` of every neuron, and
``R(n) = step_n g_n / step of the output``. Nothing of the library is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

AFFINE = {
    "linear", "conv1d", "conv2d", "batch_norm", "add", "sub", "rsub", "neg", "view", "reshape", "flatten", "permute",
    "transpose", "unsqueeze", "squeeze", "getitem", "cat", "stack", "expand", "clone", "contiguous", "sum", "mean",
    "avg_pool1d", "avg_pool2d", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "dropout", "index_add", "index_select",
    "repeat", "chunk", "unbind", "split", "movedim", "masked_fill", "T", "mT", "radd",
}  # fmt: skip
"""Functions that add up and move: exact in the difference as they are."""

KINKED: dict[str, Callable[..., Tensor]] = {"relu": torch.relu, "leaky_relu": F.leaky_relu, "abs": torch.abs,
          "hardtanh": F.hardtanh, "relu6": F.relu6, "clamp": torch.clamp, "hardswish": F.hardswish}  # fmt: skip
SMOOTH: dict[str, Callable[..., Tensor]] = {"tanh": torch.tanh, "sigmoid": torch.sigmoid, "gelu": F.gelu,
          "silu": F.silu, "softplus": F.softplus, "exp": torch.exp, "square": torch.square, "sqrt": torch.sqrt,
          "rsqrt": torch.rsqrt, "log": torch.log, "reciprocal": torch.reciprocal, "erf": torch.erf}  # fmt: skip


class Paired(Tensor):
    """A tensor of two runs; as a tensor it is the one here."""

    there: Tensor
    step: Tensor

    @staticmethod
    def of(here: Tensor, there: Tensor, step: Tensor) -> Paired:
        made = here.detach().as_subclass(Paired)
        made.there, made.step = there.detach(), step
        return made

    @staticmethod
    def begin(here: Tensor, there: Tensor) -> Paired:
        """An input: its step is the difference of the runs."""
        return Paired.of(here, there, (here - there).detach().requires_grad_())

    @property
    def here(self) -> Tensor:
        return self.detach().as_subclass(Tensor)

    @property
    def between(self) -> Tensor:
        return (self.here + self.there) / 2

    def _become(self, other: Paired) -> Paired:
        """Takes the values of another one, as a call in place does."""
        with torch._C.DisableTorchFunctionSubclass():
            self.detach().copy_(other.detach())
        self.there, self.step = other.there, other.step
        return self

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in ("__iadd__", "__imul__") or (name.endswith("_") and not name.endswith("__")):
            return args[0]._become(
                cls.__torch_function__(getattr(torch, name.strip("_").removeprefix("i")), types, args, kwargs)
            )
        name = name.strip("_")
        if name == "get":
            name = func.__self__.__name__
        name = {"truediv": "div", "rmul": "mul"}.get(name, name)
        if name in TABLE:
            return TABLE[name](*args, **kwargs)
        if name in KINKED or name in SMOOTH:
            return _elementwise(KINKED.get(name) or SMOOTH[name], name in SMOOTH, *args, **kwargs)
        if name in AFFINE:
            return _affine(func, args, kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)


def _each(value: Any, pick: Callable[[Paired], Tensor]) -> Any:
    if isinstance(value, Paired):
        return pick(value)
    if isinstance(value, list | tuple):
        return type(value)(_each(v, pick) for v in value)
    return value


def _affine(func: Any, args: Any, kwargs: Any) -> Any:
    """``f(d) - f(0)``: what an affine function does to differences, without its constants."""
    picks = (lambda p: p.here, lambda p: p.there, lambda p: p.step, lambda p: torch.zeros_like(p.here))
    here, there, step, zero = (
        func(*_each(args, pick), **{k: _each(v, pick) for k, v in kwargs.items()}) for pick in picks
    )
    if isinstance(here, Tensor):
        return Paired.of(here, there, step - zero)
    return tuple(Paired.of(h, t, s - z) for h, t, s, z in zip(here, there, step, zero, strict=True))


def _elementwise(phi: Callable[..., Tensor], smooth: bool, x: Paired, *args: Any, **kwargs: Any) -> Paired:
    """The secant; close to 0 / 0 the derivative between, or for a function with kinks torch's own where both agree."""
    kwargs.pop("inplace", None)
    z, z2 = x.here, x.there
    y, y2 = (phi(v, *args, **kwargs) for v in (z, z2))
    near = (z - z2).abs() <= torch.finfo(z.dtype).eps ** (1 / 3) * smooth
    point = x.between.clone().requires_grad_()
    (slope,) = torch.autograd.grad(phi(point, *args, **kwargs).sum(), point)
    k = torch.where(near, slope, (y - y2) / torch.where(near, 1.0, z - z2))
    return Paired.of(y, y2, k * x.step)


def _paired(x: Any) -> Paired:
    """Anything as a tensor of both runs; a constant has no difference."""
    if isinstance(x, Paired):
        return x
    value = x if isinstance(x, Tensor) else torch.tensor(x, dtype=torch.float64)
    return Paired.of(value, value, torch.zeros((), dtype=torch.float64))


def _mul(u: Any, v: Any) -> Paired:
    u, v = _paired(u), _paired(v)
    return Paired.of(u.here * v.here, u.there * v.there, v.between * u.step + u.between * v.step)


def _div(u: Any, v: Any) -> Paired:
    return _mul(u, _elementwise(torch.reciprocal, True, v) if isinstance(v, Paired) else 1 / v)


def _pow(x: Paired, exponent: float) -> Paired:
    return _elementwise(lambda v: v**exponent, True, x)


def _matmul(u: Any, v: Any) -> Paired:
    u, v = _paired(u), _paired(v)
    first = u.step @ v.between if u.step.ndim else 0
    second = u.between @ v.step if v.step.ndim else 0
    return Paired.of(u.here @ v.here, u.there @ v.there, first + second)


def _layer_norm(x: Paired, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Paired:
    """``c = x - mean x``, ``r = (mean c^2 + eps)^(-1/2)``, ``y = gain r c + bias``."""
    dims = tuple(range(-len(shape), 0))
    return _normalized(x, dims, weight, bias, eps, True, lambda v: F.layer_norm(v, shape, weight, bias, eps))


def _rms_norm(x: Paired, shape: Any, weight: Any = None, eps: Any = None) -> Paired:
    eps = torch.finfo(x.dtype).eps if eps is None else eps
    dims = tuple(range(-len(shape), 0))
    return _normalized(x, dims, weight, None, eps, False, lambda v: F.rms_norm(v, shape, weight, eps))


def _group_norm(x: Paired, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Paired:
    inner = (x.shape[0], groups, -1)
    flat = _affine(torch.reshape, (x, inner), {})
    y = _normalized(flat, (-1,), None, None, eps, True, lambda v: F.layer_norm(v, v.shape[-1:], None, None, eps))
    gain = torch.ones(x.shape[1]) if weight is None else weight
    wide = (1, -1, *(1,) * (x.ndim - 2))
    y = _affine(torch.reshape, (y, x.shape), {})
    shift = 0.0 if bias is None else bias.detach().reshape(wide)
    return _affine(lambda v: v * gain.detach().reshape(wide) + shift, (y,), {})


def _normalized(
    x: Paired, dims: tuple[int, ...], weight: Any, bias: Any, eps: float, centers: bool, run: Callable[[Tensor], Tensor]
) -> Paired:
    center = (lambda v: v - v.mean(dims, keepdim=True)) if centers else (lambda v: v)
    c, c2, dc = center(x.here), center(x.there), center(x.step)
    r, r2 = (1 / torch.sqrt(v.pow(2).mean(dims, keepdim=True) + eps) for v in (c, c2))
    d = math.prod(x.shape[k] for k in dims)
    middle = (c + c2) / 2
    turn = (r * r2) ** 2 / (r + r2) * (2 / d) * (middle * dc).sum(dims, keepdim=True)
    gain = 1.0 if weight is None else weight.detach()
    return Paired.of(run(x.here), run(x.there), gain * ((r + r2) / 2 * dc - middle * turn))


def _logarithmic_mean(p: Tensor, p2: Tensor) -> Tensor:
    """``(p - p2) / log(p / p2)``, by a quotient that keeps its digits where the two are close; 0 if both are."""
    t = torch.where(p == p2, 0.0, (p.log() - p2.log()).abs())
    return torch.maximum(p, p2) * torch.where(t < 1e-4, 1 - t / 2 + t**2 / 6, (1 - torch.exp(-t)) / t.clamp(min=1e-9))


def _softmax(a: Paired, dim: int, *_: Any, **__: Any) -> Paired:
    """``L = (p - p2) / (log p - log p2)``, ``dp = L (da - sum L da / sum L)``; masked entries have no part."""
    p, p2 = (torch.softmax(v, dim) for v in (a.here, a.there))
    mean = _logarithmic_mean(p, p2)
    da = torch.where(mean == 0, 0.0, a.step)
    return Paired.of(p, p2, mean * (da - (mean * da).sum(dim, keepdim=True) / mean.sum(dim, keepdim=True)))


def _log_softmax(a: Paired, dim: int, *_: Any, **__: Any) -> Paired:
    p, p2 = (torch.softmax(v, dim) for v in (a.here, a.there))
    mean = _logarithmic_mean(p, p2)
    step = a.step - (mean * a.step).sum(dim, keepdim=True) / mean.sum(dim, keepdim=True)
    return Paired.of(*(torch.log_softmax(v, dim) for v in (a.here, a.there)), step)


def _chosen(x: Paired, i: Tensor, k: Tensor) -> Tensor:
    """``(G dx_i + G2 dx_k) / (G + G2)`` for flat indices of the larger entry in each run."""
    here, there, step = x.here.flatten(), x.there.flatten(), x.step.flatten()
    lead, lag = here[i] - here[k], there[k] - there[i]
    even = lead + lag == 0
    weight = torch.where(even, 0.5, lead / torch.where(even, 1.0, lead + lag))
    return weight * step[i] + (1 - weight) * step[k]


def _max_pool(run: Callable[..., Any], space: int) -> Callable[..., Paired]:
    def pooled(x: Paired, *args: Any, **kwargs: Any) -> Paired:
        kwargs.pop("return_indices", None)
        (y, i), (y2, k) = (run(v, *args[:5], **kwargs, return_indices=True) for v in (x.here, x.there))
        lead = math.prod(x.shape[:-space])
        base = (torch.arange(lead) * math.prod(x.shape[-space:])).reshape(*x.shape[:-space], *(1,) * space)
        return Paired.of(y, y2, _chosen(x, i + base, k + base))

    return pooled


def _maximum(u: Paired, v: Paired) -> Paired:
    both = _affine(torch.stack, ([u, v],), {})
    n = u.numel()
    places = torch.arange(n).reshape(u.shape)
    i, k = (places + n * (b > a) for a, b in ((u.here, v.here), (u.there, v.there)))
    return Paired.of(torch.maximum(u.here, v.here), torch.maximum(u.there, v.there), _chosen(both, i, k))


def _scatter_reduce(x: Any, dim: int, index: Tensor, src: Paired, reduce: str, *, include_self: bool = True) -> Paired:
    here, there = (v.scatter_reduce(dim, index, s, reduce, include_self=include_self)
                   for v, s in ((_paired(x).here, src.here), (_paired(x).there, src.there)))  # fmt: skip
    if reduce == "mean":
        base = torch.zeros_like(here)
        return Paired.of(here, there, base.scatter_reduce(dim, index, src.step, reduce, include_self=include_self))
    assert reduce == "amax"
    assert not include_self
    places = torch.arange(src.numel()).reshape(src.shape)
    found = []
    for value, best in ((src.here, here), (src.there, there)):
        winner = torch.full(here.shape, src.numel())
        mine = torch.where(value == best.gather(dim, index), places, src.numel())
        found.append(winner.scatter_reduce(dim, index, mine, "amin"))
    return Paired.of(here, there, _chosen(src, *found))


def _attention(
    q: Paired, k: Paired, v: Paired, attn_mask: Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False,
    *, scale: float | None = None, enable_gqa: bool = False,
) -> Paired:  # fmt: skip
    scores = _matmul(
        _mul(q, q.shape[-1] ** -0.5 if scale is None else scale), _affine(torch.transpose, (k, -2, -1), {})
    )
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if attn_mask is not None:
        hidden = ~attn_mask if attn_mask.dtype == torch.bool else attn_mask == -math.inf
        soft = torch.zeros(()) if attn_mask.dtype == torch.bool else attn_mask.masked_fill(hidden, 0.0)
        scores = Paired.of(
            *((s + soft).masked_fill(hidden, -math.inf) for s in (scores.here, scores.there)), scores.step
        )
    return _matmul(_softmax(scores, -1), v)


TABLE: dict[str, Callable[..., Any]] = {
    "mul": _mul, "div": _div, "pow": _pow, "matmul": _matmul, "bmm": _matmul, "layer_norm": _layer_norm,
    "rms_norm": _rms_norm, "group_norm": _group_norm, "softmax": _softmax, "log_softmax": _log_softmax,
    "max_pool1d": _max_pool(F.max_pool1d, 1), "max_pool2d": _max_pool(F.max_pool2d, 2), "maximum": _maximum,
    "scatter_reduce": _scatter_reduce, "scaled_dot_product_attention": _attention,
}  # fmt: skip


class Run:
    """A model run on two inputs at once: every module's output by the library's name for it, and the explained step."""

    def __init__(self, model: torch.nn.Module, here: tuple[Tensor, ...], there: tuple[Tensor, ...], index: Any) -> None:
        inputs = [Paired.begin(a, b) if a.is_floating_point() else a for a, b in zip(here, there, strict=True)]
        names = ["input"] if len(inputs) == 1 else [f"input[{k}]" for k in range(len(inputs))]
        calls: dict[str, list[Tensor]] = {}

        def note(name: str) -> Callable[..., None]:
            return lambda _module, _args, out: (
                calls.setdefault(name, []).append(out.step) if isinstance(out, Paired) else None
            )

        hooks = [
            module.register_forward_hook(note(name))
            for name, module in model.named_modules()
            if name and not any(True for _ in module.children())
        ]
        try:
            self.output: Paired = model(*inputs)
        finally:
            for hook in hooks:
                hook.remove()
        self.tensors: dict[str, Tensor] = {
            n: x.step for n, x in zip(names, inputs, strict=True) if isinstance(x, Paired)
        }
        for name, steps in calls.items():
            for k, step in enumerate(steps):
                self.tensors[name if len(steps) == 1 else f"{name}#{k}"] = step
        samples = torch.arange(len(self.output))
        self.explained = self.output.step[samples, index]

    def relevance(self, name: str) -> Tensor:
        """``step g / explained step`` of a tensor, a sample per row."""
        step = self.tensors[name]
        (g,) = torch.autograd.grad(self.explained.sum(), step, retain_graph=True, allow_unused=True)
        return self._share(torch.zeros_like(step) if g is None else (step * g).detach())

    def joint(self, low: str, high: str) -> Tensor:
        """``step_i d step_j / d step_i g_j / explained step`` for every pair of neurons of two tensors."""
        below, above = self.tensors[low], self.tensors[high]
        (g,) = torch.autograd.grad(self.explained.sum(), above, retain_graph=True, allow_unused=True)
        g = torch.zeros_like(above) if g is None else g
        rows = []
        for j in range(above[0].numel()):
            unit = torch.zeros_like(above).flatten(1)
            unit[:, j] = g.flatten(1)[:, j]
            (d,) = torch.autograd.grad(above, below, unit.reshape(above.shape), retain_graph=True, allow_unused=True)
            rows.append(torch.zeros_like(below) if d is None else below * d)
        table = torch.stack(rows, -1).reshape(*below.shape, *above.shape[1:])
        return self._share(table.detach())

    def _share(self, found: Tensor) -> Tensor:
        return found / self.explained.detach().reshape(-1, *(1,) * (found.ndim - 1))
