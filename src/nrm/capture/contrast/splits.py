"""Exact splits: what each kind of step does to the difference of two runs.

Every split is linear in the differences of what a step reads, and gives the difference of its result exactly: secants
for elementwise functions, means of the other factor for products, the logarithmic mean for a softmax. Nothing is held
constant, so that nothing but differences has a share.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from nrm.capture.contrast.secants import SMOOTH, Function, slope
from nrm.capture.contrast.step import Pair, Parts, Piece, Step
from nrm.capture.ops import Combine, Exact, LogSoftmax, Multiply, Op, Pointwise, Select, Singular, Softmax
from nrm.capture.replay import Segment
from nrm.operators import Expand, Gather, GroupSum, LinearMap, Masking

Split = Callable[..., Exact | None]
SPLITS: dict[str, Split] = {}
"""Splits of calls by the name of their function: they get the step and the arguments of the call."""
OWN: dict[str, Split] = {}
"""Those that a user registered; they come first."""


def splits(*names: str) -> Callable[[Split], Split]:
    """Registers the split of the functions of these names."""

    def register(split: Split) -> Split:
        SPLITS.update(dict.fromkeys(names, split))
        return split

    return register


def split(step: Step) -> Exact | None:
    """The exact split of a step that is not linear; None if there is none."""
    op, name = step.node.op, step.node.function
    if name in OWN:
        return _called(OWN[name], step)
    if isinstance(op, Multiply):
        return _product(step, op)
    if isinstance(op, Softmax | LogSoftmax):
        return _softmax(step, op)
    if isinstance(op, Select):
        return _maximum(step, op)
    if isinstance(op, Pointwise | Singular) or (op.entrywise and len(step.node.inputs) == 1):
        return _elementwise(step, op)
    return _called(SPLITS[name], step) if name in SPLITS and step.node.recall is not None else None


def _called(split: Split, step: Step) -> Exact | None:
    args, kwargs = step.arguments()
    return split(step, *args, **kwargs)


# ---- elementwise -----------------------------------------------------------------------------------------------------


def _elementwise(step: Step, op: Op) -> Exact:
    """The secant of a function of one tensor, entry by entry: known, or of an op of one's own."""
    move = op.move if isinstance(op, Singular) else None

    def pieces() -> Parts:
        if step.node.function == "relu" and move is None:
            return (Piece(post=_relu(step.inputs[0])),)
        function, name = _function(step, op)
        return (Piece(move, slope(step.inputs[0].moved(move), step.result, function, name)),)

    return step.local(pieces, moves=(move,))


def _relu(z: Pair) -> Tensor:
    """The secant of a ReLU without a difference of its values: their sum over that of absolute values, about."""
    on, off = (z.here > 0) & (z.there > 0), (z.here <= 0) & (z.there <= 0)
    gap = torch.where(on | off, torch.ones_like(z.here), z.here - z.there)
    return torch.where(on | off, on.to(gap), (z.here.clamp(min=0) - z.there.clamp(min=0)) / gap)


def _function(step: Step, op: Op) -> tuple[Function | None, str]:
    """An elementwise step as a function of what it reads, and a name that says how it bends."""
    node, (j,) = step.node, step.node.inputs
    if isinstance(op, Singular):
        return op.elementwise, node.function
    if isinstance(op, Pointwise) and op.function is not None:
        return op.function, "square" if op.function is torch.square else node.function
    if isinstance(op, Pointwise) and op.factors:
        segment = Segment(step.runs[0], (j,), node.index)
        bends = all(n.function in _PLAIN or n.function in SMOOTH for n in segment.nodes)
        return segment, "tanh" if bends else ""
    if node.recall is not None and node.recall.reads == (j,):
        recall = node.recall
        return lambda v: recall.run({j: v}), node.function
    return _computed(op, step.inputs[0].here), node.function


def _computed(op: Op, example: Tensor) -> Function | None:
    """What an op computes, as a function of one tensor; None if it does not say."""
    if op.compute([example[None]]) is None:
        return None
    return lambda v: op.compute([v[None]])[0]  # type: ignore[index]


_PLAIN = {"mul", "add", "sub", "rsub", "neg", "negative", "pow", "square"}
"""What hand-written smooth functions are made of, beside smooth functions; whole powers, as a rule."""


# ---- products --------------------------------------------------------------------------------------------------------


def _product(step: Step, op: Multiply) -> Exact:
    """``mean(v) du + mean(u) dv``; a quotient is a product with a reciprocal."""
    moves = op.moves
    assert len(moves) == 2, "a product of two"

    def first() -> Parts:
        v = step.inputs[1].moved(moves[1])
        other = Pair(1 / v.here, 1 / v.there).mean if op.quotient else v.mean
        return (Piece(moves[0], other),)

    def second() -> Parts:
        u, v = (x.moved(move) for x, move in zip(step.inputs, moves, strict=True))
        return (Piece(moves[1], -u.mean / (v.here * v.there) if op.quotient else u.mean),)

    return step.local(first, second, moves=moves)


# ---- softmax ---------------------------------------------------------------------------------------------------------


