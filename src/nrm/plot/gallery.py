"""Contact sheets: the samples of a data set in which blocks of neurons count most."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from nrm.errors import NrmError, QuestionError
from nrm.jobs import Crops, Hits, Ranking, Store, kept_crops
from nrm.plot.heat import INK, frame
from nrm.plot.pictures import read_image
from nrm.plot.saving import subplots

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def gallery(
    found: Ranking, *blocks: Any, k: int = 9, by: str = "relevance", model: Any = None, dataset: Any = None,
    title: str | None = None, size: float = 1.0, **options: Any,
) -> Figure:  # fmt: skip
    """Draw the best samples of blocks, one row per block, best first, each with its number and score.

    A row of a list that is not complete says so.

    Args:
        found: what :func:`nrm.relmax` or :func:`nrm.open_store` gives.
        blocks: sets such as ``a.channel(12)``, or tuples of them for pairs.
        k: how many samples.
        by: ``"relevance"`` or ``"activation"``.
        model: with ``dataset``, the samples are cut to the receptive field of the neuron where the block peaks (of a
            pair: where it has most of its relevance in its last layer); without it they are shown as a whole.
        dataset: the images. Without it, the crops that :func:`nrm.jobs.keep_crops` left in the store are drawn.
        title: text above the sheet.
        size: of a picture in inches.
        options: those of :func:`nrm.measure` that the job had.
    """
    try:
        if not blocks:
            raise QuestionError("a gallery of what?", hint="nrm.plot.gallery(store, a.channel(12))")
        rows = [_read(found, block, k, by, model, dataset, options) for block in blocks]
    except NrmError as error:
        error.at("nrm.plot.gallery")
        raise
    figure: Figure
    figure, grid = subplots(
        "nrm.plot.gallery",
        len(rows),
        k,
        squeeze=False,
        figsize=(k * size + 0.5, len(rows) * (size + 0.35)),
        layout="constrained",
    )
    for axes, block, (hits, pictures) in zip(grid, blocks, rows, strict=True):
        for ax in axes[len(hits) :]:
            ax.set_axis_off()
        for ax, hit, picture in zip(axes, hits, pictures, strict=False):
            ax.imshow(read_image(picture), cmap="gray", vmin=0.0, vmax=1.0, interpolation="antialiased")
            frame(ax, [])
            ax.set_title(f"{hit.sample}: {hit.score:.3g}", fontsize=6, color=INK, pad=2)
        axes[0].set_axis_on()
        pruned = () if hits.complete else ("(pruned: may go on)",)
        name = "\n".join(map(str, (*(block if isinstance(block, tuple) else (block,)), *pruned)))
        axes[0].set_ylabel(name, parse_math=False, fontsize=6, color=INK)
        axes[0].set(xticks=[], yticks=[])
    if title:
        figure.suptitle(title, parse_math=False, color=INK)
    return figure


def _read(
    found: Ranking, block: Any, k: int, by: str, model: Any, dataset: Any, options: dict[str, Any]
) -> tuple[Hits, list[Tensor]]:
    parts = block if isinstance(block, tuple) else (block,)
    hits = found.top(*parts, k=k, by=by)
    if dataset is None:
        if not isinstance(found, Store):
            raise QuestionError("a gallery needs the images", expected="dataset=, or a store with crops")
        return hits, kept_crops(found, parts, by, len(hits))
    crops = Crops(model, dataset, *parts, **options)
    return hits, [crops.of(hit) for hit in hits]
