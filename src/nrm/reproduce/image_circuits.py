"""Circuits of image networks against blurred images: blocks as nodes of a residual stream, channels as nodes of layers.

A circuit of channels keeps some channels of every chosen layer. Its predicted mass is the joint relevance of these
sets, that of the walks which pass nothing else; it is judged by putting all other channels to their values for the
blurred image. Half of the images choose, the other half judge.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from nrm.evaluate import area, patch, pearson, remove
from nrm.measure import CircuitFinder, CircuitPart, Measure, measure
from nrm.reproduce.drawing import panels
from nrm.reproduce.experiment import Experiment, Outcome, Setting, UnitPlan, ranges
from nrm.reproduce.store import Tensors, Unit
from nrm.reproduce.tables import TableRow
from nrm.reproduce.vgg import ImageSubject, cifar, subject

IMAGES = 24
BATCH = 2
"""Images that are measured together."""
SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""The shares of the channels of every layer that a circuit keeps."""
RANKINGS = ("relevance", "activation difference", "random")
LAYERS = {
    "VGG16-Imagenette": ("features.3", "features.8", "features.15", "features.22", "features.29"),
    "VGG16 (torchvision)": ("features.3", "features.8", "features.15", "features.22", "features.29"),
    "ResNet18-CIFAR10": ("layer1", "layer2", "layer3", "layer4"),
    "small CNN on digits": ("1", "4", "6"),
}
"""The outputs of blocks, whose channels are nodes. Every walk passes each of them."""
TRUSTED = 1.3
"""Predictions above it saturate, and are left out where predictions are judged."""


