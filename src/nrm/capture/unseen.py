"""What torch does not report: tensors that are written, exchanged or shared behind the back of the recorder.

Three things tell. The *version* of a tensor, which torch counts up with every write that it knows of; its *memory*, on
which an unknown tensor may lie that was made from a tracked one without a call of torch (``nn.Parameter(y)``,
``torch.from_dlpack(y)``); and the *content* of memory that was handed out (``y.numpy()``), where nothing is counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from nrm.capture import writes
from nrm.errors import CaptureError
from nrm.shapes import place_of

if TYPE_CHECKING:
    from nrm.capture.recorder import Recorder


class Seal(NamedTuple):
    """How a tensor was when it was recorded: which tensor inside, how often it was written, and its memory."""

    inner: int
    version: int
    pointer: int


def version(tensor: Tensor) -> int:
    """How often a tensor (or another one on its memory) was written; tensors of inference mode do not count."""
    return -1 if tensor.is_inference() else tensor._version


def address(tensor: Tensor) -> int:
    """Where the data of a tensor lies; 0 for one that has no memory of its own kind."""
    return place_of(tensor) if _has_memory(tensor) else 0


def seal(tensor: Tensor) -> Seal:
    """The present state of a tensor."""
    return Seal(tensor._cdata, version(tensor), writes.memory_of(tensor))


def meets(r: Recorder, tensor: Tensor) -> bool:
    """Whether an argument of a call depends on the input; refuses one that is not what was recorded."""
    if id(tensor) not in r.live:
        found = not r.memory.is_home(tensor) and (r.tracked(tensor) or _recognized(r, tensor))
    else:
        known = r.seals[id(tensor)]
        found = tensor._cdata == known.inner and (version(tensor) == known.version or not tensor.numel())
        found = found or _exchanged(r, tensor, known)
    if found and r.memory.exposed:
        _check_exposed(r, tensor)
    return found


def check_all(r: Recorder) -> None:
    """Refuses a pass in which a recorded tensor was written unseen, also if nobody has read it since."""
    for tensor, index in list(r.live.values()):
        known = r.seals[id(tensor)]
        if tensor.numel() and tensor._cdata == known.inner and version(tensor) != known.version:
            raise _written(r, index)
        if r.memory.exposed and tensor._cdata == known.inner:
            _check_exposed(r, tensor)


def refuse_writing(r: Recorder, name: str, present: list[Tensor], before: list[int]) -> None:
    """Refuses a call that has written into its arguments although it does not say so."""
    if [version(t) for t in present] != before:
        raise CaptureError(
            f"{name} writes into its arguments, which is not followed", where=r.place(),
            expected="a function that returns its result, or an in-place function of torch",
            hint="torch.library.custom_op(..., mutates_args=...) says what is written, so that it can be registered",
        )  # fmt: skip


def expose(r: Recorder, tensor: Tensor, name: str) -> None:
    """Remembers that memory is handed out: from now on it may be written without a trace."""
    if not tensor.numel():
        return
    pointer = writes.memory_of(tensor)
    if pointer not in r.memory.exposed:
        writes.freeze(r, pointer)
        r.memory.exposed[pointer] = f"{name} at {r.place()}"


def _exchanged(r: Recorder, tensor: Tensor, known: Seal) -> bool:
    """A tensor that is not as it was recorded: it got other memory, or what it holds was written unseen."""
    if tensor._cdata == known.inner and writes.memory_of(tensor) == known.pointer:
        raise _written(r, r.live[id(tensor)][1])
    r.live.pop(id(tensor))
    return _recognized(r, tensor)


def _written(r: Recorder, index: int) -> CaptureError:
    node = r.nodes[index]
    return CaptureError(
        "a tensor was written by a call that torch does not report", where=r.place(),
        got=f"the result of {node.function!r} in {node.module or 'the model'}: written after it was recorded",
        expected="in-place functions of torch, or torch.library.custom_op with mutates_args",
        hint="write that part with torch functions (no scripted or compiled code that writes into its arguments)",
    )  # fmt: skip


def _recognized(r: Recorder, tensor: Tensor) -> bool:
    """Whether an unknown tensor lies on the memory of a tracked one: it is a view of it, however it was made."""
    if not _has_memory(tensor):
        return False
    pointer = r.memory.begin(tensor)
    if pointer is None or pointer in r.memory.histories:
        return False
    near = [(t, r.live[id(t)][1]) for t in r.memory.on(pointer) if id(t) in r.live and t is not tensor]
    held = [(n.held, n.index) for n in reversed(r.nodes) if n.held is not None and n.held.numel()]
    near += [(value, index) for value, index in held if writes.memory_of(value) == pointer]
    if not near:
        return False  # that memory was given back, and is used again
    for other, index in near:
        if other.dtype == tensor.dtype and writes.look_at(r, tensor, other, index):
            return True
    raise CaptureError(
        "memory of the network is read in a form that cannot be followed", where=r.place(),
        got=f"{tuple(tensor.shape)} of {tensor.dtype} on the memory of {tuple(near[0][0].shape)} of {near[0][0].dtype}",
        expected="views made by torch functions",
    )  # fmt: skip


def _has_memory(tensor: Tensor) -> bool:
    plain = tensor.is_floating_point() and tensor.layout is torch.strided and bool(tensor.numel())
    return plain and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def _check_exposed(r: Recorder, tensor: Tensor) -> None:
    """Refuses a tensor whose memory was handed out and has been written since."""
    how = r.memory.exposed.get(writes.memory_of(tensor)) if _has_memory(tensor) else None
    if how is None:
        return
    value = r.node(tensor).value
    if value.dtype == tensor.dtype and not torch.allclose(tensor, value, rtol=0, atol=0, equal_nan=True):
        raise CaptureError(
            "memory of the network was written outside torch", where=r.place(),
            got=f"the result of {r.node(tensor).function!r} has changed; its memory was handed out by {how}",
            expected="writing by torch functions", hint="y.copy_(...), y[...] = ..., or a copy: y.numpy().copy()",
        )  # fmt: skip
