"""The tape: the network of one forward pass as our own graph of tensors."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from nrm.capture.op import Op
from nrm.capture.ops import Source
from nrm.capture.recall import Recall
from nrm.errors import QuestionError
from nrm.shapes import address_of

if TYPE_CHECKING:
    from nrm.capture.graphs import Graphs
    from nrm.capture.script import CallScript


@dataclass(slots=True, eq=False)
class Node:
    """One tensor of the forward pass, with the op that made it.

    ``sample`` is the axis along which samples lie; a tensor without one has ``owner``, the sample of every entry
    (or belongs to the only sample). ``channel`` is the axis of channels. ``heads`` says that an axis holds so many
    attention heads, one after the other. ``recall`` is the call that made it, where the op alone does not tell how.
    """

    index: int
    op: Op
    inputs: tuple[int, ...]
    value: Tensor
    name: str = ""
    module: str = ""
    function: str = ""
    sample: int | None = None
    channel: int | None = None
    owner: Tensor | None = None
    heads: tuple[int, int] | None = None
    recall: Recall | None = None
    shape: torch.Size = field(init=False)
    """The shape of the tensor as the model has it, sample axis included; known without its value, as are the others."""
    ndim: int = field(init=False)
    dtype: torch.dtype = field(init=False)
    device: torch.device = field(init=False)

    def __post_init__(self) -> None:
        self.shape, self.ndim = self.value.shape, self.value.ndim
        self.dtype, self.device = self.value.dtype, self.value.device

    @property
    def block(self) -> range | None:
        """The nodes of its block, if its value is not kept but computed again, with those of the block."""
        return None

    @property
    def held(self) -> Tensor | None:
        """The value, if it is kept; else it is computed again when it is read."""
        return self.value

    def with_op(self, op: Op, inputs: tuple[int, ...]) -> Node:
        """The tensor as the result of another op."""
        return replace(self, op=op, inputs=inputs)

    @property
    def has_samples(self) -> bool:
        """Whether it is known which entries are whose."""
        return self.sample is not None or self.owner is not None

    @property
    def layer_shape(self) -> tuple[int, ...]:
        """The shape of one sample's part: the layer as a user sees it."""
        return tuple(n for axis, n in enumerate(self.shape) if axis != self.sample)

    @property
    def flops(self) -> float:
        """The arithmetic of its step in either direction."""
        return self.op.flops(self.shape)


