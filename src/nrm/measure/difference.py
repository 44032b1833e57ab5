"""The difference of two measures: of two targets, two inputs, or two checkpoints of one model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import torch
from torch import Tensor

from nrm.capture import plain_execution
from nrm.errors import NrmError, QuestionError
from nrm.measure.check import Check
from nrm.measure.direct import DirectEdges, Ends, edges_apart, plan_direct
from nrm.measure.labels import Names, label_flows
from nrm.measure.layers import Cut, LayerTable, combined
from nrm.measure.lift import FORMS, read_form
from nrm.measure.parts import InputParts
from nrm.measure.planning import Planner, plan_of
from nrm.measure.searching import side_of
from nrm.measure.show import FactRows, as_html, as_text, options_text, outputs_text
from nrm.measure.table import tabulate
from nrm.measure.weighing import read_additive
from nrm.questions import Argument, Formula, Frame, Layer, Partition, Plan, Question, Set, Site
from nrm.search import Flows, Request, Side, find_flows
from nrm.tables import Results

if TYPE_CHECKING:
    from nrm.measure.measure import Measure

T = TypeVar("T")
SHOWN = 6
"""How many layers that do not match are named."""


class Difference:
    """``R1 - R2``: a signed measure of total 0 that answers the questions of a measure.

    Every answer is the first measure's minus the second one's; with ``given=`` it is the difference of the two
    conditionals. Layers match by name and shape. ``first`` and ``second`` are the two measures.

    >>> import nrm
    >>> from torch import nn
    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> x = torch.rand(1, 4)
    >>> D = nrm.measure(model, x, target=0) - nrm.measure(model, x, target=1)
    >>> D(D.input, D["1"].channels).shape
    torch.Size([1, 4, 8])
    >>> round(abs(float(sum(D(part.all) for part in D.inputs))), 4)
    0.0
    """

    def __init__(self, first: Measure, second: Measure) -> None:
        _check_alike(first, second)
        self.first = first
        self.second = second

    def _both(self, ask: Callable[[Measure], T]) -> tuple[T, T]:
        """The answers of both measures; an error says whose it is."""
        with _about("first"):
            one = ask(self.first)
        with _about("second"):
            return one, ask(self.second)

    def _minus(self, ask: Callable[[Measure], Tensor]) -> Tensor:
        one, other = self._both(ask)
        return one - other

    # ---- questions -------------------------------------------------------------------------------------------

    def __call__(self, *arguments: Argument, given: Argument | Sequence[Argument] | None = None) -> Tensor:
        """The difference of the two answers to a question, ``(batch, *axes)``; of the conditionals with ``given``."""
        return self.ask(Question.read(arguments, given))

    def ask(self, question: Question) -> Tensor:
        """The difference of the two answers to a question that was read before."""
        one, question = self._meant(question)
        return one._minus(lambda R: R.ask(question))

    def in_units(self, *question: Argument) -> Tensor:
        """The difference of the two answers in units of the output, each times its own measure's explained output.

        Of everything it is the difference of the two outputs.
        """
        one, read = self._meant(Question.read(question))
        return one._minus(lambda R: R.in_units(*read.arguments))

    def table(
        self, *arguments: Argument, given: Argument | Sequence[Argument] | None = None, **columns: Tensor
    ) -> Results:
        """The difference of the two answers as a table: with the names, numbers and labels of its axes."""
        return tabulate(self, self.first.inner.places, Question.read(arguments, given), columns)

    def each(
        self, partition: Partition | Layer, *arguments: Argument, given: Argument | Sequence[Argument] | None = None
    ) -> Iterator[tuple[Set, Tensor]]:
        """The answers for every block of a partition, one after the other."""
        both = self._both(lambda R: R.each(partition, *arguments, given=given))
        for (block, one), (_, other) in zip(*both, strict=True):
            yield block, one - other

    @property
    def plan(self) -> Planner:
        """How a question would be answered, and what it would cost; nothing is computed: ``D.plan(*arguments)``."""
        return Planner(self._plan, partial(read_additive, self.first.inner), self._plan_direct)

    def _plan_direct(self, writers: Ends, readers: Ends, positions: bool) -> Plan:
        return _twice(self._both(lambda R: plan_direct(R.inner, writers, readers, positions)))

    def _plan(self, question: Question) -> Plan:
        one, question = self._meant(question)
        return _twice(one._both(lambda R: plan_of(R.inner, question)))

    def direct(self, writers: Ends = None, readers: Ends = None, *, positions: bool = False) -> DirectEdges:
        """The difference of the direct edges of both measures, see ``Measure.direct``."""
        return edges_apart(*self._both(lambda R: R.direct(writers, readers, positions=positions)))

    def flows(
        self, *arguments: Argument, k: int = 10, given: Set | Sequence[Set] | None = None, sign: str = "abs",
        method: str = "exact", effort: float = 300, by: str = "relevance", least: float | None = None,
    ) -> Flows:  # fmt: skip
        """Each sample's k combinations of blocks that differ most, whatever their sign unless ``sign`` says it.

        They rank by their ``share``: the difference of the two joint relevances or, with ``given``, of the two
        conditionals. The lists are exact where ``certified`` says so: from the whole tables where that is affordable,
        else by a search in which a prefix can reach as far as the bounds of both measures together allow. A difference
        has no lift, so ``by`` can only be ``"relevance"``, and ``least`` is not defined.

        >>> import nrm
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 2))
        >>> x = torch.rand(1, 4)
        >>> D = nrm.measure(model, x, target=0) - nrm.measure(model, x, target=1)
        >>> best = D.flows(D["1"].channels, D["3"].channels, k=1)[0][0]
        >>> bool(torch.isclose(D(*best)[0], torch.tensor(best.relevance)))
        True
        """
        request = Request.read(k, sign, method, effort)
        read_form(by, ("relevance", *FORMS), "by")
        if by != "relevance" or least is not None:
            self.lift(*arguments)
        one, question = self._meant(Question.read(arguments, given))
        question.refuse_for_flows()
        sides = one._both(lambda R: side_of(R.inner, question))
        first, second = one.first.inner, one.second.inner
        with plain_execution():
            weighed = [_weighed(side, whole, sign) for sign, (side, whole) in zip((1.0, -1.0), sides, strict=True)]
            found = find_flows(
                weighed, question.asked, [1.0] * len(one), one.samples, request,
                memory=min(first.memory, second.memory), progress=first.progress(),
            )  # fmt: skip
        labels = {**second.names, **first.names}
        found = label_flows(found, first.places, labels, one.samples[0] - first.samples[0])
        if not question.given:
            return found
        joint = [[replace(flow, relevance=float(one(*flow))) for flow in flows] for flows in found]
        return Flows(joint, one.samples, found.gap)

    def dividends(self, *events: Set | Formula) -> Tensor:
        """The difference of the relevances of all walks by what they visit: ``(batch, 2, 2, ...)``; it adds up to 0."""
        return self._minus(lambda R: R.dividends(*events))

    def expect(
        self, weights: Mapping[Layer | Set, Any], *arguments: Argument,
        given: Argument | Sequence[Argument] | None = None,
    ) -> Tensor:  # fmt: skip
        """The difference of the relevances of all walks asked for, each times the weights of the neurons it visits."""
        return self._minus(lambda R: R.expect(weights, *arguments, given=given))

    def additive(
        self, *parts: Set | Layer | Partition, at: Argument | Sequence[Argument] | None = None,
        layers: Sequence[Cut | Layer | str] | None = None,
    ) -> Tensor:  # fmt: skip
        """The difference of the additive relevances of neurons anywhere in the network."""
        return self._minus(lambda R: R.additive(*parts, at=at, layers=layers))

    def lift(self, *_: Any, **__: Any) -> NoReturn:
        """Not defined: see the error."""
        raise QuestionError(
            "a difference has no lift", got="a signed measure of total 0",
            expected="a measure in which everything has 1",
            hint="D.first.lift(...) - D.second.lift(...), or D.first.flows(..., by='lift'); "
                 "D(a.channels, b.channels) are the joint relevances",
        )  # fmt: skip

    def walks(self, *_: Any, **__: Any) -> NoReturn:
        """Not defined: see the error."""
        raise QuestionError(
            "the walks of a difference cannot be searched",
            got="the difference of two products along every walk, which no best way from neuron to neuron can follow",
            expected="flows: walks over chosen layers, summed over all others",
            hint="D.flows(D['layer'], D['other']) for single neurons, D.first.walks() for one of the measures",
        )  # fmt: skip

    def _meant(self, question: Question) -> tuple[Difference, Question]:
        """A question, and the difference it is about: sets that come from a search know their sample."""
        sample = question.sample(self.samples)
        one = self if sample is None or len(self) == 1 else self.sample(sample - self.samples[0])
        if sample is not None and one.first.samples != one.second.samples:  # the measures number it differently
            question = question.without_samples()
        return one, question

    # ---- places ----------------------------------------------------------------------------------------------

    def __getitem__(self, name: str | Layer) -> Layer:
        """The layer of this name, checked against both captures."""
        return self._both(lambda R: R[name])[0]

    __iter__ = None

    def _ipython_key_completions_(self) -> list[str]:
        return self.first._ipython_key_completions_()

    def find(self, pattern: str) -> list[Layer]:
        """The layers whose name matches a pattern with ``*`` and ``?``, in the order of the forward pass."""
        return self.first.find(pattern)

    @property
    def input(self) -> Layer:
        """The user's input as a layer."""
        return self.first.input

    @property
    def output(self) -> Layer:
        """The explained output as a layer."""
        return self.first.output

    @property
    def tokens(self) -> Partition:
        """The tokens of a text, each with all that the model adds up for it: word, position, type."""
        return self._both(lambda R: R.tokens)[0]

    @property
    def parts(self) -> InputParts:
        """Everything that both models read as one axis; the differences on it add up to 0."""
        one, other = self._both(lambda R: R.parts)
        return one.with_constants(other)

    @property
    def inputs(self) -> Cut:
        """The whole input cut of both measures. Its mass is 0."""
        return _united(*self._both(lambda R: R.inputs))

    @property
    def biases(self) -> list[Layer]:
        """The biases that receive relevance in one of the measures."""
        one, other = self._both(lambda R: R.biases)
        return list(dict.fromkeys([*one, *other]))

    def edge(self, source: str | Layer, consumer: str | Layer) -> Layer:
        """The copy of a tensor on its way to one of its consumers."""
        return self._both(lambda R: R.edge(source, consumer))[0]

    def cut(self, layer: Layer | str) -> Cut:
        """The cut through a layer: the layer and everything that bypasses it. Its mass is 0."""
        return _united(*self._both(lambda R: R.cut(layer)))

    # ---- facts -----------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.first)

    @property
    def samples(self) -> range:
        """The numbers of the samples: those of the measures, if they have the same."""
        mine = self.first.samples
        return mine if mine == self.second.samples else range(len(mine))

    def resolve(self, layer: Layer) -> tuple[Site, Frame]:
        """Where a layer is in the network, and its geometry; for the other rooms of this package."""
        return self.first.resolve(layer)

    def sample(self, i: int) -> Difference:
        """The difference of one sample's measures."""
        return Difference(*self._both(lambda R: R.sample(i)))

    @property
    def value(self) -> Tensor:
        """The difference of the explained outputs of each sample."""
        return self._minus(lambda R: R.value)

    def values(self, layer: Layer | str) -> Tensor:
        """The difference of the activations of a layer: ``(batch, *layer shape)``."""
        return self._minus(lambda R: R.values(layer))

    @property
    def labels(self) -> dict[str, Names]:
        """Names for classes and input positions, of the second measure and then of the first."""
        return {**self.second.labels, **self.first.labels}

    @property
    def layers(self) -> LayerTable:
        """Name, shape, channel axis, kind, whether it is a cut, and the difference of the masses of every layer."""
        return combined(*self._both(lambda R: R.layers))

    def check(self, *, strict: bool = True) -> tuple[Check, Check]:
        """The certificates of both measures."""
        return self._both(lambda R: R.check(strict=strict))

    def release(self) -> None:
        """Forgets kept messages and columns of both measures; the next question computes them again."""
        self._both(lambda R: R.release())

    def describe(self) -> dict[str, Any]:
        """Everything about both measures that a file should say, as plain data."""
        first, second = self._both(lambda R: R.describe())
        return {"difference": "first - second", "first": first, "second": second}

    def __repr__(self) -> str:
        return as_text("difference of two normalized relevance measures", self._rows())

    def _repr_html_(self) -> str:
        return as_html("difference of two normalized relevance measures", self._rows())

    def _rows(self) -> FactRows:
        rows = [("samples", str(len(self)))]
        for which, R in (("first", self.first), ("second", self.second)):
            rows += [
                (which, outputs_text(R.inner.target, R.inner.names, R.samples)),
                ("", options_text(R.inner.network)),
            ]
        return [*rows, ("total", "0: what the first has more than the second is positive")]


