"""The names of torch's calls: one per meaning, and the groups of them that the recorder treats alike."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from torch._library.custom_ops import CustomOpDef
from torch._ops import OpOverload, OpOverloadPacket

CASTS = {"to", "half", "bfloat16", "float", "double", "type", "type_as", "cuda", "cpu"}
"""Calls that change precision or device only. Precision is the measure's own choice, so the cast is dropped."""

COPIES = {"to", "long", "int", "type", "view", "reshape", "contiguous", "clone", "detach", "getitem", "flatten",
          "squeeze", "unsqueeze", "expand", "transpose", "t", "permute", "cpu", "cuda"}  # fmt: skip
"""Calls whose result holds the user's own integers, as they were given."""

MOVES = COPIES | {"get:T", "get:mT", "swapaxes", "swapdims", "movedim", "moveaxis", "flip", "roll", "narrow", "select",
                  "index_select", "gather", "repeat", "repeat_interleave", "tile", "unflatten", "ravel", "broadcast_to",
                  "expand_as", "chunk", "split", "unbind", "tensor_split"}  # fmt: skip
"""Calls whose results hold entries of their first argument, at other places."""

CONSTANT = {
    "zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like", "randint_like",
    "new_zeros", "new_ones", "new_empty", "new_full", "new_tensor", "get:grad", "requires_grad",
}  # fmt: skip
"""Calls whose result does not depend on the values of their arguments."""

BLANK = {"empty", "new_empty", "empty_like", "empty_strided"}
"""Calls whose result is whatever lies in memory until it is written. While a model is recorded, it is 0."""

WITH_CHOICE = {"max_pool1d", "max_pool2d", "max_pool3d"}
"""Calls that know which input they chose; the choice is kept, so that it need not be computed again."""

NONNEGATIVE = {"relu", "relu6", "sigmoid", "hardsigmoid", "softmax", "softplus", "exp", "square", "abs"}
"""Calls that give nothing below 0."""

REVERSED = {"radd": "add", "rmul": "mul", "iadd": "add", "isub": "sub", "imul": "mul", "itruediv": "div",
            "idiv": "div", "truediv": "div", "true_divide": "div", "divide": "div", "multiply": "mul",
            "subtract": "sub", "ipow": "pow", "float_power": "pow", "ifloordiv": "floor_divide",
            "floordiv": "floor_divide", "mod": "remainder", "imod": "remainder", "inverse": "linalg_inv",
            "multi_dot": "linalg_multi_dot"}  # fmt: skip
SPECIAL = {f"special_{name}": name for name in ("expit", "exp2", "expm1", "log1p", "logit", "erf", "erfc", "sinc",
                                                "softmax", "log_softmax", "logsumexp", "erfinv", "i0", "round",
                                                "digamma")} | {
    "special_gammaln": "lgamma", "special_psi": "digamma"}  # fmt: skip
"""What ``torch.special`` calls functions that torch has under another name."""

NUMPY_NAMES = {"axis": "dim", "keepdims": "keepdim", "x": "input", "x1": "input", "x2": "other"}
"""Names that torch accepts for its own arguments."""

READS = {"item", "tolist", "numpy", "__array__", "__float__", "__int__", "__bool__", "__index__", "__complex__"}
"""Calls that hand a value to Python. What is computed from it there cannot be followed."""

DECIDES = {"__bool__", "__index__"}
"""Those whose value does not come back as a number: it decides what is done."""

AT_PLACES = {"index_add", "scatter_add", "scatter_reduce"}
"""Sums at places, which are steps of the network also where there is nothing to add: nodes without any edges."""

FROM_DATA = {"tensor", "as_tensor", "asarray"}
"""Calls that make tensors of what is not torch's."""

HANDS_OUT = {"numpy", "__array__", "__dlpack__", "untyped_storage", "storage", "_typed_storage", "data_ptr"}
"""Calls that hand out the memory of a tensor, which may be read and written there without a call of torch."""


SHAPES = {
    "dim", "ndimension", "size", "numel", "nelement", "stride", "is_contiguous", "is_floating_point", "is_complex",
    "get:shape", "get:ndim", "get:device", "get:layout", "get:is_cuda", "get:requires_grad",
}  # fmt: skip
"""Calls that look at what a tensor is, and not at its values."""


def class_name(kind: type) -> str:
    """The name of a class, with that of the Python module it is from."""
    return f"{kind.__module__}.{kind.__qualname__}"


@functools.lru_cache(4096)
def function_name(func: Callable[..., Any]) -> str:
    """One name per meaning: ``torch.add``, ``Tensor.add``, ``Tensor.add_`` and ``+`` are all ``add``.

    An op of one's own library keeps its namespace, ``mine::smooth``, however it is called, and a class its module's.
    """
    if isinstance(func, type):
        return class_name(func)
    name = _name_in_library(func)
    if name in ("__get__", "__set__"):
        return f"{name[2:-2]}:{getattr(getattr(func, '__self__', None), '__name__', '')}"
    if name in READS or name in HANDS_OUT:
        return name
    return one_name(name.strip("_"))


def one_name(name: str) -> str:
    """The name that all calls of one meaning share."""
    return REVERSED.get(name) or SPECIAL.get(name, name)


def _name_in_library(func: Any) -> str:
    """A function's name; ops of ``torch.ops`` and of ``torch.library.custom_op`` have those of their libraries."""
    if isinstance(func, CustomOpDef):
        return func._qualname
    if not isinstance(func, OpOverload | OpOverloadPacket):
        return str(getattr(func, "__name__", func))
    namespace, name, *_ = str(func).split(".")
    return name if namespace == "aten" else f"{namespace}::{name}"


@functools.cache
def place_of_inplace(func: Any) -> int | None:
    """Where a functional call has its argument ``inplace``, if it has one."""
    if getattr(func, "__module__", "") != "torch.nn.functional":
        return None
    try:
        names = list(inspect.signature(func).parameters)
    except (TypeError, ValueError):
        return None
    return names.index("inplace") if "inplace" in names else None


def without_inplace(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], bool]:
    """The arguments of a functional call with ``inplace=True`` as those of its out-of-place form."""
    place = place_of_inplace(func)
    if place is None:
        return args, kwargs, False
    if len(args) > place:
        return ((*args[:place], False, *args[place + 1 :]) if args[place] else args), kwargs, bool(args[place])
    if kwargs.get("inplace"):
        return args, {**kwargs, "inplace": False}, True
    return args, kwargs, False