@dataclass(frozen=True, eq=False)
class CircuitImages:
    """A network with images of one shape and their classes; the first half chooses a circuit, the second judges it."""

    name: str
    model: nn.Module
    images: Tensor
    classes: Tensor

    @classmethod
    def of(cls, found: ImageSubject, count: int) -> CircuitImages:
        """The first images of a network."""
        samples = [found.sample(i) for i in range(min(count, found.count))]
        classes = torch.tensor([c for _, c in samples])
        return cls(found.name, found.model, torch.stack([x for x, _ in samples]), classes)

    def choosing(self) -> Iterator[Measure]:
        """The contrasts of the images that choose, in batches; one at a time, as they are large."""
        return map(self._measured, ranges(len(self.images) // 2, BATCH))

    def judging(self) -> Iterator[Measure]:
        """The contrasts of the images that judge."""
        half = len(self.images) // 2
        rest = ranges(len(self.images) - half, BATCH)
        return (self._measured(range(half + rows.start, half + rows.stop)) for rows in rest)

    def _measured(self, rows: range) -> Measure:
        some = slice(rows.start, rows.stop)
        return measure(self.model, self.images[some], against="blur", target=self.classes[some], progress=False)


def _random(shape: Sequence[int]) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(0))


# ---- blocks as nodes -------------------------------------------------------------------------------------------------


def _by_blocks(own: CircuitImages) -> Tensors:
    """Circuits of direct edges of every size, patched on the images that judge."""
    finder = CircuitFinder([CircuitPart.of(R.inner) for R in own.choosing()])
    count = int(finder.exists.sum())
    rankings = {"relevance": finder.shares.abs(), "random": _random(finder.shares.shape)}
    chosen = [finder.circuit(finder.by_share(n, s)) for s in rankings.values() for n in range(1, count + 1)]
    total = torch.zeros(3, len(chosen))
    for R in own.judging():
        for k, alone in enumerate(chosen):
            one = patch(R, alone)
            gap = one.clean - one.corrupted
            total[:, k] += torch.stack([(one.values - one.corrupted).sum(), (one.masses * gap).sum(), gap.sum()])
    f, mass = (total[:2] / total[2]).view(2, len(rankings), count)
    return _table(torch.arange(1, count + 1) / count, list(rankings), f, mass)


def _table(shares: Tensor, rankings: Sequence[str], f: Tensor, mass: Tensor) -> Tensors:
    """Curves ``(rankings, shares)`` as they are kept."""
    found = {"share": shares}
    for name, measured, predicted in zip(rankings, f, mass, strict=True):
        found |= {f"{name}/f": measured.clone(), f"{name}/mass": predicted.clone()}
    return found


# ---- channels as nodes -----------------------------------------------------------------------------------------------


def _by_channels(own: CircuitImages) -> Tensors:
    """Circuits of the first channels of every layer in several orders, on the images that judge."""
    layers = LAYERS[own.name]
    scores = _channel_scores(own.choosing(), layers)
    kept = [
        [s[name].argsort(descending=True, stable=True)[: math.ceil(share * len(s[name]))].tolist() for s in scores]
        for name in RANKINGS
        for share in SHARES
    ]
    f, mass = (part.view(len(RANKINGS), len(SHARES)) for part in _judged(own.judging(), layers, kept))
    return _table(torch.tensor(SHARES), RANKINGS, f, mass)


def _channel_scores(measures: Iterator[Measure], layers: Sequence[str]) -> list[dict[str, Tensor]]:
    """The scores of the channels of every layer, by ranking: in units of the output, over all images."""
    sums: list[dict[str, Tensor]] = [{} for _ in layers]
    for R in measures:
        for found, layer in zip(sums, layers, strict=True):
            relevance = R.in_units(R[layer].channels).sum(0)
            changes = _change(R, layer).abs().flatten(2).sum((0, 2))
            for name, more in zip(RANKINGS, (relevance, changes), strict=False):
                found[name] = found.get(name, torch.zeros_like(more)) + more
    for found in sums:
        found["relevance"] = found["relevance"].abs()
        found["random"] = _random(found["relevance"].shape)
    return sums


def _change(R: Measure, layer: str) -> Tensor:
    """What is different in a layer from the blurred images."""
    site, frame = R.resolve(R[layer])
    assert R.inner.tape.runs is not None  # it is a contrast
    here, there = (run.nodes[site.node].value for run in R.inner.tape.runs)
    return frame.to_samples((here - there)[None])[0]


def _judged(
    measures: Iterator[Measure], layers: Sequence[str], circuits: Sequence[Sequence[list[int]]]
) -> tuple[Tensor, Tensor]:
    """What comes back with some channels of every layer, and the predicted mass, as shares of the mean difference."""
    values, masses, gap = torch.zeros(len(circuits)), torch.zeros(len(circuits)), torch.zeros(())
    for R in measures:
        assert R.inner.target.runs is not None  # it is a contrast
        here, there = R.inner.target.runs
        gap = gap + (here - there).sum()
        for k, kept in enumerate(circuits):
            sets = [R[layer].channel(some) for layer, some in zip(layers, kept, strict=True)]
            rest = [~s for s, some in zip(sets, kept, strict=True) if len(some) < _width(R, s.layer.name)]
            alone = _target_of(R, remove(R, *rest, value="reference")) if rest else here
            values[k] += (alone - there).sum()
            masses[k] += R.in_units(*sets).sum()
    return values / gap, masses / gap


def _width(R: Measure, layer: str) -> int:
    return R.resolve(R[layer])[1].shape[1]


def _target_of(R: Measure, outputs: Tensor) -> Tensor:
    """The outputs of every image's own class."""
    assert R.inner.target.index is not None
    return outputs.gather(1, R.inner.target.index[:, None])[:, 0]


# ---- tables ----------------------------------------------------------------------------------------------------------


def _rows(name: str, nodes: str, part: Tensors) -> list[TableRow]:
    """A row for every ranking."""
    sizes = part["share"].tolist()
    rows: list[TableRow] = []
    for ranking in [r for r in RANKINGS if f"{r}/f" in part]:
        f, mass = part[f"{ranking}/f"].double(), part[f"{ranking}/mass"].double()
        trusted = mass <= TRUSTED
        far = (1 - f).abs().tolist()
        rows.append(
            {
                "model": name, "nodes": nodes, "ranking": ranking, "cmd": area(sizes, far),
                "log_cmd": area(sizes, far, log=True),
                **{f"f at {100 * s:g} %": float(f[(part["share"] - s).abs().argmin()]) for s in (0.05, 0.2, 0.5)},
                "prediction off by": float((f - mass).abs()[trusted].mean()),
                "r with prediction": float(pearson(f[None, trusted], mass[None, trusted])[0]),
            }
        )  # fmt: skip
    return rows


def _figure(parts: Mapping[str, Tensors]) -> object:
    """What comes back, and what was predicted, over the sizes of circuits."""
    figure, axes = panels(1, len(parts), 4.0, 3.2)
    for ax, (title, part) in zip(axes[0], parts.items(), strict=True):
        for k, ranking in enumerate(RANKINGS):
            if f"{ranking}/f" in part:
                ax.plot(part["share"], part[f"{ranking}/f"], marker="o", ms=3, color=f"C{k}", label=ranking)
                ax.plot(part["share"], part[f"{ranking}/mass"], ls=":", color=f"C{k}")
        ax.set_xscale("log")
        ax.set_title(title, fontsize=9)
        ax.set_xlabel("share of edges" if "blocks" in title else "share of the channels of every layer")
        ax.set_ylim(-0.3, 1.6)
    axes[0][0].set_ylabel("share of the difference\n(dotted: predicted)")
    axes[0][0].legend(fontsize=8)
    return figure


def _plan(setting: Setting) -> UnitPlan:
    networks = [subject(setting)] + ([] if setting.embedded else [cifar(setting)])
    count = setting.samples or IMAGES
    work: dict[tuple[str, str], Callable[[], Tensors]] = {}
    for found in networks:
        own = CircuitImages.of(found, count)
        work[found.name, "channels"] = partial(_by_channels, own)
        if found.name.startswith("ResNet"):
            work[found.name, "blocks"] = partial(_by_blocks, own)
    keys = {pair: f"{pair[0]}-{pair[1]}-{count}" for pair in work}
    units = [Unit(keys[pair], one) for pair, one in work.items()]

    def finish() -> Outcome:
        parts = {pair: setting.store.read(key) for pair, key in keys.items()}
        rows = [row for (name, nodes), part in parts.items() for row in _rows(name, nodes, part)]
        figure = _figure({f"{name}: {nodes}": part for (name, nodes), part in parts.items()})
        return Outcome(rows, {"images": count, "outside": "blurred images"}, {"curves": figure})

    return units, finish


IMAGE_CIRCUITS = Experiment(
    "image-circuits", "Circuits of image networks against blurred images", "beyond the paper", _plan
)
