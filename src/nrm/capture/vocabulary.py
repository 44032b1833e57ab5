"""How each torch function is read: one builder per meaning, with the signature of the function it reads.

A builder gets the call and the arguments as the user gave them and returns the steps of the call: for each result
its op and its inputs. Functions that only move data are read by probing where nothing simpler is known: they are run
on the positions of their input, which shows for every output entry where it came from.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nrm.capture.ops import Combine, Linear, Multiply, Op, Pointwise, Select, Term
from nrm.capture.recorder import Call
from nrm.operators import (
    Centering,
    Convolution,
    Dense,
    Expand,
    Function,
    Gather,
    LinearMap,
    Matmul,
    Permute,
    Place,
    Reduce,
    Reshape,
    Slice,
)

Steps = list[tuple[Tensor, Any, list[int] | None]] | None
VOCABULARY: dict[str, Callable[..., Steps]] = {}


def reads(*names: str) -> Callable[[Callable[..., Steps]], Callable[..., Steps]]:
    """Registers a builder for the functions of these names."""

    def register(builder: Callable[..., Steps]) -> Callable[..., Steps]:
        for name in names:
            VOCABULARY[name] = builder
        return builder

    return register


def _many(value: Any, n: int) -> tuple[int, ...]:
    if isinstance(value, int):
        return (value,) * n
    values = tuple(int(v) for v in value)
    return values * n if len(values) == 1 else values


# ---- linear steps with weights -----------------------------------------------------------------------------------


@reads("conv1d", "conv2d", "conv3d")
def _conv(
    c: Call, input: Tensor, weight: Tensor, bias: Tensor | None = None,
    stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1,
) -> Steps:  # fmt: skip
    if c.tracked(weight) or not c.tracked(input):
        return None
    space = weight.ndim - 2
    stride, dilation = _many(stride, space), _many(dilation, space)
    if isinstance(padding, str):
        total = [d * (k - 1) if padding == "same" else 0 for d, k in zip(dilation, weight.shape[2:], strict=True)]
        if any(t % 2 for t in total):
            return _conv_uneven(c, input, weight, bias, stride, total, dilation, groups)
        padding = [t // 2 for t in total]
    map = Convolution(input.shape, c.result.shape, weight, stride, _many(padding, space), dilation, groups)
    return c.one(Linear(map, "conv", _channel_bias(bias, space)), input)


def _conv_uneven(
    c: Call, input: Tensor, weight: Tensor, bias: Tensor | None,
    stride: tuple[int, ...], total: list[int], dilation: tuple[int, ...], groups: int,
) -> Steps:  # fmt: skip
    """An even kernel with padding "same": more padding at the end, which the convolution itself cannot express."""
    space = weight.ndim - 2
    wider = (*input.shape[:-space], *(n + t for n, t in zip(input.shape[-space:], total, strict=True)))
    inner = tuple(slice(t // 2, t // 2 + n) for t, n in zip(total, input.shape[-space:], strict=True))
    place = Place(input.shape, torch.Size(wider), (Ellipsis, *inner))
    conv = Convolution(torch.Size(wider), c.result.shape, weight, stride, (0,) * space, dilation, groups)
    padded = place.apply(input[None])[0]
    index = c.recorder._add(Combine((Term(place),)), [c.index(input)], padded, "pad")
    return [(c.result, Linear(conv, "conv", _channel_bias(bias, space)), [index])]


@reads("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def _conv_transpose(
    c: Call, input: Tensor, weight: Tensor, bias: Tensor | None = None,
    stride: Any = 1, padding: Any = 0, output_padding: Any = 0, groups: int = 1, dilation: Any = 1,
) -> Steps:  # fmt: skip
    if c.tracked(weight) or not c.tracked(input):
        return None
    n = weight.ndim - 2
    map = Convolution(
        input.shape, c.result.shape, weight, _many(stride, n), _many(padding, n), _many(dilation, n), groups,
        True, _many(output_padding, n),
    )  # fmt: skip
    return c.one(Linear(map, "conv", _channel_bias(bias, n)), input)


def _channel_bias(bias: Tensor | None, space: int) -> Tensor | None:
    return None if bias is None else bias.detach().reshape(-1, *(1,) * space)


@reads("linear")
def _linear(c: Call, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Steps:
    if c.tracked(weight) or c.tracked(bias):
        return None
    return c.one(Linear(Dense(input.shape, weight), "linear", None if bias is None else bias.detach()), input)


@reads("matmul", "mm", "bmm", "mv", "rmatmul")
def _matmul(c: Call, input: Tensor, other: Tensor, **_: Any) -> Steps:
    if c.name == "rmatmul":
        input, other = other, input
    if c.tracked(input) and c.tracked(other):
        return None
    if c.tracked(input) and other.ndim >= 2 and input.ndim >= 2:
        return c.one(Linear(Matmul(input.shape, other), "linear"), input)
    if c.tracked(other) and input.ndim >= 2 and other.ndim >= 2:
        return c.one(Linear(Matmul(other.shape, input, left=True), "linear"), other)
    x, function = (input, lambda v: torch.matmul(v, other)) if c.tracked(input) else (other, lambda v: input @ v)
    map = Function(x.shape, c.result.shape, function, batched=False, positive=False, name="matmul")
    return c.one(Linear(map, "linear"), x)


@reads("addmm", "baddbmm", "addbmm")
def _addmm(c: Call, input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Steps:
    if c.name == "addbmm" or c.tracked(input) or c.tracked(mat2) or not c.tracked(mat1):
        return None
    return c.one(Linear(Matmul(mat1.shape, mat2 * alpha), "linear", (input * beta).detach()), mat1)


@reads("einsum", "tensordot")
def _einsum(c: Call, *args: Any, **kwargs: Any) -> Steps:
    operands = [a for group in args for a in (group if isinstance(group, list | tuple) else [group])]
    tracked = [i for i, a in enumerate(operands) if c.tracked(a)]
    if len(tracked) != 1 or any(isinstance(a, list | tuple) for a in args):
        return None
    x = operands[tracked[0]]
    before, after = args[: tracked[0]], args[tracked[0] + 1 :]

    func = c.func

    def function(v: Tensor) -> Tensor:
        result: Tensor = func(*before, v, *after, **kwargs)
        return result

    map = Function(x.shape, c.result.shape, function, batched=False, positive=False, name=c.name)
    return c.one(Linear(map, "linear"), x)


# ---- pooling, interpolation, reductions --------------------------------------------------------------------------


@reads(
    "avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d",
    "interpolate", "upsample", "upsample_nearest", "upsample_bilinear", "fold", "col2im",
)  # fmt: skip
def _pool(c: Call, input: Tensor, *args: Any, **kwargs: Any) -> Steps:
    func = c.func
    space = {"1": 1, "2": 2, "3": 3}.get(c.name[-2], 0)
    batched = space == 0 or input.ndim == space + 2

    def function(v: Tensor) -> Tensor:
        result: Tensor = func(v, *args, **kwargs)
        return result

    mode = kwargs.get("mode", args[2] if len(args) > 2 and isinstance(args[2], str) else "nearest")
    map = Function(input.shape, c.result.shape, function, batched, positive=mode != "bicubic", name=c.name)
    return c.one(Linear(map, "pool"), input)


@reads("sum", "mean")
def _reduce(c: Call, input: Tensor, dim: Any = None, keepdim: bool = False, **_: Any) -> Steps:
    if not c.result.is_floating_point():
        return None
    dims = _dims(dim, input.ndim)
    count = math.prod(input.shape[d] for d in dims)
    weight = 1.0 if c.name == "sum" else 1.0 / max(count, 1)
    return c.one(Linear(Reduce(input.shape, c.result.shape, dims, weight), "pool"), input)


def _dims(dim: Any, ndim: int) -> tuple[int, ...]:
    if dim is None or (isinstance(dim, list | tuple) and not dim):
        return tuple(range(ndim))
    return tuple(sorted(d % ndim for d in ([dim] if isinstance(dim, int) else dim)))


@reads("cumsum")
def _cumsum(c: Call, input: Tensor, dim: int, **_: Any) -> Steps:
    n = input.shape[dim]
    steps = torch.ones(n, n, dtype=input.dtype, device=input.device).triu()

    def function(v: Tensor) -> Tensor:
        return torch.movedim(torch.movedim(v, dim, -1) @ steps, -1, dim)

    map = Function(input.shape, c.result.shape, function, batched=False, name="cumsum")
    return c.one(Linear(map, "pool"), input)


@reads(
    "max_pool1d", "max_pool2d", "max_pool3d", "max_pool1d_with_indices", "max_pool2d_with_indices",
    "max_pool3d_with_indices", "adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d",
    "adaptive_max_pool1d_with_indices", "adaptive_max_pool2d_with_indices", "adaptive_max_pool3d_with_indices",
    "fractional_max_pool2d_with_indices", "fractional_max_pool3d_with_indices",
)  # fmt: skip
def _max_pool(c: Call, input: Tensor, *args: Any, **kwargs: Any) -> Steps:
    value = c.result[0] if isinstance(c.result, tuple) else c.result
    kind = c.name.removesuffix("_with_indices")
    space = int(kind[-2])
    plain = {k: v for k, v in kwargs.items() if k != "return_indices"}
    held = input.detach()
    known = c.result[1] if isinstance(c.result, tuple) else c.recorder.choice
    c.recorder.choice = None

    def choose(by: Tensor | None) -> Gather:
        fixed = known is not None and (by is None or kind.startswith("fractional"))
        indices = known if fixed else _pool_indices(kind, held if by is None else by, args, plain)
        cell = math.prod(held.shape[-space:])
        base = torch.arange(math.prod(held.shape[:-space]), device=held.device) * cell
        flat = indices.reshape(len(base), -1) + base[:, None]
        return Gather(held.shape, value.shape, flat.flatten())

    return [(value, Select(choose), [c.index(input)])]


def _pool_indices(kind: str, x: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    args = tuple(a for a in args if not isinstance(a, bool) or kind.startswith("max"))
    if kind.startswith("max"):
        args = args[:5]
    return getattr(F, kind)(x, *args, **kwargs, return_indices=True)[1]  # type: ignore[no-any-return]


@reads("max", "min", "amax", "amin", "maximum", "minimum")
def _extreme(c: Call, input: Tensor, *args: Any, **kwargs: Any) -> Steps:
    if (args and isinstance(args[0], Tensor)) or c.name in ("maximum", "minimum"):
        return _pairwise_extreme(c, input, args[0] if args else kwargs["other"])
    dim = kwargs.get("dim", args[0] if args else None)
    value = c.result if isinstance(c.result, Tensor) else c.result[0]
    dims = _dims(dim, input.ndim)
    held, sign = input.detach(), (1 if c.name in ("max", "amax") else -1)

    def choose(by: Tensor | None) -> Gather:
        values = held if by is None else by
        rest = [d for d in range(held.ndim) if d not in dims]
        positions = torch.arange(held.numel(), device=held.device).view(held.shape).permute(*rest, *dims)
        lines = (values * sign).permute(*rest, *dims).reshape(*(held.shape[d] for d in rest), -1)
        best = lines.argmax(-1, keepdim=True)
        return Gather(held.shape, value.shape, positions.reshape(lines.shape).gather(-1, best).flatten())

    return [(value, Select(choose, Reduce(input.shape, value.shape, dims)), [c.index(input)])]


def _pairwise_extreme(c: Call, input: Tensor, other: Tensor) -> Steps:
    first = (input >= other) if c.name in ("max", "maximum") else (input <= other)
    return _choice(c, first, input, other)


@reads("where")
def _where(c: Call, condition: Tensor, input: Any, other: Any) -> Steps:
    return _choice(c, condition, input, other)


def _choice(c: Call, condition: Tensor, first: Any, second: Any) -> Steps:
    """Every entry comes from the first or the second tensor: data movement, decided by the condition."""
    shape = c.result.shape
    condition = condition.expand(shape)
    terms, inputs = [], []
    for value, chosen in ((first, condition), (second, ~condition)):
        tensor = value if isinstance(value, Tensor) else torch.as_tensor(value, dtype=c.result.dtype)
        tensor = tensor if c.tracked(tensor) else _like(c, tensor, shape)
        positions = torch.arange(tensor.numel(), device=condition.device).view(tensor.shape).expand(shape)
        index = torch.where(chosen, positions, torch.full_like(positions, -1))
        terms.append(Term(Gather(tensor.shape, shape, index.flatten())))
        inputs.append(_constant(c, tensor) if not c.tracked(tensor) else c.index(tensor))
    return [(c.result, Combine(tuple(terms)), inputs)]


def _like(c: Call, tensor: Tensor, shape: torch.Size) -> Tensor:
    expanded = tensor.to(c.result.device).expand(shape)
    origin = c.recorder._origin.get(id(tensor))
    if origin is not None:
        c.recorder._origin[id(expanded)] = (expanded, origin[1])
    return expanded


def _constant(c: Call, tensor: Tensor) -> int:
    """A constant of the result's shape as a source with the axes of the call's tracked inputs."""
    sample = channel = None
    for other in _flat(c.args):
        if c.tracked(other):
            node = c.recorder.node(other)
            shift = tensor.ndim - other.ndim
            sample = node.sample + shift if node.sample is not None else None
            channel = node.channel + shift if node.channel is not None else None
            break
    return c.recorder.constant(tensor, c.name, sample, channel)


def _flat(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return [v for one in value for v in _flat(one)]
    return [value]


@reads("masked_fill")
def _masked_fill(c: Call, input: Tensor, mask: Tensor, value: Any) -> Steps:
    return _choice(c, ~mask, input, value)


# ---- normalization -----------------------------------------------------------------------------------------------


@reads("batch_norm")
def _batch_norm(
    c: Call, input: Tensor, running_mean: Tensor | None, running_var: Tensor | None,
    weight: Tensor | None = None, bias: Tensor | None = None, training: bool = False,
    momentum: float = 0.1, eps: float = 1e-5, *_: Any,
) -> Steps:  # fmt: skip
    if training or running_mean is None or running_var is None:
        return None
    scale = torch.rsqrt(running_var + eps) * (1.0 if weight is None else weight)
    shift = (0.0 if bias is None else bias) - running_mean * scale
    shape = (-1, *(1,) * (input.ndim - 2))
    op = Combine((Term(None, scale.detach().view(shape)),), shift.detach().view(shape), joins=True, kind="batchnorm")
    return c.one(op, input)


@reads("layer_norm")
def _layer_norm(
    c: Call, input: Tensor, normalized_shape: Any, weight: Tensor | None = None, bias: Tensor | None = None,
    eps: float = 1e-5, *_: Any,
) -> Steps:  # fmt: skip
    dims = tuple(range(input.ndim - len(normalized_shape), input.ndim))
    deviation = torch.rsqrt(input.var(dims, unbiased=False, keepdim=True) + eps)
    gain = (deviation * (1.0 if weight is None else weight)).expand(input.shape)
    map = Centering.of(gain.detach().contiguous(), tuple(input.shape), dims)
    return c.one(Linear(map, "norm", None if bias is None else bias.detach()), input)


@reads("group_norm", "instance_norm")
def _group_norm(c: Call, input: Tensor, *args: Any, **kwargs: Any) -> Steps:
    names = ("num_groups", "weight", "bias", "eps") if c.name == "group_norm" else (
        "running_mean", "running_var", "weight", "bias", "use_input_stats", "momentum", "eps")  # fmt: skip
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    if c.name == "instance_norm" and not given.get("use_input_stats", True):
        return _batch_norm(c, input, given.get("running_mean"), given.get("running_var"), given.get("weight"),
                           given.get("bias"), False, 0.1, given.get("eps", 1e-5))  # fmt: skip
    groups = given["num_groups"] if c.name == "group_norm" else input.shape[1]
    view = (input.shape[0], groups, input.shape[1] // groups, *input.shape[2:])
    dims = tuple(range(2, len(view)))
    spread = input.reshape(view).var(dims, unbiased=False, keepdim=True)
    gain = torch.rsqrt(spread + given.get("eps", 1e-5)).expand(view).reshape(input.shape)
    shape = (-1, *(1,) * (input.ndim - 2))
    if given.get("weight") is not None:
        gain = gain * given["weight"].view(shape)
    bias = None if given.get("bias") is None else given["bias"].detach().view(shape)
    return c.one(Linear(Centering.of(gain.detach(), view, dims), "norm", bias), input)


@reads("rms_norm")
def _rms_norm(c: Call, input: Tensor, normalized_shape: Any, weight: Tensor | None = None, eps: Any = None) -> Steps:
    dims = tuple(range(input.ndim - len(normalized_shape), input.ndim))
    eps = torch.finfo(input.dtype).eps if eps is None else eps
    gain = torch.rsqrt(input.square().mean(dims, keepdim=True) + eps) * (1.0 if weight is None else weight)
    return c.one(Combine((Term(None, gain.detach()),), kind="scale"), input)


@reads("normalize", "local_response_norm")
def _divide_by_norm(c: Call, input: Tensor, *args: Any, **kwargs: Any) -> Steps:
    gain = torch.where(input == 0, torch.ones_like(input), c.result / input)
    return c.one(Combine((Term(None, gain.detach()),), kind="scale"), input)


# ---- elementwise functions ---------------------------------------------------------------------------------------


@reads(
    "relu", "relu6", "leaky_relu", "elu", "selu", "celu", "gelu", "silu", "mish", "hardtanh", "hardswish",
    "hardsigmoid", "hardshrink", "softshrink", "tanhshrink", "softplus", "softsign", "sigmoid", "logsigmoid", "tanh",
    "exp", "expm1", "log1p", "sqrt", "square", "abs", "clamp", "clamp_min", "clamp_max", "clip", "sin", "cos", "tan",
    "threshold", "rrelu", "erf", "asinh", "atan", "arctan", "sinh", "cosh", "positive", "relu6_", "log_sigmoid",
)  # fmt: skip
def _pointwise(c: Call, input: Tensor, *args: Any, **kwargs: Any) -> Steps:
    if any(c.tracked(a) for a in (*args, *kwargs.values())):
        return None
    zero = torch.zeros((1,) * input.ndim, dtype=input.dtype, device=input.device)
    offset = c.func(zero, *args, **kwargs)
    if offset.numel() != 1 or not math.isfinite(float(offset)):
        return None
    return c.one(Pointwise(float(offset)), input)


@reads("pow")
def _pow(c: Call, input: Any, exponent: Any) -> Steps:
    if c.tracked(exponent) or not isinstance(exponent, int | float) or exponent <= 0:
        return None
    return c.one(Pointwise(0.0), input)


@reads("prelu")
def _prelu(c: Call, input: Tensor, weight: Tensor) -> Steps:
    return None if c.tracked(weight) else c.one(Pointwise(0.0), input)


@reads("softmax", "log_softmax", "softmin")
def _softmax(c: Call, input: Tensor, *_: Any, **__: Any) -> Steps:
    return c.one(Pointwise(0.0, kind="softmax"), input)


@reads("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout", "feature_dropout")
def _dropout(c: Call, input: Tensor, *args: Any, **kwargs: Any) -> Steps:
    if not torch.equal(c.result, input):
        return None
    return c.one(Combine((Term(),)), input)


# ---- addition and multiplication ---------------------------------------------------------------------------------


@reads("add", "sub", "rsub")
def _add(c: Call, input: Any, other: Any, *, alpha: float = 1) -> Steps:
    signs = {"add": (1.0, float(alpha)), "sub": (1.0, -float(alpha)), "rsub": (-float(alpha), 1.0)}[c.name]
    return _sum_of(c, [(input, signs[0]), (other, signs[1])])


def _sum_of(c: Call, parts: list[tuple[Any, float]]) -> Steps:
    shape = c.result.shape
    terms: list[Term] = []
    inputs: list[int] = []
    shift: Tensor | float | None = None
    for value, sign in parts:
        if not c.tracked(value) and _is_bias(c, value):
            piece = value.detach() * sign if isinstance(value, Tensor) else float(value) * sign
            shift = piece if shift is None else shift + piece
            continue
        tensor = value if c.tracked(value) else _like(c, value, shape)
        move = None if tensor.shape == shape else Expand(tensor.shape, shape)
        terms.append(Term(move, sign))
        inputs.append(c.index(tensor) if c.tracked(tensor) else _constant(c, tensor))
    return [(c.result, Combine(tuple(terms), shift, joins=True, kind="add"), inputs)]


def _is_bias(c: Call, value: Any) -> bool:
    """A constant that varies along the channel axis at most is a bias; anything larger is an input in the middle."""
    if not isinstance(value, Tensor) or value.numel() == 1:
        return True
    channel = None
    for other in _flat(c.args):
        if c.tracked(other):
            node = c.recorder.node(other)
            channel = None if node.channel is None else node.channel - other.ndim
    wide = [axis - value.ndim for axis, n in enumerate(value.shape) if n > 1]
    return wide in ([channel], [-1]) and value.numel() > 1 and len(wide) == 1


@reads("mul", "div")
def _mul(c: Call, input: Any, other: Any, *, rounding_mode: Any = None) -> Steps:
    if rounding_mode is not None:
        return None
    shape = c.result.shape
    quotient = c.name == "div"
    if c.tracked(input) and c.tracked(other):
        moves = tuple(None if t.shape == shape else Expand(t.shape, shape) for t in (input, other))
        return c.one(Multiply(moves, quotient), input, other)
    if c.tracked(other) and quotient:
        return None
    x, factor = (input, other) if c.tracked(input) else (other, input)
    move = None if x.shape == shape else Expand(x.shape, shape)
    scale = factor.detach() if isinstance(factor, Tensor) else float(factor)
    if isinstance(scale, Tensor) and not scale.is_floating_point():
        scale = scale.to(c.result.dtype)
    return c.one(Combine((Term(move, 1.0 / scale if quotient else scale),), kind="scale"), x)


@reads("rtruediv", "rdiv", "reciprocal", "rsqrt")
def _reciprocal(c: Call, *_: Any, **__: Any) -> Steps:
    return None


@reads("neg", "negative")
def _neg(c: Call, input: Tensor) -> Steps:
    return c.one(Combine((Term(None, -1.0),), kind="scale"), input)


# ---- data movement -----------------------------------------------------------------------------------------------


@reads(
    "view", "reshape", "view_as", "reshape_as", "flatten", "unflatten", "ravel", "squeeze", "unsqueeze", "contiguous",
    "clone", "detach", "get:data", "requires_grad", "alias", "atleast_1d", "atleast_2d", "atleast_3d", "get:real",
    "identity", "native_channel_shuffle_",
)  # fmt: skip
def _reshape(c: Call, input: Tensor, *_: Any, **__: Any) -> Steps:
    if input.shape == c.result.shape:
        return c.one(Combine((Term(),)), input)
    return c.one(Combine((Term(Reshape(input.shape, c.result.shape)),)), input)


@reads(
    "permute", "transpose", "swapaxes", "swapdims", "t", "movedim", "moveaxis", "get:T", "get:mT", "get:H", "adjoint"
)
def _permute(c: Call, input: Tensor, *args: Any, **kwargs: Any) -> Steps:
    strides = torch.empty_strided(tuple(input.shape), tuple(range(1, input.ndim + 1)), device="meta")
    marked = c.func(strides, *args, **kwargs)
    dims = tuple(s - 1 for s in marked.stride())
    return c.one(Combine((Term(Permute(input.shape, dims)),)), input)


@reads("getitem", "select", "narrow")
def _getitem(c: Call, input: Tensor, *args: Any, **kwargs: Any) -> Steps:
    if c.name == "getitem":
        index = args[0] if isinstance(args[0], tuple) else (args[0],)
        if all(i is None or i is Ellipsis or isinstance(i, int | slice) and not isinstance(i, bool) for i in index):
            return c.one(Combine((Term(Slice(input.shape, c.result.shape, index)),)), input)
    return _probe(c, input, *args, **kwargs)


@reads(
    "chunk", "split", "split_with_sizes", "tensor_split", "unbind", "hsplit", "vsplit", "unsafe_chunk", "unsafe_split"
)
def _split(c: Call, input: Tensor, *args: Any, **kwargs: Any) -> Steps:
    dim = kwargs.get(
        "dim", args[-1] if args and isinstance(args[-1], int) and (len(args) > 1 or c.name == "unbind") else 0
    )
    dim = dim % input.ndim
    parts: list[tuple[Tensor, Any, list[int] | None]] = []
    start = 0
    for piece in c.result:
        lead = (slice(None),) * dim
        index: tuple[Any, ...]
        if c.name == "unbind":
            index, start = (*lead, start), start + 1
        elif c.name in ("hsplit", "vsplit"):
            return None
        else:
            index, start = (*lead, slice(start, start + piece.shape[dim])), start + piece.shape[dim]
        op: Op = Combine((Term(Slice(input.shape, piece.shape, index)),))
        parts.append((piece, op, [c.index(input)]))
    return parts


@reads("cat", "concat", "concatenate")
def _cat(c: Call, tensors: Any, dim: int = 0, **kwargs: Any) -> Steps:
    dim = kwargs.get("axis", dim) % c.result.ndim
    terms, inputs, start = [], [], 0
    for t in tensors:
        if t.ndim == 1 and t.numel() == 0:
            continue
        index = (*(slice(None),) * dim, slice(start, start + t.shape[dim]))
        start += t.shape[dim]
        terms.append(Term(Place(t.shape, c.result.shape, index)))
        inputs.append(_piece(c, t))
    return [(c.result, Combine(tuple(terms)), inputs)]


@reads("stack")
def _stack(c: Call, tensors: Any, dim: int = 0) -> Steps:
    dim = dim % c.result.ndim
    terms = [Term(Place(t.shape, c.result.shape, (*(slice(None),) * dim, i))) for i, t in enumerate(tensors)]
    return [(c.result, Combine(tuple(terms)), [_piece(c, t) for t in tensors])]


@reads("hstack", "vstack", "dstack", "column_stack", "row_stack")
def _hstack(c: Call, tensors: Any) -> Steps:
    """Read piece by piece: where each tensor's positions went."""
    terms, inputs = [], []
    for k, _ in enumerate(tensors):
        probe = [_positions(t) if j == k else torch.zeros_like(t, dtype=torch.float64) for j, t in enumerate(tensors)]
        index = c.func(probe).round().long().flatten() - 1
        terms.append(Term(Gather(tensors[k].shape, c.result.shape, index)))
        inputs.append(_piece(c, tensors[k]))
    return [(c.result, Combine(tuple(terms)), inputs)]


