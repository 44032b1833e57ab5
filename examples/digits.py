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
from sklearn.datasets import load_digits
from torch import Tensor, nn
from tqdm.auto import tqdm

import nrm
from nrm.search import Flow


class DigitNet(nn.Module):
    """Two convolutions with a residual block between them, and a linear classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 16, 3, padding=1)
        self.conv3 = nn.Conv2d(16, 32, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.relu1, self.relu2, self.relu3 = nn.ReLU(), nn.ReLU(), nn.ReLU()
        self.fc = nn.Linear(32 * 2 * 2, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu1(self.conv1(x))
        x = self.pool(self.relu2(self.conv2(x) + x))
        x = self.pool(self.relu3(self.conv3(x)))
        return self.fc(x.flatten(1))


def trained(images: Tensor, classes: Tensor, epochs: int) -> DigitNet:
    """A few seconds of training."""
    model = DigitNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in tqdm(range(epochs), desc="training"):
        for batch in torch.randperm(len(images)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), classes[batch]).backward()
            optimizer.step()
    return model.eval()


def main() -> None:
    """Train, measure, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sample", type=int, default=12, help="which test image is explained")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out/digits.png"))
    options = parser.parse_args()

    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    classes = torch.tensor(digits.target)
    model = trained(images[:1500], classes[:1500], options.epochs)
    test, truth = images[1500:], classes[1500:]
    with torch.no_grad():
        accuracy = float((model(test).argmax(1) == truth).float().mean())
    print(f"a network trained on {1500} digits; accuracy on {len(test)} others: {accuracy:.1%}\n")

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
