"""Tokens: where everything that a model adds up for one token has become one tensor, and where they go from there."""

from __future__ import annotations

import math
from collections.abc import Sequence

from nrm.capture import Combine, Node, Source, Tape, through
from nrm.errors import QuestionError
from nrm.operators import Centering, Dense, Expand, LinearMap, Masking, Matmul, Permute, Place, Reduce, Reshape, Slice

TokenLine = tuple[int, int]
"""The axis along which tokens lie, and how many rows of tokens lie on it one after the other."""


def find_tokens(tape: Tape, reached: Sequence[bool]) -> Node:
    """The tensor in which all embeddings of a token (its word, its position, its type) have been added up.

    It is looked for from every embedding on, through sums with other embeddings. A model that has one embedding, or
    that does not add them token by token, has the tokens of that one.
    """
    begin = [node for node in tape.sources if node.op.kind == "embedding" and reached[node.index]]
    begin = begin or [tape.nodes[i] for i in tape.inputs if reached[i]]
    found = {node.index: node for node in (join_embeddings(tape, reached, first) for first in begin)}
    tokens = [node for node in found.values() if len(node.layer_shape) == 2 and node.channel is not None]
    if len(tokens) == 1:
        return tokens[0]
    if tokens:
        raise QuestionError(
            "the model reads several sequences of tokens", got=", ".join(repr(node.name) for node in tokens),
            hint=f"R[{tokens[0].name!r}].positions; R.parts has all of them",
        )  # fmt: skip
    raise QuestionError(
        "the input is not a sequence of tokens", got=", ".join(f"{n.name!r} of shape {n.layer_shape}" for n in begin),
        expected="integers, or one vector for each position", hint="R.input.positions",
    )  # fmt: skip


def join_embeddings(tape: Tape, reached: Sequence[bool], first: Node) -> Node:
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
    return same and step.op.kind in ("add", "scale") and all(_is_embedding(tape, n) for n in others)


def _is_embedding(tape: Tape, node: Node) -> bool:
    """Whether a tensor is an embedding or a constant, or a sum of such."""
    if isinstance(node.op, Source):
        return node.op.kind != "input"
    added = isinstance(node.op, Combine) and node.op.kind in ("add", "scale", "move")
    return added and all(_is_embedding(tape, tape.nodes[i]) for i in node.inputs)


# ---- where tokens go -------------------------------------------------------------------------------------------------


def follow_tokens(tape: Tape, begin: Node) -> dict[int, int]:
    """The axis of tokens in every tensor that has one position for each of them, in their order.

    They are followed from the tensor ``begin`` on through steps that work position by position, movements and
    attention, whose results lie at the queries. What turns tokens round, joins them or picks some ends the line.
    """
    axis = next(a for a in range(begin.ndim) if a not in (begin.sample, begin.channel))
    count, lines = begin.shape[axis], dict.fromkeys(_summed(tape, begin), (axis, 1))
    for node in tape.nodes[begin.index + 1 :]:
        found = {line for line in _lines(node, lines, count) if line is not None}
        if len(found) == 1:
            lines[node.index] = found.pop()
    return {i: axis for i, (axis, rows) in lines.items() if rows == 1}


def _summed(tape: Tape, node: Node) -> list[int]:
    """A sum of embeddings, and all tensors of its shape that it is made of, token by token."""
    op, found = node.op, [node.index]
    if isinstance(op, Combine) and op.kind in ("add", "scale"):
        for i, term in zip(node.inputs, op.terms, strict=True):
            if term.move is None and tape.nodes[i].shape == node.shape:
                found += _summed(tape, tape.nodes[i])
    return found


def _lines(node: Node, lines: dict[int, TokenLine], count: int) -> list[TokenLine | None]:
    """Where tokens lie in a tensor by each of the tensors that it reads."""
    op, below = node.op, [lines.get(i) for i in node.inputs]
    if op.kind == "matmul" and len(below) > 1:  # the halves of a product of matrices: the first one has the queries
        return below[:1] if below[0] is not None else below
    maps = op.maps(len(below))
    if maps is None:
        return []
    moves = op.is_local or all(op.is_one_to_one(position) for position in range(len(below)))
    follow = _moved if moves else _mapped
    return [follow(map, line, count) for map, line in zip(maps, below, strict=True)]


def _mapped(map: LinearMap | None, line: TokenLine | None, count: int) -> TokenLine | None:
    """Where tokens lie behind weights and maxima: what mixes channels leaves them where they are."""
    if line is None or map is None:
        return None
    if isinstance(map, Centering):
        return line
    if isinstance(map, Reduce):
        return _moved(map, line, count)
    last = line[0] == len(map.inside) - 1
    if isinstance(map, Dense):
        return None if last else line
    if isinstance(map, Matmul):
        contracted = line[0] == len(map.inside) - 2 if map.left else last
        return None if contracted else (line[0] + len(map.outside) - len(map.inside), line[1])
    return None


def _moved(move: LinearMap | None, line: TokenLine | None, count: int) -> TokenLine | None:
    """Where tokens lie behind a movement that keeps all of them in their order."""
    if line is None or move is None:
        return line
    axis, rows = line
    if isinstance(move, Reshape):
        before = math.prod(move.inside[:axis]) * rows
        for d, size in enumerate(move.outside):
            above = math.prod(move.outside[:d])
            if size > 1 and above * size == before * count and above and before % above == 0:
                return d, before // above
        return None
    if not isinstance(move, Permute | Expand | Slice | Place | Reduce | Masking):
        return None
    there = through(move, axis)
    return None if there is None or move.outside[there] != rows * count else (there, rows)
