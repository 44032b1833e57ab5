"""Writing in place: who sees the new value, who keeps the old one, and what belongs to the user.

In-place calls are replaced by their out-of-place form. The tensor that is written then stands for the new node, and
every other tensor on the same memory gets a node that moves the new data to it; nodes keep their old values. Memory
that was constant when it was first written with tracked data (a buffer to be filled) may have views that nobody has
seen yet: the writes are remembered, and such a view catches up when it is used.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nrm.capture import remember
from nrm.capture.arguments import tensors_in
from nrm.capture.ops import Combine, Term
from nrm.errors import CaptureError
from nrm.operators import Gather, LateWeight, Reshape
from nrm.shapes import address_of, is_shape

if TYPE_CHECKING:
    from nrm.capture.recorder import Recorder

VIEWS = {"squeeze", "unsqueeze", "t", "transpose", "swapaxes", "swapdims", "as_strided"}
"""In-place calls that change the shape only: the memory stays as it is."""

FILLS = {"zero", "fill", "normal", "uniform", "bernoulli", "exponential", "random", "log_normal", "cauchy", "geometric"}
"""In-place calls whose result does not depend on what was there."""


@dataclass(eq=False)
class _History:
    """Constant memory that was written with tracked data: what was there before, and the writes in their order."""

    keeper: Tensor
    before: Tensor
    log: list[tuple[Tensor, int]] = field(default_factory=list)


class Memory:
    """The model's own memory, to be given back, and the histories of constant memory that became tracked."""

    def __init__(self, own: list[Tensor]) -> None:
        self.histories: dict[int, _History] = {}
        self.seen: dict[int, list[Tensor]] = {}
        self.exposed: dict[int, str] = {}
        self._begins: list[int] = []
        plain = [(t, memory_of(t)) for t in own if not isinstance(t, LateWeight) and t.numel()]
        self._own = {pointer: t for t, pointer in plain}
        self._home = {id(t): (t.data_ptr(), pointer) for t, pointer in plain if not is_shape(t)}
        self._saved: dict[int, tuple[Tensor, Tensor, Tensor]] = {}

    def is_home(self, tensor: Tensor) -> bool:
        """Whether a tensor is one of the model's own, on its own memory, which no tracked tensor lies on."""
        own = self._home.get(id(tensor))
        return own is not None and own[0] == tensor.data_ptr() and own[1] not in self.seen

    def meet(self, tensor: Tensor, pointer: int) -> None:
        """Remembers which memory a tensor lies on."""
        if tensor.numel():
            if pointer not in self.seen:
                bisect.insort(self._begins, pointer)
                self.seen[pointer] = [tensor]
            else:
                self.seen[pointer].append(tensor)

    def forget(self, tensor: Tensor) -> None:
        """Forgets a tensor that is given back, and its memory if no other one lies on it."""
        pointer = memory_of(tensor)
        left = [t for t in self.seen.get(pointer, ()) if t is not tensor]
        if left:
            self.seen[pointer] = left
        elif self.seen.pop(pointer, None) is not None:
            del self._begins[bisect.bisect_left(self._begins, pointer)]

    def begin(self, tensor: Tensor) -> int | None:
        """Where the memory begins, among that of the tensors that were met, on which a tensor may lie."""
        pointer = memory_of(tensor)
        place = bisect.bisect_right(self._begins, pointer) - 1
        if place < 0:
            return None
        begin = self._begins[place]
        reach = max((t.untyped_storage().nbytes() for t in self.seen[begin]), default=0)
        return begin if pointer < begin + reach else None

    def sharing(self, target: Tensor) -> list[Tensor]:
        """The tensors that were met on the same memory and still lie there, each once."""
        return [t for t in self.on(memory_of(target)) if t is not target]

    def on(self, pointer: int) -> list[Tensor]:
        """The tensors that were met on this memory and still lie there, each once."""
        near = {id(t): t for t in self.seen.get(pointer, ()) if t.numel()}
        return [t for t in near.values() if memory_of(t) == pointer]

    def protect(self, target: Any) -> None:
        """Remembers a parameter or buffer before anything is written into its memory."""
        if not isinstance(target, Tensor) or target.layout is not torch.strided or not target.numel():
            return
        owner = self._own.get(memory_of(target))
        if owner is not None and id(owner) not in self._saved:
            self._saved[id(owner)] = (owner, owner.data, owner.detach().clone())

    def restore(self) -> None:
        """Gives parameters and buffers that the forward pass wrote into their memory and values back."""
        for tensor, memory, value in self._saved.values():
            if (memory_of(tensor), tensor.shape, tensor.stride()) != (memory_of(memory), memory.shape, memory.stride()):
                tensor.data = memory
            if not torch.equal(memory, value):  # a write would count up the version of a buffer that nobody wrote
                memory.copy_(value)
        self._saved.clear()


