"""Which of the presets is most faithful on trained networks, and is the default among them?

Two judgements. Joint contributions: the correlation of the relevance of pairs of channels of two layers with what
really happens when both are removed. Deletion: how much of the explained class's probability is lost while the most
relevant squares of an image are removed, the mean over ``FRACTIONS``. One half of the samples is there to choose by,
the other to report; intervals are bootstrapped over the samples of a half. Needs the real data ($NRM_DATA).
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import nrm  # noqa: E402
from real import models  # noqa: E402

FRACTIONS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7)
GRID = 14
LOW, HIGH = (((bound - models.MEAN) / models.DEVIATION).view(3, 1, 1) for bound in (0.0, 1.0))
GAMMA = {"conv": nrm.Gamma(0.25), "*": "lrp-0"}
PRESETS: dict[str, dict[str, Any]] = {
    "auto": {}, "lrp-0": {"rules": "lrp-0"}, "gamma 0.25": {"rules": GAMMA}, "epsilon-plus": {"rules": "epsilon-plus"},
    "epsilon-plus-flat": {"rules": "epsilon-plus-flat"}, "epsilon-alpha2-beta1": {"rules": "epsilon-alpha2-beta1"},
    "epsilon-gamma-flat": {"rules": "epsilon-gamma-flat"},
    "epsilon-gamma-box": {"rules": nrm.composite("epsilon-gamma-box", low=LOW, high=HIGH)},
}  # fmt: skip
"""What is compared; all but the box need no bounds of the input."""


@dataclass(frozen=True)
class Judged:
    """A network of images, two layers whose channels are taken in pairs, and every how many of each."""

    layers: tuple[str, str]
    strides: tuple[int, int]


NETWORKS = {
    "VGG16-Imagenette": Judged(("features.26", "features.28"), (32, 32)),
    "ResNet18-CIFAR10": Judged(("layer4.0", "layer4.1"), (8, 8)),
    "SqueezeNet": Judged(("features.11", "features.12"), (32, 32)),
    "MobileNetV2": Judged(("features.16", "features.17"), (16, 32)),
}


def images(name: str, data: Path, count: int) -> list[Tensor]:
    """Images that were not trained on, of all classes in turn."""
    if name == "ResNet18-CIFAR10":
        with np.load(data / "resnet18-cifar10" / "cifar10_test_1000.npz") as kept:
            arrays = [torch.from_numpy(kept[key]) for key in kept.files]
        found = next(a for a in arrays if a.ndim == 4)[:count]
        found = found.permute(0, 3, 1, 2) if found.shape[-1] == 3 else found
        return list(found.float() / 255 if found.dtype == torch.uint8 else found.float())
    folders = sorted((data / "imagenette" / "val").iterdir())
    files = [sorted(folder.iterdir())[k] for k in range(-(-count // len(folders))) for folder in folders]
    return [models.photo(file) for file in files[:count]]


def lost(model: nn.Module, x: Tensor, R: nrm.Measure) -> float:
    """The share of the class's probability that is lost, the mean over fractions of the image."""
    heat = R(R.input.positions)[0].float()
    side = x.shape[-1] // min(GRID, x.shape[-1] // 2)
    squares = torch.nn.functional.avg_pool2d(heat[None, None], side, ceil_mode=True)[0, 0]
    order = squares.flatten().argsort(descending=True)
    variants = []
    for fraction in FRACTIONS:
        gone = torch.zeros_like(squares).flatten()
        gone[order[: max(1, round(fraction * len(order)))]] = 1
        mask = gone.view(squares.shape).repeat_interleave(side, 0).repeat_interleave(side, 1)
        variants.append(torch.where(mask[: x.shape[-2], : x.shape[-1]] > 0, x.mean((1, 2), keepdim=True), x))
    with torch.no_grad():
        odds = model(torch.stack([x, *variants])).softmax(1)[:, int(R.target)]
    return float(1 - (odds[1:] / odds[0]).mean())


def joint(R: nrm.Measure, judged: Judged, truth: Tensor | None) -> tuple[float, Tensor]:
    """The correlation with joint contributions, which are the same for all rules."""
    pair = [nrm.layer(name).channels[::stride] for name, stride in zip(judged.layers, judged.strides, strict=True)]
    truth = nrm.evaluate.contribution(R, *pair) if truth is None else truth
    return float(nrm.evaluate.pearson(R(*pair).flatten(1), truth.flatten(1))), truth


def main() -> None:
    """Prints a table for every network."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--count", type=int, default=20, help="images of every network, half of them to choose by")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    data = Path(os.environ.get("NRM_DATA") or ROOT.parent / "shared" / "data")
    for name in given.networks:
        model = models.load(name, data)
        print(f"\n### {name}\n", flush=True)
        show(judge(model, name, images(name, data, given.count)))


def judge(model: nn.Module, name: str, given: list[Tensor]) -> dict[str, list[tuple[float, float]]]:
    """Both numbers of every preset and image; what the library refuses counts 0."""
    rows: dict[str, list[tuple[float, float]]] = {preset: [] for preset in PRESETS}
    for x in given:
        truth = None
        for preset, options in PRESETS.items():
            try:
                if name == "ResNet18-CIFAR10" and preset == "epsilon-gamma-box":
                    options = {"rules": nrm.composite("epsilon-gamma-box", low=0.0, high=1.0)}
                R = nrm.measure(model, x[None], **options)
                agreement, truth = joint(R, NETWORKS[name], truth)
                rows[preset].append((agreement, lost(model, x, R)))
            except (nrm.MassError, nrm.PrecisionError):
                rows[preset].append((0.0, 0.0))
    return rows


def show(rows: dict[str, list[tuple[float, float]]]) -> None:
    """The table, with the half to choose by and the half to report."""
    print("| preset | joint, chosen by | deletion, chosen by | joint, reported | deletion, reported |")
    print("|---|---|---|---|---|")
    for preset, found in rows.items():
        values = torch.tensor(found, dtype=torch.float64)
        cells = [value for half in (values[0::2], values[1::2]) for value in (half[:, 0], half[:, 1])]
        print(f"| {preset} | " + " | ".join(map(_cell, cells)) + " |", flush=True)


def _cell(values: Tensor) -> str:
    low, high = nrm.evaluate.interval(values)
    return f"{float(values.mean()):.3f} ({float(low):.3f} to {float(high):.3f})"


if __name__ == "__main__":
    main()
