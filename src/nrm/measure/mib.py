"""Circuits in the form of the MIB benchmark's circuit track: nodes ``input``, ``a0.h1``, ``m0``, ``logits``.

Branches with heads are ``a`` and a number, other branches ``m`` and a number, each counted from the bottom. Readers are
named with what they read: ``a1.h0<k>``. There, keys and values have as many heads as queries: an edge into a key that
several queries share is one edge for each of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from nrm.errors import QuestionError, ResultFileError
from nrm.questions import StreamEnd, feeds

LETTERS = ("q", "k", "v")


class MibNames:
    """The names of writers and readers in that form; a reader that several heads share has several."""

    def __init__(self, writers: Iterable[StreamEnd], readers: Iterable[StreamEnd]) -> None:
        self._writers, self._readers = list(writers), list(readers)
        branches: dict[bool, dict[tuple[str, int], int]] = {True: {}, False: {}}
        for writer in self._writers:
            if writer.kind == "branch" or writer.head is not None:
                numbers = branches[writer.head is not None]
                numbers.setdefault((writer.name, writer.crossing), len(numbers))
        self._numbers = branches

    def writer(self, end: StreamEnd) -> str:
        """The name of a writer."""
        if end.kind == "constant":
            raise QuestionError(
                "biases are no nodes of this form", where=str(end), got="a circuit of a plain measure",
                expected="a circuit of a contrast, nrm.measure(model, x, against=x2)",
            )  # fmt: skip
        if end.kind == "embedding":
            return "input"
        number = self._numbers[end.head is not None][end.name, end.crossing]
        return f"m{number}" if end.head is None else f"a{number}.h{end.head}"

    def reader(self, end: StreamEnd) -> list[str]:
        """The names of a reader."""
        if end.kind == "logits":
            return ["logits"]
        letter = f"<{end.kind}>" if end.kind in LETTERS else ""
        return [self.writer(writer) + letter for writer in self._writers if feeds(end, writer)]

    def edges(self) -> dict[str, tuple[int, int]]:
        """Every name of an edge with its writer and reader; a way between parallel branches is none."""
        readers = [(r, reader.crossing, name) for r, reader in enumerate(self._readers) for name in self.reader(reader)]
        return {
            f"{self.writer(writer)}->{name}": (w, r)
            for w, writer in enumerate(self._writers)
            for r, crossing, name in readers
            if writer.crossing <= crossing
        }

    def nodes(self) -> list[str]:
        """Every node."""
        return [*dict.fromkeys(self.writer(writer) for writer in self._writers), "logits"]


def mib_facts(names: MibNames, inside: Tensor, relevance: Tensor) -> dict[str, Any]:
    """Marks and relevance of edges in that form."""
    edges = {name: {"score": float(relevance[at]), "in_graph": bool(inside[at])} for name, at in names.edges().items()}
    used = {end.split("<")[0] for name, edge in edges.items() if edge["in_graph"] for end in name.split("->")}
    heads = sum(name.startswith("a0.") for name in names.nodes())
    layers = sum(name.startswith("m") for name in names.nodes())
    return {
        "cfg": {"n_layers": layers, "n_heads": heads, "parallel_attn_mlp": False},
        "nodes": {name: {"in_graph": name in used} for name in names.nodes()},
        "edges": edges,
    }


def mib_marks(names: MibNames, shape: tuple[int, int], facts: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """Marks and scores ``(writers, readers)`` of edges in that form."""
    inside, scores = torch.zeros(shape, dtype=torch.bool), torch.zeros(shape)
    places, given = names.edges(), facts.get("edges")
    if not isinstance(given, Mapping) or not all(isinstance(edge, Mapping) for edge in given.values()):
        raise ResultFileError(
            "this is no circuit of the MIB benchmark", got=f"keys {list(facts)[:5]}",
            expected="'edges': {'input->m0': {'score': 0.1, 'in_graph': true}, ...}",
        )  # fmt: skip
    for name, edge in given.items():
        if name not in places:
            raise QuestionError(
                "these are edges of another network", got=repr(name),
                expected=f"such as {', '.join(map(repr, list(places)[:2]))}",
            )  # fmt: skip
        inside[places[name]] |= bool(edge.get("in_graph", False))
        scores[places[name]] = float(edge.get("score") or 0.0)
    return inside, scores
