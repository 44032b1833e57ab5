"""Attention by the names of layers: the step inside a module, and the queries, keys and values that it reads."""

from __future__ import annotations

from nrm.capture import AttentionStep, ReadBy, Tape, attention_reads, attention_step
from nrm.errors import QuestionError
from nrm.measure.edges import inside

NAMES = {"q": "queries", "k": "keys", "v": "values"}
READS = tuple(f".{word}" for word in NAMES)
"""How the names end of what an attention step reads."""


def only_attention(tape: Tape, name: str, asked: str) -> AttentionStep | None:
    """The attention step inside a layer; None if there is none, an error if there are several."""
    found = _find(tape, name)
    if len(found) > 1:
        some = ", ".join(repr(tape.nodes[step.product].name) for step in found[:8])
        raise QuestionError(
            f"layer {name!r} has {len(found)} attention steps", got=f"{name}.{asked}", expected=f"one of {some}",
            hint=f"R[{tape.nodes[found[0].product].name!r}].{asked}",
        )  # fmt: skip
    return found[0] if found else None


def _find(tape: Tape, name: str) -> list[AttentionStep]:
    """The attention steps inside a layer, or the layer itself if it is one, in the order of the forward pass."""
    here, top = tape.here, tape.find(name).index
    own = attention_step(here, top)
    if own is not None:
        return [own]
    within, seen, waiting, found = inside(tape, name), {top}, [top], list[AttentionStep]()
    while waiting:
        i = waiting.pop()
        step = attention_step(here, i)
        found += [] if step is None else [step]
        fresh = [j for j in here.nodes[i].inputs if j not in seen and within(here.nodes[j])]
        seen.update(fresh)
        waiting += fresh
    return sorted(found)


def find_read(tape: Tape, name: str) -> ReadBy | None:
    """What ``NAME.q``, ``NAME.k`` or ``NAME.v`` stands for; None if it is no such name, or that of a module."""
    stem, _, word = name.rpartition(".")
    base, _, call = stem.partition("#")
    known = base in tape.names and (not call or call.isdigit())
    if word not in NAMES or not known or name in tape.names:
        return None
    step = only_attention(tape, stem, word)
    if step is None:
        raise QuestionError(
            f"layer {stem!r} has no attention step", got=repr(name),
            expected="a module that multiplies a softmax with values that depend on the input",
        )  # fmt: skip
    found = attention_reads(tape.here, step)
    if word not in found:
        raise QuestionError(
            f"the {NAMES[word]} of layer {stem!r} are not known", got=repr(name),
            expected="scores that are one product of queries and keys", hint=f"R.find('{base}*') lists what is inside",
        )  # fmt: skip
    return found[word]
