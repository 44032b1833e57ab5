"""The heat-map montage of the README: two photos that scikit-learn ships, explained under several rules.

Run by ``make montage``. The network is torchvision's SqueezeNet with its ImageNet weights: downloaded by torchvision
where there is a network, or read from ``--weights FILE.safetensors``.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pathlib
import sys

import matplotlib
import torch
from safetensors.torch import load_file
from sklearn.datasets import load_sample_image
from torch import Tensor, nn

import nrm

matplotlib.use("Agg")
MEAN, STD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
RULES = ("epsilon-plus-flat", "epsilon-gamma-box", "epsilon-alpha2-beta1", "lrp-0")


def network(weights: pathlib.Path | None) -> tuple[nn.Module, list[str] | None]:
    """SqueezeNet 1.1 in eval mode, and its class names where torchvision knows them."""
    sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tests"))
    importlib.import_module("vision").load()  # torchvision, also beside a CPU build of torch
    from torchvision.models import SqueezeNet1_1_Weights, squeezenet1_1

    names = list(SqueezeNet1_1_Weights.DEFAULT.meta["categories"])
    data = pathlib.Path(os.environ.get("NRM_DATA") or pathlib.Path(__file__).parents[2] / "shared" / "data")
    here = data / "squeezenet1_1" / "squeezenet1_1.safetensors"
    weights = here if weights is None and here.exists() else weights
    if weights is None:
        return squeezenet1_1(weights=SqueezeNet1_1_Weights.DEFAULT).eval(), names
    model = squeezenet1_1()
    model.load_state_dict({k: v.float() for k, v in load_file(weights).items()})
    return model.eval(), names


def photo(name: str) -> Tensor:
    """A square photo of 224 pixels between 0 and 1."""
    picture = torch.tensor(load_sample_image(name).copy()).permute(2, 0, 1).float() / 255
    side = min(picture.shape[1:])
    top, left = (picture.shape[1] - side) // 2, (picture.shape[2] - side) // 2
    square = picture[None, :, top : top + side, left : left + side]
    return nn.functional.interpolate(square, (224, 224), mode="bilinear", antialias=True)[0]


def main() -> None:
    """Explain both photos under every rule and write the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--weights",
        type=pathlib.Path,
        help="squeezenet1_1 as safetensors; by default those of the real data, else torchvision's",
    )
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent / "images" / "montage.png")
    options = parser.parse_args()
    model, names = network(options.weights)
    photos = [photo("flower.jpg"), photo("china.jpg")]
    batch = torch.stack([(p - MEAN[:, None, None]) / STD[:, None, None] for p in photos])
    maps: list[list[Tensor]] = [[] for _ in photos]
    classes: list[str] = []
    for rules in RULES:
        R = nrm.measure(model, batch, rules=rules)
        relevance = R(R.input.positions)
        print(rules, R.check(strict=False).verdict)
        classes = [names[int(i)] if names else str(int(i)) for i in R.prediction]
        for row, one in zip(maps, relevance, strict=True):
            row.append(one)
    rows = [(image, *row) for image, row in zip(photos, maps, strict=True)]
    figure = nrm.plot.montage(rows, names=classes, columns=["", *RULES], scale="99.5%", colorbar=False)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.out, dpi=85, pil_kwargs={"optimize": True})
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
