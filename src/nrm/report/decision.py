"""What a network decided, as plain data, and what it decides without some of its neurons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from nrm.errors import QuestionError
from nrm.evaluate import contribution, occlusion, remove
from nrm.largest import largest
from nrm.measure import name_of, output_text, sign_text
from nrm.questions import Set

if TYPE_CHECKING:
    from nrm.measure import Measure

ALTERNATIVES = 5
"""How many classes are listed."""
REMOVED = ("zero", "average", "reference", "other")
"""What takes the place of removed neurons: 0, the mean of their channel, or their value in another run."""
MOST_TOGETHER = 5
"""Of more layers it is not asked what they do together: that takes a run for every subset of them."""


def decide(R: Measure) -> dict[str, Any]:
    """The explained output, the largest ones, and what sign means here."""
    target, sample = R.inner.target, R.samples[0]
    decision: dict[str, Any] = {
        "value": float(R.value[0]),
        "index": None,
        "alternatives": [],
        "sign": sign_text(target, R.samples),
    }
    if target.runs is not None:
        decision["runs"] = [float(run[sample]) for run in target.runs]
    if target.index is None:
        return {**decision, "name": str(target.spread)}
    flat = int(target.index[sample])
    decision["name"] = output_text(target, R.labels, flat, 0)
    if not target.shape:
        return decision
    width = target.shape[-1]
    scores, shares = read_scores(R, R.values("output")[0])
    best = list(dict.fromkeys([*largest(scores, ALTERNATIVES).tolist(), flat % width]))
    decision["index"], decision["classes"] = flat % width, width
    decision["alternatives"] = [
        {"index": i, "name": class_name(R, i), "value": float(scores[i]), "probability": float(shares[i])} for i in best
    ]
    return decision


def class_name(R: Measure, index: int) -> str:
    """What an output is called."""
    return name_of(R.labels, "output", index) or f"output {index}"


def read_scores(R: Measure, outputs: Tensor) -> tuple[Tensor, Tensor]:
    """The outputs of one sample beside the explained one, and as probabilities if they are none yet."""
    index = R.inner.target.index
    assert index is not None, "an explained output"
    width = outputs.shape[-1]
    scores = outputs.double().reshape(-1, width)[int(index[R.samples[0]]) // width]
    probable = float(scores.min()) >= 0 and abs(float(scores.sum()) - 1) < 1e-3
    return scores, scores if probable else scores.softmax(0)


def switch_off(R: Measure, events: Sequence[Set], value: str = "zero", other: Measure | None = None) -> dict[str, Any]:
    """What really happens when all of some sets are removed at once, as plain data.

    ``lost`` is the part of the explained output that is gone; ``together`` what several layers owe to each other, by
    inclusion and exclusion, which is what the relevance of a chain stands for. ``other`` is the measure of the input
    that ``value="other"`` takes values from.
    """
    given: Any = value if value in ("zero", "reference") else _values(R, events, value, other)
    loss, whole = float(occlusion(R, *events, value=given)[0]), float(R.value[0])
    begin = whole if R.inner.target.runs is None else float(R.inner.target.runs[0][R.samples[0]])
    found: dict[str, Any] = {
        "by": value,
        "before": begin,
        "after": begin - loss,
        "lost": loss / whole if whole else None,
    }
    if 2 <= len({event.layer for event in events}) == len(events) <= MOST_TOGETHER and whole:
        found["together"] = float(contribution(R, *events, value=given)[0]) / whole
    return found | {"classes": _classes(R, remove(R, *events, value=given)[0])}


def _classes(R: Measure, outputs: Tensor) -> list[dict[str, Any]]:
    """The explained class and what is predicted, before and after."""
    target = R.inner.target
    if target.index is None or not target.shape:
        return []
    (_, before), (_, after) = (read_scores(R, rows) for rows in (R.values("output")[0], outputs))
    index = int(target.index[R.samples[0]]) % target.shape[-1]
    listed = dict.fromkeys([index, int(before.argmax()), int(after.argmax())])
    return [
        {"index": i, "name": class_name(R, i), "before": float(before[i]), "after": float(after[i]),
         "predicted": i == int(after.argmax())}
        for i in listed
    ]  # fmt: skip


def _values(R: Measure, events: Sequence[Set], value: str, other: Measure | None) -> dict[str, Tensor]:
    """Values for every layer that something is removed from."""
    if value not in REMOVED or (value == "other") != (other is not None):
        raise QuestionError("no such value for removed neurons", got=repr(value)[:80], expected=", ".join(REMOVED))
    found = {}
    for event in events:
        frame, own = R.resolve(event.layer)[1], R.values(event.layer)[0]
        if other is not None:
            there = other.values(event.layer)[0]
            if there.shape != own.shape:
                raise QuestionError(
                    "the other input has another form", where=frame.label, got=str(tuple(there.shape)),
                    expected=str(tuple(own.shape)),
                )  # fmt: skip
            found[frame.label] = there
            continue
        axes = [axis for axis in range(own.ndim) if axis != frame.layer_channel]
        if frame.layer_channel is None or not axes:
            raise QuestionError("neurons without positions have no average", where=frame.label, expected="zero")
        found[frame.label] = own.mean(axes, keepdim=True).expand(own.shape)
    return found


__all__ = ["ALTERNATIVES", "REMOVED", "class_name", "decide", "read_scores", "switch_off"]
