"""A folder of results of one input: numbers as JSON and safetensors, pictures as PNG and SVG."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nrm.cli.output import write_json
from nrm.extras import extra
from nrm.plot import flows, heatmap, text
from nrm.report import View
from nrm.results import replacing, save

RESOLUTION = 130


def write_folder(folder: Path, view: View, document: dict[str, Any]) -> list[str]:
    """Writes the results of a view and returns the names of the files, each there as a whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    R, variable = view.R, view.canvas.variable
    tensors: dict[str, Any] = {"input": (R(variable), (variable,))}
    for shown in view.columns:
        share = R(shown.partition)
        tensors[str(shown.partition)] = (share, ("sample", *[str(shown.partition)] * (share.ndim - 1)))
    save(folder / "relevance.safetensors", measure=R, **tensors)
    write_json(folder / "result.json", document)
    return ["result.json", "relevance.safetensors", *_pictures(folder, view)]


def _pictures(folder: Path, view: View) -> Iterator[str]:
    R, canvas = view.R, view.canvas
    heat = R(canvas.variable)[0]
    if canvas.kind == "image":
        image = R.values(canvas.layer)[0] if canvas.variable is not canvas.layer else None
        axes = heatmap(heat.reshape(canvas.shape), image, value=R.value, rest=1 - float(heat.sum()))
        yield from _save(axes.figure, folder, "heat")
    else:
        text(heat.flatten(), canvas.tokens).save(folder / "heat.html")
        yield "heat.html"
    axes = flows(R, *(shown.partition for shown in view.columns), nodes=view.choice.nodes)
    yield from _save(axes.figure, folder, "flows")


def _save(figure: Any, folder: Path, name: str) -> Iterator[str]:
    with extra("viz", "pictures of results"):
        import matplotlib.pyplot as plt
    for kind in ("png", "svg"):
        with replacing(folder / f"{name}.{kind}") as new:
            figure.savefig(new, format=kind, dpi=RESOLUTION)
        yield f"{name}.{kind}"
    plt.close(figure)
