"""Named sets: nodes, groups of them, and parts of an input that people gave names.

Channels and heads belong to the model: their names come back for every input, and several of one name are one node.
Positions, clusters and drawn parts belong to the input.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from nrm.errors import NrmError, QuestionError
from nrm.questions import Blocks, Partition, Set
from nrm.report.names import input_notes, node_names
from nrm.report.pictures import Canvas, drawn_input, read_canvas
from nrm.report.regions import read_blocks, read_region

if TYPE_CHECKING:
    from nrm.measure import Measure

KEY = re.compile(r"(?P<layer>.+)\.(?P<kind>channel|head)\((?P<numbers>\d+|\[\d+(, \d+)*\])\)")
"""How a node of a model is written: ``features.28.channel(7)``, ``model.layers.3.self_attn.head([0, 2])``."""

Made = Mapping[str, Any]


class NamedPart(NamedTuple):
    """A name, what it stands for as plain data (as in a region of the page) and as a set, and whose it is."""

    name: str
    made: Made
    event: Set
    own: bool


def input_digest(R: Measure) -> str:
    """A fingerprint of the input of a measure of one sample, from its values."""
    rows = R.values(drawn_input(R))[0].detach().cpu().contiguous()
    digest = hashlib.blake2b(f"{tuple(rows.shape)}{rows.dtype}".encode(), digest_size=16)
    digest.update(rows.view(-1).view(torch.uint8).numpy().tobytes() if rows.numel() else b"")
    return digest.hexdigest()


def write_key(made: Made) -> str | None:
    """The node of a model that a set stands for; None for what belongs to an input.

    >>> write_key({"layer": "pool", "channels": [7, 3]})
    'pool.channel([3, 7])'
    """
    for kind in ("channel", "head"):
        numbers, layer = made.get(f"{kind}s"), made.get("layer")
        if isinstance(layer, str) and isinstance(numbers, list) and numbers and all(type(n) is int for n in numbers):
            numbers = sorted(set(numbers))
            layer = layer.partition("/")[0] if kind == "head" else layer
            return f"{layer}.{kind}({numbers[0] if len(numbers) == 1 else numbers})"
    return None


def read_key(key: str) -> dict[str, Any] | None:
    """The set that a node stands for, as plain data; None for other nodes, such as branches of circuits.

    >>> read_key("pool.channel([3, 7])")
    {'layer': 'pool', 'channels': [3, 7]}
    """
    found = KEY.fullmatch(key)
    if found is None:
        return None
    return {"layer": found["layer"], f"{found['kind']}s": [int(n) for n in re.findall(r"\d+", found["numbers"])]}


def named_parts(R: Measure, canvas: Canvas, names: Mapping[str, str], sets: Mapping[str, Made]) -> list[NamedPart]:
    """Everything named that this measure has: nodes of the model, then parts of the input."""
    nodes = ((name, read_key(key)) for key, name in names.items())
    listed: list[tuple[str, Made, bool]] = [(name, made, False) for name, made in nodes if made is not None]
    listed += [(name, made, True) for name, made in sets.items()]
    found = []
    for name, made, own in listed:
        try:
            event = read_blocks(R, made)[0] if "layer" in made else read_region(canvas, made).set(R)
            R.resolve(event.layer)
        except NrmError:
            continue  # a layer that this measure does not have, or of another size
        found.append(NamedPart(name, made, event, own))
    return found


def cells_of(canvas: Canvas, part: NamedPart) -> npt.NDArray[np.bool_]:
    """The cells of a canvas that a part of the input stands for; cells of a layer are those of the input below them."""
    cells = part.made.get("cells")
    if not isinstance(cells, dict):
        return read_region(canvas, part.made).mask
    mask = np.zeros(tuple(cells["shape"]), bool)
    mask.reshape(-1)[cells["on"]] = True
    if mask.ndim != len(canvas.shape):
        return np.zeros(canvas.shape, bool)
    places = np.ix_(*(np.arange(n) * m // n for n, m in zip(canvas.shape, mask.shape, strict=True)))
    found: npt.NDArray[np.bool_] = mask[places]
    return found


def named_sets(R: Measure) -> dict[str, Set]:
    """The sets that were given names on pages of this model: its own, and those of this input.

    They are arguments of ``R(...)``, and ``sets`` of :func:`nrm.query`.

    Args:
        R: the measure of one sample.

    >>> import nrm
    >>> R = nrm.measure(torch.nn.Linear(3, 2), torch.ones(1, 3))
    >>> nrm.report.named_sets(R)
    {}
    """
    if len(R) != 1:
        raise QuestionError("names are those of one sample", got=f"{len(R)} samples", hint="R.sample(0)")
    canvas, digest = read_canvas(R), str(R.inner.origin.digest())
    notes = input_notes(digest, input_digest(R))
    return {part.name: part.event for part in named_parts(R, canvas, node_names(digest), notes["sets"])}


def joined_blocks(R: Measure, partition: Partition, blocks: Blocks, parts: Sequence[NamedPart]) -> dict[str, list[int]]:
    """The blocks of a partition that named sets are made of, by name; of sets that share blocks, the first has them."""
    site, frame = R.resolve(partition.layer)
    sample = R.samples[0]
    own = blocks.numbering().cpu()
    numbers = own[sample if len(own) > 1 else 0]
    taken: set[int] = set()
    found: dict[str, list[int]] = {}
    for part in parts:
        if R.resolve(part.event.layer)[0] != site:
            continue
        masks = frame.mask(part.event)[0].cpu()
        mask = masks[sample if len(masks) > 1 else 0]
        wide = torch.where(mask, numbers, numbers)  # axes along which only one of them changes are there in full
        mask = mask.expand(wide.shape)
        inside = [n for n in torch.unique(wide[mask]).tolist() if n >= 0]
        whole = bool((torch.isin(wide, torch.tensor(inside, dtype=wide.dtype)) == mask).all())
        if inside and whole and not taken & set(inside):
            found[part.name] = inside
            taken |= set(inside)
    return found
