"""All joint contributions of 512 x 512 channel pairs of VGG16's features.26 and 28, beside a loop of forward passes.

A plain loop removes one pair at a time and runs the tail of the network, what comes after features.26, once for every
pair: 262,144 times. One of these passes is timed, alone and as its part of a batch of 32 pairs; the rest is
extrapolated. Some pairs are compared, to show that both compute the same.
"""

from __future__ import annotations

import argparse

import torch
from models import VGG, vgg16
from run import image, ratios
from torch import Tensor

import nrm

LAYERS = ("features.26", "features.28")
PAIRS = 512 * 512
BATCH = 32


def tail(model: VGG, value: Tensor, lower: list[int], upper: list[int]) -> Tensor:
    """The logits from the values of features.26 on; every row without its own channels (-1: with all)."""
    h = value.expand(len(lower), -1, -1, -1).clone()
    h[[k for k, c in enumerate(lower) if c >= 0], [c for c in lower if c >= 0]] = 0.0
    h = model.features[28](torch.relu(h))
    h[[k for k, c in enumerate(upper) if c >= 0], [c for c in upper if c >= 0]] = 0.0
    h = model.features[30](torch.relu(h))
    return model.classifier(torch.flatten(model.avgpool(h), 1))


def deviation(model: VGG, R: nrm.Measure, value: Tensor, target: int) -> float:
    """The largest difference to the plain loop over some pairs, beside the largest contribution."""
    table = nrm.evaluate.contribution(R, *(R[name].channels for name in LAYERS))[0]
    worst = 0.0
    for a, b in ((3, 5), (17, 400), (511, 0)):
        whole, one, other, both = tail(model, value, [-1, a, -1, a], [-1, -1, b, b])[:, target]
        worst = max(worst, abs(float(whole - one - other + both - table[a, b])))
    return worst / float(table.abs().max())


def main() -> None:
    """Prints the rows of the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--head", type=int, default=512, help="width of the dense layers; ImageNet's has 4096")
    parser.add_argument("--classes", type=int, default=10)
    options = parser.parse_args()
    torch.set_num_threads(2)
    model = vgg16()
    model.classifier = VGG(hidden=options.head, classes=options.classes).classifier
    model.eval().requires_grad_(False)
    R = nrm.measure(model, image(), target=0, rules="epsilon-plus-flat", progress=False)
    value = R.values(LAYERS[0])
    jobs = {
        "table": lambda: nrm.evaluate.contribution(R, *(R[name].channels for name in LAYERS)),
        "batch": lambda: tail(model, value, list(range(BATCH)), list(range(BATCH))),
    }
    times = ratios(lambda: tail(model, value, [3], [5]), jobs, options.repeat)
    for name, one in (("one pair at a time", 1.0), (f"{BATCH} pairs per batch", times["batch"] / BATCH)):
        print(
            f"| all contributions, beside the loop with {name}, extrapolated | 1 / {one * PAIRS / times['table']:.0f} |"
        )
    print(f"| largest deviation from the loop over three pairs | {deviation(model, R, value, 0):.1e} |")


if __name__ == "__main__":
    main()
