"""What a search for flows wants, and the best it has found so far."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nrm.errors import QuestionError
from nrm.largest import reaching
from nrm.search.found import read_count

SIGNS = ("+", "-", "abs")
METHODS = ("exact", "greedy")
PIECE = 2**21
"""How many combinations are ranked at once: the list fills early, and most pieces have nothing for it."""


class Request(NamedTuple):
    """What is looked for: so many flows, of which sign, how, and for how many forward passes of arithmetic."""

    k: int
    sign: str
    method: str
    effort: float

    @classmethod
    def read(cls, k: Any, sign: Any, method: Any, effort: Any) -> Request:
        """The options, checked."""
        count = read_count(k, "flows")
        if not isinstance(sign, str) or sign not in SIGNS:
            raise QuestionError("unknown sign", got=f"sign={sign!r}", expected=", ".join(map(repr, SIGNS)))
        if not isinstance(method, str) or method not in METHODS:
            raise QuestionError("unknown method", got=f"method={method!r}", expected=", ".join(map(repr, METHODS)))
        if isinstance(effort, bool) or not isinstance(effort, int | float) or not effort > 0:
            raise QuestionError("not an effort", got=f"effort={effort!r}", expected="forward passes, more than 0")
        return cls(count, sign, method, float(effort))

    def score(self, relevance: Tensor) -> Tensor:
        """What is to be large."""
        if self.sign == "+":
            return relevance
        return -relevance if self.sign == "-" else relevance.abs()

    def bound(self, relevance: Tensor, total: Tensor) -> Tensor:
        """How large it can be among the walks of an event, with room for rounding."""
        slack = 64 * torch.finfo(total.dtype).eps * total
        return (total + self.score(relevance)) / 2 + slack


@dataclass
class BestFlows:
    """The best combinations of one sample so far. Equal ones are ordered by their blocks."""

    k: int
    found: list[tuple[float, tuple[int, ...], float]] = field(default_factory=list)

    @property
    def threshold(self) -> float:
        """What a combination must exceed (or equal) to get onto the list."""
        return -self.found[-1][0] if len(self.found) == self.k else 0.0

    def add(self, request: Request, relevance: Tensor, blocks: Callable[[Tensor], Sequence[tuple[int, ...]]]) -> None:
        """Takes in the best of many combinations, piece by piece; ``blocks`` tells which ones these are."""
        begin = 0
        for piece in torch.split(relevance, PIECE):
            scores = request.score(piece)
            least = max(self.threshold, torch.finfo(scores.dtype).tiny)
            if float(scores.amax()) >= least:
                # Blocks, which settle ties, are not in the order of their places: all that tie are asked for theirs.
                at = ((scores >= least) & reaching(scores, self.k)).nonzero()[:, 0]
                self.take(zip(scores[at].tolist(), blocks(at + begin), piece[at].tolist(), strict=True))
            begin += piece.numel()

    def take(self, entries: Iterable[tuple[float, tuple[int, ...], float]]) -> None:
        """Takes in combinations, each with its score, blocks and relevance; known ones are replaced."""
        known = {entry[1]: entry for entry in self.found}
        known |= {blocks: (-score, blocks, value) for score, blocks, value in entries}
        self.found = sorted(known.values())[: self.k]


class Queue:
    """Prefixes of one sample that wait to be extended, by how far they can reach."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, tuple[int, ...], int, int]] = []
        self._families: list[tuple[list[float], list[tuple[int, ...]]]] = []

    def push(self, bound: float, prefix: tuple[int, ...]) -> None:
        """One prefix."""
        self.push_family([bound], [prefix])

    def push_family(self, bounds: list[float], prefixes: list[tuple[int, ...]]) -> None:
        """Prefixes in decreasing order of their bounds; only the first one of a family stands in the queue."""
        if bounds:
            self._families.append((bounds, prefixes))
            heapq.heappush(self._heap, (-bounds[0], prefixes[0], len(self._families) - 1, 0))

    def pop(self, threshold: float, width: int) -> list[tuple[int, ...]]:
        """Up to so many prefixes that reach a threshold, the farthest first."""
        taken: list[tuple[int, ...]] = []
        while self._heap and len(taken) < width and -self._heap[0][0] >= threshold and -self._heap[0][0] > 0:
            _, prefix, family, rank = heapq.heappop(self._heap)
            taken.append(prefix)
            bounds, prefixes = self._families[family]
            if rank + 1 < len(bounds):
                heapq.heappush(self._heap, (-bounds[rank + 1], prefixes[rank + 1], family, rank + 1))
        return taken

    def reach(self, threshold: float) -> float:
        """How far a prefix in the queue can reach, 0 if not above the threshold."""
        bound = -self._heap[0][0] if self._heap else 0.0
        return bound if bound > threshold else 0.0
