"""The measure against several references: the average of its contrasts, in units of the output."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import torch
from torch import Tensor

from nrm.capture import plain_execution
from nrm.errors import QuestionError
from nrm.measure.asking import conditioned
from nrm.measure.check import Check
from nrm.measure.choosing import Edges, find_circuit, refuse_options
from nrm.measure.circuit import Circuit
from nrm.measure.direct import DirectEdges, Ends, averaged_edges
from nrm.measure.inside import CircuitPart
from nrm.measure.labels import Names, label_flows
from nrm.measure.layers import Cut, LayerTable, averaged
from nrm.measure.parts import InputParts
from nrm.measure.searching import side_of
from nrm.measure.show import FactRows, as_html, as_text, options_text, outputs_text
from nrm.measure.table import tabulate
from nrm.questions import Argument, Formula, Frame, Layer, Partition, Question, Set, Site
from nrm.search import Flows, Request, find_flows
from nrm.tables import Results

if TYPE_CHECKING:
    from nrm.measure.measure import Measure

T = TypeVar("T")


class Average:
    """Contrasts of one input with several references, averaged in units of the output: ``mean(df R) / mean(df)``.

    It answers the questions of a measure, and the measure of everything is 1. ``contrasts`` are its measures, one per
    reference; :meth:`each_reference` has their answers beside each other, :meth:`interval` how far they would vary with
    other references of the same kind.

    >>> import nrm
    >>> from torch import nn
    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> R = nrm.measure(model, torch.ones(1, 4), against=[torch.zeros(1, 4), torch.rand(1, 4)])
    >>> R(R.input).shape, round(float(R(R.input).sum()), 4)
    (torch.Size([1, 4]), 1.0)
    """

    def __init__(self, contrasts: Sequence[Measure]) -> None:
        self.contrasts = tuple(contrasts)
        self._first = self.contrasts[0]

    @property
    def _weights(self) -> Tensor:
        """What every contrast counts for every sample, ``(references, batch)``: its difference over the sum of all."""
        differences = torch.stack([R.value for R in self.contrasts])
        total = differences.sum(0)
        if bool((total == 0).any()):
            raise QuestionError(
                "the differences from the references add up to 0", got=f"sample {int((total == 0).nonzero()[0, 0])}",
                expected="a difference to be shared", hint="R.in_units(...) answers in units of the output",
            )  # fmt: skip
        return differences / total

    def _sum(self, ask: Callable[[Measure], Tensor]) -> Tensor:
        """The shares of all contrasts, each times what it counts."""
        answers = torch.stack([ask(R) for R in self.contrasts])
        weights = self._weights
        return (answers * weights.reshape(*weights.shape, *(1,) * (answers.ndim - 2))).sum(0)

    # ---- questions -------------------------------------------------------------------------------------------

    def __call__(self, *arguments: Argument, given: Argument | Sequence[Argument] | None = None) -> Tensor:
        """The average of the answers to a question, ``(batch, *axes)``; with ``given`` that of the joint relevances
        over that of the condition.
        """
        return self.ask(Question.read(arguments, given))

    def ask(self, question: Question) -> Tensor:
        """The average of the answers to a question that was read before."""
        one = self._meant(question)
        table = one._sum(lambda R: R.ask(question.joint))
        if not question.given:
            return table
        return conditioned(table, one._sum(lambda R: R.ask(question.condition)))

    def direct(self, writers: Ends = None, readers: Ends = None, *, positions: bool = False) -> DirectEdges:
        """The direct edges of the residual stream, averaged in units of the output."""
        return averaged_edges([R.direct(writers, readers, positions=positions) for R in self.contrasts])

    def circuit(
        self, *, top: float | None = None, mass: float | None = None, by: str = "share", edges: Edges | None = None,
        positions: bool = False, chains: int = 0,
    ) -> Circuit:  # fmt: skip
        """A circuit of direct edges for all references: shares of the mean difference, see ``Measure.circuit``."""
        refuse_options(top, mass, by, edges)
        parts = [CircuitPart.of(R.inner, positions) for R in self.contrasts]
        return find_circuit(parts, top=top, mass=mass, by=by, edges=edges, chains=chains)

    def in_units(self, *question: Argument) -> Tensor:
        """The mean of the answers in units of the output; that of everything is the mean difference."""
        return self.each_reference(*question).mean(0)

    def each_reference(self, *question: Argument) -> Tensor:
        """The answers of every contrast by itself, in units of the output: ``(references, batch, *axes)``."""
        one = self._meant(Question.read(question))
        return torch.stack([R.in_units(*question) for R in one.contrasts])

    def interval(self, *question: Argument, level: float = 0.95, draws: int = 1000, seed: int = 0) -> Tensor:
        """Between what shares lie for other references of the same kind: ``(2, batch, *axes)``, low and high.

        References are drawn anew from those given, ``draws`` times, and the quantiles of the average taken.

        >>> import nrm
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> R = nrm.measure(model, 2 * torch.ones(1, 4), against=[torch.rand(1, 4) for _ in range(8)], target=0)
        >>> low, high = R.interval(R.input)
        >>> bool(((low <= R(R.input)) & (R(R.input) <= high)).all())
        True
        """
        if not 0 < level < 1:
            raise QuestionError("not a level", got=f"level={level!r}", expected="a number between 0 and 1, as 0.95")
        parts = self.each_reference(*question)
        whole = torch.stack([R.value for R in self._meant(Question.read(question)).contrasts])
        count = len(parts)
        chosen = torch.randint(count, (draws, count), generator=torch.Generator().manual_seed(seed)).to(parts.device)
        times = torch.zeros(draws, count, dtype=parts.dtype, device=parts.device)
        times.scatter_add_(1, chosen, torch.ones_like(times))
        shares = (times @ parts.flatten(1)).reshape(draws, *parts.shape[1:])
        totals = (times @ whole).reshape(draws, -1, *(1,) * (parts.ndim - 2))
        ends = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=parts.dtype, device=parts.device)
        return torch.quantile(shares / totals, ends, 0)

    def table(
        self, *arguments: Argument, given: Argument | Sequence[Argument] | None = None, **columns: Tensor
    ) -> Results:
        """The answer as a table: with the names, numbers and labels of its axes."""
        return tabulate(self, self._first.inner.places, Question.read(arguments, given), columns)

    def each(self, partition: Partition | Layer, *arguments: Argument) -> Iterator[tuple[Set, Tensor]]:
        """The answers for every block of a partition, one after the other: the block, and ``R(block, *arguments)``."""
        for blocks in zip(*(R.each(partition, *arguments) for R in self.contrasts), strict=True):
            answers = iter([answer for _, answer in blocks])
            yield blocks[0][0], self._sum(lambda _, found=answers: next(found))  # type: ignore[misc]

    def flows(
        self, *arguments: Argument, k: int = 10, given: Set | Sequence[Set] | None = None, sign: str = "+",
        method: str = "exact", effort: float = 300,
    ) -> Flows:  # fmt: skip
        """Each sample's k combinations of blocks, one of every partition, with the largest average relevance.

        The lists are exact where ``certified`` says so: a prefix can reach as far as the bounds of all contrasts
        together allow.
        """
        request = Request.read(k, sign, method, effort)
        question = Question.read(arguments, given)
        question.refuse_for_flows()
        one = self._meant(question)
        whole = one._sum(lambda R: R.ask(question.condition)) if question.given else torch.ones(len(one))
        sides = [
            replace(side_of(R.inner, question.joint)[0], weights=weights)
            for R, weights in zip(one.contrasts, one._weights, strict=True)
        ]
        inner = one._first.inner
        with plain_execution():
            found = find_flows(
                sides, question.asked, whole.tolist(), one.samples, request, memory=inner.memory,
                progress=inner.progress(),
            )  # fmt: skip
        return label_flows(found, inner.places, inner.names)

    def dividends(self, *events: Set | Formula) -> Tensor:
        """The average relevance of all walks by what they visit: ``(batch, 2, 2, ...)``; it adds up to 1."""
        return self._sum(lambda R: R.dividends(*events))

    def expect(self, weights: Mapping[Layer | Set, Any], *arguments: Argument) -> Tensor:
        """The average relevance of all walks asked for, each times the weights of the neurons it visits."""
        return self._sum(lambda R: R.expect(weights, *arguments))

    def additive(
        self, *parts: Set | Layer | Partition, at: Argument | Sequence[Argument] | None = None,
        layers: Sequence[Cut | Layer | str] | None = None,
    ) -> Tensor:  # fmt: skip
        """The average additive relevance of neurons anywhere in the network."""
        return self._sum(lambda R: R.additive(*parts, at=at, layers=layers))

    def lift(self, *_: Any, **__: Any) -> NoReturn:
        """Not defined: see the error."""
        raise QuestionError(
            "the lift of an average is not asked for", got="several references",
            hint="R(a, b) / (R(a) * R(b)) of its answers, or R.contrasts[0].lift(...)",
        )  # fmt: skip

    def walks(self, *_: Any, **__: Any) -> NoReturn:
        """Not defined: see the error."""
        raise QuestionError(
            "the walks of an average cannot be searched",
            got="a sum of products along every walk, which no best way from neuron to neuron can follow",
            expected="flows: walks over chosen layers, summed over all others",
            hint="R.flows(R['layer'], R['other']) for single neurons, R.contrasts[0].walks() for one reference",
        )  # fmt: skip

    def _meant(self, question: Question) -> Average:
        """Whom a question is about: sets that come from a search know their sample."""
        sample = question.sample(self.samples)
        return self if sample is None or len(self) == 1 else self.sample(sample - self.samples[0])

    # ---- places and facts ------------------------------------------------------------------------------------

    def __getitem__(self, name: str | Layer) -> Layer:
        """The layer of this name, checked against the capture."""
        return self._first[name]

    __iter__ = None

    def find(self, pattern: str) -> list[Layer]:
        """The layers whose name matches a pattern with ``*`` and ``?``, in the order of the forward pass."""
        return self._first.find(pattern)

    @property
    def input(self) -> Layer:
        """The user's input as a layer."""
        return self._first.input

    @property
    def output(self) -> Layer:
        """The explained output as a layer."""
        return self._first.output

    @property
    def tokens(self) -> Partition:
        """The tokens of a text, each with all that the model adds up for it: word, position, type."""
        return self._first.tokens

    @property
    def parts(self) -> InputParts:
        """Everything that the model reads as one axis: patches, frames, tokens."""
        return self._first.parts

    @property
    def inputs(self) -> Cut:
        """The whole input cut. Its mass is 1."""
        return self._first.inputs

    def cut(self, layer: Layer | str) -> Cut:
        """The cut through a layer: the layer and everything that bypasses it. Its mass is 1."""
        return self._first.cut(layer)

    def edge(self, source: str | Layer, consumer: str | Layer) -> Layer:
        """The copy of a tensor on its way to one of its consumers."""
        return self._first.edge(source, consumer)

    def __len__(self) -> int:
        return len(self._first)

    @property
    def samples(self) -> range:
        """The numbers of the samples."""
        return self._first.samples

    def resolve(self, layer: Layer) -> tuple[Site, Frame]:
        """Where a layer is in the network, and its geometry; for the other rooms of this package."""
        return self._first.resolve(layer)

    def sample(self, i: int) -> Average:
        """One sample's average."""
        return Average([R.sample(i) for R in self.contrasts])

    @property
    def value(self) -> Tensor:
        """The mean difference of the explained outputs of each sample."""
        return torch.stack([R.value for R in self.contrasts]).mean(0)

    @property
    def here(self) -> Tensor:
        """The explained output of each sample, here."""
        return self._first.here

    @property
    def there(self) -> Tensor:
        """The mean of the outputs in the references, for each sample."""
        return torch.stack([R.there for R in self.contrasts]).mean(0)

    @property
    def target(self) -> Tensor | str:
        """The explained output of each sample."""
        return self._first.target

    @property
    def prediction(self) -> Tensor:
        """Each sample's largest output, here."""
        return self._first.prediction

    def values(self, layer: Layer | str) -> Tensor:
        """The activations of a layer, here: ``(batch, *layer shape)``."""
        return self._first.values(layer)

    @property
    def labels(self) -> dict[str, Names]:
        """Names for classes and input positions."""
        return self._first.labels

    @property
    def layers(self) -> LayerTable:
        """Name, shape, channel axis, kind, whether it is a cut, and average mass of every layer."""
        return averaged([R.layers for R in self.contrasts], self._weights.tolist())

    def check(self, *, strict: bool = True) -> tuple[Check, ...]:
        """The certificates of all contrasts."""
        return tuple(R.check(strict=strict) for R in self.contrasts)

    def release(self) -> None:
        """Forgets kept messages and columns; the next question computes them again."""
        for R in self.contrasts:
            R.release()

    def describe(self) -> dict[str, Any]:
        """Everything about the contrasts that a file should say, as plain data."""
        return {"average": "mean in units of the output", "contrasts": [R.describe() for R in self.contrasts]}

    def __repr__(self) -> str:
        return as_text("normalized relevance measure against several references", self._rows())

    def _repr_html_(self) -> str:
        return as_html("normalized relevance measure against several references", self._rows())

    def _rows(self) -> FactRows:
        inner = self._first.inner
        first = zip(self.here[:4].tolist(), self.there[:4].tolist(), self.value[:4].tolist(), strict=True)
        shown = "; ".join(f"{here:.4g} - {there:.4g} = {gap:.4g}" for here, there, gap in first)
        return [
            ("samples", str(len(self))),
            ("references", str(len(self.contrasts))),
            ("explains", outputs_text(inner.target, inner.names, self.samples)),
            (
                "difference",
                f"{shown}{' ...' if len(self) > 4 else ''}, the output here less the references' mean",
            ),
            ("options", options_text(inner.network)),
        ]
