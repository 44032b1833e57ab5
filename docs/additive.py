"""Joint against additive relevance: the heat maps of two sets of neurons over three layers of a digits network.

Run by ``make additive``. Both sets have clusters of positions in the same three layers, and differ in the last of them:
the first has the clusters with most relevance, the second the others. Additive relevance adds up whatever touches a
set, so that both maps look alike; joint relevance follows only the walks that stay inside.
"""

from __future__ import annotations

import argparse
import pathlib

import matplotlib
import torch
from torch import Tensor

import nrm
from nrm.demo import digits, read_digits

matplotlib.use("Agg")
LAYERS = ("relu1", "relu2", "relu3")
CLUSTERS = 4
CHOSEN = {"S1": ((0, 1), (0, 1), (0, 1)), "S2": ((0, 1), (0, 1), (2, 3))}


def measured(sample: int) -> tuple[nrm.Measure, Tensor]:
    """The measure of one digit under the network that the package carries, and its picture."""
    image = read_digits()[0][1500 + sample]
    return nrm.measure(digits()[0], image[None], rules="epsilon-plus", bias="input"), image


def main() -> None:
    """Measure, compare, draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sample", type=int, default=12, help="which test image is explained")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent / "images" / "additive.png")
    options = parser.parse_args()
    R, image = measured(options.sample)
    x, parts = R.input, [nrm.cluster(R, name, k=CLUSTERS) for name in LAYERS]
    rows, maps = [], {"additive": [], "joint": []}
    for name, chosen in CHOSEN.items():
        sets = [part.layer.group(part.detail[0].tensor, list(some)) for part, some in zip(parts, chosen, strict=True)]
        inside = [R(part.layer.positions, one)[0] for part, one in zip(parts, sets, strict=True)]
        additive, joint = R.additive(*sets, at=x, layers=LAYERS)[0], R(x, *sets)[0]
        maps["additive"].append(additive)
        maps["joint"].append(joint)
        rows.append((1 - image, *inside, additive, joint))
        print(f"{name}: additive {float(additive.sum()):.3f}, joint {float(joint.sum()):.3f}, of all inputs "
              f"{float(R.additive(*sets, layers=LAYERS)):.3f} and {float(R(*sets)):.3f}")  # fmt: skip
    for kind, (first, second) in maps.items():
        alike = torch.corrcoef(torch.stack([first.flatten(), second.flatten()]))[0, 1]
        print(f"the {kind} maps of the two sets correlate with {float(alike):.2f}")
    columns = ["", *(f"in {name}" for name in LAYERS), "additive", "joint"]
    figure = nrm.plot.montage(rows, names=list(CHOSEN), columns=columns, smooth=False, size=1.6)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.out, dpi=100, pil_kwargs={"optimize": True})
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