def _weighed(side: Side, whole: Tensor, sign: float) -> Side:
    """A side whose relevances count as shares of its own condition; a condition without relevance gives 0."""
    safe = torch.where(whole == 0, torch.ones_like(whole), whole)
    return replace(side, weights=torch.where(whole == 0, torch.zeros_like(whole), sign / safe))


def _united(one: Cut, other: Cut) -> Cut:
    return Cut(one.label, tuple(dict.fromkeys((*one, *other))))


def _twice(plans: tuple[Plan, Plan]) -> Plan:
    """The plans of both measures as one."""
    lines = [replace(line, what=f"{which}: {line.what}")
             for which, plan in zip(("first", "second"), plans, strict=True) for line in plan.lines]  # fmt: skip
    return replace(plans[0], lines=tuple(lines))


@contextlib.contextmanager
def _about(which: str) -> Iterator[None]:
    try:
        yield
    except NrmError as error:
        error.where = f"the {which} measure" + (f", {error.where}" if error.where else "")
        raise


def _check_alike(first: Measure, second: Measure) -> None:
    """Refuses measures that do not have the same layers, samples and scale."""
    if len(first) != len(second):
        raise QuestionError(
            "the measures are of different batches", got=f"{len(first)} and {len(second)} samples",
            expected="as many samples", hint="R1.sample(0) - R2.sample(0) for single samples",
        )  # fmt: skip
    shapes = [R.inner.places.shapes() for R in (first, second)]
    if list(shapes[0].items()) != list(shapes[1].items()):
        found = _mismatches(*shapes)
        more = f", and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        raise QuestionError(
            "the measures have different layers", got="; ".join(found[:SHOWN]) + more,
            expected="the same layers by name and shape: one model, two targets, inputs or checkpoints",
        )  # fmt: skip
    scales = [R.inner.network.normalize for R in (first, second)]
    if scales[0] is not scales[1] and scales[0] != scales[1]:
        raise QuestionError("the measures have different scales", got=f"normalize={scales[0]!r} and {scales[1]!r}")
    devices = [R.inner.kept.start.device for R in (first, second)]
    if devices[0] != devices[1]:
        raise QuestionError("the measures are on different devices", got=" and ".join(map(str, devices)))


def _mismatches(one: dict[str, tuple[int, ...]], other: dict[str, tuple[int, ...]]) -> list[str]:
    found = []
    for name in dict.fromkeys([*one, *other]):
        if name not in other:
            found.append(f"{name} is in the first only")
        elif name not in one:
            found.append(f"{name} is in the second only")
        elif one[name] != other[name]:
            found.append(f"{name} has shape {one[name]} and {other[name]}")
    return found or ["the same layers in another order"]
