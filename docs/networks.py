"""Draws out/networks.png: what trained networks look at in photos, under several rules.

Rows are photos of Imagenette's validation set, columns a network and its rules; every map explains that network's own
top class. VGG16 has torchvision's ImageNet convolutions and a head of ten classes that was trained on Imagenette. The
photos and weights are the real data of the tests: beside the repository, or in ``$NRM_DATA``.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from pathlib import Path

import matplotlib
import torch
from PIL import Image
from torch import Tensor

import nrm

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from real import models  # noqa: E402

PHOTOS = {"n02102040": 9, "n03028079": 2, "n03000684": 8, "n03425413": 8, "n03888257": 9}
"""The folder of a class, and which of its photos in alphabetical order (none shows a person's face)."""

LOW, HIGH = (((bound - models.MEAN) / models.DEVIATION).view(3, 1, 1) for bound in (0.0, 1.0))
BOX = nrm.composite("epsilon-gamma-box", low=LOW, high=HIGH)
COLUMNS: dict[str, tuple[str, dict[str, object]]] = {
    "VGG16\nepsilon-plus-flat": ("VGG16-Imagenette", {"rules": "epsilon-plus-flat"}),
    "VGG16\nepsilon-gamma-box": ("VGG16-Imagenette", {"rules": BOX}),
    "VGG16\nalpha2-beta1-flat": ("VGG16-Imagenette", {"rules": "epsilon-alpha2-beta1-flat"}),
    "SqueezeNet\nepsilon-plus-flat": ("SqueezeNet", {"rules": "epsilon-plus-flat"}),
    "MobileNetV2\nepsilon-plus-flat": ("MobileNetV2", {"rules": "epsilon-plus-flat", "zero": "uniform"}),
}


def main() -> None:
    """Explain every photo by every network and write the picture."""
    home = Path(os.environ.get("NRM_DATA") or ROOT.parent / "shared" / "data")
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=home, help="the folder of the real data")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "networks.png")
    options = parser.parse_args()
    if not options.data.exists():
        raise SystemExit(f"the real data is not at {options.data}: set NRM_DATA, or --data")
    networks = {name: models.load(name, options.data) for name, _ in COLUMNS.values()}
    folders = sorted(path for path in (options.data / "imagenette" / "val").iterdir())
    rows, names = [], []
    for folder, name in zip(folders, models.IMAGENETTE, strict=True):
        if folder.name in PHOTOS:
            x = models.photo(sorted(folder.iterdir())[PHOTOS[folder.name]])
            rows.append([models.shown(x), *(heat(networks[model], x, rules) for model, rules in COLUMNS.values())])
            names.append(name)
    draw(rows, names, options.out)


def heat(model: torch.nn.Module, x: Tensor, options: dict[str, object]) -> Tensor:
    """The relevance of every position of the photo for the network's top class."""
    with nrm.measure(model, x[None], **options) as R:  # type: ignore[arg-type]
        return R(R.input.positions)[0]


def draw(rows: list[list[Tensor]], names: list[str], out: Path) -> None:
    """The grid as a small file: a palette of its own colours, dithered where a photo needs more."""
    matplotlib.use("Agg")
    figure = nrm.plot.montage(rows, names=names, columns=["photo", *COLUMNS], size=1.45, alpha=0.8)
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=100)
    picture = Image.open(buffer).convert("RGB")
    picture = picture.quantize(palette=picture.quantize(256), dither=Image.Dither.FLOYDSTEINBERG)
    out.parent.mkdir(parents=True, exist_ok=True)
    picture.save(out, optimize=True)
    print(f"wrote {out}: {out.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
