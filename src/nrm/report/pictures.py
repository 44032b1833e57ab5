"""What is explained as a picture, a text or a graph, heat maps over it, and both as plain data."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nrm.errors import QuestionError
from nrm.plot import read_image, read_pieces
from nrm.questions import Layer, Partition
from nrm.report.graphs import DrawnGraph, read_graph

if TYPE_CHECKING:
    from nrm.measure import Measure

SMALL = 112
"""The longest side of the small maps of a view; the heat map of the decision keeps its own size."""

CELLS = 56
"""The longest side of a mask that only shows which part of a picture is meant."""
ELEMENTS = frozenset(["H", "B", "C", "N", "O", "F", "Na", "Si", "P", "S", "Cl", "K", "Ca", "Fe", "Cu", "Zn", "Br", "I"])
"""A graph of these is a molecule."""


class Canvas(NamedTuple):
    """What relevance is drawn over: its kind, the free variable to ask for, and its shape.

    ``kind`` is ``"image"`` (H, W), ``"tokens"`` (T,), or ``"graph"`` (N,), which has edges as well.
    """

    layer: Layer
    variable: Partition | Layer
    kind: str
    shape: tuple[int, ...]
    picture: dict[str, Any]
    graph: DrawnGraph | None = None

    @property
    def tokens(self) -> list[str]:
        """The tokens of a text or nodes of a graph, each once: those that occur again have their place with them."""
        texts = self.picture.get("texts") or [piece["text"] for piece in self.picture.get("tokens", ())]
        again = "{}{}" if self.graph else "{} ({})"
        return [text if texts.count(text) == 1 else again.format(text, i) for i, text in enumerate(texts)]

    @property
    def noun(self) -> str:
        """What a sentence calls what is drawn."""
        if self.kind == "image":
            return "this picture"
        if self.kind == "graph":
            return "this molecule" if set(self.picture["texts"]) <= ELEMENTS else "this graph"
        if self.variable is self.layer:
            return "these values"
        return "these steps" if self.tokens == [str(i) for i in range(len(self.tokens))] else "this text"

    @property
    def names(self) -> dict[str, list[str]]:
        """What positions and edges are called, by the kind of a partition."""
        known = {"positions": self.tokens}
        if self.graph is not None:
            ends = [[self.tokens[i] for i in pair] for pair in self.graph.pairs.tolist()]
            known["edges"] = [f"{a} → {b}" for a, b in ends]
        return known

    def pack(self, relevance: Tensor, longest: int | None = SMALL) -> dict[str, Any]:
        """A heat map: relevance over the canvas, as plain data."""
        return pack_map(relevance.double().cpu().numpy().reshape(self.shape), longest if self.kind == "image" else None)


def read_canvas(R: Measure, image: Any = None) -> Canvas:
    """The input of a measure of one sample as something to draw over; ``image`` is drawn instead of the input."""
    layer = drawn_input(R)
    shape = tuple(R(layer.positions).shape[1:])
    if image is not None or len(shape) >= 2:
        return _image(R, layer, shape, image)
    variable: Partition | Layer = layer.positions if shape else layer
    shape = shape or (int(np.prod(R(layer).shape[1:])),)
    names = R.labels.get(layer.name, ())
    names = names[0] if names and isinstance(names[0], tuple) else names
    texts = [str(n) for n in names] if len(names) == shape[0] else [str(i) for i in range(shape[0])]
    graph = read_graph(R, shape[0])
    if graph is not None:
        return Canvas(layer, variable, "graph", shape, graph.drawn(texts), graph)
    pieces = [{"text": p.text, "space": p.space, "ends": p.ends} for p in read_pieces(texts)]
    return Canvas(layer, variable, "tokens", shape, {"kind": "tokens", "tokens": pieces})


def drawn_input(R: Measure) -> Layer:
    """The user's input, the first of several."""
    try:
        return R.input
    except QuestionError:
        return next(iter(R.inputs))


def _image(R: Measure, layer: Layer, shape: tuple[int, ...], image: Any) -> Canvas:
    values = R.values(layer)[0] if image is None else image
    if image is None and len(shape) == 2 and values.ndim == 3 and values.shape[0] not in (1, 3):
        values = values.mean(0)  # more channels than colours: their mean, in grey
    pixels = (read_image(values) * 255).round().astype(np.uint8)
    height, width = pixels.shape[:2]
    variable: Partition | Layer = layer.positions if len(shape) == 2 else layer
    count = int(np.prod(R(variable).shape[1:]))
    shape = shape if len(shape) == 2 else (height, width)
    if count != int(np.prod(shape)):
        raise QuestionError(
            "the picture does not fit the input", got=f"{height} x {width} pixels, {count} inputs",
            expected="as many pixels as inputs", hint="image= is a picture of the input of the measure",
        )  # fmt: skip
    picture = {"kind": "image", "shape": list(pixels.shape), "data": base64.b64encode(pixels.tobytes()).decode()}
    return Canvas(layer, variable, "image", shape, picture)


def pack_map(values: npt.NDArray[np.float64], longest: int | None) -> dict[str, Any]:
    """Relevance in 8 bits: ``limit`` is the largest absolute value, ``total`` the sum.

    A map with a longer side is summed over cells.

    >>> packed = pack_map(np.array([[0.5, -1.0], [0.0, 0.25]]), None)
    >>> packed["limit"], packed["total"], np.frombuffer(base64.b64decode(packed["data"]), np.int8).tolist()
    (1.0, -0.25, [64, -127, 0, 32])
    """
    total = float(values.sum())
    if longest is not None and max(values.shape) > longest:
        step = -(-max(values.shape) // longest)
        padded = np.pad(values, [(0, -n % step) for n in values.shape])
        values = padded.reshape(*(m for n in padded.shape for m in (n // step, step))).sum((1, 3))
    limit = float(np.abs(values).max(initial=0.0))
    small = np.round(values / (limit or 1.0) * 127).astype(np.int8)
    return {
        "shape": list(small.shape),
        "limit": limit,
        "total": total,
        "data": base64.b64encode(small.tobytes()).decode(),
    }


def pack_cells(mask: npt.NDArray[np.bool_], longest: int = CELLS) -> dict[str, Any]:
    """Which cells of a canvas are meant, coarsely, as plain data.

    >>> pack_cells(np.eye(2, dtype=bool))
    {'shape': [2, 2], 'on': [0, 3]}
    """
    step = -(-max(mask.shape) // longest)
    small = mask[tuple(slice(step // 2, None, step) for _ in mask.shape)]
    return {"shape": list(small.shape), "on": np.flatnonzero(small).tolist()}


def unpack_map(packed: dict[str, Any]) -> Tensor:
    """The relevances of a packed map, up to its 8 bits.

    >>> unpack_map(pack_map(np.array([0.5, -1.0]), None)).tolist()
    [0.5039370059967041, -1.0]
    """
    small = np.frombuffer(base64.b64decode(packed["data"]), np.int8).reshape(packed["shape"])
    values: Tensor = torch.from_numpy(small.astype(np.float32)) / 127 * packed["limit"]
    return values
