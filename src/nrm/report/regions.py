"""Parts of the input that a person draws: boxes, outlines, tokens or nodes; and named sets of channels."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from nrm.errors import QuestionError
from nrm.questions import Layer, Set
from nrm.report.pictures import Canvas

if TYPE_CHECKING:
    from nrm.measure import Measure

Mask = npt.NDArray[np.bool_]
FINE = 1000
"""Outlines are drawn in thousandths of the picture's sides."""
MOST_POINTS, MOST_NUMBERS = 2000, 5000
KINDS = ("channel", "head", "position")


class Region:
    """Some cells of a canvas, as a set of its layer and as a line of Python that makes this set."""

    def __init__(self, canvas: Canvas, mask: Mask) -> None:
        if not mask.any():
            raise QuestionError("the region is empty", hint="draw around some of the picture")
        self._canvas, self.mask = canvas, mask

    def set(self, R: Measure) -> Set:
        """The neurons of the input inside."""
        layer, shape = self._canvas.layer, R.values(self._canvas.layer).shape[1:]
        mask = torch.from_numpy(self.mask)
        if self._canvas.variable == layer:
            return layer.where(mask.reshape(shape))
        return layer.where(mask if self._canvas.kind == "image" else mask[:, None].expand(shape))

    def line(self, shape: tuple[int, ...]) -> str:
        """An expression for the set, from ``R`` alone; ``shape`` is that of the layer."""
        layer = f"R[{self._canvas.layer.name!r}]"
        if self._canvas.kind != "image":
            chosen = np.flatnonzero(self.mask).tolist()
            return (
                f"{layer}.position({chosen})" if self._canvas.variable != self._canvas.layer else f"{layer}[{chosen}]"
            )
        packed = base64.b64encode(zlib.compress(np.packbits(self.mask).tobytes(), 9)).decode()
        form = tuple(shape) if self._canvas.variable == self._canvas.layer else self.mask.shape
        return f"{layer}.where(unpack({packed!r}, {form}))"


def read_region(canvas: Canvas, made: Mapping[str, Any]) -> Region:
    """What the page calls a region: ``region`` (a box of cells), ``lasso`` (an outline) or ``positions``."""
    if "lasso" in made:
        return Region(canvas, _inside(_points(made["lasso"]), canvas.shape))
    numbers = _numbers(made.get("region") or made.get("positions"))
    mask = np.zeros(canvas.shape, bool)
    if "positions" in made and len(canvas.shape) == 1:
        mask[[n for n in numbers if n < len(mask)]] = True
    elif "region" in made and len(canvas.shape) == 2 and len(numbers) == 4:
        mask[numbers[1] : numbers[3], numbers[0] : numbers[2]] = True
    else:
        raise QuestionError("the region does not fit the input", got=repr(dict(made))[:80])
    return Region(canvas, mask)


def read_blocks(R: Measure, made: Mapping[str, Any]) -> tuple[Set, str]:
    """Neurons of a named layer, and a line of Python for them: ``channels``, ``heads`` or ``positions`` by number, or
    ``cells`` of its rows and columns.
    """
    name = made.get("layer")
    if not isinstance(name, str):
        raise QuestionError("not a layer", got=repr(name)[:80], expected="the name of a layer")
    for kind in KINDS:
        if f"{kind}s" in made:
            numbers = read_numbers(made[f"{kind}s"])
            layer = _with_heads(R, name) if kind == "head" else R[name]
            return getattr(layer, kind)(numbers), f"R[{layer.name!r}].{kind}({numbers})"
    cells = made.get("cells")
    shape = cells.get("shape") if isinstance(cells, dict) else None
    layer = R[name]
    own = R.resolve(layer)[1].layer_shape
    if not isinstance(cells, dict) or not isinstance(shape, list) or tuple(shape) != own[-len(shape) :]:
        raise QuestionError("cells do not fit the layer", got=repr(dict(made))[:80], expected=f"cells of {own}")
    mask = np.zeros(tuple(shape), bool)
    mask.reshape(-1)[[n for n in read_numbers(cells.get("on")) if n < mask.size]] = True
    if not mask.any():
        raise QuestionError("no cells are named", got=repr(dict(made))[:80])
    packed = base64.b64encode(zlib.compress(np.packbits(mask).tobytes(), 9)).decode()
    return layer.where(torch.from_numpy(mask)), f"R[{name!r}].where(unpack({packed!r}, {mask.shape}))"


def _with_heads(R: Measure, name: str) -> Layer:
    """The layer of the heads of an attention: itself, or what it hands to its output projection."""
    if "heads" in R[name].facts:
        return R[name]
    inside = [row.name for row in R.layers if row.name.startswith((f"{name}/", f"{name}."))]
    return next((R[one] for one in inside if "heads" in R[one].facts), R[name])


def read_numbers(given: Any) -> list[int]:
    """Numbers of blocks that a person picked."""
    numbers = _numbers(given)
    if not numbers:
        raise QuestionError("no numbers are picked", got=repr(given)[:80], expected="at least one")
    return numbers


def _numbers(given: Any) -> list[int]:
    whole = isinstance(given, list) and len(given) <= MOST_NUMBERS and all(type(x) is int and x >= 0 for x in given)
    if not whole:
        raise QuestionError("not a set", got=repr(given)[:80], expected="a list of numbers from 0")
    return list(given)


def _points(given: Any) -> npt.NDArray[np.float64]:
    pairs = isinstance(given, list) and 3 <= len(given) <= MOST_POINTS and all(
        isinstance(p, list) and len(p) == 2 and all(type(x) is int and 0 <= x <= FINE for x in p) for p in given
    )  # fmt: skip
    if not pairs:
        raise QuestionError("not an outline", got=repr(given)[:80], expected=f"points [x, y] from 0 to {FINE}")
    return np.array(given, np.float64) / FINE


def _inside(points: npt.NDArray[np.float64], shape: tuple[int, ...]) -> Mask:
    """The cells of a grid whose middle a closed outline goes around an odd number of times."""
    if len(shape) != 2:
        raise QuestionError("an outline needs a picture", got=f"an input of shape {shape}")
    y, x = ((np.arange(n) + 0.5) / n for n in shape)
    inside = np.zeros(shape, bool)
    for (x0, y0), (x1, y1) in zip(points, np.roll(points, -1, axis=0), strict=True):
        if y0 != y1:
            across = (y0 <= y) != (y1 <= y)
            inside ^= across[:, None] & (x[None] < (x0 + (y - y0) * (x1 - x0) / (y1 - y0))[:, None])
    return inside
