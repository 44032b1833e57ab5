"""What can be asked: the arguments of a question, read and checked before anybody answers it."""

from __future__ import annotations

from collections.abc import Sequence

from nrm.errors import QuestionError
from nrm.measure.events import needs_track
from nrm.questions import Formula, Layer, Partition, Set, Stack

Argument = Layer | Set | Partition | Stack | Formula


def read_question(
    arguments: Sequence[Argument], given: Argument | Sequence[Argument] | None, some: bool = True
) -> list[Argument]:
    """The arguments of a question (``some``: at least one), the conditions last."""
    if some and not arguments:
        raise QuestionError("nothing was asked", hint="R(R['layer']), R(a.channel(3), b.channels), ...")
    if given is not None and not isinstance(given, Argument | list | tuple):
        name: object = given
        raise QuestionError(
            "not a condition", got=f"{type(given).__name__}: {given!r}"[:120],
            expected="a set, a partition, or a list of them",
            hint=f"given=R[{name!r}].channel(3)" if isinstance(name, str) else None,
        )  # fmt: skip
    conditions = [given] if isinstance(given, Argument) else list(given or [])
    for argument in (*arguments, *conditions):
        refuse_text(argument)
    return [*arguments, *conditions]


def refuse_text(argument: object) -> None:
    """A layer is asked about by what ``R[...]`` gives for its name, not by the name."""
    if isinstance(argument, str):
        raise QuestionError(
            "not something that can be asked about", got=f"str: {argument!r}"[:120],
            expected="a layer R['name'], a set (.channel(3), [...]), a partition (.channels), or a formula",
            hint=f"R[{argument[:80]!r}] is the layer of that name; nrm.query(text, name=set) reads a formula",
        )  # fmt: skip


def sets_of(asked: Sequence[Argument]) -> list[Set]:
    """The sets of a question."""
    return [s for a in asked for s in (a.sets if isinstance(a, Formula) else [a]) if isinstance(s, Set)]


def asked_sample(asked: Sequence[Argument], samples: range) -> int | None:
    """The one sample that sets are about; None if they name none."""
    named = {s.sample for s in sets_of(asked)} - {None}
    if not named:
        return None
    if len(named) > 1 or not named <= set(samples):
        raise QuestionError(
            "the sets are about other samples", got=f"samples {sorted(named)}",  # type: ignore[type-var]
            expected=f"one sample of {list(samples)}",
        )  # fmt: skip
    return next(iter(named))


def refuse_free(asked: Sequence[Argument], conditions: Sequence[Argument]) -> None:
    """Refuses what flows cannot be asked about."""
    if any(not isinstance(c, Set) for c in conditions):
        got = ", ".join(map(repr, conditions))
        raise QuestionError("the condition of flows is a set", got=got, hint="given=a.channel(3)")
    if any(map(needs_track, asked)):
        got = ", ".join(str(a) for a in asked if needs_track(a))
        raise QuestionError("flows take sets and partitions, each of one tensor", got=got,
                            hint="R(a.channels, b.channels, formula) is the whole table")  # fmt: skip
    if any(isinstance(a, Stack) for a in asked):
        raise QuestionError("flows take one block of every layer", got="a stack", hint="R.flows(*s.partitions)")
    if not any(isinstance(a, Layer | Partition) for a in asked):
        raise QuestionError(
            "flows need partitions", got=", ".join(map(repr, asked)), hint="R.flows(a.channels, b.channels)"
        )
