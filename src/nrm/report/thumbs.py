"""Small views of many inputs: a thumbnail, the prediction, and the layers in which their flows are compared."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import numpy as np

from nrm.report.columns import default_picks
from nrm.report.decision import decide
from nrm.report.pictures import read_canvas

if TYPE_CHECKING:
    from nrm.measure import Measure

LONGEST, LAYERS, WIDEST = 64, 2, 4096
"""The longest side of a thumbnail, how many layers a flow is compared in, and their most channels."""

Thumb = dict[str, Any]


def read_thumb(R: Measure) -> Thumb:
    """A small picture of an input with its heat map, and what was decided."""
    canvas, decision = read_canvas(R), decide(R)
    picture = dict(canvas.picture)
    if canvas.kind == "image":
        pixels = np.frombuffer(base64.b64decode(picture["data"]), np.uint8).reshape(picture["shape"])
        step = -(-max(pixels.shape[:2]) // LONGEST)
        small = np.ascontiguousarray(pixels[step // 2 :: step, step // 2 :: step])
        picture |= {"shape": list(small.shape), "data": base64.b64encode(small.tobytes()).decode()}
    first = decision["alternatives"][0] if decision["alternatives"] else None
    return {
        "picture": picture, "heat": canvas.pack(R(canvas.variable)[0], LONGEST),
        "predicted": None if first is None else first["index"],
        "says": decision["name"] if first is None else first["name"],
        "probability": None if first is None else first["probability"],
    }  # fmt: skip


def channel_layers(R: Measure) -> list[str]:
    """The last layers of a view before the output whose channels every input has."""
    known = {row.name: row for row in R.layers}
    names = [pick.layer for pick in default_picks(R) if pick.layer != "output"]
    wide = [name for name in names if name in known and known[name].channel is not None and known[name].kind != "input"]
    return [name for name in wide if known[name].shape[known[name].channel or 0] <= WIDEST][-LAYERS:]
