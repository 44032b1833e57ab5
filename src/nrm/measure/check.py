"""The certificate of a measure, as a value: what was found, its verdict, and how it is shown."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from nrm.errors import CaptureError, MassError, NrmError, PrecisionError, warn
from nrm.measure.verdict import NEAR_ZERO, OTHER_OUTPUT, balance, constants, is_beyond
from nrm.numbers import percent
from nrm.tables import SAMPLE, Results, Tabled

CANCELLATION = 20.0
"""Above this total variation the verdict speaks of cancellation; with z+ it is 2 to 8."""


@dataclass(frozen=True)
class Check(Tabled):
    """What a check found; numbers are per sample. ``ok`` is the verdict per sample, ``verdict`` says it in words.

    ``mass`` is that of the input cut, ``cuts`` that of the cut through every layer. ``negative`` and ``zero`` are the
    ``reached`` columns with such a sum: how many, and their share of the weight that arrives at columns. ``condition``
    is how many times larger than the explained output its parts are, for samples in trouble; 0 if it is lost.
    ``differs`` is the first layer that does not come out when the tape is replayed, and by how much of its largest
    entry; ``rounding`` are the samples that rounding makes unusable; ``constants`` is the mass that
    begins at constants made from the input by ways that cannot be followed (``.item()``): a leak, as sinks are.
    """

    mass: tuple[float, ...]
    cuts: dict[str, tuple[float, ...]]
    sinks: dict[str, tuple[float, ...]]
    biases: tuple[float, ...]
    offsets: tuple[float, ...]
    variation: dict[str, tuple[float, ...]]
    reached: int
    negative: tuple[int, float]
    zero: tuple[int, float]
    ties: tuple[int, int]
    precision: tuple[float, ...]
    measured: bool
    moved: tuple[float, ...] | None
    value: tuple[float, ...]
    notes: tuple[str, ...] = ()
    errors: tuple[tuple[int, str], ...] = ()
    cautions: tuple[tuple[int | None, str], ...] = ()
    remedies: tuple[str, ...] = ()
    condition: tuple[float, ...] = ()
    differs: tuple[str, float] | None = None
    rounding: frozenset[int] = frozenset()
    constants: dict[str, tuple[float, ...]] = field(default_factory=dict)

    @property
    def ok(self) -> tuple[bool, ...]:
        """Whether each sample's numbers can be used."""
        bad = {sample for sample, _ in self.errors}
        return tuple(i not in bad for i in range(len(self.mass)))

    @property
    def worst_cut(self) -> str | None:
        """The layer whose cut has the mass farthest from 1."""
        return max(self.cuts, key=lambda name: max(abs(m - 1) for m in self.cuts[name]), default=None)

    @property
    def cut_error(self) -> float | None:
        """How far that mass is from 1; None if it was not measured."""
        if not self.measured:
            return None
        return max((abs(m - 1) for masses in self.cuts.values() for m in masses), default=0.0)

    @property
    def sink(self) -> tuple[float, ...]:
        """The mass in sinks, per sample."""
        return tuple(sum(abs(m[i]) for m in self.sinks.values()) for i in range(len(self.mass)))

    @property
    def verdict(self) -> str:
        """One paragraph in plain words, with remedies."""
        if self.errors:
            return "Do not use these numbers. " + " ".join(dict.fromkeys(text for _, text in self.errors))
        if self.cautions:
            return "Usable with care. " + " ".join(dict.fromkeys(text for _, text in self.cautions))
        scope = "measured" if self.measured else "light check"
        text = f"The numbers can be trusted ({scope}): mass holds, no leak, precision lost {max(self.precision):.1g}."
        return " ".join([text, *self._warnings()])

    def _warnings(self) -> Iterator[str]:
        """What numbers that hold do not say."""
        worst = max(self.variation, key=lambda name: max(self.variation[name]), default=None)
        largest = 1.0 if worst is None else max(self.variation[worst])
        if largest > CANCELLATION:
            other = [text for text in self.remedies if text.startswith("rules")]
            yield (
                f"But relevances of both signs cancel: in {worst} their absolute values add up to {largest:.3g} where"
                " the whole is 1, so that single ones can be larger than the whole; ask for larger sets"
                f"{''.join(f', or take {text}' for text in other)}."
            )
        yield from constants(self._constant)

    @property
    def _constant(self) -> tuple[float, ...]:
        """The mass in biases and offsets, per sample."""
        return tuple(b + o for b, o in zip(self.biases, self.offsets, strict=True))

    def speak(self) -> None:
        """Raises if the numbers are noise, warns if they deserve a second look."""
        if self.errors:
            sample, text = self.errors[0]
            raise self._kind(sample)(
                "the relevances of this measure cannot be trusted", where=f"sample {sample}", got=text,
                hint="; ".join(["R.check(strict=False) shows the details", *self._help(sample)]),
            )  # fmt: skip
        for text in dict.fromkeys(text for sample, text in self.cautions if sample is not None):
            warn(text)

    def _kind(self, sample: int) -> type[NrmError]:
        """The kind of a sample's error: rounding is to blame where that was measured."""
        if self.differs is not None:
            return CaptureError
        lost = bool(self.condition) and self.condition[sample] == 0
        return PrecisionError if sample in self.rounding and not lost else MassError

    def _help(self, sample: int) -> Iterator[str]:
        """What may help a sample that is refused: nothing that is in use already."""
        if self.differs is not None:
            return
        condition = self.condition[sample] if self.condition else 1.0
        near = condition == 0 or condition > NEAR_ZERO
        if near:
            yield OTHER_OUTPUT
        few = [text for text in self.remedies if not near or (text.startswith("dtype") and self.value[sample] != 0)]
        if few and sample in self.rounding:
            yield f"{', '.join(few)} may help"

    def sample(self, i: int) -> Check:
        """The certificate of one sample. Counts of columns and ties stay those of the batch."""

        def only(values: tuple[float, ...]) -> tuple[float, ...]:
            return values[i : i + 1]

        return replace(
            self, mass=only(self.mass), cuts={k: only(v) for k, v in self.cuts.items()},
            sinks={k: only(v) for k, v in self.sinks.items()}, biases=only(self.biases),
            offsets=only(self.offsets), variation={k: only(v) for k, v in self.variation.items()},
            precision=only(self.precision), moved=None if self.moved is None else only(self.moved),
            value=only(self.value), condition=only(self.condition),
            errors=tuple((0, text) for s, text in self.errors if s == i),
            cautions=tuple((None if s is None else 0, text) for s, text in self.cautions if s in (None, i)),
            rounding=frozenset({0} if i in self.rounding else ()),
            constants={k: only(v) for k, v in self.constants.items()},
        )  # fmt: skip

    def describe(self) -> dict[str, Any]:
        """The certificate as plain data."""
        return {
            "ok": list(self.ok), "verdict": self.verdict, "mass": list(self.mass), "cut_error": self.cut_error,
            "cuts": {k: list(v) for k, v in self.cuts.items()}, "reached_columns": self.reached,
            "sinks": {k: list(v) for k, v in self.sinks.items()}, "biases": list(self.biases),
            "offsets": list(self.offsets), "variation": {k: list(v) for k, v in self.variation.items()},
            "negative_columns": list(self.negative), "zero_columns": list(self.zero),
            "precision": list(self.precision), "measured": self.measured,
            "moved": None if self.moved is None else list(self.moved), "ties": list(self.ties),
            "value": list(self.value), "notes": list(self.notes),
            "differs": None if self.differs is None else list(self.differs),
            "constants": {k: list(v) for k, v in self.constants.items()},
        }  # fmt: skip

    def table(self) -> Results:
        """The numbers of every sample (``"mass"``, ``"precision"`` and so on), and of every layer and sample.

        ``"cut mass"`` is the mass of the cut through a layer, ``"variation"`` the total variation of a layer.
        """
        numbers: dict[str, Sequence[float]] = {
            "mass": self.mass, "sinks": self.sink, "biases": self.biases, "offsets": self.offsets,
            "precision lost": self.precision, "value": self.value, "ok": self.ok,
        }  # fmt: skip
        numbers |= {} if self.moved is None else {"moved": self.moved}
        tensors = {name: torch.tensor(row) for name, row in numbers.items()}
        axes: dict[str, tuple[str, ...]] = dict.fromkeys(tensors, (SAMPLE,))
        labels = {}
        for name, axis, rows in (("cut mass", "cut", self.cuts), ("variation", "layer", self.variation)):
            if rows:
                tensors[name], axes[name] = torch.tensor(list(rows.values())), (axis, SAMPLE)
                labels[axis] = tuple(rows)
        return Results(tensors, axes, labels=labels)

    def __repr__(self) -> str:
        return "\n".join(f"{name:<22} {text}" for name, text in self._rows())

    def _repr_html_(self) -> str:
        left = "style='text-align:left'"
        rows = "".join(
            f"<tr><th {left}>{html.escape(n)}</th><td {left}>{html.escape(t)}</td></tr>" for n, t in self._rows()
        )
        return f"<table><caption>certificate</caption><tbody>{rows}</tbody></table>"

    def _rows(self) -> list[tuple[str, str]]:
        rows = [("verdict", self.verdict)]
        if len(self.ok) > 1:
            bad = [i for i, ok in enumerate(self.ok) if not ok]
            not_these = f", not {_few(bad)}" if bad else ""
            rows.append(("samples", f"{len(self.ok) - len(bad)} of {len(self.ok)} usable{not_these}"))
        cut = "not measured" if self.cut_error is None else f"{self.cut_error:.2g} at {self.worst_cut}"
        sinks = "".join(f"; {name}: {_few(mass)}" for name, mass in list(self.sinks.items())[:4])
        rows += [
            ("mass of the input cut", _few(self.mass)),
            ("largest cut error", cut),
            ("mass in sinks", _few(self.sink) + sinks),
            ("mass in biases", _few(self.biases)),
            ("mass in offsets", _few(self.offsets)),
            *(("for and against", balance(share)) for share in self._constant[:1] if is_beyond(share)),
            ("total variation", self._variation_text()),
            ("negative columns", self._columns_text(self.negative)),
            ("zero columns", self._columns_text(self.zero)),
            ("ties of maxima", f"{self.ties[0]} of {self.ties[1]} reached" if self.measured else "not measured"),
            ("precision lost", _few(self.precision) + ("" if self.measured else " (estimated)")),
            ("replay of the tape", self._replay_text()),
        ]
        if self.constants:
            rows.insert(4, ("mass in constants", "; ".join(f"{k}: {_few(v)}" for k, v in self.constants.items())
                            + ", made from the input by ways that cannot be followed"))  # fmt: skip
        if self.moved is not None:
            rows.append(("outputs moved", f"{_few(self.moved)} of the largest, against the model's own precision"))
        if any(v < 0 for v in self.value):
            rows.append(("sign", "what is explained is negative: positive relevance argues for the negative value"))
        return rows + [("note", note) for note in self.notes]

    def _replay_text(self) -> str:
        if self.differs is not None:
            return f"{self.differs[0]!r} differs by {self.differs[1]:.2g} of its largest entry"
        return "every tensor has the value that the model computed" if self.measured else "not measured"

    def _variation_text(self) -> str:
        worst = max(self.variation, key=lambda k: max(self.variation[k]), default=None)
        return "-" if worst is None else f"{_few(self.variation[worst])} at {worst}"

    def _columns_text(self, facts: tuple[int, float]) -> str:
        if not self.measured:
            return "not measured"
        return f"{facts[0]} of {self.reached} reached, {percent(facts[1], 2)} of the weight"


def _few(values: Sequence[float]) -> str:
    return ", ".join(f"{v:.4g}" for v in values[:3]) + (" ..." if len(values) > 3 else "")
