"""Tokens: where everything that a model adds up for one token has become one tensor."""

from __future__ import annotations

from collections.abc import Sequence

from nrm.capture import Combine, Node, Source, Tape
from nrm.errors import QuestionError


def find_tokens(tape: Tape, reached: Sequence[bool]) -> Node:
    """The tensor in which all embeddings of a token (its word, its position, its type) have been added up.

    It is looked for from every embedding on, through sums with other embeddings. A model that has one embedding, or
    that does not add them token by token, has the tokens of that one.
    """
    begin = [node for node in tape.sources if node.op.kind == "embedding" and reached[node.index]]
    begin = begin or [tape.nodes[i] for i in tape.inputs if reached[i]]
    found = {node.index: node for node in (_join(tape, reached, first) for first in begin)}
    tokens = [node for node in found.values() if len(node.layer_shape) == 2 and node.channel is not None]
    if len(tokens) == 1:
        return tokens[0]
    if tokens:
        raise QuestionError(
            "the model reads several sequences of tokens", got=", ".join(repr(node.name) for node in tokens),
            hint=f"R[{tokens[0].name!r}].positions",
        )  # fmt: skip
    raise QuestionError(
        "the input is not a sequence of tokens", got=", ".join(f"{n.name!r} of shape {n.layer_shape}" for n in begin),
        expected="integers, or one vector for each position", hint="R.input.positions",
    )  # fmt: skip


def _join(tape: Tape, reached: Sequence[bool], first: Node) -> Node:
    """The last sum of embeddings that an embedding goes into; itself if there is none."""
    at = found = first
    while True:
        readers = [i for i in tape.consumers[at.index] if reached[i]]
        step = tape.nodes[readers[0]] if len(readers) == 1 else None
        if step is None or not isinstance(step.op, Combine) or not _keeps_tokens(tape, step, at):
            return found
        found, at = (step if step.op.joins else found), step


def _keeps_tokens(tape: Tape, step: Node, at: Node) -> bool:
    """Whether a step scales tokens, or adds nothing but other embeddings to them."""
    same = (step.layer_shape, step.sample, step.channel) == (at.layer_shape, at.sample, at.channel)
    others = [tape.nodes[i] for i in step.inputs if i != at.index]
    return same and getattr(step.op, "kind", "") in ("add", "scale") and all(_is_embedding(tape, n) for n in others)


def _is_embedding(tape: Tape, node: Node) -> bool:
    """Whether a tensor is an embedding or a constant, or a sum of such."""
    if isinstance(node.op, Source):
        return node.op.kind != "input"
    added = isinstance(node.op, Combine) and node.op.kind in ("add", "scale", "move")
    return added and all(_is_embedding(tape, tape.nodes[i]) for i in node.inputs)
