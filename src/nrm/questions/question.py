"""Questions as values: what is asked of a measure, read and checked once, before anybody answers it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from nrm.errors import QuestionError
from nrm.questions.formula import ATOMS, Formula
from nrm.questions.frame import Frame
from nrm.questions.reading import Fixed
from nrm.questions.sweep import Site
from nrm.questions.values import Layer, Partition, Set, Stack, not_asked

Argument = Layer | Set | Partition | Stack | Formula
Kind = TypeVar("Kind")


class Asked(Protocol):
    """What can be asked: a measure, or the difference of two."""

    @property
    def samples(self) -> range: ...

    @property
    def labels(self) -> dict[str, Any]: ...

    def __len__(self) -> int: ...

    def __call__(self, *arguments: Argument, given: Argument | Sequence[Argument] | None = None) -> Tensor: ...

    def ask(self, question: Question) -> Tensor: ...

    def sample(self, i: int) -> Asked: ...

    def resolve(self, layer: Layer) -> tuple[Site, Frame]: ...

    def values(self, layer: Layer | str) -> Tensor: ...


class Shares(NamedTuple):
    """Every walk is shared out evenly over its layers, or over these cuts; what falls to the sets counts."""

    sets: tuple[Set, ...]
    cuts: tuple[tuple[Layer, ...], ...] | None = None


WeightMap = tuple[tuple[Layer | Set, Fixed], ...]
"""Numbers for layers and sets: every walk counts their sum over the neurons that it visits."""


@dataclass(frozen=True)
class Question:
    """What is asked: sets and formulas as events, layers and partitions as axes, a condition, and how walks count.

    A value without tensors of a network: written before any measure exists, compared, stored, and handed to every
    measure. ``weights`` are numbers or :class:`Shares`, None where every walk counts as it is; ``apart`` tells all
    combinations of visited and avoided events apart instead of asking for all of them at once.

    >>> print(Question.read([Layer("conv").channels, Layer("input").all], given=Layer("fc").channel(3)))
    conv.channels, input.all | fc.channel(3)
    """

    arguments: tuple[Argument, ...]
    given: tuple[Argument, ...] = ()
    weights: WeightMap | Shares | None = None
    apart: bool = False

    @classmethod
    def read(
        cls, arguments: Sequence[Argument], given: Argument | Sequence[Argument] | None = None, some: bool = True
    ) -> Question:
        """A question as a user writes it (``some``: about at least one argument)."""
        if some and not arguments:
            raise QuestionError("nothing was asked", hint="R(R['layer']), R(a.channel(3), b.channels), ...")
        return cls(tuple(map(no_text, arguments)), tuple(map(no_text, _conditions(given))))

    @classmethod
    def combinations(cls, events: Sequence[Set | Formula]) -> Question:
        """All combinations of visiting and avoiding some events, each by itself."""
        if not events or len(events) > ATOMS:
            raise QuestionError(
                "dividends tell a few events apart", got=f"{len(events)} events", expected=f"1 to {ATOMS} of them",
                hint="nrm.visits(S1, S2, ...) of several sets is one event",
            )  # fmt: skip
        for event in events:
            _visited(event)
        return cls(tuple(events), apart=True)

    @classmethod
    def weighted(
        cls, weights: Mapping[Layer | Set, Any], arguments: Sequence[Argument],
        given: Argument | Sequence[Argument] | None,
    ) -> Question:  # fmt: skip
        """Walks that count the sum of the weights of the neurons they visit."""
        if not (weights and isinstance(weights, Mapping)):
            raise QuestionError("no weights", got=repr(weights)[:120], expected="{layer or set: number or tensor}")
        read = tuple((_weighable(key), _numbers(key, values)) for key, values in weights.items())
        return replace(cls.read(arguments, given, some=False), weights=read)

    @property
    def asked(self) -> tuple[Argument, ...]:
        """Everything that is named, the condition last."""
        return (*self.arguments, *self.given)

    @property
    def condition(self) -> Question:
        """The question about the condition alone."""
        return Question(self.given)

    @property
    def joint(self) -> Question:
        """The question about arguments and condition together."""
        return replace(self, arguments=self.asked, given=())

    @property
    def events(self) -> tuple[Set | Formula, ...]:
        """What is fixed."""
        return tuple(a for a in self.asked if isinstance(a, Set | Formula))

    @property
    def axes(self) -> tuple[Layer | Partition | Stack, ...]:
        """What is free, and becomes an axis of the answer."""
        return tuple(a for a in self.asked if not isinstance(a, Set | Formula))

    @cached_property
    def sets(self) -> tuple[Set, ...]:
        """Every set that is named: by itself, in a formula, or with a weight."""
        named = [s for a in self.asked for s in (a.sets if isinstance(a, Formula) else [a]) if isinstance(s, Set)]
        if isinstance(self.weights, Shares):
            return (*named, *self.weights.sets)
        return (*named, *(key for key, _ in self.weights or () if isinstance(key, Set)))

    @property
    def is_tracked(self) -> bool:
        """Whether walks have to be followed by what they have visited: formulas, several steps, weights."""
        return self.apart or self.weights is not None or any(map(needs_track, self.asked))

    @property
    def stacks(self) -> bool:
        """Whether an argument or a condition is a stack of partitions."""
        return any(isinstance(a, Stack) for a in self.asked)

    @property
    def spread(self) -> int | None:
        """The place of the first axis of steps; each step is a tensor of its own."""
        return next((k for k, a in enumerate(self.asked) if isinstance(a, Partition) and spans_steps(a)), None)

    def sample(self, samples: range) -> int | None:
        """The one sample that sets are about; None if they name none."""
        named = {s.sample for s in self.sets} - {None}
        if not named:
            return None
        if len(named) > 1 or not named <= set(samples):
            raise QuestionError(
                "the sets are about other samples", got=f"samples {sorted(named)}",  # type: ignore[type-var]
                expected=f"one sample of {list(samples)}",
            )  # fmt: skip
        return next(iter(named))

    def without_samples(self) -> Question:
        """The question whose sets do not say what sample they are about."""
        free = [[replace(a, sample=None) if isinstance(a, Set) else a for a in side] for side in
                (self.arguments, self.given)]  # fmt: skip
        return replace(self, arguments=tuple(free[0]), given=tuple(free[1]))

    def replaced(self, position: int, by: Argument) -> Question:
        """The question with another argument (or condition, as they are numbered in ``asked``) in place of one."""
        asked, count = [*self.asked], len(self.arguments)
        asked[position] = by
        return replace(self, arguments=tuple(asked[:count]), given=tuple(asked[count:]))

    def refuse_for_flows(self) -> None:
        """Refuses what flows cannot be asked about."""
        if any(not isinstance(c, Set) for c in self.given):
            got = ", ".join(map(repr, self.given))
            raise QuestionError("the condition of flows is a set", got=got, hint="given=a.channel(3)")
        if self.is_tracked:
            got = ", ".join(str(a) for a in self.asked if needs_track(a))
            raise QuestionError("flows take sets and partitions, each of one tensor", got=got,
                                hint="R(a.channels, b.channels, formula) is the whole table")  # fmt: skip
        if self.stacks:
            raise QuestionError("flows take one block of every layer", got="a stack", hint="R.flows(*s.partitions)")
        if not self.axes:
            raise QuestionError(
                "flows need partitions", got=", ".join(map(repr, self.asked)), hint="R.flows(a.channels, b.channels)"
            )

    def __str__(self) -> str:
        text = ", ".join(map(str, self.arguments))
        text += f" | {', '.join(map(str, self.given))}" if self.given else ""
        if isinstance(self.weights, Shares):
            over = "" if self.weights.cuts is None else f" over {len(self.weights.cuts)} cuts"
            return f"additive relevance of {', '.join(map(str, self.weights.sets))}{over}{text and f' at {text}'}"
        if self.weights is not None:
            return f"weights of {', '.join(str(key) for key, _ in self.weights)}{text and f' with {text}'}"
        return f"all combinations of {text}" if self.apart else text


def needs_track(argument: Any) -> bool:
    """Whether an argument is an event that a set of one tensor cannot express."""
    return isinstance(argument, Formula) or (isinstance(argument, Set) and spans_steps(argument))


def spans_steps(argument: Any) -> bool:
    """Whether an argument is about several steps of a layer."""
    if isinstance(argument, Partition):
        return argument.kind == "steps"
    return isinstance(argument, Set) and argument.expression[0] == "steps"


def no_text(argument: Kind) -> Kind:
    """An argument, unless it is a name: a layer is asked about by what ``R[...]`` gives for its name."""
    if isinstance(argument, str):
        raise not_asked(argument)
    return argument


def _conditions(given: Any) -> list[Argument]:
    if given is not None and not isinstance(given, Argument | list | tuple):
        raise QuestionError(
            "not a condition", got=f"{type(given).__name__}: {given!r}"[:120],
            expected="a set, a partition, or a list of them",
            hint=f"given=R[{given!r}].channel(3)" if isinstance(given, str) else None,
        )  # fmt: skip
    return [given] if isinstance(given, Argument) else list(given or [])


def _visited(event: Set | Formula) -> tuple[Set, ...]:
    """The sets of an event that is visiting any of them."""
    if isinstance(event, Set):
        return (event,)
    if getattr(event, "expression", [""])[0] == "visits":
        return event.sets
    raise QuestionError(
        "dividends are of sets", got=repr(event)[:120], expected="sets, or nrm.visits(...) of several",
        hint="R(formula) is the relevance of a formula",
    )  # fmt: skip


def visited_sets(question: Question) -> list[tuple[Set, ...]]:
    """The sets of every event of a question that tells all combinations apart."""
    return [_visited(event) for event in question.events]


def _weighable(key: Any) -> Layer | Set:
    if isinstance(key, Layer | Set):
        return key
    name = f"{{R[{key!r}]: 1.0}}" if isinstance(key, str) else "{a.channel(3): 1.0}"
    raise QuestionError("weights are for layers and sets", got=repr(key)[:120], hint=name)


def _numbers(key: Any, values: Any) -> Fixed:
    """The weights of a layer or a set as finite numbers."""
    where = str(key if isinstance(key, Layer) else key.layer)
    try:
        whole = isinstance(values, Tensor) and values.is_floating_point()
        numbers = torch.as_tensor(values, dtype=None if whole else torch.float64).detach().clone()
    except (TypeError, ValueError, RuntimeError):
        raise QuestionError("weights cannot be read as numbers", where=where, got=repr(values)[:120]) from None
    if not bool(numbers.isfinite().all()):
        raise QuestionError("weights are finite", where=where, got="nan or infinity")
    return Fixed(numbers)
