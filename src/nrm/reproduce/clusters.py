"""The paper's experiment on pairs of clusters of positions in VGG16.

Removed positions become 0, as in the paper, or the mean over all positions: zeros inside an image are edges that were
not there, and the network sees them.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor

from nrm.measure import Measure
from nrm.plot import strips
from nrm.reproduce.experiment import Experiment, Outcome
from nrm.reproduce.store import Tensors
from nrm.reproduce.tables import joined
from nrm.reproduce.vgg import PAPER, ImageSubject, clusters, common_figures, firsts, judged, plan, rows_for, scored

BEST = 5
"""So many of the strongest pairs are drawn."""
REMOVALS = ("zero", "mean")


def _mean(R: Measure, layer: str) -> Tensor:
    """The mean of every channel over all positions."""
    own = R.values(layer)[0]
    return own.mean((1, 2), keepdim=True).expand_as(own)


def _judge(found: ImageSubject, i: int) -> Tensors:
    R = found.measured(i, PAPER)
    asked = clusters(found, R)
    own = scored(found, i, R, asked)
    values = {"zero": "zero", "mean": {layer: _mean(R, layer) for layer in found.blocks}}
    return {f"{name} {key}": t for name in REMOVALS for key, t in judged(R, asked, own, values[name]).items()}


def _table(parts: list[Tensors], removal: str) -> Tensors:
    return joined([{k.removeprefix(f"{removal} "): t for k, t in p.items() if k.startswith(removal)} for p in parts])


def _finish(found: ImageSubject, parts: list[Tensors]) -> Outcome:
    tables = {removal: _table(parts, removal) for removal in REMOVALS}
    rows = [row for removal, table in tables.items() for row in rows_for(found, table, removal=removal)]
    figures = common_figures(found, {f"removal: {k}": t for k, t in tables.items()}, partial(clusters, found))
    for n, i in enumerate(firsts(found, len(parts))[:2]):
        R = found.measured(i, PAPER)
        figures[f"strips-{n}"] = strips(R, found.picture(found.sample(i)[0]), *clusters(found, R), k=BEST)
    facts = {"network": found.name, "layers": " x ".join(found.blocks), "clusters": "k-means of positions"}
    return Outcome(rows, facts, figures)


CLUSTERS = Experiment(
    "vgg-clusters", "Pairs of clusters in VGG16",
    "table of correlations (VGG16 cluster), figure of SC_k for VGG16 (right), heat maps of joint clusters",
    lambda setting: plan(setting, _judge, _finish),
)  # fmt: skip
