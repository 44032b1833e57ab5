"""How well the leading pairs of classes are known, where not all pairs are kept: VGG16 on Imagenette's photos.

python benchmarks/leading.py [--each 40] [--room 1024] [--data FOLDER]

All 512 x 512 pairs of channels of features.26 and features.28, exactly and as a job keeps them. Needs the real data of
the tests: beside the repository, or in ``$NRM_DATA``.
"""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from pathlib import Path

import torch

import nrm
from nrm.jobs.leading import ROOM, Leader, Leading, leaders

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from real import models  # noqa: E402

LABELS, K = (0, 4, 6, 7, 9), 10
A, B = nrm.layer("features.26").channels, nrm.layer("features.28").channels


def compare(kept: Leading, exact: torch.Tensor, label: int) -> str:
    """What is known of a class beside its exact means."""
    sums = kept.total(label)
    assert sums is not None
    found, limit = leaders(sums, exact.numel(), K)
    order = exact.argsort(descending=True)[: K + 1].tolist()
    same = len({leader.block for leader in found} & set(order[:K]))
    off = max(abs(leader.mean / float(exact[leader.block]) - 1) for leader in found)
    width = sum((leader.high - leader.low) / leader.mean for leader in found) / K
    sure = max((k for k in range(1, 51) if _settled(*leaders(sums, exact.numel(), k))), default=0)
    following = float(exact[order[K]])
    name = models.IMAGENETTE[label]
    return f"| {name} | {same} | {off:.1%} | {width:.1%} | {limit:.4%} | {following:.4%} | {sure} |"


def _settled(found: list[Leader], limit: float) -> bool:
    return min(leader.low for leader in found) >= limit


def main() -> None:
    home = Path(os.environ.get("NRM_DATA") or ROOT.parent / "shared" / "data")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--each", type=int, default=40, help="photos of each class")
    parser.add_argument("--room", type=int, default=ROOM, help="shares of a photo, and pairs of a class, that are kept")
    parser.add_argument("--data", type=Path, default=home, help="the folder of the real data")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", nrm.NrmWarning)
    model = models.load("VGG16-Imagenette", given.data)
    folders = sorted((given.data / "imagenette" / "val").iterdir())
    print(f"| class | of the {K} largest | off by at most | mean interval | limit | the next | settled |")
    for label in LABELS:
        kept, exact = Leading(given.room), torch.zeros(512 * 512, dtype=torch.float64)
        photos = sorted(folders[label].iterdir())[: given.each]
        for number, path in enumerate(photos):
            image = models.photo(path)[None]
            with nrm.measure(model, image, target=label, rules="epsilon-plus-flat", progress=False) as R:
                table = R(A, B).flatten(1)
            kept.add([number], table, [label])
            exact += table[0].double() / len(photos)
        print(compare(kept, exact, label), flush=True)


if __name__ == "__main__":
    main()
