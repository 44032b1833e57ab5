"""Draws docs/images/start.png: how VGG16's decision about a photo flowed through clusters of positions in four layers.

Run by ``make start``. The photo is one that scikit-learn ships; the network is VGG16 with torchvision's ImageNet
convolutions and a head of ten classes that was trained on Imagenette, from the real data of the tests (beside the
repository, or in ``$NRM_DATA``).
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import matplotlib
import torch
from montage import photo
from torch import Tensor

import nrm

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from real import models  # noqa: E402

matplotlib.use("Agg")
from matplotlib import pyplot as plt  # noqa: E402

LAYERS = ("features.8", "features.15", "features.22", "features.29")
"""The outputs of blocks two to five, before pooling."""


def measured(data: Path) -> tuple[nrm.Measure, Tensor]:
    """The measure of the photo's top class, and the photo."""
    picture = photo("china.jpg")
    x = (picture - models.MEAN[:, None, None]) / models.DEVIATION[:, None, None]
    model = models.load("VGG16-Imagenette", data)
    labels = {"output": list(models.IMAGENETTE)}
    return nrm.measure(model, x[None], rules="epsilon-plus-flat", labels=labels), picture


def main() -> None:
    """Heat maps of the decision and of its strongest flows above, the flow picture below."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    home = Path(os.environ.get("NRM_DATA") or ROOT.parent / "shared" / "data")
    parser.add_argument("--data", type=Path, default=home, help="the folder of the real data")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images" / "start.png")
    options = parser.parse_args()
    torch.manual_seed(0)
    R, picture = measured(options.data)
    x, parts = R.input, [nrm.cluster(R, name, k=5) for name in LAYERS]
    best = {flow.blocks[-1]: flow for flow in reversed(R.flows(*parts, k=60)[0])}  # of each cluster of the last layer
    flows = sorted(best.values(), key=lambda flow: -flow.relevance)[:3]
    print(R, R.check(), *flows, sep="\n")

    figure = plt.figure(figsize=(11.2, 8.4), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=(2.7, 5.7))
    shown, *axes = above.subplots(1, 5)
    shown.imshow(picture.permute(1, 2, 0).clamp(0, 1).numpy())
    shown.set(xticks=[], yticks=[])
    shown.set_title("the photo x", fontsize=9)
    maps = {"R(x): all of the decision": R(x.positions)[0]}
    for flow in flows:
        chain = " → ".join(str(block) for _, block in flow.blocks)
        maps[f"R(x, {chain}): {flow.relevance:.1%}"] = R(x.positions, *flow)[0]
    for ax, (title, heat) in zip(axes, maps.items(), strict=True):
        nrm.plot.heatmap(heat, ax=ax, image=picture.clamp(0, 1), scale="99.5%", colorbar=False)
        ax.set_title(title, fontsize=9)
    nrm.plot.flows(R, *parts, R.output, ax=below.subplots(), title="")
    figure.savefig(options.out, dpi=100, pil_kwargs={"optimize": True})
    print(f"wrote {options.out}: {options.out.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
