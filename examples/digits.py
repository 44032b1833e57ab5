"""The main job on embedded data: train a small network on scikit-learn's digits, then ask its measure.

Prints the prediction, the certificate and the strongest interactions between channels of two layers, and writes two
pictures: heat maps of the decision and of its strongest interaction alone, and how the decision flowed through four
layers. Needs no download.
"""

from __future__ import annotations

import argparse
import pathlib
import time

import torch
from torch import Tensor
from tqdm.auto import tqdm

import nrm
from nrm.demo import read_digits, save_weights, train
from nrm.demo.digits import LEARNED
from nrm.search import Flow


def main() -> None:
    """Train, measure, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sample", type=int, default=12, help="which test image is explained")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out/digits.png"))
    parser.add_argument("--save", type=pathlib.Path, help="write the weights there (those of `nrm demo` are made so)")
    options = parser.parse_args()

    torch.manual_seed(0)
    images, classes = read_digits()
    model = train(images[:LEARNED], classes[:LEARNED], tqdm(range(options.epochs), desc="training"))
    if options.save:
        save_weights(model, options.save)
    test, truth = images[LEARNED:], classes[LEARNED:]
    with torch.no_grad():
        accuracy = float((model(test).argmax(1) == truth).float().mean())
    print(f"a network trained on {LEARNED} digits; accuracy on {len(test)} others: {accuracy:.1%}\n")

    image = test[options.sample : options.sample + 1]
    begin = time.perf_counter()
    R = nrm.measure(
        model, image, rules="epsilon-plus", bias="input", labels={"output": [f"digit {i}" for i in range(10)]}
    )
    low, high = R["relu1"], R["relu3"]
    flows = R.flows(low.channels, high.channels, k=5)[0]
    seconds = time.perf_counter() - begin
    print(R, end="\n\n")
    print(R.check(), end="\n\n")
    print(f"the strongest interactions of {low} and {high} (found in {seconds * 1e3:.0f} ms, capture included):")
    for flow in flows:
        a, b = flow
        given = float(R(a, given=b))
        print(f"  {flow.relevance:6.1%}  of the decision flowed through {a} and {b}; {given:.0%} of what {b} carries")
    skip = R.edge("relu1", "/add")
    print(f"\nthe residual branch carries {float(R(R['conv2'].all)):.1%}, its skip connection {float(R(skip.all)):.1%}")
    draw(R, image, flows[0], options.out)
    columns = (low.channels, R["conv2"].channels, high.channels, R.output)
    picture = options.out.with_stem(f"{options.out.stem}-flows")
    nrm.plot.flows(R, *columns, nodes=6).figure.savefig(picture, dpi=110)
    print(f"pictures: {options.out}, {picture}")


def draw(R: nrm.Measure, image: Tensor, flow: Flow, path: pathlib.Path) -> None:
    """The image, the whole heat map, and the heat map of one interaction."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained")
    axes[0].imshow(image[0, 0].numpy(), cmap="gray_r")
    axes[0].set(title=f"x\npredicted {int(R.prediction)}", xticks=[], yticks=[])
    nrm.plot.heatmap(R(R.input)[0], ax=axes[1], title="R(x)\nthe whole decision")
    nrm.plot.heatmap(R(R.input, *flow)[0], ax=axes[2], title=f"R(x, *flow)\n{' & '.join(map(str, flow))}")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
