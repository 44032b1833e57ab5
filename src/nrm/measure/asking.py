"""How a measure is asked: ``R(...)``, plans, answers block by block, flows and walks."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self, TypeGuard

import torch
from torch import Tensor
from tqdm.auto import tqdm

from nrm.capture import Tape, plain_execution
from nrm.errors import NrmWarning, PrecisionError, QuestionError
from nrm.measure.events import needs_track, read_track
from nrm.measure.labels import Names, label_flows, label_walks
from nrm.measure.lift import FORMS, lift_of, lifted_flows, read_form
from nrm.measure.origin import Origin
from nrm.measure.places import Places
from nrm.measure.price import warn_of_cost
from nrm.measure.question import Argument, asked_sample, read_question, refuse_free, refuse_text
from nrm.measure.show import outputs_text
from nrm.measure.stacked import answer_stacked
from nrm.measure.table import tabulate
from nrm.measure.target import Target, excluded
from nrm.memory import fitting
from nrm.questions import (
    Answerer,
    Base,
    Blocks,
    Formula,
    Kept,
    Layer,
    Partition,
    Plan,
    Progress,
    Set,
    Site,
    Stack,
    Stop,
    TrackedPlan,
    answer_tracked,
    interaction_graph,
    make_plan,
    pair_table,
    plan_tracked,
    replaced,
    spans_steps,
    steps_of,
    stops_for,
)
from nrm.search import Flows, Found, Request, Side, Walk, find_flows, find_walks, ordered
from nrm.steps import Network
from nrm.tables import Results

Listener = Callable[[int, int | None], None]
"""Is told how many parts of a long question are done, and of how many; stops the question by raising."""


class Asking(ABC):
    """The questions of a measure, which has what they need."""

    _network: Network
    _kept: Kept
    _places: Places
    _origin: Origin
    _target: Target
    _labels: dict[str, Names]
    _memory: int
    _show_progress: bool | Listener | None

    @property
    @abstractmethod
    def base(self) -> Base:
        """The kept sweep without events."""

    @property
    @abstractmethod
    def _samples(self) -> range:
        """Which samples of the batch this measure is about."""

    @property
    def _tape(self) -> Tape:
        return self._network.tape

    @property
    @abstractmethod
    def labels(self) -> dict[str, Names]:
        """Names for the channels and positions of layers."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def sample(self, i: int) -> Self:
        """One sample's measure."""

    @abstractmethod
    def _be_loud(self) -> None:
        """Complains, once, about numbers that cannot be trusted."""

    def __call__(self, *arguments: Argument, given: Argument | Sequence[Argument] | None = None) -> Tensor:
        """The relevance of all walks that pass through everything asked for: ``(batch, *axes)``.

        Sets are fixed; layers and partitions become axes, in the order of the arguments. ``given`` divides by the
        relevance of its own events; its free variables come last.
        """
        asked = read_question(arguments, given)
        conditions = asked[len(arguments) :]
        if any(isinstance(a, Stack) for a in asked):
            return answer_stacked(self, arguments, conditions)
        one = self._meant(asked)
        if one is not None:
            return one(*arguments, given=given)
        spread = next((k for k, argument in enumerate(asked) if _is_steps(argument)), None)
        if spread is not None:
            return self._over_steps(asked, len(arguments), spread)
        self._origin.check_fresh()
        with plain_execution():
            self._refuse_excluded(asked, conditions)
            self._be_loud()
            table = self._answer(asked)
            return self._mine(self._conditioned(table, conditions) if conditions else table)

    def table(
        self, *arguments: Argument, given: Argument | Sequence[Argument] | None = None, **columns: Tensor
    ) -> Results:
        """The answer ``R(*arguments, given=...)`` as a table: with the names, numbers and labels of its axes.

        ``columns`` are tensors of your own in the shape of that answer, by name (contributions, activations, additive
        relevance); with them, only they are in the table. Of a question about sets alone a column may be what
        ``R.dividends`` gives: an axis for every set. ``to_pandas()`` and ``to_xarray()`` hand the table over,
        ``nrm.save(path, pairs=table)`` keeps it.

        >>> import nrm
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> R = nrm.measure(model, torch.ones(1, 2), labels={"input": ["age", "bmi"]})
        >>> R.table(R.input, R["1"].channels[[3, 5]]).axes["relevance"]
        ('sample', 'input', '1.channels[[3, 5]]')
        >>> R.table(R.input).labels
        {'input': ('age', 'bmi')}
        """
        return tabulate(self, self._places, arguments, given, columns)

    def _over_steps(self, asked: Sequence[Argument], count: int, position: int) -> Tensor:
        """An axis of steps, as questions about single ones; ``count`` arguments, then conditions."""
        argument = asked[position]
        assert isinstance(argument, Partition)
        steps = steps_of(argument, len(self._places.steps(argument.layer))).tolist()
        if len(asked) == count == 2 and _is_steps(asked[1 - position]):
            return self._step_pairs(asked)
        axis = 1 + sum(self._axes(before) for before in asked[:position])
        questions = [replaced(asked, position, [argument.layer.step(t)]) for t in steps]
        return torch.stack([self(*q[:count], given=q[count:]) for q in questions], axis)

    def _step_pairs(self, asked: Sequence[Argument]) -> Tensor:
        """Every step of one layer with every step of another."""
        lists = []
        for partition in asked:
            assert isinstance(partition, Partition)
            nodes = self._places.steps(partition.layer)
            lists.append([nodes[t] for t in steps_of(partition, len(nodes)).tolist()])
        self._origin.check_fresh()
        with plain_execution():
            self._be_loud()
            return self._mine(pair_table(self._network, self.base, lists[0], lists[1], self._memory))

    def _meant(self, asked: Sequence[Argument]) -> Self | None:
        """The measure of the one sample that sets are about; None if that is this measure, or none is named."""
        sample = asked_sample(asked, self._samples)
        return None if sample is None or len(self) == 1 else self.sample(sample - self._samples[0])

    def _mine(self, batch: Tensor) -> Tensor:
        """The part of a result, samples first, that belongs to this measure."""
        return batch

    def _answer(
        self, asked: Sequence[Argument], absolute: bool = False, weights: Mapping[Site, Tensor] | None = None
    ) -> Tensor:
        """The table of a question without conditions; ``absolute`` sums absolute relevances where it is read."""
        if weights is not None or any(map(needs_track, asked)):
            tracked = self._plan_tracked(asked, weights)
            warn_of_cost(tracked, stacklevel=3)
            return answer_tracked(self._answerer(), tracked, absolute)
        plan = self._plan(stops_for(asked, self._places.resolve), "read" if absolute else None)
        warn_of_cost(plan, stacklevel=3)
        return self._answerer().table(plan, absolute)

    def _plan_tracked(self, asked: Sequence[Argument], weights: Mapping[Site, Tensor] | None = None) -> TrackedPlan:
        kept = self._kept.is_there
        track, free = read_track(self._kept, self._places, asked, weights)
        return plan_tracked(track, free, answers=1, memory=self._memory, kept=kept)

    def _answerer(self) -> Answerer:
        return Answerer(
            self._network, self.base, memory=self._memory, progress=self._progress(),
            messages=self._kept.messages,
        )  # fmt: skip

    def _progress(self, what: str = "sweeps") -> Progress:
        """Shows how far an iteration is, as the user wished."""
        return _progress(self._show_progress, what)

    def _graph(self, rows: Stack, columns: Stack) -> Tensor:
        """Every block of one stack with every block of another, as ``R(rows, columns)`` gives it."""
        self._origin.check_fresh()
        with plain_execution():
            self._be_loud()
            sides = [[stops_for([p], self._places.resolve)[0] for p in s.partitions] for s in (rows, columns)]
            return self._mine(interaction_graph(self._answerer(), *sides))

    def _axes(self, argument: Argument) -> int:
        """How many axes an argument gives to a result."""
        if isinstance(argument, Set | Stack | Formula) or _is_steps(argument):
            return int(not isinstance(argument, Set | Formula))
        partition = Partition(argument) if isinstance(argument, Layer) else argument
        return len(Blocks.of(self._places.resolve(partition.layer)[1], partition).shape)

    def _plan(self, stops: list[Stop], strategy: str | None = None) -> Plan:
        kept = self._kept.is_there
        live = (lambda stop: len(self._answerer().live(stop, stop.site))) if kept else None
        plan = make_plan(self._network, stops, memory=self._memory, kept=kept, strategy=strategy, live=live)
        messages = self._kept.messages
        return replace(plan, messages=(len(messages), messages.nbytes, messages.bound))

    def each(
        self, partition: Partition | Layer, *arguments: Argument, given: Argument | Sequence[Argument] | None = None
    ) -> Iterator[tuple[Set, Tensor]]:
        """The answers for every block of a partition, one after the other: the block, and ``R(block, *arguments)``.

        For results that are too large as one table, such as a heat map per channel. Blocks are worked off in chunks
        that fit into the memory bound.

        >>> import nrm
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> R = nrm.measure(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.ones(1, 4))
        >>> for block, heat in R.each(R["1"].channels[:2], R.input):
        ...     print(block, tuple(heat.shape))
        1.channels[:2][0] (1, 4)
        1.channels[:2][1] (1, 4)
        """
        refuse_text(partition)
        if not isinstance(partition, Layer | Partition):
            raise QuestionError("not a partition", got=repr(partition)[:120], expected="a partition such as a.channels")
        whole = Partition(partition) if isinstance(partition, Layer) else partition
        shape = Blocks.of(self._places.resolve(whole.layer)[1], whole).shape
        places = list(itertools.product(*map(range, shape)))
        if not places:
            return
        blocks = [whole[at[0] if len(at) == 1 else at] for at in places]
        one = self.plan(blocks[0], *arguments, given=given)
        fits = fitting(self._memory, one.nbytes)
        for begin in range(0, len(places), fits):
            rows = places[begin : begin + fits]
            chunk = whole[[at[0] if len(at) == 1 else at for at in rows]]
            table = self(chunk, *arguments, given=given)
            yield from zip(blocks[begin : begin + fits], table.unbind(1), strict=True)

    def plan(self, *arguments: Argument, given: Argument | Sequence[Argument] | None = None) -> Plan | TrackedPlan:
        """How a question would be answered, and what it would cost; nothing is computed."""
        asked = read_question(arguments, given)
        if any(isinstance(a, Stack) for a in asked):
            raise QuestionError("a stack has a plan for each of its partitions", hint="R.plan(s.partitions[0], ...)")
        self._meant(asked)
        for position, argument in enumerate(asked):
            if _is_steps(argument):
                asked = replaced(asked, position, [argument.layer.step(0)])
        if any(map(needs_track, asked)):
            return self._plan_tracked(asked)
        return self._plan(stops_for(asked, self._places.resolve))

    def lift(
        self, *arguments: Argument, given: Argument | Sequence[Argument] | None = None, form: str = "lift"
    ) -> Tensor:
        """How much more parts share than independent ones would: their joint relevance over the product of theirs.

        ``R.lift(a.channels, b.channels)`` is ``R(A, B) / (R(A) R(B))`` for every pair, in the shape of
        ``R(a.channels, b.channels)``; more parts have more factors, ``given`` conditions all of them. 1 is
        independence, 2 is twice as much. It is NaN where a marginal is 0 or lost in rounding, and a warning says where
        one is below 0.1 % of the total variation inside it: relevances of both signs cancel there, and a quotient says
        little. ``form="excess"`` is the joint relevance minus the product, defined everywhere; its sums over a cut
        are 0. ``R.flows(..., by="lift")`` finds the largest ones.

        >>> import nrm
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> R = nrm.measure(model, torch.ones(1, 4), rules=nrm.ZPlus())
        >>> x, a = R.input, R["1"].channels
        >>> bool(torch.allclose(R.lift(x, a, form="excess"), R(x, a) - R(x)[:, :, None] * R(a)[:, None], atol=1e-6))
        True
        """
        one = self._meant(read_question(arguments, given))
        return lift_of(self if one is None else one, arguments, given, form)

    def flows(
        self, *arguments: Argument, k: int = 10, given: Set | Sequence[Set] | None = None, sign: str = "+",
        method: str = "exact", effort: float = 300, by: str = "relevance", least: float | None = None,
    ) -> Flows:  # fmt: skip
        """Each sample's k combinations of blocks, one of every partition, with the largest relevance, best first.

        ``sign="-"`` finds the most negative ones, ``"abs"`` the largest of either sign. Sets among the arguments and in
        ``given`` are fixed events; ``given`` also divides the shares. The lists are exact where ``certified`` says so;
        a search that would take more than ``effort`` forward passes ends with a ``gap``. ``method="greedy"`` goes down
        layer by layer and keeps the k best prefixes, as a comparison. ``R(x, *flow)`` is the heat map of a flow.

        ``by="lift"`` ranks by :meth:`lift`, among flows with a relevance of at least ``least`` (0.001 unless it is
        given), ``by="excess"`` by joint relevance minus the product of marginals: exact where the whole table takes no
        more than ``effort``, else among the largest flows, with the ``gap`` that others may have.

        >>> import nrm
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 2))
        >>> R = nrm.measure(model, torch.ones(1, 4))
        >>> flows = R.flows(R["1"].channels, R["3"].channels, k=2)
        >>> flows.certified
        (True,)
        >>> bool(torch.isclose(R(*flows[0][0])[0], torch.tensor(flows[0][0].relevance)))
        True
        """
        request = Request.read(k, sign, method, effort)
        asked = read_question(arguments, given)
        conditions = asked[len(arguments) :]
        refuse_free(asked, conditions)
        one = self._meant(asked)
        if one is not None:
            return one.flows(*arguments, k=k, given=given, sign=sign, method=method, effort=effort, by=by, least=least)
        read_form(by, ("relevance", *FORMS), "by")
        if by != "relevance":
            found = lifted_flows(self, arguments, given, by, least, request)
            return label_flows(found, self._places, self._labels)
        if least is not None:
            raise QuestionError("least is for flows ranked by lift", got=f"least={least!r}", hint="by='lift'")
        side, whole = self._side(asked, conditions)
        with plain_execution():
            found = find_flows(
                [side], asked, whole.tolist(), self._samples, request, memory=self._memory,
                progress=self._progress(),
            )  # fmt: skip
        return label_flows(found, self._places, self._labels)

    def _side(self, asked: Sequence[Argument], conditions: Sequence[Argument]) -> tuple[Side, Tensor]:
        """What a search for flows needs of this measure, and the relevance of the condition (1 without one)."""
        self._origin.check_fresh()
        with plain_execution():
            stops = stops_for(asked, self._places.resolve)
            self._refuse_excluded(asked, conditions)
            self._be_loud()
            whole = self._mine(self._condition(conditions)) if conditions else torch.ones(len(self))
            return Side(self._network, self.base, ordered(stops), self._samples), whole

    def _conditioned(self, joint: Tensor, conditions: Sequence[Argument]) -> Tensor:
        condition = self._condition(conditions)
        gap = joint.ndim - condition.ndim
        shaped = condition.reshape(condition.shape[0], *(1,) * gap, *condition.shape[1:])
        safe = torch.where(shaped == 0, torch.ones_like(shaped), shaped)
        return torch.where(shaped == 0, torch.zeros_like(joint), joint / safe)

    def _condition(self, conditions: Sequence[Argument]) -> Tensor:
        """The relevance of a condition, which must not be lost in rounding."""
        condition, inside = self._answer(conditions), self._answer(conditions, absolute=True)
        self._judge_condition(self._mine(condition), self._mine(inside))
        return condition

    @staticmethod
    def _judge_condition(condition: Tensor, inside: Tensor) -> None:
        """A condition whose relevances cancel says little, or nothing at all."""
        relative = condition.abs() / torch.where(inside == 0, torch.ones_like(inside), inside)
        lost = (condition != 0) & (relative < 100 * torch.finfo(condition.dtype).eps)
        if bool(lost.any()):
            raise PrecisionError(
                "the condition's relevance is lost in rounding", got=f"{int(lost.sum())} conditions near 0",
                expected="a condition whose relevance does not cancel", hint="dtype=torch.float64, or a larger set",
            )  # fmt: skip
        near = (condition != 0) & (relative < 1e-3)
        if bool(near.any()):
            text = f"{int(near.sum())} conditions have a relevance below 0.1 % of the total variation inside them"
            warnings.warn(text, NrmWarning, stacklevel=4)

    def _refuse_excluded(self, asked: Sequence[Argument], conditions: Sequence[Argument]) -> None:
        """Asking for an output that the target excludes would always give 0, which nobody means.

        Inside a formula it is an event like any other, whose measure is 0.
        """
        output, sets = Site(self._tape.output), [a for a in asked if isinstance(a, Set) and not needs_track(a)]
        stops = stops_for(sets, self._places.resolve)
        masks = [(str(stop.sets[0]), stop.set_mask()) for stop in stops if stop.site == output]
        free = stops_for([c for c in conditions if isinstance(c, Layer | Partition)], self._places.resolve)
        masks += [(f"given={b.text}", b.masks(list(range(b.count))))
                  for stop in free if stop.site == output for b in stop.blocks]  # fmt: skip
        for text, mask in masks:
            sample = excluded(self._target, mask, self._samples)
            if sample is not None:
                raise QuestionError(
                    "the target excludes these outputs", where=f"sample {sample}", got=text,
                    expected=f"outputs of the target: {outputs_text(self._target, self._labels, [sample])}",
                    hint="nrm.measure(..., target='softmax') spreads relevance over all outputs",
                )  # fmt: skip

    def walks(self, k: int = 10, sign: str = "+", *, to_input: bool = False) -> Found[Walk]:
        """Each sample's k single walks with the largest relevance, best first; exact.

        ``sign="-"`` finds the most negative ones, ``"abs"`` the largest of either sign. Walks of equal relevance are
        one entry with its multiplicity. Where the first layer has the Flat rule, all its inputs are alike and walks end
        at its output, unless ``to_input``. ``R(*walk)`` is a walk's relevance by messages.

        >>> import nrm
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 1, bias=False))
        >>> model[0].weight.data = torch.tensor([[1.0, 2.0], [1.0, 0.0]])
        >>> model[2].weight.data = torch.tensor([[3.0, 1.0]])
        >>> R = nrm.measure(model, torch.ones(1, 2))
        >>> print(R.walks(k=2))
        walks of sample 0
          1  0.6  output[0] <- 0[0] <- input[1]
          2  0.3  output[0] <- 0[0] <- input[0]
        """
        self._origin.check_fresh()
        with plain_execution():
            self._be_loud()
            found = find_walks(
                self._network, self._kept.start, self._samples, k=k, sign=sign, to_input=to_input,
                memory=self._memory, progress=self._progress(),
            )  # fmt: skip
        return label_walks(found, self._places, self._labels)


def _is_steps(argument: Any) -> TypeGuard[Partition]:
    return isinstance(argument, Partition) and spans_steps(argument)


def _progress(show: bool | Listener | None, what: str = "sweeps") -> Progress:
    def tell(chunks: Iterator[Any], total: int | None) -> Iterator[Any]:
        assert callable(show)
        for done, chunk in enumerate(chunks):
            show(done, total)
            yield chunk

    def bar(chunks: Iterator[Any], total: int | None) -> Iterator[Any]:
        hidden = show is False or (show is None and total is not None and total < 2)
        delay = 0.0 if show else 2.0
        shown = tqdm(chunks, total=total, disable=hidden, delay=delay, desc=what, leave=False)
        with contextlib.closing(shown):
            yield from shown

    return tell if callable(show) else bar
