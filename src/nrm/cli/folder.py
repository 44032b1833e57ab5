"""A folder of results of one input: numbers as JSON and safetensors, pictures as PNG and SVG."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nrm.cli.output import as_text
from nrm.extras import extra
from nrm.files import mark_results, replacing, write_text
from nrm.plot import draw_flows, heatmap, text
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
    axes = draw_flows(view.R, view.drawn())
    yield from _save(axes.figure, folder, "flows")


def _save(figure: Any, folder: Path, name: str) -> Iterator[str]:
    for kind in ("png", "svg"):
        save_picture(figure, folder / f"{name}.{kind}", close=kind == "svg")
        yield f"{name}.{kind}"


def save_picture(figure: Any, path: Path, close: bool = True) -> None:
    """Writes a figure in the format that the name ends with, as a whole or not at all, and closes it."""
    with extra("viz", "pictures of results"):
        import matplotlib.pyplot as plt
    with replacing(path) as new:
        figure.savefig(new, format=path.suffix[1:].lower(), dpi=RESOLUTION)
    if close:
        plt.close(figure)
