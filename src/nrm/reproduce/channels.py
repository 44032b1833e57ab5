"""The paper's experiment on pairs of channels in VGG16."""

from __future__ import annotations

from functools import partial
from typing import Any

from nrm.jobs import relmax
from nrm.measure import Measure
from nrm.numbers import percent
from nrm.plot import heatmap
from nrm.questions import Set
from nrm.reproduce.drawing import panels
from nrm.reproduce.experiment import Experiment, Outcome
from nrm.reproduce.store import Tensors
from nrm.reproduce.tables import joined
from nrm.reproduce.vgg import (
    PAPER,
    ImageSubject,
    LayerPair,
    common_figures,
    firsts,
    heat_of,
    judged,
    plan,
    rows_for,
    scored,
)

SHOWN, EXAMPLES = 3, 4
"""Images that are drawn with their strongest pair, and images in which that pair is most relevant."""


def _channels(found: ImageSubject, R: Measure) -> LayerPair:
    return R[found.channels[0]].channels, R[found.channels[1]].channels


def _judge(found: ImageSubject, i: int) -> Tensors:
    R = found.measured(i, PAPER)
    asked = _channels(found, R)
    return judged(R, asked, scored(found, i, R, asked))


def _finish(found: ImageSubject, parts: list[Tensors]) -> Outcome:
    table = joined(parts)
    figures = common_figures(found, {"all samples": table}, partial(_channels, found))
    figures["pairs"] = _pairs(found, len(parts))
    return Outcome(rows_for(found, table), {"network": found.name, "layers": " x ".join(found.channels)}, figures)


class _Samples:
    """Images with their classes, as a data set."""

    def __init__(self, found: ImageSubject, count: int) -> None:
        self.found, self.count = found, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> Any:
        return self.found.sample(i)


def _pairs(found: ImageSubject, count: int) -> Any:
    """Images, their heat maps, those of their strongest pairs, and the images in which these pairs count most."""
    images = firsts(found, count)[:SHOWN]
    measures = [found.measured(i, PAPER) for i in images]
    flows = [R.flows(*_channels(found, R), k=1)[0][0] for R in measures]
    best = relmax(
        found.model, _Samples(found, count), *(tuple(flow) for flow in flows), target="label", k=EXAMPLES,
        batch_size=1, rules=PAPER, zero="uniform",
    )  # fmt: skip
    figure, axes = panels(len(images), 3 + EXAMPLES, 1.9, 2.15)
    for row, i, R, flow in zip(axes, images, measures, flows, strict=True):
        _draw(row[0], found, i, None, "\n".join(map(str, flow)))
        _draw(row[1], found, i, R, "all walks")
        _draw(row[2], found, i, R, f"the pair: {percent(flow.relevance, 2)}", *flow)
        for rank, (ax, j) in enumerate(zip(row[3:], best.top(*flow, k=EXAMPLES).samples, strict=False), 1):
            _draw(ax, found, j, found.measured(j, PAPER), f"RelMax {rank}", *flow)
        for ax in row[3 + min(count, EXAMPLES) :]:
            ax.set_axis_off()
    return figure


def _draw(ax: Any, found: ImageSubject, i: int, R: Measure | None, title: str, *sets: Set) -> None:
    """An image, or its heat map of the walks through some sets."""
    picture = found.picture(found.sample(i)[0])
    if R is None:
        ax.imshow(picture.permute(1, 2, 0).numpy(), cmap="gray")
    else:
        heatmap(heat_of(R(R.input, *sets)), picture, ax=ax, scale="99.5%", colorbar=False)
    ax.set(xticks=[], yticks=[])
    ax.set_title(title, fontsize=8)


CHANNELS = Experiment(
    "vgg-channels", "Pairs of channels in VGG16",
    "table of correlations (VGG16 channel), figure of SC_k for VGG16 (left), heat maps of joint channels",
    lambda setting: plan(setting, _judge, _finish),
)  # fmt: skip
