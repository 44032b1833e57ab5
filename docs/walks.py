"""Draws docs/images/walks.png: sets of walks through a small network, and their relevance.

Run by ``make walks``. A line between two neurons is as wide as the relevance of the walks in the set that take it,
asked from the measure of a network with random weights; red is for the output, blue against it.
"""

from __future__ import annotations

import argparse
import itertools
import pathlib

import matplotlib
import torch
from torch import nn

import nrm

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

WIDTHS = (4, 5, 4, 4, 2)
LAYERS = ("input", "1", "3", "5", "output")
FOR, AGAINST, GREY, INK = "#c1272d", "#2b5fad", "#dcdcdc", "#333333"
THICK = 26.0
"""Points of a line that carries everything."""

Sets = dict[int, list[int]]


def network(seed: int = 5) -> tuple[nn.Module, torch.Tensor]:
    """A perceptron of four linear layers with random weights, mostly positive, and an input."""
    torch.manual_seed(seed)
    steps: list[nn.Module] = []
    for inside, outside in itertools.pairwise(WIDTHS):
        step = nn.Linear(inside, outside, bias=False)
        nn.init.normal_(step.weight, 0.35, 0.6)
        steps += [step, nn.ReLU()]
    return nn.Sequential(*steps[:-1]).eval(), torch.rand(1, WIDTHS[0]) + 0.3


def place(layer: int, neuron: int) -> tuple[float, float]:
    """Where a neuron is drawn: input on the left, columns centred."""
    return 1.5 * layer, neuron - (WIDTHS[layer] - 1) / 2


def draw(ax: Axes, R: nrm.Measure, sets: Sets, given: Sets, avoid: Sets, title: str) -> None:
    """One set of walks: those that pass all sets and none to avoid, as a share of those that pass ``given``."""
    layers = [R[name] for name in LAYERS]
    condition = [layers[i].channel(some) for i, some in given.items()]
    events: list[nrm.Set | nrm.questions.Formula] = [layers[i].channel(some) for i, some in sets.items()]
    events += condition
    events += [~nrm.visits(layers[i].channel(some)) for i, some in avoid.items()]
    total = float(R(*condition)) if condition else 1.0
    for i, (low, high) in enumerate(itertools.pairwise(layers)):
        mass = R(low.channels, high.channels, *events)[0] / total
        for j, k in itertools.product(range(WIDTHS[i]), range(WIDTHS[i + 1])):
            (x0, y0), (x1, y1) = place(i, j), place(i + 1, k)
            ax.plot([x0, x1], [y0, y1], color=GREY, linewidth=0.6, zorder=0)
            share = float(mass[j, k])
            if abs(share) > 1e-4:
                color = FOR if share > 0 else AGAINST
                ax.plot([x0, x1], [y0, y1], color=color, linewidth=THICK * abs(share), alpha=0.75, zorder=1,
                        solid_capstyle="round")  # fmt: skip
    for i, width in enumerate(WIDTHS):
        for j in range(width):
            face = FOR if j in sets.get(i, []) else INK if j in given.get(i, []) else "white"
            ax.scatter(*place(i, j), s=75, facecolor=face, edgecolor=INK, linewidth=1.1, zorder=2)
            if j in avoid.get(i, []):
                ax.scatter(*place(i, j), s=38, marker="x", color=INK, linewidth=1.6, zorder=3)
    relevance = float(R(*events)) / total if events else 1.0
    ax.set_title(f"{title} = {relevance:.3f}".replace("-", "−"), fontsize=10)
    ax.set_axis_off()
    ax.set_ylim(-2.45, 2.45)


def main() -> None:
    """Six sets of walks of one measure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path(__file__).parent / "images" / "walks.png")
    options = parser.parse_args()
    model, x = network()
    R = nrm.measure(model, x, target="softmax", rules=nrm.Gamma(0.1))
    every = R(*(R[name].channels for name in LAYERS))[0]  # all walks: few, here
    best = {i: [int(n)] for i, n in enumerate(torch.unravel_index(every.argmax(), every.shape))}
    panels: list[tuple[Sets, Sets, Sets, str]] = [
        ({}, {}, {}, "everything\nR(all walks)"),
        (best, {}, {}, "one walk: joint\nR(n⁰, n¹, n², n³, n⁴)"),
        ({1: [3]}, {}, {}, "one neuron: marginal\nR(n¹)"),
        ({1: [3]}, {3: [3]}, {}, "given another: conditional\nR(n¹ | n³)"),
        ({2: [2, 3], 3: [1, 2]}, {}, {}, "sets in two layers: substructure\nR(S², S³)"),
        ({1: [3, 4]}, {}, {2: [2]}, "logic: through one set, past another\nR(visits(S¹) & ~visits(S²))"),
    ]
    figure, axes = plt.subplots(2, 3, figsize=(10.5, 6.2), layout="constrained")
    for ax, (sets, given, avoid, title) in zip(axes.flat, panels, strict=True):
        draw(ax, R, sets, given, avoid, title)
    figure.savefig(options.out, dpi=110, pil_kwargs={"optimize": True})
    print(f"wrote {options.out}")


if __name__ == "__main__":
    main()
