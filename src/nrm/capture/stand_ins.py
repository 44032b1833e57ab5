"""Models as they come: what stands in for compiled code and for offloaded and quantized weights in a recorded call.

The model itself is not changed for good: all that is exchanged here is put back, also after an error or an interrupt.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from nrm.capture.arguments import TENSORS
from nrm.devices import load_device, offloading
from nrm.errors import CaptureError
from nrm.operators import LateWeight

_ABSENT: Any = object()


class Exchanged:
    """Entries of dictionaries that are others for a while."""

    def __init__(self) -> None:
        self._before: list[tuple[dict[str, Any], str, Any]] = []

    def put(self, where: dict[str, Any], key: str, value: Any) -> None:
        """Exchanges one entry; one that was not there is taken away again afterwards."""
        self._before.append((where, key, where.get(key, _ABSENT)))
        where[key] = value

    def put_back(self) -> None:
        """Gives every entry back what it was, the last change first."""
        while self._before:
            where, key, value = self._before[-1]
            if value is _ABSENT:
                where.pop(key, None)
            else:
                where[key] = value
            self._before.pop()


@contextlib.contextmanager
def standing_in(model: nn.Module, compiled: int = False) -> Iterator[list[str]]:
    """The model as plain modules with weights that can be read; gives notes on what was exchanged.

    ``compiled`` says that the model itself was found inside a compiled one.
    """
    exchanged = Exchanged()
    try:
        compiled += _unwrap_parts(model, exchanged)
        offloaded, quantized = 0, dict[str, int]()
        for path, module in list(model.named_modules()):
            compiled += _run_as_written(module, exchanged)
            offloaded += _read_offloaded(path, module, exchanged)
            for kind in _read_quantized(module, exchanged):
                quantized[kind] = quantized.get(kind, 0) + 1
        yield _notes(compiled, offloaded, quantized)
    finally:
        exchanged.put_back()


def _notes(compiled: int, offloaded: int, quantized: dict[str, int]) -> list[str]:
    notes = ["compiled code is run as it was written while it is captured"] if compiled else []
    if offloaded:
        notes.append(f"weights are read from where they were offloaded whenever they are used ({offloaded} of them)")
    kinds = ", ".join(f"{count} {kind}" for kind, count in quantized.items())
    if kinds:
        notes.append(
            f"weights that are quantized ({kinds}) are the numbers they stand for; activations are not rounded"
        )
    return notes


def unwrap(model: Any) -> Any:
    """The user's own module inside ``torch.compile`` and data-parallel wrappers."""
    while True:
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            model = model.module
        elif is_compiled(model):
            model = model._orig_mod
        else:
            return model


def is_compiled(model: Any) -> bool:
    """Whether a module is one that ``torch.compile`` made around another one."""
    return "_orig_mod" in model._modules if isinstance(model, nn.Module) else hasattr(model, "_orig_mod")


# ---- compiled code -----------------------------------------------------------------------------------------------


def _unwrap_parts(model: nn.Module, exchanged: Exchanged) -> int:
    """Wrapped modules inside the model are exchanged for those that they wrap, which then have the wrappers' names."""
    count, waiting, seen = 0, [model], set[int]()
    while waiting:
        module = waiting.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        for name, child in list(module._modules.items()):
            plain = unwrap(child)
            if plain is not child:
                exchanged.put(module._modules, name, plain)
                count += is_compiled(child)
            if plain is not None:
                waiting.append(plain)
    return count


def _run_as_written(module: nn.Module, exchanged: Exchanged) -> int:
    """A module that was compiled in place is called as it was before."""
    count = 0
    if module._compiled_call_impl is not None:
        exchanged.put(module.__dict__, "_compiled_call_impl", None)
        count += 1
    written = getattr(module.__dict__.get("forward"), "_torchdynamo_orig_callable", None)
    if written is not None:
        exchanged.put(module.__dict__, "forward", written)
        count += 1
    return count


# ---- offloaded weights -------------------------------------------------------------------------------------------


def _read_offloaded(path: str, module: nn.Module, exchanged: Exchanged) -> int:
    """Tensors that a hook of accelerate would load for a call are read when they are used instead; the hook stays.

    It goes on to bring what a module is given to its device, and its result back.
    """
    count = 0
    for hook in offloading(module):
        for below, part in module.named_modules() if hook.place_submodules else [("", module)]:
            for own in (part._parameters, part._buffers):
                for key, tensor in own.items():
                    if tensor is not None and tensor.is_meta:
                        name = f"{below}.{key}" if below else key
                        where = f"{path}.{name}" if path else name
                        exchanged.put(own, key, _offloaded(hook, name, tensor, where))
                        count += 1
        exchanged.put(hook.__dict__, "offload", False)
    return count