def _softmax(step: Step, op: Softmax | LogSoftmax) -> Exact:
    """``dp_j = L_j (da_j - sum_k L_k da_k / sum_k L_k)``, L the logarithmic mean of the probabilities of both runs.

    A log-softmax is that without the first factor: the last term is the difference of the normalizers.
    """
    dim, shape = op.dim, step.node.shape
    together = GroupSum(shape, tuple(shape), (dim,))
    sign = -1.0 if step.node.function == "softmin" else 1.0
    logs = step.node.function == "log_softmax"

    def pieces() -> Parts:
        a = step.inputs[0]
        shares = Pair(*(p.exp() for p in step.result)) if logs else step.result
        mean = logarithmic_mean(a if sign > 0 else Pair(-a.here, -a.there), shares, dim)
        share = mean / mean.sum(dim, keepdim=True)
        if logs:
            return (Piece(), Piece(together, -1.0, share))
        own = mean * sign
        return (Piece(post=own), Piece(together, -own, share))

    return step.mixed(pieces)


def logarithmic_mean(logits: Pair, shares: Pair, dim: int) -> Tensor:
    """``(p - p2) / (log p - log p2)`` of the softmax of logits; 0 where an entry is masked in both runs.

    It is ``max(p, p2) (1 - exp(-|t|)) / |t|`` for ``t = log p - log p2``, which does not cancel.
    """
    lowest, eps = torch.finfo(logits.here.dtype).min / 4, torch.finfo(logits.here.dtype).eps
    log, log2 = (torch.log_softmax(a, dim).clamp_(min=lowest) for a in logits)  # what is masked differs by 0
    minus = (log - log2).abs_().clamp_(min=eps).neg_()  # the quotient at eps is that at 0, by rounding
    return torch.expm1(minus).div_(minus).mul_(torch.maximum(*shares))


# ---- maxima ----------------------------------------------------------------------------------------------------------


def _maximum(step: Step, op: Select) -> Exact:
    there = step.other.op
    assert isinstance(there, Select)
    return step.mixed(functools.partial(chosen, step, op, there))


def chosen(step: Step, op: Select, there: Select) -> Parts:
    """``dy = w dx_i + (1 - w) dx_k`` for the chosen i and k, w the share of the way on which i is the larger one."""
    x, first, second = step.inputs[0], op.map, there.map
    if torch.equal(first.index, second.index):
        return (Piece(first),)
    weight = crossing(*(Pair(*(map.apply(v[None])[0] for v in x)) for map in (first, second)))
    return (Piece(first, weight), Piece(second, 1 - weight))


def crossing(one: Pair, other: Pair) -> Tensor:
    """The share of the way from there to here on which ``one``, chosen here, is beyond ``other``, chosen there."""
    lead, lag = one.here - other.here, other.there - one.there
    total = lead + lag
    even = total == 0
    return torch.where(even, torch.full_like(total, 0.5), lead / torch.where(even, torch.ones_like(total), total))


@splits("maximum", "minimum", "fmax", "fmin", "max", "min")
def _larger(step: Step, input: Pair | Tensor, other: Pair | Tensor, *_: Any, **__: Any) -> Exact:
    """The larger, or smaller, of two tensors, entry by entry."""
    return _larger_of(step, [input, other], step.node.function in ("maximum", "fmax", "max"))


@splits("scatter_reduce", "index_reduce")
def _arrived(step: Step, *args: Any, **kwargs: Any) -> Exact | None:
    """The larger, or smaller, of the value that a place had and of those that arrive there.

    Places that nothing arrives at are data movement, and have no split of their own.
    """
    op = step.node.op
    assert isinstance(op, Combine)
    if not all(isinstance(term.move, Masking) for term in op.terms):
        return None
    return _larger_of(step, step.inputs, "amax" in (*args, *kwargs.values()))


def _larger_of(step: Step, given: Sequence[Pair | Tensor], largest: bool) -> Exact:
    shape, op = step.node.shape, step.node.op
    assert isinstance(op, Combine)
    sides = [Pair(*(v.expand(shape) for v in (side if isinstance(side, Pair) else Pair(side, side))))
             for side in given]  # fmt: skip
    sign = 1.0 if largest else -1.0

    def weight() -> Tensor:
        """The weight of the first one."""
        a, b = sides
        here, there = (sign * (x - y) >= 0 for x, y in zip(a, b, strict=True))
        mixed = torch.where(here, crossing(a, b), 1 - crossing(b, a))
        return torch.where(here == there, here.to(mixed), mixed)

    moves = tuple(_expanding(step.value(j).shape, shape) for j in step.node.inputs)
    forms = (lambda: (Piece(moves[0], weight()),), lambda: (Piece(moves[1], 1 - weight()),))
    return step.local(*forms, moves=moves)


def _expanding(inside: torch.Size, outside: torch.Size) -> LinearMap | None:
    return None if inside == outside else Expand(inside, outside)


@splits("cummax", "cummin")
def _running(step: Step, *_: Any, **__: Any) -> Exact:
    """A running maximum chooses, for every place, an entry before it."""
    ops = [node.op for node in (step.node, step.other)]
    maps = [op.terms[0].move for op in ops if isinstance(op, Combine)]

    def pieces() -> Parts:
        first, second = maps
        assert isinstance(first, Gather)
        assert isinstance(second, Gather)
        weight = crossing(*(step.inputs[0].moved(map) for map in maps))
        return (Piece(first, weight), Piece(second, 1 - weight))

    return step.mixed(pieces)
