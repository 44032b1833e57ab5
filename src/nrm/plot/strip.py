"""A strip: an image, its heat map, and those of the strongest combinations of blocks with their shares."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from torch import Tensor

from nrm.errors import NrmError, QuestionError
from nrm.numbers import percent
from nrm.plot.grid import montage
from nrm.plot.heat import SCALE
from nrm.plot.pictures import Picture
from nrm.plot.saving import Size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def strips(
    R: Any, image: Picture, *partitions: Any, k: int = 5, scale: float | str | None = SCALE, title: str | None = None,
    size: float = 1.9, ax: Axes | None = None, figsize: Size | None = None, dpi: float | None = None,
) -> Figure:  # fmt: skip
    """Draw where the strongest combinations of blocks look in an image, such as pairs of clusters of two layers.

    Args:
        R: the measure of one image.
        image: what was explained, as :func:`nrm.plot.heatmap` takes it.
        partitions: of one layer each, as for ``R.flows``: ``nrm.cluster(R, "features.4", 8)``, ``a.channels``.
        k: how many combinations, strongest first; above each stand its share and its blocks.
        scale: as in :func:`nrm.plot.montage`; every heat map has a scale of its own.
        title: text above the strip.
        size: width of a panel in inches.
        ax: whose place the strip takes; a new figure if None.
        figsize: width and height of a new figure, in inches, instead of ``size``.
        dpi: dots per inch of a new figure.

    >>> import torch, nrm
    >>> from torch import nn
    >>> _ = torch.manual_seed(0)
    >>> model = nn.Sequential(
    ...     nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2)
    ... )
    >>> x = torch.rand(1, 1, 8, 8)
    >>> R = nrm.measure(model, x, rules=nrm.ZPlus())
    >>> figure = strips(R, x[0], R["1"].channels, R["3"].channels, k=2)
    >>> [ax.get_title() for ax in figure.axes[:2]]
    ['image', 'all walks']
    >>> print(figure.axes[2].get_title())
    56.4 %
    1.channel(2)
    3.channel(0)
    """
    try:
        if not partitions:
            raise QuestionError("strips of what?", hint='nrm.plot.strips(R, x[0], nrm.cluster(R, "features.4", 8))')
        if len(R) != 1:
            raise QuestionError("strips show one image", got=f"a measure of {len(R)}", hint="nrm.measure(model, x[:1])")
        flows = R.flows(*partitions, k=k)[0]
        heats = [_summed(R(R.input))] + [_summed(R(R.input, *flow)) for flow in flows]
        columns = ["image", "all walks", *(_name(flow) for flow in flows)]
        return montage(
            [(image, *heats)], columns=columns, scale=scale, title=title, size=size, ax=ax, figsize=figsize, dpi=dpi
        )
    except NrmError as error:
        error.at("nrm.plot.strips")
        raise


def _name(flow: Any) -> str:
    """The share of a combination, and each of its blocks in a line of its own."""
    return "\n".join(
        [percent(flow.relevance, 1), *(label or str(block) for block, label in zip_longest(flow, flow.labels))]
    )


def _summed(relevance: Tensor) -> Tensor:
    """Relevance ``(1, C, H, W)`` of an image as one map."""
    return relevance[0].sum(0) if relevance.ndim == 4 else relevance[0]
