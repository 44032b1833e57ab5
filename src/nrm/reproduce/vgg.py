"""The paper's experiments on VGG16: pairs of channels, and pairs of clusters of positions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from nrm.evaluate import compare, contribution, scores
from nrm.measure import Measure, measure
from nrm.plot import montage
from nrm.questions.values import Partition
from nrm.reproduce.data import digits, folder_of, labelled_files, mixed, photo, shown
from nrm.reproduce.drawing import correlation_figure, curves_figure
from nrm.reproduce.experiment import Experiment, Outcome, Plan, Setting
from nrm.reproduce.networks import VGG, load, shuffled, small_cnn, torchvision_vgg, train
from nrm.reproduce.store import Tensors, Unit
from nrm.reproduce.tables import Row, as_tensors, joined, rows_of
from nrm.rules import Composite, Gamma, composite
from nrm.search import cluster

PAPER = "epsilon-plus-flat"
SAMPLES = 100
BEST = 5
"""So many of the strongest pairs are drawn."""


def gamma(strength: float) -> Composite:
    """The paper's rules with gamma instead of z+ in the convolutions, and biases as inputs."""
    rules = composite(PAPER)
    return replace(rules, name=f"gamma {strength:g}", conv=Gamma(strength), add=Gamma(strength), bias="input")


@dataclass(frozen=True, eq=False)
class Subject:
    """A network with images: which layers are asked about, and how an input looks."""

    name: str
    model: nn.Module
    count: int
    sample: Callable[[int], tuple[Tensor, int]]
    channels: tuple[str, str]
    blocks: tuple[str, str]
    picture: Callable[[Tensor], Tensor]

    def measured(self, index: int, rules: Any) -> Measure:
        """A sample explained for its true class."""
        x, target = self.sample(index)
        return measure(self.model, x[None], target=target, rules=rules, zero="uniform", progress=False)


def subject(setting: Setting) -> Subject:
    """VGG16 with the head for Imagenette if its weights are there, else torchvision's; or a small network."""
    if setting.embedded:
        return _small(setting)
    home = setting.data
    if home is not None and (home / "vgg16-imagenette").exists():
        model = load(VGG(512, 10), home / "vgg16-imagenette" / "vgg16_imagenette.safetensors")
        files = mixed(labelled_files(folder_of(home, "imagenette", "Imagenette images") / "val"))
        name = "VGG16-Imagenette"
    else:
        files = mixed(labelled_files(folder_of(home, "imagenet", "ImageNet images (a folder per class)")))
        model, name = torchvision_vgg(), "VGG16 (torchvision)"
    layers = ("features.26", "features.28"), ("features.4", "features.30")
    return Subject(name, model, len(files), lambda i: (photo(files[i][0]), files[i][1]), *layers, shown)


def _small(setting: Setting) -> Subject:
    learn, test = digits()
    model = small_cnn()

    def work() -> Tensors:
        torch.manual_seed(0)
        fresh = train(small_cnn(), shuffled(learn, 64, 0), 300, 3e-3)
        return dict(fresh.state_dict())

    model.load_state_dict(setting.store.keep("weights", work))
    pairs = ("4", "6"), ("3", "8")
    sample: Callable[[int], tuple[Tensor, int]] = lambda i: (test.inputs[i], int(test.classes[i]))  # noqa: E731
    return Subject("small CNN on digits", model.eval(), 500, sample, *pairs, lambda x: x.view(1, 8, 8))


def _plan(setting: Setting, judge: Callable[..., Tensors], finish: Callable[..., Outcome]) -> Plan:
    found = subject(setting)
    count = min(setting.samples or SAMPLES, found.count)
    keys = [f"sample-{i:05d}" for i in range(count)]
    units = [Unit(key, partial(judge, found, i)) for i, key in enumerate(keys)]
    return units, lambda: finish(found, [setting.store.read(key) for key in keys])


def compared(found: Subject, i: int, pairs: Callable[[Measure], tuple[Partition, Partition]], *others: Any) -> Tensors:
    """All methods under the paper's rules, and the measure under others, against one table of contributions."""
    R = found.measured(i, PAPER)
    asked = pairs(R)
    own = {f"nrm ({rules.name})": scores(found.measured(i, rules), *asked) for rules in others}
    kept = as_tensors(compare(R, *asked, scores=own))
    return kept | {f"marginal/{k}": R(p) * R.value[:, None] for k, p in enumerate(asked)}


def _rows(found: Subject, table: Tensors) -> list[Row]:
    rows = rows_of(table, order=2, model=found.name, bias="ignore", rules=PAPER)
    return [{**row, "bias": "ignore" if row["rules"] == PAPER else "input"} for row in rows]