def in_place(r: Recorder, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Any call that writes into its first argument."""
    target = args[0]
    if not target.is_floating_point():
        r.notes.append(f"{r.place()}: float data is written into integers; what follows is held constant")
        return func(*args, **kwargs)
    promote(r, target)
    if name == "setitem":
        return _assign(r, target, args[1], args[2])
    if name in ("requires_grad", "detach"):
        return target
    value = kwargs.get("value", args[1] if len(args) > 1 else None)
    if name == "fill" and r.tracked(value):
        return _copy(r, target, value)
    if name in FILLS:
        filled = target.detach().clone()
        func(filled, *args[1:], **kwargs)
        return _fill(r, target, filled)
    if name == "copy":
        return _copy(r, target, args[1])
    twin = out_of_place(r, func)
    if name in VIEWS:
        return _reshape(r, target, twin(*args, **kwargs), name, args, kwargs, twin)
    return write(r, target, twin, name, args, kwargs)


def write(r: Recorder, out: Any, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Makes tensors hold the results of a call: the one it writes in place, or those of ``out=``, one or several."""
    targets = tensors_in(out)
    for target in targets:
        args = tuple(as_it_was(r, target) if a is target else a for a in args)
        kwargs = {k: as_it_was(r, target) if v is target else v for k, v in kwargs.items()}
    result = r.perform(func, name, args, kwargs) if r.tracked_in((args, kwargs)) else func(*args, **kwargs)
    for target, value in zip(targets, tensors_in(result), strict=True):
        _put(r, target, value, name)
    return out if isinstance(out, Tensor) else type(result)(targets)


def _put(r: Recorder, target: Tensor, value: Tensor, name: str) -> None:
    """Makes a tensor hold a value that was recorded, or a constant."""
    if value is target:
        return
    if value.shape != target.shape and target.numel():
        raise CaptureError(
            f"{name} writes into a tensor of another shape", where=r.place(),
            got=f"{tuple(value.shape)} into {tuple(target.shape)}", hint="use its return value",
        )  # fmt: skip
    if value.shape != target.shape:
        target.resize_(value.shape)  # torch gives an empty tensor of ``out=`` the shape of what is written
    if not r.tracked(value) and not r.tracked(target):
        r.memory.protect(target)
        target.detach().copy_(value)
        r.renew(target)
    elif not r.tracked(value):
        _fill(r, target, value.to(target))
    else:
        promote(r, target)
        index = r.node(value).index
        r.forget(value)  # else it would count as one more holder of the memory that the target gets
        store(r, target, value, index)
    if not r.tracked(target):
        r.derived.pop(id(target), None)
        if id(value) in r.derived:
            r.derived[id(target)] = (target, r.derived[id(value)][1])


def as_it_was(r: Recorder, target: Tensor) -> Tensor:
    """A constant that is about to be written, to remember: its own memory will hold something else."""
    if r.tracked(target):
        return target
    before = target.detach().clone()
    if id(target) in r.origin:
        r.origin[id(before)] = (before, r.origin[id(target)][1])
    return before


def catch_up(r: Recorder, tensor: Tensor) -> bool:
    """Whether an unknown tensor is a view of constant memory that was written with tracked data since."""
    if not r.memory.histories or not tensor.is_floating_point() or not tensor.numel():
        return False
    history = r.memory.histories.get(memory_of(tensor))
    if history is None:
        return False
    moves = [(index, _overlap(written, tensor)) for written, index in history.log]
    if not any(bool((inside >= 0).any()) for _, (inside, _) in moves):
        return False
    old = history.before.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).clone()
    current = r.constant(old, "buffer", r.sample_axis(old), old.ndim - 1 if old.ndim > 1 else None)
    for index, (inside, kept) in moves:
        if bool((inside >= 0).any()):
            old = torch.where(inside >= 0, r.nodes[index].value.reshape(-1)[inside.clamp(min=0)], old.reshape(-1))
            old = old.reshape(tensor.shape)
            current = _patched(r, tensor.shape, old, current, index, inside, kept)
    r.follow(tensor, current)
    return True


def out_of_place(r: Recorder, func: Any) -> Any:
    """The function that computes what an in-place one writes."""
    plain = getattr(func, "__name__", "")
    twin = f"__{plain[3:-2]}__" if plain.startswith("__i") else plain[:-1]
    found = getattr(Tensor, twin, None) or getattr(torch, twin, None) or getattr(F, twin, None)
    if found is None:
        raise CaptureError(
            f"in-place call {plain} cannot be followed", where=r.place(), hint="use its out-of-place form"
        )
    return found


