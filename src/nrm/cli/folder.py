"""A folder of results of one input: numbers as JSON and safetensors, pictures as PNG and SVG."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nrm.cli.output import as_text
from nrm.files import mark_results, write_text
from nrm.plot import draw_flows, heatmap, save_and_close, text
from nrm.report import View
from nrm.results import save

RESOLUTION = 130


def write_json(path: Path, data: Any) -> None:
    """Writes a document; the file is there as a whole or not at all."""
    write_text(path, as_text(data) + "\n")


def write_heat(folder: Path, view: View) -> list[str]:
    """Writes the heat map of a view as a picture (as a page, if it is no image)."""
    mark_results(folder)
    return list(_heat(folder, view))


def write_folder(folder: Path, view: View, document: dict[str, Any], flows: bool) -> list[str]:
    """Writes the numbers of a view, and its flows if they are wanted; the heat map is there already.

    Returns the names of all files, each there as a whole or not at all.
    """
    R, variable = view.R, view.canvas.variable
    asked = [("input", variable), *((str(one.partition), one.partition) for one in (view.columns if flows else ()))]
    tensors: dict[str, Any] = {}
    for name, variable in asked:
        share = R(variable)
        tensors[name] = (share, ("sample", *[str(variable)] * (share.ndim - 1)))
    # The light check, where no other was made: what is fast does not wait for a certificate.
    save(folder / "relevance.safetensors", measure=R.describe(view.certificate or R.inner.light), **tensors)
    write_json(folder / "result.json", document)
    pictures = _flows(folder, view) if flows else ()
    heat = [name for name in ("heat.png", "heat.svg", "heat.html") if (folder / name).exists()]
    return ["result.json", "relevance.safetensors", *heat, *pictures]


def _heat(folder: Path, view: View) -> Iterator[str]:
    R, canvas = view.R, view.canvas
    heat = R(canvas.variable)[0]
    if canvas.kind == "image":
        image = R.values(canvas.layer)[0] if canvas.variable is not canvas.layer else None
        axes = heatmap(heat.reshape(canvas.shape), image, value=R.value, rest=1 - float(heat.sum()))
        yield from _save(axes.figure, folder, "heat")
    else:
        text(heat.flatten(), canvas.tokens).save(folder / "heat.html")
        yield "heat.html"


def _flows(folder: Path, view: View) -> Iterator[str]:
    yield from _save(draw_flows(view.R, view.drawn()).figure, folder, "flows")


def _save(figure: Any, folder: Path, name: str) -> list[str]:
    names = [f"{name}.png", f"{name}.svg"]
    save_and_close(figure, *(folder / one for one in names), dpi=RESOLUTION, tight=False)
    return names
