"""Lift: how much more of the relevance two parts share than they would if they had nothing to do with each other.

Two channels with much relevance have much in common by size alone: independent ones would share the product of their
marginals. The **lift** of some parts is their joint relevance over that product, the **excess** is the joint relevance
minus it. Of a measure without negative relevances lift 1 and excess 0 are independence. Where relevances cancel, the
marginal in the denominator can be close to 0 while its parts are not: there a lift says nothing, and the excess, which
divides by nothing, still does.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from nrm.capture import plain_execution
from nrm.errors import QuestionError, warn
from nrm.measure.asking import answer, count_axes
from nrm.memory import ALIVE, fitting
from nrm.questions import Argument, Blocks, Layer, Partition, Question, Set, Stack, needs_track, spans_steps
from nrm.search import BestFlows, Flow, Flows, Request, table_cost

if TYPE_CHECKING:
    from nrm.measure.measure import Measure

FORMS = ("lift", "excess")
LEAST = 1e-3
"""Flows with less relevance are not ranked by lift, which is largest where next to nothing flows."""
TRIED = 1000
"""How many of the largest flows are ranked anew where the whole table would be too expensive."""


def lift_of(R: Measure, question: Question, form: str) -> Tensor:
    """The lift or the excess of every combination of blocks: ``(batch, *axes)``, in the shape of its answer."""
    read_form(form)
    arguments, conditions = question.arguments, question.given
    _refuse_single(R, arguments)
    joint = R.ask(question)
    product, defined = torch.ones_like(joint), torch.ones_like(joint, dtype=torch.bool)
    tail = sum(count_axes(R.inner, condition) for condition in conditions)
    before = 0
    for argument in arguments:
        own = count_axes(R.inner, argument)
        marginal = R.ask(replace(question, arguments=(argument,)))
        shape = [len(joint), *(1,) * before, *marginal.shape[1 : 1 + own]]
        shape += [*(1,) * (joint.ndim - 1 - before - own - tail), *marginal.shape[1 + own :]]
        product = product * marginal.reshape(shape)
        if form == "lift":
            defined = defined & _trusted(R, argument, marginal, conditions).reshape(shape)
        before += own
    return joint - product if form == "excess" else _ratio(joint, product, defined, math.nan)


def read_form(form: Any, known: Sequence[str] = FORMS, name: str = "form") -> None:
    """Refuses a form that there is not."""
    if not isinstance(form, str) or form not in known:
        raise QuestionError(f"unknown {name}", got=f"{name}={form!r}", expected=", ".join(map(repr, known)))


def _refuse_single(R: Measure, arguments: Sequence[Argument]) -> None:
    if len(arguments) < 2:
        raise QuestionError(
            "lift is about several parts", got=", ".join(map(repr, arguments))[:120],
            expected="two or more sets or partitions", hint="R.lift(a.channels, b.channels)",
        )  # fmt: skip
    if R.inner.network.normalize is not True:
        raise QuestionError(
            "lift needs a normalized measure", got=f"normalize={R.inner.network.normalize!r}",
            expected="a measure in which everything has 1", hint="nrm.measure(..., normalize=True)",
        )  # fmt: skip


def _ratio(joint: Tensor, product: Tensor, defined: Tensor, other: float) -> Tensor:
    defined = defined & (product != 0)
    safe = torch.where(defined, product, torch.ones_like(product))
    return torch.where(defined, joint / safe, torch.full_like(joint, other))


def _trusted(R: Measure, argument: Argument, marginal: Tensor, conditions: Sequence[Argument]) -> Tensor:
    """Where a marginal is not 0 and not lost in rounding, beside the absolute relevances inside its blocks."""
    spread = [a for a in (argument, *conditions) if isinstance(a, Stack) or (_is_partition(a) and spans_steps(a))]
    if spread or needs_track(argument) or any(map(needs_track, conditions)):
        return marginal != 0
    asked = Question((argument, *conditions))
    size = R.ask(asked).abs()
    with plain_execution():
        inside = R.inner.mine(answer(R.inner, asked, absolute=True))
    relative = size / torch.where(inside == 0, torch.ones_like(inside), inside)
    near = int(((relative > 0) & (relative < 1e-3)).sum())
    if near:
        text = (
            f"{near} of {relative.numel()} marginals of {argument} are below 0.1 % of the total variation inside them: "
            "their lift says little; form='excess' divides by nothing"
        )
        warn(text)
    return (marginal != 0) & (relative >= 100 * torch.finfo(marginal.dtype).eps)


def _is_partition(argument: Any) -> bool:
    return isinstance(argument, Partition)


# ---- flows -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _MarginalFactor:
    """An argument of a question about flows: its blocks (none: a set), and their marginals ``(samples, blocks)``."""

    argument: Set | Partition
    blocks: Blocks | None
    marginals: Tensor

    def chosen(self, row: int, sample: int) -> Set:
        """The set of one block, as a question about a sample."""
        if isinstance(self.argument, Set):
            return self.argument.of_sample(sample)
        assert self.blocks is not None
        at, whole = self.blocks.place(row), replace(self.argument, chosen=())
        found: Set = whole.layer.all if at is None else whole[at]
        return found.of_sample(sample)

    def place(self, row: int) -> tuple[str, Any] | None:
        """The number of a block, by its partition."""
        if self.blocks is None or not isinstance(self.argument, Partition):
            return None
        return str(replace(self.argument, chosen=())), self.blocks.place(row)


class Lifted:
    """Flows ranked by lift or excess: from the whole table where it can be afforded, else among the largest flows.

    A flow that was not looked at has no more relevance than the least of those that were, which bounds its score.
    """

    def __init__(self, R: Measure, arguments: Sequence[Any], conditions: Sequence[Set], by: str, least: float) -> None:
        self._R, self._by, self._least = R, by, least
        self._conditions = list(conditions)
        self._arguments = [Partition(a) if isinstance(a, Layer) else a for a in arguments]
        self._factors = [self._factor(argument) for argument in self._arguments]
        self._whole = R(*conditions) if conditions else torch.ones(len(R), dtype=self._factors[0].marginals.dtype)

    def _factor(self, argument: Any) -> _MarginalFactor:
        R = self._R
        marginals = R(argument, given=self._conditions or None)
        if self._by == "lift":  # what cannot be divided by is left out
            trusted = _trusted(R, argument, marginals, self._conditions)
            marginals = torch.where(trusted, marginals, torch.zeros_like(marginals))
        blocks = Blocks.of(R.resolve(argument.layer)[1], argument) if _is_partition(argument) else None
        return _MarginalFactor(argument, blocks, marginals.reshape(len(R), -1))

    def find(self, request: Request) -> Flows:
        """Each sample's best flows."""
        plan = self._R.plan(*self._arguments, *self._conditions)
        if table_cost(plan) <= request.effort:
            return self._enumerated(request)
        return self._among_largest(request)

    def _scores(self, joint: Tensor, product: Tensor, conditional: Tensor) -> Tensor:
        """What flows are ranked by; 0 where it is not defined, or where too little flows."""
        if self._by == "excess":
            values = conditional - product
            noise = 8 * torch.finfo(values.dtype).eps * (conditional.abs() + product.abs())
            values = torch.where(values.abs() > noise, values, torch.zeros_like(values))
        else:
            values = _ratio(conditional, product, torch.ones_like(product, dtype=torch.bool), 0.0)
        return torch.where(joint.abs() >= self._least, values, torch.zeros_like(values))

    def _enumerated(self, request: Request) -> Flows:
        R, counts = self._R, [factor.marginals.shape[1] for factor in self._factors]
        best, joints = self._lists(request)
        for rows, question in self._pieces(counts):
            joint = R(*question, *self._conditions).reshape(len(R), -1)
            product = torch.ones_like(joint[:, :1])
            for factor, part in zip(self._factors, rows, strict=True):
                product = (product[:, :, None] * factor.marginals[:, None, part.start : part.stop]).flatten(1)
            scores = self._scores(joint, product, self._shares(joint))
            for s in range(len(R)):
                best[s].add(request, scores[s], partial(_numbers, rows, joint[s], joints[s]))
        return self._flows(best, joints, [-math.inf] * len(R), request)

    def _lists(self, request: Request) -> tuple[list[BestFlows], list[dict[tuple[int, ...], float]]]:
        """For every sample its best flows by their scores, and the relevance of flows."""
        return [BestFlows(request.k) for _ in range(len(self._R))], [{} for _ in range(len(self._R))]

    def _shares(self, joint: Tensor) -> Tensor:
        """Joint relevances as shares of the condition's; 0 where that has none."""
        whole = self._whole.to(joint)[:, None]
        return _ratio(joint, whole.expand_as(joint), torch.ones_like(joint, dtype=torch.bool), 0.0)

    def _pieces(self, counts: list[int]) -> Iterator[tuple[list[range], list[Any]]]:
        """The question in pieces that fit into memory, cut along its first partition with one axis."""
        R, whole = self._R, [range(n) for n in counts]
        nbytes = math.prod(counts) * R.inner.tape.batch * self._factors[0].marginals.element_size()
        first = next(
            (n for n, f in enumerate(self._factors) if f.blocks is not None and len(f.blocks.shape) == 1), None
        )
        if ALIVE * nbytes <= R.inner.memory or first is None:
            yield whole, self._arguments
            return
        size = fitting(R.inner.memory, -(-nbytes // counts[first]))
        for begin in range(0, counts[first], size):
            part = range(begin, min(counts[first], begin + size))
            question = [*self._arguments]
            question[first] = self._arguments[first][part.start : part.stop]
            yield [*whole[:first], part, *whole[first + 1 :]], question

    def _among_largest(self, request: Request) -> Flows:
        R = self._R
        tried = R.flows(
            *self._arguments, given=self._conditions or None, k=max(TRIED, 10 * request.k), sign="abs",
            effort=request.effort,
        )  # fmt: skip
        best, joints, bounds = *self._lists(request), []
        for s, (flows, gap) in enumerate(zip(tried, tried.gap, strict=True)):
            for flow in flows:
                rows = self._rows(flow)
                product = math.prod(float(f.marginals[s, row]) for f, row in zip(self._factors, rows, strict=True))
                joint, share = (torch.tensor([x], dtype=torch.float64) for x in (flow.relevance, flow.share))
                value = float(self._scores(joint, torch.tensor([product], dtype=torch.float64), share))
                score = float(request.score(torch.tensor(value)))
                if score > 0:
                    joints[s][rows] = flow.relevance
                    best[s].take([(score, rows, value)])
            full = len(flows) == max(TRIED, 10 * request.k)
            bounds.append(self._bound(s, abs(flows[-1].relevance) + gap if full else gap, request.sign))
        return self._flows(best, joints, bounds, request)

    def _rows(self, flow: Flow) -> tuple[int, ...]:
        """The numbers of a flow's blocks among those that were asked for."""
        places, rows = iter(flow.blocks), []
        for factor in self._factors:
            if factor.blocks is None:
                rows.append(0)
                continue
            _, at = next(places)
            count = factor.marginals.shape[1]
            rows.append(next(row for row in range(count) if factor.blocks.place(row) == at))
        return tuple(rows)

    def _bound(self, s: int, joint: float, sign: str) -> float:
        """How high a flow can score whose relevance is at most so large, whatever its sign."""
        if joint < self._least or (joint == 0 and self._by == "lift"):
            return -math.inf
        whole = abs(float(self._whole[s])) or 1.0
        ends = [(float(f.marginals[s].min()), float(f.marginals[s].max())) for f in self._factors]
        products = [math.prod(corner) for corner in itertools.product(*ends)]
        if self._by == "excess":
            up, down = joint / whole - min(products), joint / whole + max(products)
            return {"+": up, "-": down}.get(sign, max(up, down))
        sizes = [f.marginals[s].abs() for f in self._factors]
        small = math.prod(float(size[size > 0].min()) if bool((size > 0).any()) else 0.0 for size in sizes)
        return joint / whole / small if small else -math.inf

    def _flows(
        self, best: Sequence[BestFlows], joints: Sequence[dict[tuple[int, ...], float]], bounds: Sequence[float],
        request: Request,
    ) -> Flows:  # fmt: skip
        lists, gaps = [], []
        for s, bound in enumerate(bounds):
            sample, whole = self._R.samples[s], float(self._whole[s])
            flows, last = [], 0.0
            for _, rows, value in best[s].found:
                joint, score = joints[s][rows], float(request.score(torch.tensor(value, dtype=torch.float64)))
                sets = [f.chosen(row, sample) for f, row in zip(self._factors, rows, strict=True)]
                sets += [condition.of_sample(sample) for condition in self._conditions]
                places = [f.place(row) for f, row in zip(self._factors, rows, strict=True)]
                flows.append(
                    Flow(sample, joint, joint / whole if whole else 0.0, score >= bound, tuple(sets),
                         tuple(place for place in places if place is not None), ranked=(self._by, value))
                )  # fmt: skip
                last = score
            lists.append(flows)
            missing = bound - (last if len(flows) == request.k else 0.0)
            gaps.append(0.0 if missing <= 0 else missing)
        return Flows(lists, list(self._R.samples), gaps)


def _numbers(
    rows: Sequence[range], joint: Tensor, joints: dict[tuple[int, ...], float], at: Tensor
) -> list[tuple[int, ...]]:
    """The blocks at some places of a piece of a table; their joint relevances are noted."""
    places = [place.tolist() for place in torch.unravel_index(at, [len(part) for part in rows])]
    found = [tuple(part[i] for part, i in zip(rows, one, strict=True)) for one in zip(*places, strict=True)]
    joints.update(zip(found, joint[at].tolist(), strict=True))
    return found


def lifted_flows(R: Measure, question: Question, by: str, least: Any, request: Request) -> Flows:
    """Each sample's flows with the largest lift or excess."""
    _refuse_single(R, question.arguments)
    if request.method != "exact":
        raise QuestionError("flows are ranked by lift exactly", got=f"method={request.method!r}", expected="'exact'")
    smallest = (LEAST if by == "lift" else 0.0) if least is None else least
    if isinstance(smallest, bool) or not isinstance(smallest, int | float) or not 0 <= smallest <= 1:
        raise QuestionError("not a share of the relevance", got=f"least={least!r}", expected="a number from 0 to 1")
    sets = [c for c in question.given if isinstance(c, Set)]
    return Lifted(R, question.arguments, sets, by, float(smallest)).find(request)
