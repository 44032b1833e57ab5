"""The first sentence of a view: which parts of the input the decision rests on, in plain words.

It is computed, never invented: its numbers are shares of the measure, and a part of a picture is called after the place
where its relevance lies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nrm.largest import best_first
from nrm.numbers import percent, with_minus
from nrm.plot import Array
from nrm.report.columns import Shown
from nrm.report.named import NamedPart, cells_of
from nrm.report.pictures import Canvas, pack_cells

if TYPE_CHECKING:
    from nrm.measure import Measure

LEAST, MOST_PARTS, ENOUGH = 0.05, 3, 0.75
"""Parts with a smaller share are not mentioned, nor more of them, nor any after so much of the decision is told."""
BEYOND = 1.2
"""What speaks for the decision is told as shares of itself beyond this: the other side cancels some of it."""
CONSTANT = 0.2
"""Biases with a smaller share are not mentioned."""
CORNER, WIDE = 1 / 6, 0.3
"""How far from the middle a part lies on a side, and how far it spreads around the middle to be called an edge."""
ROWS, SIDES = ("upper", "", "lower"), ("left", "", "right")


class StoryPart(NamedTuple):
    """A part of the input: its words, its share, and what it is: nodes of the view, a box, cells, or positions.

    ``named`` says that a person gave it its name.
    """

    text: str
    share: float
    nodes: tuple[tuple[int, int], ...] = ()
    box: tuple[int, int, int, int] | None = None
    positions: tuple[int, ...] = ()
    cells: npt.NDArray[np.bool_] | None = None
    named: bool = False

    def plain(self) -> dict[str, Any]:
        """As plain data."""
        return {"text": self.text, "share": self.share, "nodes": [list(at) for at in self.nodes],
                "box": None if self.box is None else list(self.box), "positions": list(self.positions),
                "cells": None if self.cells is None else pack_cells(self.cells)}  # fmt: skip


def tell(
    R: Measure, canvas: Canvas, shown: Sequence[Shown], cells: Sequence[Array | None], biases: float,
    named: Sequence[NamedPart] = (),
) -> dict[str, Any]:  # fmt: skip
    """The sentence in pieces: texts, and numbers of ``parts``; shares are of ``whole``, the decision or its good side.

    ``cells`` are the nodes of the positions of every column (None: it has none in rows and columns); ``biases`` is the
    share that begins at constants of the network; ``named`` parts of the input come first.
    """
    heat: Array = R(canvas.variable)[0].double().cpu().numpy().reshape(canvas.shape)
    whole = float(heat.clip(min=0).sum())
    whole = whole if whole > BEYOND else 1.0
    if canvas.kind == "image":
        last = max((c for c, labels in enumerate(cells[:-1]) if labels is not None), default=None)
        parts = _thirds(heat) if last is None else _placed(R, shown[last], last, cells[last])
    else:
        parts = _listed(canvas, heat, shown)
    parts = _with_named(R, canvas, heat, parts, named)
    parts = [part._replace(share=part.share / whole) for part in parts]
    strongest, against = _strongest(parts), _opposed(parts)
    pieces = _pieces(len(strongest), against is not None, whole > 1, canvas) + _said_of_biases(biases)
    told = [*strongest, *([] if against is None else [against])]
    return {"story": {"pieces": pieces, "parts": [part.plain() for part in told], "whole": whole}}


def story_text(story: dict[str, Any]) -> str:
    """The sentence as a text.

    >>> story_text({"pieces": ["Mostly ", 0, "."], "parts": [{"text": "the middle", "share": 0.413}]})
    'Mostly the middle (41 %).'
    """
    parts = [f"{part['text']} ({with_minus(percent(part['share'], 0))})" for part in story["parts"]]
    return "".join(piece if isinstance(piece, str) else parts[piece] for piece in story["pieces"])


def _strongest(parts: Sequence[StoryPart]) -> list[StoryPart]:
    """The parts that speak for the decision most, until enough of it is told."""
    found: list[StoryPart] = []
    for part in sorted(parts, key=lambda part: (not part.named or part.share < LEAST, -part.share))[:MOST_PARTS]:
        if part.share >= LEAST and sum(one.share for one in found) < ENOUGH:
            found.append(part)
    return found


def _opposed(parts: Sequence[StoryPart]) -> StoryPart | None:
    """The part that speaks against the decision most, if any is worth a word."""
    worst = min(parts, key=lambda part: part.share, default=None)
    return worst if worst is not None and worst.share <= -LEAST else None


def _pieces(named: int, against: bool, relative: bool, canvas: Canvas) -> list[str | int]:
    begin = "Of what speaks for it, mostly " if relative else "Mostly "
    if not named:
        pieces: list[str | int] = [f"Spread widely: no part of {canvas.noun} has {percent(LEAST, 0)} of it"]
    else:
        pieces = [begin, 0]
        for n in range(1, named):
            pieces += [" and " if n == named - 1 else ", ", n]
    return [*pieces, "; ", named, " speaks against it."] if against else [*pieces, "."]


def _said_of_biases(share: float) -> list[str | int]:
    if abs(share) < CONSTANT:
        return []
    return [
        f" The network's own biases speak {'for' if share > 0 else 'against'} it ({with_minus(percent(share, 0))})."
    ]


# ---- parts that people named -----------------------------------------------------------------------------------------


def _with_named(
    R: Measure, canvas: Canvas, heat: Array, parts: Sequence[StoryPart], named: Sequence[NamedPart]
) -> list[StoryPart]:  # fmt: skip
    """Parts of the input that have names, and of the others those that are not mostly inside them."""
    known = {part.text for part in parts if part.named}
    found, inside = [], np.zeros(canvas.shape, bool)
    for part in named:
        if not part.own or part.name in known:
            continue
        mask = cells_of(canvas, part)
        positions = () if canvas.kind == "image" else tuple(np.flatnonzero(mask).tolist())
        cells = mask if canvas.kind == "image" else None
        found.append(StoryPart(part.name, float(R(part.event)[0]), positions=positions, cells=cells, named=True))
        inside |= mask
    return [*found, *(part for part in parts if not _is_inside(part, inside))] if found else list(parts)


def _is_inside(part: StoryPart, inside: npt.NDArray[np.bool_]) -> bool:
    if part.positions:
        return bool(inside[list(part.positions)].all())
    if part.box is not None:
        return bool(inside[part.box[1] : part.box[3], part.box[0] : part.box[2]].mean() > 1 / 2)
    return False


# ---- parts of a picture ----------------------------------------------------------------------------------------------


def _placed(R: Measure, shown: Shown, column: int, labels: Array | None) -> list[StoryPart]:
    """The nodes of a column of positions, those at one place together."""
    assert labels is not None, "a column of positions"
    weight: Array = np.abs(R(shown.partition.layer.positions)[0].double().cpu().numpy())
    merged: dict[tuple[str, bool], StoryPart] = {}
    for n, node in enumerate(shown.column.nodes):
        name = next((text for text, blocks in shown.joined.items() if node.block == min(blocks)), None)
        if node.kind == "block" and (labels == n).any():
            text = place(np.where(labels == n, weight, 0.0)) if name is None else name
            before = merged.get((text, node.share < 0), StoryPart(text, 0.0))
            merged[text, node.share < 0] = before._replace(
                share=before.share + node.share, nodes=(*before.nodes, (column, n)), named=name is not None
            )
    return list(merged.values())


def _thirds(heat: Array) -> list[StoryPart]:
    """Nine equal boxes of a heat map."""
    ys, xs = ([round(n * k / 3) for k in range(4)] for n in heat.shape)
    found = []
    for i, row in enumerate(ROWS):
        for j, side in enumerate(SIDES):
            box = xs[j], ys[i], xs[j + 1], ys[i + 1]
            share = float(heat[box[1] : box[3], box[0] : box[2]].sum())
            found.append(StoryPart(_words(row, side), share, box=box))
    return found


def place(weight: Array) -> str:
    """Where in a picture some weight lies, in words.

    >>> place(np.eye(3)[:1] * [[1.0], [0], [0]]), place(np.ones((4, 4)))
    ('the upper left', 'the middle')
    """
    total = float(weight.sum())
    if total <= 0:
        weight, total = np.ones_like(weight), float(weight.size)
    axes = [(np.arange(n) + 0.5) / n - 0.5 for n in weight.shape]
    y, x = (float((weight.sum(1 - k) * axis).sum()) / total for k, axis in enumerate(axes))
    row, side = (names[0 if at < -CORNER else 2 if at > CORNER else 1] for names, at in ((ROWS, y), (SIDES, x)))
    if not row and not side:
        spread = float((weight * np.maximum.outer(np.abs(axes[0]), np.abs(axes[1]))).sum()) / total
        return "the edges" if spread > WIDE + CORNER / 2 else "the middle"
    return _words(row, side)


def _words(row: str, side: str) -> str:
    words = " ".join(filter(None, (row, side))) or "middle"
    kind = " part" if words in ROWS else " side" if words in SIDES else ""
    return f"the {words}{kind}"


# ---- parts of everything else ----------------------------------------------------------------------------------------


def _listed(canvas: Canvas, heat: Array, shown: Sequence[Shown]) -> list[StoryPart]:
    """Tokens, atoms, steps or values, each by itself; those that are nodes of the first column can be clicked."""
    nodes = {}
    if shown and shown[0].partition.layer == canvas.layer and shown[0].pick.by == "positions":
        nodes = {node.block: n for n, node in enumerate(shown[0].column.nodes) if node.kind == "block"}
    order = best_first(np.abs(heat.ravel()))[: 4 * MOST_PARTS].tolist()
    quoted = "“{}”" if canvas.kind == "tokens" else "{}"
    return [
        StoryPart(quoted.format(canvas.tokens[i]), float(heat.ravel()[i]), positions=(i,),
                  nodes=((0, nodes[i]),) if i in nodes else ())
        for i in order
    ]  # fmt: skip


__all__ = ["story_text", "tell"]