def promote(r: Recorder, target: Tensor) -> None:
    """A constant buffer of another precision that is about to hold tracked data gets the working precision."""
    if target.dtype != r.precision.dtype:
        r.memory.protect(target)
        target.data = target.data.to(r.precision.dtype)


def _copy(r: Recorder, target: Tensor, source: Any) -> Tensor:
    if not r.tracked(source):
        value = source if isinstance(source, Tensor) else torch.as_tensor(source)
        return _fill(r, target, value.to(target).expand(target.shape).clone())
    write(r, target, _copied, "expand_as", (source, target), {})
    return target


def _copied(source: Tensor, target: Tensor) -> Tensor:
    return source.expand_as(target).clone()


def _fill(r: Recorder, target: Tensor, value: Tensor) -> Tensor:
    """Constant data over a tracked tensor: views of it see a constant there."""
    if not r.tracked(target):
        r.memory.protect(target)
        target.detach().copy_(value)
        r.renew(target)
        return target
    store(r, target, value, r.constant_like(r.node(target), value, "fill"))
    return target


def _reshape(
    r: Recorder, target: Tensor, result: Tensor, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], func: Any
) -> Tensor:
    r.record(func, name, args, kwargs, result)
    _, index = r.live.pop(id(result))
    target.data = result.detach()
    r.follow(target, index)
    return target


def _assign(r: Recorder, target: Tensor, where: Any, value: Any) -> None:
    """``target[where] = value``."""
    result = target.detach().clone()
    result[where] = value
    slot = value if r.tracked(value) else result[where].clone()
    positions = torch.arange(target.numel(), device=target.device).view(target.shape)
    kept, filled = positions.clone(), torch.full_like(positions, -1)
    kept[where] = -1
    filled[where] = torch.arange(slot.numel(), device=target.device).view(slot.shape)
    call = remember.recall(r, _with_entries, (target, where, value), {})
    if not call.is_derived and not bool((kept < 0).any()):
        return  # nothing is selected, whatever the input is
    old = r.node(target).index if r.tracked(target) else _adopted(r, target)
    if not r.tracked(slot) and not bool((kept >= 0).any()):
        index = r.add(Combine((Term(),)), [r.constant_like(r.nodes[old], result, "setitem")], result, "setitem")
    else:
        new = r.node(slot).index if r.tracked(slot) else r.constant(slot, "setitem")
        index = _patched(r, target.shape, result, old, new, filled.flatten(), kept.flatten(), "setitem")
    if call.is_derived:
        r.nodes[index].recall = call
    store(r, target, result, index)


def _with_entries(target: Tensor, where: Any, value: Any) -> Tensor:
    """A copy with ``where`` set to ``value``; a mask may be another one every time."""
    if isinstance(where, Tensor) and where.dtype == torch.bool and (not isinstance(value, Tensor) or not value.ndim):
        return torch.where(where.view(*where.shape, *(1,) * (target.ndim - where.ndim)), value, target)
    result = target.clone()
    result[where] = value
    return result


def _adopted(r: Recorder, target: Tensor) -> int:
    """A constant buffer that is about to be written with tracked data, as a source with its old value."""
    value = target.detach().clone()
    return r.constant(value, "buffer", r.sample_axis(value), value.ndim - 1 if value.ndim > 1 else None)


def store(r: Recorder, target: Tensor, result: Tensor, index: int) -> None:
    """The target now holds the result; every tensor on the same memory follows."""
    fresh = not r.tracked(target)
    aliases = [] if fresh and memory_of(target) not in r.memory.histories else _aliases(r, target)
    r.memory.protect(target)
    if not fresh and not aliases and is_alone(r, target):
        target.data = result
        r.nodes[index].value = target.detach()
        r.follow(target, index)
        return
    r.shared_write(target)
    freeze(r, memory_of(target))
    if fresh and memory_of(target) not in r.memory.histories:
        r.memory.histories[memory_of(target)] = _History(target, _whole(target).clone())
    moves = [(t, r.live[id(t)][1], _overlap(target, t)) for t in aliases]
    target.detach().copy_(result)
    r.nodes[index].value = target.detach().clone()
    r.follow(target, index)
    if memory_of(target) in r.memory.histories:
        r.memory.histories[memory_of(target)].log.append((_geometry(target), index))
    for t, old, (inside, kept) in moves:
        if bool((inside >= 0).any()):
            r.follow(t, _patched(r, t.shape, t.detach().clone(), old, index, inside, kept))
    r.renew(target)