def _offloaded(hook: Any, name: str, meta: Tensor, where: str) -> LateWeight:
    """A weight that is read from a hook's map: a file, or the memory of another device."""
    weights, device = hook.weights_map, load_device(hook)
    if not meta.is_floating_point() and type(meta) is not Tensor:
        raise CaptureError(
            "a quantized weight is offloaded", where=where, got=type(meta).__name__,
            expected="weights that are either offloaded or quantized", hint="keep quantized layers on one device",
        )  # fmt: skip

    def read() -> Tensor:
        try:
            value: Tensor = weights[name]
        except (OSError, KeyError) as error:
            raise CaptureError(
                "an offloaded weight cannot be read", where=where, got=f"{type(error).__name__}: {error}",
                expected="the files and memory that the model was offloaded to, as long as it is asked about",
            ) from error  # fmt: skip
        return value.detach().to(device, meta.dtype)

    return LateWeight(read, torch.empty(meta.shape, dtype=meta.dtype, device="meta"), device, meta)


# ---- quantized weights -------------------------------------------------------------------------------------------


def _read_quantized(module: nn.Module, exchanged: Exchanged) -> list[str]:
    """Quantized weights of a module become the numbers they stand for, formed when they are used; their kinds."""
    plain = _plain_forward(module)
    kinds = []
    for own in (module._parameters, module._buffers):
        for key, tensor in own.items():
            late = None if tensor is None else _of_bitsandbytes(module, tensor) if plain else _of_its_class(tensor)
            if late is not None:
                exchanged.put(own, key, late)
                kinds.append(type(module if plain else tensor).__name__)
    if kinds and plain:
        forward = "_old_forward" if "_old_forward" in module.__dict__ else "forward"  # inside the hook of accelerate
        exchanged.put(module.__dict__, forward, functools.partial(plain, module))
    return kinds


def _plain_forward(module: nn.Module) -> Callable[..., Any] | None:
    """What a layer of bitsandbytes computes, but for its packed weights: that of the layer that it was made from."""
    if not type(module).__module__.startswith("bitsandbytes."):
        return None
    kinds = (nn.Linear, nn.Embedding)
    return next((kind.forward for kind in kinds if isinstance(module, kind)), None)


def _of_bitsandbytes(module: Any, weight: Tensor) -> LateWeight | None:
    """The weights of a layer of bitsandbytes: 8 bits with a scale for every row, or 4 bits with one for every block."""
    if type(weight).__name__ not in ("Int8Params", "Params4bit"):
        return None
    functional = sys.modules["bitsandbytes.functional"]
    four, found = getattr(weight, "quant_state", None), weight.data
    if four is not None:
        like = torch.empty(four.shape, dtype=four.dtype, device="meta")
        return LateWeight(functools.partial(_from_four_bits, functional, weight), like, weight.device, weight)
    scale = getattr(weight, "SCB", None)
    scale = module.state.SCB if scale is None and hasattr(module, "state") else scale  # where it is after a first call
    if found.dtype is not torch.int8:  # it was never packed
        return LateWeight(lambda: weight.data, torch.empty_like(found, device="meta"), weight.device, weight)
    like = torch.empty(found.shape, dtype=torch.float32, device="meta")
    return LateWeight(lambda: functional.int8_vectorwise_dequant(weight.data, scale), like, weight.device, weight)


def _from_four_bits(functional: Any, weight: Any) -> Tensor:
    packed, state = weight.data, weight.quant_state
    if getattr(state, "packing_format_for_cpu", False):  # its own call has changed the order of its numbers
        state = copy.copy(state)
        state.absmax, state.original_nested = state.absmax.T.reshape(-1).float(), False  # scales as they are now used
        packed, state = functional._convert_weight_packed_for_cpu_inverse(packed, state)
    found: Tensor = functional.dequantize_4bit(packed, state)
    return found


@contextlib.contextmanager
def kept_as_packed(model: nn.Module) -> Iterator[None]:
    """Calls of the model itself leave its weights as they are, which bitsandbytes reorders and rounds in the first."""
    exchanged = Exchanged()
    try:
        for module in model.modules():
            if getattr(module, REORDERS, False):
                exchanged.put(module.__dict__, REORDERS, False)
        yield
    finally:
        exchanged.put_back()


REORDERS = "support_avx512bf16_for_cpu"
"""Where a layer of 4 bits says whether it brings its weights into the order that this processor likes."""


def _of_its_class(tensor: Any) -> LateWeight | None:
    """A tensor whose own class says what numbers it stands for, as those of torchao do."""
    if type(tensor) in TENSORS or type(tensor).dequantize is Tensor.dequantize:
        return None
    like = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
    return LateWeight(lambda: tensor.dequantize(), like, tensor.device, tensor)