def _piece(c: Call, t: Tensor) -> int:
    if c.tracked(t):
        return c.index(t)
    for other in _flat(c.args):
        if c.tracked(other) and other.ndim == t.ndim:
            node = c.recorder.node(other)
            return c.recorder.constant(t, c.name, node.sample, node.channel)
    return c.index(t)


@reads("expand", "expand_as", "broadcast_to")
def _expand(c: Call, input: Tensor, *_: Any, **__: Any) -> Steps:
    return c.one(Combine((Term(Expand(input.shape, c.result.shape)),)), input)


@reads("pad")
def _pad(c: Call, input: Tensor, pad: Any, mode: str = "constant", value: Any = None) -> Steps:
    if mode != "constant":
        return _probe(c, input, pad, mode)
    if any(p < 0 for p in pad):
        return _probe(c, input, pad)
    inner = [slice(None)] * input.ndim
    for k in range(len(pad) // 2):
        axis = input.ndim - 1 - k
        inner[axis] = slice(pad[2 * k], pad[2 * k] + input.shape[axis])
    place = Place(input.shape, c.result.shape, tuple(inner))
    border = torch.full_like(c.result, float(value or 0.0))
    hole = place.apply(torch.ones((1, *input.shape), device=input.device))[0] == 0
    positions = torch.arange(border.numel(), device=border.device).view(border.shape)
    filled = Gather(border.shape, border.shape, torch.where(hole, positions, torch.full_like(positions, -1)).flatten())
    return [(c.result, Combine((Term(place), Term(filled))), [c.index(input), _constant(c, border)])]


@reads(
    "flip", "fliplr", "flipud", "roll", "repeat", "tile", "repeat_interleave", "pixel_shuffle", "pixel_unshuffle",
    "channel_shuffle", "native_channel_shuffle", "unfold", "im2col", "gather", "index_select", "take", "rot90",
    "diagonal", "tril", "triu", "take_along_dim", "masked_select", "as_strided", "diag_embed", "split_copy",
)  # fmt: skip
def _probe(c: Call, input: Tensor, *args: Any, **kwargs: Any) -> Steps:
    """A movement read by running it on positions: the result tells where every entry came from (0: from nowhere)."""
    if any(c.tracked(a) for a in (*_flat(args), *kwargs.values())):
        return None
    index = c.func(_positions(input), *args, **kwargs).round().long().flatten() - 1
    terms, inputs = [Term(Gather(input.shape, c.result.shape, index))], [c.index(input)]
    if bool((index < 0).any()):
        empty = torch.zeros_like(c.result)
        own = torch.arange(empty.numel(), device=empty.device)
        holes = torch.where(index < 0, own, torch.full_like(own, -1))
        terms.append(Term(Gather(empty.shape, empty.shape, holes)))
        inputs.append(_constant(c, empty))
    return [(c.result, Combine(tuple(terms)), inputs)]


def _positions(t: Tensor) -> Tensor:
    return torch.arange(1, t.numel() + 1, dtype=torch.float64, device=t.device).view(t.shape)
