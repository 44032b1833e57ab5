"""Draws docs/images/gallery.png: photos in which channels of VGG16, and pairs of them, count most.

Photos are of Imagenette's validation set; VGG16 has torchvision's ImageNet convolutions and a head of ten classes that
was trained on Imagenette. Both are the real data of the tests: beside the repository, or in ``$NRM_DATA``. The job
keeps its store in out/, and goes on there if it was stopped.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from pathlib import Path

import matplotlib
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

import nrm

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from real import models  # noqa: E402

SHOWN = ("gas pump",)
A, B = nrm.layer("features.26"), nrm.layer("features.28")
OPTIONS = {"rules": "epsilon-plus-flat"}


class Photos(Dataset[tuple[Tensor, int]]):
    """The first photos of every class, with the class's number."""

    def __init__(self, folder: Path, each: int) -> None:
        folders = sorted(path for path in folder.iterdir())
        self.items = [(path, label) for label, found in enumerate(folders) for path in sorted(found.iterdir())[:each]]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        path, label = self.items[number]
        return models.photo(path), label


def main() -> None:
    """Run the job and draw the sheet."""
    home = Path(os.environ.get("NRM_DATA") or ROOT.parent / "shared" / "data")
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=home, help="the folder of the real data")
    parser.add_argument("--each", type=int, default=40, help="photos of each class")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--store", type=Path, default=ROOT / "out" / "gallery")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images" / "gallery.png")
    given = parser.parse_args()
    if not given.data.exists():
        raise SystemExit(f"the real data is not at {given.data}: set NRM_DATA, or --data")
    model = models.load("VGG16-Imagenette", given.data)
    photos = Photos(given.data / "imagenette" / "val", given.each)
    store = nrm.relmax(
        model, photos, A.channels, B.channels, (A.channels, B.channels), target="label", store=given.store,
        batch_size=4, shard_size=40, workers=given.workers, **OPTIONS,
    )  # fmt: skip
    blocks: list[object] = []
    for name in SHOWN:
        ((a, b), share), *_ = store.best(A.channels, B.channels, k=1, target=models.IMAGENETTE.index(name))
        print(f"{name}: features.26 channel {a} and features.28 channel {b}, {share:.2%} of the decision on average")
        blocks += [A.channel(a), B.channel(b), (A.channel(a), B.channel(b))]
    matplotlib.use("Agg")
    figure = nrm.plot.gallery(store, *blocks, k=6, model=model, dataset=photos, size=1.1, **OPTIONS)
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=100)
    picture = Image.open(buffer).convert("RGB")
    picture = picture.quantize(palette=picture.quantize(256), dither=Image.Dither.FLOYDSTEINBERG)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    picture.save(given.out, optimize=True)
    print(f"wrote {given.out}: {given.out.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