def _patched(
    r: Recorder, shape: torch.Size, value: Tensor, old: int, new: int, inside: Tensor, kept: Tensor, name: str = "write"
) -> int:
    """A tensor of which some entries are new data (``inside`` says which) and the others what they were."""
    if not bool((inside >= 0).any()):
        return r.add(Combine((Term(),)), [old], value, name)
    source = r.nodes[new].shape
    if bool((inside >= 0).all()):
        own = torch.arange(source.numel(), device=inside.device)
        straight = len(own) == len(inside) and torch.equal(inside, own)
        term = Term(Reshape(source, shape)) if straight else Term(Gather(source, shape, inside))
        return r.add(Combine((term,)), [new], value, name)
    terms = (Term(Gather(shape, shape, kept)), Term(Gather(source, shape, inside)))
    return r.add(Combine(terms), [old, new], value, name)


def freeze(r: Recorder, pointer: int) -> None:
    """Nodes keep the values they had."""
    for node in r.nodes:
        if node.held is not None and node.held.numel() and memory_of(node.held) == pointer:
            node.value = node.held.clone()


def _aliases(r: Recorder, target: Tensor) -> list[Tensor]:
    return [t for t in r.memory.sharing(target) if id(t) in r.live]


def is_alone(r: Recorder, tensor: Tensor) -> bool:
    """Whether a tensor has memory of its own that nobody else holds, so that it may be exchanged for that of a result.

    Held are it and its node's value. One more holder (an array, a capsule of dlpack) would miss what is written.
    """
    if not _owns_storage(tensor):
        return False
    storage, pointer = tensor.untyped_storage(), memory_of(tensor)
    held = torch._C._storage_Use_Count(storage._cdata) - 1  # this look at it is a holder, too
    alone = held <= 2 and tensor._use_count() == 1  # type: ignore[attr-defined]
    return alone and pointer not in r.memory.histories and pointer not in r.memory.exposed


def look_at(r: Recorder, tensor: Tensor, other: Tensor, index: int) -> bool:
    """Follows an unknown tensor as a view of another one on the same memory, if all of it lies there."""
    if tensor.untyped_storage()._cdata != other.untyped_storage()._cdata:  # from now on it is a view of the whole
        offset = tensor.storage_offset() + (memory_of(tensor) - memory_of(other)) // other.element_size()
        tensor.data = _whole(other).as_strided(tensor.shape, tensor.stride(), offset)
    inside, kept = _overlap(other, tensor)
    if not bool((inside >= 0).all()):
        return False
    r.follow(tensor, _patched(r, tensor.shape, tensor.detach(), index, index, inside, kept, "alias"))
    return True


def adopt(r: Recorder, targets: list[Tensor]) -> bool:
    """Follows constant views of memory that holds tracked data elsewhere, so that writing them is recorded."""
    found = [t for t in targets if t.is_floating_point() and t.numel() and memory_of(t) in r.memory.histories]
    for target in found:
        r.follow(target, _adopted(r, target))
    return bool(found)


def memory_of(tensor: Tensor) -> int:
    """Where the memory of a tensor begins; 0 for one without memory."""
    return 0 if isinstance(tensor, LateWeight) else address_of(tensor)


def _geometry(tensor: Tensor) -> Tensor:
    """Shape and strides of a tensor on its memory, also if the tensor gets another shape later."""
    return tensor.detach()


def _whole(tensor: Tensor) -> Tensor:
    size = tensor.untyped_storage().nbytes() // tensor.element_size()
    return tensor.detach().as_strided((size,), (1,), 0)


def _owns_storage(tensor: Tensor) -> bool:
    return tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


def _overlap(written: Tensor, alias: Tensor) -> tuple[Tensor, Tensor]:
    """For every entry of ``alias``: where it lies in ``written`` (-1: nowhere), and itself if it was not written."""
    size = written.untyped_storage().nbytes() // written.element_size()
    slots = torch.full((size,), -1, dtype=torch.long, device=written.device)
    positions = torch.arange(size, device=written.device)
    slots[positions.as_strided(written.shape, written.stride(), written.storage_offset()).reshape(-1)] = torch.arange(
        written.numel(), device=written.device
    )
    places = positions.as_strided(alias.shape, alias.stride(), alias.storage_offset()).reshape(-1)
    inside = slots[places]
    own = torch.arange(alias.numel(), device=alias.device)
    return inside, torch.where(inside < 0, own, torch.full_like(own, -1))
