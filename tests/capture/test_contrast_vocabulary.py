"""Every op of the vocabulary is exact in the difference of two runs, or refused by an error that names it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import rnn

import nrm
from capture.replay import numbers
from capture.test_movement import CALLS as MOVEMENTS
from nrm.capture import capture
from nrm.capture.contrast.splits import SPLITS
from nrm.capture.vocabulary import COMPOSED, VOCABULARY

pytestmark = [
    pytest.mark.filterwarnings("ignore::nrm.errors.NrmWarning"),
    pytest.mark.filterwarnings("ignore:index_reduce"),
    pytest.mark.filterwarnings("ignore:.*upsample.* is deprecated"),
]

Function = Callable[[Tensor], Any]

W, C = numbers(4, 4, seed=5), numbers(2, 4, seed=3)
ELEMENTWISE = [
    "relu", "relu6", "leaky_relu", "elu", "selu", "celu", "gelu", "silu", "mish", "hardtanh", "hardswish",
    "hardsigmoid", "hardshrink", "softshrink", "tanhshrink", "softplus", "softsign", "sigmoid", "logsigmoid",
    "tanh", "exp", "exp2", "expm1", "square", "abs", "absolute", "sin", "cos", "tan", "rrelu", "erf", "erfc",
    "asinh", "arcsinh", "atan", "arctan", "sinh", "cosh", "positive", "sinc", "nan_to_num", "neg", "negative",
    "round", "floor", "ceil", "trunc", "fix", "frac", "deg2rad", "rad2deg", "i0",
]  # fmt: skip
SPECIAL = ["i0e", "i1", "i1e", "ndtr", "log_ndtr", "erfcx", "bessel_j0", "bessel_j1"]
"""Elementwise functions of torch.special that torch has nowhere else."""
INSIDE = ["asin", "arcsin", "acos", "arccos", "atanh", "arctanh", "erfinv"]
"""Elementwise functions of what is between -1 and 1."""
POSITIVE = ["log1p", "sqrt", "log", "log2", "log10", "rsqrt", "reciprocal", "lgamma", "digamma"]
"""Elementwise functions of what is above 0."""


def _of_torch(name: str) -> Function:
    home = next(home for home in (torch, F, torch.special) if hasattr(home, name))
    return getattr(home, name)


def _real(x: Tensor) -> Tensor:
    """The parts of complex numbers along a first axis; real ones as they are."""
    return torch.stack([x.real, x.imag]) if x.is_complex() else x


def _window() -> Tensor:
    return torch.hann_window(8, dtype=torch.float64)


def _spectrum(kind: str, axes: str) -> tuple[tuple[int, ...], list[Function]]:
    """A Fourier transform: of real entries, or of complex ones that are made of them."""
    function = getattr(torch.fft, kind + axes)
    is_real = kind in ("rfft", "ihfft")
    return (2, 3, 4), [lambda x: _real(function(x if is_real else torch.complex(x, x.flip(2))))]


def _above(function: Function, *args: Any) -> Function:
    """A call on a tensor of positive entries."""
    return lambda x: function(x * x + 0.1, *args)


def _call(function: Function, *args: Any) -> Function:
    """A call with these arguments after the tensor."""
    return lambda x: function(x, *args)


def _first(function: Function, *args: Any) -> Function:
    """The first result of a call."""
    return lambda x: function(x, *args)[0]


def _with_itself(function: Callable[[Tensor, Tensor], Tensor]) -> Function:
    return lambda x: function(x, x.flip(1))


def _weights(*shape: int) -> Tensor:
    return numbers(*shape, seed=7)


def _fractional(x: Tensor, n: int, more: str) -> Tensor:
    samples = torch.full((2, 2, n), 0.4, dtype=x.dtype)
    found = getattr(F, f"fractional_max_pool{n}d{more}")(x, 2, output_size=3, _random_samples=samples)
    return found[0] if more else found


def _module(kind: type[nn.Module], *args: Any, **options: Any) -> nn.Module:
    module = kind(*args, **options).double().eval()
    for k, parameter in enumerate(module.parameters()):
        parameter.data = numbers(*parameter.shape, seed=20 + k) / 2
    return module


def _cell(kind: str) -> Function:
    made = {"lstm": nn.LSTMCell, "gru": nn.GRUCell}.get(kind)
    cell = _module(made, 4, 3) if made else _module(nn.RNNCell, 4, 3, nonlinearity=kind[4:])
    if kind == "lstm":
        return lambda x: cell(x * 2, cell(x))[0]
    return lambda x: cell(x * 2, cell(x))


def _sequence(kind: str) -> Function:
    made = {"lstm": nn.LSTM, "gru": nn.GRU}.get(kind)
    layer = _module(made, 4, 3, 2) if made else _module(nn.RNN, 4, 3, nonlinearity=kind[4:], bidirectional=True)
    return lambda x: layer(x)[0]


def _pack(x: Tensor) -> rnn.PackedSequence:
    return rnn.pack_padded_sequence(x, torch.tensor([3, 2]), batch_first=True)


def _attention() -> Function:
    layer = _module(nn.MultiheadAttention, 4, 2)
    return lambda x: layer(x, x.flip(0), x)[0]


CALLS: dict[str, tuple[tuple[int, ...], list[Function]]] = {
    **{name: ((2, 4), [_of_torch(name)]) for name in ELEMENTWISE},
    **{name: ((2, 4), [_above(_of_torch(name))]) for name in POSITIVE},
    **{f"special_{name}": ((2, 4), [getattr(torch.special, name)]) for name in SPECIAL},
    **{name: ((2, 4), [lambda x, name=name: getattr(torch, name)(x / 9)]) for name in INSIDE},
    **{name: ((2, 4), [lambda x, name=name: getattr(torch, name)(x * x + 1.1)]) for name in ("acosh", "arccosh")},
    "special_ndtri": ((2, 4), [lambda x: torch.special.ndtri(x.sigmoid())]),
    "special_entr": ((2, 4), [lambda x: torch.special.entr(x.sigmoid())]),
    **{name: ((2, 4), [lambda x, name=name: getattr(torch, name)(x - 0.3) + x]) for name in ("sign", "sgn")},
    "heaviside": ((2, 4), [lambda x: torch.heaviside(x, x.new_tensor(0.5)) + x]),
    **{name: ((2, 4), [lambda x, name=name: getattr(torch, name)(x, 0.7)])
       for name in ("fmod", "remainder", "floor_divide")},
    "clamp": ((2, 4), [lambda x: x.clamp(-0.3, 0.5), lambda x: x.clamp(min=C)]),
    "clamp_min": ((2, 4), [lambda x: x.clamp_min(0.1)]),
    "clamp_max": ((2, 4), [lambda x: x.clamp_max(0.1)]),
    "clip": ((2, 4), [lambda x: x.clip(-0.3, 0.5)]),
    "threshold": ((2, 4), [lambda x: F.threshold(x, 0.1, -0.5)]),
    "logit": ((2, 4), [lambda x: x.sigmoid().logit(), lambda x: x.sigmoid().logit(0.3)]),
    "expit": ((2, 4), [torch.special.expit]),
    "rpow": ((2, 4), [lambda x: 2.0**x]),
    "pow": ((2, 4), [lambda x: x**2, lambda x: x**3, lambda x: (x * x + 0.1) ** -1.5, lambda x: torch.pow(2.0, x)]),
    "prelu": ((2, 4), [lambda x: F.prelu(x, torch.tensor([0.1, 0.2, -0.3, 0.4]).double())]),
    "log_sigmoid": ((2, 4), [lambda x: torch.ops.aten.log_sigmoid(x)]),
    "softmax": ((2, 4), [lambda x: x.softmax(1)]),
    "log_softmax": ((2, 4), [lambda x: x.log_softmax(-1)]),
    "softmin": ((2, 4), [lambda x: F.softmin(x, 0)]),
    **{name: ((2, 4), [_call(getattr(F, name), 0.5, False)]) for name in ("dropout", "alpha_dropout")},
    **{f"dropout{n}d": ((2, 4, *(2,) * n), [_call(getattr(F, f"dropout{n}d"), 0.5, False)])
       for n in (1, 2, 3)},
    "feature_dropout": ((2, 4, 2), [lambda x: torch.feature_dropout(x, 0.5, False)]),
    "feature_alpha_dropout": ((2, 4, 2), [lambda x: F.feature_alpha_dropout(x, 0.5, False)]),
    "add": ((2, 4), [lambda x: x + C, lambda x: torch.add(x[:, :2], x[:, 2:], alpha=0.5)]),
    "sub": ((2, 4), [lambda x: x - C, lambda x: x[:, :1] - x]),
    "rsub": ((2, 4), [lambda x: 1.0 - x, lambda x: torch.rsub(x, C)]),
    "mul": ((2, 4), [lambda x: x * C, lambda x: x[:, :1] * x, lambda x: x * x]),
    "div": ((2, 4), [lambda x: torch.div(x, 0.3, rounding_mode="floor"),
                     lambda x: x / 3, lambda x: x[:, :1] / (x * x + 0.5), lambda x: 2.0 / (x * x + 0.5)]),
    "rdiv": ((2, 4), [lambda x: (x * x + 0.5).__rdiv__(2.0)]),
    "rtruediv": ((2, 4), [lambda x: (x * x + 0.5).__rtruediv__(2.0)]),
    **{f"avg_pool{n}d": ((2, 2, *(4,) * n), [_call(getattr(F, f"avg_pool{n}d"), 2)]) for n in (1, 2, 3)},
    **{f"adaptive_{how}_pool{n}d": (
        (2, 2, *(4,) * n), [_call(getattr(F, f"adaptive_{how}_pool{n}d"), 3)])
       for how in ("avg", "max") for n in (1, 2, 3)},
    **{f"max_pool{n}d": ((2, 2, *(4,) * n), [_call(getattr(F, f"max_pool{n}d"), 2)]) for n in (1, 2, 3)},
    **{f"{kind}_pool{n}d_with_indices": (
        (2, 2, *(4,) * n), [_first(getattr(F, f"{kind}_pool{n}d_with_indices"), 2)])
       for kind in ("max", "adaptive_max") for n in (1, 2, 3)},
    **{f"fractional_max_pool{n}d{more}": ((2, 2, *(5,) * n), [lambda x, n=n, more=more: _fractional(x, n, more)])
       for n in (2, 3) for more in ("", "_with_indices")},
    **{f"lp_pool{n}d": ((2, 2, *(4,) * n), [_above(getattr(F, f"lp_pool{n}d"), 3, 2)])
       for n in (1, 2, 3)},
    "interpolate": ((1, 2, 3, 3), [lambda x: F.interpolate(x, scale_factor=2, mode="bilinear")]),
    "upsample": ((1, 2, 3, 3), [lambda x: F.upsample(x, scale_factor=2)]),
    "upsample_nearest": ((1, 2, 3, 3), [lambda x: F.upsample_nearest(x, scale_factor=2)]),
    "upsample_bilinear": ((1, 2, 3, 3), [lambda x: F.upsample_bilinear(x, scale_factor=2)]),
    "fold": ((1, 8, 4), [lambda x: F.fold(x, (4, 4), 2, stride=2)]),
    "col2im": ((1, 8, 4), [lambda x: torch._C._nn.col2im(x, (4, 4), (2, 2), (1, 1), (0, 0), (2, 2))]),
    "grid_sample": ((1, 2, 3, 3), [
        lambda x: F.grid_sample(x, _weights(1, 2, 2, 2).tanh(), align_corners=False),
        lambda x: F.grid_sample(x, x.permute(0, 2, 3, 1).tanh(), align_corners=False),
        lambda x: F.grid_sample(x, (x / 9).permute(0, 2, 3, 1), "bicubic", "border", True)]),
    "grid_sampler": ((1, 3, 3, 3), [
        lambda x: torch.grid_sampler(x[:, :, None], x.permute(0, 2, 3, 1)[:, None].tanh(), 0, 0, False)]),
    "affine_grid": ((2, 2, 3), [lambda x: F.affine_grid(x, [2, 1, 2, 2], align_corners=False)]),
    "sum": ((2, 4), [lambda x: x.sum(), lambda x: x.sum(1)]),
    "mean": ((2, 4), [lambda x: x.mean(), lambda x: x.mean(0, keepdim=True)]),
    "cumsum": ((2, 4), [lambda x: x.cumsum(1)]),
    "max": ((2, 4), [lambda x: x.max(), lambda x: x.max(1).values, lambda x: torch.max(x, C)]),
    "min": ((2, 4), [lambda x: x.min(), lambda x: x.min(1).values, lambda x: torch.min(x, C)]),
    "amax": ((2, 4), [lambda x: x.amax((0, 1)), lambda x: x.amax(1)]),
    "amin": ((2, 4), [lambda x: x.amin(1)]),
    **{name: ((2, 4), [_call(_of_torch(name), C), _with_itself(_of_torch(name))])
       for name in ("maximum", "minimum", "fmax", "fmin")},
    "topk": ((2, 4), [lambda x: x.topk(2, 1)[0]]),
    "sort": ((2, 4), [lambda x: x.sort(1)[0], lambda x: x.sort(0, descending=True).values]),
    "kthvalue": ((2, 4), [lambda x: x.kthvalue(2, 1).values]),
    "median": ((2, 4), [lambda x: x.median(1).values, lambda x: x.median()]),
    "nanmedian": ((2, 4), [lambda x: x.nanmedian(1).values, lambda x: x.nanmedian()]),
    "mode": ((2, 4), [lambda x: x.mode(1).values]),
    "cummax": ((2, 4), [lambda x: x.cummax(1).values]),
    "cummin": ((2, 4), [lambda x: x.cummin(1)[0]]),
    "where": ((2, 4), [lambda x: torch.where(C > 0, x, C), lambda x: torch.where(x > 0, x, 0.1 * x)]),
    "masked_fill": ((2, 4), [lambda x: x.masked_fill(C > 0, 0.5), lambda x: x.masked_fill(x < 0, 0.0)]),
    **{f"conv{n}d": ((2, 2, *(3,) * n), [lambda x, n=n: getattr(F, f"conv{n}d")(x, _weights(3, 2, *(2,) * n),
                                                                                 _weights(3)),
                                         lambda x, n=n: getattr(F, f"conv{n}d")(x, x[:1], x.flatten()[:1]),
                                         lambda x, n=n: getattr(F, f"conv{n}d")(x.detach(), x, C[0, :2])])
       for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": (
        (2, 2, *(3,) * n), [lambda x, n=n: getattr(F, f"conv_transpose{n}d")(x, _weights(2, 3, *(2,) * n))])
       for n in (1, 2, 3)},
    "linear": ((2, 4), [lambda x: F.linear(x, W, C[0]), lambda x: F.linear(x, x, x[0, :2]), lambda x: F.linear(C, x)]),
    "matmul": ((2, 4), [lambda x: x @ W, lambda x: x @ x.mT]),
    "mm": ((2, 4), [lambda x: torch.mm(x, W), lambda x: torch.mm(x.mT, x)]),
    "bmm": ((2, 3, 4), [lambda x: torch.bmm(x, x.mT), lambda x: torch.bmm(x, W.expand(2, 4, 4))]),
    "linalg_inv": ((3, 3), [lambda x: torch.linalg.inv(x + 5 * torch.eye(3)) @ x]),
    "linalg_solve": ((3, 3), [lambda x: torch.linalg.solve(x + 5 * torch.eye(3), x),
                              lambda x: torch.linalg.solve(x + 5 * torch.eye(3), x[0])]),
    "linalg_solve_triangular": ((3, 3), [
        lambda x: torch.linalg.solve_triangular(x + 5, x, upper=True),
        lambda x: torch.linalg.solve_triangular(x, x, upper=False, left=False, unitriangular=True)]),
    "mv": ((4, 4), [lambda x: torch.mv(x, W[0]), lambda x: torch.mv(x, x[0])]),
    "rmatmul": ((4, 4), [lambda x: x.__rmatmul__(W)]),
    "dot": ((4,), [lambda x: torch.dot(x, W[0]), lambda x: torch.dot(x, x.flip(0))]),
    "inner": ((2, 4), [lambda x: torch.inner(x, W), lambda x: torch.inner(x, x)]),
    "grouped_mm": ((4, 4), [lambda x: F.grouped_mm(x.float(), torch.stack([W, -W]).float(),
                                                   offs=torch.tensor([1, 4], dtype=torch.int32))]),
    "addmm": ((2, 4), [lambda x: torch.addmm(C, x, W), lambda x: torch.addmm(x, x, W, beta=0.5, alpha=2)]),
    "einsum": ((2, 4), [lambda x: torch.einsum("bi,ij->bj", x, W), lambda x: torch.einsum("bi,bj->ij", x, x),
                        lambda x: torch.einsum("bi,bi,bj->j", x, x.flip(1), x),
                        lambda x: torch.einsum("bi,bj", [x, x.flip(1)]),
                        lambda x: torch.einsum(x, [0, 1], W, [1, 2], x, [0, 3], [2, 3, 0]),
                        lambda x: torch.einsum(x, [..., 1], x, [..., 1]),
                        lambda x: torch.einsum("bqd,bkd->bqk", x[:, :, None], x.flip(1)[:, :, None])]),
    "tensordot": ((2, 4), [lambda x: torch.tensordot(x, W, 1), lambda x: torch.tensordot(x, x, ([0], [0]))]),
    "batch_norm": ((2, 4), [lambda x: F.batch_norm(x, C[0], C[1].abs(), W[0], W[1]),
                            lambda x: F.batch_norm(x, None, None, W[0], W[1], True) + x / 9,
                            lambda x: F.batch_norm(x[:, :, None] * C[0, :3], None, None, training=True)]),
    "torch.nn.modules.normalization.CrossMapLRN2d": ((1, 4, 2, 2), [_module(nn.CrossMapLRN2d, 3, 1.0)]),
    "layer_norm": ((2, 4), [lambda x: F.layer_norm(x, (4,), W[0], W[1])]),
    "group_norm": ((2, 4, 3), [lambda x: F.group_norm(x, 2, W[0], W[1])]),
    "instance_norm": ((2, 4, 3), [lambda x: F.instance_norm(x, weight=W[0])]),
    "rms_norm": ((2, 4), [lambda x: F.rms_norm(x, (4,), W[0])]),
    "normalize": ((2, 4), [F.normalize, lambda x: F.normalize(x, 3.0, 0)]),
    "local_response_norm": ((2, 4, 3), [lambda x: F.local_response_norm(x, 3, alpha=2.0)]),
    **{f"{kind}_cell": ((2, 4), [_cell(kind)])
       for kind in ("lstm", "gru", "rnn_tanh", "rnn_relu")},
    **{kind: ((2, 3, 4), [_sequence(kind)])
       for kind in ("lstm", "gru", "rnn_tanh", "rnn_relu")},
    "pack_padded_sequence": ((2, 3, 4), [lambda x: _pack(x).data]),
    "pad_packed_sequence": ((2, 3, 4), [lambda x: rnn.pad_packed_sequence(_pack(x), True, padding_value=0.5)[0]]),
    "glu": ((2, 4), [F.glu]),
    "addcmul": ((2, 4), [lambda x: torch.addcmul(x, x, C, value=0.5), lambda x: torch.addcmul(x, x, x.flip(1))]),
    "addcdiv": ((2, 4), [lambda x: torch.addcdiv(x, x, x.flip(1) ** 2 + 0.5, value=2)]),
    "baddbmm": ((2, 3, 3), [lambda x: torch.baddbmm(x, x, x.mT, beta=0.5, alpha=2)]),
    "lerp": ((2, 4), [lambda x: torch.lerp(x, x.flip(1), x.sigmoid())]),
    "linalg_multi_dot": ((4, 4), [lambda x: torch.linalg.multi_dot([x, W, x])]),
    "scaled_dot_product_attention": ((2, 3, 4), [
        lambda x: F.scaled_dot_product_attention(x, x.flip(1), x.flip(2)),
        lambda x: F.scaled_dot_product_attention(x, x @ W, x, is_causal=True)]),
    "multi_head_attention_forward": ((3, 2, 4), [_attention()]),
    "logsumexp": ((2, 4), [lambda x: x.logsumexp(1)]),
    "prod": ((2, 4), [lambda x: x.prod(1), lambda x: x.prod()]),
    "cumprod": ((2, 4), [lambda x: x.cumprod(1)]),
    "var": ((2, 4), [lambda x: x.var(1), lambda x: x.var(1, correction=0)]),
    "std": ((2, 4), [lambda x: x.std(1), lambda x: x.std(unbiased=False)]),
    "norm": ((2, 4), [lambda x: x.norm(dim=1), lambda x: x.norm(3)]),
    "linalg_norm": ((2, 4), [lambda x: torch.linalg.norm(x, dim=1)]),
    "linalg_vector_norm": ((2, 4), [lambda x: torch.linalg.vector_norm(x, 3, dim=1)]),
    "linalg_matrix_norm": ((2, 3, 4), [torch.linalg.matrix_norm, lambda x: torch.linalg.matrix_norm(x, "nuc")]),
    **{f"{name}_mean": ((2, 4), [lambda x, name=name: torch.cat(getattr(torch, f"{name}_mean")(x, 1, keepdim=True)),
                                 lambda x, name=name: torch.stack(getattr(torch, f"{name}_mean")(x))])
       for name in ("std", "var")},
    "cross": ((2, 3), [lambda x: torch.cross(x, x.flip(1), dim=1)]),
    "linalg_cross": ((2, 3), [lambda x: torch.linalg.cross(x, C[:1, :3])]),
    **{f"fft_{kind}{axes}": _spectrum(kind, axes) for axes in ("", "2", "n")
       for kind in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")},
    **{f"fft_{kind}": ((2, 4), [getattr(torch.fft, kind)]) for kind in ("fftshift", "ifftshift")},
    "stft": ((2, 16), [lambda x: _real(torch.stft(x, 8, window=_window(), return_complex=True))]),
    "istft": ((2, 16), [lambda x: torch.istft(torch.stft(x, 8, window=_window(), return_complex=True), 8,
                                              window=_window())]),
    "broadcast_tensors": ((2, 4), [lambda x: torch.stack(torch.broadcast_tensors(x, x[:, :1]))]),
    "bilinear": ((2, 4), [lambda x: F.bilinear(x, x.flip(1), _weights(3, 4, 4), C[0, :3])]),
    "addmv": ((4, 4), [lambda x: torch.addmv(x[0], x, W[0], alpha=2)]),
    **{name: ((4,), [lambda x, name=name: getattr(torch, name)(x, x.flip(0))]) for name in ("outer", "ger")},
    "logaddexp": ((2, 4), [_with_itself(torch.logaddexp)]),
    "xlogy": ((2, 4), [lambda x: torch.xlogy(x, x * x + 0.1)]),
    "diff": ((2, 4), [lambda x: torch.diff(x, 2, append=C)]),
    "trace": ((3, 3), [torch.trace]),
    "aminmax": ((2, 4), [lambda x: torch.stack(torch.aminmax(x, dim=1)), lambda x: torch.stack(torch.aminmax(x))]),
    **{name: ((2, 4), [lambda x, name=name, how=how: getattr(F, name)(x, x.flip(1) * 2, reduction=how)
                       for how in ("none", "sum", "mean")])
       for name in ("l1_loss", "mse_loss", "smooth_l1_loss", "huber_loss")},
    "kl_div": ((2, 4), [lambda x: F.kl_div(x, C.softmax(1), reduction="batchmean"),
                        lambda x: F.kl_div(x, x.flip(1), reduction="sum", log_target=True)]),
    "poisson_nll_loss": ((2, 4), [lambda x: F.poisson_nll_loss(x, C), lambda x: F.poisson_nll_loss(x * x, C, False)]),
    **{name: ((2, 4), [lambda x, name=name: getattr(F, name)(x, C.sign())])
       for name in ("soft_margin_loss", "hinge_embedding_loss")},
    "binary_cross_entropy_with_logits": ((2, 4), [
        lambda x: F.binary_cross_entropy_with_logits(x, C.sigmoid(), C.abs(), pos_weight=C[0].abs())]),
    "binary_cross_entropy": ((2, 4), [lambda x: F.binary_cross_entropy(x.sigmoid(), C.sigmoid())]),
    "multilabel_soft_margin_loss": ((2, 4), [lambda x: F.multilabel_soft_margin_loss(x, (C > 0).double())]),
    "cross_entropy": ((2, 4), [lambda x: F.cross_entropy(x, torch.tensor([1, 3]), W[0].abs()),
                               lambda x: F.cross_entropy(x, C.softmax(1), reduction="sum"),
                               lambda x: F.cross_entropy(x[0], torch.tensor(1), reduction="none")]),
    "nll_loss": ((2, 4), [lambda x: F.nll_loss(x, torch.tensor([1, -100]))]),
    "pairwise_distance": ((2, 4), [_with_itself(F.pairwise_distance)]),
    "cdist": ((2, 4), [lambda x: torch.cdist(x, W), lambda x: torch.cdist(x, x * 2, 1.0)]),
    "cosine_similarity": ((2, 4), [_with_itself(F.cosine_similarity)]),
    "triplet_margin_loss": ((2, 4), [lambda x: F.triplet_margin_loss(x, x.flip(1), x.flip(0) * 2, swap=True)]),
}  # fmt: skip


class Summed(nn.Module):
    """A function of a tensor, summed with weights that are all different."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        y = self.function(x).flatten()
        return (y * torch.linspace(1.0, 2.0, len(y), dtype=y.dtype)).sum()[None]