def _common_figures(found: Subject, table: Tensors, pairs: Callable[[Subject, Measure], Any]) -> dict[str, Any]:
    """SC_k of all samples, and the points of the first one."""
    R = found.measured(0, PAPER)
    asked = pairs(found, R)
    own = {name: scores(R, *asked, method=name) for name in ("nrm", "lrp", "occlusion", "activation")}
    scattered = {"first sample": (contribution(R, *asked), own)}
    return {"sc_k": curves_figure({"all samples": table}), "scatter": correlation_figure(scattered)}


# --- channels ---


def _channels(found: Subject, R: Measure) -> tuple[Partition, Partition]:
    return R[found.channels[0]].channels, R[found.channels[1]].channels


def _judge_channels(found: Subject, i: int) -> Tensors:
    return compared(found, i, partial(_channels, found), gamma(0.25))


def _finish_channels(found: Subject, parts: list[Tensors]) -> Outcome:
    table = joined(parts)
    figures = _common_figures(found, table, _channels) | {
        "pairs": _pairs_figure(found, min(3, len(parts))),
        "relmax": _relmax_figure(found, table),
    }
    return Outcome(_rows(found, table), {"network": found.name, "layers": " x ".join(found.channels)}, figures)


def _pairs_figure(found: Subject, count: int) -> Any:
    """Images, their heat maps, and those of their strongest pairs of channels."""
    rows, names = [], []
    for i in range(count):
        R = found.measured(i, PAPER)
        flow = R.flows(*_channels(found, R), k=1)[0][0]
        x = found.sample(i)[0]
        rows.append((found.picture(x), heat_of(R(R.input)), heat_of(R(R.input, *flow))))
        names.append("\n".join([*map(str, flow), f"{100 * flow.relevance:.2f} %"]))
    return montage(rows, names=names, columns=["image", "all walks", "the strongest pair"], scale="99.5%")


def heat_of(relevance: Tensor) -> Tensor:
    """Relevance ``(1, ...)`` of the input as a picture."""
    return relevance.view(1, 8, 8) if relevance.shape[-1] == 64 and relevance.ndim == 2 else relevance[0].sum(0)


def _relmax_figure(found: Subject, table: Tensors) -> Any:
    """For the strongest channel of each layer in the first image: the images in which it is most relevant."""
    rows, names = [], []
    for k, layer in enumerate(found.channels):
        channel = int(table[f"marginal/{k}"][0].argmax())
        best = table[f"marginal/{k}"][:, channel].topk(min(3, len(table["value"]))).indices.tolist()
        for i in best[:3]:
            R = found.measured(i, PAPER)
            rows.append((found.picture(found.sample(i)[0]), heat_of(R(R.input, R[layer].channel(channel)))))
            names.append(f"{layer}, channel {channel}")
    return montage(rows, names=names, columns=["image", "its walks"], scale="99.5%")


# --- clusters ---


def _clusters(found: Subject, R: Measure) -> tuple[Partition, Partition]:
    return cluster(R, found.blocks[0], 8), cluster(R, found.blocks[1], 8 if found.blocks[1] != "8" else 4)


def _judge_clusters(found: Subject, i: int) -> Tensors:
    return compared(found, i, partial(_clusters, found), gamma(0.25))


def _finish_clusters(found: Subject, parts: list[Tensors]) -> Outcome:
    table = joined(parts)
    figures = _common_figures(found, table, _clusters)
    figures |= {f"strips-{i}": _strips(found, i) for i in range(min(2, len(parts)))}
    facts = {"network": found.name, "layers": " x ".join(found.blocks), "clusters": "k-means of positions"}
    return Outcome(_rows(found, table), facts, figures)


def _strips(found: Subject, i: int) -> Any:
    """An image, its heat map, and those of its strongest pairs of clusters, with their shares."""
    R = found.measured(i, PAPER)
    asked = _clusters(found, R)
    flows = R.flows(*asked, k=BEST)[0]
    heats = [heat_of(R(R.input, *flow)) for flow in flows]
    columns = ["image", "all walks", *(f"{100 * flow.relevance:.1f} %" for flow in flows)]
    rows = [(found.picture(found.sample(i)[0]), heat_of(R(R.input)), *heats)]
    return montage(rows, columns=columns, scale="99.5%")


CHANNELS = Experiment(
    "vgg-channels", "Pairs of channels in VGG16",
    "table of correlations (VGG16 channel), figure of SC_k for VGG16 (left), heat maps of joint channels",
    lambda setting: _plan(setting, _judge_channels, _finish_channels),
)  # fmt: skip
CLUSTERS = Experiment(
    "vgg-clusters", "Pairs of clusters in VGG16",
    "table of correlations (VGG16 cluster), figure of SC_k for VGG16 (right), heat maps of joint clusters",
    lambda setting: _plan(setting, _judge_clusters, _finish_clusters),
)  # fmt: skip