@dataclass(eq=False)
class Tape:
    """Nodes in the order in which they were computed, their names, and who reads them.

    ``steps`` has the hidden states of every recurrent layer, for every call of it.
    ``ends`` is each sample's last position that is not padding, where the input is a sequence of tokens.
    ``graphs`` are those among the inputs.
    ``behind`` is the tape of the whole network, if this one has chosen layers only and reads it.
    ``runs`` are the tapes of the two runs, here and in the reference, if this is the tape of their difference.
    ``script`` has the calls of the pass, for others to follow.
    ``forward`` is the arithmetic of a forward pass. ``doubts`` are what should be known and could not be measured.
    """

    nodes: list[Node]
    names: dict[str, list[int]]
    received: dict[str, list[int]]
    modules: dict[str, type]
    inputs: tuple[int, ...]
    output: int
    batch: int
    dtype: torch.dtype
    notes: tuple[str, ...] = ()
    steps: dict[str, list[list[int]]] = field(default_factory=dict)
    ends: Tensor | None = None
    graphs: Graphs | None = None
    behind: Tape | None = None
    forward: float = 0.0
    doubts: tuple[str, ...] = ()
    runs: tuple[Tape, Tape] | None = None
    script: CallScript | None = None
    flops: list[float] = field(init=False)
    consumers: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        self.flops = [node.flops for node in self.nodes]
        self.forward = self.forward or sum(self.flops)
        self.consumers = [[] for _ in self.nodes]
        for node in self.nodes:
            for i in dict.fromkeys(node.inputs):
                self.consumers[i].append(node.index)

    @property
    def here(self) -> Tape:
        """The tape of the explained run: this one, or of a contrast the first of its runs."""
        return self if self.runs is None else self.runs[0]

    @property
    def sources(self) -> list[Node]:
        """Every tensor at which walks begin."""
        return [node for node in self.nodes if isinstance(node.op, Source)]

    @property
    def nbytes(self) -> int:
        """Bytes held by activations, and by entries that were formed for this tape; memory that is shared once."""
        if self.runs is not None:
            return sum(run.nbytes for run in self.runs)
        tensors = [t for node in self.nodes for t in (node.held, *node.op.tensors) if t is not None]
        storages = {address_of(t): t.untyped_storage().nbytes() for t in tensors}
        return sum(storages.values()) + (0 if self.behind is None else self.behind.nbytes)

    def find(self, name: str) -> Node:
        """The node with this name; ``NAME.input`` is what module NAME receives, ``NAME.step#3`` its state at step 3."""
        if name == "output":
            return self.nodes[self.output]
        stem, mark, number = name.rpartition(".step#")
        if mark and name not in self.names and number.removeprefix("-").isdigit():
            return self._at_step(stem, int(number))
        calls, call = self._calls(name)
        if calls is None:
            raise unknown_layer(name, self)
        if call is None and len(calls) > 1:
            raise QuestionError(
                f"layer {name!r} is called {len(calls)} times",
                got=repr(name),
                expected="one call: " + ", ".join(repr(f"{name}#{k}") for k in range(min(len(calls), 8))),
                hint=f"R[{name + '#0'!r}], or all calls as steps: R[{name!r}].steps",
            )
        if call is not None and call >= len(calls):
            raise QuestionError(
                f"layer {name!r}: there is no call {call}", expected=f"a call from 0 to {len(calls) - 1}"
            )
        return self.nodes[calls[call or 0]]

    def _at_step(self, name: str, step: int) -> Node:
        steps = self.find_steps(name)
        if not -len(steps) <= step < len(steps):
            raise QuestionError(
                f"layer {name!r} has no step {step}", got=f"step {step}", expected=f"0 to {len(steps) - 1}"
            )
        return self.nodes[steps[step]]

    def find_steps(self, name: str) -> list[int]:
        """The hidden state after every step: of a recurrent layer, or the results of a module called several times."""
        stem, _, number = name.rpartition("#")
        if name not in self.steps and stem in self.steps and number.isdigit():
            calls = self.steps[stem]
            if int(number) < len(calls):
                return calls[int(number)]
        if len(self.steps.get(name, ())) == 1:
            return self.steps[name][0]
        if name in self.steps:
            raise QuestionError(
                f"layer {name!r} is called {len(self.steps[name])} times", got=repr(name),
                expected="the steps of one call", hint=f"nrm.layer({name + '#0'!r}).step(0)",
            )  # fmt: skip
        if len(self.names.get(name, ())) > 1:
            return self.names[name]
        near = [known for known in self.steps if known.startswith(f"{name}[")]
        if name not in self.names and not near:
            raise unknown_layer(name, self)
        raise QuestionError(
            f"layer {name!r} has no steps" if not near else f"layer {name!r} has several directions", got=repr(name),
            expected="one of " + ", ".join(map(repr, near)) if near else
            "a recurrent layer, or a module that is called several times",
            hint=f"R[{near[-1]!r}].step(0)" if near else None,
        )  # fmt: skip

    def _calls(self, name: str) -> tuple[list[int] | None, int | None]:
        if name in self.names:
            return self.names[name], None
        base, received = (name[: -len(".input")], True) if name.endswith(".input") else (name, False)
        table = self.received if received else self.names
        if base in table:
            return table[base], None
        stem, _, number = base.rpartition("#")
        if stem in table and number.isdigit():
            return table[stem], int(number)
        return None, None


def unknown_layer(name: str, tape: Tape) -> QuestionError:
    """The error for a name that is not on the tape, with near names."""
    near = difflib.get_close_matches(name, list(tape.names), n=4, cutoff=0.5)
    if not near:
        near = [known for known in tape.names if name and name.split("/")[0] in known][:4] or list(tape.names)[:4]
    return QuestionError(
        f"unknown layer {name!r}",
        expected="a layer of this capture, for example " + ", ".join(map(repr, near)),
        hint="R.layers lists them all; R.find('*pattern*') searches",
    )