REFUSED = {"mode 0", "clamp 1", "max_unpool1d 0", "max_unpool2d 0", "max_unpool3d 0", "linalg_matrix_norm 1",
           "torch.nn.modules.normalization.CrossMapLRN2d 0"}  # fmt: skip
"""What no contrast passes: entries that are counted, bounds for each entry, places that differ between the runs.

Likewise singular values, and a module of torch that computes something else than it says."""

ALL = CALLS | MOVEMENTS
ONE_BY_ONE = {
    f"{name} {k}": (f"{name} {k}", shape, call) for name, (shape, calls) in ALL.items() for k, call in enumerate(calls)
}


def test_every_op_of_the_vocabulary_has_an_example() -> None:
    known = {name for name, builder in VOCABULARY.items() if builder.__module__.startswith("nrm.capture.vocabulary")}
    listed = {name for name in known | set(COMPOSED) | set(SPLITS) if "::" not in name}  # others belong to packages
    assert listed - {"grad", "backward"} <= set(ALL)  # gradients inside a model are refused by name
    assert set(ALL) <= {*VOCABULARY, *COMPOSED, *SPLITS}


@pytest.mark.parametrize(("name", "shape", "call"), ONE_BY_ONE.values(), ids=ONE_BY_ONE)
def test_an_op_is_exact_in_the_difference_or_refused_by_its_name(
    name: str, shape: tuple[int, ...], call: Function
) -> None:
    model, x, other = Summed(call), numbers(*shape, seed=11), numbers(*shape, seed=12)
    if name in REFUSED:
        with pytest.raises(nrm.CaptureError, match=rf"\b{name.split()[0]}\b"):
            nrm.measure(model, x, against=other, batch_dim=None)
        return
    R = nrm.measure(model, x, against=other, batch_dim=None)
    with torch.no_grad():
        gap = float(model(x) - model(other))
    slack = 1e-6 if name in SINGLE else 1e-10
    assert float(R.in_units(R.input).sum()) == pytest.approx(gap, rel=slack, abs=slack)
    assert float(R(R.input).sum()) == pytest.approx(1.0, abs=slack)
    assert all(R.check().ok)


SINGLE = {"grouped_mm 0"}
"""What torch computes in single precision only."""

OTHERWISE = {"positive", "rtruediv", "logsigmoid", "upsample", "upsample_nearest", "upsample_bilinear", "dropout",
             "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_dropout",
             "feature_alpha_dropout"}  # fmt: skip
"""Ops that give the tensor itself, so that nothing is recorded, or that torch calls by another name."""


@pytest.mark.parametrize("name", CALLS)
def test_an_example_calls_the_op_it_is_listed_for(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shape, calls = CALLS[name]
    seen: list[str] = []
    for table in (VOCABULARY, COMPOSED):
        if name in table:
            monkeypatch.setitem(table, name, _noting(table[name], name, seen))
    for call in calls:
        tape = capture(Summed(call), (numbers(*shape, seed=11),), batch_dim=None)
        seen += [node.function for node in tape.nodes]
    assert name in seen or name in OTHERWISE


def _noting(builder: Callable[..., Any], name: str, seen: list[str]) -> Callable[..., Any]:
    def noted(*args: Any, **kwargs: Any) -> Any:
        seen.append(name)
        return builder(*args, **kwargs)

    return noted
