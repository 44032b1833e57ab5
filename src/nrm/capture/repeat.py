"""Constants that were made from the input outside torch: found by running the model once more on another input.

A number that ``.item()`` has read, an array, a file, the result of scripted code come back as constants that nobody saw
being made. Whether they depend on the input is not guessed: where a pass has read values or met tensors of unknown
origin, it is repeated on changed inputs, and what enters its calls is compared, call by call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from nrm.capture import unseen
from nrm.capture.arguments import tensors_in
from nrm.capture.names import FROM_DATA
from nrm.capture.ops import Combine, Linear, Op, Term
from nrm.errors import CaptureError, NrmError

if TYPE_CHECKING:
    from nrm.capture.recorder import Recorder

CHANGES = (0.5, 1e-3)
"""By how much inputs are changed: enough to see it in whole numbers, or so little that no decision falls otherwise."""


NUMBERS = {float, int}


class Entered(NamedTuple):
    """The constants among the arguments of a recorded call: numbers, and float tensors that are not tracked."""

    path: str
    name: str
    values: tuple[Any, ...]
    contents: tuple[Any, ...] = ()
    """What identifies the content that tensors had, where values had left torch before and may have been written."""


class Constants:
    """What is known of the constants of a pass: what calls are given, and what nobody saw being made.

    ``reads`` are the calls that handed values to Python. ``strangers`` are tensors whose making torch does not report,
    and what is made of them. ``made_now`` are the constants made from the input that the present call is given.
    ``widened`` are tensors that stand for others which depend on the input.
    """

    def __init__(self, own: list[Tensor], change: float, made: Mapping[int, Sequence[int]]) -> None:
        self.reads: list[str] = []
        self.doubts: list[str] = []
        self.entered: list[Entered] = []
        self.strangers: dict[int, Tensor] = {}
        self.widened: dict[int, Tensor] = {}
        self.made_now: list[Any] = []
        self._change, self._made = change, made
        self._known: dict[int, tuple[Tensor, int]] = {}
        self.know(own)

    def know(self, value: Any) -> None:
        """The tensors in a value were made by calls of torch, or before the pass: they are no strangers."""
        self._known.update((id(t), (t, unseen.address(t))) for t in tensors_in(value) if t.is_floating_point())

    def enter(
        self, r: Recorder, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], present: list[Tensor],
        recorded: bool,
    ) -> None:  # fmt: skip
        """A call begins. Notes the constants that one which is recorded is given."""
        self.made_now = []
        if not recorded:
            return
        numbers = [a for a in (*args, *kwargs.values()) if type(a) in NUMBERS]
        tensors = [t for t in present if id(t) not in r.live and t.is_floating_point()]
        values = (*numbers, *tensors)
        if self._made:
            self.made_now = [values[position] for position in self._made.get(len(self.entered), ())]
        contents = tuple(map(_content, values)) if self.reads else ()
        self.entered.append(Entered(r.path, name, values, contents))
        for t in tensors:
            if self.is_strange(r, t):
                self.strangers[id(t)] = t

    def produce(self, r: Recorder, name: str, args: tuple[Any, ...], present: list[Tensor], result: Any) -> None:
        """Notes the result of a call of constants: what is made of strangers, or of an array, is one."""
        if any(self.is_strange(r, t) for t in present):
            self.strangers.update((id(t), t) for t in tensors_in(result) if t.is_floating_point())
        elif not (args and name in FROM_DATA and type(args[0]).__module__ == "numpy"):
            self.know(result)

    def widen(self, r: Recorder, tensor: Tensor, wide: Tensor) -> None:
        """A constant in another shape depends on what it depended on."""
        if r.is_derived(tensor):
            self.widened[id(wide)] = wide

    def change(self, value: Tensor) -> Tensor:
        """An input, which is changed in place if this pass is to be compared with another one."""
        if self._change:
            generator = torch.Generator().manual_seed(0)
            value.mul_(1 + self._change * (0.5 + torch.rand(value.shape, generator=generator)).to(value))
        return value

    def is_strange(self, r: Recorder, tensor: Tensor) -> bool:
        """Whether nobody has seen a tensor being made."""
        if id(tensor) in self.strangers:
            return True
        named = id(tensor) in r.origin or id(tensor) in r.derived or not tensor.is_floating_point()
        return not named and self._known.get(id(tensor), (None, -1))[1] != unseen.address(tensor)


def unbiased(r: Recorder, op: Op, inputs: list[int], value: Tensor, function: str) -> tuple[Op, list[int]]:
    """An op that adds numbers made from the input, with an input in the middle in place of the bias."""
    if isinstance(op, Linear) and op.bias is not None and _is_among(op.bias, r.constants.made_now):
        unshifted = r.add(replace(op, bias=None), inputs, value - op.bias, function)
        op, inputs = Combine((Term(),), shift=op.bias, joins=True, kind="add"), [unshifted]
    if not isinstance(op, Combine) or op.shift is None:
        return op, inputs
    wide = torch.as_tensor(op.shift, dtype=value.dtype, device=value.device).expand(value.shape).clone()
    below = r.nodes[inputs[0]]
    channel = None if below.channel is None else below.channel + value.ndim - below.ndim
    index = r.constant(wide, function, None, channel if (channel or 0) >= 0 else None)
    return replace(op, terms=(*op.terms, Term()), shift=None), [*inputs, index]


def _is_among(bias: Tensor, made: list[Any]) -> bool:
    """Whether a bias is one of the constants made from the input, or a multiple, and not a parameter beside them."""
    flat = bias.flatten()
    for given in (t.flatten().to(flat) for t in made if isinstance(t, Tensor) and t.numel() == bias.numel()):
        if torch.allclose(flat * given.abs().max(), given * flat.abs().max()):  # ``addmm`` has a factor for it
            return True
    return False


def find_made(first: Recorder, again: Callable[[float], Recorder]) -> dict[int, list[int]]:
    """The calls of a pass that are given constants made from the input, and which; ``again`` repeats it on other ones.

    Numbers may be: their mass is reported. Tensors are refused.
    """
    known = first.constants
    if not known.reads and not known.strangers:
        return {}
    varying = None
    for change in CHANGES:
        try:
            varying = _compare(first, again(change))
        except (NrmError, RuntimeError, ValueError, TypeError, IndexError, KeyError, AssertionError):
            continue  # what the model does with other values is no complaint about these
        if varying is not None:
            break
    if varying is None:
        known.doubts.append(_doubt(known))
        return {}
    made: dict[int, list[int]] = {}
    for k, position in varying:
        value = known.entered[k].values[position]
        if isinstance(value, Tensor) and (value.numel() > 1 or id(value) in known.strangers):
            _refuse(first, known.entered[k], value)
        made.setdefault(k, []).append(position)
    return made


def _compare(one: Recorder, other: Recorder) -> list[tuple[int, int]] | None:
    """The calls with constants that differ between two passes, and which; None if the passes did other things."""
    mine, theirs = one.constants.entered, other.constants.entered
    if len(mine) != len(theirs):
        return None
    found: list[tuple[int, int]] = []
    for k, (a, b) in enumerate(zip(mine, theirs, strict=True)):
        if a[:2] != b[:2] or list(map(_form, a.values)) != list(map(_form, b.values)):
            return None
        for position, (x, y) in enumerate(zip(a.values, b.values, strict=True)):
            followed = id(x) in one.derived or id(x) in one.live  # since it was written
            written = x is y and bool(a.contents and b.contents) and a.contents[position] != b.contents[position]
            if not followed and (written or not _same(x, y)):
                found.append((k, position))
    return found


def _content(value: Any) -> Any:
    """Sums of the bits of a tensor, which are others after a write, however it was made; no copy is kept."""
    if not isinstance(value, Tensor) or value.layout is not torch.strided:
        return None
    size = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[value.element_size()]
    bits = value.detach().contiguous().flatten().view(size)
    return tuple(int(bits[::step].sum(dtype=torch.int64)) for step in (1, 3, 7))


def _form(value: Any) -> Any:
    return value.shape if isinstance(value, Tensor) else type(value)


def _same(x: Any, y: Any) -> bool:
    if isinstance(x, Tensor):
        return x is y or torch.allclose(x, y.to(x.dtype), rtol=0, atol=0, equal_nan=True)
    return bool(x == y or (x != x and y != y))


def _refuse(r: Recorder, call: Entered, value: Tensor) -> None:
    """Numbers that were read one by one may have become a tensor again; a tensor from elsewhere is lost relevance."""
    if id(value) not in r.constants.strangers and not r.memory.exposed:
        return
    how = ", ".join(dict.fromkeys(r.constants.reads)) or "code that torch does not report"
    raise CaptureError(
        "a tensor was made from the input outside torch, where it cannot be followed",
        where=f"{call.path or 'the model'}, in a call of {call.name}",
        got=f"a tensor of shape {tuple(value.shape)} that is another one for another input; values were read by {how}",
        expected="torch functions on tensors (no numpy, files, scripted code or libraries of one's own)",
        hint="write that part with torch functions, or put it into a module and nrm.register(its class, ...)",
    )  # fmt: skip


def _doubt(constants: Constants) -> str:
    how = ", ".join(dict.fromkeys(constants.reads)) or "a tensor of unknown origin"
    return (
        f"Values left torch ({how}); whether they came back as constants could not be measured, because the model does"
        " something else for other inputs."
    )
