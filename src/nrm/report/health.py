"""The certificate of a measure in plain words: what each number means, and whether it is fine."""

from __future__ import annotations

from typing import Any

from nrm.measure import (
    CANCELLATION,
    PRECISION_RAISE,
    PRECISION_WARN,
    SINK_RAISE,
    SINK_WARN,
    VARIATION_WARN,
    Check,
    balance,
    is_beyond,
)
from nrm.numbers import percent

REASONS = {
    "mass": "what flows in does not add up to 100 %",
    "lost in sinks": "a part of the relevance was lost on the way",
    "total variation": "what speaks for the decision and what speaks against it are much larger than the decision,"
    " and cancel; trust the order of the parts more than their sizes",
    "precision lost": "rounding has changed the numbers",
}
"""Why numbers are to be used with care or not at all, by the fact that says so."""


def health(check: Check) -> dict[str, Any]:
    """The certificate of one sample: a level, the verdict, and facts with a level, a name, a number and its meaning."""
    facts = [*_facts(check)]
    level = "bad" if check.errors else "care" if check.cautions or _cancels(check) else "good"
    return {
        "level": level, "said": _said(check, level, facts), "verdict": check.verdict, "facts": facts,
        "notes": list(check.notes),
    }  # fmt: skip


def _cancels(check: Check) -> bool:
    """Whether what speaks for and against is so much larger than the decision that shares mislead."""
    return is_beyond(check.biases[0] + check.offsets[0]) or _variation(check)[1] > CANCELLATION


def _variation(check: Check) -> tuple[str | None, float]:
    """The layer with the largest total variation, and that."""
    worst = max(check.variation, key=lambda k: check.variation[k][0], default=None)
    return worst, 1.0 if worst is None else check.variation[worst][0]


def _said(check: Check, level: str, facts: list[dict[str, str]]) -> str:
    """The answer for a person: yes, with care or no, and why."""
    if level == "good":
        return "Yes. Everything adds up to 100 %, and nothing was lost on the way."
    found = [REASONS[f["name"]] for f in facts if f["level"] == level and f["name"] in REASONS]
    if not found and level == "care" and _cancels(check):
        found = [REASONS["total variation"]]
    why = "; ".join(found) or ("the check found an error" if level == "bad" else "the check has a reservation")
    return f"{'No' if level == 'bad' else 'With care'}: {why}."


def _facts(check: Check) -> list[dict[str, str]]:
    worst, variation = _variation(check)
    precision = check.precision[0]
    cut = abs(check.mass[0] - 1) if check.cut_error is None else check.cut_error
    off = f"no layer is off by more than {cut:.1g}"
    if not check.measured:
        off = f"at the inputs it is off by {cut:.1g}, layers were not measured"
    facts = [
        _fact("mass", _level(cut, 1e-3, PRECISION_RAISE), percent(check.mass[0], 2),
              f"Everything that flows in should add up to 100 %; {off}."),
        _fact("lost in sinks", _level(check.sink[0], SINK_WARN, SINK_RAISE), percent(check.sink[0], 2),
              "Relevance that arrived at columns without a sum, which could not be shared."),
        _fact("total variation", _level(variation, VARIATION_WARN, float("inf")), f"{variation:.3g}",
              "1 means that nothing cancels; more means that relevance for and against the output is weighed up"
              + (f", most of all in {worst}." if worst and variation > 1.05 else ".")),
        _fact("precision lost", _level(precision, PRECISION_WARN, PRECISION_RAISE), f"{precision:.1g}",
              "How much of the relevance changes if every sum is rounded differently" + ("." if check.measured
              else " (an estimate).")),
    ]  # fmt: skip
    if check.measured:
        text = (
            f"{check.negative[0]} of {check.reached} neurons on the way have inputs that sum below zero, with this"
            " share of the weight; dividing by that sum turns signs. It matters where the total variation is large."
        )
        facts.append(_fact("negative columns", "good", percent(check.negative[1], 2), text))
    if check.biases[0] or check.offsets[0]:
        share = check.biases[0] + check.offsets[0]
        text = "Walks that begin at constants of the network, not at the input; they are not in the heat map."
        if is_beyond(share):
            text += f" Shares beyond 100 % cancel: {balance(share)}."
        facts.append(_fact("in biases", "good", percent(share, 1), text))
    if check.moved is not None:
        text = "How far the outputs moved against the model's own precision."
        facts.append(_fact("outputs moved", "good", f"{check.moved[0]:.1g}", text))
    return facts


def _fact(name: str, level: str, number: str, text: str) -> dict[str, str]:
    return {"name": name, "level": level, "number": number, "text": text}


def _level(number: float, care: float, bad: float) -> str:
    return "bad" if not number <= bad else "care" if number > care else "good"
