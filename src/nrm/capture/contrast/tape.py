"""The tape of a contrast: two runs of one structure as one tape, whose values are differences.

Linear steps, sums and data movement are exact in differences as they are, without their biases; every other step has an
exact split. So all steps of this tape are linear, and rules, sweeps and searches need to know nothing of it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from nrm.capture.checks import MIXED
from nrm.capture.contrast import computed, norms, ranks, reductions, splits  # noqa: F401
from nrm.capture.contrast.compare import check_constants, compare
from nrm.capture.contrast.piecewise import CHOICES, piecewise
from nrm.capture.contrast.splits import OWN, split
from nrm.capture.contrast.step import Pair, Step
from nrm.capture.ops import Combine, Linear, Op, Source, Term, Unknown
from nrm.capture.tape import Node, Tape
from nrm.errors import CaptureError
from nrm.operators import Function, LateMatmul, LinearMap, Matmul


class DifferenceNode(Node):
    """A tensor of a contrast. Its value is the difference of the runs, formed when it is read."""

    __slots__ = ("_block", "_form")

    def __init__(self, here: Node, op: Op, inputs: tuple[int, ...], form: Callable[[], Tensor]) -> None:
        self._form, self._block = form, here.block
        self.index, self.op, self.inputs = here.index, op, inputs
        self.name, self.module, self.function = here.name, here.module, here.function
        self.sample, self.channel, self.owner, self.heads = here.sample, here.channel, here.owner, here.heads
        self.recall = None
        self.shape, self.ndim, self.dtype, self.device = here.shape, here.ndim, here.dtype, here.device

    @property
    def value(self) -> Tensor:  # type: ignore[override]
        """The difference of the runs."""
        return self._form()

    @property
    def held(self) -> Tensor | None:
        """Nothing is kept but the runs."""
        return None

    @property
    def block(self) -> range | None:
        """The nodes of its block, if values of the runs are not kept but computed again."""
        return self._block


def contrast(here: Tape, there: Tape) -> Tape:
    """Two runs of a model as one tape of differences. What differs in more than values is refused."""
    compare(here, there)
    if here.batch > 1:
        _refuse_mixed(here)
    nodes = list[Node]()
    for i in range(len(here.nodes)):  # in their order: a block of a lean run is computed again once
        _refuse_mask(Step(here, there, i))
        nodes.append(_difference(Step(here, there, i), nodes))
    return replace(here, nodes=nodes, runs=(here, there))


def _difference(step: Step, nodes: list[Node]) -> Node:
    node, op = step.node, step.node.op

    @functools.cache
    def masked() -> bool:
        return _is_masked(node)

    def plain() -> Tensor:
        # What is masked in both runs is the same infinity in both, and does not differ.
        return step.result.delta if masked() else step.node.value - step.other.value

    if isinstance(op, Source):
        return DifferenceNode(node, op, node.inputs, plain)
    if isinstance(op, Linear) and op.kind == "matmul":
        return _half(step, op, nodes)
    if isinstance(op, Combine) and op.kind == "matmul":
        return DifferenceNode(node, Combine((Term(), Term()), joins=True, kind="product"), node.inputs, plain)
    if isinstance(op, Linear) and op.kind != "norm" and not op.beside and node.function not in OWN:
        check_constants(node, step.other, step.inputs)
        return DifferenceNode(node, Linear(op.map, op.kind), node.inputs, plain)
    if isinstance(op, Combine) and op.gated:
        terms = (*op.terms, *(term for _, term in op.gated))
        inputs = (*node.inputs, *(i for i, _ in op.gated))
        return DifferenceNode(node, Combine(terms, joins=True, kind=op.kind), inputs, plain)
    choice = piecewise(step) if node.function in CHOICES and node.function not in OWN else None
    if choice is not None:
        return DifferenceNode(node, choice[0], (choice[1],), plain)
    found = None if isinstance(op, Combine) and not op.held and node.function not in OWN else split(step)
    if found is not None:
        inputs = (*node.inputs, *op.beside) if isinstance(op, Linear) else node.inputs
        return DifferenceNode(node, found, inputs, plain)
    if isinstance(op, Combine):
        check_constants(node, step.other, step.inputs)
        terms, inputs = _without_masks(step, op)
        return DifferenceNode(node, replace(op, terms=terms, shift=None), inputs, plain)
    return DifferenceNode(node, Unknown(node.function, f"layer {node.name!r}", "contrast"), node.inputs, plain)


def _without_masks(step: Step, op: Combine) -> tuple[tuple[Term, ...], tuple[int, ...]]:
    """The terms of a sum without infinite constants: what masks in both runs has no difference."""
    here, there = (run.nodes for run in step.runs)

    def masks(i: int) -> bool:
        if not _is_constant(here[i]) or bool(torch.isfinite(here[i].value.sum())):
            return False
        return torch.equal(here[i].value, there[i].value)

    left = [(term, i) for term, i in zip(op.terms, step.node.inputs, strict=True) if not masks(i)]
    if not left:
        return op.terms, step.node.inputs
    return tuple(term for term, _ in left), tuple(i for _, i in left)


def _is_constant(node: Node) -> bool:
    return isinstance(node.op, Source) and node.op.kind == "constant"


def _is_masked(node: Node) -> bool:
    """Whether a tensor has infinite entries: only sums with masks, and what moves them, can."""
    if not isinstance(node.op, Source | Combine) or bool(torch.isfinite(node.value.sum())):
        return False
    return not bool(torch.isfinite(node.value).all())


def _half(step: Step, op: Linear, nodes: list[Node]) -> Node:
    """One half of a product of matrices: linear in its own factor, with the mean of the other one."""
    other = step.other.op
    assert isinstance(other, Linear)
    map = mean_of(op.map, other.map)
    (j,) = step.node.inputs
    below = nodes[j]  # not the list, which will have the new node: in a circle both runs would outlive their measure
    return DifferenceNode(step.node, Linear(map, "matmul"), (j,), lambda: map.apply(below.value[None])[0])


def mean_of(one: LinearMap, other: LinearMap) -> LinearMap:
    """The mean of two maps that differ in their weights."""
    if isinstance(one, Matmul) and isinstance(other, Matmul):
        late = next((map for map in (one, other) if isinstance(map, LateMatmul)), None)
        if late is not None:
            return late.formed(lambda: Pair(one.constant, other.constant).mean)
        return replace(one, constant=Pair(one.constant, other.constant).mean)
    assert isinstance(one, Function)
    assert isinstance(other, Function)
    first, second = one.function, other.function
    return replace(one, function=lambda v: (first(v) + second(v)) / 2)


def _refuse_mixed(tape: Tape) -> None:
    """Refuses factors that mix samples: in a contrast they have differences to share, too."""
    seen = {tape.output}
    for node in reversed(tape.nodes[: tape.output + 1]):
        if node.index in seen:
            seen.update(node.inputs)
            if node.owner is not None and bool((node.owner < 0).any()):
                raise CaptureError(
                    MIXED, where=f"layer {node.name!r}",
                    got=f"a tensor of shape {tuple(node.shape)} whose entries depend on several samples",
                    expected="samples that do not depend on each other, in factors neither",
                    hint="batch_dim=None explains the whole call as one sample; or a batch of one",
                )  # fmt: skip


def _refuse_mask(step: Step) -> None:
    """Refuses a softmax some of whose entries are masked in one run only."""
    if step.node.op.kind != "softmax":
        return
    a, b = (side == -torch.inf for side in step.inputs[0])
    if not torch.equal(a, b):
        raise CaptureError(
            "entries of a softmax are masked in one run of a contrast only", where=f"layer {step.node.name!r}",
            got=f"{int((a != b).sum())} such entries", expected="the same mask in both runs",
            hint="align the inputs: the same positions, lengths and padding",
        )  # fmt: skip
