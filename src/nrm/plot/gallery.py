"""Contact sheets: the samples of a data set in which blocks of neurons count most."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from nrm.errors import NrmError, QuestionError
from nrm.jobs import Crops, Hits, Ranking, Store, kept_crops
from nrm.numbers import with_minus
from nrm.plot.grid import LINE, draw_title
from nrm.plot.heat import INK, frame, wrap
from nrm.plot.pictures import Array, read_image
from nrm.plot.saving import Size, place_grid

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POINTS = 8.0
GROUND = "#f2f2f2"
"""What lies around pictures that are no squares."""


def gallery(
    found: Ranking, *blocks: Any, k: int = 9, by: str = "relevance", model: Any = None, dataset: Any = None,
    title: str | None = None, size: float = 1.1, ax: Axes | None = None, figsize: Size | None = None,
    dpi: float | None = None, **options: Any,
) -> Figure:  # fmt: skip
    """Draw the best samples of blocks, one row per block, best first, each with its number and score.

    All tiles are squares of one size; smaller crops, such as those at the edge of an image, lie in their middle.
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
        ax: whose place the sheet takes; a new figure if None.
        figsize: width and height of a new figure, in inches, instead of ``size``.
        dpi: dots per inch of a new figure.
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
    tile = size if figsize is None else (figsize[0] - 0.5) / k
    names = [_name(block, hits, tile) for block, (hits, _) in zip(blocks, rows, strict=True)]
    beside = LINE * max(name.count("\n") + 1 for name in names)
    page = (k * size + beside, len(rows) * (size + LINE + 0.08) + 0.3 * bool(title))
    figure, grid = place_grid("nrm.plot.gallery", (len(rows), k), ax, page, figsize, dpi)
    for panels, name, (hits, pictures) in zip(grid, names, rows, strict=True):
        for panel in panels[len(hits) :]:
            panel.set_axis_off()
        for panel, hit, picture in zip(panels, hits, pictures, strict=False):
            _draw_tile(panel, read_image(picture))
            score = with_minus(f"{hit.score + 0.0:.3g}")
            panel.set_title(f"{hit.sample}: {score}", fontsize=min(POINTS, 7.5 * tile), color=INK, pad=2)
        panels[0].set_axis_on()
        panels[0].set_ylabel(name, parse_math=False, fontsize=POINTS, color=INK)
        panels[0].set(xticks=[], yticks=[])
    if title:
        draw_title(figure, ax, title, tile * k, 1)
    return figure


def _draw_tile(panel: Axes, picture: Array) -> None:
    """A picture in the middle of a square."""
    height, width = picture.shape[:2]
    panel.imshow(picture, cmap="gray", vmin=0.0, vmax=1.0, interpolation="antialiased")
    room = max(height, width) / 2
    panel.set(
        xlim=(width / 2 - 0.5 - room, width / 2 - 0.5 + room), ylim=(height / 2 - 0.5 + room, height / 2 - 0.5 - room)
    )
    frame(panel, [])
    if height != width:
        panel.set_facecolor(GROUND)


def _name(block: Any, hits: Hits, tile: float) -> str:
    """What stands beside a row."""
    pruned = [] if hits.complete else ["(pruned: may go on)"]
    words = map(str, block if isinstance(block, tuple) else (block,))
    return "\n".join([line for word in words for line in wrap(word, tile + LINE, POINTS)] + pruned)


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
