"""A graph as something to draw over: places of its nodes, its edges as lines, and relevance along them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nrm.errors import QuestionError
from nrm.plot import Array, join_lines, lay_out, lay_out_molecule
from nrm.questions import Partition

if TYPE_CHECKING:
    from nrm.measure import Measure

MOST_NODES = 400
"""A larger graph is not drawn: its nodes are listed."""


class DrawnGraph(NamedTuple):
    """The edges of the graph of a measure: ``lines`` are drawn, ``which`` is the line of every edge.

    ``along`` asks for the relevance of edges in the last graph layer, called ``layer``; None if there is none to ask.
    """

    pairs: npt.NDArray[np.int64]
    lines: npt.NDArray[np.int64]
    directed: bool
    along: Partition | None
    layer: str

    def on_lines(self, relevance: Array) -> Array:
        """The relevance of lines: both directions of an edge together."""
        return join_lines(self.pairs, relevance, self.directed)[1]  # type: ignore[return-value]

    def drawn(self, texts: list[str]) -> dict[str, Any]:
        """The picture as plain data."""
        molecule = None if self.directed else lay_out_molecule(self.pairs, texts)
        places = lay_out(len(texts), self.pairs) if molecule is None else molecule
        return {
            "kind": "graph", "places": places.round(4).tolist(), "lines": self.lines.tolist(), "texts": texts,
            "directed": self.directed, "along": self.layer,
        }  # fmt: skip


def read_graph(R: Measure, count: int) -> DrawnGraph | None:
    """The graph among the inputs of a measure, if its nodes are the positions that are drawn."""
    graphs = R.inner.tape.graphs
    edges = None if graphs is None else graphs.plain
    if edges is None or count > MOST_NODES or (edges.numel() and int(edges.max()) >= count):
        return None
    pairs: npt.NDArray[np.int64] = edges.T.cpu().numpy().astype(np.int64)
    both = {(a, b) for a, b in pairs.tolist()}
    directed = any((b, a) not in both for a, b in both)
    along, layer = None, ""
    for name in reversed(graph_layers(R)):
        try:
            R.plan(R[name].edges)
        except QuestionError:  # a sum over neighbours that are no edges of this graph
            continue
        along, layer = R[name].edges, name
        break
    return DrawnGraph(pairs, join_lines(pairs, None, directed)[0], directed, along, layer)


def graph_layers(R: Measure) -> list[str]:
    """The layers that sum over neighbours, by the name of their module where it has the sum as a part."""
    found = []
    for row in R.layers:
        if row.kind == "propagate":
            parent = row.name[: max(row.name.rfind("."), row.name.rfind("/"), 0)]
            try:
                R[parent]
                found.append(parent)
            except QuestionError:
                found.append(row.name)
    return list(dict.fromkeys(found))
